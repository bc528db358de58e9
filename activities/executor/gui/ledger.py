"""The ledger of hand-offs: one private file for each, written whole and synced before anything is pressed."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from pydantic import ValidationError

from activities.artifacts.durable import file_stem, write_durably
from activities.executor.gui.port import Entry
from tightloop.errors import ExecutorError
from tightloop.executor.handoff import HandOffState, Message, Receipt
from tightloop.host import private_folder, state_home

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
        """Record how far it has come; see the port."""
        entry = Entry(id=message.id, state=state, text=message.text, receipt=receipt)
        write_durably(private_folder(self._folder) / self._path(message.id).name, entry.model_dump_json().encode())
        if state is HandOffState.PREPARED:
            for _, old in self._newest()[self._kept :]:
                old.unlink(missing_ok=True)
        return entry

    def texts(self) -> Iterator[str]:
        """Return the texts of the latest hand-offs; see the port."""
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
