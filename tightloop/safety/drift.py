"""Drift of a run: changes to files that are outside its control."""

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
    """The cause of file changes that are not part of the work."""

    OUTSIDE = "outside"
    """The files were changed from outside while the run was not paused."""
    INTERRUPTED = "interrupted"
    """The changes were found after an interrupted attempt, which may have made them."""
    DURING_CHECKS = "during_checks"
    """The files were changed while checks were running, either by the checks or from outside."""
    DURING_STEP = "during_step"
    """The files were changed during a step that has to be undone, either by the step or from outside."""


class Drift(Value):
    """Files on disk that differ from the result of the work. A snapshot of the files is stored."""

    tree: str = ""
    """The tree that was found."""
    expected: str = ""
    """The expected tree, as the work left it."""
    paths: tuple[str, ...] = ()
    """Paths of the files, at most `PATHS_LISTED`. Bytes that are not valid UTF-8 are escaped."""
    count: int = 0
    """Total number of files."""
    lines: tuple[str, ...] = ()
    """Difference and age of each file, at most `LINES_LISTED` lines."""
    since: datetime | None = None
    """Earliest modification time of the files that still exist."""
    cause: DriftCause = DriftCause.OUTSIDE
    step: str = ""
    """The plan step, for `DURING_STEP`."""
    bring_back: str = ""
    """Command that restores changes that were undone. Empty if the files are still on disk as found."""

    # Older histories hold only the id of the tree.
    @model_validator(mode="before")
    @classmethod
    def _read_tree(cls, value: Any) -> Any:
        return {"tree": value} if isinstance(value, str) else value

    @property
    def named(self) -> str:
        """Number and names of the files, such as `2 files: a.txt, b.txt`."""
        return drift_files(self)

    @property
    def sentence(self) -> str:
        """A sentence about how the drift was handled."""
        return drift_text(self)

    @property
    def report(self) -> tuple[str, ...]:
        """Lines describing how the drift was handled, and the command that restores the reverted changes."""
        return (self.sentence, *((f"  to restore the changes: {self.bring_back}",) if self.bring_back else ()))


def with_drift(drifts: tuple[Drift, ...], drift: Drift) -> tuple[Drift, ...]:
    """Add a drift and return the drifts to show.

    Changes to caches are skipped, and only the last drifts for each cause are kept. If files change repeatedly during
    checks, only the last drift is kept, because its command restores the latest files. Identical drifts of a step have
    the same command, so only the last of them is kept.
    """
    if not drift.count:
        return drifts
    remaining = [other for other in drifts if not _is_repeated(other, drift)]
    same = [other for other in remaining if other.cause is drift.cause]
    if len(same) >= DRIFTS_KEPT:
        remaining.remove(same[0])
    return (*remaining, drift)


def is_news(drifts: tuple[Drift, ...], drift: Drift) -> bool:
    """Return whether to report a drift in the timeline.

    Changes to caches are never reported. A repeated drift is reported only once.
    """
    return bool(drift.count) and not any(_is_repeated(other, drift) for other in drifts)


def _is_repeated(previous: Drift, by: Drift) -> bool:
    if by.cause is DriftCause.DURING_STEP:
        return (previous.cause, previous.step, previous.bring_back) == (by.cause, by.step, by.bring_back)
    return by.cause is DriftCause.DURING_CHECKS and (previous.cause, previous.paths) == (by.cause, by.paths)


class DriftAnswer(Value):
    """A person's decision about drift."""

    tree: str
    """The tree shown in the question."""
    keep: bool = True
    words: tuple[str, ...] = ()
    """Files that the decision applies to, as paths, folders or patterns. Empty means all files.

    The opposite decision applies to the other files.
    """

    def undoes(self, path: str) -> bool:
        """Return whether the person decided to restore this file."""
        is_named = not self.words or any(is_path_named(pattern, path) for pattern in self.words)
        return is_named != self.keep


class DriftError(TightloopError):
    """Raised if files differ from the result of the work. A person has to decide what to do. Nothing has been changed.

    Attributes:
        drift: the changed files.
    """

    def __init__(self, drift: Drift) -> None:
        super().__init__(f"somebody else changed {drift.named}. Keep or undo the change, then continue")
        self.drift = drift


class PromptPrivacy(StrEnum):
    """The content allowed in prompts, from the least to the most restrictive level."""

    FULL = "full"
    """Prompts may contain everything in the briefing."""
    REDACTED = "redacted"
    """Prompts may contain everything, but secrets and personal data are removed."""
    SUMMARY = "summary"
    """Prompts contain no code, diffs, or output of checks and executors.

    They only contain names, counts and outcomes.
    """


def prompt_privacy_for(
    workspace: str, projects: Mapping[str, PromptPrivacy], *, default: PromptPrivacy
) -> PromptPrivacy:
    """Return the prompt privacy level of a workspace.

    The longest matching folder path in `projects` takes precedence over the default. Paths are absolute.
    """
    path = posixpath.normpath(workspace)
    levels = {posixpath.normpath(folder): level for folder, level in projects.items()}
    # Without its slash, because the root `/` would become `//`.
    fitting = [folder for folder in levels if path == folder or path.startswith(folder.rstrip("/") + "/")]
    return levels[max(fitting, key=len)] if fitting else default
