"""The ports of the tracker."""

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Protocol

from pydantic import Field

from tightloop.episode.checkpoint import CheckpointRecord
from tightloop.value import Value


class FileChange(Value):
    """One changed file."""

    path: str
    """Relative path; bytes that are not UTF-8 are shown as escapes."""
    added: int = 0
    removed: int = 0
    binary: bool = False
    renamed_from: str = ""
    """Its path before, if the file was renamed (at least half of it is the same)."""

    def __str__(self) -> str:
        """Return the change as a line of text."""
        path = f"{self.renamed_from} => {self.path}" if self.renamed_from else self.path
        return f"{path} (binary)" if self.binary else f"{path} (+{self.added} -{self.removed})"


class TreeDiff(Value):
    """The difference of two trees."""

    files: tuple[FileChange, ...] = ()
    """At most 2 000; `files_changed` counts all."""
    files_changed: int = 0
    lines_added: int = 0
    lines_removed: int = 0
    patch: bytes = Field(default=b"", repr=False)
    """Unified diff of whole files, at most 2 MB, behind a head that names both trees.

    Either it was applied to the base and gave the result, or it is empty. It applies where the objects of both trees
    are, because large binary files are in it by id only.
    """
    approximate: bool = False
    """A bound was reached: the lines are estimated, or the patch is missing or holds a part of the files."""
    note: str = ""
    """In which way the result is coarser than usual, and why."""


class Differ(Protocol):
    """Compares trees within a time bound, whatever the input."""

    def compare(self, store: Path, base: str, tree: str) -> TreeDiff:
        """Return the difference of two trees; `store` is the `store_folder` of their scope."""
        ...

    def lines(self, store: Path, tree: str) -> int:
        """Return how many lines of text a tree has."""
        ...


FREED = "freed"
"""Kind of the one event that stays of an episode whose checkpoints `tightloop gc` freed."""


class TrailEvent(Value):
    """One line of the evidence trail."""

    episode_id: str
    kind: str
    text: str = ""
    key: str = ""
    """Makes the event unique in its episode; an event with the same key is recorded once."""
    at: datetime | None = None


class Ledger(Protocol):
    """The queryable record of one project: checkpoints and the trail."""

    def record_checkpoint(self, episode_id: str, key: str, record: CheckpointRecord) -> CheckpointRecord:
        """Give the record the next number of its episode (from 0) and keep it.

        Idempotent: the same key returns the record that was kept first.
        """
        ...

    def is_recorded(self, episode_id: str, key: str) -> bool:
        """Return whether a checkpoint was kept under this key."""
        ...

    def checkpoints(self, episode_id: str) -> tuple[CheckpointRecord, ...]:
        """Return all checkpoints of an episode, by number."""
        ...

    def add_event(self, event: TrailEvent) -> None:
        """Add a line to the trail, once per key."""

    def events(self, episode_id: str) -> tuple[TrailEvent, ...]:
        """Return the trail of an episode, oldest first."""
        ...


Ledgers = Callable[[Path], Ledger]
"""Returns the ledger of the project in a workspace."""
