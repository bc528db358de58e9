"""Ports of the GUI executor, and its ledger of hand-offs."""

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
    """The desktop did not do, or could not tell, what was asked; it may do so later."""


class NotPressedError(DriverError):
    """No key was pressed: the screen is locked, or another program or window would have got it."""


class Window(Value):
    """A window that is open."""

    id: str
    pid: int = 0
    app: str = ""
    """Bundle id on macOS, class of the window on X11."""
    title: str = ""


class Frame(Value):
    """The place of a window on the screen, in the units of clicks: points on macOS, pixels on X11."""

    x: int
    y: int
    width: int
    height: int


class Element(Value):
    """What has the focus of the keyboard."""

    role: str
    """`text` for whatever takes several lines or one; else the platform's own word."""
    label: str = ""
    text: str | None = None
    """Its whole content; None: the platform does not tell."""
    editable: bool = False


class Health(Value):
    """Whether a driver can work now."""

    problems: tuple[str, ...] = ()
    """What stands in the way, each with what to do; empty: nothing."""
    version: str = ""

    @property
    def usable(self) -> bool:
        return not self.problems


class Driver(Protocol):
    """One desktop. Blocking, from one thread at a time; every call is bounded by seconds.

    All methods but `preflight` raise DriverError.
    """

    name: str

    def preflight(self) -> Health:
        """Return whether it can work: permissions, display, lock of the screen, secure input."""
        ...

    def windows(self) -> tuple[Window, ...]:
        """Return the windows of all programs."""
        ...

    def activate(self, window: Window) -> None:
        """Ask for a window to be brought to the front; `active` tells when it is."""
        ...

    def active(self) -> Window | None:
        """Return the window that gets the keys."""
        ...

    def focused(self) -> Element | None:
        """Return what has the focus in the active window; None: nothing has, or the platform does not tell."""
        ...

    def clipboard(self) -> str | None:
        """Return the text on the clipboard; None: there is no text."""
        ...

    def set_clipboard(self, text: str) -> None:
        """Put a text on the clipboard."""
        ...

    def press(self, chord: str, window: Window | None = None) -> None:
        """Press keys together, such as `mod+v` (Command on macOS, Control elsewhere), `enter` or `right`.

        Args:
            chord: names of keys, joined by `+`.
            window: what must have the keyboard at that moment; None: whatever has it.

        Raises:
            NotPressedError: the screen is locked, another program holds the keyboard, or another window has it.
        """
        ...

    def release_keys(self) -> None:
        """Release the keys that a process of ours pressed and, since it died, did not release; no others."""
        ...

    def frame(self, window: Window) -> Frame:
        """Return where a window is."""
        ...

    def picture(self, frame: Frame) -> bytes:
        """Return what the screen shows there, as PNG; it may have more pixels than the frame has points."""
        ...

    def click(self, x: int, y: int) -> None:
        """Click at a point of the screen."""
        ...

    def texts(self, window: Window) -> tuple[str, ...]:
        """Return the texts that a window shows, from its accessibility tree, in order, bounded; may be empty."""
        ...

    def close(self) -> None:
        """End what the driver started."""
        ...


class Locator(Protocol):
    """Who finds the chat box in a picture."""

    def problem(self) -> str:
        """Return why it cannot be asked, with what to do; empty: it can."""
        ...

    def locate(self, png: bytes, frame: Frame) -> tuple[int, int]:
        """Return a point of the frame; one question to a model, bounded by seconds.

        Raises:
            DriverError: there is no answer, or it is not a point of the frame.
        """
        ...


class Receipts(Protocol):
    """What the agent's side says of hand-offs."""

    @property
    def guarded(self) -> bool:
        """Whether it refuses a hand-off that it has already."""
        ...

    def expect(self, message: Message, root: str) -> None:
        """Tell it which folder a message is for, before anything is pasted; forgets an earlier refusal.

        Raises:
            ExecutorError: there is no such folder.
        """
        ...

    def find(self, handoff_id: str) -> Receipt | None:
        """Return the receipt of a hand-off."""
        ...

    def refusal(self, handoff_id: str) -> str:
        """Return why it refused a hand-off in the window where it was submitted; empty: it did not."""
        ...

    def busy(self) -> bool:
        """Return whether the agent is known to be at work on something that we handed over."""
        ...

    def offer(self, message: Message) -> None:
        """Let the agent's side take a message by itself when it ends its turn, if it works for the same episode."""
        ...

    def taken(self, handoff_id: str) -> bool:
        """Take back what was offered; return whether it was taken before."""
        ...


class Entry(Value):
    """What the ledger has of a hand-off."""

    id: str
    state: HandOffState
    text: str
    receipt: Receipt | None = None


class Ledger(Protocol):
    """The durable record of hand-offs on this host. What it has recorded survives a power loss."""

    def get(self, handoff_id: str) -> Entry | None:
        """Return what was recorded last; None: nothing was."""
        ...

    def record(self, message: Message, state: HandOffState, receipt: Receipt | None = None) -> Entry:
        """Record how far it has come, durably, before anything else happens."""
        ...

    def texts(self) -> Iterator[str]:
        """Return the texts of the latest hand-offs: what may be removed from a box."""
        ...


KEPT = 200
"""Entries that stay; the outbox remembers deliveries for longer."""
LEFTOVERS = 20


def gui_folder() -> Path:
    """Return the folder of what the hand-offs of this host share."""
    return state_home() / "gui"


class FileLedger:
    """A ledger in a folder."""

    def __init__(self, folder: Path, kept: int = KEPT) -> None:
        self._folder, self._kept = folder, kept

    def get(self, handoff_id: str) -> Entry | None:
        """Return a hand-off; see the port.

        Raises:
            ExecutorError: its entry cannot be read: what it says about Enter is not known.
        """
        path = self._path(handoff_id)
        try:
            return Entry.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValidationError) as error:
            raise ExecutorError(
                f"the ledger entry {path} of hand-off {handoff_id} cannot be read ({type(error).__name__}): nothing "
                "tells whether it was submitted. Look at the chat; then remove the file to hand it over again"
            ) from None

    def record(self, message: Message, state: HandOffState, receipt: Receipt | None = None) -> Entry:
        entry = Entry(id=message.id, state=state, text=message.text, receipt=receipt)
        write_durably(private_folder(self._folder) / self._path(message.id).name, entry.model_dump_json().encode())
        if state is HandOffState.PREPARED:
            for _, old in self._newest()[self._kept :]:
                old.unlink(missing_ok=True)
        return entry

    def texts(self) -> Iterator[str]:
        for _, path in self._newest()[:LEFTOVERS]:
            with suppress(OSError, ValidationError):
                yield Entry.model_validate_json(path.read_bytes()).text

    def _path(self, handoff_id: str) -> Path:
        return self._folder / f"{file_stem(handoff_id)}.json"

    def _newest(self) -> list[tuple[int, Path]]:
        if not self._folder.is_dir():
            return []
        with os.scandir(self._folder) as entries:
            found = [(entry.stat().st_mtime_ns, Path(entry.path)) for entry in entries if entry.name.endswith(".json")]
        return sorted(found, reverse=True)
