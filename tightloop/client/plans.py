"""The typed client of plans: start, look at and steer them. `TightloopClient.plans` is the way to it."""

import asyncio
import builtins
import contextlib
import re
import secrets
from collections.abc import AsyncGenerator, Callable
from datetime import timedelta
from typing import Any, TypeVar

from temporalio.client import Client

from tightloop.client.answers import OPEN_STATUSES, EpisodeSummary, Execution, summary_of
from tightloop.client.calls import QUERY_TIMEOUT
from tightloop.client.plan_calls import PLAN_CLOSED_STATUSES, PlanCalls
from tightloop.episode import Queues
from tightloop.errors import EpisodeNotFoundError, InvalidRequestError, ServiceUnavailableError
from tightloop.plan.input import PlanInput
from tightloop.plan.request import PlanPhase, PlanRequest, PlanResult, PlanStatus, StepLine, StepPage
from tightloop.plan.state import PlanEvent
from tightloop.scrub import scrub
from tightloop.settings import Settings
from tightloop.value import shorten

POLL_INTERVAL = timedelta(milliseconds=500)
PATIENCE = timedelta(minutes=10)
"""How long `watch` and `result` bear that nobody answers: a restart of the server, or of the worker."""
REPLAN_TIMEOUT = timedelta(minutes=15)
"""A planner may have to write the revision."""
MEMO_CHARACTERS = 200
LAST = "last"
_RESOLVE_AMONG = 500
_PLAN_ID = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_-]|\.(?=[A-Za-z0-9_-])){0,99}")
"""An id becomes part of a git ref, whose rules are stricter than Temporal's."""

T = TypeVar("T")


class Plans:
    """Starts, watches and steers plans. All calls are bounded in time."""

    def __init__(
        self, client: Client, settings: Settings | None = None, *, query_timeout: timedelta = QUERY_TIMEOUT
    ) -> None:
        """Use an open connection, whose data converter must be the workers' one.

        Args:
            client: the connection.
            settings: where new plans go: task queue and queues of the capabilities.
            query_timeout: how long a worker may take to answer before it counts as absent.
        """
        self._calls = PlanCalls(client, query_timeout)
        self._settings = settings or Settings()

    # -- start ----------------------------------------------------------------------------------

    async def start(self, request: PlanRequest, *, plan_id: str | None = None) -> str:
        """Start a plan and return its id.

        The id of a closed plan runs it again: steps that were done with the same inputs are taken over.

        Raises:
            InvalidRequestError: the request or the id cannot work, or an open plan has this id.
            SettingsError: the namespace does not know our search attributes.
            ServiceUnavailableError: Temporal does not answer (retryable).
        """
        request.check()
        new_id = f"plan-{secrets.token_hex(6)}" if plan_id is None else _checked_id(plan_id)
        fields = {name: getattr(request, name) for name in PlanRequest.model_fields}
        start = PlanInput(**{**fields, "queues": self._queues(request.queues)})
        title = shorten(scrub(start.title), MEMO_CHARACTERS)
        memo = {"goal": title, "workspace": request.workspace, "executor": ""}
        await self._calls.start(new_id, start, task_queue=self._settings.temporal.task_queue, memo=memo)
        return new_id

    def _queues(self, asked: Queues) -> Queues:
        known = self._settings.queues
        return Queues(
            workspace=asked.workspace or known.workspace,
            llm=asked.llm or known.llm,
            executor=asked.executor or known.executor,
        )

    # -- look -----------------------------------------------------------------------------------

    async def status(self, plan_id: str) -> PlanStatus:
        """Return a snapshot; for a closed plan also when no worker is there.

        Raises:
            EpisodeNotFoundError: no plan has this id.
            ServiceUnavailableError: the plan is open and no worker answers (retryable).
        """
        seen = await self._calls.describe(plan_id)
        if seen.frozen is not None:
            return _outline(seen).model_copy(update={"pause_reason": seen.frozen, "pause_advice": seen.unfreeze})
        if seen.is_open:
            return await self._calls.query(plan_id, "status", PlanStatus)
        result = await self._calls.plan_outcome(seen)
        try:
            answered = await self._calls.query(plan_id, "status", PlanStatus)
        except ServiceUnavailableError:
            answered = _outline(seen)
        return _closed(answered, seen, result)

    async def summary(self, plan_id: str) -> EpisodeSummary:
        """Return what Temporal itself knows of a plan, without asking a worker."""
        return _line(await self._calls.describe(plan_id))

    async def steps(self, plan_id: str) -> tuple[StepLine, ...]:
        """Return all steps in the order of the plan; those made from a template stand last."""
        first = await self.step_page(plan_id, 1)
        lines = builtins.list(first.lines)
        for page in range(2, first.pages + 1):
            lines += (await self.step_page(plan_id, page)).lines
        return tuple(lines)

    async def step_page(self, plan_id: str, page: int) -> StepPage:
        """Return one page of the listing of steps, counted from 1."""
        await self._calls.describe(plan_id)
        return await self._calls.query(plan_id, "steps", StepPage, page)

    async def timeline(self, plan_id: str) -> tuple[PlanEvent, ...]:
        """Return what happened last, oldest first; at most 200 lines."""
        return tuple(await self._ask(plan_id, "timeline", list[PlanEvent]))

    async def request(self, plan_id: str) -> PlanRequest:
        """Return the request."""
        return await self._ask(plan_id, "request", PlanRequest)

    async def history_json(self, plan_id: str) -> str:
        """Return the newest run's history as Temporal's own tools write it."""
        await self._calls.describe(plan_id)
        return await self._calls.history(plan_id)

    async def watch(
        self,
        plan_id: str,
        *,
        poll: timedelta = POLL_INTERVAL,
        patience: timedelta = PATIENCE,
        on_silence: Callable[[ServiceUnavailableError], None] | None = None,
    ) -> AsyncGenerator[PlanStatus]:
        """Yield the status now and whenever it changed, until the plan is closed.

        Args:
            plan_id: the plan.
            poll: time between two looks.
            patience: how long to bear that nobody answers.
            on_silence: called for each look that nobody answered.

        Raises:
            ServiceUnavailableError: nobody answered for longer than `patience` (retryable).
        """
        shown: PlanStatus | None = None
        while True:
            status = await self._patiently_status(plan_id, patience, poll, on_silence)
            if shown is None or _without_clock(status) != _without_clock(shown):
                shown = status
                yield status
            if status.status in PLAN_CLOSED_STATUSES:
                return
            await asyncio.sleep(poll.total_seconds())

    async def result(self, plan_id: str, *, patience: timedelta = PATIENCE) -> PlanResult:
        """Wait for the end and return what the plan leaves behind, however it ended.

        Bound the wait with `asyncio.timeout`.

        Raises:
            ServiceUnavailableError: Temporal did not answer for longer than `patience` (retryable).
        """
        clock = asyncio.get_running_loop().time
        until = clock() + patience.total_seconds()
        while True:
            try:
                seen = await self._calls.describe(plan_id)
            except ServiceUnavailableError:
                if clock() >= until:
                    raise
                await asyncio.sleep(POLL_INTERVAL.total_seconds())
                continue
            until = clock() + patience.total_seconds()
            if not seen.is_open:
                return await self._calls.plan_outcome(seen)
            # Another run may follow this one: after many steps, or a reset.
            await self._calls.end_of_run(seen)

    async def list(self, status: str | None = None, limit: int = 50) -> tuple[EpisodeSummary, ...]:
        """Return plans, the newest run first.

        Args:
            status: only those; `running`, `paused` or one of `PLAN_CLOSED_STATUSES`.
            limit: at most so many; open ones are preferred.

        Raises:
            InvalidRequestError: there is no such status.
        """
        if status is not None and status not in OPEN_STATUSES + PLAN_CLOSED_STATUSES:
            known = ", ".join(OPEN_STATUSES + PLAN_CLOSED_STATUSES)
            raise InvalidRequestError(f"there is no status {status!r}. Known are: {known}")
        rows: builtins.list[EpisodeSummary] = []
        async with contextlib.aclosing(self._calls.executions(only_open=status in OPEN_STATUSES)) as found:
            async for seen in found:
                if len(rows) >= limit:
                    break
                if status is None or seen.status == status:
                    rows.append(_line(seen))
        return tuple(sorted(rows, key=lambda row: row.started.timestamp() if row.started else 0.0, reverse=True))

    async def resolve(self, reference: str) -> str:
        """Return the id that a person means: an id, its unambiguous beginning, or `last`.

        Raises:
            EpisodeNotFoundError: nothing fits.
            InvalidRequestError: more than one fits.
        """
        if reference != LAST:
            with contextlib.suppress(EpisodeNotFoundError):
                return (await self._calls.describe(reference)).episode_id
        rows = await self.list(limit=_RESOLVE_AMONG)
        if reference == LAST and rows:
            return rows[0].id
        fitting = [row.id for row in rows if row.id.startswith((reference, f"plan-{reference}"))]
        if len(fitting) > 1:
            raise InvalidRequestError(f"{reference!r} fits {len(fitting)} plans: {', '.join(fitting[:5])}")
        if not fitting:
            raise await self._calls.not_found(reference)
        return fitting[0]

    # -- steer ----------------------------------------------------------------------------------

    async def pause(self, plan_id: str, reason: str = "", *, by: str = "operator") -> None:
        """Start no new steps; those that run go on. Asking twice is harmless."""
        await self._calls.signal(plan_id, "pause", {"reason": reason, "by": by})

    async def resume(self, plan_id: str, *, note: str = "", by: str = "operator") -> None:
        """End a pause; failed steps that a person was asked about are tried again."""
        await self._calls.signal(plan_id, "resume", {"note": note, "by": by})

    async def cancel(self, plan_id: str, reason: str = "", *, by: str = "operator") -> None:
        """End a plan for good: running steps are stopped, and taken back where the plan says so."""
        await self._calls.signal(plan_id, "cancel", {"reason": reason, "by": by})

    async def approve(
        self, plan_id: str, gate: str = "", *, option: str = "", rationale: str = "", by: str = "operator"
    ) -> str:
        """Approve a gate, or all gates of a window. Returns the workflow's sentence.

        Raises:
            InvalidRequestError: nothing waits under this name, or the option does not exist.
        """
        word = {"gate": gate, "option": option, "rationale": rationale, "by": by}
        return await self._calls.update(plan_id, "approve", word)

    async def reject(self, plan_id: str, gate: str = "", *, rationale: str = "", by: str = "operator") -> str:
        """Refuse a gate, or all gates of a window. Returns the workflow's sentence.

        Raises:
            InvalidRequestError: nothing waits under this name.
        """
        return await self._calls.update(plan_id, "reject", {"gate": gate, "rationale": rationale, "by": by})

    async def answer(self, plan_id: str, answer: str, step: str = "", *, text: str = "", by: str = "operator") -> str:
        """Say what follows a failure: retry, skip, abort or replan. Returns the workflow's sentence.

        Raises:
            InvalidRequestError: nothing is asked, or this is no answer to it.
        """
        return await self._calls.update(plan_id, "answer", {"step": step, "answer": answer, "text": text, "by": by})

    async def replan(self, plan_id: str, source: str = "", *, rationale: str = "", by: str = "operator") -> str:
        """Change a plan that runs to another text; without one a planner is asked. Returns the workflow's sentence.

        Raises:
            InvalidRequestError: the text is refused; the message names line and column.
        """
        word = {"source": source, "rationale": rationale, "by": by}
        return await self._calls.update(plan_id, "replan", word, timeout=REPLAN_TIMEOUT)

    async def run_step(self, plan_id: str, step: str, *, by: str = "operator") -> str:
        """Start a ready step now, also in a pause, or a failed one again. Returns the workflow's sentence.

        Raises:
            InvalidRequestError: there is no such step, or it cannot be started.
        """
        return await self._calls.update(plan_id, "run_step", {"step": step, "by": by})

    async def top_up(
        self,
        plan_id: str,
        *,
        wall_minutes: float = 0.0,
        cost_usd: float = 0.0,
        tokens: int = 0,
        api_calls: int = 0,
        steps: int = 0,
        fan_out: int = 0,
        revisions: int = 0,
    ) -> str:
        """Raise the bounds of a plan by these amounts. Returns the workflow's sentence."""
        amounts: dict[str, Any] = {
            "wall_minutes": wall_minutes,
            "cost_usd": cost_usd,
            "tokens": tokens,
            "api_calls": api_calls,
            "steps": steps,
            "fan_out": fan_out,
            "revisions": revisions,
        }
        return await self._calls.update(plan_id, "top_up", {name: more for name, more in amounts.items() if more})

    # -- inside ---------------------------------------------------------------------------------

    async def _ask(self, plan_id: str, name: str, kind: type[T]) -> T:
        await self._calls.describe(plan_id)
        return await self._calls.query(plan_id, name, kind)

    async def _patiently_status(
        self,
        plan_id: str,
        patience: timedelta,
        poll: timedelta,
        on_silence: Callable[[ServiceUnavailableError], None] | None,
    ) -> PlanStatus:
        clock = asyncio.get_running_loop().time
        until = clock() + patience.total_seconds()
        while True:
            try:
                return await self.status(plan_id)
            except ServiceUnavailableError as error:
                if clock() >= until:
                    raise
                if on_silence is not None:
                    on_silence(error)
                await asyncio.sleep(poll.total_seconds())


def _checked_id(plan_id: str) -> str:
    if plan_id == LAST or plan_id.endswith(".lock") or not _PLAN_ID.fullmatch(plan_id):
        raise InvalidRequestError(
            f"{plan_id!r} cannot be a plan id: it needs 1 to 100 letters, digits, '-', '_' or single '.', "
            f"starting with a letter or digit, and not {LAST!r}. For example: nightly-1"
        )
    return plan_id


def _line(seen: Execution) -> EpisodeSummary:
    """Return a line of the list; a plan may wait for an approval while it runs."""
    return summary_of(seen).model_copy(update={"pause_kind": seen.pause_kind if seen.is_open else ""})


def _outline(seen: Execution) -> PlanStatus:
    """Return the little that is known without a worker."""
    return PlanStatus(
        plan_id=seen.episode_id,
        run_id=seen.run_id,
        title=seen.goal,
        workspace=seen.workspace,
        status=seen.status,
    )


def _closed(answered: PlanStatus, seen: Execution, result: PlanResult) -> PlanStatus:
    """Lay what Temporal recorded of the end over the last words of the workflow."""
    gone = seen.status in ("terminated", "timed_out")
    return answered.model_copy(
        update={
            "status": seen.status if gone else result.outcome.value.lower(),
            "phase": PlanPhase.CLOSED,
            "outcome": result.outcome,
            "reason": result.reason,
            "pause_reason": "",
            "pause_advice": "",
            "running": (),
            "waiting": (),
            "asked": (),
            "counts": result.counts or answered.counts,
            "tree": result.tree or answered.tree,
            "spent": result.spent if result.counts else answered.spent,
            "revision": result.revision if result.counts else answered.revision,
        }
    )


def _without_clock(status: PlanStatus) -> PlanStatus:
    """Leave out what always changes: time alone is no news."""
    return status.model_copy(update={"spent": status.spent.model_copy(update={"wall_time": timedelta()})})
