"""Keys that are down because of us, on disk: the process that presses them may die before it releases them."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from activities.artifacts.durable import file_stem, replace_file
from activities.executor.gui.ledger import gui_folder
from activities.executor.gui.port import NotPressedError
from tightloop.host import private_folder


def _folder() -> Path:
    return gui_folder() / "keys"


def key_journals() -> tuple[Path, ...]:
    """Return the journals of all displays on which keys may be down."""
    return tuple(_folder().glob("*.json"))


class KeyJournal:
    """What one display has to get back, in a file that is there only while keys are pressed."""

    def __init__(self, display: str) -> None:
        self._path = _folder() / f"{file_stem(display)}.json"

    @contextmanager
    def pressing(self, keys: Sequence[int | str]) -> Iterator[None]:
        """Note the keys, and forget them once they are up again; an error that may come in between leaves the note."""
        private_folder(self._path.parent)
        # Not synced to the disk: no key survives a power loss.
        replace_file(self._path, json.dumps(list(keys)).encode())
        try:
            yield
        except NotPressedError:
            self.clear()
            raise
        self.clear()

    def pressed(self) -> list[int | str]:
        """Return what a process noted and did not forget, in the order of pressing."""
        with suppress(OSError, ValueError):
            found = json.loads(self._path.read_bytes())
            return [key for key in found if isinstance(key, int | str)] if isinstance(found, list) else []
        return []

    def clear(self) -> None:
        """Forget the keys."""
        self._path.unlink(missing_ok=True)
