"""Sandbox that uses bubblewrap."""

import functools
import os
import platform
import re
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from errno import EAFNOSUPPORT, ENOSYS, EPERM
from pathlib import Path
from typing import Unpack

from activities.process import Callbacks, ProcessRequest, Reason, run_process, search_path
from activities.sandbox.control_group import (
    UNSANDBOXED_LIMITS,
    refuse_untrusted_program,
    request_of,
    require_program,
    run_with_limits,
)
from activities.sandbox.port import (
    GIT_INSIDE,
    GIT_SETTINGS,
    Enforcement,
    Limit,
    SandboxPermissions,
    SandboxResult,
    SandboxSpec,
    SandboxUnavailableError,
    Scratch,
    open_scratch,
    owned_folder,
)
from activities.sandbox.proxy import INSIDE, EgressProxy, open_proxy
from activities.sandbox.visible import (
    SYSTEM_LINKS,
    SYSTEM_SETTINGS,
    Access,
    agent_access,
    at_workspace,
    command_access,
    git_folders,
)
from tightloop.host import state_home

_LOAD_WORD = 0x20
_JUMP_EQUAL = 0x15
_JUMP_FROM = 0x35
_RETURN = 0x06
_ALLOW = 0x7FFF0000
_ERROR = 0x00050000
_NUMBER_AT, _ARCHITECTURE_AT, _FIRST_ARGUMENT_AT = 0, 4, 16
"""Offsets in `struct seccomp_data`: the system call's number, the architecture and the lower half of the first
argument.

The lower half is at this offset because all supported machines are little-endian. The kernel reads an address family
from these 32 bits only.
"""
SOCKET_FAMILIES = (1, 2, 10, 16)
"""AF_UNIX, AF_INET, AF_INET6 and AF_NETLINK, which lets getifaddrs(3) and name look-ups see the sandbox's own
interfaces. These are numbers because Python knows only the constants of its build system."""
_OTHER_NUMBERING = 0x40000000
"""Lowest system call number of x86-64's x32 variant, which a list of numbers would miss."""


# AUDIT_ARCH number, numbers of socket and socketpair, and those of the blocked calls: keyrings, bpf, perf_event_open,
# userfaultfd, io_uring, kernel modules, kexec, open_by_handle_at, mounts and namespaces, swap, reboot, quotactl, acct,
# syslog.
_MACHINES: dict[str, tuple[int, tuple[int, int], tuple[int, ...]]] = {
    "x86_64": (
        0xC000003E,
        (41, 53),
        (248, 249, 250, 321, 298, 323, 425, 426, 427, 175, 176, 313, 246, 320, 304, 165, 166, 155, 428, 429, 430, 431,
         432, 272, 308, 167, 168, 169, 179, 163, 103),
    ),
    "aarch64": (
        0xC00000B7,
        (198, 199),
        (217, 218, 219, 280, 241, 282, 425, 426, 427, 105, 106, 273, 104, 294, 265, 40, 39, 41, 428, 429, 430, 431,
         432, 97, 268, 224, 225, 142, 60, 89, 116),
    ),
}  # fmt: skip

_NESTING: dict[str, frozenset[int]] = {
    "x86_64": frozenset({165, 166, 155, 272}),
    "aarch64": frozenset({40, 39, 41, 97}),
}
"""System call numbers of mount, umount2, pivot_root and unshare, by machine."""


def filter_of(machine: str, *, nested: bool = False) -> bytes | None:
    """Build the seccomp filter for a machine type, as printed by `uname -m`.

    Return None if the machine's system call numbers are unknown. With `nested`, the filter permits the mounts and
    namespaces that a second, nested bubblewrap needs.
    """
    if machine not in _MACHINES:
        return None
    architecture, sockets, calls = _MACHINES[machine]
    calls = tuple(call for call in calls if not nested or call not in _NESTING[machine])
    families = len(SOCKET_FAMILIES)
    lines = [
        (_LOAD_WORD, 0, 0, _ARCHITECTURE_AT),
        (_JUMP_EQUAL, 1, 0, architecture),
        # ENOSYS and not EPERM: programs then take the code path for old kernels.
        (_RETURN, 0, 0, _ERROR | ENOSYS),
        (_LOAD_WORD, 0, 0, _NUMBER_AT),
        (_JUMP_FROM, 0, 1, _OTHER_NUMBERING),
        (_RETURN, 0, 0, _ERROR | ENOSYS),
        # Jump to the last line, past the rest of the list, the families and the allow line.
        *((_JUMP_EQUAL, len(calls) - index + families + 5, 0, number) for index, number in enumerate(calls)),
        (_JUMP_EQUAL, 2, 0, sockets[0]),
        (_JUMP_EQUAL, 1, 0, sockets[1]),
        (_RETURN, 0, 0, _ALLOW),
        (_LOAD_WORD, 0, 0, _FIRST_ARGUMENT_AT),
        *((_JUMP_EQUAL, families - index, 0, number) for index, number in enumerate(SOCKET_FAMILIES)),
        (_RETURN, 0, 0, _ERROR | EAFNOSUPPORT),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _ERROR | EPERM),
    ]
    return b"".join(struct.pack("=HBBI", *line) for line in lines)


NAME = "bubblewrap"
PROGRAM = "bwrap"
CALLS, OPTIONS = 10, 11
"""File descriptors from which bubblewrap reads the seccomp filter and more options, which set the command's variables.
"""
PROBE_S = 10.0
PROBE_PROCESSES = 64
NOBODY = "65534"
SHARED_BYTES = 64 * 1024 * 1024
"""Size of /dev/shm."""
HIDDEN_BYTES = 1024 * 1024
AGENT_TEMPORARY_BYTES = 1024 * 1024 * 1024
HOW_TO_GET = (
    "Install bubblewrap: apt-get install bubblewrap (Debian, Ubuntu), dnf install bubblewrap (Fedora). On Ubuntu "
    "24.04 and newer, AppArmor prevents bubblewrap from creating namespaces: run apt-get install "
    "apparmor-profiles, then link /usr/share/apparmor/extra-profiles/bwrap-userns-restrict into /etc/apparmor.d "
    "and reload AppArmor. In a container, the runtime must allow user namespaces"
)

_VERSION = re.compile(r"(\d+)\.(\d+)")
_SIZES_FROM = (0, 7)
_NO_NAMESPACES_FROM = (0, 8)
_OVERLAYS_FROM = (0, 11)
_OWN_COUNT_FROM = (5, 14)
"""First Linux version (5.14) in which RLIMIT_NPROC is counted per user namespace instead of per user."""


_program = functools.partial(require_program, PROGRAM, HOW_TO_GET)


class BubblewrapSandbox:
    """Runs each command in its own namespaces.

    Control groups enforce the limits if the worker can create groups.
    """

    name = NAME

    def probe(self) -> str:
        try:
            program = _program()
        except SandboxUnavailableError as error:
            return error.message
        # A probe is repeated after an installation, also by the running worker.
        _version.cache_clear()
        _has_overlays.cache_clear()
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder).resolve()
            access = Access(root=root, path=os.environ.get("PATH", os.defpath), program="true", writable=(root,))
            processes = PROBE_PROCESSES if _counts_by_namespace() else None
            line = command_line(access, temporary_bytes=HIDDEN_BYTES, processes=processes)
            request = ProcessRequest(
                program=program,
                arguments=(*line, "true"),
                cwd=root,
                wall_limit_s=PROBE_S,
                inherit=False,
                files=_files(),
                options_at=OPTIONS,
            )
            result = run_process(request, cancelled=lambda: False, started=lambda _pid: None)
        if result.exit_code == 0:
            return ""
        output = (result.output.decode("utf-8", "replace").strip()[-300:] or result.message).rstrip(".")
        ending = f"exit code {result.exit_code}" if result.reason is Reason.EXITED else result.reason
        return f"{PROGRAM} does not work on this host: {output or ending}. {HOW_TO_GET}"

    def run(self, spec: SandboxSpec, **callbacks: Unpack[Callbacks]) -> SandboxResult:
        spec = at_workspace(spec)
        inside = {"HOME": "/tmp", "TMPDIR": "/tmp", "USER": "nobody", "LOGNAME": "nobody"}  # noqa: S108 - the only one
        environment = {**search_path(spec.root), **inside, **spec.environment}
        if problem := _unusable(spec, environment["PATH"]):
            return SandboxResult(reason=Reason.NOT_STARTED, message=problem, backend=NAME)
        processes = spec.processes if _counts_by_namespace() else None
        run = functools.partial(run_process, **callbacks)
        overlays = spec.scratch and _has_overlays()
        proxying = open_proxy(spec.network) if spec.network else nullcontext()
        with open_scratch(spec, overlays=overlays) as scratch, proxying as proxy:
            # Measured from the start of `python -c pass`: 21 ms with all namespaces, 18 ms without a sandbox.
            access = replace(command_access(spec, environment["PATH"]), scratch=scratch)
            line = command_line(access, temporary_bytes=spec.temporary_bytes, processes=processes, proxy=proxy)
            request = request_of(spec, _program(), (*line, *spec.argv), environment)
            request = request if proxy is None else proxy.with_proxy(request)
            request = replace(request, files=_files(), options_at=OPTIONS)
            limits = _limits(access, counted=processes is not None)
            result = run_with_limits(request, spec, limits, run=run, grouped=True)
            return replace(result, backend=NAME, scratch=scratch.note, changed_package=scratch.find_change())


class BubblewrapAgentSandbox:
    """Sandbox for a long-running agent that needs access to its model. The caller enforces the limits."""

    name = NAME

    def __init__(self, network: tuple[str, ...] = ()) -> None:
        """Set the hosts that every agent may reach, in the syntax of `sandbox.network`."""
        self._network = network

    def can_nest(self) -> bool:
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder).resolve()
            inner = ("--unshare-user", "--unshare-pid", "--unshare-net", "--ro-bind", "/", "/", "--", "true")
            request = ProcessRequest(program=_program(), arguments=inner, cwd=root, wall_limit_s=PROBE_S, inherit=False)
            # Tried for real: whether namespaces nest depends on the kernel, AppArmor and the container around.
            with self.wrap(request, writable=(root,), nested=True) as fenced:
                result = run_process(fenced, cancelled=lambda: False, started=lambda _pid: None)
        return result.exit_code == 0

    @contextmanager
    def wrap(self, request: ProcessRequest, **openings: Unpack[SandboxPermissions]) -> Iterator[ProcessRequest]:
        writable, nested = openings["writable"], openings.get("nested", False)
        refuse_untrusted_program(_program(), writable)
        access = agent_access(request, writable, openings.get("readable", ()))
        with open_proxy((*self._network, *openings.get("network", ()))) as proxy:
            line = command_line(access, temporary_bytes=AGENT_TEMPORARY_BYTES, proxy=proxy, nested=nested)
            behind = replace(
                request,
                program=_program(),
                arguments=(*line, str(request.program), *request.arguments),
                environment={"TMPDIR": "/tmp", **request.environment},  # noqa: S108 - the only one inside
                files={**request.files, **_files(nested=nested)},
                options_at=OPTIONS,
            )
            yield proxy.with_proxy(behind)


def command_line(
    access: Access,
    *,
    temporary_bytes: int,
    processes: int | None = None,
    proxy: EgressProxy | None = None,
    nested: bool = False,
) -> tuple[str, ...]:
    """Build the bubblewrap arguments that precede the command. Later mounts cover earlier ones.

    The kernel enforces `processes` only if it counts processes per user namespace and the worker is not
    root. Without `proxy`, the command has no network. Bubblewrap reads the contents of `_files` and the
    command's variables from file descriptors. With `nested`, the command may create namespaces.
    """
    return (
        *_system(temporary_bytes, nested=nested),
        *(part for folder in access.programs for part in (*_binds("--ro-bind", (folder,)), *_hidden(access, folder))),
        *_mount_folders(access),
        *(() if access.git is None else ("--bind", str(access.git), str(GIT_INSIDE))),
        *(part for source, target in access.mounts for part in _mount(source, target, access.scratch)),
        *(() if proxy is None else ("--ro-bind", str(proxy.folder), str(INSIDE))),
        *_remount_read_only(access, nested=nested),
        *(("--seccomp", str(CALLS)) if CALLS in _files() else ()),
        *("--args", str(OPTIONS), "--chdir", str(access.root), "--"),
        *(() if processes is None else (_system_prlimit(), f"--nproc={processes}", "--")),
        # Resolved: the path could lead through a project's environment, which the command may change.
        *(() if proxy is None else proxy.command(os.path.realpath(sys.executable))),
    )


@functools.cache
def _files(*, nested: bool = False) -> Mapping[int, bytes]:
    """Return the data that bubblewrap reads from each file descriptor.

    The seccomp filter is omitted if the machine's system call numbers are unknown.
    """
    calls = filter_of(platform.machine(), nested=nested) if sys.platform == "linux" else None
    return {} if calls is None else {CALLS: calls}


def _system(temporary_bytes: int, *, nested: bool) -> Iterator[str]:
    """Yield the options for namespaces and for the system files that every command sees."""
    # --disable-userns requires an explicit --unshare-user: --unshare-all only tries it.
    yield from ("--unshare-all", "--unshare-user", "--uid", NOBODY, "--gid", NOBODY, "--hostname", "sandbox")
    # --die-with-parent and the pid namespace kill daemons that left the session; --new-session keeps the command from
    # typing into the worker's terminal (TIOCSTI).
    yield from ("--cap-drop", "ALL", "--die-with-parent", "--new-session")
    # Only an agent with its own sandbox needs more namespaces; bubblewrap before 0.8 lacks the option.
    if _version() >= _NO_NAMESPACES_FROM and not nested:
        yield "--disable-userns"
    yield from ("--ro-bind", "/usr", "/usr")
    for link in map(Path, SYSTEM_LINKS):
        if link.is_symlink():
            yield from ("--symlink", os.readlink(link), str(link))  # noqa: PTH115
        elif link.is_dir():
            yield from ("--ro-bind", str(link), str(link))
    yield from _binds("--ro-bind", (path for name in SYSTEM_SETTINGS for path in sorted(Path("/etc").glob(name))))
    yield from ("--ro-bind", str(GIT_SETTINGS), "/etc/gitconfig")
    yield from ("--proc", "/proc", "--dev", "/dev")
    yield from _tmpfs("/dev/shm", min(SHARED_BYTES, temporary_bytes))  # noqa: S108
    yield from _tmpfs("/tmp", temporary_bytes)  # noqa: S108


def _tmpfs(target: str, size_bytes: int) -> tuple[str, ...]:
    size = ("--size", str(size_bytes)) if _version() >= _SIZES_FROM else ()
    return (*size, "--tmpfs", target)


def _mount_folders(access: Access) -> Iterator[str]:
    """Yield the options that mount the command's folders, and that protect or hide parts of them.

    Outer folders come first.
    """
    # Outer folders first: a later mount of an outer folder would hide the inner one.
    for folder, readable in sorted(
        {*((path, False) for path in access.writable), *((path, True) for path in access.readable)}
    ):
        content = access.content if folder == access.root else None
        yield from ("--ro-bind" if readable else "--bind", str(content or folder), str(folder))
        if not readable:
            yield from _binds("--ro-bind", git_folders(folder, tree=folder == access.root, mounts=access.mounts))
        yield from _hidden(access, folder)


def _mount(source: Path, target: Path, scratch: Scratch) -> tuple[str, ...]:
    if target not in scratch.folders:
        return ("--ro-bind", str(source), str(target))
    folder = scratch.folders[target][1]
    if scratch.since_ns:
        return ("--bind", str(folder), str(target))
    return ("--overlay-src", str(source), "--overlay", str(folder), f"{folder}.work", str(target))


def _hidden(access: Access, folder: Path) -> Iterator[str]:
    for state in access.states[folder]:
        yield from _tmpfs(str(state), HIDDEN_BYTES)


def _remount_read_only(access: Access, *, nested: bool) -> Iterator[str]:
    """Yield the options that make folders read-only if they contain only mount points.

    These options come last, because mounts create folders there.
    """
    states = dict.fromkeys(state for paths in access.states.values() for state in paths)
    # Root could write /proc/sys even without capabilities, because only the numeric owner is checked. A nested sandbox
    # must write its user maps in /proc/self; with these binds over the rest, the kernel denies it a fresh /proc without
    # them.
    if nested and os.geteuid() == 0:
        settings = (path for path in Path("/proc").iterdir() if not path.name.isdecimal() and not path.is_symlink())
        yield from _binds("--ro-bind", settings)
    closed = (*states, "/dev", "/") if nested else (*states, "/proc", "/dev", "/")
    yield from (part for folder in closed for part in ("--remount-ro", str(folder)))


def _binds(option: str, places: Iterable[Path]) -> Iterator[str]:
    for path in places:
        yield from (option, str(path), str(path))


def _limits(access: Access, *, counted: bool) -> dict[Limit, Enforcement]:
    hard = Enforcement.HARD
    limits = {
        **UNSANDBOXED_LIMITS,
        Limit.WRITES: hard,
        Limit.READS: hard,
        Limit.DESCENDANTS: hard,
        Limit.GIT: hard,
        Limit.NETWORK: hard,
    }
    # Nothing is mounted over a symlink, so the command can replace it.
    if (access.root / ".git").is_symlink():
        limits[Limit.GIT] = Enforcement.MISSING
    if CALLS not in _files():
        # The worker's session keyrings are in no namespace.
        limits[Limit.READS] = Enforcement.SOFT
    if counted:
        limits[Limit.PROCESSES] = hard
    if _version() >= _SIZES_FROM:
        limits[Limit.DISK] = hard
    if _version() >= _NO_NAMESPACES_FROM:
        limits[Limit.NAMESPACES] = hard
    return limits


def _unusable(spec: SandboxSpec, path: str) -> str:
    """Return the reason why a command cannot start.

    The wording is the same as in `run_process` and does not mention bubblewrap.
    """
    if not spec.argv or not spec.argv[0]:
        return "the command is empty"
    if not spec.root.is_dir():
        return f"the working folder {spec.root} does not exist"
    program = spec.argv[0]
    if shutil.which(str(spec.root / program) if os.sep in program else program, path=path) is None:
        return f"program {program!r} was not found"
    paths = (*spec.readable, *spec.writable, *(source for source, _ in spec.mounts))
    missing = [location for location in paths if not location.exists()]
    return f"{missing[0]} does not exist. Fix the paths that commands may read and write" if missing else ""


@functools.cache
def _version() -> tuple[int, int]:
    try:
        version = _program().command("--version")
        result = subprocess.run(version, capture_output=True, text=True, timeout=PROBE_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return (0, 0)
    match = _VERSION.search(result.stdout)
    return (int(match[1]), int(match[2])) if match else (0, 0)


@functools.cache
def _has_overlays() -> bool:
    """Return whether bubblewrap can create overlays. Some file systems do not support them."""
    if _version() < _OVERLAYS_FROM:
        return False
    with owned_folder(state_home() / "scratch") as folder:
        layers = [folder / name for name in ("lower", "upper", "work")]
        for layer in layers:
            layer.mkdir()
        lower, upper, work = map(str, layers)
        line = ("--ro-bind", "/", "/", "--overlay-src", lower, "--overlay", upper, work, "/mnt", "--", "true")
        ran = subprocess.run(
            _program().command("--unshare-user", *line), capture_output=True, timeout=PROBE_S, check=False
        )
        return ran.returncode == 0


@functools.cache
def _counts_by_namespace() -> bool:
    match = _VERSION.match(platform.release())
    # RLIMIT_NPROC does not apply to root: with a limit of 64, 300 forks succeeded.
    since = match is not None and (int(match[1]), int(match[2])) >= _OWN_COUNT_FROM
    return since and os.geteuid() != 0 and _system_prlimit() != ""


@functools.cache
def _system_prlimit() -> str:
    """Return the path of a prlimit program that every command can see, or "" if there is none."""
    return shutil.which("prlimit", path="/usr/bin:/bin") or ""
