"""Ids of episodes and plans: the one that a start gets, and the one that a person means."""

import contextlib
import secrets

from tightloop.client.calls import Calls
from tightloop.client.execution import CLOSED_STATUSES, OPEN_STATUSES, Execution, Kind, Summary, memo_of
from tightloop.episode.model import EpisodeInput
from tightloop.errors import EpisodeNotFoundError, InvalidRequestError, TightloopError
from tightloop.plan.input import PlanInput
from tightloop.safety.identity import CHOSEN_CHARACTERS, is_id

LAST = "last"
"""Stands for the newest one, where an id is asked for."""
_RESOLVE_AMONG = 500


def choose_id(kind: Kind, wanted: str | None) -> str:
    """Return the id that a caller chose, or a new one.

    Raises:
        InvalidRequestError: git or a person would misread it.
    """
    if wanted is None:
        return f"{kind}-{secrets.token_hex(4 if kind is Kind.EPISODE else 6)}"
    if wanted == LAST or not is_id(wanted, CHOSEN_CHARACTERS):
        article = "an" if kind is Kind.EPISODE else "a"
        raise InvalidRequestError(
            f"{wanted!r} cannot be {article} {kind} id: it needs 1 to 100 letters, digits, '-', '_' or single '.', "
            f"starting with a letter or digit, and not {LAST!r}. For example: nightly-1"
        )
    return wanted


async def described(calls: Calls, workflow_id: str, kind: Kind | None = None) -> Execution:
    """Return what Temporal knows of the newest run; one that was refused because of its id does not count.

    Raises:
        EpisodeNotFoundError: no episode and no plan has this id.
        InvalidRequestError: it is the id of the other kind.
    """
    seen = await calls.describe(workflow_id)
    if seen.refused:
        seen = next((run for run in reversed(await calls.runs(workflow_id)) if not run.refused), seen)
    if kind not in (None, seen.kind):
        names = {Kind.EPISODE: "an episode", Kind.PLAN: "a plan"}
        raise InvalidRequestError(
            f"{seen.id} is {names[seen.kind]}, not {names[kind]}. See: tightloop status {seen.id}"
        )
    return await _with_request(calls, seen)


async def _with_request(calls: Calls, seen: Execution) -> Execution:
    """Return a run with what its input says, where it was started without our memo: by `temporal workflow start`."""
    if seen.workspace:
        return seen
    try:
        told = memo_of(await calls.first_input(seen, PlanInput if seen.kind is Kind.PLAN else EpisodeInput))
    # Sealed with a key that is not here, or nothing that we know: the rest is known nevertheless.
    except (TightloopError, ValueError, IndexError):
        return seen
    return seen.evolve(goal=seen.goal or told["goal"], workspace=told["workspace"], executor=told["executor"])


async def newest(calls: Calls, status: str | None, limit: int, kind: Kind | None) -> tuple[Summary, ...]:
    """Return episodes and plans, the newest run first; see `TightloopClient.list`."""
    if status is not None and status not in (statuses := OPEN_STATUSES + CLOSED_STATUSES):
        raise InvalidRequestError(f"{status!r} is not a status. Known statuses: {', '.join(statuses)}")
    rows: list[Execution] = []
    async with contextlib.aclosing(calls.executions(kind=kind, only_open=status in OPEN_STATUSES)) as found:
        async for seen in found:
            if len(rows) >= limit:
                break
            if status is None or seen.status == status:
                rows.append(seen)
    rows.sort(key=lambda row: row.started.timestamp() if row.started else 0.0, reverse=True)
    return tuple([(await _with_request(calls, row)).summary for row in rows])


async def resolve(calls: Calls, reference: str, kind: Kind | None) -> str:
    """Return the id that a person means; see `TightloopClient.resolve`."""
    if reference != LAST:
        with contextlib.suppress(EpisodeNotFoundError):
            return (await described(calls, reference, kind)).id
    rows = await newest(calls, None, _RESOLVE_AMONG, kind)
    if reference == LAST:
        fitting = [row.id for row in rows if not row.parent][:1]
    else:
        fitting = [row.id for row in rows if row.id.startswith((reference, f"{row.kind}-{reference}"))]
        fitting = [one for one in fitting if not any(one.startswith(f"{other}.") for other in fitting)]
    if len(fitting) > 1:
        raise InvalidRequestError(f"{reference!r} fits {len(fitting)} ids: {', '.join(fitting[:5])}")
    if not fitting:
        raise await calls.not_found(reference, kind)
    return fitting[0]
