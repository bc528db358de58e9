"""Other programs at the keyboard of an X11 display: one that holds it, one that presses, one that sees every press."""

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from Xlib import XK, X
from Xlib.display import Display
from Xlib.ext import record, xtest
from Xlib.protocol import rq

UNTIL_S = 10.0


def keys_down() -> list[int]:
    """Return the codes of the keys that are down."""
    display = Display(os.environ["DISPLAY"])
    try:
        keymap = display.query_keymap()
    finally:
        display.close()
    return [code for code in range(256) if keymap[code // 8] >> code % 8 & 1]


def code_of(symbol: str) -> int:
    """Return the key that gives a symbol."""
    display = Display(os.environ["DISPLAY"])
    try:
        code: int = display.keysym_to_keycode(XK.string_to_keysym(symbol))
    finally:
        display.close()
    return code


def hold(code: int, *, down: bool) -> None:
    """Press a key and keep it, or let it go, as a person does."""
    display = Display(os.environ["DISPLAY"])
    try:
        xtest.fake_input(display, X.KeyPress if down else X.KeyRelease, code)
        display.sync()
    finally:
        display.close()


class Locker:
    """Holds the keyboard, and has the keys that came."""

    def __init__(self) -> None:
        self._display = Display(os.environ["DISPLAY"])
        root = self._display.screen().root
        end = time.monotonic() + UNTIL_S
        while root.grab_keyboard(False, X.GrabModeAsync, X.GrabModeAsync, X.CurrentTime) != X.GrabSuccess:
            assert time.monotonic() < end, "another program holds the keyboard"
            time.sleep(0.001)
        self._display.sync()

    def keys(self) -> list[int]:
        """Return the codes of the keys that were pressed since."""
        self._display.sync()
        events = [self._display.next_event() for _ in range(self._display.pending_events())]
        return [event.detail for event in events if event.type == X.KeyPress]

    def unlock(self) -> None:
        self._display.ungrab_keyboard(X.CurrentTime)
        self._display.sync()
        self._display.close()


@contextmanager
def each_press(tell: Callable[[int], None]) -> Iterator[None]:
    """Call `tell` with the code of every key that is pressed, from a thread of its own."""
    control, reading = Display(os.environ["DISPLAY"]), Display(os.environ["DISPLAY"])
    wanted: dict[str, Any] = {
        "core_requests": (0, 0),
        "core_replies": (0, 0),
        "ext_requests": (0, 0, 0, 0),
        "ext_replies": (0, 0, 0, 0),
        "delivered_events": (0, 0),
        "device_events": (X.KeyPress, X.KeyPress),
        "errors": (0, 0),
        "client_started": False,
        "client_died": False,
    }
    context = reading.record_create_context(0, [record.AllClients], [wanted])

    def note(reply: Any) -> None:
        data: Any = reply.data
        while reply.category == record.FromServer and len(data):
            event, data = rq.EventField("event").parse_binary_value(data, reading.display, None, None)
            tell(event.detail)

    thread = threading.Thread(target=lambda: reading.record_enable_context(context, note), daemon=True)
    thread.start()
    time.sleep(0.2)
    try:
        yield
    finally:
        control.record_disable_context(context)
        control.sync()
        thread.join(10)
        control.close()
        reading.close()
