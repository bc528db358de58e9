"""The sandbox interface."""

import os
import platform
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import NotRequired, Protocol, TypedDict, Unpack

import psutil

from activities.process import Callbacks, ProcessRequest, ProcessResult
from tightloop.episode.proof.files import is_cache
from tightloop.errors import SettingsError, TightloopError
from tightloop.host import private_folder, state_home
from tightloop.settings import SandboxSettings

MEBIBYTE = 1024 * 1024
GIT_INSIDE = Path("/run/tightloop.git")
"""Path at which commands in a worktree see their private git folder."""
GIT_SETTINGS = Path(__file__).with_name("gitconfig")
"""The system's git settings in a sandbox, with an identity for commits."""


class SandboxUnavailableError(TightloopError):
    """Raised when no sandbox works on this host and `sandbox.unsafe_local` is not set. Nothing was run."""


class Enforcement(StrEnum):
    """The degree to which a limit is enforced."""

    HARD = "hard"
    """Enforced by the kernel. The limit cannot be exceeded, not even for a moment."""
    SOFT = "soft"
    """Enforced by sampling, by a default that the command could undo, or per process."""
    MISSING = "missing"


class Limit(StrEnum):
    """The limits of a sandbox."""

    NETWORK = "network"
    """Blocks everything except the listed hosts, including TCP, UDP, Unix sockets and the host's loopback."""
    WRITES = "writes"
    """Blocks writes outside the writable folders."""
    READS = "reads"
    """Blocks reads of the home folder and of the host's other secrets."""
    GIT = "git"
    """Blocks writes to `.git` in the working tree."""
    PROCESSES = "processes"
    MEMORY = "memory"
    CORES = "cores"
    DISK = "disk"
    """Limits the size of a single file and of the temporary folder."""
    GROWTH = "growth"
    """Limits the total size added to the writable folders."""
    OUTPUT = "output"
    WALL_TIME = "wall_time"
    DESCENDANTS = "descendants"
    """Ensures that no process outlives the command."""
    NAMESPACES = "namespaces"
    """Blocks new namespaces, mounts and added capabilities."""


@dataclass(frozen=True, kw_only=True)
class SandboxSpec:
    """A command to run, with its permissions and limits.

    Paths are absolute, and are the same inside and outside the sandbox.
    """

    argv: tuple[str, ...]
    root: Path
    """The working folder, which is writable except for its `.git`. tightloop's state home is neither readable nor
    writable."""
    content: Path | None = None
    """The folder to mount at `root`. If None, `root` itself is used. On platforms without mounts, the command works in
    this folder instead."""
    mounts: tuple[tuple[Path, Path], ...] = ()
    """Read-only files and folders, as pairs of the source and the path within `root`."""
    scratch: bool = False
    """True if the command may write to the folders in `mounts`. What it writes there is lost. Only sandboxes that show
    worktrees at the workspace's path can do this.
    """
    git: Path | None = None
    """A worktree's private git folder, which is writable at `GIT_INSIDE`."""
    readable: tuple[Path, ...] = ()
    """Paths that can be read in addition to the system's programs and libraries, Python's own folders and those in
    PATH."""
    writable: tuple[Path, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables added to the allow-list in `activities/process/__init__.py`. They take precedence over it."""
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Additional variables that may look like secrets. A person has named each of them."""
    stdin: Path | None = None
    network: tuple[str, ...] = ()
    """Hosts that can be reached, in the syntax of `sandbox.network`. The rest of the network is blocked."""
    cores: float = 1.0
    memory_bytes: int = 1024 * MEBIBYTE
    processes: int = 256
    wall_limit_s: float = 600.0
    idle_limit_s: float | None = None
    output_bytes: int = MEBIBYTE
    """Number of bytes of output to keep. A command that writes 64 times as much is killed."""
    may_flood: bool = False
    """True if a command may write any amount of output. Output that is not kept is dropped while it is read."""
    file_bytes: int = 100 * MEBIBYTE
    growth_bytes: int = 8192 * MEBIBYTE
    """Limit on the data added to the writable folders."""
    temporary_bytes: int = 256 * MEBIBYTE
    grace_s: float = 3.0


@dataclass(frozen=True, kw_only=True)
class SandboxResult(ProcessResult):
    """A sandboxed command's result."""

    backend: str = ""
    limits: Mapping[Limit, Enforcement] = field(default_factory=dict)
    """Enforcement of each limit in this run."""
    scratch: str = ""
    """Sentence that explains how the command could write to the folders in `SandboxSpec.mounts`, or why it could not.
    """
    changed_package: str = ""
    """File that the command added, changed or deleted in a folder of `SandboxSpec.mounts`. Caches do not count."""


class Sandbox(Protocol):
    """Runs commands in a sandbox."""

    @property
    def name(self) -> str:
        """Name of the sandbox: `docker`, `bubblewrap`, `sandbox-exec` or `unsafe-local`."""
        ...

    def probe(self) -> str:
        """Run a harmless command to test the sandbox.

        Return "" if it works. Otherwise, return the problem and its solution.
        """
        ...

    def run(self, spec: SandboxSpec, **callbacks: Unpack[Callbacks]) -> SandboxResult:
        """Run a command to completion. The process tree has ended when this returns.

        The arguments are the same as for `run_process`.

        Raises:
            SandboxUnavailableError: no sandbox works on this host. Nothing was run.
        """
        ...


@contextmanager
def owned_folder(above: Path) -> Iterator[Path]:
    """Create a new private folder below `above`, and remove it on exit.

    Folders that dead processes left behind are also removed.
    """
    private_folder(above)
    remove_dead_folders(above)
    folder = private_folder(above / f"{this_process()}-{secrets.token_hex(4)}")
    try:
        yield folder.resolve()
    finally:
        remove_tree(folder)


def remove_dead_folders(above: Path) -> None:
    """Remove the folders left behind by dead processes."""
    for old in above.iterdir() if above.is_dir() else ():
        if not is_alive("-".join(old.name.split("-")[:2])):
            remove_tree(old)


def remove_tree(folder: Path) -> None:
    """Remove a folder, even if a command has made its files and folders read-only. Idempotent."""

    def remove_anyway(remove: Callable[[str], object], path: str, _error: object) -> None:
        with suppress(OSError):
            Path(path).parent.chmod(0o700)
            if not Path(path).is_symlink():
                Path(path).chmod(0o700)
            remove(path)

    shutil.rmtree(folder, onerror=remove_anyway)


@dataclass(frozen=True)
class Scratch:
    """Writable folders for the changes that a command makes to `mounts`.

    They are either copies or the upper layers of overlays.
    """

    folders: Mapping[Path, tuple[Path, Path]] = field(default_factory=dict)
    """Pairs of source and writable folder, by the path that the command sees."""
    note: str = ""
    """Sentence that explains how the command could write, or why it could not."""
    since_ns: int = 0
    """Time at which the copies were complete. 0 for overlays."""

    def find_change(self) -> str:
        """Find a file that the command added, changed or deleted. Return "" if nothing changed.

        Caches are ignored. A file added to a package could be loaded by later tests in the same check.
        """
        for target, (source, folder) in self.folders.items():
            if is_cache(target.name):
                continue
            # The upper layer of an overlay only contains changes; a deleted file is a device there.
            is_changed = self.since_ns == 0
            for path in _list_files(folder):
                if is_changed or (folder / path).lstat().st_ctime_ns > self.since_ns:
                    return path
            if not is_changed:
                for path in _list_files(source):
                    if not os.path.lexists(folder / path):
                        return path
        return ""


def _list_files(top: Path) -> Iterator[str]:
    """Yield the paths of all files and links in a folder, except for caches."""
    for above, folders, names in os.walk(top):
        links = [name for name in folders if Path(above, name).is_symlink()]
        for name in (*names, *links):
            path = str(Path(above, name).relative_to(top))
            if not is_cache(path):
                yield path


@contextmanager
def open_scratch(spec: SandboxSpec, *, overlays: bool = False) -> Iterator[Scratch]:
    """Set up writable folders for a command's changes to `mounts`, and remove them on exit.

    This requires `spec.scratch`. No copies are made if their total size would exceed `growth_bytes`.
    """
    # Also those within others, such as the empty folder in the place of a cache in `node_modules`.
    mounts = [mount for mount in spec.mounts if mount[1].is_relative_to(spec.root) and mount[0].is_dir()]
    if not spec.scratch or not mounts:
        yield Scratch()
        return
    size_bytes = 0 if overlays else sum(folder_size(source) for source, _ in mounts)
    if size_bytes > spec.growth_bytes:
        yield Scratch(note=f"{size_bytes / 1_000_000:.0f} MB is too much to copy (limit: sandbox.disk_mb)")
        return
    with owned_folder(state_home() / "scratch") as above:
        folders = {}
        for number, (source, target) in enumerate(mounts):
            folders[target] = (source, above / str(number))
            if overlays:
                (above / str(number)).mkdir()
                (above / f"{number}.work").mkdir()
            else:
                shutil.copytree(source, above / str(number), symlinks=True)
        (above / "marker").touch()
        since_ns = 0 if overlays else (above / "marker").stat().st_ctime_ns
        note = (
            "an overlay kept the changes" if overlays else f"{size_bytes / 1_000_000:.0f} MB were copied for the check"
        )
        yield Scratch(folders, note, since_ns)


def folder_size(folder: Path) -> int:
    """Return the total size of the files in a folder, in bytes."""
    return sum(Path(above, name).lstat().st_size for above, _, names in os.walk(folder) for name in names)


class SandboxPermissions(TypedDict):
    """The permissions of a sandboxed agent. See `AgentSandbox.wrap`."""

    writable: tuple[Path, ...]
    readable: NotRequired[tuple[Path, ...]]
    network: NotRequired[tuple[str, ...]]
    nested: NotRequired[bool]


class AgentSandbox(Protocol):
    """A sandbox for an agent that does not have its own."""

    @property
    def name(self) -> str:
        """Name of the sandbox: `bubblewrap`, `sandbox-exec` or `none`."""
        ...

    def can_nest(self) -> bool:
        """Return whether a second sandbox can run inside this one. This is tested by running one."""
        ...

    def wrap(
        self, request: ProcessRequest, **openings: Unpack[SandboxPermissions]
    ) -> AbstractContextManager[ProcessRequest]:
        """Yield a request that runs the same program in the sandbox. Leaving the context closes its proxy.

        The program can only write to `writable`: the working tree without its `.git`, and the agent's home.
        The user's home is hidden, except for `readable`. The process tree dies with its first process if the
        platform supports this. The network is limited to `network` and the hosts in the settings
        (`sandbox.network`). With `nested`, the program may create namespaces so that its own sandbox works
        inside this one. See `can_nest`.

        Raises:
            SandboxUnavailableError: no sandbox for agents works on this host.
        """
        ...


def build_spec(
    settings: SandboxSettings,
    argv: tuple[str, ...],
    root: Path,
    *,
    wall_limit_s: float,
    grace_s: float,
    output_bytes: int = MEBIBYTE,
) -> SandboxSpec:
    """Build the spec for a command, with the limits from the settings.

    Raises:
        SettingsError: the settings name a path that does not exist.
    """
    return SandboxSpec(
        argv=argv,
        root=root,
        readable=resolve_locations(settings.read, "sandbox.read"),
        writable=resolve_locations(settings.write, "sandbox.write"),
        network=settings.network,
        cores=settings.cores,
        memory_bytes=settings.memory_mb * MEBIBYTE,
        processes=settings.processes,
        growth_bytes=settings.disk_mb * MEBIBYTE,
        wall_limit_s=wall_limit_s,
        grace_s=grace_s,
        output_bytes=output_bytes,
    )


def resolve_locations(paths: Iterable[str], what: str) -> tuple[Path, ...]:
    """Resolve the files and folders that are named in a setting. `~` is the worker's home.

    Raises:
        SettingsError: a path is not absolute or does not exist.
    """
    locations = tuple(Path(path).expanduser() for path in paths)
    for location in locations:
        if not location.is_absolute() or not location.exists():
            raise SettingsError(
                f"{what} contains {str(location)!r}, which is not absolute or does not exist. Create this "
                f"path, or correct {what} in the settings and restart the worker"
            )
    return locations


_CLOCK_SLACK_S = 3
"""Tolerance in seconds for start times. They are derived from the boot time, which shifts when the clock is corrected.
"""


def this_process() -> str:
    """Return this process's id and start time as `<pid>-<start time>`.

    This name is unique even if the pid is reused.
    """
    return f"{os.getpid()}-{int(psutil.Process().create_time())}"


def is_alive(owner: str) -> bool:
    """Return whether a process on this host is still running.

    Return True if `owner` is not in the format of `this_process`.
    """
    pid, _, started = owner.partition("-")
    # Unknown names count as alive, because the caller deletes what belongs to the dead.
    if not (pid.isdigit() and started.isdigit()):
        return True
    try:
        # A pid alone is not enough: the system gives it to another process after a while.
        return abs(psutil.Process(int(pid)).create_time() - int(started)) <= _CLOCK_SLACK_S
    except psutil.NoSuchProcess:
        return False
    except psutil.Error:
        return True


def this_host() -> str:
    """Return an id for this pid namespace. In another container, the same pid refers to a different process."""
    try:
        return f"{platform.node()}-{os.stat('/proc/self/ns/pid').st_ino}"  # noqa: PTH116
    except OSError:
        return platform.node()
