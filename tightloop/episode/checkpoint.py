"""Checkpoints of an episode, and their copies."""

import re
from datetime import datetime
from typing import Self
from zlib import crc32

from pydantic import field_validator

from tightloop.episode.progress.tracking import ProbabilityClass, Tracking
from tightloop.errors import FencedError, InvalidRequestError
from tightloop.executor.model import Usage
from tightloop.safety.drift import Drift
from tightloop.safety.rubric import Finding
from tightloop.value import ArtifactRef, Document, Value, shorten

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


QUEUE_CHARACTERS = 200
PATH_CHARACTERS = 4_000


class CopiesHead(Value):
    """What is copied of an episode, and who may copy more."""

    home: str
    """Task queue of the host that may write."""
    epoch: int = 1
    run: str = ""
    """Temporal run for which the episode was opened, where that made the epoch; empty after a move."""
    increments: tuple[str, ...] = ()
    """Names of what is copied, in the order in which it is put together."""
    last: CheckpointRecord | None = None
    """The checkpoint that all of it together makes."""

    def opened(self, home: str, run: str) -> Self:
        """Return the head for an episode that begins with this id: nothing of an earlier one is built upon."""
        if (self.home, self.run) == (home, run):
            return self
        return self.evolve(home=home, run=run, epoch=self.epoch + 1, increments=(), last=None)

    def taken(self, home: str, epoch: int) -> Self:
        """Return the head for a host that takes over; one that has done so already takes the same epoch again.

        Raises:
            FencedError: the epoch is another host's, or over.
        """
        if (self.home, self.epoch) == (home, epoch):
            return self
        if self.epoch >= epoch:
            raise _fenced(self, home, epoch)
        return self.evolve(home=home, run="", epoch=epoch)

    def with_increment(self, name: str, record: CheckpointRecord) -> Self:
        """Return the head with one more increment."""
        return self.evolve(increments=(*self.increments, name), last=record)

    def emptied(self) -> Self:
        """Return the head once its increments are not needed any more."""
        return self.evolve(run="", increments=(), last=None)


def check_holder(head: CopiesHead | None, home: str, epoch: int) -> CopiesHead:
    """Return the head if this host may write.

    Raises:
        FencedError: it may not, because another host has taken over.
    """
    if head is None or (head.home, head.epoch) != (home, epoch):
        raise _fenced(head, home, epoch)
    return head


def _fenced(head: CopiesHead | None, home: str, epoch: int) -> FencedError:
    holder = f"{head.home!r} has it with epoch {head.epoch}" if head else "the remote store knows nothing of it"
    return FencedError(
        f"the host of task queue {home!r} may not go on with this episode under epoch {epoch}: {holder}. Nothing was "
        f"delivered or copied. To have it here: tightloop move ID --to {host_of(home) or home}"
    )


class MoveTarget(Document):
    """A host that takes an episode over, and who wants that."""

    to: str
    """Task queue of the host, as `tightloop doctor` names it."""
    workspace: str = ""
    """Absolute path of the working tree there; empty: the same as before."""
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
        """The same with texts that fit into a history."""
        return self.evolve(
            to=self.to[:QUEUE_CHARACTERS],
            workspace=self.workspace[:PATH_CHARACTERS],
            reason=shorten(self.reason, 500),
            by=shorten(self.by, 80),
        )


def check_move(target: MoveTarget, *, home: str, epoch: int, waits: bool) -> None:
    """Refuse a move that cannot work. To its own host an episode moves only while it waits for a person.

    Raises:
        InvalidRequestError: with the reason.
    """
    if not epoch:
        raise InvalidRequestError(
            "move: the checkpoints of this episode are on its host only. Name a bucket in the settings of the workers "
            "(remote.bucket); episodes that start afterwards can be moved"
        )
    if target.to == home and not waits:
        raise InvalidRequestError(f"move: the episode is on {home!r} already, and is not paused")
    if "-workspace-" not in target.to:
        raise InvalidRequestError(
            f"move: {target.to!r} is not the task queue of a host with workspaces. See them: tightloop doctor"
        )


def choose_home(wanted: str, homes: tuple[str, ...]) -> str:
    """Return the task queue of a host, named by it, by the host's name, or by the machine's name that begins it.

    Raises:
        InvalidRequestError: none fits, or more than one.
    """
    fits = [home for home in homes if wanted in (home, host_of(home))]
    fits = fits or [home for home in homes if host_of(home).rpartition("-")[0] == wanted]
    if len(fits) == 1:
        return fits[0]
    known = ", ".join(homes) or "nobody"
    if fits:
        raise InvalidRequestError(f"move: {wanted!r} has {len(fits)} workers for workspaces. Name one: {known}")
    raise InvalidRequestError(
        f"move: no worker for workspaces runs on {wanted!r}. Start one there, or name one of these: {known}"
    )


def choose_successor(home: str, homes: tuple[str, ...], episode_id: str) -> str:
    """Return the task queue of the host that takes an episode over from a silent one; empty if there is no other host.

    The episodes of one host are spread over all others.
    """
    others = sorted({*homes} - {home})
    return others[crc32(episode_id.encode()) % len(others)] if others else ""


def host_of(home: str) -> str:
    """Return the name of the host in its task queue, which `tightloop.host.identity` makes."""
    return home.rpartition("-workspace-")[2]


def read_increment_name(name: str) -> str:
    """Return the digest that the name of an increment ends with."""
    return name.rpartition("-")[2]


def is_increment_up_to(epoch: int, name: str) -> bool:
    """Return whether this is the full name of an increment, of this epoch or one before."""
    parts = name.rsplit("/", 2)
    return len(parts) == 3 and parts[1].isdecimal() and int(parts[1]) <= epoch and "-" in parts[2]


def increment_name(epoch: int, record: CheckpointRecord, digest: str) -> str:
    """Return the name of an increment, under that of its episode; the same content has the same name."""
    return f"{epoch}/{record.number}-{digest}"
