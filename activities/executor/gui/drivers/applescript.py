"""Drives a Mac with `osascript` alone: slower than the driver over the accessibility API, and without its libraries.

Scripts are files, and values reach them as arguments: no text and no title of a window is ever part of a script.
"""

import json
import os
import subprocess
from importlib import resources
from typing import Any

from activities.executor.gui.port import DriverError, Element, Frame, Health, NotPressedError, Window
from tightloop.host.programs import find_trusted

SCRIPT_S = 8.0
"""A locked screen lets osascript hang."""
CLIPBOARD_S = 3.0
_KEY_CODES = {"enter": 36, "right": 124, "left": 123, "backspace": 51, "escape": 53, "tab": 48}
_MODIFIERS = {"mod": "command", "cmd": "command", "ctrl": "control", "alt": "option", "shift": "shift"}
# By the numbers that System Events and the accessibility API put into their messages.
_ADVICE = {
    "-1743": "allow the worker's program to control System Events: System Settings, Privacy & Security, Automation",
    "1002": "allow the worker's program: System Settings, Privacy & Security, Accessibility",
    "-25211": "allow the worker's program: System Settings, Privacy & Security, Accessibility",
    "-1719": "allow the worker's program: System Settings, Privacy & Security, Accessibility; or the window is gone",
    "-600": "start the editor",
}


class AppleScriptDriver:
    """The desktop of the user who is logged in on this Mac."""

    name = "applescript"

    def preflight(self) -> Health:
        """Return whether it can work; see the port."""
        if find_trusted("osascript") is None:
            return Health(problems=("osascript is not there: this driver is for macOS",))
        try:
            state = self._json("state")
        except DriverError as error:
            return Health(problems=(error.message,))
        return Health(
            problems=problems(
                locked=bool(state.get("locked")),
                secure_input=int(state.get("secure_input") or 0),
                # None: this macOS does not tell; then the first look or key fails with what to do.
                trusted=state.get("trusted") is not False,
                may_post=state.get("may_post") is not False,
            ),
            version=str(state.get("version", "")),
        )

    def windows(self) -> tuple[Window, ...]:
        """Return the windows of the programs that have one on the screen; see the port."""
        return tuple(Window.model_validate(found) for found in self._json("windows"))

    def activate(self, window: Window) -> None:
        """Bring a window to the front; see the port."""
        self._run("activate", str(window.pid), window.title)

    def active(self) -> Window | None:
        """Return the main window of the frontmost program; see the port."""
        found = self._json("active")
        return Window.model_validate(found) if found else None

    def focused(self) -> Element | None:
        """Return the focused element of the frontmost program; see the port."""
        found = self._json("focused")
        return element_of(found) if found else None

    def texts(self, window: Window) -> tuple[str, ...]:
        """Return nothing: reading a whole window takes minutes this way. See the port."""
        del window
        return ()

    def clipboard(self) -> str | None:
        """Return the text on the clipboard; see the port."""
        done = _command(("pbpaste",), CLIPBOARD_S)
        return done.stdout.decode("utf-8", "replace") if done.returncode == 0 and done.stdout else None

    def set_clipboard(self, text: str) -> None:
        """Put a text on the clipboard; see the port."""
        if _command(("pbcopy",), CLIPBOARD_S, text.encode()).returncode != 0:
            raise DriverError("pbcopy cannot put a text on the clipboard")

    def press(self, chord: str, window: Window | None = None) -> None:
        """Press keys by System Events; see the port."""
        *modifiers, key = chord.split("+")
        unknown = [name for name in modifiers if name not in _MODIFIERS]
        if unknown or (key not in _KEY_CODES and len(key) != 1):
            raise DriverError(f"the keys {chord!r} are not known: use mod, ctrl, alt, shift and one key")
        state = self._json("state")
        if reasons := keyboard_problems(
            locked=bool(state.get("locked")), secure_input=int(state.get("secure_input") or 0)
        ):
            raise NotPressedError("; ".join(reasons))
        held = ",".join(_MODIFIERS[name] for name in modifiers)
        wanted = ("", "") if window is None else (str(window.pid), window.title)
        code, character = (str(_KEY_CODES[key]), "") if key in _KEY_CODES else ("", key)
        if self._run("press", code, character, held, *wanted) == "elsewhere":
            raise NotPressedError(f"the window {wanted[1]!r} has not the keyboard any more")

    def release_keys(self) -> None:
        """Nothing is left: System Events presses and releases by itself, whoever dies. See the port."""

    def frame(self, window: Window) -> Frame:
        """Refuse: only clicks need it. See the port."""
        raise DriverError(f"the driver applescript does not say where {window.title!r} is")

    def picture(self, frame: Frame) -> bytes:
        """Refuse: see the port."""
        raise DriverError(f"the driver applescript takes no picture of {frame}")

    def click(self, x: int, y: int) -> None:
        """Refuse: see the port."""
        raise DriverError(f"the driver applescript does not click at ({x}, {y})")

    def close(self) -> None:
        """Nothing stays open."""

    def _json(self, name: str, *arguments: str) -> Any:
        text = self._run(name, *arguments)
        try:
            return json.loads(text)
        except ValueError:
            raise DriverError(f"osascript answered {text[:120]!r} to {name}, which is not JSON") from None

    def _run(self, name: str, *arguments: str) -> str:
        """Run a script of ours; its values are arguments (`on run argv`, `run(argv)`)."""
        # System Events has its own words for keys; everything else is JavaScript, which can answer in JSON.
        suffix, language = ("applescript", "AppleScript") if name == "press" else ("js", "JavaScript")
        script = resources.files("activities.executor.gui.drivers") / "scripts" / f"{name}.{suffix}"
        with resources.as_file(script) as path:
            done = _command(("osascript", "-l", language, str(path), *arguments), SCRIPT_S)
        if done.returncode != 0:
            said = " ".join(done.stderr.decode("utf-8", "replace").split())[:300]
            number = next((code for code in _ADVICE if f"({code})" in said or f" {code}" in said), "")
            advice = f". Then: {_ADVICE[number]}" if number else ""
            raise DriverError(f"osascript {name} failed: {said or f'exit code {done.returncode}'}{advice}")
        return done.stdout.decode("utf-8", "replace").strip()


def problems(
    *, locked: bool, secure_input: int, trusted: bool, may_post: bool, may_take_pictures: bool = True
) -> tuple[str, ...]:
    """Return what stands in the way on a Mac, each with what it is needed for and what to do."""
    privacy = "allow it in System Settings, Privacy & Security"
    found = []
    if not trusted:
        found.append(
            "the worker's program may not use the accessibility API, which tells the windows and the chat box: "
            f"{privacy}, Accessibility, and restart it"
        )
    if not may_post:
        # Since macOS 10.15 a right of its own, in the same list; a program in the background may have only one.
        found.append(
            "the worker's program may not send keys, which paste the plan and press Enter: "
            f"{privacy}, Accessibility (remove it there and add it again if it is allowed already), and restart it"
        )
    if not may_take_pictures:
        found.append(
            "the worker's program may not take pictures of the screen, in which window.agent_s looks for the chat box: "
            f"{privacy}, Screen & System Audio Recording, and restart it; or leave window.agent_s out"
        )
    return (*found, *keyboard_problems(locked=locked, secure_input=secure_input))


def keyboard_problems(*, locked: bool, secure_input: int) -> tuple[str, ...]:
    """Return why no key may be pressed now, each with what to do."""
    found = []
    if locked:
        found.append("the screen is locked: unlock it, and turn the lock off for this session (docs/macos.md)")
    if secure_input:
        found.append(f"process {secure_input} keeps the keyboard secure (a password field?): leave it, or end it")
    return tuple(found)


def element_of(found: dict[str, Any]) -> Element:
    """Return an element by the attributes of the accessibility API."""
    role, text = str(found.get("role", "")), found.get("value")
    label = str(found.get("description") or found.get("title") or found.get("placeholder") or "")
    is_text = role in ("AXTextArea", "AXTextField")
    return Element(
        role="text" if is_text else role,
        label=label,
        text=text if isinstance(text, str) else None,
        editable=is_text and bool(found.get("settable", True)),
    )


def _command(command: tuple[str, ...], seconds: float, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    name, *arguments = command
    program = find_trusted(name)
    if program is None:
        raise DriverError(f"{name} was not found. This driver is for macOS")
    try:
        return subprocess.run(
            program.command(*arguments),
            input=stdin,
            capture_output=True,
            timeout=seconds,
            check=False,
            # Under launchd there is no locale, and pbcopy would damage everything that is not ASCII.
            env={**os.environ, "LC_CTYPE": "UTF-8"},
        )
    except subprocess.TimeoutExpired:
        raise DriverError(f"{name} did not answer within {seconds:g} s: is the screen locked?") from None
    except OSError as error:
        raise DriverError(f"{name} cannot be started: {error.strerror}. This driver is for macOS") from None
