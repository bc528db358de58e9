"""Limits for a sandbox, and control groups that are prepared in advance."""

import atexit
import math
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from activities.process import Growth, ProcessRequest, ProcessResult, ProjectProgram, Reason
from activities.process.start import Shim, prepare
from activities.sandbox.control_group import ControlGroup, Hierarchy, ResourceUsage, find_hierarchy
from activities.sandbox.port import (
    MEBIBYTE,
    Enforcement,
    Limit,
    SandboxResult,
    SandboxSpec,
    SandboxUnavailableError,
)
from tightloop.errors import UntrustedProgramError
from tightloop.host.programs import TrustedProgram, find_trusted_program, own_python

WORTH_S = 5.0
"""Minimum duration of a command after which no group is prepared, because the time saved would not be noticeable."""
IDLE_S = 20.0


class PreparedGroup:
    """Holds at most one control group with a waiting supervisor."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.ready: tuple[ControlGroup, Shim] | None = None
        """The prepared group and supervisor, if there are any."""
        self._timer: threading.Timer | None = None
        self._making = False

    def take(self, hierarchy: Hierarchy) -> tuple[ControlGroup, Shim | None]:
        """Return a control group that the caller owns, with its supervisor if a prepared one is available."""
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
        """Prepare a group in the background, unless one is waiting already."""
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
    """Build the process request for a command, with the limits that need neither a sandbox nor a control group.

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
    """Find the program that a sandbox needs.

    Raises:
        SandboxUnavailableError: the program is not installed.
    """
    program = find_trusted_program(name)
    if program is None:
        raise SandboxUnavailableError(f"program {name!r} was not found" + (f". {how_to_get}" if how_to_get else ""))
    return program


def refuse_untrusted_program(program: TrustedProgram | ProjectProgram, writable: Iterable[Path]) -> None:
    """Reject a sandbox whose program or Python could be replaced by the sandbox's own commands.

    Raises:
        SandboxUnavailableError: the program is in one of these folders, or in a location that another run can write to.
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
    """Run a request that `request_of` built. Its process tree has ended when this returns.

    `limits` is the enforcement without a control group. With `grouped`, the command gets a control group if the worker
    can create one.
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
    """Remove estimated limits that the group enforces exactly, because an estimate could kill a harmless command."""
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
    """Build a command's result. The control group's counters show which limit was exceeded."""
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
