"""Presses keys and clicks on a Mac with pyautogui; nothing is ever typed with it.

Its `write` types `>` for `<`, drops what is not ASCII, and submits a chat at every line end.
"""

from collections.abc import Callable, Sequence
from typing import Any

from activities.executor.gui.port import DriverError

_NAMES = {"mod": "command", "cmd": "command"}


def keyboard() -> Any:
    """Return pyautogui, set up.

    Raises:
        DriverError: it cannot be used here.
    """
    try:
        import pyautogui
    # Without tkinter one of its modules ends the process; without a display there is a KeyError.
    except (Exception, SystemExit) as error:  # noqa: BLE001
        raise DriverError(
            f"pyautogui cannot be used: {type(error).__name__}: {' '.join(str(error).split())}. Install it: "
            "pip install pyautogui"
        ) from None
    pyautogui.PAUSE = 0.0
    return pyautogui


def names_of(chord: str) -> list[str]:
    """Return the keys of a chord by pyautogui's names."""
    return [_NAMES.get(name, name) for name in chord.split("+")]


def press(chord: str) -> None:
    """Press the keys of a chord together.

    Raises:
        DriverError: the pointer is in a corner of the screen, which stops pyautogui; or the keys cannot be sent.
    """
    _do(f"the keys {chord} cannot be sent", lambda gui: gui.hotkey(*names_of(chord)))


def release(names: Sequence[str]) -> None:
    """Release keys, the last one first; those that are up stay up.

    Raises:
        DriverError: as `press`.
    """

    def let_go(gui: Any) -> None:
        for name in reversed(names):
            gui.keyUp(name)

    _do(f"the keys {'+'.join(names)} cannot be released", let_go)


def click(x: int, y: int) -> None:
    """Click at a point of the screen.

    Raises:
        DriverError: as `press`.
    """
    _do(f"({x}, {y}) cannot be clicked", lambda gui: gui.click(x, y))


def _do(otherwise: str, act: Callable[[Any], None]) -> None:
    gui = keyboard()
    try:
        act(gui)
    except gui.FailSafeException:
        raise DriverError("the pointer is in a corner of the screen, which stops all keys. Move it away") from None
    except Exception as error:
        raise DriverError(f"{otherwise}: {type(error).__name__}: {error}") from error
