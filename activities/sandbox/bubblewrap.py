"""Walls on Linux: bubblewrap gives a command namespaces of its own, for about four milliseconds."""

import functools
import os
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from activities.process import ProcessRequest, ProcessResult, Reason, run_process, search_path
from activities.sandbox.bounds import WATCHED, request_of, run_bounded
from activities.sandbox.port import Enforcement, ExitReason, Limit, Network, SandboxResult, SandboxSpec
from activities.sandbox.seccomp import open_filter
from activities.sandbox.visible import (
    NETWORK_SETTINGS,
    STATE_FOLDER,
    SYSTEM_LINKS,
    SYSTEM_SETTINGS,
    git_folders,
    path_folders,
    program_folders,
    project_python,
    python_folders,
)

NAME = "bubblewrap"
PROGRAM = "bwrap"
PROBE_S = 10.0
NOBODY = "65534"
SHARED_BYTES = 64 * 1024 * 1024
"""Size of /dev/shm."""
HIDDEN_BYTES = 1024 * 1024
FENCE_TEMPORARY_BYTES = 1024 * 1024 * 1024
HOW_TO_GET = (
    "Install it: apt-get install bubblewrap (Debian, Ubuntu), dnf install bubblewrap (Fedora). On Ubuntu 24.04 and "
    "newer AppArmor forbids it namespaces: apt-get install apparmor-profiles, then link "
    "/usr/share/apparmor/extra-profiles/bwrap-userns-restrict into /etc/apparmor.d and reload AppArmor. In a container "
    "the runtime has to allow user namespaces"
)

_VERSION = re.compile(r"(\d+)\.(\d+)")
_SIZES_FROM = (0, 7)
_NO_NAMESPACES_FROM = (0, 8)
_OWN_COUNT_FROM = (5, 14)
"""Since Linux 5.14 RLIMIT_NPROC counts the processes of a user namespace, before all of the user."""


@dataclass(frozen=True, kw_only=True)
class Walls:
    """What a command behind bubblewrap sees, and how much of it it may write."""

    root: Path
    path: str
    program: str
    writable: tuple[Path, ...]
    readable: tuple[Path, ...]
    network: Network
    temporary_bytes: int
    processes: int | None = None
    """Kept by the kernel where it counts them by user namespace and the worker is not root."""


class BubblewrapSandbox:
    """Runs each command in namespaces of its own, limits by control groups where the worker may make them."""

    @property
    def name(self) -> str:
        """`bubblewrap`."""
        return NAME

    def probe(self) -> str:
        """Run `true` behind the walls."""
        return _probe()

    def run(
        self,
        spec: SandboxSpec,
        *,
        cancelled: Callable[[], bool],
        started: Callable[[int], None],
        on_output: Callable[[bytes], None] | None = None,
    ) -> SandboxResult:
        """Run a command; see the port."""
        environment = {**search_path(spec.root), **_inside(), **spec.environment}
        if problem := _unusable(spec, environment["PATH"]):
            return SandboxResult(reason=ExitReason.NOT_STARTED, message=problem, backend=NAME)
        walls = Walls(
            root=spec.root,
            path=environment["PATH"],
            program=spec.argv[0],
            writable=(spec.root, *spec.writable),
            readable=spec.readable,
            network=spec.network,
            temporary_bytes=spec.temporary_bytes,
            processes=spec.processes if _counts_by_namespace() else None,
        )
        run = functools.partial(run_process, cancelled=cancelled, started=started, on_output=on_output)
        with open_filter() as calls:
            request = request_of(spec, (*wall_line(walls, calls), *spec.argv), environment)
            request = replace(request, pass_fds=() if calls is None else (calls,))
            limits = _limits(walls, filtered=calls is not None)
            return replace(run_bounded(request, spec, limits, run=run, grouped=True), backend=NAME)


class BubblewrapFence:
    """The same walls for an agent that lives long and needs the network; its bounds are the caller's business."""

    @property
    def name(self) -> str:
        """`bubblewrap`."""
        return NAME

    def around(
        self, request: ProcessRequest, *, writable: tuple[Path, ...], readable: tuple[Path, ...] = ()
    ) -> ProcessRequest:
        """Return the request for the same program behind the fence; see the port."""
        path = request.environment.get("PATH") or os.environ.get("PATH", os.defpath)
        walls = Walls(
            root=request.cwd,
            path=path,
            program=request.argv[0],
            writable=writable,
            readable=readable,
            network=Network.HOST,
            temporary_bytes=FENCE_TEMPORARY_BYTES,
        )
        environment = {"TMPDIR": "/tmp", **request.environment}  # noqa: S108 - there is no other inside
        return replace(request, argv=(*wall_line(walls), *request.argv), environment=environment)


def wall_line(walls: Walls, calls: int | None = None) -> tuple[str, ...]:
    """Return the command line of bubblewrap up to the command. Later mounts lie on top of earlier ones.

    Args:
        walls: what is seen and written.
        calls: descriptor of a filter of system calls, which bubblewrap inherits.
    """
    return (
        PROGRAM,
        *_namespaces(walls.network),
        *_system(walls),
        *_binds("--ro-bind", _programs(walls)),
        *_writable(walls),
        *_binds("--ro-bind", walls.readable),
        *_closed(walls.writable),
        *(() if calls is None else ("--seccomp", str(calls))),
        *("--chdir", str(walls.root), "--"),
        *_counted(walls.processes),
    )


def _namespaces(network: Network) -> Iterator[str]:
    yield from ("--unshare-all", "--unshare-user", "--uid", NOBODY, "--gid", NOBODY, "--hostname", "sandbox")
    yield from ("--cap-drop", "ALL", "--die-with-parent", "--new-session")
    if network is Network.HOST:
        yield "--share-net"
    if _version() >= _NO_NAMESPACES_FROM:
        yield "--disable-userns"


def _system(walls: Walls) -> Iterator[str]:
    yield from ("--ro-bind", "/usr", "/usr")
    for link in map(Path, SYSTEM_LINKS):
        if link.is_symlink():
            yield from ("--symlink", os.readlink(link), str(link))  # noqa: PTH115
        elif link.is_dir():
            yield from ("--ro-bind", str(link), str(link))
    names = (*SYSTEM_SETTINGS, *(NETWORK_SETTINGS if walls.network is Network.HOST else ()))
    yield from _binds("--ro-bind", (path for name in names if (path := Path("/etc", name)).exists()))
    yield from ("--proc", "/proc", "--dev", "/dev")
    yield from _tmpfs("/dev/shm", min(SHARED_BYTES, walls.temporary_bytes))  # noqa: S108
    yield from _tmpfs("/tmp", walls.temporary_bytes)  # noqa: S108


def _tmpfs(place: str, size_bytes: int) -> tuple[str, ...]:
    size = ("--size", str(size_bytes)) if _version() >= _SIZES_FROM else ()
    return (*size, "--tmpfs", place)


def _programs(walls: Walls) -> Iterable[Path]:
    return dict.fromkeys(
        (
            *python_folders(),
            *project_python(walls.root),
            *path_folders(walls.path, walls.root),
            *program_folders(walls.program, walls.path, walls.root),
        )
    )


def _writable(walls: Walls) -> Iterator[str]:
    """Yield the writable folders, outer before inner, each with mounts over what may not be written or seen."""
    for folder in sorted(set(walls.writable)):
        yield from _binds("--bind", (folder,))
        yield from _binds("--ro-bind", git_folders(folder, tree=folder == walls.root))
        yield from (part for state in _states(folder) for part in _tmpfs(str(state), HIDDEN_BYTES))


def _closed(folders: Iterable[Path]) -> Iterator[str]:
    """Yield what ends the writing in the folders that only hold mounts; last, as mounts make folders there."""
    states = (state for folder in sorted(set(folders)) for state in _states(folder))
    # /proc/sys of a root worker could be written although no capability is left: its owner is asked for, by number.
    yield from (part for place in (*states, "/proc", "/dev", "/") for part in ("--remount-ro", str(place)))


def _states(folder: Path) -> Iterator[Path]:
    state = folder / STATE_FOLDER
    if state.is_dir() and not state.is_symlink():
        yield state


def _binds(option: str, places: Iterable[Path]) -> Iterator[str]:
    for place in places:
        yield from (option, str(place), str(place))


def _counted(processes: int | None) -> tuple[str, ...]:
    """Return the start of a command line that sets RLIMIT_NPROC behind the walls, where nobody else counts."""
    return () if processes is None else ("prlimit", f"--nproc={processes}", "--")


def _limits(walls: Walls, *, filtered: bool) -> dict[Limit, Enforcement]:
    hard = Enforcement.HARD
    limits = {**WATCHED, Limit.WRITES: hard, Limit.READS: hard, Limit.DESCENDANTS: hard, Limit.GIT: hard}
    if (walls.root / ".git").is_symlink():
        limits[Limit.GIT] = Enforcement.MISSING
    if not filtered:
        # The keyrings of the worker's session are in no namespace.
        limits[Limit.READS] = Enforcement.SOFT
    if walls.network is Network.NONE:
        limits[Limit.NETWORK] = hard
    if walls.processes is not None:
        limits[Limit.PROCESSES] = hard
    if _version() >= _SIZES_FROM:
        limits[Limit.DISK] = hard
    if _version() >= _NO_NAMESPACES_FROM:
        limits[Limit.NAMESPACES] = hard
    return limits


def _inside() -> dict[str, str]:
    return {"HOME": "/tmp", "TMPDIR": "/tmp", "USER": "nobody", "LOGNAME": "nobody"}  # noqa: S108


def _unusable(spec: SandboxSpec, path: str) -> str:
    """Return why a command cannot start, in the words of `run_process`: bubblewrap's own name neither side."""
    if not spec.argv or not spec.argv[0]:
        return "there is no program in the command"
    if not spec.root.is_dir():
        return f"the working folder {spec.root} is not there"
    program = spec.argv[0]
    if shutil.which(str(spec.root / program) if os.sep in program else program, path=path) is None:
        return f"program {program!r} was not found"
    gone = [place for place in (*spec.readable, *spec.writable) if not place.exists()]
    return f"{gone[0]} is not there: correct the list of what commands may read and write" if gone else ""


@functools.cache
def _version() -> tuple[int, int]:
    try:
        done = subprocess.run((PROGRAM, "--version"), capture_output=True, text=True, timeout=PROBE_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return (0, 0)
    found = _VERSION.search(done.stdout)
    return (int(found[1]), int(found[2])) if found else (0, 0)


@functools.cache
def _counts_by_namespace() -> bool:
    found = _VERSION.match(platform.release())
    since = found is not None and (int(found[1]), int(found[2])) >= _OWN_COUNT_FROM
    return since and os.geteuid() != 0 and shutil.which("prlimit", path="/usr/bin:/bin") is not None


def _probe() -> str:
    if shutil.which(PROGRAM) is None:
        return f"program {PROGRAM!r} was not found. {HOW_TO_GET}"
    _version.cache_clear()
    with tempfile.TemporaryDirectory() as folder:
        request = ProcessRequest(argv=("true",), cwd=Path(folder), wall_limit_s=PROBE_S, inherit=False)
        root = Path(folder).resolve()
        walls = Walls(
            root=root,
            path=os.environ.get("PATH", os.defpath),
            program="true",
            writable=(root,),
            readable=(),
            network=Network.NONE,
            temporary_bytes=1024 * 1024,
            processes=64 if _counts_by_namespace() else None,
        )
        result = run_process(
            replace(request, argv=(*wall_line(walls), "true"), cwd=root), cancelled=lambda: False, started=_nobody
        )
    return "" if result.exit_code == 0 else f"{PROGRAM} does not work here: {_words(result)}. {HOW_TO_GET}"


def _nobody(pid: int) -> None:
    """Nobody has to know the pid of a probe: it is over within its time limit."""


def _words(result: ProcessResult) -> str:
    said = result.output.decode("utf-8", "replace").strip()[-300:] or result.message
    return said.rstrip(".") or (f"exit code {result.exit_code}" if result.reason is Reason.EXITED else result.reason)
