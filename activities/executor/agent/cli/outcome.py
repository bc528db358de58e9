"""Maps the end of an agent's run to an outcome. Neither its exit code nor its words make a success."""

from dataclasses import dataclass

from activities.executor.agent.bounds import Stop, limit_outcome, stopped_outcome
from activities.executor.agent.cli.watch import Watch
from activities.executor.agent.port import Ending, EventReader
from activities.executor.agent.record import Redaction
from activities.executor.ending import early_outcome
from activities.model.gateway.port import Gateway, GatewaySeen
from activities.process import ProcessResult, Reason
from tightloop.executor.model import ErrorKind, ExecutorChoice, ExecutorOutcome, ExecutorStatus
from tightloop.executor.usage import Usage

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
    def errors(self) -> str:
        """The end of standard error, without secrets."""
        return self.redaction.end_of(self.result.errors, _ERRORS_BYTES).strip()

    @property
    def ending(self) -> Ending:
        """What its reader needs to know about the end."""
        lines = [*self.watch.status_lines, *self.errors.splitlines()]
        return Ending(exit_code=self.result.exit_code, output_end="\n".join(lines[-_ENDING_LINES:]))


def judge(run: Run, gateway: Gateway | None) -> ExecutorOutcome:
    """Return the outcome of a run; what the gateway saw of limits and usage wins over what the agent says."""
    seen = None if gateway is None else gateway.seen()
    stop = run.watch.stop
    stopped = None if stop is None else stopped_outcome(stop, run.choice, run.watch.bounds.limit)
    outcome = stopped or _ended(run, seen)
    errors = run.errors
    if errors:
        run.watch.transcript.add(f"[standard error]\n{errors}\n".encode("utf-8", "replace"))
    resume = None if outcome.status in _WENT_WELL else run.watch.resume
    started = run.result.reason is not Reason.NOT_STARTED
    usage = seen.usage if seen is not None and seen.usage.known else outcome.usage or (Usage() if started else None)
    transcript = run.watch.transcript.value()
    return outcome.evolve(usage=usage, transcript=transcript, resume=resume, cpu_s=run.result.cpu_s)


def _ended(run: Run, seen: GatewaySeen | None) -> ExecutorOutcome:
    if run.watch.stop is not Stop.FINISHED and (early := early_outcome(run.result, run.choice)):
        return early
    outcome = run.reader.read_outcome(run.ending)
    if outcome.status is ExecutorStatus.COMPLETED and not run.reader.finished:
        error = "the agent exited without saying that it is done"
        return outcome.evolve(status=ExecutorStatus.FAILED, error=error, error_kind=ErrorKind.PROTOCOL)
    if seen is None or outcome.status in _WENT_WELL:
        return outcome
    # No event of codex has the retry-after of an answer with status 429: only the gateway saw it.
    better = stopped_outcome(Stop.MODEL_CALLS, run.choice, None) if seen.budget_spent else None
    if better is None and seen.limit is not None:
        better = limit_outcome(seen.limit, outcome.error)
    if better is None:
        return outcome
    return outcome.evolve(status=better.status, error=better.error, error_kind=better.error_kind, limit=better.limit)
