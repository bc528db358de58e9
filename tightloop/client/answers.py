"""What Temporal and the workflow answer, turned into the library's own models and errors."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from google.protobuf.timestamp_pb2 import Timestamp
from temporalio.exceptions import ApplicationError, CancelledError, TerminatedError
from temporalio.exceptions import TimeoutError as TemporalTimeoutError

from tightloop.episode import EpisodeOutcome, EpisodePhase, EpisodeResult, EpisodeStatus, Pause, PauseKind
from tightloop.errors import InvalidRequestError, ServiceUnavailableError, SettingsError, TightloopError
from tightloop.value import Value

STATUS, ITERATION, PAUSE_KIND = "TightloopStatus", "TightloopIteration", "TightloopPauseKind"
SEARCH_ATTRIBUTES = {STATUS: "Keyword", ITERATION: "Int", PAUSE_KIND: "Keyword"}
OPEN_STATUSES = ("running", "paused")
CLOSED_STATUSES = ("succeeded", "failed", "aborted", "cancelled", "terminated", "timed_out")

# Raw numbers, because the SDK's own enum (1.35) raises ValueError on 8, a workflow paused by Temporal itself.
RUNNING, COMPLETED, PAUSED = 1, 2, 8
_CLOSED_AS = {3: "failed", 4: "cancelled", 5: "terminated", 7: "timed_out"}


@dataclass(frozen=True)
class Execution:
    """What Temporal itself knows of an episode, without asking a worker."""

    episode_id: str
    run_id: str
    status: str
    """One of `OPEN_STATUSES` or `CLOSED_STATUSES`."""
    is_open: bool
    frozen: str | None
    """Why Temporal's own pause holds the workflow; then it answers neither queries nor updates."""
    task_queue: str
    iteration: int
    pause_kind: str
    goal: str
    workspace: str
    executor: str
    started: datetime | None
    closed: datetime | None

    @property
    def unfreeze(self) -> str:
        """How Temporal's own pause is lifted."""
        return f"Lift it: temporal workflow unpause -w {self.episode_id}"


@dataclass(frozen=True)
class Poller:
    """A worker process that polls a task queue."""

    identity: str
    last_seen: datetime | None


class EpisodeSummary(Value):
    """One line in the list of episodes."""

    id: str
    status: str
    """One of `OPEN_STATUSES` or `CLOSED_STATUSES`."""
    iteration: int = 0
    pause_kind: str = ""
    goal: str = ""
    """Its first characters."""
    workspace: str = ""
    executor: str = ""
    started: datetime | None = None
    """Start of the newest run."""
    closed: datetime | None = None


def status_word(number: int, attribute: str) -> str:
    """Return the status for Temporal's number and the value of `TightloopStatus`."""
    if number == PAUSED:
        return "paused"
    if number in _CLOSED_AS:
        return _CLOSED_AS[number]
    if number == COMPLETED:
        return "aborted" if attribute == "aborted" else "succeeded"
    return attribute if attribute in OPEN_STATUSES else "running"


def moment(stamp: Timestamp) -> datetime | None:
    """Return a time of Temporal; None where it is not set."""
    return stamp.ToDatetime(UTC) if stamp.seconds else None


def summary_of(seen: Execution) -> EpisodeSummary:
    """Return the line of an episode in the list."""
    return EpisodeSummary(
        id=seen.episode_id,
        status=seen.status,
        iteration=seen.iteration,
        pause_kind=seen.pause_kind if seen.status == "paused" else "",
        goal=seen.goal,
        workspace=seen.workspace,
        executor=seen.executor,
        started=seen.started,
        closed=seen.closed,
    )


def outline_of(seen: Execution) -> EpisodeStatus:
    """Return the little that is known without a worker."""
    pause = None
    if seen.frozen is not None:
        pause = Pause(kind=PauseKind.OPERATOR, reason=seen.frozen, by="temporal", advice=seen.unfreeze)
    return EpisodeStatus(
        episode_id=seen.episode_id,
        run_id=seen.run_id,
        status=seen.status,
        goal=seen.goal,
        workspace=seen.workspace,
        executor=seen.executor,
        iteration=seen.iteration,
        pause=pause,
    )


def closed_status(answered: EpisodeStatus, seen: Execution, result: EpisodeResult) -> EpisodeStatus:
    """Lay what Temporal recorded of the end over the last words of the workflow."""
    by_outcome = seen.status in ("succeeded", "aborted")
    return answered.model_copy(
        update={
            "status": result.outcome.value.lower() if by_outcome else seen.status,
            "phase": EpisodePhase.CLOSED,
            "outcome": result.outcome,
            "reason": result.reason,
            "pause": None,
            "iteration": max(answered.iteration, result.iterations),
            "checkpoint_id": result.checkpoint_id or answered.checkpoint_id,
            "tree": result.tree or answered.tree,
            "checks": result.checks or answered.checks,
            "spent": result.spent if result.spent.iterations else answered.spent,
        }
    )


def result_of_failure(cause: BaseException, iterations: int) -> EpisodeResult:
    """Return the result of an episode that did not complete."""
    outcome, reason = EpisodeOutcome.FAILED, str(cause)
    if isinstance(cause, ApplicationError):
        if cause.type == "EpisodeFailed" and cause.details:
            return EpisodeResult.model_validate(cause.details[0])
        reason = cause.message
    elif isinstance(cause, CancelledError):
        outcome, reason = EpisodeOutcome.ABORTED, "cancelled in Temporal"
    elif isinstance(cause, TerminatedError):
        outcome, reason = EpisodeOutcome.ABORTED, f"terminated in Temporal: {cause.message}"
    elif isinstance(cause, TemporalTimeoutError):
        reason = "it ran into a time limit that was set in Temporal"
    return EpisodeResult(outcome=outcome, reason=reason, iterations=iterations)


def refused_update(cause: BaseException, episode_id: str) -> TightloopError:
    """Return the error for an update that failed; a validator's own sentence is kept."""
    if not isinstance(cause, ApplicationError):
        return ServiceUnavailableError(f"{episode_id} could not answer: {cause}")
    if cause.type == "AcceptedUpdateCompletedWorkflow":
        return ServiceUnavailableError(
            f"{episode_id} took the message, but its run ended before it could answer. "
            f"See what became of it: tightloop timeline {episode_id}"
        )
    return InvalidRequestError(cause.message)


def refused_call(message: str) -> TightloopError:
    """Return the error for a call that Temporal itself calls wrong."""
    if "search attribute" not in message:
        return InvalidRequestError(f"Temporal refuses the request: {message}")
    return SettingsError(
        f"Temporal refuses: {message}. The search attributes of tightloop are not registered in this namespace. "
        f"`tightloop up` does it, or by hand: {'; '.join(registration_commands())}"
    )


def registration_commands(names: Iterable[str] = tuple(SEARCH_ATTRIBUTES)) -> list[str]:
    """Return the commands that make our search attributes known to a namespace."""
    command = "temporal operator search-attribute create"
    return [f"{command} --name {name} --type {SEARCH_ATTRIBUTES[name]}" for name in names]
