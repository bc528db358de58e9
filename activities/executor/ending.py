"""Maps the end of a process, or a limit that it met, to the outcome of a delivery."""

from collections.abc import Mapping
from typing import assert_never

from activities.process import ProcessResult, Reason
from tightloop.executor.limit import LimitAction, LimitKind, choose_action, explain
from tightloop.executor.model import ErrorKind, ExecutorChoice, ExecutorOutcome, ExecutorStatus, LimitHit

_KINDS: Mapping[str, ErrorKind] = {
    LimitKind.RATE_LIMITED: ErrorKind.RATE,
    LimitKind.OVERLOADED: ErrorKind.OVERLOADED,
    LimitKind.AUTH: ErrorKind.AUTH,
    LimitKind.CONTEXT_FULL: ErrorKind.CONTEXT_FULL,
    LimitKind.OFFLINE: ErrorKind.OFFLINE,
    LimitKind.TOOL_CALL_LIMIT: ErrorKind.BUDGET,
}


def early_outcome(result: ProcessResult, choice: ExecutorChoice) -> ExecutorOutcome | None:
    """Return the outcome of a process that did not exit by itself; None for one that did."""
    match result.reason:
        case Reason.EXITED:
            return None
        case Reason.CANCELLED:
            return cancelled_outcome()
        case Reason.NOT_STARTED:
            return fatal_outcome(result.message, ErrorKind.MISSING_PROGRAM)
        case Reason.WALL_LIMIT:
            return timeout_outcome(choice)
        case Reason.IDLE_LIMIT:
            return idle_outcome(choice, "output")
        case Reason.MEMORY_LIMIT | Reason.PROCESS_LIMIT | Reason.OUTPUT_LIMIT | Reason.DISK_LIMIT:
            return failed_outcome(result.message or f"ended: {result.reason.value}", ErrorKind.SANDBOX)
        case _:
            assert_never(result.reason)


def failed_outcome(error: str, kind: ErrorKind | None = None) -> ExecutorOutcome:
    """Return the outcome of a delivery that failed; another try may do better."""
    return ExecutorOutcome(status=ExecutorStatus.FAILED, error=error, error_kind=kind)


def fatal_outcome(error: str, kind: ErrorKind | None = None) -> ExecutorOutcome:
    """Return the outcome of a delivery that cannot work until somebody changes the setup."""
    return ExecutorOutcome(status=ExecutorStatus.FATAL, error=error, error_kind=kind)


def cancelled_outcome() -> ExecutorOutcome:
    """Return the outcome of a delivery that was ended because its activity was cancelled."""
    return ExecutorOutcome(status=ExecutorStatus.CANCELLED, error="stopped on request")


def timeout_outcome(choice: ExecutorChoice) -> ExecutorOutcome:
    """Return the outcome of a delivery that used up its time."""
    return ExecutorOutcome(
        status=ExecutorStatus.TIMED_OUT,
        error=f"still at work after {choice.wall_limit_s:g} s: ended. Raise executor.wall_limit_s or plan less.",
        error_kind=ErrorKind.TIMEOUT,
    )


def idle_outcome(choice: ExecutorChoice, missing: str) -> ExecutorOutcome:
    """Return the outcome of a delivery that was silent for too long."""
    return ExecutorOutcome(
        status=ExecutorStatus.TIMED_OUT,
        error=f"no {missing} for {choice.idle_limit_s:g} s: ended. If it was at work, raise idle_limit_s.",
        error_kind=ErrorKind.TIMEOUT,
    )


def limited_outcome(limit: LimitHit, error: str) -> ExecutorOutcome:
    """Return the outcome of a delivery that a limit stopped; `error` is what the agent said."""
    kind = error_kind_of(limit)
    match choose_action(limit):
        case LimitAction.WAIT:
            return ExecutorOutcome(status=ExecutorStatus.LIMIT_HIT, limit=limit, error=error, error_kind=kind)
        case LimitAction.PERSON:
            return ExecutorOutcome(status=ExecutorStatus.FATAL, limit=limit, error=explain(limit), error_kind=kind)
        case LimitAction.REPLAN:
            return ExecutorOutcome(status=ExecutorStatus.FAILED, limit=limit, error=explain(limit), error_kind=kind)
        case unknown:
            assert_never(unknown)


def error_kind_of(limit: LimitHit) -> ErrorKind | None:
    """Return which kind of error a limit is; a quota without a known reset is `quota`."""
    if limit.kind == LimitKind.USAGE_EXHAUSTED:
        return ErrorKind.QUOTA if limit.retry_after is None else ErrorKind.USAGE_WINDOW
    return _KINDS.get(limit.kind)
