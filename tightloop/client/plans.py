"""The typed client of plans: start, look at and steer them. `TightloopClient.plans` is the way to it."""

import builtins
import secrets
from collections.abc import AsyncGenerator
from datetime import timedelta
from typing import Any

from temporalio.client import Client

from tightloop.client.answers import EpisodeSummary
from tightloop.client.calls import QUERY_TIMEOUT, Calls
from tightloop.client.plan_kind import PLAN
from tightloop.client.reader import PATIENCE, POLL_INTERVAL, OnSilence, Reader
from tightloop.client.starting import checked_id, memo_of, queues_of
from tightloop.plan.input import PlanInput
from tightloop.plan.request import PlanRequest, PlanResult, PlanStatus, StepLine, StepPage
from tightloop.plan.state import PlanEvent
from tightloop.settings import Settings

REPLAN_TIMEOUT = timedelta(minutes=15)
"""A planner may have to write the revision."""


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
        self._calls = Calls(client, PLAN, query_timeout)
        self._reader = Reader(self._calls)
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
        new_id = f"plan-{secrets.token_hex(6)}" if plan_id is None else checked_id(plan_id, "a plan id")
        fields = {name: getattr(request, name) for name in PlanRequest.model_fields}
        start = PlanInput(**{**fields, "queues": queues_of(request.queues, self._settings.queues)})
        memo = memo_of(start.title, request.workspace)
        await self._calls.start(new_id, start, task_queue=self._settings.temporal.task_queue, memo=memo)
        return new_id

    # -- look -----------------------------------------------------------------------------------

    async def status(self, plan_id: str) -> PlanStatus:
        """Return a snapshot; for a closed plan also when no worker is there.

        Raises:
            EpisodeNotFoundError: no plan has this id.
            ServiceUnavailableError: the plan is open and no worker answers (retryable).
        """
        return await self._reader.status(plan_id)

    async def summary(self, plan_id: str) -> EpisodeSummary:
        """Return what Temporal itself knows of a plan, without asking a worker."""
        return await self._reader.summary(plan_id)

    async def steps(self, plan_id: str) -> tuple[StepLine, ...]:
        """Return all steps in the order of the plan; those made from a template stand last."""
        first = await self.step_page(plan_id, 1)
        lines = builtins.list(first.lines)
        for page in range(2, first.pages + 1):
            lines += (await self.step_page(plan_id, page)).lines
        return tuple(lines)

    async def step_page(self, plan_id: str, page: int) -> StepPage:
        """Return one page of the listing of steps, counted from 1."""
        return await self._reader.ask(plan_id, "steps", StepPage, page)

    async def timeline(self, plan_id: str) -> tuple[PlanEvent, ...]:
        """Return what happened last, oldest first; at most 200 lines."""
        return tuple(await self._reader.ask(plan_id, "timeline", list[PlanEvent]))

    async def request(self, plan_id: str) -> PlanRequest:
        """Return the request."""
        return await self._reader.ask(plan_id, "request", PlanRequest)

    async def history_json(self, plan_id: str) -> str:
        """Return the newest run's history as Temporal's own tools write it."""
        return await self._reader.history_json(plan_id)

    def watch(
        self,
        plan_id: str,
        *,
        poll: timedelta = POLL_INTERVAL,
        patience: timedelta = PATIENCE,
        on_silence: OnSilence | None = None,
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
        return self._reader.watch(plan_id, poll=poll, patience=patience, on_silence=on_silence)

    async def result(self, plan_id: str, *, patience: timedelta = PATIENCE) -> PlanResult:
        """Wait for the end and return what the plan leaves behind, however it ended.

        Bound the wait with `asyncio.timeout`.

        Raises:
            ServiceUnavailableError: Temporal did not answer for longer than `patience` (retryable).
        """
        return await self._reader.result(plan_id, patience=patience)

    async def list(self, status: str | None = None, limit: int = 50) -> tuple[EpisodeSummary, ...]:
        """Return plans, the newest run first.

        Args:
            status: only those; `running`, `paused` or one of `PLAN_CLOSED_STATUSES`.
            limit: at most so many; open ones are preferred.

        Raises:
            InvalidRequestError: there is no such status.
        """
        return await self._reader.list(status, limit)

    async def resolve(self, reference: str) -> str:
        """Return the id that a person means: an id, its unambiguous beginning, or `last`.

        Raises:
            EpisodeNotFoundError: nothing fits.
            InvalidRequestError: more than one fits.
        """
        return await self._reader.resolve(reference)

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
