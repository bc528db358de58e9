"""Windows and keys on X11."""

import functools
import importlib.util
import json
import os
import selectors
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import resources
from io import BytesIO
from pathlib import Path
from typing import Any, TypeVar, cast

from activities.artifacts.port import file_stem, replace_file
from activities.executor.gui.port import DriverError, Element, Frame, Health, NotPressedError, Window, gui_folder
from tightloop.host import private_folder
from tightloop.host.programs import TrustedProgram, find_trusted_program, own_environment, own_python


def _folder() -> Path:
    return gui_folder() / "keys"


def key_journals() -> tuple[Path, ...]:
    """Return the key journals of all displays on which keys may be pressed."""
    return tuple(_folder().glob("*.json"))


class KeyJournal:
    """A record of the keys pressed on a display. The file exists only while keys are pressed."""

    def __init__(self, display: str) -> None:
        self._path = _folder() / f"{file_stem(display)}.json"

    @contextmanager
    def pressing(self, keys: Sequence[int | str]) -> Iterator[None]:
        """Keep keys recorded as pressed while the block runs.

        The record is kept if the block raises an error other than `NotPressedError`.
        """
        private_folder(self._path.parent)
        # Without fsync: key state does not survive a power loss anyway.
        replace_file(self._path, json.dumps(list(keys)).encode())
        try:
            yield
        except NotPressedError:
            self.clear()
            raise
        self.clear()

    def list_pressed_keys(self) -> list[int | str]:
        """Return the recorded keys in the order in which they were pressed."""
        with suppress(OSError, ValueError):
            keys = json.loads(self._path.read_bytes())
            return [key for key in keys if isinstance(key, int | str)] if isinstance(keys, list) else []
        return []

    def clear(self) -> None:
        self._path.unlink(missing_ok=True)


XCLIP_S = 3.0
_KEYSYMS = {
    "mod": "Control_L",
    "ctrl": "Control_L",
    "cmd": "Super_L",
    "alt": "Alt_L",
    "shift": "Shift_L",
    "enter": "Return",
    "backspace": "BackSpace",
    "left": "Left",
    "right": "Right",
    "escape": "Escape",
    "tab": "Tab",
}
_Call = TypeVar("_Call", bound=Callable[..., Any])


def _x11(call: _Call) -> _Call:
    """Convert errors of the X server to `DriverError` and disconnect. The next call connects again."""

    @functools.wraps(call)
    def wrapper(self: "X11Driver", *args: Any, **kwargs: Any) -> Any:
        try:
            return call(self, *args, **kwargs)
        except DriverError:
            raise
        # The library raises many error classes, even OSError and TypeError if an answer is missing.
        except Exception as error:
            self.disconnect()
            raise DriverError(f"the X server reported an error: {type(error).__name__}: {error}") from error

    return cast(_Call, wrapper)


class X11Driver:
    """An X11 display with a window manager."""

    name = "x11"

    def __init__(self) -> None:
        self._name = os.environ.get("DISPLAY", "")
        self._display: Any = None
        self._tree = Accessibility()
        self._journal = KeyJournal(self._name)

    def preflight(self) -> Health:
        problems = []
        if not self._name:
            return Health(
                problems=("no display found because DISPLAY is not set. Start the worker in a desktop session",)
            )
        if find_trusted_program("xclip") is None:
            problems.append("xclip is not installed. Run apt install xclip")
        for check in (self._require_manager, self._require_keyboard, self._tree.start):
            try:
                check()
            except DriverError as error:
                problems.append(error.message)
        return Health(problems=tuple(problems), version=f"display {self._name}")

    @_x11
    def _require_manager(self) -> None:
        if self._property(self._connect().screen().root, "_NET_SUPPORTING_WM_CHECK") is None:
            raise DriverError(f"display {self._name} has no window manager. Start one, for example openbox")

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Grab the X server so that nothing changes between a check and the key press."""
        display = self._connect()
        display.grab_server()
        try:
            yield
        finally:
            display.ungrab_server()
            # Sends the buffered requests and waits until the server has handled them.
            display.sync()

    @_x11
    def _require_keyboard(self) -> None:
        """Raise an error if another program has grabbed the keyboard, such as a screen locker or a menu."""
        from Xlib import X

        display = self._connect()
        mode = X.GrabModeAsync
        if display.screen().root.grab_keyboard(True, mode, mode, X.CurrentTime) != X.GrabSuccess:
            raise NotPressedError(
                f"another program has grabbed the keyboard on display {self._name}. Unlock the screen or close the "
                "program's menu"
            )
        display.ungrab_keyboard(X.CurrentTime)

    def _require_safe_pointer(self) -> None:
        """Raise an error if the pointer is in a corner of the screen.

        A person can move the pointer there to stop all key presses.
        """
        root = self._connect().screen().root
        pointer, size = root.query_pointer(), root.get_geometry()
        if pointer.root_x in (0, size.width - 1) and pointer.root_y in (0, size.height - 1):
            raise NotPressedError(
                "the pointer is in a corner of the screen, which blocks all key presses. Move the pointer away"
            )

    def _require_focus(self, window: Window) -> None:
        """Raise an error if the X server would send key presses to another window.

        This does not rely on the window manager.
        """
        focus, active = self._connect().get_input_focus().focus, self.active()
        # 0 means no window, and 1 the window under the pointer.
        while not isinstance(focus, int) and str(focus.id) != window.id:
            focus = focus.query_tree().parent
        if isinstance(focus, int) or active is None or active.id != window.id:
            raise NotPressedError(f"the window {window.title!r} no longer has keyboard focus")

    def _key_code(self, name: str) -> int:
        """Return the key code of a symbol in the current keyboard layout."""
        from Xlib import XK

        display = self._connect()
        symbol = XK.string_to_keysym(_KEYSYMS.get(name) or (name if len(name) == 1 else name.upper()))
        first, last = display.display.info.min_keycode, display.display.info.max_keycode
        rows = display.get_keyboard_mapping(first, last - first + 1)
        key_code = next((code for code, row in enumerate(rows, first) if symbol and row and row[0] == symbol), None)
        if key_code is None:
            raise NotPressedError(f"the keyboard layout of display {self._name} has no key for {name!r}")
        return key_code

    @_x11
    def windows(self) -> tuple[Window, ...]:
        numbers = self._property(self._connect().screen().root, "_NET_CLIENT_LIST")
        if numbers is None:
            raise DriverError(f"display {self._name} has no window manager. Start one, for example openbox")
        return tuple(window for number in numbers if (window := self._window(number)) is not None)

    @_x11
    def activate(self, window: Window) -> None:
        from Xlib import X
        from Xlib.protocol import event

        display = self._connect()
        root = display.screen().root
        # 2: like a pager; window managers ignore programs that request focus for themselves (EWMH 1.5).
        message = event.ClientMessage(
            window=display.create_resource_object("window", int(window.id)),
            client_type=display.intern_atom("_NET_ACTIVE_WINDOW"),
            data=(32, [2, X.CurrentTime, 0, 0, 0]),
        )
        root.send_event(message, event_mask=X.SubstructureRedirectMask | X.SubstructureNotifyMask)
        display.sync()

    @_x11
    def active(self) -> Window | None:
        window_ids = self._property(self._connect().screen().root, "_NET_ACTIVE_WINDOW")
        return self._window(window_ids[0]) if window_ids is not None and len(window_ids) and window_ids[0] else None

    def focused_element(self) -> Element | None:
        window = self.active()
        answer = self._tree.ask("focused", window.pid) if window is not None else None
        return None if answer is None else Element.model_validate(answer)

    def texts(self, window: Window) -> tuple[str, ...]:
        return tuple(map(str, self._tree.ask("texts", window.pid) or ()))

    def clipboard(self) -> str | None:
        completed = self._xclip("-out", "-target", "UTF8_STRING", stdout=subprocess.PIPE)
        return completed.stdout.decode("utf-8", "replace") if completed.returncode == 0 else None

    def set_clipboard(self, text: str) -> None:
        """Put text on the clipboard. xclip keeps providing the text until the clipboard changes."""
        # No inherited pipe: xclip stays in the background, and a reader would wait for its end.
        if self._xclip("-in", stdin=text.encode()).returncode != 0:
            raise DriverError(f"xclip could not copy the text to the clipboard of display {self._name}")

    @_x11
    def press(self, chord: str, window: Window | None = None) -> None:
        from Xlib import X
        from Xlib.ext import xtest

        display = self._connect()
        # Before the server is grabbed: reading the layout takes a round trip, and a missing key must press nothing.
        codes = [self._key_code(name) for name in chord.split("+")]
        with self._journal.pressing(codes), self._alone():
            self._require_safe_pointer()
            self._require_keyboard()
            if window is not None:
                self._require_focus(window)
            # Sent in one write: a killed process has pressed and released all of them, or none.
            for code in codes:
                xtest.fake_input(display, X.KeyPress, code)
            for code in reversed(codes):
                xtest.fake_input(display, X.KeyRelease, code)

    @_x11
    def release_keys(self) -> None:
        from Xlib import X
        from Xlib.ext import xtest

        if not (codes := [code for code in self._journal.list_pressed_keys() if isinstance(code, int)]):
            return
        display = self._connect()
        for code in reversed(codes):
            # The X server keeps a key down that a real keyboard holds as well: this releases only XTEST's key.
            if display.query_keymap()[code // 8] >> code % 8 & 1:
                xtest.fake_input(display, X.KeyRelease, code)
        display.sync()
        self._journal.clear()

    @_x11
    def frame(self, window: Window) -> Frame:
        display = self._connect()
        native_window = display.create_resource_object("window", int(window.id))
        size, position = native_window.get_geometry(), display.screen().root.translate_coords(native_window, 0, 0)
        return Frame(x=position.x, y=position.y, width=size.width, height=size.height)

    @_x11
    def picture(self, frame: Frame) -> bytes:
        from PIL import ImageGrab

        box = (frame.x, frame.y, frame.x + frame.width, frame.y + frame.height)
        buffer = BytesIO()
        ImageGrab.grab(box, xdisplay=self._name).save(buffer, "PNG")
        return buffer.getvalue()

    @_x11
    def click(self, x: int, y: int) -> None:
        from Xlib import X
        from Xlib.ext import xtest

        display = self._connect()
        with self._alone():
            self._require_safe_pointer()
            self._require_keyboard()
            xtest.fake_input(display, X.MotionNotify, x=x, y=y)
            xtest.fake_input(display, X.ButtonPress, 1)
            xtest.fake_input(display, X.ButtonRelease, 1)

    def close(self) -> None:
        self.disconnect()
        self._tree.close()

    def disconnect(self) -> None:
        """Close the connection to the X server. The next call connects again."""
        display, self._display = self._display, None
        if display is not None:
            # The server may have exited.
            try:
                display.close()
            except Exception:  # noqa: BLE001
                return

    def _xclip(self, *words: str, stdin: bytes | None = None, stdout: int = subprocess.DEVNULL) -> Any:
        xclip = find_trusted_program("xclip")
        if xclip is None:
            raise DriverError("xclip is not installed. Run apt install xclip")
        try:
            return subprocess.run(
                xclip.command("-selection", "clipboard", *words),
                input=stdin,
                stdout=stdout,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "DISPLAY": self._name},
                timeout=XCLIP_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise DriverError(
                f"xclip did not respond: {type(error).__name__}. Check that xclip is installed"
            ) from error

    def _connect(self) -> Any:
        if self._display is None:
            # python3-xlib 0.15, which pyautogui installs, fails without an authority file.
            if not Path(os.environ.get("XAUTHORITY") or "~/.Xauthority").expanduser().exists():
                empty = private_folder(gui_folder()) / "xauthority"
                empty.touch(0o600)
                os.environ["XAUTHORITY"] = str(empty)
            from Xlib.display import Display

            try:
                self._display = Display(self._name)
            except Exception as error:
                raise DriverError(f"cannot open display {self._name}: {error}") from error
        return self._display

    def _window(self, number: int) -> Window | None:
        from Xlib.error import BadWindow

        try:
            window = self._connect().create_resource_object("window", number)
            named = window.get_wm_class()
            pid = self._property(window, "_NET_WM_PID")
            title = self._property(window, "_NET_WM_NAME")
            raw_title = title if title is not None else (window.get_wm_name() or "")
        except BadWindow:
            return None
        text = raw_title if isinstance(raw_title, str) else bytes(raw_title).decode("utf-8", "replace")
        return Window(id=str(number), pid=pid[0] if pid is not None else 0, app=named[1] if named else "", title=text)

    def _property(self, window: Any, name: str) -> Any:
        from Xlib import X

        reply = window.get_full_property(self._connect().intern_atom(name), X.AnyPropertyType)
        return None if reply is None else reply.value


_NAMES = {"mod": "command", "cmd": "command"}


def keyboard() -> Any:
    """Load pyautogui, configure it and return it.

    Raises:
        DriverError: pyautogui cannot be used here.
    """
    try:
        import pyautogui
    # Without tkinter one of its modules exits the process; without a display it raises KeyError.
    except (Exception, SystemExit) as error:  # noqa: BLE001
        raise DriverError(
            f"cannot use pyautogui: {type(error).__name__}: {' '.join(str(error).split())}. Run pip install pyautogui"
        ) from None
    # Its default pause of 0.1 s per call would leave time for the focus to move.
    pyautogui.PAUSE = 0.0
    return pyautogui


def names_of(chord: str) -> list[str]:
    """Translate the keys of a chord to pyautogui's key names."""
    return [_NAMES.get(name, name) for name in chord.split("+")]


def press(chord: str) -> None:
    """Press the keys of a chord together.

    Raises:
        DriverError: the pointer is in a corner of the screen, which stops pyautogui, or the keys cannot be sent.
    """
    _do(f"cannot send the keys {chord}", lambda gui: gui.hotkey(*names_of(chord)))


def release(names: Sequence[str]) -> None:
    """Release keys in reverse order. Keys that are not pressed are ignored.

    Raises:
        DriverError: as in `press`.
    """

    def let_go(gui: Any) -> None:
        for name in reversed(names):
            gui.keyUp(name)

    _do(f"cannot release the keys {'+'.join(names)}", let_go)


def click(x: int, y: int) -> None:
    """Click at a point on the screen.

    Raises:
        DriverError: as in `press`.
    """
    _do(f"cannot click at ({x}, {y})", lambda gui: gui.click(x, y))


def _do(otherwise: str, act: Callable[[Any], None]) -> None:
    gui = keyboard()
    try:
        act(gui)
    except gui.FailSafeException:
        raise DriverError(
            "the pointer is in a corner of the screen, which blocks all key presses. Move the pointer away"
        ) from None
    except Exception as error:
        raise DriverError(f"{otherwise}: {type(error).__name__}: {error}") from error


ANSWER_S = 8.0
START_S = 20.0
SYSTEM_PYTHON = TrustedProgram("python3", Path("/usr/bin/python3"))
_CHUNK = 1 << 16


class Accessibility:
    """Queries the accessibility tree through a helper process.

    A helper that does not answer in time is killed. The next query starts a new one.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._rest = b""

    def start(self) -> None:
        """Start the helper unless it is already running.

        Raises:
            DriverError: there is no Python with the bindings, or no accessibility bus.
        """
        if self._process is not None and self._process.poll() is None:
            return
        self.close()
        # The bindings belong to the system's Python and cannot be installed from PyPI without a compiler.
        python = own_python() if importlib.util.find_spec("gi") else SYSTEM_PYTHON
        helper = resources.files("activities.executor.gui.drivers") / "atspi.py"
        try:
            self._process = subprocess.Popen(
                python.command(str(helper)),
                env=own_environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                # GLib may print many warnings there, and a full pipe would block the helper.
                stderr=subprocess.DEVNULL,
            )
        except OSError as error:
            raise DriverError(f"cannot start {python}: {error.strerror}. Install Python") from error
        try:
            self._read(START_S)
        except DriverError:
            self.close()
            raise DriverError(
                f"cannot read the accessibility tree with {python}. Run apt install gir1.2-atspi-2.0 python3-gi "
                "at-spi2-core, and start the worker in a desktop session with D-Bus"
            ) from None

    def ask(self, what: str, pid: int) -> Any:
        """Ask the helper about the windows of a process and return the answer.

        Raises:
            DriverError: the helper did not answer in time.
        """
        self.start()
        try:
            stdin = self._running.stdin
            assert stdin is not None
            stdin.write(json.dumps({"do": what, "pid": pid}).encode() + b"\n")
            stdin.flush()
            answer = json.loads(self._read(ANSWER_S))
        except (OSError, ValueError, DriverError) as error:
            self.close()
            raise DriverError(f"the accessibility tree did not respond: {error}") from error
        if "error" in answer:
            raise DriverError(f"cannot read the accessibility tree: {answer['error']}")
        return answer.get("answer")

    def close(self) -> None:
        process, self._process, self._rest = self._process, None, b""
        if process is not None:
            process.kill()
            process.communicate()

    @property
    def _running(self) -> subprocess.Popen[bytes]:
        assert self._process is not None
        return self._process

    def _read(self, seconds: float) -> bytes:
        stdout = self._running.stdout
        assert stdout is not None
        end, descriptor = time.monotonic() + seconds, stdout.fileno()
        with selectors.DefaultSelector() as selector:
            selector.register(descriptor, selectors.EVENT_READ)
            while b"\n" not in self._rest:
                left = end - time.monotonic()
                if left <= 0 or not selector.select(left):
                    raise DriverError(f"no response within {seconds:g} s")
                # Not `stdout.readline`: its buffer would hide from the selector that data is there.
                chunk = os.read(descriptor, _CHUNK)
                if not chunk:
                    raise DriverError("the helper has exited")
                self._rest += chunk
        line, _, self._rest = self._rest.partition(b"\n")
        return line
