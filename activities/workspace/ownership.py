"""Tree ownership, which consists of an attempt's lock, its processes and an episode's claim."""

import contextlib
import fcntl
import hashlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import psutil
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from activities.artifacts.port import replace_file
from activities.process.start import is_alive
from tightloop.errors import WorkspaceBusyError, WorkspaceLockedError
from tightloop.host import private_folder

LOCK_WAIT = timedelta(seconds=30)
LOCK_POLL = timedelta(milliseconds=50)
END_WAIT = timedelta(seconds=10)
CLOCK_SLACK = timedelta(seconds=2)
"""Tolerance for start times, which are derived from the boot time and shift with clock corrections."""


def tree_key(root: Path) -> str:
    """Return the key that identifies the lock, the claim and the index of a tree."""
    return hashlib.sha256(os.fsencode(root.resolve())).hexdigest()[:16]


def write_atomically(path: Path, content: bytes, *, durable: bool = False) -> None:
    """Replace a file, and create its folders if necessary. See `replace_file`.

    Raises:
        OSError: the file cannot be written. The old file is kept.
    """
    private_folder(path.parent)
    replace_file(path, content, durable=durable)


@contextlib.contextmanager
def hold_lock(path: Path, *, wait: timedelta, what: str) -> Iterator[int]:
    """Hold a file lock and yield its descriptor.

    The lock excludes both threads and processes. Child processes that inherit the descriptor also hold the
    lock, so it is not released until the last of these processes has ended.

    Raises:
        WorkspaceLockedError: another holder kept the lock for the entire wait. Retryable.
    """
    private_folder(path.parent)
    deadline = time.monotonic() + wait.total_seconds()
    while (descriptor := _try_lock(path)) is None:
        if time.monotonic() >= deadline:
            holder = ""
            with contextlib.suppress(OSError):
                holder = path.read_text()
            raise WorkspaceLockedError(
                f"another attempt (process {holder or 'unknown'}) is still using {what} after "
                f"{wait.total_seconds():g} s. Temporal will retry. If that process hangs, kill it"
            )
        time.sleep(LOCK_POLL.total_seconds())
    try:
        # Shown in the error of an attempt that waits too long.
        os.ftruncate(descriptor, 0)
        os.write(descriptor, str(os.getpid()).encode())
        yield descriptor
    finally:
        os.close(descriptor)


def tree_lock(state: Path, root: Path, *, wait: timedelta = LOCK_WAIT) -> contextlib.AbstractContextManager[int]:
    """Hold the lock of the working tree `root`. `state` is the tree's state folder. See `hold_lock`."""
    return hold_lock(state / "locks" / f"{tree_key(root)}.lock", wait=wait, what=f"the working tree {root}")


def _try_lock(path: Path) -> int | None:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        # flock, not lockf: locks of the latter belong to the process, so two of its threads would both get one.
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # A lock on a file that was deleted in the meantime would exclude nothing.
        if os.fstat(descriptor).st_ino == path.stat().st_ino:
            return descriptor
    except (BlockingIOError, FileNotFoundError):
        pass
    os.close(descriptor)
    return None


class _ProcessRecord(BaseModel):
    """The record of a process to kill. The format is strict, so that no other process is killed."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    pid: int = Field(gt=1, lt=2**31)
    started: float = Field(gt=0, allow_inf_nan=False)
    """Start time in seconds since 1970."""
    leads_session: bool


_NOTES = TypeAdapter(tuple[_ProcessRecord, ...])


class OwnedProcesses:
    """Processes that the holder of a lock started. Their record remains if the holder dies."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._ended: set[psutil.Process] = set()

    @property
    def ended(self) -> int:
        """Number of processes that `end_all` killed."""
        return len(self._ended)

    def note(self, pid: int) -> None:
        """Record a process unless it has already ended."""
        try:
            started = psutil.Process(pid).create_time()
            # The start time tells it from a later process with the same pid.
            noted = _ProcessRecord(pid=pid, started=started, leads_session=os.getsid(pid) == pid)
        except (psutil.NoSuchProcess, ProcessLookupError):
            return
        with self._lock:
            write_atomically(self._path, _NOTES.dump_json((*self._read(), noted)))

    def end_all(self) -> None:
        """Kill the recorded processes, their descendants and their sessions. Then clear the record.

        Raises:
            WorkspaceLockedError: a process does not end. Retryable.
        """
        noted = self._read()
        deadline = time.monotonic() + END_WAIT.total_seconds()
        # Listed again after each round: a process may start another one between the listing and its end.
        while running := {process for entry in noted for process in _running(entry)}:
            if time.monotonic() >= deadline:
                pids = ", ".join(str(process.pid) for process in running)
                raise WorkspaceLockedError(f"process {pids} from an earlier attempt is still running. Kill the process")
            self._ended |= running
            for process in running:
                with contextlib.suppress(psutil.Error):
                    process.kill()
            psutil.wait_procs(list(running), timeout=0.2)
        self._path.unlink(missing_ok=True)

    def _read(self) -> tuple[_ProcessRecord, ...]:
        try:
            return _NOTES.validate_json(self._path.read_bytes())
        except (FileNotFoundError, ValidationError):
            return ()


def _running(noted: _ProcessRecord) -> set[psutil.Process]:
    """Return the recorded processes that are alive, with their descendants and sessions.

    A process that has reused a recorded pid is never included.
    """
    slack = CLOCK_SLACK.total_seconds()
    processes: set[psutil.Process] = set()
    # Recorded before a reboot of the host: those pids mean nothing now.
    if noted.started < psutil.boot_time() - slack:
        return processes
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(noted.pid)
        if abs(process.create_time() - noted.started) > slack:
            return processes
        processes |= {process, *process.children(recursive=True)}
    if noted.leads_session:
        for process in psutil.process_iter():
            # It may have ended since it was listed.
            with contextlib.suppress(psutil.Error, OSError):
                if os.getsid(process.pid) == noted.pid and process.create_time() >= noted.started - slack:
                    processes.add(process)
    return {process for process in processes if process.pid != os.getpid() and is_alive(process)}


class WorkspaceLocks:
    """Records which working tree an episode has claimed, from the episode's start to its end."""

    def __init__(self, folder: Path, *, wait: timedelta) -> None:
        """Store claims in `folder`. `wait` limits the waiting time if another process is changing a claim."""
        self._folder = folder
        self._wait = wait

    def take(self, root: Path, episode: str, take_over: Callable[[str], bool]) -> None:
        """Claim a tree. Idempotent.

        Raises:
            WorkspaceBusyError: another episode has claimed the tree, and `take_over` says that this episode is
                still open.
        """
        ended: str | None = None
        while True:
            with self._changing():
                other = self._owner(root)
                if other in (None, episode, ended):
                    content = json.dumps({"episode": episode, "root": str(root)})
                    write_atomically(self._path(root), content.encode("utf-8", "backslashreplace"))
                    return
            # Asked without the lock, because a server may have to answer; the claim can change meanwhile.
            if not take_over(other):
                raise WorkspaceBusyError(
                    f"{other} is using {root}. End {other} first (tightloop cancel {other}), or start the new run "
                    "in a separate worktree"
                )
            ended = other

    def release(self, root: Path, episode: str) -> None:
        """Release an episode's claim. A claim by another episode is kept."""
        with self._changing():
            if self._owner(root) == episode:
                self._path(root).unlink(missing_ok=True)

    def _changing(self) -> contextlib.AbstractContextManager[int]:
        return hold_lock(self._folder / "lock", wait=self._wait, what=f"the list of claims in {self._folder}")

    def _owner(self, root: Path) -> str | None:
        try:
            return str(json.loads(self._path(root).read_bytes())["episode"])
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None

    def _path(self, root: Path) -> Path:
        return self._folder / f"{tree_key(root)}.json"
