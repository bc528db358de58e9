"""What it means for a delivery that one of its processes was ended, never began or met a limit."""

from collections.abc import Mapping
from typing import assert_never

from activities.process import ProcessResult, Reason
from tightloop.executor import ErrorKind, ExecutorChoice, ExecutorOutcome, ExecutorStatus, LimitHit
from tightloop.limit import LimitAnswer, LimitKind, answer, explain

_KINDS: Mapping[str, ErrorKind] = {
    LimitKind.RATE_LIMITED: ErrorKind.RATE,
    LimitKind.OVERLOADED: ErrorKind.OVERLOADED,
    LimitKind.AUTH: ErrorKind.AUTH,
    LimitKind.CONTEXT_FULL: ErrorKind.CONTEXT_FULL,
    LimitKind.OFFLINE: ErrorKind.OFFLINE,
    LimitKind.TOOL_CALL_LIMIT: ErrorKind.BUDGET,
}


def ended_early(result: ProcessResult, choice: ExecutorChoice) -> ExecutorOutcome | None:
    """Return the outcome of a process that did not exit by itself; None for one that did."""
    match result.reason:
        case Reason.EXITED:
            return None
        case Reason.CANCELLED:
            return ExecutorOutcome(status=ExecutorStatus.CANCELLED, error="stopped on request")
        case Reason.NOT_STARTED:
            return ExecutorOutcome(status=ExecutorStatus.FATAL, error=result.message)
        case Reason.WALL_LIMIT:
            return timed_out(choice)
        case Reason.IDLE_LIMIT:
            return ExecutorOutcome(
                status=ExecutorStatus.TIMED_OUT,
                error=f"no output for {choice.idle_limit_s:g} s: ended. If it was at work, raise idle_limit_s.",
                error_kind=ErrorKind.TIMEOUT,
            )
        case Reason.MEMORY_LIMIT | Reason.PROCESS_LIMIT | Reason.OUTPUT_LIMIT:
            return ExecutorOutcome(
                status=ExecutorStatus.FAILED, error=result.message or f"ended: {result.reason.value}"
            )
        case _:
            assert_never(result.reason)


def timed_out(choice: ExecutorChoice) -> ExecutorOutcome:
    """Return the outcome of a delivery that used up its time."""
    return ExecutorOutcome(
        status=ExecutorStatus.TIMED_OUT,
        error=f"still at work after {choice.wall_limit_s:g} s: ended. Raise executor.wall_limit_s or plan less.",
        error_kind=ErrorKind.TIMEOUT,
    )


def limited(limit: LimitHit, error: str) -> ExecutorOutcome:
    """Return the outcome of a delivery that a limit stopped; `error` is what the agent said."""
    kind = error_kind_of(limit)
    match answer(limit):
        case LimitAnswer.WAIT:
            return ExecutorOutcome(status=ExecutorStatus.LIMIT_HIT, limit=limit, error=error, error_kind=kind)
        case LimitAnswer.PERSON:
            return ExecutorOutcome(status=ExecutorStatus.FATAL, limit=limit, error=explain(limit), error_kind=kind)
        case LimitAnswer.REPLAN:
            return ExecutorOutcome(status=ExecutorStatus.FAILED, limit=limit, error=explain(limit), error_kind=kind)
        case unknown:
            assert_never(unknown)


def error_kind_of(limit: LimitHit) -> ErrorKind | None:
    """Return which kind of error a limit is; a quota comes back at a time that nobody told."""
    if limit.kind == LimitKind.USAGE_EXHAUSTED:
        return ErrorKind.QUOTA if limit.retry_after is None else ErrorKind.USAGE_WINDOW
    return _KINDS.get(limit.kind)
