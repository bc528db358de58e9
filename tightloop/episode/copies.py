"""Copies of checkpoints in a remote store, from which another host goes on; and the fence: which host may write.

The head of an episode names the host that may write, under an epoch that only grows. A host takes over by raising it,
with one conditional write; whoever still holds an older epoch is refused from then on. (M. Kleppmann, "How to do
distributed locking", 2016, calls this a fencing token.)
"""

from typing import Self
from zlib import crc32

from pydantic import field_validator

from tightloop.episode.checkpoint import CheckpointRecord
from tightloop.errors import FencedError, InvalidRequestError
from tightloop.value import Document, Value, shorten

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
