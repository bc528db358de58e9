"""Windows and keys on macOS."""

import functools
import json
import os
import platform
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import resources
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar, cast

from activities.executor.gui.drivers.x11 import KeyJournal, click, keyboard, names_of, press, release
from activities.executor.gui.port import DriverError, Element, Frame, Health, NotPressedError, Window
from tightloop.errors import ExecutorError
from tightloop.host.programs import TrustedProgram, find_trusted_program

SCRIPT_S = 8.0
"""Timeout of a script in seconds. On a locked screen, osascript hangs."""
CLIPBOARD_S = 3.0
_KEY_CODES = {"enter": 36, "right": 124, "left": 123, "backspace": 51, "escape": 53, "tab": 48}
_MODIFIERS = {"mod": "command", "cmd": "command", "ctrl": "control", "alt": "option", "shift": "shift"}
# Keyed by the error numbers of System Events and the accessibility API.
_ADVICE = {
    "-1743": "allow the worker's program to control System Events in System Settings > Privacy & Security > Automation",
    "1002": "allow the worker's program in System Settings > Privacy & Security > Accessibility",
    "-25211": "allow the worker's program in System Settings > Privacy & Security > Accessibility",
    "-1719": "allow the worker's program in System Settings > Privacy & Security > Accessibility, or check that the "
    "window still exists",
    "-600": "start the editor",
}


class AppleScriptDriver:
    """The desktop of the user logged in to this Mac, driven by AppleScript."""

    name = "applescript"

    def preflight(self) -> Health:
        if find_trusted_program("osascript") is None:
            return Health(problems=("osascript was not found. This driver requires macOS",))
        try:
            state = self._json("state")
        except DriverError as error:
            return Health(problems=(error.message,))
        return Health(
            problems=problems(
                locked=bool(state.get("locked")),
                secure_input=int(state.get("secure_input") or 0),
                # None: unknown on this macOS version; the first call then fails with advice.
                trusted=state.get("trusted") is not False,
                may_post=state.get("may_post") is not False,
            ),
            version=str(state.get("version", "")),
        )

    def windows(self) -> tuple[Window, ...]:
        return tuple(Window.model_validate(fields) for fields in self._json("windows"))

    def activate(self, window: Window) -> None:
        self._run("activate", str(window.pid), window.title)

    def active(self) -> Window | None:
        fields = self._json("active")
        return Window.model_validate(fields) if fields else None

    def focused_element(self) -> Element | None:
        fields = self._json("focused")
        return element_of(fields) if fields else None

    def texts(self, window: Window) -> tuple[str, ...]:
        """Return an empty tuple, because reading a whole window through AppleScript takes minutes."""
        del window
        return ()

    def clipboard(self) -> str | None:
        completed = _command(("pbpaste",), CLIPBOARD_S)
        return completed.stdout.decode("utf-8", "replace") if completed.returncode == 0 and completed.stdout else None

    def set_clipboard(self, text: str) -> None:
        if _command(("pbcopy",), CLIPBOARD_S, text.encode()).returncode != 0:
            raise DriverError("pbcopy could not copy the text to the clipboard")

    def press(self, chord: str, window: Window | None = None) -> None:
        *modifiers, key = chord.split("+")
        unknown = [name for name in modifiers if name not in _MODIFIERS]
        if unknown or (key not in _KEY_CODES and len(key) != 1):
            raise DriverError(f"unknown keys {chord!r}. Use one key, optionally with mod, ctrl, alt or shift")
        state = self._json("state")
        if reasons := keyboard_problems(
            locked=bool(state.get("locked")), secure_input=int(state.get("secure_input") or 0)
        ):
            raise NotPressedError("; ".join(reasons))
        modifier_flags = ",".join(_MODIFIERS[name] for name in modifiers)
        target = ("", "") if window is None else (str(window.pid), window.title)
        code, character = (str(_KEY_CODES[key]), "") if key in _KEY_CODES else ("", key)
        if self._run("press", code, character, modifier_flags, *target) == "elsewhere":
            raise NotPressedError(f"the window {target[1]!r} no longer has keyboard focus")

    def release_keys(self) -> None:
        """Do nothing. System Events releases all keys, even if this process dies."""

    def frame(self, window: Window) -> Frame:
        """Raise an error. The frame is only needed for clicks."""
        raise DriverError(f"the applescript driver cannot locate {window.title!r}")

    def picture(self, frame: Frame) -> bytes:
        raise DriverError(f"the applescript driver cannot take a screenshot of {frame}")

    def click(self, x: int, y: int) -> None:
        raise DriverError(f"the applescript driver cannot click at ({x}, {y})")

    def close(self) -> None:
        """Do nothing. No resources are kept open."""

    def _json(self, name: str, *arguments: str) -> Any:
        text = self._run(name, *arguments)
        try:
            return json.loads(text)
        except ValueError:
            raise DriverError(f"osascript returned {text[:120]!r} for {name}, which is not JSON") from None

    def _run(self, name: str, *arguments: str) -> str:
        """Run one of our scripts with the values as arguments (`on run argv`, `run(argv)`)."""
        # Only AppleScript can send keys with System Events; the others are JavaScript, which can return JSON.
        suffix, language = ("applescript", "AppleScript") if name == "press" else ("js", "JavaScript")
        script = resources.files("activities.executor.gui.drivers") / "scripts" / f"{name}.{suffix}"
        with resources.as_file(script) as path:
            completed = _command(("osascript", "-l", language, str(path), *arguments), SCRIPT_S)
        if completed.returncode != 0:
            message = " ".join(completed.stderr.decode("utf-8", "replace").split())[:300]
            number = next((code for code in _ADVICE if f"({code})" in message or f" {code}" in message), "")
            advice = f". To fix this, {_ADVICE[number]}" if number else ""
            raise DriverError(f"osascript {name} failed: {message or f'exit code {completed.returncode}'}{advice}")
        return completed.stdout.decode("utf-8", "replace").strip()


def problems(
    *, locked: bool, secure_input: int, trusted: bool, may_post: bool, may_take_pictures: bool = True
) -> tuple[str, ...]:
    """Return the missing permissions and other problems. Each entry explains how to fix the problem."""
    privacy = "Allow the program in System Settings > Privacy & Security"
    obstacles = []
    if not trusted:
        obstacles.append(
            "the worker's program is not allowed to use the accessibility API, which tightloop needs to find the "
            f"windows and the chat box. {privacy} > Accessibility, and restart the worker"
        )
    if not may_post:
        # A separate permission since macOS 10.15, in the same list; a background program may have only one.
        obstacles.append(
            "the worker's program is not allowed to send keys, which tightloop needs to paste the plan and press "
            f"Enter. Allow it in {privacy} > Accessibility (if the program is already in the list, remove it and "
            "add it again), then restart the worker"
        )
    if not may_take_pictures:
        obstacles.append(
            "the worker's program is not allowed to take screenshots, which window.agent_s needs to find the chat "
            f"box. Allow it in {privacy} > Screen & System Audio Recording and restart the worker, or remove "
            "window.agent_s"
        )
    return (*obstacles, *keyboard_problems(locked=locked, secure_input=secure_input))


def keyboard_problems(*, locked: bool, secure_input: int) -> tuple[str, ...]:
    """Return the reasons why keys must not be pressed now. Each entry explains how to fix the problem."""
    reasons = []
    if locked:
        reasons.append("the screen is locked. Unlock it and turn off the screen lock for this session (docs/macos.md)")
    if secure_input:
        reasons.append(
            f"process {secure_input} is using secure keyboard input (a password field?). Leave the field or end the "
            "process"
        )
    return tuple(reasons)


def element_of(fields: dict[str, Any]) -> Element:
    """Build an element from the attributes that the accessibility API reports."""
    role, text = str(fields.get("role", "")), fields.get("value")
    label = str(fields.get("description") or fields.get("title") or fields.get("placeholder") or "")
    is_text = role in ("AXTextArea", "AXTextField")
    return Element(
        role="text" if is_text else role,
        label=label,
        text=text if isinstance(text, str) else None,
        editable=is_text and bool(fields.get("settable", True)),
    )


def _command(command: tuple[str, ...], seconds: float, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    name, *arguments = command
    program = find_trusted_program(name)
    if program is None:
        raise DriverError(f"{name} was not found. This driver requires macOS")
    try:
        return subprocess.run(
            program.command(*arguments),
            input=stdin,
            capture_output=True,
            timeout=seconds,
            check=False,
            # launchd sets no locale, and pbcopy would then corrupt all non-ASCII text.
            env={**os.environ, "LC_CTYPE": "UTF-8"},
        )
    except subprocess.TimeoutExpired:
        raise DriverError(f"{name} did not respond within {seconds:g} s. Is the screen locked?") from None
    except OSError as error:
        raise DriverError(f"cannot start {name}: {error.strerror}. This driver requires macOS") from None


SCREENCAPTURE = TrustedProgram("screencapture", Path("/usr/sbin/screencapture"))
MOST_NODES = 4_000
MOST_TEXTS = 400
MOST_CHARACTERS = 2_000
BUILD_S = 0.5
"""Time in seconds that Electron needs to build its tree after it is asked to."""
PICTURE_S = 10.0
MESSAGE_S = 4.0
"""Timeout for one request to another program."""
_ERRORS = {
    -25211: "the worker's program is not allowed to use the accessibility API. Allow the program in System "
    "Settings > Privacy & Security > Accessibility",
    -25204: "the program is not responding and may be busy",
    -25202: "the window or the element no longer exists",
}
_NO_VALUE = frozenset({-25212, -25205})
_Call = TypeVar("_Call", bound=Callable[..., Any])


def _native(call: _Call) -> _Call:
    """Convert errors from pyobjc to `DriverError`."""

    @functools.wraps(call)
    def wrapper(self: "MacDriver", *args: Any, **kwargs: Any) -> Any:
        try:
            return call(self, *args, **kwargs)
        except ExecutorError:
            raise
        except Exception as error:
            raise DriverError(f"macOS reported an error: {type(error).__name__}: {error}") from error

    return cast(_Call, wrapper)


class MacDriver:
    """The desktop of the user logged in to this Mac, driven through native APIs."""

    name = "mac"

    def __init__(self, *, takes_pictures: bool = False) -> None:
        self._takes_pictures = takes_pictures
        try:
            import AppKit  # pyright: ignore[reportMissingImports]
            import ApplicationServices  # pyright: ignore[reportMissingImports]
            import Quartz  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise DriverError(
                f"{error.name} is not installed. Run pip install pyobjc-framework-ApplicationServices, or "
                "set window.driver to applescript"
            ) from None
        self._kit, self._ax, self._quartz = AppKit, ApplicationServices, Quartz
        self._asked: set[int] = set()
        self._journal = KeyJournal(self.name)

    def preflight(self) -> Health:
        try:
            keyboard()
            locked, secure_input = self._keyboard_state()
            obstacles = problems(
                locked=locked,
                secure_input=secure_input,
                trusted=bool(self._ax.AXIsProcessTrusted()),
                may_post=bool(self._quartz.CGPreflightPostEventAccess()),
                # Window titles come from the accessibility API, which does not need this permission.
                may_take_pictures=not self._takes_pictures or bool(self._quartz.CGPreflightScreenCaptureAccess()),
            )
        except DriverError as error:
            return Health(problems=(error.message,))
        return Health(problems=obstacles, version=f"macOS {platform.mac_ver()[0]}")

    @_native
    def windows(self) -> tuple[Window, ...]:
        regular = self._kit.NSApplicationActivationPolicyRegular
        programs = self._kit.NSWorkspace.sharedWorkspace().runningApplications()
        return tuple(
            window
            for program in programs
            if program.activationPolicy() == regular
            for _, window in self._elements_of(program)
        )

    @_native
    def activate(self, window: Window) -> None:
        program = self._kit.NSRunningApplication.runningApplicationWithProcessIdentifier_(window.pid)
        if program is None:
            raise DriverError(f"the program that owns the window {window.title!r} has exited")
        element = self._element(program, window)
        # Raised first: activating the program shows the window that was in front last.
        self._ax.AXUIElementPerformAction(element, "AXRaise")
        self._ax.AXUIElementSetAttributeValue(element, "AXMain", True)
        program.activateWithOptions_(self._kit.NSApplicationActivateIgnoringOtherApps)

    @_native
    def active(self) -> Window | None:
        program = self._kit.NSWorkspace.sharedWorkspace().frontmostApplication()
        if program is None:
            return None
        # Of the frontmost program only: each program has a focused window of its own, also in the background.
        element = self._read(self._application(program.processIdentifier()), "AXFocusedWindow")
        return self._window(program, element) if element is not None else None

    @_native
    def focused_element(self) -> Element | None:
        program = self._kit.NSWorkspace.sharedWorkspace().frontmostApplication()
        if program is None:
            return None
        application = self._application(program.processIdentifier())
        element = self._read(application, "AXFocusedUIElement")
        if element is None:
            return None
        names = {
            "role": "AXRole",
            "description": "AXDescription",
            "title": "AXTitle",
            "placeholder": "AXPlaceholderValue",
            "value": "AXValue",
        }
        fields: dict[str, Any] = {name: self._read(element, attribute) for name, attribute in names.items()}
        code, settable = self._ax.AXUIElementIsAttributeSettable(element, "AXValue", None)
        return element_of({**fields, "settable": code == 0 and bool(settable)})

    @_native
    def texts(self, window: Window) -> tuple[str, ...]:
        program = self._kit.NSRunningApplication.runningApplicationWithProcessIdentifier_(window.pid)
        element = next(
            (
                candidate
                for candidate, candidate_window in self._elements_of(program)
                if candidate_window.id == window.id
            ),
            None,
        )
        texts: list[str] = []
        pending, visited = [element] if element is not None else [], 0
        while pending and visited < MOST_NODES:
            node = pending.pop()
            visited += 1
            if self._read(node, "AXRole") == "AXStaticText":
                text = str(self._read(node, "AXValue") or "").strip()[-MOST_CHARACTERS:]
                if text:
                    texts.append(text)
            with suppress(DriverError):
                pending.extend(reversed(self._read(node, "AXChildren") or ()))
        return tuple(texts[-MOST_TEXTS:])

    @_native
    def clipboard(self) -> str | None:
        board = self._kit.NSPasteboard.generalPasteboard()
        text = board.stringForType_(self._kit.NSPasteboardTypeString)
        return None if text is None else str(text)

    @_native
    def set_clipboard(self, text: str) -> None:
        board = self._kit.NSPasteboard.generalPasteboard()
        before = board.changeCount()
        board.clearContents()
        if not board.setString_forType_(text, self._kit.NSPasteboardTypeString) or board.changeCount() == before:
            raise DriverError("cannot copy the text to the clipboard")

    def press(self, chord: str, window: Window | None = None) -> None:
        self._require_keyboard()
        if window is not None and ((active := self.active()) is None or active.id != window.id):
            raise NotPressedError(f"the window {window.title!r} no longer has keyboard focus")
        with self._journal.pressing(names_of(chord)):
            press(chord)

    def release_keys(self) -> None:
        if names := [name for name in self._journal.list_pressed_keys() if isinstance(name, str)]:
            release(names)
            self._journal.clear()

    @_native
    def frame(self, window: Window) -> Frame:
        program = self._kit.NSRunningApplication.runningApplicationWithProcessIdentifier_(window.pid)
        element = self._element(program, window)
        position = self._value(element, "AXPosition", self._ax.kAXValueCGPointType)
        size = self._value(element, "AXSize", self._ax.kAXValueCGSizeType)
        return Frame(x=int(position.x), y=int(position.y), width=int(size.width), height=int(size.height))

    @_native
    def picture(self, frame: Frame) -> bytes:
        with TemporaryDirectory() as folder:
            file = Path(folder) / "screen.png"
            region = f"-R{frame.x},{frame.y},{frame.width},{frame.height}"
            command = SCREENCAPTURE.command("-x", "-t", "png", region, file)
            subprocess.run(command, timeout=PICTURE_S, check=True)
            return file.read_bytes()

    def click(self, x: int, y: int) -> None:
        self._require_keyboard()
        click(x, y)

    def close(self) -> None:
        """Do nothing. No resources are kept open."""

    @_native
    def _require_keyboard(self) -> None:
        """Raise an error if the lock screen or a password field would receive the keys."""
        locked, secure_input = self._keyboard_state()
        if reasons := keyboard_problems(locked=locked, secure_input=secure_input):
            raise NotPressedError("; ".join(reasons))

    def _keyboard_state(self) -> tuple[bool, int]:
        """Return whether the screen is locked, and the pid of the process that enabled secure input (or 0)."""
        session = self._quartz.CGSessionCopyCurrentDictionary()
        if session is None:
            raise DriverError(
                "this process is not in a desktop session. Start the worker as a user LaunchAgent, not through "
                "ssh or as a daemon (docs/macos.md)"
            )
        state = dict(session)
        locked, secure_input = state.get("CGSSessionScreenIsLocked"), state.get("kCGSSessionSecureInputPID")
        return bool(locked), int(secure_input or 0)

    def _application(self, pid: int) -> Any:
        """Return the root of a program's accessibility tree.

        The first call asks Electron to build the tree.
        """
        element = self._ax.AXUIElementCreateApplication(pid)
        self._ax.AXUIElementSetMessagingTimeout(element, MESSAGE_S)
        if pid not in self._asked:
            self._asked.add(pid)
            # Newer Electron versions support the first; the second is for other programs.
            if self._ax.AXUIElementSetAttributeValue(element, "AXManualAccessibility", True) != 0:
                self._ax.AXUIElementSetAttributeValue(element, "AXEnhancedUserInterface", True)
            time.sleep(BUILD_S)
        return element

    def _elements_of(self, program: Any) -> Iterator[tuple[Any, Window]]:
        if program is None:
            return
        # Without a timeout: most programs are irrelevant, and some never answer.
        root = self._ax.AXUIElementCreateApplication(program.processIdentifier())
        self._ax.AXUIElementSetMessagingTimeout(root, MESSAGE_S)
        try:
            for element in self._read(root, "AXWindows") or ():
                yield element, self._window(program, element)
        except DriverError:
            # A program that does not answer must not hide the windows of the others.
            return

    def _element(self, program: Any, window: Window) -> Any:
        element = next(
            (
                candidate
                for candidate, candidate_window in self._elements_of(program)
                if candidate_window.id == window.id
            ),
            None,
        )
        if element is None:
            raise DriverError(f"the window {window.title!r} no longer exists")
        return element

    def _window(self, program: Any, element: Any) -> Window:
        pid, title = int(program.processIdentifier()), str(self._read(element, "AXTitle") or "")
        return Window(
            # The accessibility API has no window id. The protocol rejects two windows with the same title.
            id=f"{pid}:{title}",
            pid=pid,
            app=str(program.bundleIdentifier() or program.localizedName() or ""),
            title=title,
        )

    def _read(self, element: Any, attribute: str) -> Any:
        code, value = self._ax.AXUIElementCopyAttributeValue(element, attribute, None)
        if code == 0:
            return value
        if code in _NO_VALUE:
            return None
        raise DriverError(f"cannot read {attribute}: {_ERRORS.get(code, f'accessibility API error {code}')}")

    def _value(self, element: Any, attribute: str, kind: int) -> Any:
        """Extract a point or a size from the opaque value that the API returns."""
        value = self._read(element, attribute)
        is_valid, result = self._ax.AXValueGetValue(value, kind, None) if value is not None else (False, None)
        if not is_valid:
            raise DriverError(f"cannot read the attribute {attribute} of the window")
        return result
