"""Drift of a run: file changes outside its control."""

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
"""Maximum number of drifts per cause in the status, newest last."""


class DriftCause(StrEnum):
    """Origin of the changed files."""

    OUTSIDE = "outside"
    """Changed from outside, while the run was not paused."""
    INTERRUPTED = "interrupted"
    """Found after an interrupted attempt, which may have written them."""
    DURING_CHECKS = "during_checks"
    """Changed while checks ran, by them or from outside."""
    DURING_STEP = "during_step"
    """Changed while a step ran that has to be undone, by it or from outside."""


class Drift(Value):
    """Files on disk that differ from the result of the work. The found tree is kept in the store."""

    tree: str = ""
    """The found tree."""
    expected: str = ""
    """The expected tree, as the work left it."""
    paths: tuple[str, ...] = ()
    """At most `PATHS_LISTED`; non-UTF-8 bytes are escaped."""
    count: int = 0
    """Total number of files."""
    lines: tuple[str, ...] = ()
    """Difference and age of each file; at most `LINES_LISTED`."""
    since: datetime | None = None
    """Earliest modification time of the existing files."""
    cause: DriftCause = DriftCause.OUTSIDE
    step: str = ""
    """Step of a plan, with `DURING_STEP`."""
    bring_back: str = ""
    """Command that restores undone changes; empty: the found files are still on disk."""

    # Older histories hold only the id of the tree.
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
        """Reaction to the drift."""
        return drift_text(self)

    @property
    def report(self) -> tuple[str, ...]:
        """Reaction to the drift, and the command to restore undone changes."""
        return (self.sentence, *((f"  restore them: {self.bring_back}",) if self.bring_back else ()))


def with_drift(drifts: tuple[Drift, ...], drift: Drift) -> tuple[Drift, ...]:
    """Return the drifts to show: the last ones of each cause, without caches.

    Of repeated drifts during checks only the last is kept, because its command restores the latest files; the same
    applies to identical drifts of a step, whose command is the same.
    """
    if not drift.count:
        return drifts
    remaining = [other for other in drifts if not _is_repeated(other, drift)]
    same = [other for other in remaining if other.cause is drift.cause]
    if len(same) >= DRIFTS_KEPT:
        remaining.remove(same[0])
    return (*remaining, drift)


def is_news(drifts: tuple[Drift, ...], drift: Drift) -> bool:
    """Return whether the timeline has to report a drift: not for caches, and only once for repeated ones."""
    return bool(drift.count) and not any(_is_repeated(other, drift) for other in drifts)


def _is_repeated(previous: Drift, by: Drift) -> bool:
    if by.cause is DriftCause.DURING_STEP:
        return (previous.cause, previous.step, previous.bring_back) == (by.cause, by.step, by.bring_back)
    return by.cause is DriftCause.DURING_CHECKS and (previous.cause, previous.paths) == (by.cause, by.paths)


class DriftAnswer(Value):
    """A person's decision about a drift."""

    tree: str
    """Tree shown in the question."""
    keep: bool = True
    words: tuple[str, ...] = ()
    """Files that the decision applies to, as paths, folders or patterns; empty: all.

    The opposite applies to the others.
    """

    def undoes(self, path: str) -> bool:
        """Return whether a file of the question has to be restored."""
        is_named = not self.words or any(is_path_named(pattern, path) for pattern in self.words)
        return is_named != self.keep


class DriftError(TightloopError):
    """Files differ from the result of the work, and a person has to decide. Nothing was changed.

    Attributes:
        drift: the changed files.
    """

    def __init__(self, drift: Drift) -> None:
        super().__init__(f"somebody else changed {drift.named}. Keep or undo that, then go on")
        self.drift = drift


class PromptPrivacy(StrEnum):
    """Allowed content of prompts, from most to least."""

    FULL = "full"
    """Everything in the briefing."""
    REDACTED = "redacted"
    """Everything, with secrets and personal data removed."""
    SUMMARY = "summary"
    """No code, diffs or output of checks and executors: only names, counts and outcomes."""


def prompt_privacy_for(
    workspace: str, projects: Mapping[str, PromptPrivacy], *, default: PromptPrivacy
) -> PromptPrivacy:
    """Return the level of the longest folder that contains the workspace, or the default. Paths are absolute."""
    path = posixpath.normpath(workspace)
    levels = {posixpath.normpath(folder): level for folder, level in projects.items()}
    # Without its slash, because the root `/` would become `//`.
    fitting = [folder for folder in levels if path == folder or path.startswith(folder.rstrip("/") + "/")]
    return levels[max(fitting, key=len)] if fitting else default
