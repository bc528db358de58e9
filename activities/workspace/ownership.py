"""Who works in a tree: the lock of an attempt, the processes it started, the claim of an episode."""

import contextlib
import fcntl
import hashlib
import json
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path

import psutil

from tightloop.errors import WorkspaceBusyError, WorkspaceLockedError

LOCK_WAIT = timedelta(seconds=30)
LOCK_POLL = timedelta(milliseconds=50)
END_WAIT = timedelta(seconds=10)
CLOCK_SLACK = timedelta(seconds=2)
"""Start times are derived from the boot time, which moves with corrections of the clock."""


def tree_key(root: Path) -> str:
    """Return the name under which a tree has its lock, claim and index."""
    return hashlib.sha256(os.fsencode(root.resolve())).hexdigest()[:16]


def write_atomically(path: Path, content: bytes) -> None:
    """Replace a file, so that no reader ever sees a part of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".new-")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def locked(path: Path, *, wait: timedelta, what: str) -> Iterator[int]:
    """Hold a file lock and yield its descriptor; a process that inherits it prolongs the lock.

    Excludes threads as well as processes, and ends with the last process that has the descriptor.

    Raises:
        WorkspaceLockedError: somebody else held it for the whole waiting time. Retryable.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + wait.total_seconds()
    while (descriptor := _try_lock(path)) is None:
        if time.monotonic() >= deadline:
            raise WorkspaceLockedError(
                f"{what} is still held by another attempt (process {_holder(path)}) after {wait.total_seconds():g} s. "
                "It is tried again; if that process hangs, end it"
            )
        time.sleep(LOCK_POLL.total_seconds())
    try:
        os.ftruncate(descriptor, 0)
        os.write(descriptor, str(os.getpid()).encode())
        yield descriptor
    finally:
        os.close(descriptor)


def tree_lock(state: Path, root: Path, *, wait: timedelta = LOCK_WAIT) -> contextlib.AbstractContextManager[int]:
    """Hold the lock of the working tree `root`, whose state lies in `state`; see `locked`."""
    return locked(state / "locks" / f"{tree_key(root)}.lock", wait=wait, what=f"the working tree {root}")


def _try_lock(path: Path) -> int | None:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # A lock on a file that somebody removed meanwhile would exclude nobody.
        if os.fstat(descriptor).st_ino == path.stat().st_ino:
            return descriptor
    except (BlockingIOError, FileNotFoundError):
        pass
    os.close(descriptor)
    return None


def _holder(path: Path) -> str:
    try:
        return path.read_text() or "unknown"
    except OSError:
        return "unknown"


@dataclass(frozen=True)
class _Noted:
    pid: int
    started: float
    leads_session: bool


class OwnedProcesses:
    """The processes that the holder of a lock started, noted in a file that outlives it."""

    def __init__(self, path: Path) -> None:
        """Use `path`, which lies beside the lock."""
        self._path = path
        self._noting = threading.Lock()

    def note(self, pid: int) -> None:
        """Note a process; one that has already ended is not noted."""
        try:
            noted = _Noted(pid, psutil.Process(pid).create_time(), os.getsid(pid) == pid)
        except (psutil.NoSuchProcess, ProcessLookupError):
            return
        with self._noting:
            entries = [asdict(entry) for entry in (*self._read(), noted)]
            write_atomically(self._path, json.dumps(entries).encode())

    def end_all(self) -> None:
        """End what is noted and still runs, with its descendants and its session, and clear the notes.

        Raises:
            WorkspaceLockedError: a process does not end. Retryable.
        """
        noted = self._read()
        deadline = time.monotonic() + END_WAIT.total_seconds()
        while running := {process for entry in noted for process in _running(entry)}:
            if time.monotonic() >= deadline:
                pids = ", ".join(str(process.pid) for process in running)
                raise WorkspaceLockedError(f"process {pids} of an earlier attempt does not end. Kill it")
            for process in running:
                with contextlib.suppress(psutil.Error):
                    process.kill()
            psutil.wait_procs(list(running), timeout=0.2)
        self._path.unlink(missing_ok=True)

    def _read(self) -> tuple[_Noted, ...]:
        try:
            return tuple(_Noted(**entry) for entry in json.loads(self._path.read_bytes()))
        except (FileNotFoundError, ValueError, TypeError):
            return ()


def _running(noted: _Noted) -> set[psutil.Process]:
    """Return what runs of a noted process: itself, its descendants, its session; never a reused process id."""
    slack = CLOCK_SLACK.total_seconds()
    found: set[psutil.Process] = set()
    if noted.started < psutil.boot_time() - slack:
        return found
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(noted.pid)
        if abs(process.create_time() - noted.started) > slack:
            return found
        found |= {process, *process.children(recursive=True)}
    if noted.leads_session:
        found |= {process for process in psutil.process_iter() if _in_session(process, noted, slack)}
    return {process for process in found if process.pid != os.getpid() and _runs(process)}


def _in_session(process: psutil.Process, noted: _Noted, slack: float) -> bool:
    try:
        return os.getsid(process.pid) == noted.pid and process.create_time() >= noted.started - slack
    except (psutil.Error, OSError):
        return False


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


class Claims:
    """Which episode works in which tree, from its start to its end."""

    def __init__(self, folder: Path, *, wait: timedelta) -> None:
        """Keep claims in `folder`; `wait` bounds the wait for another process that changes one."""
        self._folder = folder
        self._wait = wait

    def take(self, root: Path, episode: str, take_over: Callable[[str], bool]) -> None:
        """Claim a tree; idempotent.

        Raises:
            WorkspaceBusyError: another episode has it, and `take_over` denies that it has ended.
        """
        ended: str | None = None
        while (other := self._claim(root, episode, ended)) is not None:
            if not take_over(other):
                raise WorkspaceBusyError(
                    f"episode {other} works in {root}. End it first: tightloop abort {other} "
                    f"(a plan: tightloop plan cancel {other}), or start this one in a worktree of its own"
                )
            ended = other

    def release(self, root: Path, episode: str) -> None:
        """Give a claim back; another episode's claim is left alone."""
        with self._changing():
            if self._owner(root) == episode:
                self._path(root).unlink(missing_ok=True)

    def _claim(self, root: Path, episode: str, ended: str | None) -> str | None:
        """Return the episode in the way, unless it is the one that has `ended`."""
        with self._changing():
            owner = self._owner(root)
            if owner not in (None, episode, ended):
                return owner
            content = json.dumps({"episode": episode, "root": str(root)})
            write_atomically(self._path(root), content.encode("utf-8", "backslashreplace"))
            return None

    def _changing(self) -> contextlib.AbstractContextManager[int]:
        return locked(self._folder / "lock", wait=self._wait, what=f"the list of claims in {self._folder}")

    def _owner(self, root: Path) -> str | None:
        try:
            return str(json.loads(self._path(root).read_bytes())["episode"])
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None

    def _path(self, root: Path) -> Path:
        return self._folder / f"{tree_key(root)}.json"
