"""The GUI executor's interfaces and its ledger of hand-offs."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from pydantic import ValidationError

from activities.artifacts.port import file_stem, write_durably
from tightloop.errors import ExecutorError
from tightloop.executor.handoff import HandOffState, Message, Receipt
from tightloop.host import private_folder, state_home
from tightloop.value import Value


class DriverError(ExecutorError):
    """Raised if a desktop operation fails. A retry may succeed."""


class NotPressedError(DriverError):
    """Raised if no key was pressed.

    Either the screen is locked, or another program or window would have received the key.
    """


class Window(Value):
    """An open window."""

    id: str
    pid: int = 0
    app: str = ""
    """The bundle id on macOS or the window class on X11."""
    title: str = ""


class Frame(Value):
    """The position of a window on the screen in click units: points on macOS, pixels on X11."""

    x: int
    y: int
    width: int
    height: int


class Element(Value):
    """The element that has the keyboard focus."""

    role: str
    """`text` for all text inputs, otherwise the platform's own name."""
    label: str = ""
    text: str | None = None
    """Entire content of the element. None if the platform does not reveal it."""
    editable: bool = False


class Health(Value):
    """The state of a driver, including whether it is ready to be used."""

    problems: tuple[str, ...] = ()
    """Obstacles, each with how to fix it. Empty if the driver is ready."""
    version: str = ""

    @property
    def usable(self) -> bool:
        return not self.problems


class Driver(Protocol):
    """A desktop. Each call blocks for at most a few seconds. Only one thread may use it at a time.

    All methods except `preflight` raise DriverError.
    """

    name: str

    def preflight(self) -> Health:
        """Check whether the desktop is ready.

        This checks the permissions, display, screen lock and secure input.
        """
        ...

    def windows(self) -> tuple[Window, ...]:
        """Return the windows of all programs."""
        ...

    def activate(self, window: Window) -> None:
        """Request that a window be brought to the front. Poll `active` to see the result."""
        ...

    def active(self) -> Window | None:
        """Return the window that receives key presses."""
        ...

    def focused_element(self) -> Element | None:
        """Return the focused element of the active window, or None if there is none or it is unknown."""
        ...

    def clipboard(self) -> str | None:
        """Return the text on the clipboard, or None if the clipboard contains no text."""
        ...

    def set_clipboard(self, text: str) -> None:
        """Put text on the clipboard."""
        ...

    def press(self, chord: str, window: Window | None = None) -> None:
        """Press keys together, for example `mod+v` (Command on macOS, Control elsewhere), `enter` or `right`.

        Args:
            chord: key names joined with `+`.
            window: the window that must have the keyboard focus. None allows any window.

        Raises:
            NotPressedError: the screen is locked, the keyboard is grabbed, or another window has the focus.
        """
        ...

    def release_keys(self) -> None:
        """Release keys that one of our processes left pressed when it died. Other keys are not released."""
        ...

    def frame(self, window: Window) -> Frame:
        """Return the position of a window on the screen."""
        ...

    def picture(self, frame: Frame) -> bytes:
        """Return a PNG screenshot of a frame. The image may have more pixels than the frame has points."""
        ...

    def click(self, x: int, y: int) -> None:
        """Click at a point on the screen."""
        ...

    def texts(self, window: Window) -> tuple[str, ...]:
        """Return the pieces of text visible in a window, in order, from its accessibility tree.

        The list is bounded and may be empty.
        """
        ...

    def close(self) -> None:
        """Stop all processes that the driver has started."""
        ...


class Entry(Value):
    """A hand-off's ledger entry."""

    id: str
    state: HandOffState
    text: str
    receipt: Receipt | None = None


ENTRIES_LIMIT = 200
"""Number of entries to keep. The outbox remembers deliveries for longer."""
LEFTOVERS = 20


def gui_folder() -> Path:
    """Return the folder that all hand-offs on this host share."""
    return state_home() / "gui"


class Ledger:
    """A durable record, kept in a folder, of this host's hand-offs. It survives power loss."""

    def __init__(self, folder: Path, limit: int = ENTRIES_LIMIT) -> None:
        self._folder, self._kept = folder, limit

    def get(self, handoff_id: str) -> Entry | None:
        """Return the latest ledger entry of a hand-off, or None if there is none.

        Raises:
            ExecutorError: the entry cannot be read, so it is unknown whether Enter was pressed.
        """
        path = self._path(handoff_id)
        try:
            return Entry.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValidationError) as error:
            raise ExecutorError(
                f"cannot read the ledger entry {path} ({type(error).__name__}), so it is unknown whether hand-off "
                f"{handoff_id} was submitted. Check the chat, then remove the file to hand off the plan again"
            ) from None

    def record(self, message: Message, state: HandOffState, receipt: Receipt | None = None) -> Entry:
        """Durably record the state of a hand-off. Call this before taking the next action."""
        entry = Entry(id=message.id, state=state, text=message.text, receipt=receipt)
        write_durably(private_folder(self._folder) / self._path(message.id).name, entry.model_dump_json().encode())
        # Only at its first state: once per hand-off is enough.
        if state is HandOffState.PREPARED:
            for _, old in self._newest()[self._kept :]:
                old.unlink(missing_ok=True)
        return entry

    def texts(self) -> Iterator[str]:
        """Return the texts of the latest hand-offs. The executor may delete these texts from a chat box."""
        for _, path in self._newest()[:LEFTOVERS]:
            with suppress(OSError, ValidationError):
                yield Entry.model_validate_json(path.read_bytes()).text

    def _path(self, handoff_id: str) -> Path:
        return self._folder / f"{file_stem(handoff_id)}.json"

    def _newest(self) -> list[tuple[int, Path]]:
        if not self._folder.is_dir():
            return []
        with os.scandir(self._folder) as entries:
            # By time and not by name: the names are hashes.
            files = [(entry.stat().st_mtime_ns, Path(entry.path)) for entry in entries if entry.name.endswith(".json")]
        return sorted(files, reverse=True)
