"""What a plan shows and whom it tells: its state, its timeline, its pauses and its alerts."""

import asyncio
import contextlib
from datetime import datetime

from activities.alerts.activity import SendAlertsRequest
from activities.plan.requests import PlanScope
from temporalio import workflow
from temporalio.common import SearchAttributeKey
from temporalio.exceptions import ActivityError
from tightloop.alert import GOAL_SHOWN, Alert, AlertKind, Subject, alert_key, delivery_line
from tightloop.control import Remark
from tightloop.episode import PauseKind
from tightloop.failure import signature
from tightloop.plan.book import WANTS_YES, Book
from tightloop.plan.child_wait import WAITS_LIMIT, ChildNote, ChildWait
from tightloop.plan.display import plan_details
from tightloop.plan.engine.breaker import breach
from tightloop.plan.engine.schedule import Schedule
from tightloop.plan.input import PlanInput
from tightloop.plan.request import RIGHT_PLAN_INPUT, PlanPhase, PlanRequest, PlanStatus, StepLine
from tightloop.plan.result import StepStatus
from tightloop.plan.state import PlanPause, PlanState
from tightloop.value import shorten

from workflows.metering import count_pause
from workflows.plan_around import PlanAround
from workflows.plan_steps import Attempt
from workflows.steps import LAST_ALERT_TIMEOUT, send_alerts

STATUS = SearchAttributeKey.for_keyword("TightloopStatus")
PAUSE_KIND = SearchAttributeKey.for_keyword("TightloopPauseKind")
APPROVAL = WANTS_YES
"""Value of `PAUSE_KIND` while steps wait for a yes and the plan goes on beside them."""
LINES_LIMIT = 100
SHOWN_EVERY_S = 2.0
"""The current details follow at most so often; what a person waits for follows at once."""
REASON_SHOWN = 600
RESUME = "resume when it shall go on"
PAUSE_ALERTS = {
    PauseKind.BUDGET: AlertKind.BUDGET,
    PauseKind.FATAL: AlertKind.FATAL,
    PauseKind.RESPONSE: AlertKind.RESPONSE,
}


class Ended(Exception):  # noqa: N818 - it ends the loop, it is not an error
    """The plan is over without having reached its end."""

    def __init__(self, reason: str, *, compensate: bool = False) -> None:
        super().__init__(reason)
        self.reason, self.compensate = reason, compensate


class PlanNotices:
    """The state of a plan, and how people learn of it."""

    def __init__(self, request: PlanInput | None = None) -> None:
        """Take up the state of the run before, so that handlers see it at once."""
        self._input = request or PlanInput(problem=f"there is no input. A right input: {RIGHT_PLAN_INPUT}")
        self._request: PlanRequest = PlanRequest() if self._input.problem else self._input.as_request()
        self._book = Book(self._input.state or PlanState())
        self._schedule: Schedule | None = None
        self._running: dict[str, Attempt] = {}
        self._title = ""
        self._status = "running"
        self._reason = ""
        self._over: Ended | None = None
        """Set where the loop has to end."""
        self._woken = False
        self._ending = False
        """Nothing that people say makes a difference any more."""
        self._holds = 0
        """How many things want no step to start while they are done."""
        self._shown_at: datetime | None = None
        self._attention = ""
        self._alerting: set[asyncio.Task[None]] = set()
        self._child_waits: dict[str, tuple[ChildWait, ...]] = {}
        """What waits in each workflow that a running step started, as that told it."""
        self._around = PlanAround()
        self._resets = 0
        workflow.register_random_seed_callback(self._on_reset)

    def _on_reset(self, _seed: int) -> None:
        # Runs outside the workflow's event loop: only a mark may be left here.
        self._resets += 1

    def _wake(self) -> None:
        """Have the loop look at what is to be done."""
        self._woken = True

    @property
    def _unmet(self) -> bool:
        """Whether the definition of done does not hold, and a person is asked."""
        pause = self._book.pause
        return pause is not None and pause.kind == PauseKind.RESPONSE and not pause.step

    def _scope(self) -> PlanScope:
        return PlanScope(
            episode_id=workflow.info().workflow_id,
            workspace=self._request.workspace,
            worktree=self._request.worktree,
            plan=self._book.plan,
            revision=self._book.revision,
            base_tree=self._book.base_tree,
            within=self._request.within,
        )

    def _breach(self) -> str | None:
        """Return which bound of the plan is reached."""
        return breach(self._book.budget, self._book.spent, depth=self._request.depth)

    # -- pauses -------------------------------------------------------------------------------------

    def _begin_pause(
        self,
        kind: PauseKind,
        reason: str,
        advice: str,
        *,
        by: str = "tightloop",
        step: str = "",
        alert: AlertKind | None = None,
        tell: bool = True,
    ) -> None:
        """Start nothing new until a person says so."""
        if self._book.pause is not None:
            return
        now = workflow.now()
        reason = shorten(reason, REASON_SHOWN)
        self._book.pause = PlanPause(kind=kind.value, reason=reason, advice=advice, by=by, since=now, step=step)
        self._log("paused", step, f"{kind.value}: {reason} (by {by})")
        count_pause(kind)
        self._wake()
        self._show_attention()
        told = alert or PAUSE_ALERTS.get(kind)
        if told is not None and tell:
            self._alert(told, reason, step)

    def _pause_too(self, reason: str, by: str) -> None:
        """Note that an operator wants a pause while the plan waits for something else."""
        pause = self._book.pause
        if pause is None or pause.also is not None or pause.kind == PauseKind.OPERATOR:
            return
        kind, since = PauseKind.OPERATOR, workflow.now()
        also = PlanPause(kind=kind.value, reason=shorten(reason, REASON_SHOWN), advice=RESUME, by=by, since=since)
        self._book.pause = pause.model_copy(update={"also": also})
        self._log("paused", detail=f"{kind.value}, too: {also.reason} (by {by})")

    def _end_pause(self, remark: Remark, *, wholly: bool = False) -> None:
        """End a pause. One that an operator asked for meanwhile goes on, but where the end is meant `wholly`."""
        pause = self._book.pause
        self._book.pause = None if wholly or pause is None else pause.also
        self._book.adopt = True
        self._log("resumed", detail=remark.text)
        self._wake()
        self._show_attention()

    # -- what waits within --------------------------------------------------------------------------

    def _hear(self, note: ChildNote) -> None:
        """Take note of what waits in a workflow that a running step started."""
        child = note.workflow_id
        step = next((attempt.name for attempt in self._running.values() if child in attempt.children), None)
        if step is None:
            return
        before = self._child_waits.get(child, ())
        self._child_waits[child] = tuple(wait.model_copy(update={"step": step}) for wait in note.waits)
        for wait in self._child_waits[child]:
            if wait not in before:
                self._log("waits", step, f"{wait.where}: {wait.what}")
        if before and not note.waits:
            self._log("goes on", step, child)
        self._show(force=True)

    def _waits_within(self) -> tuple[ChildWait, ...]:
        """Return what waits in the workflows of the steps that run."""
        return tuple(wait for waits in self._heard().values() for wait in waits)

    def _heard(self) -> dict[str, tuple[ChildWait, ...]]:
        """Return the part of what was told that is about steps which run."""
        if not self._child_waits:
            return {}
        started = [child for attempt in self._running.values() for child in attempt.children]
        return {child: self._child_waits[child] for child in started if child in self._child_waits}

    def _tell_around(self, within: tuple[ChildWait, ...]) -> None:
        """Let the plan around this one know what waits here, or further within."""
        if self._request.depth > 1 and self._status == "running" and not self._ending:
            self._around.tell((*self._book.waits(workflow.info().workflow_id), *within)[:WAITS_LIMIT])

    # -- alerts -------------------------------------------------------------------------------------

    def _alert(self, kind: AlertKind, reason: str, step: str = "") -> asyncio.Task[None]:
        """Tell people, beside whatever goes on."""
        now, plan_id = workflow.now(), workflow.info().workflow_id
        alert = Alert(
            key=alert_key(plan_id, kind, f"{step}\n{signature(reason)}", now),
            kind=kind,
            episode_id=plan_id,
            at=now,
            subject=Subject.PLAN,
            phase=self._book.phase.value,
            step=step,
            reason=shorten(reason, REASON_SHOWN),
            goal=shorten(self._title, GOAL_SHOWN),
        )
        task = asyncio.create_task(self._send_alert(SendAlertsRequest(scope=self._scope(), alert=alert)))
        self._alerting.add(task)
        task.add_done_callback(self._alerted)
        return task

    def _alerted(self, task: asyncio.Task[None]) -> None:
        self._alerting.discard(task)
        self._wake()

    async def _send_alert(self, request: SendAlertsRequest) -> None:
        try:
            sent = await send_alerts(request, (self._request.queues.workspace, ""))
        except ActivityError as error:
            self._log("alert", detail=f"{request.alert.kind.value} could not be sent: {error.cause or error}")
            return
        for delivery in sent.deliveries:
            self._log("alert", detail=delivery_line(request.alert, delivery))

    async def _alert_failure(self, reason: str) -> None:
        """Tell people that the plan fails, and wait a little for that: it would end with the workflow."""
        if self._request.depth > 1:
            return  # the plan around it decides what its failure means
        task = self._alert(AlertKind.FAILED, reason)
        with contextlib.suppress(TimeoutError):
            await workflow.wait_condition(
                task.done, timeout=LAST_ALERT_TIMEOUT, timeout_summary="failed: close without the alert"
            )

    # -- what is shown ------------------------------------------------------------------------------

    def _snapshot(self) -> PlanStatus:
        book, info = self._book, workflow.info()
        pause = book.pause if self._status == "running" else None
        lines = [self._line(name) for name in book.failures]
        return PlanStatus(
            plan_id=info.workflow_id,
            run_id=info.run_id,
            title=self._title or self._input.title,
            workspace=self._request.workspace,
            status="paused" if pause is not None else self._status,
            phase=book.phase,
            revision=book.revision,
            plan=book.plan,
            counts=self._schedule.counts() if self._schedule is not None else {},
            running=tuple(self._line(name) for name in list(self._running)[:LINES_LIMIT]),
            waiting=tuple(book.waiting.values())[:LINES_LIMIT],
            failed=tuple(line for line in lines if line.status is StepStatus.FAILED)[:LINES_LIMIT],
            children=self._waits_within()[:LINES_LIMIT],
            asked=tuple(book.asked[:LINES_LIMIT]),
            beliefs=book.beliefs,
            pause_reason=pause.reason if pause is not None else "",
            pause_advice=pause.advice if pause is not None else "",
            spent=book.spent,
            tree=book.tree,
            reason=self._reason,
        )

    def _line(self, name: str) -> StepLine:
        schedule = self._schedule
        number = schedule.find(name) if schedule is not None else None
        if schedule is None or number is None:
            return StepLine(id=name, status=StepStatus.PENDING)
        return StepLine(
            id=name,
            status=schedule.status(number),
            attempt=schedule.attempt(number),
            failure=self._book.failures.get(name),
            summary=schedule.node(number).title,
        )

    def _log(self, event: str, step: str = "", detail: str = "") -> None:
        self._book.log(workflow.now(), event, step, detail)

    def _enter(self, phase: PlanPhase) -> None:
        self._book.phase = phase
        self._show(force=True)

    def _show_attention(self) -> None:
        """Let the list of workflows show what a person is wanted for."""
        pause = self._book.pause
        attention = pause.kind if pause is not None else APPROVAL if self._book.waiting else ""
        if attention != self._attention and self._status == "running":
            self._attention = attention
            kind = PAUSE_KIND.value_set(attention) if attention else PAUSE_KIND.value_unset()
            workflow.upsert_search_attributes([STATUS.value_set("paused" if pause is not None else "running"), kind])
        self._show(force=True)

    def _show(self, *, force: bool = False) -> None:
        self._child_waits = self._heard()
        now, within = workflow.now(), self._waits_within()
        self._tell_around(within)
        if not force and self._shown_at is not None and (now - self._shown_at).total_seconds() < SHOWN_EVERY_S:
            return
        self._shown_at = now
        shown = plan_details(self._snapshot(), self._book.budget, pausing=bool(self._running), children=within)
        workflow.set_current_details(shown)
