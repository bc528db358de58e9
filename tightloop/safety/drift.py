"""Drift of a run."""

import posixpath
from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any

from pydantic import model_validator

from tightloop.errors import TightloopError
from tightloop.value import Value, is_path_named
from tightloop.wording import drift_files, drift_text

PATHS_LISTED = 100
LINES_LISTED = 18
DRIFTS_KEPT = 5
"""Drifts of one cause that status shows, the newest last."""


class DriftCause(StrEnum):
    """Where the changed files come from."""

    OUTSIDE = "outside"
    """Somebody else changed them outside a pause."""
    INTERRUPTED = "interrupted"
    """They were found after an attempt that was cut off, which may have written them."""
    DURING_CHECKS = "during_checks"
    """They were changed while checks ran, by these or by somebody else."""
    DURING_STEP = "during_step"
    """They were changed while a step ran whose changes are undone, by the step or by somebody else."""


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
    step: str = ""
    """Of a plan, with `DURING_STEP`."""
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
        return drift_files(self)

    @property
    def sentence(self) -> str:
        """What became of them."""
        return drift_text(self)

    @property
    def report(self) -> tuple[str, ...]:
        """What became of them, and how to bring back what was undone."""
        return (self.sentence, *((f"  bring them back: {self.bring_back}",) if self.bring_back else ()))


def with_drift(known: tuple[Drift, ...], drift: Drift) -> tuple[Drift, ...]:
    """Return what people are shown: the last drifts of each cause, but for caches.

    Of what checks leave every time only the last one: its command brings back what lay there last. Of what each
    attempt of a step leaves alike, too: the command is the same.
    """
    if not drift.count:
        return known
    kept = [one for one in known if not _is_repeated(one, drift)]
    same = [one for one in kept if one.cause is drift.cause]
    if len(same) >= DRIFTS_KEPT:
        kept.remove(same[0])
    return (*kept, drift)


def is_news(known: tuple[Drift, ...], drift: Drift) -> bool:
    """Return whether the timeline has to tell of a drift: of caches not, and of what is repeated once."""
    return bool(drift.count) and not any(_is_repeated(one, drift) for one in known)


def _is_repeated(one: Drift, by: Drift) -> bool:
    if by.cause is DriftCause.DURING_STEP:
        return (one.cause, one.step, one.bring_back) == (by.cause, by.step, by.bring_back)
    return by.cause is DriftCause.DURING_CHECKS and (one.cause, one.paths) == (by.cause, by.paths)


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
        super().__init__(f"somebody else changed {drift.named}. Keep or undo that, then go on")
        self.drift = drift


class PromptPrivacy(StrEnum):
    """What prompts may contain, from the most to the least."""

    FULL = "full"
    """Everything that the briefing holds."""
    REDACTED = "redacted"
    """The same, with secrets and personal data taken out."""
    SUMMARY = "summary"
    """Besides, no code, no diff and no output of checks and executors: names, counts and outcomes are left."""


def prompt_privacy_for(
    workspace: str, projects: Mapping[str, PromptPrivacy], *, default: PromptPrivacy
) -> PromptPrivacy:
    """Return the level of the longest folder that holds the workspace, else the default. Paths are absolute."""
    path = posixpath.normpath(workspace)
    levels = {posixpath.normpath(folder): level for folder, level in projects.items()}
    fitting = [folder for folder in levels if path == folder or path.startswith(folder.rstrip("/") + "/")]
    return levels[max(fitting, key=len)] if fitting else default
