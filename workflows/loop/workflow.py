"""Workflow of a project plan, and its messages."""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from temporalio import workflow
from temporalio.exceptions import ApplicationError, FailureError, is_cancelled_exception

from tightloop.errors import InvalidRequestError
from tightloop.loop import control
from tightloop.loop.model import CLOSED, LoopInput, LoopRequest, LoopResult, LoopState, LoopStatus, check_possible
from tightloop.loop.tasks import cancelled
from tightloop.plan.child import read_child_note, read_steps_note
from tightloop.question import Option, Question, QuestionKind
from tightloop.run.commands import read_remark
from tightloop.run.timeline import TimelineLine, TimelinePage
from tightloop.value import counted
from workflows.loop.context import LoopContext, LoopEnd
from workflows.loop.phases import Dispatching, LoopReporting, Planning, Verifying, Waiting
from workflows.run.activities import NOTICE, RETRIES_IN_TIME, ActivityRunner
from workflows.run.messages import refusals

R = TypeVar("R")
RESUME = Option(name="resume", effect="tasks start again")
CANCEL = Option(name="cancel", effect="the plan ends as cancelled")


class Handlers:
    """Does what signals and updates ask for."""

    def __init__(self, context: LoopContext, dispatching: Dispatching, reporting: LoopReporting) -> None:
        self._context, self._dispatching, self._reporting = context, dispatching, reporting

    # -- signals ---------------------------------------------------------------------------------------

    async def pause(self, value: Any) -> None:
        """Start nothing new; what runs goes on."""
        if self._context.status.status in CLOSED or self._context.is_paused:
            return
        remark = read_remark(value)
        title = remark.text or "paused by an operator"
        options = (RESUME, CANCEL)
        question = Question(
            id="",
            kind=QuestionKind.OPERATOR,
            title=title,
            options=options,
            default=RESUME.name,
            blocks="the plan",
            by=remark.by,
        )
        self._context.run.ask(question)
        self._context.log("paused", f"{title} (by {remark.by})")
        self._reporting.show()
        await self._pass_on("pause")

    async def resume(self, value: Any) -> None:
        """End a pause."""
        remark = read_remark(value)
        run = self._context.run
        if run.answer(run.core.questions.defaults(remark.text, remark.by)):
            await self._resumed(remark.by)

    def cancel(self, value: Any) -> None:
        """Stop what runs and end the plan."""
        if self._context.status.status not in CLOSED:
            remark = read_remark(value)
            self._cancel(remark.text, remark.by)

    def child_waits(self, value: Any) -> None:
        """Show what waits for a person in the runs of a round."""
        try:
            note = read_child_note(value)
        except InvalidRequestError as error:
            self._context.log("refused", error.message)
            return
        self._dispatching.hear_waits(note.workflow_id, lambda: self._context.hear(note.workflow_id, note.waits))

    def child_steps(self, value: Any) -> None:
        """Show where the tasks of a round stand."""
        try:
            note = read_steps_note(value)
        except InvalidRequestError as error:
            self._context.log("refused", error.message)
            return
        self._dispatching.hear_steps(note.workflow_id, note.steps)

    # -- updates ---------------------------------------------------------------------------------------

    def check(self, wanted: str, read: Callable[[Any], R], message: Any) -> R:
        """Return what `read` makes of a message that the state allows.

        Raises:
            ApplicationError: the state does not allow it, or the message is wrong.
        """
        with refusals():
            check_possible(self._context.snapshot(), wanted)
            if self._context.cancelled is not None:
                raise InvalidRequestError(f"{wanted}: the plan is being cancelled")
            return read(message)

    def dispatch(self, value: Any) -> str:
        """Have the tasks started."""
        word = self.check("dispatch", control.read_dispatch, value)
        context = self._context
        context.dispatch(control.parallel_wanted(word, context.request.parallel))
        context.log("dispatch_asked", f"by {word.by}")
        self._reporting.show()
        return f"{counted(len(context.status.tasks), 'task')} dispatched, {context.parallel} at a time"

    def verify(self, value: Any) -> str:
        """Have the gates run."""
        word = self.check("verify", control.read_verify, value)
        if self._context.is_verify_wanted:
            return "the gates are about to run already"
        self._context.verify()
        self._context.log("verify_asked", f"by {word.by}")
        return "the gates run"

    def cancel_now(self, value: Any) -> str:
        """Stop what runs and end the plan."""
        word = self.check("cancel", control.read_cancel, value)
        self._cancel(word.reason, word.by)
        return "the plan is being cancelled"

    def read_answer(self, value: Any) -> None:
        """Refuse an answer to nothing.

        Raises:
            ApplicationError: it answers no question.
        """
        with refusals():
            self._context.run.match(self._context.run.read_answer(value))

    async def answer(self, value: Any) -> str:
        """Take an answer to a question of the plan itself."""
        with refusals():
            run = self._context.run
            [(question, answer), *_] = run.answer(run.match(run.read_answer(value)))
        if answer.option == CANCEL.name:
            self._cancel(answer.text, answer.by)
            return "the plan is being cancelled"
        await self._resumed(answer.by)
        return f"{question.id}: {answer.option}"

    # -- what follows ----------------------------------------------------------------------------------

    def _cancel(self, text: str, by: str) -> None:
        reason = f"{text or 'cancelled'} (by {by})"
        self._context.log("cancel_asked", reason)
        self._context.cancel(reason)

    async def _resumed(self, by: str) -> None:
        self._context.log("resumed", f"by {by}")
        self._reporting.show()
        await self._pass_on("resume")

    async def _pass_on(self, signal: str) -> None:
        """Send a bare signal, which a workflow may send too, to the plan of the round that runs."""
        child = self._dispatching.child
        if not child:
            return
        try:
            await workflow.get_external_workflow_handle(child).signal(signal)
        except FailureError:
            workflow.logger.warning("%s has ended, and takes no %s", child, signal)


_KINDS = {
    LoopState.VERIFIED: "plan_verified",
    LoopState.FAILED: "plan_failed",
    LoopState.CANCELLED: "plan_cancelled",
}


@workflow.defn
class LoopWorkflow:
    """One plan of a project, from its inspection to its verification."""

    notice = NOTICE

    # Handlers may run before `run` does, so the state has to be there when the instance is.
    @workflow.init
    def __init__(self, request: LoopInput | None = None) -> None:
        """Begin as a draft without tasks."""
        self._context = context = LoopContext(request, plan_id=workflow.info().workflow_id)
        self._inbox = context.run.inbox
        self._activities = ActivityRunner(context.run, notice=self.notice, retry_policy=RETRIES_IN_TIME)
        self._reporting = LoopReporting(context)
        self._waiting = Waiting(context, self._activities)
        self._planning = Planning(context, self._waiting, self._reporting)
        self._dispatching = Dispatching(context, self._waiting, self._reporting, self._activities)
        self._verifying = Verifying(context, self._waiting, self._reporting, self._activities)
        self._handlers = Handlers(context, self._dispatching, self._reporting)

    @workflow.run
    async def run(self, request: LoopInput | None = None) -> LoopResult:
        """Inspect and plan, then wait for people who dispatch and verify."""
        del request  # `__init__` has it
        try:
            with refusals():
                self._context.check()
        except ApplicationError as refusal:
            self._context.close(LoopEnd(LoopState.FAILED, refusal.message))
            self._reporting.refuse()
            raise
        try:
            await self._carry_out()
        except LoopEnd as end:
            return await self._close(end)
        except BaseException as error:
            if is_cancelled_exception(error):
                await asyncio.shield(self._close(LoopEnd(LoopState.CANCELLED, "cancelled in Temporal")))
            raise
        raise AssertionError("a plan ends with LoopEnd")

    # -- what people say and ask ----------------------------------------------------------------------
    # An argument too many would stop the workflow at every try, so signals take any number.

    @workflow.signal(description="Start nothing new; what runs goes on. Optional: a reason as text.")
    async def pause(self, reason: Any = None, *_more: Any) -> None:
        """Pause; asking twice is harmless."""
        for content in self._inbox.take_signal(reason):
            await self._handlers.pause(content)

    @workflow.signal(description="End a pause.")
    async def resume(self, note: Any = None, *_more: Any) -> None:
        """Go on."""
        for content in self._inbox.take_signal(note):
            await self._handlers.resume(content)

    @workflow.signal(description="End the plan for good: what runs is stopped. Optional: a reason.")
    def cancel(self, reason: Any = None, *_more: Any) -> None:
        """Stop what runs and end the plan."""
        for content in self._inbox.take_signal(reason):
            self._handlers.cancel(content)

    @workflow.signal(description="Sent by the plan of a round: what waits there for a person")
    def child_waits(self, note: Any = None, *_more: Any) -> None:
        """Show it here too."""
        self._handlers.child_waits(note)

    @workflow.signal(description="Sent by the plan of a round: where its steps stand")
    def child_steps(self, note: Any = None, *_more: Any) -> None:
        """Show it here too."""
        self._handlers.child_steps(note)

    @workflow.update(description='Start the tasks: nothing, or {"parallel": 4, "by": "ada"}')
    def dispatch(self, word: Any = None) -> str:
        """Start the tasks of a draft."""
        return self._handlers.dispatch(self._inbox.take(word))

    @dispatch.validator
    def _check_dispatch(self, word: Any = None) -> None:
        self._handlers.check("dispatch", control.read_dispatch, self._inbox.read(word))

    @workflow.update(description='Run the gates: nothing, or {"by": "ada"}')
    def verify(self, word: Any = None) -> str:
        """Run the gates of a plan whose tasks have ended."""
        return self._handlers.verify(self._inbox.take(word))

    @verify.validator
    def _check_verify(self, word: Any = None) -> None:
        self._handlers.check("verify", control.read_verify, self._inbox.read(word))

    @workflow.update(name="cancel", description='End the plan for good: {"reason": "why", "by": "ada"}')
    def cancel_now(self, word: Any = None) -> str:
        """Stop what runs and end the plan."""
        return self._handlers.cancel_now(self._inbox.take(word))

    @cancel_now.validator
    def _check_cancel(self, word: Any = None) -> None:
        self._handlers.check("cancel", control.read_cancel, self._inbox.read(word))

    @workflow.update(description='Answer a question: {"question": "q1", "option": "resume"}; see the details')
    async def answer(self, answer: Any = None) -> str:
        """Answer a question of the plan itself."""
        return await self._handlers.answer(self._inbox.take(answer))

    @answer.validator
    def _check_answer(self, answer: Any = None) -> None:
        self._handlers.read_answer(self._inbox.read(answer))

    @workflow.query(description="Where the plan is, its tasks and its gates")
    def status(self) -> LoopStatus:
        """Return a snapshot."""
        return self._context.snapshot().evolve(waits_for=self._activities.waits_for)

    @property
    def place(self) -> str:
        """Where it is, for a replay."""
        return f"the plan is {self._context.status.status.value}"

    @workflow.query(description="What happened, newest last")
    def timeline(self) -> list[TimelineLine]:
        """Return the last lines."""
        return list(self._context.timeline.page(0).lines)

    @workflow.query(description="What happened, a page: after so many lines; -1: all that are its own")
    def events(self, after: int = 0) -> TimelinePage:
        """Return a page of the lines of this run."""
        return self._context.timeline.page(after)

    @workflow.query(description="The request")
    def request(self) -> LoopRequest:
        """Return what was asked for."""
        return self._context.request

    # -- the order of things --------------------------------------------------------------------------

    async def _carry_out(self) -> None:
        """Carry the plan out; it ends with `LoopEnd`."""
        context, waiting = self._context, self._waiting
        self._reporting.show()
        await self._planning.plan()
        await waiting.until(lambda: context.status.status is LoopState.DISPATCHING, "dispatch")
        await self._dispatching.run()
        while True:
            await waiting.until(lambda: context.is_verify_wanted, "verify")
            await self._verifying.run()

    async def _close(self, end: LoopEnd) -> LoopResult:
        """Close the plan.

        Raises:
            ApplicationError: it failed; its details hold the result.
        """
        context = self._context
        if end.state is LoopState.CANCELLED:
            context.set_tasks(cancelled(context.status.tasks))
        context.close(end)
        context.log(_KINDS[end.state], end.reason)
        self._reporting.show()
        await self._reporting.settle()
        await workflow.wait_condition(workflow.all_handlers_finished)
        status = context.status
        result = LoopResult(
            outcome=status.status,
            reason=status.reason,
            tasks=status.tasks,
            gate_result=status.gate_result,
            tree=status.tree,
        )
        if end.state is LoopState.FAILED:
            raise ApplicationError(end.reason, result, type="LoopFailed", non_retryable=True)
        return result
