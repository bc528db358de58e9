"""What Temporal and the workflow answer, turned into the library's own models and errors."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from temporalio.exceptions import ApplicationError

from tightloop.client.execution import SEARCH_ATTRIBUTES, Execution
from tightloop.errors import InvalidRequestError, ServiceUnavailableError, SettingsError, TightloopError
from tightloop.value import Value


@dataclass(frozen=True)
class Poller:
    """A worker process that polls a task queue."""

    identity: str
    last_seen: datetime | None


class EpisodeSummary(Value):
    """One line in the list of episodes, or of plans."""

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


def summary_of(seen: Execution, *, pause_kind: str) -> EpisodeSummary:
    """Return the line of an episode or a plan in the list."""
    return EpisodeSummary(
        id=seen.workflow_id,
        status=seen.status,
        iteration=seen.iteration,
        pause_kind=pause_kind,
        goal=seen.goal,
        workspace=seen.workspace,
        executor=seen.executor,
        started=seen.started,
        closed=seen.closed,
    )


def refused_update(cause: BaseException, workflow_id: str, command: str) -> TightloopError:
    """Return the error for an update that failed; a validator's own sentence is kept.

    Args:
        cause: what Temporal says.
        workflow_id: what was asked.
        command: what the commands about it begin with.
    """
    if not isinstance(cause, ApplicationError):
        return ServiceUnavailableError(f"{workflow_id} could not answer: {cause}")
    if cause.type == "AcceptedUpdateCompletedWorkflow":
        return ServiceUnavailableError(
            f"{workflow_id} took the message, but its run ended before it could answer. "
            f"See what became of it: {command} timeline {workflow_id}"
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
