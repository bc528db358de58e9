"""Drift: files that somebody else changed while an episode or a plan worked on their tree."""

from datetime import datetime
from enum import StrEnum
from typing import Any

from pydantic import model_validator

from tightloop.errors import TightloopError
from tightloop.value import Value, counted, is_path_named

PATHS_LISTED = 100
LINES_LISTED = 18
PATHS_SHOWN = 5
DRIFTS_KEPT = 5
"""Drifts that status shows, the newest last."""


class DriftCause(StrEnum):
    """Where the changed files come from."""

    OUTSIDE = "outside"
    """Somebody else changed them outside a pause."""
    INTERRUPTED = "interrupted"
    """They were found after an attempt that was cut off, which may have written them."""
    DURING_CHECKS = "during_checks"
    """They were changed while checks ran, by these or by somebody else."""


class Drift(Value):
    """Files on disk that are not as the work left them. The tree that was found is kept in the store."""

    tree: str = ""
    """The tree that was found."""
    expected: str = ""
    """The tree that the work left."""
    paths: tuple[str, ...] = ()
    """At most `PATHS_LISTED`; bytes that are not UTF-8 as escapes."""
    count: int = 0
    """Of all files."""
    lines: tuple[str, ...] = ()
    """How files differ and since when, a line each; at most `LINES_LISTED`."""
    since: datetime | None = None
    """When the first of the files that are there was changed."""
    cause: DriftCause = DriftCause.OUTSIDE
    bring_back: str = ""
    """The command that brings back what was undone; empty: the files are on disk as they were found."""

    # Histories of before have the id of the tree in its place.
    @model_validator(mode="before")
    @classmethod
    def _read_tree(cls, value: Any) -> Any:
        return {"tree": value} if isinstance(value, str) else value

    @property
    def named(self) -> str:
        """The files in a sentence, such as `2 files: a.txt, b.txt`."""
        shown = ", ".join(self.paths[:PATHS_SHOWN])
        more = self.count - min(len(self.paths), PATHS_SHOWN)
        names = f"{shown}{f' and {more} more' if more > 0 else ''}"
        return f"{counted(self.count, 'file')}: {names}" if names else f"the files of tree {self.tree[:12]}"

    @property
    def sentence(self) -> str:
        """What became of them."""
        done = "undone" if self.bring_back else "left as they are, beside what was delivered"
        match self.cause:
            case DriftCause.INTERRUPTED:
                return f"what was found after an attempt that was cut off was {done}: {self.named}"
            case DriftCause.DURING_CHECKS:
                return f"what changed while checks ran was {done}: {self.named}"
            case DriftCause.OUTSIDE:
                return f"changes made outside a pause were {done}: {self.named}"

    @property
    def report(self) -> tuple[str, ...]:
        """What became of them, and how to bring back what was undone."""
        return (self.sentence, *((f"  bring them back: {self.bring_back}",) if self.bring_back else ()))


def with_drift(known: tuple[Drift, ...], drift: Drift | None) -> tuple[Drift, ...]:
    """Return what people are shown: the last drifts. Left out are caches, and what checks leave every time."""
    is_known = drift is None or any((one.cause, one.paths) == (drift.cause, drift.paths) for one in known)
    if drift is None or not drift.count or (is_known and drift.cause is DriftCause.DURING_CHECKS):
        return known
    return (*known, drift)[-DRIFTS_KEPT:]


class DriftAnswer(Value):
    """What a person decided about a drift."""

    tree: str
    """The tree that they were asked about."""
    keep: bool = True
    words: tuple[str, ...] = ()
    """Files that this holds for, as paths, folders or patterns; empty: all. The others go the other way."""

    def undoes(self, path: str) -> bool:
        """Return whether a file that was asked about is to be put back."""
        is_named = not self.words or any(is_path_named(word, path) for word in self.words)
        return is_named != self.keep


class DriftError(TightloopError):
    """Files are not as the work left them, and a person decides what becomes of them. Nothing was changed.

    Attributes:
        drift: which files.
    """

    def __init__(self, drift: Drift) -> None:
        """Make a sentence of it."""
        super().__init__(f"somebody else changed {drift.named}. Keep or undo that, then go on")
        self.drift = drift
