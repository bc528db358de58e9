"""The episode workflow: plan, hand off, execute, verify, track, reflect - until the checks are green.

This file is the order of things. What a step decides is in `tightloop/loop/`, what it does in
`activities/`; what an operator may say is read by `tightloop/control.py`.
"""

import asyncio
from datetime import timedelta
from functools import partial
from typing import NoReturn, TypeVar

from activities.execution.activity import ExecuteRequest, ExecutionActivities, HandOffRequest
from activities.planning.activity import NextPlanRequest, PlanningActivities
from activities.reflexion.activity import ReflectRequest, ReflexionActivities
from activities.tracking.activity import TrackingActivities, TrackRequest
from activities.verification.activity import VerificationActivities, VerifyRequest
from activities.workspace.activity import (
    CloseRequest,
    OpenRequest,
    RestoreRequest,
    WorkspaceActivities,
)
from temporalio import workflow
from temporalio.common import SearchAttributeKey
from temporalio.exceptions import ApplicationError, is_cancelled_exception
from tightloop import loop
from tightloop.check import Verification
from tightloop.checkpoint import CheckpointRecord
from tightloop.episode import (
    EpisodeInput,
    EpisodeOutcome,
    EpisodePhase,
    EpisodeRequest,
    EpisodeResult,
    EpisodeState,
    RestoreTarget,
)
from tightloop.errors import InvalidRequestError
from tightloop.executor import AnswerKind, ExecutorReport, ExecutorStatus, QuestionKind, answered
from tightloop.loop import Step
from tightloop.planning import PlanOutcome, PlanVerdict
from tightloop.value import clip

from workflows.metering import count_episode
from workflows.safe_points import PAUSE_KIND, STATUS, Ended, GivesWay, SafePoints
from workflows.steps import (
    CLOSE_TIMEOUT,
    GRACE,
    HAND_OFF_TIMEOUT,
    OPEN_TIMEOUT,
    PLAN_TIMEOUT,
    REFLECT_TIMEOUT,
    RESTORE_TIMEOUT,
    TRACK_TIMEOUT,
    Call,
    StepFailedError,
)

ITERATION = SearchAttributeKey.for_int("TightloopIteration")

A = TypeVar("A")
R = TypeVar("R")


@workflow.defn
class EpisodeWorkflow(SafePoints):
    """One goal pursued to an outcome. Its history is the checkpoint and replay log."""

    @workflow.init
    def __init__(self, request: EpisodeInput | None = None) -> None:
        """Take up the state of the run before, so that handlers see it at once."""
        super().__init__(request)
        self._first_iteration = self._state.iteration

    @workflow.run
    async def run(self, request: EpisodeInput | None = None) -> EpisodeResult:
        """Pursue the goal until the checks are green, a bound is reached or a person ends it."""
        del request  # `__init__` took it up
        self._refuse_bad_input()
        self._working_since = workflow.now()
        try:
            await self._begin()
            while True:
                await self._iterate()
                self._continue_as_new_when_due()
        except Ended as end:
            return await self._end(end.outcome, end.reason)
        except GivesWay:
            await self._continue_as_new()
        except BaseException as error:
            if is_cancelled_exception(error):
                await asyncio.shield(self._close(EpisodeOutcome.ABORTED, "cancelled in Temporal"))
            raise

    # -- the loop ---------------------------------------------------------------------------------

    async def _begin(self) -> None:
        """Open the workspace of a new episode, or go back to the checkpoint that this run is for."""
        target = self._state.restore or self._input.restore
        if self._state.request is None:
            await self._open()
        if target is not None:
            await self._go_back(target)

    async def _iterate(self) -> None:
        """Make one pass, then decide."""
        await self._check_unseen_tree()
        await self._reflect_when_needed()
        await self._guard()
        before = self._state
        self._state = loop.begin_iteration(before)
        workflow.upsert_search_attributes([ITERATION.value_set(self._state.iteration)])
        plan = await self._plan()
        report = await self._deliver(plan) if plan.verdict is PlanVerdict.PLANNED else None
        verification = None
        if plan.verdict is not PlanVerdict.MALFORMED:
            verification = await self._verify(f"iteration {self._state.iteration}: run the definition of done")
            self._state = loop.with_verification(self._state, verification)
        await self._track(before, report, verification)
        decision = loop.after_tracking(self._state, self._request)
        await self._follow(decision)
        if loop.change_stands(self._state, decision):
            await self._follow(loop.after_tracking(self._state, self._request))

    async def _check_unseen_tree(self) -> None:
        """Run the checks where no result fits: at the start, after a person's edits, after an amendment."""
        if self._state.checks is not None and self._state.checked_tree == self._state.tree:
            return
        fresh = not self._state.checked_tree
        verification = await self._verify("checks before the next plan", previous=not fresh)
        self._state = loop.with_verification(self._state, verification, baseline=fresh)
        if loop.is_complete(self._state):
            raise Ended(EpisodeOutcome.SUCCEEDED, f"all checks pass: {self._state.checks_text}")

    async def _plan(self) -> PlanOutcome:
        while True:
            await self._check_unseen_tree()
            self._enter(EpisodePhase.PLANNING)
            outcome = await self._do(
                PlanningActivities.next_plan,
                lambda: NextPlanRequest(
                    scope=self._scope(),
                    iteration=self._state.iteration,
                    plan_request=self._state.plan_request,
                    checks=self._state.checks,
                    reflection=self._state.reflection,
                    notes=self._state.notes,
                    overruled=self._state.overruled,
                ),
                Call(f"iteration {self._state.iteration}: next plan", PLAN_TIMEOUT, self._request.queues.llm),
            )
            self._state = loop.with_plan(self._state, outcome)
            decision = loop.after_planning(outcome, self._state.overruled)
            await self._follow(decision)
            if decision.step is not Step.PAUSE or loop.plan_stands(self._state, outcome):
                return outcome

    async def _deliver(self, plan: PlanOutcome) -> ExecutorReport:
        """Hand the plan off and execute it; again after a limit, with the executor's resume token."""
        delivery = 0
        while True:
            delivery += 1
            self._enter(EpisodePhase.HANDING_OFF)
            key = await self._hand_off(plan, delivery)
            self._enter(EpisodePhase.EXECUTING)
            limit = timedelta(seconds=self._request.executor.wall_limit_s)
            summary = f"{self._request.executor.name}: {self._state.plan_title}"
            report = await self._do(
                ExecutionActivities.execute,
                partial(self._order, key),
                Call(summary, limit + GRACE, self._executor_queue(), busy_for=limit),
            )
            self._state = loop.with_report(self._state, report)
            self._note_drift(report.drift)
            self._note_stand_in(report)
            decision = loop.after_execution(self._state, report)
            if decision.pause is not None and decision.pause.question is not None:
                report = await self._ask(decision, report)
                if report.question is None:
                    return report
                continue
            await self._follow(decision)
            if decision.step is Step.PAUSE:
                continue
            if report.status is not ExecutorStatus.LIMIT_HIT:
                return report
            await self._back_off(report)

    async def _ask(self, decision: loop.Decision, report: ExecutorReport) -> ExecutorReport:
        """Wait for a person's answer; the report keeps its question where the plan is to be delivered again."""
        question = report.question
        self._take_answer()
        await self._follow(decision)
        answer = self._take_answer()
        if question is None or answer is None:
            return report
        self._log("answered", f"{answer.by}: {answer.kind.value} to {question.title!r} {answer.text}".rstrip())
        if question.kind is QuestionKind.PERMISSION:
            allowed = answer.kind is AnswerKind.ALLOW
            self._state = loop.with_grant(self._state, question, allowed=allowed)
            if answer.text:
                self._state = loop.with_note(self._state, f"{answer.by}, asked about {question.title}: {answer.text}")
            return report
        report = answered(report, answer, tree=self._state.tree)
        self._state = loop.with_answered(self._state, report)
        return report

    def _order(self, key: str) -> ExecuteRequest:
        return ExecuteRequest(scope=self._scope(), key=key, expected_tree=self._state.tree)

    async def _hand_off(self, plan: PlanOutcome, delivery: int) -> str:
        if plan.plan is None:
            raise ApplicationError("the planner answered with a plan but stored none", non_retryable=True)
        reference = plan.plan
        handed = await self._do(
            ExecutionActivities.hand_off,
            lambda: HandOffRequest(
                scope=self._scope(),
                iteration=self._state.iteration,
                plan=reference,
                delivery=delivery,
                resume=self._state.resume,
                grants=self._state.grants,
            ),
            Call(f"iteration {self._state.iteration}: queue the plan", HAND_OFF_TIMEOUT, self._executor_queue()),
        )
        self._state = loop.with_retries(self._state, handed.attempt)
        return handed.key

    async def _verify(self, summary: str, *, previous: bool = True) -> Verification:
        self._enter(EpisodePhase.VERIFYING)
        limit = timedelta(seconds=sum(check.timeout_s for check in self._request.definition_of_done))
        verification = await self._do(
            VerificationActivities.verify,
            lambda: VerifyRequest(
                scope=self._scope(),
                expected_tree=self._state.tree,
                previous=self._state.checks if previous else None,
            ),
            Call(summary, limit + GRACE, self._request.queues.workspace),
        )
        self._note_drift(verification.drift)
        return verification

    async def _track(
        self, before: EpisodeState, report: ExecutorReport | None, verification: Verification | None
    ) -> None:
        self._enter(EpisodePhase.TRACKING)
        last = before.last_checkpoint
        since = self._working_since or workflow.now()
        worked = self._state.spent.wall_time - before.spent.wall_time + (workflow.now() - since)
        tracked = await self._do(
            TrackingActivities.track_iteration,
            lambda: TrackRequest(
                scope=self._scope(),
                state=self._state.model_copy(update={"checkpoints": (), "timeline": ()}),
                base_tree=before.tree,
                base_lines=last.lines if last and last.tree == before.tree else None,
                previous_plan=before.plan,
                checks_before=before.checks_text,
                parent=last.id if last else None,
                report=report,
                verification=verification,
                worked=worked,
            ),
            Call(
                f"iteration {self._state.iteration}: checkpoint and class",
                TRACK_TIMEOUT,
                self._request.queues.workspace,
            ),
        )
        record = tracked.checkpoint.model_copy(update={"event_id": workflow.info().get_current_history_length()})
        self._state = loop.with_tracking(self._state, tracked.model_copy(update={"checkpoint": record}), verification)
        self._note_drift(tracked.drift)
        self._log(
            "iteration",
            f"{record.id}: {self._state.plan_title or 'no plan'} - checks {record.checks}, "
            f"{tracked.tracking.probability_class.value}, {tracked.tracking.files_changed} files changed"
            + (f"; executor {report.status.value}: {clip(report.error, 100)}" if report and report.error else ""),
        )

    async def _reflect_when_needed(self) -> None:
        cause = self._state.reflect_next
        if cause is None:
            return
        self._enter(EpisodePhase.REFLECTING)
        outcome = await self._do(
            ReflexionActivities.reflect,
            lambda: ReflectRequest(
                scope=self._scope(),
                cause=cause,
                detail=self._state.reflect_detail,
                plan_request=self._state.plan_request,
                checks=self._state.checks,
                previous=self._state.reflection,
            ),
            Call(f"reflect: {cause.value}", REFLECT_TIMEOUT, self._request.queues.llm),
        )
        self._state = loop.with_reflection(self._state, outcome)

    async def _guard(self) -> None:
        """Wait here until the budget allows another iteration."""
        while True:
            self._count_work()
            decision = loop.guard_rails(self._state)
            if decision.step is not Step.PAUSE:
                return
            await self._follow(decision)

    async def _follow(self, decision: loop.Decision) -> None:
        self._leave_if_asked()
        if decision.step is Step.SUCCEED:
            raise Ended(EpisodeOutcome.SUCCEEDED, f"all checks pass: {self._state.checks_text}")
        if decision.pause is not None:
            allowed = self._state.overruled
            await self._wait_for_person(decision.pause)
            if self._state.overruled != allowed:
                self._log("allowed", f"a person allowed {decision.pause.reason}")

    # -- opening, going back, closing ---------------------------------------------------------------

    def _refuse_bad_input(self) -> None:
        problem = self._input.problem
        if not problem:
            try:
                self._request.check()
                return
            except InvalidRequestError as error:
                problem = error.message
        raise ApplicationError(problem, type="InvalidRequestError", non_retryable=True)

    async def _open(self) -> None:
        try:
            opened = await self._steps.run(
                WorkspaceActivities.open_workspace,
                OpenRequest(
                    scope=self._scope(),
                    episode=self._request,
                    opening=workflow.info().original_execution_run_id,
                ),
                Call("check and claim the workspace", OPEN_TIMEOUT, self._request.queues.workspace),
            )
        except StepFailedError as failure:
            if self._steps.interrupted:
                raise Ended(EpisodeOutcome.ABORTED, self._abort_wanted or "aborted") from None
            await self._alert_failure(failure.reason)
            raise ApplicationError(failure.reason, type="WorkspaceError", non_retryable=True) from failure
        record = opened.checkpoint.model_copy(update={"event_id": workflow.info().get_current_history_length()})
        self._state = self._state.model_copy(
            update={"request": opened.request, "tree": opened.tree, "checkpoints": (record,), "trees": (opened.tree,)}
        )
        self._log("opened", f"{record.id}: " + ("; ".join(opened.notes) or "the workspace is ready"))

    async def _go_back(self, target: RestoreTarget) -> None:
        self._enter(EpisodePhase.RESTORING)
        found = await self._do(
            WorkspaceActivities.restore_checkpoint,
            lambda: RestoreRequest(
                scope=self._scope(),
                target=target,
                record=self._known(target),
                closed=self._state.restore is None and not target.episode_id,
            ),
            Call(f"restore {target.checkpoint_id}", RESTORE_TIMEOUT, self._request.queues.workspace),
        )
        current = loop.taken_up(self._state, found.newest, found.known)
        self._state = loop.with_retries(loop.restored(current, found.state, found.record), found.attempt)
        self._note_saved(found.saved_tree)
        why = f"back to {target.checkpoint_id}" + (f": {target.reason}" if target.reason else "")
        self._state = self._state.model_copy(update={"reflect_detail": why})
        self._log("restored", f"{why} (by {target.by or 'operator'}), branch {self._state.branch}")

    def _known(self, target: RestoreTarget) -> CheckpointRecord | None:
        if target.episode_id:
            return None
        return next((record for record in self._state.checkpoints if record.id == target.checkpoint_id), None)

    async def _end(self, outcome: EpisodeOutcome, reason: str) -> EpisodeResult:
        self._count_work()
        await self._close(outcome, reason)
        result = loop.result_of(self._state, outcome, reason)
        if outcome is EpisodeOutcome.FAILED:
            raise ApplicationError(reason, result, type="EpisodeFailed", non_retryable=True)
        return result

    async def _close(self, outcome: EpisodeOutcome, reason: str) -> None:
        self._status = outcome.value.lower()
        self._log("closed", f"{outcome.value}: {reason}")
        keep = self._state.tree if outcome is EpisodeOutcome.SUCCEEDED else ""
        if self._state.request is not None:
            try:
                await self._steps.run(
                    WorkspaceActivities.close_workspace,
                    CloseRequest(scope=self._scope(), outcome=outcome, reason=reason, expected_tree=keep),
                    Call(f"close: {outcome.value}", CLOSE_TIMEOUT, self._request.queues.workspace),
                )
            except StepFailedError as failure:
                self._log("closed", f"the workspace could not be given back: {failure.reason}")
        count_episode(outcome, self._state.spent)
        self._enter(EpisodePhase.CLOSED)
        workflow.upsert_search_attributes([STATUS.value_set(self._status), PAUSE_KIND.value_unset()])
        await workflow.wait_condition(workflow.all_handlers_finished)

    def _continue_as_new_when_due(self) -> None:
        self._leave_if_asked()
        done = self._state.iteration - self._first_iteration
        suggested = workflow.info().is_continue_as_new_suggested()
        if loop.may_continue_as_new(self._state, self._request, iterations_in_run=done, suggested=suggested):
            raise GivesWay

    async def _continue_as_new(self) -> NoReturn:
        """Follow this run with a new one; handlers finish first, and what they were told goes along."""
        self._count_work()
        await workflow.wait_condition(workflow.all_handlers_finished)
        state = self._state.model_copy(
            update={
                "restore": self._restore_wanted,
                "abort": self._abort_wanted,
                "amended": self._amended,
                "pause": self._pause_wanted,
                "runs": self._state.runs + 1,
            }
        )
        fields = {name: getattr(self._request, name) for name in EpisodeRequest.model_fields}
        workflow.continue_as_new(EpisodeInput(**fields, state=state))
