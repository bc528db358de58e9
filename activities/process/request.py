"""Request and result of a child process."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, NotRequired, TypedDict

from activities.process.growth import Growth
from activities.process.output import OUTPUT_BYTES
from tightloop.host.programs import TrustedProgram

if TYPE_CHECKING:
    from activities.process.start import Shim

GRACE_S = 3.0
"""Time between SIGTERM and SIGKILL."""


class Reason(StrEnum):
    """Why a process ended."""

    EXITED = "exited"
    WALL_LIMIT = "wall_limit"
    IDLE_LIMIT = "idle_limit"
    MEMORY_LIMIT = "memory_limit"
    PROCESS_LIMIT = "process_limit"
    OUTPUT_LIMIT = "output_limit"
    DISK_LIMIT = "disk_limit"
    CANCELLED = "cancelled"
    NOT_STARTED = "not_started"


class Callbacks(TypedDict):
    """Callbacks of a running process; see `run_process`."""

    cancelled: Callable[[], bool]
    started: Callable[[int], None]
    on_output: NotRequired[Callable[[bytes], None] | None]


@dataclass(frozen=True)
class ProjectProgram:
    """A program that runs with the rights of the worker, and is looked up along the PATH of the request.

    Only for commands of a project where a person wanted no sandbox.
    """

    name: str

    def __str__(self) -> str:
        """Return the name, as `argv` has it."""
        return self.name


@dataclass(frozen=True, kw_only=True)
class ProcessRequest:
    """A program to run, without a shell unless it is one."""

    program: TrustedProgram | ProjectProgram
    """What is started outside of a sandbox. A command inside stands in the arguments of the sandbox's program."""
    arguments: tuple[str, ...] = ()
    cwd: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    """In addition to the allow-list; wins over it. Names that look like secrets are refused."""
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Variables that may look like secrets, each named by who starts the program; shown in no message."""
    inherit: bool = True
    """False: of the allow-list only PATH, LANG, LC_*, TZ and the certificates; the rest stands in `environment`."""
    stdin: Path | None = None
    """File to read from; None: end of file at once."""
    wall_limit_s: float = 3600.0
    idle_limit_s: float | None = None
    """Longest time without output."""
    grace_s: float = GRACE_S
    output_bytes: int = OUTPUT_BYTES
    separate_errors: bool = False
    """Standard error goes to `ProcessResult.errors` and not among the output."""
    output_limit_bytes: int | None = None
    """A program that writes more, to both streams together, is ended at once."""
    memory_limit_bytes: int | None = None
    """Watched twice a second over the whole tree (sum of resident memory); a program that needs more is ended at once.

    What processes share counts for each of them.
    """
    process_limit: int | None = None
    """Watched likewise. Between two looks a fork bomb may pass it: only a control group holds that one."""
    growth: Growth | None = None
    """What it may add to folders, watched likewise: a fast writer gets a second or two beyond it."""
    resources: Mapping[int, int] = field(default_factory=dict)
    """`resource.RLIMIT_*` to soft and hard limit, set before the program starts; a lower hard limit of ours stays."""
    cores: int | None = None
    """Number of cores that it may be scheduled on (Linux)."""
    cgroups: tuple[Path, ...] = ()
    """Folders of control groups that it joins before it starts."""
    files: Mapping[int, bytes] = field(default_factory=dict)
    """Descriptor, above 9, to the content that it finds there (Linux)."""
    options_at: int | None = None
    """Descriptor at which bubblewrap finds the variables of the command inside as its options; see `inner_options`.

    Variables such as LD_PRELOAD act on every program that has them: the sandbox itself, outside, has none of them.
    """
    shim: "Shim | None" = None
    """A supervisor that `prepare` started ahead: with these control groups, without input, errors not apart."""


@dataclass(frozen=True, kw_only=True)
class ProcessResult:
    """Result of a process."""

    reason: Reason
    exit_code: int | None = None
    """Only where it exited by itself; negative: the signal that killed it."""
    output: bytes = field(default=b"", repr=False)
    """Both streams as they came, at most `output_bytes`; standard output alone with `separate_errors`."""
    errors: bytes = field(default=b"", repr=False)
    """Standard error with `separate_errors`, at most 64 kB of its end."""
    cut: bool = False
    """Output is missing; a line in it says how much."""
    duration_s: float = 0.0
    survivors_ended: int = 0
    """Other processes that outlived the program and were ended."""
    cpu_s: float | None = None
    """Of the whole tree, as far as it was seen; None where the platform does not tell."""
    peak_memory_bytes: int | None = None
    """Resident memory of the largest process, or of the whole tree where a limit was watched; at least the 10 MB
    of the process from which the program was forked."""
    message: str = ""
    """Why it was not started or ran into a limit of ours, or which processes could not be ended."""
