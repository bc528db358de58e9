"""The plan workflow: opens a plan, runs its steps as its graph allows, verifies what came out, and closes it.

This file is the order of things. Which step starts is decided in `tightloop/plan/engine/schedule.py`, what follows a
failure in `tightloop/plan/engine/recovery.py`; attempts are started in `workflows/plan/dispatch.py`, and what people
say is read in `workflows/plan/handlers.py`.
"""

import asyncio
from collections.abc import Awaitable
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ApplicationError, is_cancelled_exception

from tightloop.episode.model import TimelinePage
from tightloop.plan import control
from tightloop.plan.engine.state import PlanEvent
from tightloop.plan.progress import PlanInput
from tightloop.plan.request import PlanOutcome, PlanRequest, PlanResult, PlanStatus, StepPage
from tightloop.question import QuestionKind
from tightloop.safety.seal import Heard
from tightloop.value import counted
from workflows.plan.attempts import Attempt
from workflows.plan.context import PlanContext, PlanEnd
from workflows.plan.continuation import Continuation, ContinueAsNew
from workflows.plan.dispatch import Dispatch
from workflows.plan.ending import Ending, PlanProof
from workflows.plan.handlers import Handlers
from workflows.plan.opening import Opening
from workflows.plan.questions import PlanQuestions
from workflows.plan.recovery import Compensation, Recovery, Revisions
from workflows.plan.reporting import PlanReporting
from workflows.plan.waiting import NAMES_SHOWN, Waiting
from workflows.shared.activities import NOTICE, RETRIES_IN_TIME, ActivityRunner, Share
from workflows.shared.messages import Inbox, refusals
from workflows.shared.questions import Questions
from workflows.shared.reporting import Alerts, ParentNotice


@workflow.defn
class PlanWorkflow:
    """A graph of steps carried out to an outcome. Its history is the log of what was done."""

    notice = NOTICE

    # Handlers may run before `run` does, so the progress has to be there when the instance is.
    @workflow.init
    def __init__(self, request: PlanInput | None = None) -> None:
        """Restore the progress of the previous run, so that handlers see it at once."""
        info = workflow.info()
        self._context = context = PlanContext(request, plan_id=info.workflow_id)
        self._inbox = Inbox(request.sealed_as, request.heard) if request else Inbox(None, Heard())
        queue, running = context.request.queues.workspace, dict[str, Attempt]()
        share = Share(lambda: context.request, self._inbox, lambda: not context.is_open)
        self._activities = activities = ActivityRunner(
            lambda: context.request.queues,
            notice=self.notice,
            retry_policy=RETRIES_IN_TIME,
            priority=lambda: share.priority,
        )
        alerts = Alerts(queue, context.scope, lambda text: context.log("alert", detail=text), context.wake)
        self._open_questions = waiting = Questions(
            context.progress.questions, context.progress.asked, otherwise=lambda: self._reporting.answer_elsewhere
        )
        parent = ParentNotice(is_child=info.parent is not None, is_first_run=info.continued_run_id is None)
        self._reporting = PlanReporting(context, waiting, running, lambda: self._dispatch.is_idle, parent)
        self._questions = PlanQuestions(context, waiting, alerts, self._reporting.show)
        revisions = Revisions(context, self._questions, self._reporting, activities)
        compensation = Compensation(context, self._reporting, running, activities)
        recovery = Recovery(context, self._questions, revisions, compensation)
        self._dispatch = Dispatch(context, running, self._questions, recovery, alerts, activities)
        self._waiting = Waiting(context, self._dispatch, self._questions, alerts, self._reporting, running, activities)
        self._proof = PlanProof(context, self._waiting, self._questions, self._reporting, lambda: self._nothing_left)
        self._opening = Opening(context, self._waiting, recovery, self._proof, self._reporting, alerts)
        self._ending = Ending(context, self._dispatch, compensation, self._reporting, alerts, activities)
        self._continuation = Continuation(context, waiting)
        self._handlers = Handlers(context, waiting, self._questions, revisions, self._reporting)
        self._alerts, self._revisions, self._recovery, self._running = alerts, revisions, recovery, running
        # A reset is announced in no other way: the run that it makes gets a new random seed.
        workflow.register_random_seed_callback(self._waiting.on_reset)

    @workflow.run
    async def run(self, request: PlanInput | None = None) -> PlanResult:
        """Carry the plan out until its steps are done and verified, or a failure or a person ends it."""
        del request  # `__init__` has it
        try:
            with refusals():
                self._opening.check()
                self._inbox.check_start()
        except ApplicationError as refusal:
            self._opening.refuse(refusal.message)
            raise
        try:
            return await self._or_continue_as_new(self._carry_out())
        except BaseException as error:
            if is_cancelled_exception(error):
                self._context.cancel("cancelled in Temporal")
                reason = self._context.progress.cancel or ""
                await asyncio.shield(self._or_continue_as_new(self._ending.end(PlanEnd(reason))))
            raise

    # -- what people say and ask ----------------------------------------------------------------------
    # An argument too many would stop the workflow at every try, so signals take any number.

    @workflow.signal(description="Start no new steps; those that run go on. Optional: a reason as text.")
    def pause(self, reason: Any = None, *_more: Any) -> None:
        """Pause; asking twice is harmless."""
        for content in self._inbox.take_signal(reason):
            self._handlers.pause(content)

    @workflow.signal(description="Go on: choose the default of every question that has one.")
    async def resume(self, note: Any = None, *_more: Any) -> None:
        """End pauses that need no decision; failed steps are tried again, and edits of files are kept."""
        for content in self._inbox.take_signal(note):
            await self._handlers.resume(content)

    @workflow.signal(description="End the plan for good: running steps are stopped. Optional: a reason.")
    def cancel(self, reason: Any = None, *_more: Any) -> None:
        """Stop what runs and end the plan."""
        for content in self._inbox.take_signal(reason):
            self._handlers.cancel(content)

    @workflow.signal(description="Sent by the workflows that steps started: what waits there for a person")
    def child_waits(self, note: Any = None, *_more: Any) -> None:
        """Show it here too; a wrong note is logged in the timeline."""
        self._handlers.child_waits(note)

    @workflow.update(description='Answer a question: {"question": "q1", "option": "approve"}; see the details')
    async def answer(self, answer: Any = None) -> str:
        """Answer a question, or all questions of a window."""
        return await self._handlers.answer(self._inbox.take(answer))

    @answer.validator
    def _check_answer(self, answer: Any = None) -> None:
        self._handlers.check(self._open_questions.read, self._inbox.read(answer))

    @workflow.update(description='Change the plan: {"source": "<the whole plan>", "rationale": "why", "by": "ada"}')
    async def replan(self, word: Any = None) -> str:
        """Change the plan to another text, or (without one) have a planner write it."""
        return await self._handlers.replan(self._inbox.take(word))

    @replan.validator
    def _check_replan(self, word: Any = None) -> None:
        self._handlers.check(self._handlers.read_replan, self._inbox.read(word))

    @workflow.update(description='Start one step now, also in a pause, or a failed one again: "build"')
    def run_step(self, word: Any = None) -> str:
        """Start a step that is ready, or a failed one again, whatever the plan waits for."""
        return self._handlers.run_step(self._inbox.take(word))

    @run_step.validator
    def _check_run_step(self, word: Any = None) -> None:
        self._handlers.check(self._handlers.read_step, self._inbox.read(word))

    @workflow.update(description='Raise the budget, and go on if that is enough: {"cost_usd": 1, "attempts": 100}')
    async def top_up(self, addition: Any = None) -> str:
        """Raise bounds of the plan."""
        return await self._handlers.top_up(self._inbox.take(addition))

    @top_up.validator
    def _check_top_up(self, addition: Any = None) -> None:
        self._handlers.check(control.read_plan_top_up, self._inbox.read(addition))

    @workflow.query(description="Where the plan is, what it waits for and what it has spent")
    def status(self) -> PlanStatus:
        """Return a snapshot."""
        return self._reporting.snapshot().evolve(waits_for=self._activities.waits_for)

    @workflow.query(description="All steps, 500 a page: 1")
    def steps(self, page: int = 1) -> StepPage:
        """Return a page of the listing of steps, counted from 1."""
        return self._reporting.steps(page)

    @property
    def place(self) -> str:
        """Where it is, for a replay."""
        return f"the plan is {self._context.progress.phase.value}"

    @workflow.query(description="What happened, newest last")
    def timeline(self) -> list[PlanEvent]:
        """Return the last events."""
        return self._context.progress.timeline

    @workflow.query(description="What happened in this run, a page: after so many lines; -1: all that are its own")
    def events(self, after: int = 0) -> TimelinePage:
        """Return a page of the lines of this run."""
        return self._context.timeline.page(after)

    @workflow.query(description="The request")
    def request(self) -> PlanRequest:
        """Return what was asked for."""
        return self._context.request

    # -- the order of things --------------------------------------------------------------------------

    async def _carry_out(self) -> PlanResult:
        try:
            await self._opening.open()
            await self._pursue()
        except PlanEnd as end:
            return await self._ending.end(end)
        return await self._ending.close(PlanOutcome.COMPLETED, self._proof.summary)

    async def _pursue(self) -> None:
        """Start what may start and take in what has ended, until nothing is left to do."""
        while True:
            self._dispatch.take_in_ended()
            self._reporting.show(at_once=False)
            self._waiting.check()
            await self._waiting.keep_edits()
            # Before it is decided what starts, and after it: what starts is work.
            self._dispatch.count_time()
            self._dispatch.start_steps()
            self._dispatch.count_time()
            self._reporting.note_steps()
            # While the definition of done ran, people may have changed or paused the plan.
            if self._nothing_left and await self._is_done() and self._nothing_left:
                return
            self._continuation.start_when_due(
                is_suitable=not self._dispatch.has_children and not self._nothing_left,
                is_quiet=lambda: not (self._dispatch.is_running or self._recovery.is_beside or self._alerts.is_sending),
            )
            if self._continuation.is_draining:
                self._dispatch.stop_starting()
            await self._waiting.next_event()

    @property
    def _nothing_left(self) -> bool:
        return self._dispatch.is_idle and not self._questions.is_paused

    async def _is_done(self) -> bool:
        """Return whether the plan is completed; where a step failed, a person decides or the plan ends.

        Raises:
            PlanEnd: steps failed, and nobody is asked about them.
        """
        if self._questions.find(QuestionKind.FAILED_STEP):
            self._reporting.show()
            return False
        schedule, progress = self._context.schedule, self._context.progress
        left = schedule.list_unrecovered()
        if left:
            names = ", ".join(schedule.name(number) for number in left[:NAMES_SHOWN])
            why = progress.failures.get(schedule.name(left[0]))
            count = counted(len(left), "step")
            raise PlanEnd(f"{count} failed: {names}" + (f" ({why.reason})" if why else ""))
        return await self._proof.holds()

    # -- runs -------------------------------------------------------------------------------------------

    async def _or_continue_as_new(self, work: Awaitable[PlanResult]) -> PlanResult:
        try:
            return await work
        except ContinueAsNew:
            self._dispatch.count_time()
            self._recovery.stop_backing_off()
            progress = self._context.progress
            await self._reporting.settle()
            await workflow.wait_condition(lambda: workflow.all_handlers_finished() or progress.cancel is not None)
            if progress.cancel is not None:
                self._revisions.stop()
            # An update that is still running when the run ends fails for its caller.
            await workflow.wait_condition(workflow.all_handlers_finished)
            self._continuation.follow(self._inbox.heard)
