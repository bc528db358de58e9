"""Presses keys with pyautogui; nothing is ever typed with it.

Its `write` types `>` for `<`, drops what is not ASCII, and submits a chat at every line end.
"""

import sys
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
    gui = keyboard()
    try:
        gui.hotkey(*(_NAMES.get(name, name) for name in chord.split("+")))
    except gui.FailSafeException:
        raise DriverError("the pointer is in a corner of the screen, which stops all keys. Move it away") from None
    except Exception as error:
        raise DriverError(f"the keys {chord} cannot be sent: {type(error).__name__}: {error}") from error
