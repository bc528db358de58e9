"""What it means how a run of an agent ended. Neither its exit code nor its words make a success."""

from dataclasses import dataclass
from typing import assert_never

from activities.execution.agent.port import Ending, EventReader
from activities.execution.agent.record import Redaction
from activities.execution.agent.watch import Stop, Watch
from activities.execution.ending import ended_early, limited, timed_out
from activities.model_gateway.port import Gateway, GatewaySeen
from activities.process import ProcessResult, Reason
from tightloop.budget import Usage
from tightloop.executor import (
    SUMMARY_CHARACTERS,
    ErrorKind,
    ExecutorChoice,
    ExecutorOutcome,
    ExecutorStatus,
    LimitHit,
)
from tightloop.value import clip

_ENDING_LINES = 30
_ERRORS_BYTES = 16_000
_WENT_WELL = (ExecutorStatus.COMPLETED, ExecutorStatus.NO_CHANGE, ExecutorStatus.REFUSED)


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run that is over."""

    choice: ExecutorChoice
    result: ProcessResult
    watch: Watch
    reader: EventReader
    redaction: Redaction

    @property
    def exited(self) -> bool:
        """Whether the agent went by itself."""
        return self.result.reason is Reason.EXITED

    @property
    def errors(self) -> str:
        """The end of standard error, without secrets."""
        return self.redaction.end_of(self.result.errors, _ERRORS_BYTES).strip()

    @property
    def ending(self) -> Ending:
        """What its reader is told of the end."""
        lines = [*self.watch.status_lines, *self.errors.splitlines()]
        return Ending(exit_code=self.result.exit_code, output_end="\n".join(lines[-_ENDING_LINES:]))


def judged(run: Run, gateway: Gateway | None) -> ExecutorOutcome:
    """Return the outcome of a run; what the gateway saw of limits and usage wins over what the agent says."""
    seen = None if gateway is None else gateway.seen()
    outcome = _stopped(run) or _ended(run, seen)
    errors = run.errors
    if errors:
        run.watch.transcript.add(f"[standard error]\n{errors}\n".encode("utf-8", "replace"))
    resume = None if outcome.status in _WENT_WELL else run.watch.resume
    return outcome.model_copy(
        update={
            "usage": _usage(outcome, seen, started=run.result.reason is not Reason.NOT_STARTED),
            "transcript": run.watch.transcript.value(),
            "resume": resume,
            "cpu_s": run.result.cpu_s,
        }
    )


def _stopped(run: Run) -> ExecutorOutcome | None:
    """Judge a run that was ended by us; None for one that ended by itself, or was done."""
    match run.watch.stop:
        case Stop.CANCELLED:
            return ExecutorOutcome(status=ExecutorStatus.CANCELLED, error="stopped on request")
        case Stop.WALL:
            return timed_out(run.choice)
        case Stop.IDLE:
            error = f"no event for {run.choice.idle_limit_s:g} s: ended. If it was at work, raise idle_limit_s."
            return ExecutorOutcome(status=ExecutorStatus.TIMED_OUT, error=error, error_kind=ErrorKind.TIMEOUT)
        case Stop.LIMIT:
            assert run.watch.limit is not None
            return hit(run.watch.limit, "ended: it would have waited for its provider without a word")
        case Stop.EVENTS:
            return _over(f"more than max_events ({run.choice.max_events}) events: it seems to run in circles")
        case Stop.MODEL_CALLS:
            return _over(f"max_model_calls ({run.choice.max_model_calls}) is spent")
        case Stop.FINISHED | None:
            return None
        case unknown:
            assert_never(unknown)


def _ended(run: Run, seen: GatewaySeen | None) -> ExecutorOutcome:
    reason = run.result.reason
    if reason is Reason.NOT_STARTED:
        return ExecutorOutcome(
            status=ExecutorStatus.FATAL, error=run.result.message, error_kind=ErrorKind.MISSING_PROGRAM
        )
    if run.watch.stop is not Stop.FINISHED and (early := ended_early(run.result, run.choice)):
        return early
    outcome = run.reader.verdict(run.ending)
    if outcome.status is ExecutorStatus.COMPLETED and not run.reader.finished:
        error = "the agent went away without saying that it is done"
        return outcome.model_copy(
            update={"status": ExecutorStatus.FAILED, "error": error, "error_kind": ErrorKind.PROTOCOL}
        )
    return outcome if seen is None or outcome.status in _WENT_WELL else _corrected(outcome, run, seen)


def _corrected(outcome: ExecutorOutcome, run: Run, seen: GatewaySeen) -> ExecutorOutcome:
    """Put the gateway's knowledge in place of what the agent made of it."""
    if seen.budget_spent:
        better = _over(f"max_model_calls ({run.choice.max_model_calls}) is spent")
    elif seen.limit is not None:
        better = hit(seen.limit, outcome.error)
    else:
        return outcome
    fields = ("status", "error", "error_kind", "limit")
    return outcome.model_copy(update={name: getattr(better, name) for name in fields})


def hit(limit: LimitHit, said: str) -> ExecutorOutcome:
    """Return the outcome of a run that a limit ended."""
    told = f"{limit.evidence}: {said}" if limit.evidence and limit.evidence not in said else said
    return limited(limit, clip(told, SUMMARY_CHARACTERS))


def _over(what: str) -> ExecutorOutcome:
    return ExecutorOutcome(
        status=ExecutorStatus.FAILED, error=f"{what}: ended. Raise it or plan less.", error_kind=ErrorKind.BUDGET
    )


def _usage(outcome: ExecutorOutcome, seen: GatewaySeen | None, *, started: bool) -> Usage | None:
    if seen is not None and seen.usage.known:
        return seen.usage
    return outcome.usage or (Usage() if started else None)
