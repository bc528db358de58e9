"""Sandbox limits for a whole process tree, enforced with Linux control groups (version 1 or 2)."""

import atexit
import functools
import math
import os
import resource
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from activities.process import Growth, ProcessRequest, ProcessResult, ProjectProgram, Reason
from activities.process.start import Shim, prepare
from activities.sandbox.port import (
    MEBIBYTE,
    Enforcement,
    Limit,
    SandboxResult,
    SandboxSpec,
    SandboxUnavailableError,
    is_alive,
    this_process,
)
from tightloop.errors import UntrustedProgramError
from tightloop.host.programs import SHELL, TrustedProgram, find_trusted_program, own_python

PREFIX = "tightloop-"
"""Name prefix for our groups. The groups are siblings because a common parent would be left behind."""
REMOVE_S = 2.0
"""Time in seconds to wait for a group to be removable. It stays busy for a moment after its last process has ended."""

PROBE_S = 5.0

# The kernel's default period; a quota is a share of it.
_PERIOD_US = 100_000
# rmdir fails with EBUSY right after the last process ended; in measurements, retrying for a second was enough.
_POLL_S = 0.02
_CONTROLLERS = ("memory", "pids", "cpu", "cpuacct")


@dataclass(frozen=True)
class Hierarchy:
    """Control group hierarchy in which this worker can create groups."""

    folders: dict[str, Path]
    """Parent folder of our groups, by controller. In version 2, all controllers have the same folder."""
    unified: bool
    """True if this is version 2."""


@dataclass(frozen=True)
class ResourceUsage:
    """A group's measured resource use."""

    oom_kills: int = 0
    refused_processes: int = 0
    """Number of times that the creation of a process or thread was denied."""
    cpu_s: float | None = None
    peak_memory_bytes: int | None = None
    """Peak memory in bytes, including the page cache charged to the group."""


@functools.cache
def find_hierarchy() -> Hierarchy | None:
    """Find a hierarchy in which this process can create groups. Return None if there is none.

    Groups that dead workers left behind are deleted.
    """
    for hierarchy in _hierarchies():
        group = ControlGroup(hierarchy, f"{PREFIX}{this_process()}-probe")
        group.limit()
        usable = group.limits and _can_be_entered(group)
        group.close()
        if usable:
            # Leftovers of dead workers.
            for parent in dict.fromkeys(hierarchy.folders.values()):
                for folder in parent.glob(f"{PREFIX}*-*-*"):
                    if not is_alive(folder.name.removeprefix(PREFIX).rpartition("-")[0]):
                        _kill(folder)
                        _remove_folder(folder)
            return hierarchy
    return None


class ControlGroup:
    """Control group for one run. Version 1 uses one group per hierarchy."""

    def __init__(self, hierarchy: Hierarchy, name: str = "") -> None:
        name = name or f"{PREFIX}{this_process()}-{uuid.uuid4().hex[:12]}"
        self._hierarchy = hierarchy
        self._by_controller = {key: folder / name for key, folder in hierarchy.folders.items()}
        folders = []
        for folder in dict.fromkeys(self._by_controller.values()):
            with suppress(OSError):
                folder.mkdir(exist_ok=True)
                folders.append(folder)
        self.folders = tuple(folders)
        """The folders with the `cgroup.procs` files to which a process writes its pid."""
        self.limits: frozenset[Limit] = frozenset()

    def limit(self, *, memory_bytes: int = 0, processes: int = 0, cores: float = 0.0) -> None:
        """Set the limits. 0 means no limit.

        If a limit cannot be set, it is missing from the `limits` attribute.
        """
        limits: set[Limit] = set()
        for limit, lines in _settings(memory_bytes, processes, cores, unified=self._hierarchy.unified).items():
            for number, (controller, file, value) in enumerate(lines):
                folder = self._by_controller.get(controller)
                if folder is not None and folder in self.folders:
                    with suppress(OSError):
                        (folder / file).write_text(value)
                        # Only the first must succeed: the others exist on some kernels only.
                        if number == 0:
                            limits.add(limit)
        self.limits = frozenset(limits)

    def read_usage(self) -> ResourceUsage:
        """Return the resources that the group has used so far."""

        def read(controller: str, file: str) -> list[str]:
            folder = self._by_controller.get(controller)
            return [] if folder is None else _lines(folder / file)

        if self._hierarchy.unified:
            kills, peak, per_second = "memory.events", "memory.peak", 1e6
            # Not the children's resource usage, which shows 2 ms, because the sandbox program reaps the command.
            used = _field(read("cpu", "cpu.stat"), "usage_usec")
        else:
            kills, peak, per_second = "memory.oom_control", "memory.max_usage_in_bytes", 1e9
            used = _number(read("cpuacct", "cpuacct.usage"))
        return ResourceUsage(
            oom_kills=_field(read("memory", kills), "oom_kill") or 0,
            refused_processes=_field(read("pids", "pids.events"), "max") or 0,
            cpu_s=None if used is None else used / per_second,
            peak_memory_bytes=_number(read("memory", peak)),
        )

    def close(self) -> bool:
        """Kill the remaining processes and delete the group. Return whether the group is gone."""
        deadline = time.monotonic() + REMOVE_S
        # Killed again in each round: a process may have forked since its group was listed.
        while left := [folder for folder in self.folders if not _remove_folder(folder)]:
            if time.monotonic() > deadline:
                return False
            for folder in left:
                _kill(folder)
            time.sleep(_POLL_S)
        return True


def _settings(
    memory_bytes: int, processes: int, cores: float, *, unified: bool
) -> dict[Limit, Sequence[tuple[str, str, str]]]:
    """Return the controller, file and value of each setting that a limit needs.

    A limit is only in effect if its first setting can be written.
    """
    quota = int(cores * _PERIOD_US)
    legacy = str(memory_bytes or -1)
    return {
        # Without a swap limit a command could use its memory size again as swap.
        Limit.MEMORY: (
            ("memory", "memory.max", str(memory_bytes or "max")),
            ("memory", "memory.swap.max", "0"),
            # Without it the kernel kills one process, and the rest of the command hangs or reports a wrong result.
            ("memory", "memory.oom.group", "1"),
        )
        if unified
        else (("memory", "memory.limit_in_bytes", legacy), ("memory", "memory.memsw.limit_in_bytes", legacy)),
        Limit.PROCESSES: (("pids", "pids.max", str(processes or "max")),),
        Limit.CORES: (
            ("cpu", "cpu.max", f"{quota or 'max'} {_PERIOD_US}")
            if unified
            else ("cpu", "cpu.cfs_quota_us", str(quota or -1)),
        ),
    }


def _hierarchies() -> Iterator[Hierarchy]:
    """Yield the hierarchies to try.

    The worker's own version 1 groups come first, followed by its version 2 groups, innermost first.
    """
    # Keyed by controller; "" is version 2.
    mounts: dict[str, Path] = {}
    for line in _lines(Path("/proc/self/mounts")):
        _, mount, kind, options, *_ = line.split(" ")
        if kind == "cgroup2":
            mounts.setdefault("", Path(mount))
        elif kind == "cgroup":
            mounts |= {name: Path(mount) for name in options.split(",") if name in _CONTROLLERS}
    legacy: dict[str, Path] = {}
    for line in _lines(Path("/proc/self/cgroup")):
        number, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        if number == "0" and not names:
            if unified := mounts.get(""):
                yield from _unified_hierarchies(unified, path)
            continue
        for name in names.split(","):
            if name in _CONTROLLERS and name in mounts:
                group = mounts[name] / path.lstrip("/")
                legacy[name] = group if group.is_dir() else mounts[name]
    if legacy:
        yield Hierarchy(legacy, unified=False)


def _unified_hierarchies(mount: Path, path: str) -> Iterator[Hierarchy]:
    group = mount / path.lstrip("/")
    if not group.is_dir():
        return
    # Upwards: a group with processes in it cannot enable controllers for its children (cgroup v2), but its parent may.
    for folder in (group, *group.parents):
        if not folder.is_relative_to(mount):
            return
        controllers = set(" ".join(_lines(folder / "cgroup.subtree_control")).split())
        if {"memory", "pids"} <= controllers and os.access(folder, os.W_OK):
            yield Hierarchy(dict.fromkeys(_CONTROLLERS, folder), unified=True)


def _can_be_entered(group: ControlGroup) -> bool:
    """Return whether a child process can join the group.

    In version 2, this requires permissions on the groups in between. File modes do not show them.
    """
    join = 'for folder; do echo $$ > "$folder/cgroup.procs" || exit 1; done'
    argv = SHELL.command("-c", join, "sh", *group.folders)
    try:
        return subprocess.run(argv, capture_output=True, timeout=PROBE_S, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def _kill(folder: Path) -> None:
    for pid in _lines(folder / "cgroup.procs"):
        with suppress(OSError):
            os.kill(int(pid), signal.SIGKILL)


def _remove_folder(folder: Path) -> bool:
    try:
        # The files of a group cannot be deleted; they disappear with its folder.
        folder.rmdir()
    except OSError as error:
        return isinstance(error, FileNotFoundError)
    return True


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def _field(lines: list[str], name: str) -> int | None:
    return next((int(line.split()[1]) for line in lines if line.startswith(f"{name} ")), None)


def _number(lines: list[str]) -> int | None:
    return int(lines[0]) if lines and lines[0].isdigit() else None


WORTH_S = 5.0
"""Minimum duration of a command after which no group is prepared, because the time saved would not be noticeable."""
IDLE_S = 20.0


class PreparedGroup:
    """Prepares at most one control group in advance, with a supervisor that is already waiting."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.ready: tuple[ControlGroup, Shim] | None = None
        """The prepared group and supervisor, if there are any."""
        self._timer: threading.Timer | None = None
        self._making = False

    def take(self, hierarchy: Hierarchy) -> tuple[ControlGroup, Shim | None]:
        """Return a control group that the caller owns.

        If a prepared supervisor is available, it is returned as well.
        """
        with self._lock:
            ready, self.ready = self.ready, None
        if ready is None:
            return ControlGroup(hierarchy), None
        group, shim = ready
        if shim.popen.poll() is not None:
            # It was killed while it waited, which must not fail the command.
            shim.abandon()
            return group, None
        return group, shim

    def make(self, hierarchy: Hierarchy) -> None:
        """Prepare a group in the background unless one is already waiting."""
        with self._lock:
            if self._making or self.ready is not None:
                return
            self._making = True
        # In the background, because making a group takes as long as it saves the next command.
        thread = threading.Thread(target=self._make, args=(hierarchy,), name="sandbox-ahead", daemon=True)
        # Thread creation fails during interpreter shutdown.
        with suppress(RuntimeError):
            thread.start()

    def discard(self) -> None:
        with self._lock:
            ready, self.ready = self.ready, None
        if ready is not None:
            group, shim = ready
            shim.abandon()
            group.close()

    def drop_after_fork(self) -> None:
        """Drop the prepared group in a forked process, because it belongs to the parent."""
        ready, self.ready, self._making, self._lock = self.ready, None, False, threading.Lock()
        if ready is not None:
            ready[1].close_pipes()

    def _make(self, hierarchy: Hierarchy) -> None:
        group = ControlGroup(hierarchy)
        shim = None
        # On failure the next run creates its own group, and reports the error.
        with suppress(OSError):
            shim = prepare(cgroups=group.folders, stdin=subprocess.DEVNULL)
        with self._lock:
            self._making = False
            if shim is not None:
                self.ready = group, shim
                if self._timer is not None:
                    self._timer.cancel()
                self._timer = threading.Timer(IDLE_S, self.discard)
                self._timer.daemon = True
                self._timer.start()
        # Outside the lock, because removing a group can take seconds.
        if shim is None:
            group.close()


PREPARED_GROUP = PreparedGroup()
atexit.register(PREPARED_GROUP.discard)
os.register_at_fork(after_in_child=PREPARED_GROUP.drop_after_fork)


FLOOD = 64
"""Factor by which a command may exceed the kept amount of output before it is killed."""
OPEN_FILES = 4096

Runner = Callable[[ProcessRequest], ProcessResult]

_SANDBOX_PROCESSES = 8
"""Number of processes that the sandbox program itself uses."""
_SANDBOX_BYTES = 32 * MEBIBYTE
_KILLED = {
    Reason.MEMORY_LIMIT: "the command needed more than {memory} MiB of memory and was killed. Raise sandbox.memory_mb",
    Reason.PROCESS_LIMIT: "the command needed more than {processes} processes or threads. Raise sandbox.processes",
    Reason.OUTPUT_LIMIT: "the command wrote more than {output} MB of output and was killed. Reduce the output",
}


def request_of(
    spec: SandboxSpec,
    program: TrustedProgram | ProjectProgram,
    arguments: tuple[str, ...],
    environment: Mapping[str, str],
    *,
    inherit: bool = False,
) -> ProcessRequest:
    """Build the process request for a command.

    The request only contains limits that need neither a sandbox nor a control group.

    Raises:
        SandboxUnavailableError: the command can write to the sandbox program.
    """
    folders = (spec.content or spec.root, *spec.writable, *(() if spec.git is None else (spec.git,)))
    refuse_untrusted_program(program, (spec.root, *folders))
    return ProcessRequest(
        program=program,
        arguments=arguments,
        cwd=spec.root,
        environment=environment,
        secrets=spec.secrets,
        inherit=inherit,
        stdin=spec.stdin,
        wall_limit_s=spec.wall_limit_s,
        idle_limit_s=spec.idle_limit_s,
        grace_s=spec.grace_s,
        output_bytes=spec.output_bytes,
        output_limit_bytes=None if spec.may_flood else FLOOD * spec.output_bytes,
        memory_limit_bytes=spec.memory_bytes,
        # Counted from outside, which includes the sandbox program's own processes.
        process_limit=spec.processes + _SANDBOX_PROCESSES,
        growth=Growth(folders=folders, limit_bytes=spec.growth_bytes),
        resources={
            resource.RLIMIT_CORE: 0,
            resource.RLIMIT_FSIZE: spec.file_bytes,
            resource.RLIMIT_NOFILE: OPEN_FILES,
            # Not RLIMIT_AS: WebAssembly in Node reserves more address space than any sensible limit.
            resource.RLIMIT_DATA: spec.memory_bytes,
        },
        cores=math.ceil(spec.cores),
    )


def require_program(name: str, how_to_get: str = "") -> TrustedProgram:
    """Find a program that a sandbox needs.

    Raises:
        SandboxUnavailableError: the program is not installed.
    """
    program = find_trusted_program(name)
    if program is None:
        raise SandboxUnavailableError(f"program {name!r} was not found" + (f". {how_to_get}" if how_to_get else ""))
    return program


def refuse_untrusted_program(program: TrustedProgram | ProjectProgram, writable: Iterable[Path]) -> None:
    """Reject a sandbox if its commands could replace its program or Python.

    Raises:
        SandboxUnavailableError: the program or Python is in a writable folder, or another run can write
            to it.
    """
    if isinstance(program, TrustedProgram):
        folders = tuple(writable)
        try:
            for started in (program, own_python()):
                started.refuse_within(folders)
        except UntrustedProgramError as error:
            raise SandboxUnavailableError(error.message) from None


UNSANDBOXED_LIMITS: Mapping[Limit, Enforcement] = {
    **dict.fromkeys(Limit, Enforcement.MISSING),
    **dict.fromkeys((Limit.PROCESSES, Limit.MEMORY, Limit.DISK, Limit.GROWTH, Limit.OUTPUT), Enforcement.SOFT),
    **dict.fromkeys((Limit.WALL_TIME, Limit.DESCENDANTS), Enforcement.SOFT),
    # Only Linux can bind a process to some of the cores.
    Limit.CORES: Enforcement.SOFT if sys.platform == "linux" else Enforcement.MISSING,
}
"""Enforcement of each limit by `request_of` alone."""


def run_with_limits(
    request: ProcessRequest, spec: SandboxSpec, limits: Mapping[Limit, Enforcement], *, run: Runner, grouped: bool
) -> SandboxResult:
    """Run a request built by `request_of`. The process tree has ended when this returns.

    `limits` says how each limit is enforced without a control group. If `grouped` is set, the command runs
    in a control group if possible.
    """
    hierarchy = find_hierarchy() if grouped else None
    if hierarchy is None:
        return result_of(run(request), spec, ResourceUsage(), limits)
    # A prepared supervisor has /dev/null as its input already.
    group, shim = PREPARED_GROUP.take(hierarchy) if request.stdin is None else (ControlGroup(hierarchy), None)
    removed, began = False, time.monotonic()
    try:
        group.limit(
            memory_bytes=spec.memory_bytes + _SANDBOX_BYTES,
            processes=spec.processes + _SANDBOX_PROCESSES,
            cores=spec.cores,
        )
        result = run(_in_group(request, group, shim))
        use = group.read_usage()
    finally:
        if shim is not None:
            shim.abandon()
        removed = group.close()
    # Short commands come in series, such as the checks of an episode.
    if time.monotonic() - began < WORTH_S:
        PREPARED_GROUP.make(hierarchy)
    enforcement = {**limits, **dict.fromkeys(group.limits, Enforcement.HARD)}
    outcome = result_of(result, spec, use, enforcement)
    left = "" if removed else f"could not remove control group {group.folders[0]}. Kill its processes manually"
    return replace(outcome, message="; ".join(filter(None, (outcome.message, left))))


def _in_group(request: ProcessRequest, group: ControlGroup, shim: Shim | None) -> ProcessRequest:
    """Remove estimated limits that the control group enforces exactly.

    An estimated limit could kill a harmless command.
    """
    changes: dict[str, object] = {"cgroups": group.folders, "shim": shim}
    if Limit.MEMORY in group.limits:
        resources = {kind: value for kind, value in request.resources.items() if kind != resource.RLIMIT_DATA}
        changes |= {"memory_limit_bytes": None, "resources": resources}
    if Limit.PROCESSES in group.limits:
        changes["process_limit"] = None
    if Limit.CORES in group.limits:
        changes["cores"] = None
    return replace(request, **changes)  # type: ignore[arg-type]


def result_of(
    result: ProcessResult, spec: SandboxSpec, use: ResourceUsage, limits: Mapping[Limit, Enforcement]
) -> SandboxResult:
    """Build the result of a command. The control group's counters show which limit was exceeded."""
    reason = result.reason
    # The kernel kills one process: the command may continue, or hang without a message.
    if use.oom_kills and reason in (Reason.EXITED, Reason.WALL_LIMIT):
        reason = Reason.MEMORY_LIMIT
    elif use.refused_processes and reason is Reason.EXITED and result.exit_code != 0:
        reason = Reason.PROCESS_LIMIT
    exceeded = _KILLED.get(reason, "").format(
        memory=spec.memory_bytes // MEBIBYTE, processes=spec.processes, output=FLOOD * spec.output_bytes // 1_000_000
    )
    return replace(
        SandboxResult(**vars(result), limits=limits),
        reason=reason,
        exit_code=result.exit_code if reason is Reason.EXITED else None,
        cpu_s=result.cpu_s if use.cpu_s is None else use.cpu_s,
        peak_memory_bytes=result.peak_memory_bytes if use.peak_memory_bytes is None else use.peak_memory_bytes,
        message=exceeded or result.message,
    )
