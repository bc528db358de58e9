"""What people and the plans of its rounds tell a project's plan."""

from collections.abc import Callable
from typing import Any, TypeVar

from temporalio import workflow
from temporalio.exceptions import FailureError

from tightloop.episode.control import read_remark
from tightloop.errors import InvalidRequestError
from tightloop.loop import control
from tightloop.loop.states import CLOSED, check_possible
from tightloop.plan.child import read_child_note, read_steps_note
from tightloop.question import Option, Question, QuestionKind
from tightloop.value import counted
from workflows.loop.context import LoopContext
from workflows.loop.dispatching import Dispatching
from workflows.loop.reporting import LoopReporting
from workflows.shared.questions import Questions
from workflows.shared.refusal import refusals

R = TypeVar("R")
RESUME = Option(name="resume", effect="tasks start again")
CANCEL = Option(name="cancel", effect="the plan ends as cancelled")


class Handlers:
    """Does what signals and updates ask for."""

    def __init__(
        self, context: LoopContext, questions: Questions, dispatching: Dispatching, reporting: LoopReporting
    ) -> None:
        self._context, self._questions = context, questions
        self._dispatching, self._reporting = dispatching, reporting

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
        self._questions.ask(question)
        self._context.log("paused", f"{title} (by {remark.by})")
        self._reporting.show()
        await self._pass_on("pause")

    async def resume(self, value: Any) -> None:
        """End a pause."""
        remark = read_remark(value)
        if self._questions.answer_by_default(text=remark.text, by=remark.by):
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
            self._questions.read(value)

    async def answer(self, value: Any) -> str:
        """Take an answer to a question of the plan itself."""
        with refusals():
            [(question, answer), *_] = self._questions.answer(value)
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
