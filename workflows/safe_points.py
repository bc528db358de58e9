"""Safe points: where a workflow runs one activity, and where people step in between two of them."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from datetime import datetime
from typing import Any, TypeVar, overload

from activities.alerts.activity import SendAlertsRequest
from activities.scope import EpisodeScope
from activities.workspace.activity import AdoptRequest, AmendRequest, ReconcileRequest, WorkspaceActivities
from temporalio import workflow
from temporalio.common import SearchAttributeKey
from temporalio.exceptions import ActivityError
from tightloop import loop
from tightloop.alert import AlertKind, alert_kind, alert_of, delivery_line
from tightloop.checkpoint import RECENT_LIMIT, merge
from tightloop.episode import EpisodeInput, EpisodeOutcome, EpisodePhase, Pause, PauseKind
from tightloop.executor import ExecutorReport, backoff
from tightloop.planning import ReflectCause

from workflows.desk import OperatorDesk
from workflows.metering import count_pause
from workflows.plan_around import PlanAround, waits_of
from workflows.steps import (
    HAND_OFF_TIMEOUT,
    LAST_ALERT_TIMEOUT,
    RESTORE_TIMEOUT,
    Call,
    StepFailedError,
    send_alerts,
)

STATUS = SearchAttributeKey.for_keyword("TightloopStatus")
PAUSE_KIND = SearchAttributeKey.for_keyword("TightloopPauseKind")

RESET_FIRST = "reset-before-pause"
"""Patch: a reset run puts the files back and claims the workspace before it waits for anybody."""

A = TypeVar("A")
R = TypeVar("R")


class Ended(Exception):  # noqa: N818 - it ends the loop, it is not an error
    """The episode is over."""

    def __init__(self, outcome: EpisodeOutcome, reason: str) -> None:
        super().__init__(reason)
        self.outcome, self.reason = outcome, reason


class GivesWay(Exception):  # noqa: N818 - it ends the run, it is not an error
    """This run gives way to a new one."""


class SafePoints(OperatorDesk):
    """Runs activities one by one and takes notice of people in between."""

    def __init__(self, request: EpisodeInput | None = None) -> None:
        """Take up the state of the run before."""
        super().__init__(request)
        self._working_since: datetime | None = None
        self._resets_handled = 0
        self._putting_back = False
        self._alerting: set[asyncio.Task[None]] = set()
        self._around = PlanAround()

    @overload
    async def _do(
        self, method: Callable[[Any, A], Coroutine[Any, Any, R]], request: Callable[[], A], call: Call
    ) -> R: ...
    @overload
    async def _do(self, method: Callable[[Any, A], R], request: Callable[[], A], call: Call) -> R: ...
    async def _do(self, method: Callable[[Any, Any], Any], request: Callable[[], Any], call: Call) -> Any:
        """Run one activity at a safe point. One that fails for good waits for a person, then runs again."""
        await self._safe_point()
        return await self._insist(method, request, call)

    async def _insist(self, method: Callable[[Any, Any], Any], request: Callable[[], Any], call: Call) -> Any:
        while True:
            try:
                return await self._steps.run(method, request(), call)
            except StepFailedError as failure:
                self._leave_if_asked()
                unserved = AlertKind.NO_EXECUTOR if failure.no_worker else None
                await self._wait_for_person(loop.paused(PauseKind.FATAL, failure.reason).pause, alert=unserved)

    def _leave_if_asked(self) -> None:
        # An activity that ends normally swallows the cancellation that came meanwhile.
        if workflow.cancellation_reason() is not None:
            raise asyncio.CancelledError
        if self._abort_wanted is not None:
            raise Ended(EpisodeOutcome.ABORTED, self._abort_wanted or "aborted")
        if self._restore_wanted is not None:
            raise GivesWay

    async def _safe_point(self) -> None:
        """Take notice of what was asked for meanwhile."""
        self._leave_if_asked()
        if self._resets > self._resets_handled:
            await self._reconcile_reset()
        self._tell_plan(None)
        await self._amend()
        if self._pause_wanted is not None:
            await self._wait_for_person(self._pause_wanted)

    async def _wait_for_person(self, pause: Pause | None, *, alert: AlertKind | None = None) -> None:
        if pause is None:
            return
        if self._resets > self._resets_handled and workflow.patched(RESET_FIRST):
            await self._reconcile_reset()
        self._count_work()
        self._working_since = None
        self._resume_wanted = False
        if pause.since is None:  # else the run before counted it
            count_pause(pause.kind)
        since = pause.since or workflow.now()
        self._pause_wanted = pause.model_copy(update={"since": since})
        self._state = self._state.model_copy(update={"pause": self._pause_wanted})
        self._log("paused", f"{pause.kind.value}: {pause.reason} (by {pause.by})")
        self._show("paused")
        workflow.upsert_search_attributes([STATUS.value_set("paused"), PAUSE_KIND.value_set(pause.kind.value)])
        self._alert(alert or alert_kind(pause), since, pause.reason)
        self._tell_plan(pause)
        try:
            await workflow.wait_condition(
                lambda: self._resume_wanted or self._abort_wanted is not None or self._restore_wanted is not None,
                timeout=self._request.pause_timeout,
                timeout_summary=f"paused: {pause.kind.value}",
            )
        except TimeoutError:
            reason = f"nobody answered within {self._request.pause_timeout}: {pause.reason}"
            await self._alert_failure(reason)
            raise Ended(EpisodeOutcome.FAILED, reason) from None
        self._pause_wanted = None
        self._working_since = workflow.now()
        workflow.upsert_search_attributes([STATUS.value_set("running"), PAUSE_KIND.value_unset()])
        self._state = loop.resumed(self._state)
        self._show("running")
        if self._abort_wanted is None and self._restore_wanted is None:
            await self._adopt()
        await self._safe_point()

    def _tell_plan(self, pause: Pause | None) -> None:
        """Let the plan that waits for this episode know what it waits for."""
        if self._request.within:
            self._around.tell(waits_of(pause))

    def _alert(self, kind: AlertKind | None, at: datetime, reason: str) -> asyncio.Task[None] | None:
        """Tell people, beside the wait for them: neither a resume nor an abort waits for it."""
        if kind is None or not workflow.patched("alerts"):
            return None
        alert = alert_of(
            self._request, self._state, kind, episode_id=workflow.info().workflow_id, happened=(at, reason)
        )
        task = asyncio.create_task(self._send_alert(SendAlertsRequest(scope=self._scope(), alert=alert)))
        self._alerting.add(task)
        task.add_done_callback(self._alerting.discard)
        return task

    async def _send_alert(self, request: SendAlertsRequest) -> None:
        try:
            sent = await send_alerts(request, (self._request.queues.workspace, ""))
        except ActivityError as error:
            self._log("alert", f"{request.alert.kind.value} could not be sent: {error.cause or error}")
            return
        for delivery in sent.deliveries:
            self._log("alert", delivery_line(request.alert, delivery))

    async def _alert_failure(self, reason: str) -> None:
        """Tell people that the episode fails, and wait a little for that: it would end with the workflow."""
        task = self._alert(AlertKind.FAILED, workflow.now(), reason)
        if task is not None:
            with contextlib.suppress(TimeoutError):
                await workflow.wait_condition(
                    task.done, timeout=LAST_ALERT_TIMEOUT, timeout_summary="failed: close without the alert"
                )

    async def _adopt(self) -> None:
        """Keep what a person edited during a pause; what a discarded future left is no edit."""
        if self._state.request is None or self._putting_back:
            return
        adopted = await self._do(
            WorkspaceActivities.adopt_workspace,
            lambda: AdoptRequest(scope=self._scope(), expected_tree=self._state.tree),
            Call("resume: keep edits made during the pause", RESTORE_TIMEOUT, self._request.queues.workspace),
        )
        changed = adopted.tree != self._state.tree
        self._state = loop.with_retries(self._state.model_copy(update={"tree": adopted.tree}), adopted.attempt)
        if changed:
            # What they refused they may have taken out themselves.
            self._state = self._state.model_copy(update={"findings": ()})
            self._state = loop.with_note(
                self._state, f"A person edited {adopted.files_changed} files during a pause; keep these edits."
            )
        self._log("resumed", f"{adopted.files_changed} files edited meanwhile were kept" if changed else "resumed")

    async def _amend(self) -> None:
        if not self._amended or self._state.request is None:
            return
        self._amended = False
        try:
            stored = await self._do(
                WorkspaceActivities.amend_request,
                lambda: AmendRequest(
                    scope=self._scope(),
                    goal=self._request.goal,
                    definition_of_done=self._request.definition_of_done,
                    executor=self._request.executor,
                    planner=self._request.planner,
                ),
                Call("store the amended request", HAND_OFF_TIMEOUT, self._request.queues.workspace),
            )
        except BaseException:
            self._amended = True  # the next run has to store it
            raise
        self._state = self._state.model_copy(update={"request": stored})

    async def _back_off(self, report: ExecutorReport) -> None:
        wait = backoff(self._state.limit_strikes, report.limit)
        evidence = report.limit.evidence if report.limit else ""
        self._enter(EpisodePhase.BACKING_OFF)
        self._log("limit", f"strike {self._state.limit_strikes}: wait {wait.total_seconds():g} s. {evidence}")
        try:
            await workflow.wait_condition(
                self._called, timeout=wait, timeout_summary=f"limit: continue after {wait.total_seconds():g} s"
            )
        except TimeoutError:
            return
        await self._safe_point()

    def _called(self) -> bool:
        return any(w is not None for w in (self._abort_wanted, self._restore_wanted, self._pause_wanted))

    async def _reconcile_reset(self) -> None:
        """After a reset in Temporal: put the files back too, and list what was discarded."""
        self._resets_handled = self._resets
        self._around.tell_again()
        if self._state.request is None:
            return
        newest = max((record.number for record in self._state.checkpoints), default=-1)
        # A safe point would pause first: without the claim, and what is on disk would then be adopted.
        self._putting_back = workflow.patched(RESET_FIRST)
        try:
            outcome = await (self._insist if self._putting_back else self._do)(
                WorkspaceActivities.reconcile_reset,
                lambda: ReconcileRequest(scope=self._scope(), expected_tree=self._state.tree, newest_known=newest),
                Call("the run was reset: put the files back", RESTORE_TIMEOUT, self._request.queues.workspace),
            )
        finally:
            self._putting_back = False
        self._state = self._state.model_copy(
            update={
                "branch": max([self._state.branch, *(record.branch for record in outcome.discarded)]) + 1,
                "checkpoints": merge(self._state.checkpoints, outcome.discarded)[-RECENT_LIMIT:],
                "reflect_next": ReflectCause.RESTORED,
                "reflect_detail": "the run was reset in Temporal to an earlier event",
            }
        )
        self._note_saved(outcome.saved_tree)
        self._log("reset", f"reset in Temporal: {len(outcome.discarded)} checkpoints discarded, files put back")

    def _scope(self) -> EpisodeScope:
        return EpisodeScope(
            episode_id=workflow.info().workflow_id,
            workspace=self._request.workspace,
            worktree=self._request.worktree,
            request=self._state.request,
            within=self._request.within,
        )

    def _executor_queue(self) -> str:
        return self._request.queues.executor or self._request.queues.workspace

    def _count_work(self) -> None:
        if self._working_since is not None:
            now = workflow.now()
            self._state = loop.with_worked(self._state, now - self._working_since)
            self._working_since = now

    def _note_saved(self, tree: str | None) -> None:
        if tree is not None:
            self._log("saved", f"the files as they were before going back are kept as tree {tree[:12]}")

    def _note_drift(self, tree: str | None) -> None:
        if tree is not None:
            self._log(
                "drift",
                f"files changed outside a pause were saved as tree {tree[:12]} and undone; pause first to keep edits",
            )

    def _note_stand_in(self, report: ExecutorReport) -> None:
        if not report.executor:
            return
        why = "; ".join(report.passed_over)
        text = f"{report.executor} works in place of {self._request.executor.name}: {why}"
        if all(entry.text[:200] != text[:200] for entry in self._state.timeline if entry.kind == "fallback"):
            self._log("fallback", text)
