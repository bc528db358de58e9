"""Checkpoints of an episode, and their remote copies."""

import re
from datetime import datetime
from typing import Self
from zlib import crc32

from pydantic import field_validator

from tightloop.episode.progress.tracking import ProbabilityClass, Tracking
from tightloop.errors import FencedError, InvalidRequestError
from tightloop.executor.model import Usage
from tightloop.safety.approval import ShownChange
from tightloop.safety.drift import Drift
from tightloop.safety.rubric import Finding
from tightloop.value import ArtifactRef, Document, Value, shorten

RECENT_LIMIT = 60
"""Number of checkpoints kept in an open run. Older ones stay in the ledger and can still be restored."""

# Bounded, because int() raises for numbers of more than 4300 digits.
_ID = re.compile(r"^(?:ckpt-)?(\d{1,7})$")


class CheckpointRecord(Value):
    """An entry in the list of checkpoints."""

    id: str
    """Id of the form `ckpt-<n>`. The number n keeps increasing across branches, resets and runs of an episode."""
    iteration: int
    branch: int = 1
    tree: str = ""
    """Git tree id of the working tree.

    The ref `refs/tightloop/<episode>/<n>` protects the tree from garbage collection.
    """
    state: ArtifactRef | None = None
    """The stored `CheckpointFile`."""
    parent: str | None = None
    """Id of the preceding checkpoint."""
    probability_class: ProbabilityClass | None = None
    checks: str = ""
    """Number of passed checks out of the total, such as `2/3`."""
    title: str = ""
    run_id: str = ""
    """Temporal run that created the checkpoint."""
    event_id: int | None = None
    """Workflow task event to pass to `temporal workflow reset -e` to return to this checkpoint."""
    at: datetime | None = None
    lines: int = 0
    """Number of text lines in the tree."""
    refused: bool = False
    """True if its files contain work that a person refused."""
    discarded: bool = False
    """True if the episode has since been restored to an earlier checkpoint. Files and state are kept."""

    @property
    def number(self) -> int:
        """The number n in `ckpt-<n>`."""
        return checkpoint_number(self.id) or 0


class RestoreTarget(Value):
    """Checkpoint to restore, and why."""

    checkpoint_id: str
    reason: str = ""
    by: str = ""
    episode_id: str = ""
    """Id of the episode that owns the checkpoint, if it is a different one, as in a fork."""


class Tracked(Value):
    """The tracker's results for an iteration."""

    tracking: Tracking
    checkpoint: CheckpointRecord
    plan_request: ArtifactRef | None = None
    findings: tuple[Finding, ...] = ()
    """Findings in the change that need a person's review."""
    change: ShownChange | None = None
    """Change with these findings, for the question about it."""
    alignment: ArtifactRef | None = None
    """Stored evidence of the alignment check, if there are findings."""
    usage: Usage | None = None
    """Usage of the model that acted as judge."""
    drift: Drift | None = None
    recalled: int | None = None
    """Number of memory entries found for the plan, or None if the memory was not queried."""
    memory_problem: str = ""
    """Reason why the memory is unavailable, with advice. It is reported once per episode."""
    attempt: int = 1


def checkpoint_id(number: int) -> str:
    """Return the id of the n-th checkpoint."""
    return f"ckpt-{number}"


def checkpoint_number(text: str) -> int | None:
    """Parse `ckpt-<n>` or `<n>` and return the number. Return None for any other text."""
    match = _ID.match(text.strip())
    return int(match.group(1)) if match else None


def discard_after(records: tuple[CheckpointRecord, ...], checkpoint: str) -> tuple[CheckpointRecord, ...]:
    """Mark all later checkpoints that are not ancestors of `checkpoint` as discarded.

    Nothing is removed. Ancestors become active again, even if an earlier restore discarded them.
    """
    by_id = {record.id: record for record in records}
    # An ancestor may be older than the list: the walk ends there, and older records are unchanged.
    lineage: set[str] = set()
    walk: str | None = checkpoint
    # The second condition ends the walk if a damaged list has a cycle of parents.
    while walk is not None and walk not in lineage:
        lineage.add(walk)
        walk = by_id[walk].parent if walk in by_id else None
    oldest_kept = min(checkpoint_number(name) or 0 for name in lineage)
    return tuple(
        record
        if record.id not in lineage and record.number < oldest_kept
        else record.evolve(discarded=record.id not in lineage)
        for record in records
    )


def merge(
    preferred: tuple[CheckpointRecord, ...], additional: tuple[CheckpointRecord, ...]
) -> tuple[CheckpointRecord, ...]:
    """Merge two lists by number without duplicates. Records in `preferred` take precedence."""
    by_id = {record.id: record for record in additional} | {record.id: record for record in preferred}
    return tuple(sorted(by_id.values(), key=lambda record: record.number))


QUEUE_CHARACTERS = 200
PATH_CHARACTERS = 4_000


class CopiesHead(Value):
    """The list of an episode's copied increments, and the host that may add more."""

    home: str
    """Task queue of the host that is allowed to write."""
    epoch: int = 1
    run: str = ""
    """Temporal run whose start created the epoch. Empty after a move."""
    increments: tuple[str, ...] = ()
    """Names of the copied increments, in the order in which they are applied."""
    last: CheckpointRecord | None = None
    """Checkpoint that results from applying all increments."""

    def with_run(self, home: str, run: str) -> Self:
        """Return the head for a new episode with this id. Nothing is reused from an earlier episode."""
        # A retried activity of the same run must not open another epoch.
        if (self.home, self.run) == (home, run):
            return self
        return self.evolve(home=home, run=run, epoch=self.epoch + 1, increments=(), last=None)

    def taken(self, home: str, epoch: int) -> Self:
        """Return the head after a host takes over. Idempotent for the same host and epoch.

        Raises:
            FencedError: the epoch belongs to another host or has ended.
        """
        if (self.home, self.epoch) == (home, epoch):
            return self
        # A late retry of a move that was overtaken must not win the episode back. Two hosts cannot share an epoch.
        if self.epoch >= epoch:
            raise _make_fenced_error(self, home, epoch)
        return self.evolve(home=home, run="", epoch=epoch)

    def with_increment(self, name: str, record: CheckpointRecord) -> Self:
        """Return the head with one more increment."""
        return self.evolve(increments=(*self.increments, name), last=record)

    def with_no_increments(self) -> Self:
        """Return the head without its increments, which are no longer needed."""
        return self.evolve(run="", increments=(), last=None)


def check_holder(head: CopiesHead | None, home: str, epoch: int) -> CopiesHead:
    """Check that this host holds the episode's remote copies, and return their head.

    Raises:
        FencedError: another host has taken over.
    """
    # Both count: after a move there and back, the home is the same, but late writes of the old epoch must fail.
    if head is None or (head.home, head.epoch) != (home, epoch):
        raise _make_fenced_error(head, home, epoch)
    return head


def _make_fenced_error(head: CopiesHead | None, home: str, epoch: int) -> FencedError:
    holder = f"the owner is {head.home!r}, with epoch {head.epoch}" if head else "the remote store has no record of it"
    return FencedError(
        f"the host of task queue {home!r} does not own this episode (epoch {epoch}): {holder}. Nothing was "
        f"delivered or copied. To move the episode to this host, run: tightloop move ID --to {host_of(home) or home}"
    )


class MoveTarget(Document):
    """The target host of a move, and the person who requested the move."""

    to: str
    """The host's task queue, as shown by `tightloop doctor`."""
    workspace: str = ""
    """Absolute path of the working tree on the target host. If empty, the path does not change."""
    reason: str = ""
    by: str = "operator"

    @field_validator("workspace")
    @classmethod
    def _is_absolute(cls, path: str) -> str:
        if path and not path.startswith("/"):
            raise ValueError(f"{path!r} is not an absolute path")
        return path

    @property
    def bounded(self) -> Self:
        """Return a copy with its text shortened enough for a history."""
        return self.evolve(
            to=self.to[:QUEUE_CHARACTERS],
            workspace=self.workspace[:PATH_CHARACTERS],
            reason=shorten(self.reason, 500),
            by=shorten(self.by, 80),
        )


def check_move(target: MoveTarget, *, home: str, epoch: int, waits: bool) -> None:
    """Reject an impossible move.

    An episode can be moved to its current host only while it waits for a person.

    Raises:
        InvalidRequestError: the move is impossible. The message contains the reason.
    """
    if not epoch:
        raise InvalidRequestError(
            "move: this episode's checkpoints exist only on its host. To make episodes movable, set remote.bucket in "
            "the workers' settings before the episodes start"
        )
    if target.to == home and not waits:
        raise InvalidRequestError(f"move: the episode is already on {home!r} and is not paused")
    # Only the form is checked: a workflow cannot ask which task queues have workers.
    if "-workspace-" not in target.to:
        raise InvalidRequestError(
            f"move: {target.to!r} is not the task queue of a workspace host. List the hosts with: tightloop doctor"
        )


def choose_home(target: str, homes: tuple[str, ...]) -> str:
    """Return the task queue of a host.

    `target` is the task queue, the host name, or the host name without its random suffix.

    Raises:
        InvalidRequestError: no host matches, or more than one does.
    """
    fits = [home for home in homes if target in (home, host_of(home))]
    # People know the machine, but not the random suffix of its host name.
    fits = fits or [home for home in homes if host_of(home).rpartition("-")[0] == target]
    if len(fits) == 1:
        return fits[0]
    choices = ", ".join(homes) or "none"
    if fits:
        raise InvalidRequestError(f"move: {target!r} has {len(fits)} workspace workers. Choose one: {choices}")
    raise InvalidRequestError(
        f"move: no workspace worker is running on {target!r}. Start one there, or choose one of these: {choices}"
    )


def choose_successor(home: str, homes: tuple[str, ...], episode_id: str) -> str:
    """Return the task queue of the host that takes over from an unresponsive host.

    Return "" if there is no other host. The episodes of a host are distributed across all other hosts.
    """
    # Sorted, because the order of a set of strings differs between processes too.
    other_homes = sorted({*homes} - {home})
    # crc32 and not hash(), which is salted: every process must choose the same host.
    return other_homes[crc32(episode_id.encode()) % len(other_homes)] if other_homes else ""


def host_of(home: str) -> str:
    """Return the host name in a task queue created by `tightloop.host.identity`."""
    return home.rpartition("-workspace-")[2]


def read_increment_name(name: str) -> str:
    """Return the content digest from an increment's name."""
    return name.rpartition("-")[2]


def is_increment_up_to(epoch: int, name: str) -> bool:
    """Return whether a name is the full name of an increment from this epoch or an earlier one."""
    # The names come from a listing of the bucket, which also holds the head.
    parts = name.rsplit("/", 2)
    return len(parts) == 3 and parts[1].isdecimal() and int(parts[1]) <= epoch and "-" in parts[2]


def increment_name(epoch: int, record: CheckpointRecord, digest: str) -> str:
    """Return an increment's name relative to its episode. The same content always gets the same name."""
    return f"{epoch}/{record.number}-{digest}"
