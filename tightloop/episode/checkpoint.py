"""Checkpoints: the state of the episode and of the files at the end of an iteration, under one id."""

import re
from datetime import datetime

from tightloop.episode.progress.tracking import ProbabilityClass, Tracking
from tightloop.executor.usage import Usage
from tightloop.safety.drift import Drift
from tightloop.safety.rubric import Finding
from tightloop.value import Value
from tightloop.value.artifact import ArtifactRef

RECENT_LIMIT = 60
"""Checkpoints that an open run carries; older ones stay in the ledger and can be restored."""

_ID = re.compile(r"^(?:ckpt-)?(\d{1,7})$")


class CheckpointRecord(Value):
    """One line in the list of checkpoints."""

    id: str
    """`ckpt-<n>`; n grows over the whole episode, also across branches, resets and runs."""
    iteration: int
    branch: int = 1
    tree: str = ""
    """Git tree id of the whole working tree, kept alive under `refs/tightloop/<episode>/<n>`."""
    state: ArtifactRef | None = None
    """The stored `CheckpointFile`."""
    parent: str | None = None
    """The checkpoint that this one continues."""
    probability_class: ProbabilityClass | None = None
    checks: str = ""
    """Passed of all, such as `2/3`."""
    title: str = ""
    run_id: str = ""
    """Temporal run that made it."""
    event_id: int | None = None
    """Workflow task to which `temporal workflow reset -e` goes back to this checkpoint."""
    at: datetime | None = None
    lines: int = 0
    """Lines of text in the tree."""
    discarded: bool = False
    """The episode went back behind it; its files and state are still there."""

    @property
    def number(self) -> int:
        """The n of `ckpt-<n>`."""
        return checkpoint_number(self.id) or 0


class RestoreTarget(Value):
    """A checkpoint to go back to."""

    checkpoint_id: str
    reason: str = ""
    by: str = ""
    episode_id: str = ""
    """The episode that owns the checkpoint, when it is not this one (fork)."""


class Tracked(Value):
    """What the tracker recorded of an iteration."""

    tracking: Tracking
    checkpoint: CheckpointRecord
    plan_request: ArtifactRef | None = None
    findings: tuple[Finding, ...] = ()
    """What a person has to see of the change."""
    alignment: ArtifactRef | None = None
    """The stored evidence of the alignment check, where it found something."""
    usage: Usage | None = None
    """Of a model that judged."""
    drift: Drift | None = None
    recalled: int | None = None
    """How much the memory had for the plan; None: it was not asked."""
    memory_problem: str = ""
    """Why the memory is not used, and what to do; told once in an episode."""
    attempt: int = 1


def checkpoint_id(number: int) -> str:
    """Return the id of the n-th checkpoint."""
    return f"ckpt-{number}"


def checkpoint_number(text: str) -> int | None:
    """Return n of `ckpt-<n>` or of a bare `<n>`; None if it is neither."""
    found = _ID.match(text.strip())
    return int(found.group(1)) if found else None


def discard_after(records: tuple[CheckpointRecord, ...], checkpoint: str) -> tuple[CheckpointRecord, ...]:
    """Mark what came after `checkpoint`, and is not its ancestor, as discarded; nothing is removed.

    Its ancestors count again, also those that an earlier restore had discarded.
    """
    by_id = {record.id: record for record in records}
    # An ancestor may be older than the list: the walk ends there, and what is older still is left as it is.
    kept: set[str] = set()
    walk: str | None = checkpoint
    while walk is not None and walk not in kept:
        kept.add(walk)
        walk = by_id[walk].parent if walk in by_id else None
    oldest_kept = min(checkpoint_number(name) or 0 for name in kept)
    return tuple(
        record
        if record.id not in kept and record.number < oldest_kept
        else record.evolve(discarded=record.id not in kept)
        for record in records
    )


def merge(known: tuple[CheckpointRecord, ...], found: tuple[CheckpointRecord, ...]) -> tuple[CheckpointRecord, ...]:
    """Return both lists as one, by number, without doubles; `known` wins."""
    by_id = {record.id: record for record in found} | {record.id: record for record in known}
    return tuple(sorted(by_id.values(), key=lambda record: record.number))
