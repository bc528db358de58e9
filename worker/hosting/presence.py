"""Detects dead worker processes by their locked notes, and queries a task queue's workers."""

import asyncio
import contextlib
import fcntl
import json
import logging
import os
import socket
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import PendingActivityState, TimeoutType
from temporalio.api.failure.v1 import Failure, TimeoutFailureInfo
from temporalio.api.workflowservice.v1 import (
    DescribeWorkflowExecutionRequest,
    RespondActivityTaskFailedByIdRequest,
)
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from tightloop.client import staffing
from tightloop.client.calls import Calls
from tightloop.host import private_folder
from workflows.run.activities import FOUND_BY_WORKER

logger = logging.getLogger("tightloop")

LOOK_SECONDS = 1.0
RECENT_SECONDS = 600.0
"""Time in seconds after a process's last activity for a workflow, during which the process may have taken another
activity of that workflow without recording it."""
MOST_BYTES = 256 * 1024
"""Size in bytes above which notes are rewritten without old entries."""
KEPT_SECONDS = 86_400.0
"""Time after which the notes of a process that uses another Temporal server are removed."""
CALL_TIMEOUT = timedelta(seconds=5)
CALLS_AT_ONCE = 8
SUFFIX = ".worker"


class Notes(NamedTuple):
    """A process's parsed notes."""

    identity: str
    server: str
    workflows: tuple[str, ...]
    """Workflows whose activities the process may be running. Those that are certain come first."""


class Presence:
    """Keeps notes about the work of this process, and detects worker processes that have died."""

    def __init__(self, folder: Path, client: Client, tenure: str = "", key: str = "") -> None:
        """Choose the process's identity.

        Args:
            folder: folder with the notes of all worker processes that have the same state home.
            client: connection to Temporal.
            tenure: id of the lease on the host's name. See `worker.hosting.tenure`.
            key: identity suffix that names the encryption key.
        """
        self._client, token = client, uuid.uuid4().hex[:8]
        # The pid is not unique: a container starts with the same one each time.
        self.identity = f"{os.getpid()}@{socket.gethostname()}/{tenure}.{token}{key}"
        self._path = folder / f"{os.getpid()}-{token}{SUFFIX}"
        self._server = f"{client.service_client.config.target_host}/{client.namespace}"
        self._running = Counter[str]()
        self._ended: dict[str, float] = {}
        self._file: int | None = None
        self._written = 0
        self._users = 0
        self._watching: asyncio.Task[None] | None = None

    @contextlib.asynccontextmanager
    async def alive(self) -> AsyncIterator[None]:
        """Maintain the notes and watch for dead processes during the block. Blocks may overlap."""
        self._users += 1
        if self._users == 1:
            await asyncio.to_thread(self._open)
            self._watching = asyncio.create_task(self._watch_notes())
        try:
            yield
        finally:
            self._users -= 1
            if self._users == 0 and self._watching is not None:
                self._watching.cancel()
                # `wait` instead of `await`, which would raise the cancellation of the task here.
                await asyncio.wait({self._watching})
                self._close()

    @contextlib.contextmanager
    def working_for(self, workflow_id: str) -> Iterator[None]:
        """Record that this process is working for a workflow during the block."""
        self._running[workflow_id] += 1
        self._note("+", workflow_id)
        try:
            yield
        finally:
            self._running[workflow_id] -= 1
            if not self._running[workflow_id]:
                del self._running[workflow_id]
            # Wall-clock time, because another process compares it with its own.
            self._ended[workflow_id] = time.time()
            self._note("-", workflow_id)

    # -- notes of this process --------------------------------------------------------------------------

    def _open(self) -> None:
        # Created under another name until it is locked, because others take unlocked notes for those of a dead process.
        unlocked = self._path.with_suffix(".new")
        try:
            private_folder(self._path.parent)
            self._file = os.open(unlocked, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            fcntl.flock(self._file, fcntl.LOCK_EX)
            self._write_all()
            unlocked.rename(self._path)
        except OSError as error:
            self._close()
            logger.warning("a crash of this process can only be detected by missed heartbeats: %s", error)

    def _close(self) -> None:
        """Close the notes, but do not delete the file. Temporal may not know yet that an activity has ended."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _note(self, sign: str, workflow_id: str) -> None:
        if self._file is None:
            return
        # A full disk must not fail an activity. The end of this process is then noticed by missed heartbeats only.
        with contextlib.suppress(OSError):
            if self._written > MOST_BYTES:
                self._write_all()
            else:
                # One write per line: after a kill at most the last line is torn, and `_read` skips it.
                self._written += os.write(self._file, f"{time.time():.0f} {sign} {workflow_id}\n".encode())

    def _write_all(self) -> None:
        """Rewrite the notes file and remove old entries."""
        assert self._file is not None
        now = time.time()
        self._ended = {workflow_id: at for workflow_id, at in self._ended.items() if at > now - RECENT_SECONDS}
        lines = [json.dumps({"identity": self.identity, "server": self._server})]
        lines += [f"{at:.0f} - {workflow_id}" for workflow_id, at in self._ended.items()]
        lines += [f"{now:.0f} + {workflow_id}" for workflow_id, count in self._running.items() for _ in range(count)]
        content = "".join(f"{line}\n" for line in lines).encode()
        # In place, because the lock is on this file. After a crash in between, old lines remain, which is harmless.
        os.pwrite(self._file, content, 0)
        os.ftruncate(self._file, len(content))
        os.lseek(self._file, 0, os.SEEK_END)
        self._written = len(content)

    # -- other processes --------------------------------------------------------------------------------

    async def _watch_notes(self) -> None:
        while True:
            for path in await asyncio.to_thread(self._list_other_notes):
                try:
                    await self._release_activities(path)
                except (RPCError, OSError) as error:
                    logger.debug(
                        "cannot process the activity records of worker process %s yet and will try again: %s",
                        path.name,
                        error,
                    )
            await asyncio.sleep(LOOK_SECONDS)

    def _list_other_notes(self) -> list[Path]:
        return sorted(path for path in self._path.parent.glob(f"*{SUFFIX}") if path != self._path)

    async def _release_activities(self, path: Path) -> None:
        """Fail the activities of a dead process so that Temporal retries them."""
        file = await asyncio.to_thread(_lock_dead_notes, path)
        if file is None:
            return
        try:
            notes = _read(file)
            if notes is not None and notes.server == self._server:
                await self._fail_all(notes)
            elif notes is not None and time.time() - os.fstat(file).st_mtime < KEPT_SECONDS:
                # Only a process that is connected to the same server can give these activities back.
                return
            path.unlink(missing_ok=True)
        finally:
            os.close(file)

    async def _fail_all(self, notes: Notes) -> None:
        slots = asyncio.Semaphore(CALLS_AT_ONCE)

        async def fail(workflow_id: str) -> int:
            """Fail the activities that the dead process was running for a workflow, and return their number."""
            async with slots:
                service, namespace = self._client.workflow_service, self._client.namespace
                execution = WorkflowExecution(workflow_id=workflow_id)
                request = DescribeWorkflowExecutionRequest(namespace=namespace, execution=execution)
                try:
                    described = await service.describe_workflow_execution(request, timeout=CALL_TIMEOUT)
                except RPCError as error:
                    if error.status in (RPCStatusCode.NOT_FOUND, RPCStatusCode.INVALID_ARGUMENT):
                        return 0
                    raise
                failed = 0
                for pending in described.pending_activities:
                    waits = pending.state == PendingActivityState.PENDING_ACTIVITY_STATE_SCHEDULED
                    # It may have been taken by another worker since.
                    if waits or pending.last_worker_identity != notes.identity:
                        continue
                    answer = RespondActivityTaskFailedByIdRequest(
                        namespace=namespace,
                        workflow_id=workflow_id,
                        run_id=described.workflow_execution_info.execution.run_id,
                        activity_id=pending.activity_id,
                        failure=_make_failure(notes.identity),
                        identity=self.identity,
                    )
                    try:
                        await service.respond_activity_task_failed_by_id(answer, timeout=CALL_TIMEOUT)
                        failed += 1
                    except RPCError as error:
                        if error.status is not RPCStatusCode.NOT_FOUND:
                            raise
                return failed

        failed = sum(await asyncio.gather(*(fail(workflow_id) for workflow_id in notes.workflows)))
        if failed:
            name = notes.identity.partition("/")[0]
            logger.warning("the worker process %s exited, so %d of its activities will be retried", name, failed)


def _make_failure(identity: str) -> Failure:
    """Create the heartbeat timeout failure that Temporal would otherwise report later."""
    return Failure(
        message=f"the worker process {identity.partition('/')[0]} has ended",
        source=FOUND_BY_WORKER,
        timeout_failure_info=TimeoutFailureInfo(timeout_type=TimeoutType.TIMEOUT_TYPE_HEARTBEAT),
    )


def _lock_dead_notes(path: Path) -> int | None:
    """Open and lock a dead process's notes.

    Return None if the process is alive or another process is handling the notes.
    """
    try:
        file = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return None
    try:
        # `flock` instead of `lockf`: a POSIX lock would be dropped when `_read` closes its duplicate of the descriptor.
        # The kernel releases it when the process dies.
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Another process may have removed the file between `open` and `flock`.
        if os.fstat(file).st_nlink:
            return file
    except BlockingIOError:
        pass
    os.close(file)
    return None


def _read(file: int) -> Notes | None:
    """Parse a process's notes. Return None if the notes are invalid."""
    with os.fdopen(os.dup(file), "rb") as opened:
        opened.seek(0)
        head, *lines = opened.read().decode("utf-8", "replace").splitlines() or [""]
    running, recent = Counter[str](), dict[str, None]()
    for line in lines:
        at, _, entry = line.partition(" ")
        sign, _, workflow_id = entry.partition(" ")
        if not at.isdigit() or not workflow_id:
            continue
        running[workflow_id] += {"+": 1, "-": -1}.get(sign, 0)
        if int(at) > time.time() - RECENT_SECONDS:
            recent[workflow_id] = None
    try:
        header: dict[str, Any] = json.loads(head)
        certain = {workflow_id: None for workflow_id, count in running.items() if count > 0}
        return Notes(str(header["identity"]), str(header["server"]), tuple(certain | recent))
    except (ValueError, KeyError, TypeError):
        return None


@dataclass(frozen=True)
class WorkerQueries:
    """Queries about workers in Temporal."""

    client: Client
    main_queue: str
    version: str = ""
    """Version of this process's workers, and therefore of the workflows that make the queries."""

    async def count(self, queue: str) -> int:
        """Count the workers on a task queue that can receive activities from workflows of this version."""
        workers = await staffing.workers_on(Calls(self.client), queue)
        return sum(worker.gets_new_work or worker.version == self.version for worker in workers)

    async def last_seen(self, queue: str) -> datetime | None:
        """Return the time at which any worker on a task queue last sent a heartbeat."""
        workers = await staffing.workers_on(Calls(self.client), queue)
        return max((worker.last_seen for worker in workers if worker.last_seen), default=None)

    async def parent_of(self, workflow_id: str) -> str:
        """Return the id of the workflow that started the latest run of another workflow.

        Return "" if the other workflow is unknown or has no parent.
        """
        return await Calls(self.client).parent_of(workflow_id)

    async def homes(self) -> tuple[str, ...]:
        """Return the task queues of all hosts that have a workspace worker."""
        return await staffing.queues_with(Calls(self.client), f"{self.main_queue}-workspace-")
