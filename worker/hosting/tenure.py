"""The lease on a host's name, the state home's lock, and the check that work belongs to this host."""

import asyncio
import contextlib
import fcntl
import logging
import os
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psutil
from pydantic import ValidationError
from temporalio.client import Client

from activities.plan.requests import OpenedPlan
from activities.remote.activity import Copies, need_copies
from activities.workspace.port import OpenResult
from activities.workspace.scope import EpisodeScope
from tightloop.client.calls import Calls
from tightloop.client.staffing import workers_on
from tightloop.client.workers import POLLER_FRESH, Poller
from tightloop.errors import ServiceUnavailableError, SettingsError, WorkspaceElsewhereError
from tightloop.host import open_state_home
from tightloop.host.identity import HostIdentity, claim_identity, host_identity, read_identity
from tightloop.settings import Settings
from tightloop.value import Value

logger = logging.getLogger("tightloop")

FILE = "host.lock"
LOCK_SECONDS = 10.0
LOOK_SECONDS = 1.0
WATCH_SECONDS = 10.0
BEATS_MISSED = 4
"""Number of missed heartbeats after which a worker counts as dead."""
SETTLING = timedelta(seconds=30)
"""Time during which two workers that start at the same moment may not see each other."""
ENDED_MOST = 20
"""Number of former tenures to remember. Temporal lists a dead worker for about a minute."""


class Tenure(Value):
    """A lease on a host's name, held without interruption. All processes that use the same state home share it."""

    id: str
    """Start time and a random part. The id of an earlier tenure sorts first."""
    name: str
    place: str
    """Location of the state home: boot id, device and inode."""
    ended: tuple[str, ...] = ()
    """Former tenures in the same place. The lock proves that their processes have ended."""


@dataclass(frozen=True)
class TenureShare:
    """This process's share of a tenure."""

    tenure: Tenure
    identity: HostIdentity
    settings: Settings
    descriptor: int
    """File descriptor of the locked file."""

    async def wait_for_others(self, client: Client) -> None:
        """Wait until no other tenure uses this host's names.

        A dead tenure may still be listed for a few seconds.

        Raises:
            SettingsError: another tenure is alive.
            ServiceUnavailableError: Temporal does not respond.
        """
        calls, clock = Calls(client), time.monotonic
        first_polls: dict[str, tuple[Poller, float]] = {}
        while other_pollers := await self._find_other_workers(calls):
            for name, other in other_pollers.items():
                first = first_polls.setdefault(name, (other, clock()))[0]
                if _is_newer(other, first):
                    raise self._refusal(other)
                if first is other:
                    logger.info(
                        "worker %s is registered under this host's name but may be dead: waiting up to %.0f s for "
                        "a sign of life",
                        other.process,
                        _silence(other).total_seconds(),
                    )
            # A live worker would have sent a heartbeat within this time, which `_is_newer` would have seen.
            if all(
                clock() - first_polls[name][1] > _silence(other).total_seconds()
                for name, other in other_pollers.items()
            ):
                return
            await asyncio.sleep(LOOK_SECONDS)

    @asynccontextmanager
    async def watch_lease(self, client: Client) -> AsyncIterator[None]:
        """Watch the lease during the block. If it is lost, cancel the block and raise an error.

        Raises:
            SettingsError: another state home uses the name.
        """
        body, lost = asyncio.current_task(), list[BaseException]()
        assert body is not None

        def end(task: "asyncio.Task[None]") -> None:
            if not task.cancelled() and (error := task.exception()) is not None:
                lost.append(error)
                body.cancel()

        watching = asyncio.create_task(self._watch(client))
        watching.add_done_callback(end)
        try:
            yield
        except asyncio.CancelledError:
            # With `lost` it is our own cancellation, to end a block that waits elsewhere; `finally` raises the cause.
            if not lost:
                raise
        finally:
            watching.cancel()
            # Only now that the workers have stopped, because closing the file gives up the lock.
            os.close(self.descriptor)
            if lost:
                raise lost[0]

    async def _watch(self, client: Client) -> None:
        """Check periodically that no other tenure uses this host's names.

        Raises:
            SettingsError: another tenure started at the same time and was first, or took over while this process
                could not reach Temporal, e.g. while the machine was asleep.
        """
        calls, first_pollers = Calls(client), dict[str, Poller]()
        # Not the monotonic clock, which stops while the machine sleeps.
        last = time.time()
        settled, doubtful = last + SETTLING.total_seconds(), 0.0
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            try:
                other_pollers = await self._find_other_workers(calls)
            except ServiceUnavailableError:
                # `last` is not updated, so a long outage makes the lease doubtful.
                continue
            now = time.time()
            if now - last > POLLER_FRESH.total_seconds() - WATCH_SECONDS:
                doubtful = now + SETTLING.total_seconds()
            last = now
            for name, other in other_pollers.items():
                lives = _is_newer(other, first_pollers.setdefault(name, other))
                # Of two that start together the earlier one wins; after a pause of this process the other one does.
                if lives and (now < doubtful or (now < settled and other.tenure < self.tenure.id)):
                    raise self._refusal(other)

    async def _find_other_workers(self, calls: Calls) -> dict[str, Poller]:
        """Return the workers of other tenures that use this host's names. Tenures that have ended are skipped."""
        own_ids = {self.tenure.id, *self.tenure.ended}
        return {
            f"{queue} {poller.identity}": poller
            for queue in self.identity.queues(self.settings)
            for poller in await workers_on(calls, queue)
            if poller.tenure not in own_ids
        }

    def _refusal(self, other: Poller) -> SettingsError:
        names, adopted = " or ".join(map(repr, self.identity.names)), self.identity.adopted
        keep = "To keep both workers, give this host a different name: export TIGHTLOOP_WORKER__HOST=NAME"
        if adopted:
            keep = (
                f"To leave the work of host {adopted[0]!r} to worker {other.process}: "
                f"tightloop host adopt {adopted[0]} --release"
            )
        return SettingsError(
            f"worker {other.process} uses the name of this host ({names}) with a different state home. The worker has "
            f"used the name{_since(other)} and was last seen at {other.last_seen:%H:%M:%S} UTC. Either one state home "
            "is a copy of the other, or two hosts have the same name. Tasks could therefore reach the wrong worker. "
            f"To continue with this state home ({open_state_home()}), stop worker {other.process}, then start this "
            f"worker again. {keep}"
        )


async def join_tenure(client: Client, settings: Settings) -> TenureShare:
    """Join the current tenure of this host's name, or start a new one.

    Raises:
        SettingsError: the name is in use elsewhere, or this state home uses another name.
        ServiceUnavailableError: Temporal does not respond.
    """
    lease = await asyncio.to_thread(_join, settings)
    try:
        await lease.wait_for_others(client)
    except BaseException:
        os.close(lease.descriptor)
        raise
    return lease


def _join(settings: Settings) -> TenureShare:
    home, named = open_state_home(), settings.worker.host
    descriptor = os.open(home / FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        before = read_identity()
        _lock(descriptor, home, host_identity(settings).name)
        tenure = _read(descriptor)
        assert tenure is not None
        if tenure.name != host_identity(settings).name:
            raise SettingsError(
                f"the state home {home} is in use by workers whose host name is {tenure.name!r}, but the host "
                f"name of this worker is {named!r}. Set the same worker.host for all workers, or stop the "
                "other workers first"
            )
        identity = claim_identity(settings)
        if before is not None and before.name != identity.name:
            logger.info(
                "the name of this host changed from %s to %s. If work is still open under the old name, run: "
                "tightloop host adopt %s",
                before.name,
                identity.name,
                before.name,
            )
        return TenureShare(tenure, identity, settings, descriptor)
    except BaseException:
        os.close(descriptor)
        raise


def _lock(descriptor: int, home: Path, name: str) -> None:
    """Acquire the shared lock. Start a tenure first if no other process holds the lock.

    Raises:
        SettingsError: the file system does not support locks, or another process holds an exclusive lock.
    """
    until = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _begin(descriptor, home, name)
            # While the lock changes from exclusive to shared, another process may get it; its tenure is joined then.
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            if _read(descriptor) is not None:
                return
        except BlockingIOError:
            pass
        except OSError as error:
            raise SettingsError(
                f"cannot lock {home / FILE}: {error.strerror or error}. Workers on the same host use this file to "
                "find each other. Move the state home to another file system"
            ) from None
        if time.monotonic() > until:
            raise SettingsError(
                f"{home / FILE} is locked by another process. Find that process with: fuser {home / FILE}"
            )
        # Polled, because a blocking `flock` has no timeout.
        time.sleep(0.05)


def _begin(descriptor: int, home: Path, name: str) -> None:
    home_stat = home.stat()
    try:
        # Device and inode numbers repeat on copied disks; the boot id does not. macOS has no /proc.
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot = f"{psutil.boot_time():.0f}"
    before, location = _read(descriptor), f"{boot}/{home_stat.st_dev}/{home_stat.st_ino}"
    # The exclusive lock proves that no process of the former tenure lives, but only in the same place.
    ended = (*before.ended, before.id)[-ENDED_MOST:] if before is not None and before.place == location else ()
    tenure = Tenure(id=f"{int(time.time()):08x}{secrets.token_hex(4)}", name=name, place=location, ended=ended)
    # In place, because the lock is on this file. Whoever reads it half-written sees no tenure and tries again.
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, tenure.model_dump_json().encode(), 0)
    os.fsync(descriptor)


def _read(descriptor: int) -> Tenure | None:
    try:
        return Tenure.model_validate_json(os.pread(descriptor, 65_536, 0))
    except ValidationError:
        return None  # a new file, or its writer died


def _since(other: Poller) -> str:
    try:
        return f" since {datetime.fromtimestamp(int(other.tenure[:8], 16), UTC):%Y-%m-%d %H:%M} UTC"
    except ValueError:
        return ""  # it was started without a tenure


def _is_newer(other: Poller, before: Poller) -> bool:
    return other.last_seen is not None and (before.last_seen is None or other.last_seen > before.last_seen)


def _silence(other: Poller) -> timedelta:
    """Return the time without a heartbeat or poll after which a worker is considered dead."""
    return POLLER_FRESH if other.heartbeat is None else other.heartbeat * BEATS_MISSED + timedelta(seconds=2)


ANYWHERE = frozenset({"send_alerts", "look_for_workers"})
OPENING = frozenset({"open_workspace", "open_plan"})
EPOCH_CHECKED = frozenset({"hand_off", "execute", "track_iteration"})
"""Activities that a host must not run after another host has taken over the episode. `copy_checkpoint` does its own
check."""
HOST_CHECKS, HOST_CHECK_SECONDS = 10, 0.5


@dataclass(frozen=True)
class HostScope:
    """The host of a worker. Decides which requests from shared task queues the worker accepts."""

    queues: tuple[str, ...]
    """This host's task queues, starting with its own. See `tightloop.host.identity`."""
    has_workspaces: bool
    """True if this worker has workspaces, or False if it only runs workflows."""
    workspace_queues: Callable[[], Awaitable[tuple[str, ...]]]
    """Returns the task queues of all hosts that have workspaces."""
    copies: Copies | None = None
    """Copies in the remote store. None if there is no remote store."""

    async def check(self, activity_type: str, scope: EpisodeScope) -> None:
        """Check that a request belongs to this host.

        Raises:
            WorkspaceElsewhereError: the request belongs to another host. The workflow then tries the other
                host.
        """
        if activity_type in ANYWHERE:
            return
        if scope.home and (scope.home not in self.queues or not self.has_workspaces):
            raise WorkspaceElsewhereError(
                f"the workspace {scope.workspace} belongs to the host of task queue {scope.home!r}, but this worker "
                f"serves {self.queues[0]!r}"
            )
        if scope.home or not (activity_type in OPENING or not self.has_workspaces):
            return
        if not self.has_workspaces:
            raise WorkspaceElsewhereError("this worker only runs workflows", await self._find_others())
        if await asyncio.to_thread(Path(scope.workspace).is_dir):
            return
        # If no other host has workspaces either, the activity itself reports the missing folder.
        if other_queues := tuple(queue for queue in await self.workspace_queues() if queue not in self.queues):
            raise WorkspaceElsewhereError(
                f"the worker for task queue {self.queues[0]!r} has no workspace {scope.workspace}", other_queues
            )

    async def _find_others(self) -> tuple[str, ...]:
        """Return the task queues of hosts that have workspaces.

        If there are none, wait a few seconds for a worker that has just started.
        """
        for _ in range(HOST_CHECKS):
            if queues := await self.workspace_queues():
                return queues
            await asyncio.sleep(HOST_CHECK_SECONDS)
        return ()

    async def check_epoch(self, activity_type: str, scope: EpisodeScope) -> None:
        """Check that no other host has taken over the episode. Called before deliveries and records.

        Raises:
            FencedError: another host has taken over the episode.
            SettingsError: no remote store is configured on this host.
            ServiceUnavailableError: the remote store does not respond. This error is retryable.
        """
        if scope.epoch and activity_type in EPOCH_CHECKED:
            await asyncio.to_thread(need_copies(self.copies).check, scope)

    def bind(self, result: Any) -> Any:
        """If an activity opened a workspace, add this host's task queue to the result.

        The task queue becomes the home of the workspace.
        """
        if isinstance(result, OpenResult):
            return result.evolve(home=self.queues[0], copied=self.copies is not None)
        return result.evolve(home=self.queues[0]) if isinstance(result, OpenedPlan) else result
