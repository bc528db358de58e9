"""Operations on runs, for every door: role, project, kind and state are checked here and nowhere else."""

from collections.abc import Awaitable, Mapping
from typing import Any, NamedTuple

from gateway.access.scope import Found, Scope
from tightloop.client import CLOSED_STATUSES
from tightloop.errors import InvalidRequestError, WrongStateError
from tightloop.loop.model import LoopStatus
from tightloop.operations import BY_NAME, KEYED, Operation, possible
from tightloop.safety.seal import Role, role_for


class Performed(NamedTuple):
    """What came of a message."""

    found: Found
    message: str
    """The sentence of the run, or of the table where a signal has none."""


async def perform(
    scope: Scope,
    operation: Operation,
    workflow_id: str,
    arguments: Mapping[str, Any],
    *,
    kinds: tuple[str, ...] = (),
    message_id: str = "",
) -> Performed:
    """Send a run a message in the name of who asks.

    Args:
        scope: of who asks.
        operation: one that the client has a method for, and that changes a run.
        workflow_id: the run.
        arguments: of the client's method.
        kinds: narrower than those of the operation.
        message_id: sent again with the same id, it is told once.

    Raises:
        RefusedError: the role is not enough.
        EpisodeNotFoundError: the run does not exist for this person, or is of another kind.
        WrongStateError: the run does not take it in its state.
        InvalidRequestError: the run refuses it.
    """
    found = await reach(scope, operation, workflow_id, kinds)
    given = {**dict(operation.fixed), **arguments}
    if operation.handler == "answer":
        await _require_role(scope, found, str(given.get("question", "")))
    if not operation.is_anonymous:
        given["by"] = scope.person.name
    if message_id and operation.repeat == KEYED and not operation.done:
        given["message_id"] = message_id
    told = await refused_by_state(scope, operation, found, getattr(scope.client, operation.client)(found.id, **given))
    return Performed(found, told or operation.done)


async def reach(scope: Scope, operation: Operation, workflow_id: str, kinds: tuple[str, ...] = ()) -> Found:
    """Return a run for somebody who may do this with it.

    Raises:
        RefusedError: the role is not enough.
        EpisodeNotFoundError: the run does not exist for this person, or is of another kind.
    """
    scope.require(Role(operation.role))
    return await scope.find(workflow_id, kinds or operation.kinds, now=True)


async def refused_by_state(scope: Scope, operation: Operation, found: Found, work: Awaitable[Any]) -> Any:
    """Do something with a run; where its state is in the way, the error says what is possible.

    Raises:
        WrongStateError: its state is in the way.
        InvalidRequestError: something else is.
    """
    try:
        return await work
    except InvalidRequestError as error:
        if found.kind == "loop":
            status = await scope.client.status(found.id)
            assert isinstance(status, LoopStatus)
            messages = ("answer", "pause", "resume") if status.possible else ()
            state, options = status.status.value, (*status.possible, *messages)
        elif isinstance(error, WrongStateError) and error.state in CLOSED_STATUSES:
            state, options = error.state, possible(found.kind, is_open=False)
        else:
            raise
        # A gate is approved by an answer.
        word = BY_NAME[operation.client].word
        if word in options:
            raise
        raise WrongStateError(
            f"{found.id} is {state}, so {word!r} is not possible. Possible now: {', '.join(options) or 'nothing'}",
            state,
            options,
        ) from error


async def _require_role(scope: Scope, found: Found, question: str) -> None:
    """Refuse an answer of somebody who lacks the role that one of the questions asks for."""
    for asked in (await scope.client.status(found.id)).questions:
        if not question or question in (asked.id, asked.step, asked.window):
            scope.require(role_for(asked.kind, asked.role))
