"""What tells episodes and plans apart for the client; everything else about the two is the same."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from temporalio.exceptions import ApplicationError, CancelledError, TerminatedError
from temporalio.exceptions import TimeoutError as TemporalTimeoutError

from tightloop.client.answers import EpisodeSummary
from tightloop.client.execution import Execution
from tightloop.episode import EpisodeResult, EpisodeStatus
from tightloop.plan.request import PlanResult, PlanStatus

StatusT = TypeVar("StatusT", bound=EpisodeStatus | PlanStatus)
ResultT = TypeVar("ResultT", bound=EpisodeResult | PlanResult)


@dataclass(frozen=True, kw_only=True)
class Kind(Generic[StatusT, ResultT]):
    """Episodes, or plans: their names, their sentences, and how their end is read."""

    noun: str
    """`episode`; also what the ids that we make begin with."""
    workflow_type: str
    command: str
    """What the commands about them begin with: `tightloop`."""
    start_hint: str
    """How to start a first one."""
    go_on_hint: str
    """How to go on from a closed one, with `{id}`."""
    closed_statuses: tuple[str, ...]
    status_type: type[StatusT]
    result_type: type[ResultT]
    status_word: Callable[[int, str], str]
    """The status for Temporal's number and the value of `TightloopStatus`."""
    summary: Callable[[Execution], EpisodeSummary]
    outline: Callable[[Execution], StatusT]
    """The little that is known without a worker."""
    closed_status: Callable[[StatusT, Execution, ResultT], StatusT]
    """Lays what Temporal recorded of the end over the last words of the workflow."""
    failed_result: Callable[[BaseException, Execution], ResultT]
    """The result of one that did not complete."""


def ended_by(cause: BaseException) -> tuple[bool, str]:
    """Return whether somebody ended a workflow in Temporal, and why it ended."""
    if isinstance(cause, ApplicationError):
        return False, cause.message
    if isinstance(cause, CancelledError):
        return True, "cancelled in Temporal"
    if isinstance(cause, TerminatedError):
        return True, f"terminated in Temporal: {cause.message}"
    if isinstance(cause, TemporalTimeoutError):
        return False, "it ran into a time limit that was set in Temporal"
    return False, str(cause)
