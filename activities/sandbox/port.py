"""Sandbox interface."""

import os
import platform
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import NotRequired, Protocol, TypedDict, Unpack

import psutil

from activities.process import Callbacks, ProcessRequest, ProcessResult
from tightloop.errors import SettingsError, TightloopError
from tightloop.settings import SandboxSettings

MEBIBYTE = 1024 * 1024


class SandboxUnavailableError(TightloopError):
    """No sandbox works on this host and `sandbox.unsafe_local` is not set. Nothing ran."""


class Enforcement(StrEnum):
    """Enforcement level of a limit."""

    HARD = "hard"
    """By the kernel: it cannot be exceeded, not even for a moment."""
    SOFT = "soft"
    """By sampling, by a default that the command could undo, or per process."""
    MISSING = "missing"


class Limit(StrEnum):
    """Limits of a sandbox."""

    NETWORK = "network"
    """Everything except the listed hosts: TCP, UDP, Unix sockets, the host's loopback."""
    WRITES = "writes"
    """Writes outside the writable folders."""
    READS = "reads"
    """Reads of the home folder and of other secrets of the host."""
    GIT = "git"
    """Writes to `.git` of the working tree."""
    PROCESSES = "processes"
    MEMORY = "memory"
    CORES = "cores"
    DISK = "disk"
    """Size of one file, and of the temporary folder."""
    GROWTH = "growth"
    """Total size added to the writable folders."""
    OUTPUT = "output"
    WALL_TIME = "wall_time"
    DESCENDANTS = "descendants"
    """No process outlives the command."""
    NAMESPACES = "namespaces"
    """No new namespaces, no mounts, no added capabilities."""


@dataclass(frozen=True, kw_only=True)
class SandboxSpec:
    """A command with its permissions and limits. Paths are absolute, and the same inside and outside."""

    argv: tuple[str, ...]
    root: Path
    """Working folder; writable except its `.git`. tightloop's state home is neither readable nor writable."""
    content: Path | None = None
    """Folder mounted at `root`; None: `root` itself. On platforms without mounts the command works in this folder
    instead."""
    mounts: tuple[tuple[Path, Path], ...] = ()
    """Read-only files and folders: source, and path within `root`."""
    readable: tuple[Path, ...] = ()
    """Readable in addition to the system's programs and libraries, Python's own folders and those in PATH."""
    writable: tuple[Path, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    """Added to the allow-list of `activities/process/__init__.py`, with precedence."""
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The same for variables that may look like secrets, each named by a person."""
    stdin: Path | None = None
    network: tuple[str, ...] = ()
    """Reachable hosts, in the syntax of `sandbox.network`; the rest of the network is blocked."""
    cores: float = 1.0
    memory_bytes: int = 1024 * MEBIBYTE
    processes: int = 256
    wall_limit_s: float = 600.0
    idle_limit_s: float | None = None
    output_bytes: int = MEBIBYTE
    """Bytes of output to keep; a command that writes 64 times as much is killed."""
    file_bytes: int = 100 * MEBIBYTE
    growth_bytes: int = 8192 * MEBIBYTE
    """Limit on data added to the writable folders."""
    temporary_bytes: int = 256 * MEBIBYTE
    grace_s: float = 3.0


@dataclass(frozen=True, kw_only=True)
class SandboxResult(ProcessResult):
    """Result of a sandboxed command."""

    backend: str = ""
    limits: Mapping[Limit, Enforcement] = field(default_factory=dict)
    """Enforcement of each limit in this run."""


class Sandbox(Protocol):
    """Runs commands in a sandbox."""

    @property
    def name(self) -> str:
        """`docker`, `bubblewrap`, `sandbox-exec` or `unsafe-local`."""
        ...

    def probe(self) -> str:
        """Run a harmless command; return "" on success, else the problem and its fix."""
        ...

    def run(self, spec: SandboxSpec, **callbacks: Unpack[Callbacks]) -> SandboxResult:
        """Run a command to its end; its process tree has ended on return. Arguments as for `run_process`.

        Raises:
            SandboxUnavailableError: no sandbox works on this host; nothing ran.
        """
        ...


class SandboxPermissions(TypedDict):
    """Permissions of a sandboxed agent; see `Fence.around`."""

    writable: tuple[Path, ...]
    readable: NotRequired[tuple[Path, ...]]
    network: NotRequired[tuple[str, ...]]
    nested: NotRequired[bool]


class AgentSandbox(Protocol):
    """A sandbox around an agent that has none of its own."""

    @property
    def name(self) -> str:
        """`bubblewrap`, `sandbox-exec` or `none`."""
        ...

    def can_nest(self) -> bool:
        """Run a second sandbox inside this one; return whether that worked."""
        ...

    def wrap(
        self, request: ProcessRequest, **openings: Unpack[SandboxPermissions]
    ) -> AbstractContextManager[ProcessRequest]:
        """Yield the request for the same program in the sandbox; leaving the context closes its proxy.

        Only `writable` (the working tree except its `.git`, the agent's home) can be written; the user's home is hidden
        except `readable`; the process tree dies with its first process if the platform supports that. The network is
        limited to `network` and the hosts in the settings (`sandbox.network`). With `nested` it may create namespaces,
        so that its own sandbox works inside; see `nests`.

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
    """Return the spec of a command within the limits of the settings.

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
    """Return the files and folders of a setting; `~` is the worker's home.

    Raises:
        SettingsError: a path is not absolute or does not exist.
    """
    locations = tuple(Path(path).expanduser() for path in paths)
    for location in locations:
        if not location.is_absolute() or not location.exists():
            raise SettingsError(
                f"{what} names {str(location)!r}, which is not absolute or does not exist. "
                f"Create it, or correct {what} in the settings and restart the worker"
            )
    return locations


_CLOCK_SLACK_S = 3
"""Start times are derived from the boot time, which shifts with clock corrections."""


def this_process() -> str:
    """Return `<pid>-<start time>`, which stays unique when the pid is reused."""
    return f"{os.getpid()}-{int(psutil.Process().create_time())}"


def is_alive(owner: str) -> bool:
    """Return whether a process of this host still runs; True for names of any other form."""
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
    """Return an id of this pid namespace: in another container the same pids mean other processes."""
    try:
        return f"{platform.node()}-{os.stat('/proc/self/ns/pid').st_ino}"  # noqa: PTH116
    except OSError:
        return platform.node()
