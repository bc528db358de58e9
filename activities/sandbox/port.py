"""The ports of the sandbox: one command behind walls, and a fence for a long-living agent."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from activities.process import ProcessRequest
from tightloop.errors import TightloopError

MEBIBYTE = 1024 * 1024


class SandboxUnavailableError(TightloopError):
    """No sandbox works on this host and `sandbox.unsafe_local` is not set. Nothing was run."""


class Network(StrEnum):
    """What of the network a command sees."""

    NONE = "none"
    HOST = "host"


class Enforcement(StrEnum):
    """How surely a limit holds."""

    HARD = "hard"
    """By the kernel: it cannot be passed, not even for a moment."""
    SOFT = "soft"
    """By watching, by a default that the command could undo, or for each process on its own."""
    MISSING = "missing"


class Limit(StrEnum):
    """The things that a sandbox limits."""

    NETWORK = "network"
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
    OUTPUT = "output"
    WALL_TIME = "wall_time"
    DESCENDANTS = "descendants"
    """No process outlives the command."""
    NAMESPACES = "namespaces"
    """No new namespaces, no mounts, no added capabilities."""


class ExitReason(StrEnum):
    """Why the command is no longer running."""

    EXITED = "exited"
    WALL_LIMIT = "wall_limit"
    IDLE_LIMIT = "idle_limit"
    MEMORY_LIMIT = "memory_limit"
    PROCESS_LIMIT = "process_limit"
    OUTPUT_LIMIT = "output_limit"
    CANCELLED = "cancelled"
    NOT_STARTED = "not_started"


@dataclass(frozen=True, kw_only=True)
class SandboxSpec:
    """A command, what it may touch, and its bounds. Paths are absolute and the same inside as outside."""

    argv: tuple[str, ...]
    root: Path
    """Working folder; writable but for its `.git` and the state folder of tightloop in it."""
    readable: tuple[Path, ...] = ()
    """Seen besides the system's programs and libraries, Python's own folders and those in PATH."""
    writable: tuple[Path, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    """In addition to the allow-list of `activities/process.py`; wins over it."""
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Likewise for variables that may look like secrets; each was named by a person."""
    stdin: Path | None = None
    network: Network = Network.NONE
    cores: float = 1.0
    memory_bytes: int = 1024 * MEBIBYTE
    processes: int = 256
    wall_limit_s: float = 300.0
    idle_limit_s: float | None = None
    output_bytes: int = MEBIBYTE
    """What is kept; a command that writes 64 times as much is ended."""
    file_bytes: int = 100 * MEBIBYTE
    temporary_bytes: int = 256 * MEBIBYTE
    grace_s: float = 3.0


@dataclass(frozen=True, kw_only=True)
class SandboxResult:
    """What is left of a command."""

    reason: ExitReason
    exit_code: int | None = None
    """Only where it exited by itself; negative: the signal that killed it."""
    output: bytes = field(default=b"", repr=False)
    cut: bool = False
    duration_s: float = 0.0
    cpu_s: float | None = None
    peak_memory_bytes: int | None = None
    """None where the backend cannot tell."""
    survivors_ended: int = 0
    message: str = ""
    """Why it was not started, or what could not be ended."""
    backend: str = ""
    limits: Mapping[Limit, Enforcement] = field(default_factory=dict)
    """How surely each limit held in this run."""


class Sandbox(Protocol):
    """Runs commands behind walls."""

    @property
    def name(self) -> str:
        """`docker`, `bubblewrap`, `sandbox-exec` or `unsafe-local`."""
        ...

    def probe(self) -> str:
        """Run a harmless command; return "" when it worked, else why not and how to mend it."""
        ...

    def run(
        self,
        spec: SandboxSpec,
        *,
        cancelled: Callable[[], bool],
        started: Callable[[int], None],
        on_output: Callable[[bytes], None] | None = None,
    ) -> SandboxResult:
        """Run a command to its end; nothing that it started is left. Arguments as of `run_process`.

        Raises:
            SandboxUnavailableError: no sandbox works on this host; nothing was run.
        """
        ...


class Fence(Protocol):
    """Walls around an agent that has none of its own: it sees the network, and writes only where it may."""

    @property
    def name(self) -> str:
        """`bubblewrap`, `sandbox-exec` or `none`."""
        ...

    def around(
        self, request: ProcessRequest, *, writable: tuple[Path, ...], readable: tuple[Path, ...] = ()
    ) -> ProcessRequest:
        """Return the request for the same program behind the fence.

        Only `writable` (the working tree but for its `.git`, the agent's home) can be written; the user's home is
        not seen but for `readable`; the process tree dies with its first process where the platform can do that.

        Raises:
            SandboxUnavailableError: no fence works on this host.
        """
        ...
