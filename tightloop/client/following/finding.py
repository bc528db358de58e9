"""Ids of episodes and plans: the one that a start gets, and the one that a person means."""

import contextlib
import secrets
import uuid

from tightloop.client.calls import Calls
from tightloop.client.execution import CLOSED_STATUSES, OPEN_STATUSES, Execution, Kind, Summary, memo_of
from tightloop.episode.input import EpisodeInput
from tightloop.errors import EpisodeNotFoundError, InvalidRequestError, TightloopError
from tightloop.loop.input import LoopInput
from tightloop.safety.identity import CHOSEN_CHARACTERS, is_id

LAST = "last"
"""Stands for the newest one, where an id is asked for."""
_RESOLVE_AMONG = 500


def choose_id(kind: Kind, wanted: str | None) -> str:
    """Return the id that a caller chose, or a new one.

    Raises:
        InvalidRequestError: git or a person would misread it.
    """
    if wanted is None and kind is Kind.LOOP:
        return f"plan_{uuid.uuid4()}"
    if wanted is None:
        return f"{kind}-{secrets.token_hex(4 if kind is Kind.EPISODE else 6)}"
    if wanted == LAST or not is_id(wanted, CHOSEN_CHARACTERS):
        article = "an" if kind is Kind.EPISODE else "a"
        raise InvalidRequestError(
            f"{wanted!r} cannot be {article} {kind} id: it needs 1 to 100 of a-z, A-Z, 0-9, '-', '_' and single '.', "
            f"starting with a letter or digit, and not {LAST!r}. For example: nightly-1"
        )
    return wanted


async def described(calls: Calls, workflow_id: str, kind: Kind | None = None) -> Execution:
    """Return what Temporal knows of the newest run; one that was refused at its beginning does not count.

    Raises:
        EpisodeNotFoundError: no episode and no plan has this id.
        InvalidRequestError: it is the id of the other kind.
    """
    seen = await calls.listing.that_counts(await calls.describe(workflow_id))
    if kind not in (None, seen.kind):
        wanted = kind.noun if kind is not None else ""
        raise InvalidRequestError(f"{seen.id} is {seen.kind.noun}, not {wanted}. See: tightloop status {seen.id}")
    return await _with_request(calls, seen)


async def _with_request(calls: Calls, seen: Execution) -> Execution:
    """Return a run with what its input says, where it was started without our memo: by `temporal workflow start`."""
    if seen.workspace:
        return seen
    from tightloop.plan.input import PlanInput

    kinds: dict[Kind, type[EpisodeInput | PlanInput | LoopInput]] = {Kind.PLAN: PlanInput, Kind.LOOP: LoopInput}
    try:
        told = memo_of(await calls.history.first_input(seen, kinds.get(seen.kind, EpisodeInput)))
    # Sealed with a key that is not here, or nothing that we know: the rest is known nevertheless.
    except (TightloopError, ValueError, IndexError):
        return seen
    return seen.evolve(goal=seen.goal or told["goal"], workspace=told["workspace"], executor=told["executor"])


async def newest(calls: Calls, status: str | None, limit: int, kind: Kind | None) -> tuple[Summary, ...]:
    """Return episodes and plans, the newest run first; see `TightloopClient.list`."""
    if status is not None and status not in (statuses := OPEN_STATUSES + CLOSED_STATUSES):
        raise InvalidRequestError(f"{status!r} is not a status. Known statuses: {', '.join(statuses)}")
    return tuple([row.summary for row in await _newest(calls, status, limit, kind)])


async def _newest(calls: Calls, status: str | None, limit: int, kind: Kind | None) -> list[Execution]:
    rows: list[Execution] = []
    async with contextlib.aclosing(calls.listing.executions(kind=kind, only_open=status in OPEN_STATUSES)) as found:
        async for seen in found:
            if len(rows) >= limit:
                break
            if status is None or seen.status == status:
                rows.append(seen)
    rows.sort(key=lambda row: row.started.timestamp() if row.started else 0.0, reverse=True)
    return [await _with_request(calls, row) for row in rows]


async def resolve(calls: Calls, reference: str, kind: Kind | None) -> str:
    """Return the id that a person means; see `TightloopClient.resolve`."""
    if reference != LAST:
        with contextlib.suppress(EpisodeNotFoundError):
            return (await described(calls, reference, kind)).id
    rows = await _newest(calls, None, _RESOLVE_AMONG, kind)
    if reference == LAST:
        fitting = [row.id for row in sorted(rows, key=lambda row: row.refused) if not row.parent][:1]
    elif any(row.id == reference for row in rows):
        # Temporal deletes one run at a time: an earlier one of the id may be left.
        fitting = [reference]
    else:
        fitting = [row.id for row in rows if row.id.startswith((reference, f"{row.kind}-{reference}"))]
        fitting = [one for one in fitting if not any(one.startswith(f"{other}.") for other in fitting)]
    if len(fitting) > 1:
        raise InvalidRequestError(f"{reference!r} fits {len(fitting)} ids: {', '.join(fitting[:5])}")
    if not fitting:
        raise await calls.listing.not_found(reference, kind)
    return fitting[0]
