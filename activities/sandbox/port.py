"""Contract of a sandbox."""

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
    """No sandbox works on this host and `sandbox.unsafe_local` is not set. Nothing was run."""


class Enforcement(StrEnum):
    """How strictly a limit is enforced."""

    HARD = "hard"
    """By the kernel: it cannot be passed, not even for a moment."""
    SOFT = "soft"
    """By watching, by a default that the command could undo, or for each process on its own."""
    MISSING = "missing"


class Limit(StrEnum):
    """The things that a sandbox limits."""

    NETWORK = "network"
    """Everything but the hosts that are listed: TCP, UDP, Unix sockets, the host's loopback."""
    WRITES = "writes"
    """Outside of the writable folders."""
    READS = "reads"
    """Of the home folder and of other secrets of the host."""
    GIT = "git"
    """Writes to `.git` of the working tree."""
    PROCESSES = "processes"
    MEMORY = "memory"
    CORES = "cores"
    DISK = "disk"
    """Size of one file, and of the temporary folder."""
    GROWTH = "growth"
    """Of all files together that it adds to the writable folders."""
    OUTPUT = "output"
    WALL_TIME = "wall_time"
    DESCENDANTS = "descendants"
    """No process outlives the command."""
    NAMESPACES = "namespaces"
    """No new namespaces, no mounts, no added capabilities."""


@dataclass(frozen=True, kw_only=True)
class SandboxSpec:
    """A command, what it may touch, and its bounds. Paths are absolute and the same inside as outside."""

    argv: tuple[str, ...]
    root: Path
    """Working folder; writable but for its `.git`. The state home of tightloop is neither seen nor written."""
    content: Path | None = None
    """The folder that the command finds at `root`; None: `root` itself. Where the platform has no mounts, the command
    works in this folder instead."""
    mounts: tuple[tuple[Path, Path], ...] = ()
    """Read-only files and folders: where they lie, and where within `root` the command finds them."""
    readable: tuple[Path, ...] = ()
    """Seen besides the system's programs and libraries, Python's own folders and those in PATH."""
    writable: tuple[Path, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    """In addition to the allow-list of `activities/process/__init__.py`; wins over it."""
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Likewise for variables that may look like secrets; each was named by a person."""
    stdin: Path | None = None
    network: tuple[str, ...] = ()
    """Hosts that it may reach, in the words of `sandbox.network`; nothing else of the network is there."""
    cores: float = 1.0
    memory_bytes: int = 1024 * MEBIBYTE
    processes: int = 256
    wall_limit_s: float = 600.0
    idle_limit_s: float | None = None
    output_bytes: int = MEBIBYTE
    """Output that is kept; a command that writes 64 times as much is ended."""
    file_bytes: int = 100 * MEBIBYTE
    growth_bytes: int = 8192 * MEBIBYTE
    """What it may add to the writable folders."""
    temporary_bytes: int = 256 * MEBIBYTE
    grace_s: float = 3.0


@dataclass(frozen=True, kw_only=True)
class SandboxResult(ProcessResult):
    """Result of a command in a sandbox."""

    backend: str = ""
    limits: Mapping[Limit, Enforcement] = field(default_factory=dict)
    """How strictly each limit was enforced in this run."""


class Sandbox(Protocol):
    """Runs commands in a sandbox."""

    @property
    def name(self) -> str:
        """`docker`, `bubblewrap`, `sandbox-exec` or `unsafe-local`."""
        ...

    def probe(self) -> str:
        """Run a harmless command; return "" when it worked, else why not and how to fix it."""
        ...

    def run(self, spec: SandboxSpec, **callbacks: Unpack[Callbacks]) -> SandboxResult:
        """Run a command to its end; nothing that it started is left. Arguments as of `run_process`.

        Raises:
            SandboxUnavailableError: no sandbox works on this host; nothing was run.
        """
        ...


class Openings(TypedDict):
    """What an agent behind a fence may touch; see `Fence.around`."""

    writable: tuple[Path, ...]
    readable: NotRequired[tuple[Path, ...]]
    network: NotRequired[tuple[str, ...]]
    nested: NotRequired[bool]


class Fence(Protocol):
    """A sandbox around an agent that has none of its own."""

    @property
    def name(self) -> str:
        """`bubblewrap`, `sandbox-exec` or `none`."""
        ...

    def nests(self) -> bool:
        """Run a second sandbox behind this fence; return whether that worked."""
        ...

    def around(self, request: ProcessRequest, **openings: Unpack[Openings]) -> AbstractContextManager[ProcessRequest]:
        """Give the request for the same program behind the fence; its way out is shut on leaving.

        Only `writable` (the working tree but for its `.git`, the agent's home) can be written; the user's home is
        not seen but for `readable`; the process tree dies with its first process where the platform can do that.
        Of the network it reaches `network` and what the settings list (`sandbox.network`), nothing else of this host.
        With `nested` it may make namespaces, so that a sandbox of its own works inside; see `nests`.

        Raises:
            SandboxUnavailableError: no fence works on this host.
        """
        ...


def allowed(
    settings: SandboxSettings,
    argv: tuple[str, ...],
    root: Path,
    *,
    wall_limit_s: float,
    grace_s: float,
    output_bytes: int = MEBIBYTE,
) -> SandboxSpec:
    """Return the spec of a command within the bounds of the settings.

    Raises:
        SettingsError: the settings name a path that does not exist.
    """
    return SandboxSpec(
        argv=argv,
        root=root,
        readable=places(settings.read, "sandbox.read"),
        writable=places(settings.write, "sandbox.write"),
        network=settings.network,
        cores=settings.cores,
        memory_bytes=settings.memory_mb * MEBIBYTE,
        processes=settings.processes,
        growth_bytes=settings.disk_mb * MEBIBYTE,
        wall_limit_s=wall_limit_s,
        grace_s=grace_s,
        output_bytes=output_bytes,
    )


def places(paths: Iterable[str], what: str) -> tuple[Path, ...]:
    """Return the files and folders of a setting; `~` is the worker's home.

    Raises:
        SettingsError: one is not absolute or does not exist.
    """
    found = tuple(Path(path).expanduser() for path in paths)
    for place in found:
        if not place.is_absolute() or not place.exists():
            raise SettingsError(
                f"{what} names {str(place)!r}, which is not absolute or does not exist. "
                f"Create it, or correct {what} in the settings and restart the worker"
            )
    return found


_CLOCK_SLACK_S = 3
"""Start times are derived from the boot time, which moves with corrections of the clock."""


def this_process() -> str:
    """Return `<pid>-<start time>`: the pid may be another's later, its start time may not."""
    return f"{os.getpid()}-{int(psutil.Process().create_time())}"


def lives(owner: str) -> bool:
    """Return whether a process of this host is still there; True also for a name of another form."""
    pid, _, started = owner.partition("-")
    if not (pid.isdigit() and started.isdigit()):
        return True
    try:
        return abs(psutil.Process(int(pid)).create_time() - int(started)) <= _CLOCK_SLACK_S
    except psutil.NoSuchProcess:
        return False
    except psutil.Error:
        return True


def this_host() -> str:
    """Return where pids mean what they mean here: another container has the same pids for other processes."""
    try:
        return f"{platform.node()}-{os.stat('/proc/self/ns/pid').st_ino}"  # noqa: PTH116
    except OSError:
        return platform.node()
