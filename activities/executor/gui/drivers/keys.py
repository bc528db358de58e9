"""Presses keys and clicks with pyautogui; nothing is ever typed with it.

Its `write` types `>` for `<`, drops what is not ASCII, and submits a chat at every line end.
"""

import sys
from collections.abc import Callable
from typing import Any

from activities.executor.gui.port import DriverError

MOD = {"darwin": "command"}
_NAMES = {"mod": MOD.get(sys.platform, "ctrl"), "cmd": "command"}


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
            f"pyautogui cannot be used: {type(error).__name__}: {' '.join(str(error).split())}. On Linux it needs a "
            "display and tkinter (apt install python3-tk)"
        ) from None
    pyautogui.PAUSE = 0.0
    return pyautogui


def press(chord: str) -> None:
    """Press the keys of a chord together.

    Raises:
        DriverError: the pointer is in a corner of the screen, which stops pyautogui; or the keys cannot be sent.
    """
    names = [_NAMES.get(name, name) for name in chord.split("+")]
    _do(f"the keys {chord} cannot be sent", lambda gui: gui.hotkey(*names))


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
