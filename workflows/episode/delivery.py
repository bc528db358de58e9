"""Delivery: a plan is queued, and given to an executor until the work can be verified."""

from datetime import timedelta

from temporalio import workflow
from temporalio.exceptions import ApplicationError

from activities.executor.activity import ConcludeRequest, ExecuteRequest, ExecutionActivities, HandOffRequest
from tightloop.coder.display import path_line
from tightloop.coder.input import CoderInput
from tightloop.coder.model import CODER
from tightloop.episode.loop import decisions, state_changes
from tightloop.episode.model import EpisodePhase
from tightloop.episode.planning import PlanningOutcome
from tightloop.executor.asking import IN_A_WINDOW, report_by_message, report_on_work, report_question
from tightloop.executor.crash import RETRY, report_on_crash
from tightloop.executor.model import ExecutorReport, ExecutorStatus, backoff
from tightloop.plan.child import child_id
from tightloop.question import QuestionKind
from workflows.episode.record import EpisodeRecord
from workflows.episode.safe_points import Answered, SafePoints
from workflows.shared.activities import GRACE, HAND_OFF_TIMEOUT, ActivityOptions
from workflows.shared.child import run_coder

_REPORT_PATCH = "report-by-message"
"""An agent in a window can report while its executor watches it. Without it only what the window shows counted."""


class Delivery:
    """Delivers plans to the executor of an episode."""

    def __init__(self, record: EpisodeRecord, points: SafePoints) -> None:
        self._record, self._points = record, points

    async def deliver(self, plan: PlanningOutcome) -> ExecutorReport:
        """Hand the plan off and execute it; again after a limit or a question, where the executor was."""
        record, points = self._record, self._points
        number = 0
        while True:
            number += 1
            report = await self._execute(await self._hand_off(plan, number))
            points.leave_if_wanted()
            if report.status is ExecutorStatus.PAUSED and points.is_pause_wanted:
                continue  # the pause begins before it is handed off again
            question = decisions.after_execution(record.state, report).question
            if question is None:
                if report.status is not ExecutorStatus.LIMIT_HIT:
                    return report
                await self._back_off(report)
                continue
            answer = await points.ask(question)
            if question.kind is QuestionKind.WORK and answer is not None:
                report = report_on_work(report, answer, tree=record.state.tree)
                record.apply(state_changes.with_settled_report, report)
                return report
            if question.kind is QuestionKind.CRASH and (answer is None or answer.option != RETRY):
                report = report_on_crash(report, tree=record.state.tree)
                record.apply(state_changes.with_settled_report, report)
                return report

    async def _hand_off(self, plan: PlanningOutcome, number: int) -> str:
        """Queue the plan. Return the key of the delivery."""
        if plan.plan is None:
            raise ApplicationError("the planner answered with a plan but stored none", non_retryable=True)
        record, reference = self._record, plan.plan
        self._points.enter(EpisodePhase.HANDING_OFF)
        handed = await self._points.do(
            ExecutionActivities.hand_off,
            lambda: HandOffRequest(
                scope=record.scope,
                iteration=record.state.iteration,
                plan=reference,
                delivery=number,
                resume=record.state.resume,
                grants=record.state.grants,
            ),
            ActivityOptions(f"iteration {record.state.iteration}: queue the plan", HAND_OFF_TIMEOUT, self._queue),
        )
        record.apply(state_changes.with_retries, handed.attempt)
        return handed.key

    async def _execute(self, key: str) -> ExecutorReport:
        record = self._record
        self._points.enter(EpisodePhase.EXECUTING)
        limit = timedelta(seconds=record.request.executor.wall_limit_s)
        name = record.request.executor.name
        summary = f"{name}: {record.state.plan_title}"
        reports = name in IN_A_WINDOW and workflow.patched(_REPORT_PATCH)
        try:
            report = await self._points.do(
                ExecutionActivities.execute,
                lambda: ExecuteRequest(scope=record.scope, key=key, expected_tree=record.state.tree),
                ActivityOptions(summary, limit + GRACE, self._queue, beside=report_question() if reports else None),
            )
        except Answered as answered:
            before = ExecutorReport(status=ExecutorStatus.NEEDS_PERSON, key=key, new_tree=record.state.tree)
            await self._points.tree.take_tree("the agent has reported: look at what it left")
            report = report_by_message(before, answered.answer, executor=name, tree=record.state.tree)
        record.log_drift(report.drift)
        self._log_stand_in(report)
        if report.status is ExecutorStatus.DELEGATED:
            report = await self._by_coder(report)
        record.apply(state_changes.with_report, report)
        return report

    async def _by_coder(self, begun: ExecutorReport) -> ExecutorReport:
        """Have the coder carry the delivery out, and conclude it."""
        record = self._record
        limit = record.request.executor.wall_limit_s
        title = f"{CODER}: {record.state.plan_title}"
        _, _, place = begun.key.partition("/")
        identity = child_id(record.episode_id, CODER, record.state.iteration, place.rpartition("/")[2])
        result = await self._points.do_workflow(
            lambda: run_coder(identity, self._coder_input(begun, limit), title),
            ActivityOptions(title, timedelta(seconds=limit)),
            pause=lambda: workflow.get_external_workflow_handle(identity).signal("pause"),
        )
        record.log(CODER, path_line(result.progress))
        report: ExecutorReport = await self._points.do_next(
            ExecutionActivities.conclude,
            lambda: ConcludeRequest(scope=record.scope, begun=begun, result=result),
            ActivityOptions(f"{CODER}: conclude the delivery", HAND_OFF_TIMEOUT, self._queue),
        )
        return report

    def _coder_input(self, begun: ExecutorReport, limit_s: float) -> CoderInput:
        record = self._record
        scope = record.scope
        return CoderInput(
            workspace=scope.workspace,
            worktree=scope.worktree,
            request=scope.request,
            home=scope.home,
            absence_s=record.request.queues.absence_s,
            within=scope.holder,
            key=begun.key,
            base_tree=begun.new_tree,
            title=record.state.plan_title,
            wall_limit_s=limit_s,
        )

    async def _back_off(self, report: ExecutorReport) -> None:
        strike = self._record.state.limit_strikes
        wait = backoff(strike, report.limit)
        evidence = report.limit.evidence if report.limit else ""
        self._record.log("limit", f"strike {strike}: wait {wait.total_seconds():g} s. {evidence}")
        await self._points.back_off(wait)

    def _log_stand_in(self, report: ExecutorReport) -> None:
        """Note once that a fallback works."""
        if not report.executor:
            return
        why = "; ".join(report.passed_over)
        text = f"{report.executor} works in place of {self._record.request.executor.name}: {why}"
        noted = [entry.text[:200] for entry in self._record.state.timeline if entry.kind == "fallback"]
        if text[:200] not in noted:
            self._record.log("fallback", text)

    @property
    def _queue(self) -> str:
        queues = self._record.request.queues
        return queues.executor or queues.workspace
