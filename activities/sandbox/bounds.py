"""The bounds of a command: as they are asked of `run_process`, and as its result tells how they held."""

import math
import resource
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace

from activities.process import ProcessRequest, ProcessResult
from activities.sandbox.control_group import ControlGroup, Use, find_room
from activities.sandbox.port import Enforcement, ExitReason, Limit, SandboxResult, SandboxSpec

FLOOD = 64
"""A command that writes so many times what is kept of its output is ended."""
OPEN_FILES = 4096

Runner = Callable[[ProcessRequest], ProcessResult]

_WALLS_PROCESSES = 8
"""What the walls themselves are made of."""
_WALLS_BYTES = 32 * 1024 * 1024
_KILLED = {
    ExitReason.MEMORY_LIMIT: "it needed more than {memory} MiB of memory and was ended. Raise sandbox.memory_mb",
    ExitReason.PROCESS_LIMIT: "it needed more than {processes} processes or threads. Raise sandbox.processes",
    ExitReason.OUTPUT_LIMIT: "it wrote more than {output} MB of output and was ended. Make it say less",
}


def request_of(
    spec: SandboxSpec, argv: tuple[str, ...], environment: Mapping[str, str], *, inherit: bool = False
) -> ProcessRequest:
    """Return the request for a command with every bound that needs neither walls nor a control group."""
    return ProcessRequest(
        argv=argv,
        cwd=spec.root,
        environment=environment,
        secrets=spec.secrets,
        inherit=inherit,
        stdin=spec.stdin,
        wall_limit_s=spec.wall_limit_s,
        idle_limit_s=spec.idle_limit_s,
        grace_s=spec.grace_s,
        output_bytes=spec.output_bytes,
        output_limit_bytes=FLOOD * spec.output_bytes,
        memory_limit_bytes=spec.memory_bytes,
        process_limit=spec.processes + _WALLS_PROCESSES,
        resources=_resources(spec),
        cores=math.ceil(spec.cores),
    )


def _resources(spec: SandboxSpec) -> dict[int, int]:
    return {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_FSIZE: spec.file_bytes,
        resource.RLIMIT_NOFILE: OPEN_FILES,
        # Not RLIMIT_AS: WebAssembly in Node reserves more address space than any sensible bound.
        resource.RLIMIT_DATA: spec.memory_bytes,
    }


WATCHED: Mapping[Limit, Enforcement] = {
    Limit.NETWORK: Enforcement.MISSING,
    Limit.WRITES: Enforcement.MISSING,
    Limit.READS: Enforcement.MISSING,
    Limit.GIT: Enforcement.MISSING,
    Limit.PROCESSES: Enforcement.SOFT,
    Limit.MEMORY: Enforcement.SOFT,
    Limit.CORES: Enforcement.SOFT if sys.platform == "linux" else Enforcement.MISSING,
    Limit.DISK: Enforcement.SOFT,
    Limit.OUTPUT: Enforcement.SOFT,
    Limit.WALL_TIME: Enforcement.SOFT,
    Limit.DESCENDANTS: Enforcement.SOFT,
    Limit.NAMESPACES: Enforcement.MISSING,
}
"""How surely the bounds of `request_of` hold on their own."""


def run_bounded(
    request: ProcessRequest,
    spec: SandboxSpec,
    limits: Mapping[Limit, Enforcement],
    *,
    run: Runner,
    grouped: bool,
) -> SandboxResult:
    """Run a request, in a control group where one can be made and is asked for; nothing is left on return.

    Args:
        request: of `request_of`.
        spec: the command that it was made from.
        limits: how surely each limit holds without a control group.
        run: `run_process` with the callbacks of whoever waits for the command.
        grouped: put it into a control group.
    """
    room = find_room() if grouped else None
    if room is None:
        return _result(run(request), spec, Use(), limits)
    group = ControlGroup(
        room,
        memory_bytes=spec.memory_bytes + _WALLS_BYTES,
        processes=spec.processes + _WALLS_PROCESSES,
        cores=spec.cores,
    )
    removed = False
    try:
        result = run(_in_group(request, group))
        use = group.use()
    finally:
        removed = group.close()
    held = {**limits, **dict.fromkeys(group.limits, Enforcement.HARD)}
    outcome = _result(result, spec, use, held)
    left = "" if removed else f"control group {group.folders[0]} could not be removed: end what is in it by hand"
    return replace(outcome, message="; ".join(filter(None, (outcome.message, left))))


def _in_group(request: ProcessRequest, group: ControlGroup) -> ProcessRequest:
    """Leave to the kernel what the group bounds: an estimate beside it could end a command that is within."""
    changes: dict[str, object] = {"cgroups": group.folders}
    if Limit.MEMORY in group.limits:
        kept = {kind: value for kind, value in request.resources.items() if kind != resource.RLIMIT_DATA}
        changes |= {"memory_limit_bytes": None, "resources": kept}
    if Limit.PROCESSES in group.limits:
        changes["process_limit"] = None
    if Limit.CORES in group.limits:
        changes["cores"] = None
    return replace(request, **changes)  # type: ignore[arg-type]


def _result(result: ProcessResult, spec: SandboxSpec, use: Use, limits: Mapping[Limit, Enforcement]) -> SandboxResult:
    reason, message = _ending(ExitReason(result.reason.value), result, spec, use)
    return SandboxResult(
        reason=reason,
        exit_code=result.exit_code if reason is ExitReason.EXITED else None,
        output=result.output,
        cut=result.cut,
        duration_s=result.duration_s,
        cpu_s=use.cpu_s if use.cpu_s is not None else result.cpu_s,
        peak_memory_bytes=use.peak_memory_bytes if use.peak_memory_bytes is not None else result.peak_memory_bytes,
        survivors_ended=result.survivors_ended,
        message=message,
        limits=limits,
    )


def _ending(reason: ExitReason, result: ProcessResult, spec: SandboxSpec, use: Use) -> tuple[ExitReason, str]:
    """Return why it ended, the control group's word included, and a sentence where a bound was met."""
    failed = reason is ExitReason.EXITED and result.exit_code != 0
    if use.oom_kills and reason in (ExitReason.EXITED, ExitReason.WALL_LIMIT):
        reason = ExitReason.MEMORY_LIMIT
    elif use.refused_processes and failed:
        reason = ExitReason.PROCESS_LIMIT
    return reason, exceeded(reason, spec) or result.message


def exceeded(reason: ExitReason, spec: SandboxSpec) -> str:
    """Return a sentence that says which bound a command met and what to do; empty for other endings."""
    return _KILLED.get(reason, "").format(
        memory=spec.memory_bytes // (1024 * 1024),
        processes=spec.processes,
        output=FLOOD * spec.output_bytes // 1_000_000,
    )
