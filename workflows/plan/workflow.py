"""The plan workflow: opens a plan, runs its steps in graph order, verifies the result and closes the plan.

This file contains the main loop. `tightloop/plan/engine/schedule.py` decides which steps start, and
`tightloop/plan/engine/recovery.py` decides how failures are handled. `workflows/plan/dispatch.py` starts attempts, and
`workflows/plan/commands.py` handles messages.
"""

from datetime import timedelta
from typing import Any

from temporalio import workflow

from activities.plan.activity import PlanActivities
from activities.plan.requests import LoadPlanRequest, OpenedPlan, OpenPlanRequest
from activities.workspace.activity import WorkspaceActivities
from activities.workspace.port import SetUpRequest
from tightloop.checks.setup import Setup
from tightloop.ledger.alert import AlertKind
from tightloop.plan.engine.graph import Graph
from tightloop.plan.progress import PlanInput
from tightloop.plan.request import (
    RIGHT_PLAN_INPUT,
    PlanOutcome,
    PlanPhase,
    PlanRequest,
    PlanResult,
    PlanStatus,
    StepPage,
)
from tightloop.run.question import QuestionKind
from tightloop.value import format_count, shorten
from tightloop.value.scrub import scrub
from workflows.plan.commands import NAMES_SHOWN, PlanCommands, Waiting
from workflows.plan.context import Continuation, PlanContext, PlanEnd
from workflows.plan.dispatch import Dispatch
from workflows.plan.ending import Ending, PlanProof
from workflows.plan.recovery import Compensation, Recovery, Revisions
from workflows.plan.reporting import PlanQuestions, PlanReporting, PlanView
from workflows.run.activities import (
    NOTICE,
    OPEN_TIMEOUT,
    RETRIES_IN_TIME,
    SETUP_TIMEOUT,
    ActivityFailedError,
    ActivityRunner,
)
from workflows.run.kernel import NotOpenedError
from workflows.run.reporting import first_row
from workflows.run.workflow import RunWorkflow

OPEN_WITH_PLANNER_TIMEOUT = timedelta(minutes=60)


class Opening:
    """Opens or loads a plan."""

    def __init__(
        self,
        context: PlanContext,
        waiting: Waiting,
        recovery: Recovery,
        proof: PlanProof,
        questions: PlanQuestions,
        reporting: PlanReporting,
    ) -> None:
        self._context, self._waiting, self._recovery, self._proof = context, waiting, recovery, proof
        self._questions, self._reporting = questions, reporting

    async def open(self) -> None:
        """Open a new plan, or load the graph of the previous Temporal run.

        Raises:
            PlanEnd: this run continues a compensation that the previous run began.
            NotOpenedError: a new plan cannot be opened. An alert was sent.
        """
        context = self._context
        is_new = context.progress.plan is None
        if is_new:
            opened = await self._open_new()
        else:
            opened = await self._waiting.run(
                PlanActivities.load_plan,
                lambda: LoadPlanRequest(scope=context.scope),
                context.on_host(f"load revision {context.progress.revision}", OPEN_TIMEOUT),
            )
        graph = Graph.unpack(opened.graph)
        context.open(graph, has_planner=opened.planner)
        if is_new:
            context.begin(opened, graph)
            workflow.upsert_memo({"goal": shorten(scrub(context.title), 200)})
            await self._set_up(opened.setup)
            if self._proof.is_needed:
                self._reporting.enter(PlanPhase.VERIFYING)
                await self._proof.begin()
        self._recovery.restore()
        if context.progress.phase is PlanPhase.COMPENSATING:
            raise PlanEnd(context.progress.reason, compensate=True)
        self._reporting.enter(PlanPhase.RUNNING)

    async def _set_up(self, setup: Setup | None) -> None:
        """Install the project's packages. Ask a person about each command that has not been decided yet.

        Raises:
            PlanEnd: there was no answer in time, or the answer ended the plan.
        """
        while setup is not None:
            if not setup.decision:
                self._questions.ask_about_setup(setup)
                await self._waiting.wait_for_answer()
                setup = setup.decide(self._context.progress.decisions[QuestionKind.SETUP.value][-1])
            setup = await self._carry_out(setup)

    async def _carry_out(self, setup: Setup) -> Setup | None:
        """Carry out the decision about a setup command. Return the next setup to ask about, or None."""
        context = self._context
        done = await self._waiting.run(
            WorkspaceActivities.set_up,
            lambda: SetUpRequest(scope=context.scope, expected_tree=context.progress.tree, setup=setup),
            context.on_host(f"set up: {shorten(setup.command, 80)}", SETUP_TIMEOUT),
        )
        context.log_drift(done.drift)
        for note in done.notes:
            context.log("setup", note)
        return done.setup

    async def _open_new(self) -> OpenedPlan:
        context = self._context
        limit = OPEN_WITH_PLANNER_TIMEOUT if context.request.goal else OPEN_TIMEOUT
        # Unlike the run id it survives a reset, so that the workspace is claimed once.
        opening = workflow.info().original_execution_run_id
        request = OpenPlanRequest(
            scope=context.scope,
            request=context.request,
            opening=opening,
            is_new=context.is_first,
            snapshot=first_row(context.kind, context.title or context.request.goal),
        )
        options = context.on_host("check the plan and claim the workspace", limit)
        while True:
            try:
                return await self._waiting.run_once(PlanActivities.open_plan, request, options)
            except ActivityFailedError as failure:
                if failure.no_worker:
                    await self._waiting.ask_about(failure)
                    continue
                if context.request.depth == 1:
                    await context.alerts.send_last(context.alert(AlertKind.FAILED, failure.reason))
                raise NotOpenedError(failure.reason, "PlanNotOpened") from failure


class GraphWorkflow(RunWorkflow):
    """Base class of the workflows that run a graph of steps."""

    notice = NOTICE
    view_type: type[PlanView] = PlanView
    reporting_type: type[PlanReporting] = PlanReporting
    commands_type: type[PlanCommands] = PlanCommands

    def _set_up(self, context: PlanContext) -> None:
        """Create the objects that the workflow delegates to."""
        self._run = self._context = context
        context.watch_resets()
        activities = ActivityRunner(context, notice=self.notice, retry_policy=RETRIES_IN_TIME)
        self._activities = activities
        self._view = self.view_type(context, activities)
        self._reporting = self._steps = reporting = self.reporting_type(context, self._view)
        questions = PlanQuestions(context, reporting.show)
        self._revisions = Revisions(context, questions, reporting, activities)
        compensation = Compensation(context, reporting, activities)
        self._recovery = Recovery(context, questions, self._revisions, compensation)
        self._dispatch = Dispatch(context, questions, self._recovery, activities)
        self._waiting = Waiting(context, self._dispatch, reporting, activities)
        self._proof = PlanProof(context, self._waiting, questions, reporting)
        self._opening = Opening(context, self._waiting, self._recovery, self._proof, questions, reporting)
        self._ending = Ending(context, self._dispatch, compensation, reporting, activities)
        self._continuation = Continuation(context)
        self._commands = self._orders = self.commands_type(context, questions, self._revisions, self._view, reporting)

    # -- messages -------------------------------------------------------------------------------------

    @workflow.signal(description="Report open questions. This signal is sent only by steps' child workflows")
    def child_waits(self, note: Any = None, *_more: Any) -> None:
        """Show the open questions of a child workflow. An invalid note is only logged in the timeline."""
        self._orders.child_waits(note)

    @workflow.query(description="All steps, 500 per page. Argument: the page number, starting at 1")
    def steps(self, page: int = 1) -> StepPage:
        """Return one page of the steps. Pages are numbered from 1."""
        return self._view.steps(page)

    # -- main loop ------------------------------------------------------------------------------------

    async def _carry_out(self) -> PlanResult:
        try:
            await self._opening.open()
            await self._pursue()
        except PlanEnd as end:
            return await self._ending.end(end)
        return await self._ending.close(PlanOutcome.COMPLETED, self._proof.summary, self._proof.qualifier)

    async def _pursue(self) -> None:
        """Start steps and apply their results until nothing is left to do."""
        context = self._context
        while True:
            self._dispatch.apply_ended_attempts()
            self._reporting.show(at_once=False)
            self._waiting.check()
            # Before steps start, because they expect the tree that contains the edits.
            await self._waiting.keep_edits()
            # Counted before and after starting steps, because starting them changes whether the plan is busy.
            self._dispatch.count_time()
            self._dispatch.start_steps()
            self._dispatch.count_time()
            # People may have changed or paused the plan while the definition of done ran.
            if context.is_nothing_left and await self._is_done() and context.is_nothing_left:
                return
            # Child workflows may take hours to drain, and a plan that is about to end needs no new run.
            is_suitable = not self._dispatch.has_children and not context.is_nothing_left
            self._continuation.start_when_due(is_suitable=is_suitable)
            if self._continuation.is_draining:
                self._dispatch.stop_starting()
            await self._before_waiting()
            await self._waiting.next_event()

    async def _before_waiting(self) -> None:
        """Prepare to wait for the next event. The default implementation does nothing."""

    async def _is_done(self) -> bool:
        """Return whether the plan is completed.

        Failed steps end the plan unless a question about the steps is open.

        Raises:
            PlanEnd: steps failed, and no question about the steps is open.
        """
        if self._context.find(QuestionKind.FAILED_STEP):
            self._reporting.show()
            return False
        schedule, progress = self._context.schedule, self._context.progress
        left = schedule.list_unrecovered_steps()
        if left:
            names = ", ".join(schedule.name(number) for number in left[:NAMES_SHOWN])
            why = progress.failures.get(schedule.name(left[0]))
            count = format_count(len(left), "step")
            raise PlanEnd(f"{count} failed: {names}" + (f" ({why.reason})" if why else ""))
        return await self._proof.holds()

    # -- end --------------------------------------------------------------------------------------------

    async def _end_cancelled_run(self) -> PlanResult:
        return await self._ending.end(PlanEnd(self._context.core.cancel or ""))

    async def _leave(self) -> None:
        context = self._context
        self._dispatch.count_time()
        # A timer that fires during continue-as-new makes the server reject the command, and the task is repeated.
        self._recovery.stop_backing_off()
        await self._reporting.settle()
        # A cancellation must not wait for a revision that a planner is still writing.
        await workflow.wait_condition(lambda: workflow.all_handlers_finished() or context.core.cancel is not None)
        if context.core.cancel is not None:
            self._revisions.stop()


@workflow.defn
class PlanWorkflow(GraphWorkflow):
    """Carries out a plan until there is an outcome. The workflow history is its log."""

    @workflow.init
    def __init__(self, request: PlanInput | None = None) -> None:
        """Restore the state of the previous Temporal run, because handlers may run before `run` starts."""
        plan_input = request or PlanInput(
            problem=f"the workflow input is missing. Example of a valid input: {RIGHT_PLAN_INPUT}"
        )
        self._set_up(PlanContext(plan_input, run_id=workflow.info().workflow_id))

    @workflow.run
    async def run(self, request: PlanInput | None = None) -> PlanResult:
        """Run the plan until its steps are done and verified, a failure occurs, or a person ends it."""
        del request  # `__init__` has read it
        result: PlanResult = await self._live()
        return result

    # -- messages of a plan only ------------------------------------------------------------------------

    @workflow.update(description='Change the plan: {"source": "<the whole plan>", "rationale": "why", "by": "ada"}')
    async def replan(self, message: Any = None) -> str:
        """Replace the text of the plan. If no text is given, a planner writes the text."""
        return await self._orders.replan(self._take(self._orders.read_replan, message))

    @replan.validator
    def _check_replan(self, message: Any = None) -> None:
        self._check(self._orders.read_replan, message)

    @workflow.update(description='Start a step now, even during a pause, or retry a failed step, for example "build"')
    def run_step(self, message: Any = None) -> str:
        """Start a ready step, or retry a failed one, even if the plan is paused."""
        return self._orders.run_step(self._take(self._orders.read_step, message))

    @run_step.validator
    def _check_run_step(self, message: Any = None) -> None:
        self._check(self._orders.read_step, message)

    @workflow.query(description="Current state of the plan, what it is waiting for and what it has spent")
    def status(self) -> PlanStatus:
        """Return a snapshot of the plan."""
        return self._view.status()

    @property
    def place(self) -> str:
        """Current phase, as shown by the replay tool."""
        return f"the plan is {self._context.progress.phase.value}"

    @workflow.query(description="The request")
    def request(self) -> PlanRequest:
        return self._context.request

    # -- hooks of the base class -----------------------------------------------------------------------

    def _check_request(self) -> None:
        if self._context.is_first_run:
            self._context.request.check()

    def _next_input(self) -> PlanInput:
        return self._continuation.next_input()
