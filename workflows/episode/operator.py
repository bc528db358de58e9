"""What people want of an episode. It is only noted here; the loop acts on it at its next safe point."""

from collections.abc import Callable
from typing import Any

from tightloop.episode import control, decisions, state_changes
from tightloop.episode.budget import topped_up
from tightloop.episode.checkpoint import MoveTarget, RestoreTarget, check_move
from tightloop.episode.decisions import CANCEL, END, WAIT, is_ended_by_message, make_question
from tightloop.errors import InvalidRequestError
from tightloop.question import Answer, Question, QuestionKind, is_paused
from workflows.episode.record import EpisodeRecord
from workflows.shared.messages import refusals
from workflows.shared.questions import Questions
from workflows.shared.reporting import count_intervention

_AFTER = {
    CANCEL: "the episode ends",
    END: "the episode pauses as soon as it has ended",
    WAIT: "the episode pauses when it has ended",
}


class Operator:
    """Takes messages of people: signals tolerate anything, updates refuse with a sentence.

    Attributes:
        pause_wanted: the pause that begins at the next safe point.
        cancel_wanted: why the episode is to end.
        restore_wanted: where to go back to.
        move_wanted: the host that is to go on with it.
        is_amended: the request was changed and is still to be stored.
    """

    def __init__(
        self,
        record: EpisodeRecord,
        questions: Questions,
        interrupt: Callable[[], None],
        *,
        count: Callable[[str], None] = count_intervention,
    ) -> None:
        """Restore what people wanted while the previous run ended; `interrupt` stops the activity that is running."""
        self._record, self._questions, self._interrupt, self._count = record, questions, interrupt, count
        self.pause_wanted = record.state.pause
        self.cancel_wanted = record.state.cancel
        self.restore_wanted: RestoreTarget | None = None
        self.move_wanted: MoveTarget | None = None
        self.is_amended = record.state.amended
        self._answers: dict[str, Answer] = {}
        self._reported: tuple[int, str, str, str] | None = None

    # -- what the loop acts on -----------------------------------------------------------------------

    @property
    def is_leaving(self) -> bool:
        """Whether this run is to end."""
        return self.cancel_wanted is not None or self.continues

    @property
    def continues(self) -> bool:
        """Whether another run is to follow this one."""
        return self.restore_wanted is not None or self.move_wanted is not None

    def take_pause(self) -> Question | None:
        """Return the pause that is wanted, which begins now."""
        wanted, self.pause_wanted = self.pause_wanted, None
        return wanted

    def take_answer(self, question_id: str) -> Answer | None:
        """Return what was answered; None: the wait ended otherwise."""
        return self._answers.pop(question_id, None)

    def mark_amended(self, is_amended: bool) -> None:
        """Note whether the amended request is still to be stored."""
        self.is_amended = is_amended

    # -- signals: what cannot be wrong ---------------------------------------------------------------

    def pause(self, reason: Any) -> None:
        """Ask for a pause; asking twice, or while a question waits, is harmless."""
        # A restore or a move that is accepted ends the wait for an answer, but not the wish for a pause.
        is_asked = is_paused(self._questions.waiting) and not self.continues
        remark = control.read_remark(reason)
        if is_asked and remark.text:
            waiting = self._questions.waiting[0]
            self._record.log("refused", f"pause: {waiting.id} waits already; the reason was: {remark.text}")
        elif self.pause_wanted is None and not is_asked and self._record.is_open:
            self._intervene("pause")
            text = remark.text or "paused by an operator"
            self.pause_wanted = make_question(QuestionKind.OPERATOR, text, by=remark.by)

    def resume(self, note: Any) -> None:
        """Choose the default of what waits, or take back a pause that has not begun; go back to a checkpoint."""
        if (isinstance(note, str) and note.startswith("ckpt-")) or (isinstance(note, dict) and "checkpoint_id" in note):
            try:
                self.check_restore(note)
                self.restore(note)
            except InvalidRequestError as error:
                self._record.log("refused", error.message)
            return
        remark = control.read_remark(note)
        answered = self._questions.answer_by_default(text=remark.text, by=remark.by)
        if answered or remark.text or self.pause_wanted is not None:
            self._intervene("resume")
        for question, answer in answered:
            self._take(question, answer)
        left = [question for question in self._questions.waiting if question.blocks]
        if left:
            self._record.log(
                "refused", f"resume: {left[0].id} needs a decision. Send answer, such as {left[0].example}"
            )
        if remark.text and (left or not answered):
            self._record.note(remark.text)
        self.pause_wanted = None

    def cancel(self, reason: Any) -> None:
        """Stop what is running and end the episode."""
        self._intervene("cancel")
        self._cancel(reason)

    def _cancel(self, reason: Any) -> None:
        self.cancel_wanted = control.read_remark(reason).text
        if self._record.is_open:
            self._interrupt()

    # -- updates: what can be wrong, and is answered ---------------------------------------------------

    def check(self, read: Callable[[Any], object], message: Any) -> None:
        """Refuse a message that comes too late or that `read` refuses. Validators of updates only do this."""
        with refusals():
            self._refuse_when_closed()
            read(message)

    def restore(self, target: Any) -> str:
        """Stop what is running and continue from a checkpoint as a new run."""
        self.restore_wanted = self.read_restore(target)
        self._intervene("restore")
        self._interrupt()
        branch = self._record.state.branch + 1
        return f"going back to {self.restore_wanted.checkpoint_id}; a new run continues on branch {branch}"

    def read_restore(self, target: Any) -> RestoreTarget:
        """Return a checkpoint that exists.

        Raises:
            InvalidRequestError: none fits; the message names those that exist.
        """
        known = self._record.state.checkpoints
        return control.read_restore(target, known, newest=max((record.number for record in known), default=-1))

    def check_restore(self, target: Any) -> None:
        """Refuse to go back where that cannot happen any more, or where to is unknown.

        Raises:
            InvalidRequestError: with the reason.
        """
        self._refuse_when_closed()
        if self.cancel_wanted is not None:
            raise InvalidRequestError(
                "the episode is being cancelled. Once it is closed, restore opens it again from a checkpoint"
            )
        self.read_restore(target)

    def move(self, target: Any) -> str:
        """Stop what is running and go on from the last checkpoint in the remote store, on another host."""
        self.move_wanted = self.read_move(target)
        self._intervene("move")
        self._interrupt()
        return f"moving to {self.move_wanted.to}; a new run goes on there from the last checkpoint in the remote store"

    def leave_silent_host(self, successor: str) -> None:
        """Go on on another host as `move` does, because nothing was heard of this one for so long as settings allow."""
        if self._record.is_open and not self.is_leaving:
            self.move_wanted = MoveTarget(to=successor, reason="the host before was silent", by="tightloop")
            self._interrupt()

    def read_move(self, target: Any) -> MoveTarget:
        """Return the host to go on with.

        Raises:
            InvalidRequestError: it cannot; the message says why.
        """
        wanted = control.read_move(target)
        if self.cancel_wanted is not None:
            raise InvalidRequestError("move: the episode is being cancelled")
        home, waits = self._record.request.queues.home, is_paused(self._questions.waiting)
        check_move(wanted, home=home, epoch=self._record.state.epoch, waits=waits)
        return wanted

    def respond(self, message: Any) -> str:
        """Give the planner a message. It ends a wait after which the planner is asked, and chooses no option."""
        remark = control.read_response(message)
        # What does not resume comes from an agent.
        if remark.resumes:
            self._intervene("respond")
        self._record.note(f"{remark.by}: {remark.text}", asks=remark.resumes)
        self._record.log("response", f"{remark.by}: {remark.text}")
        waiting = self._questions.waiting
        if not is_paused(waiting):
            return "the planner will read it"
        if not remark.resumes:
            return "the planner will read it; the episode stays paused"
        if not all(map(is_ended_by_message, waiting)):
            question = waiting[0]
            return f"the planner will read it; {question.id} still waits. Send answer, such as {question.example}"
        for question in waiting:
            self._questions.close(question.id)
        return "the planner will read it; the episode goes on"

    def read_response(self, message: Any) -> None:
        """Refuse a message that is empty, or one more of an agent than the planner reads.

        Raises:
            InvalidRequestError: with the reason.
        """
        remark = control.read_response(message)
        if not remark.resumes and len(self._record.state.notes) >= state_changes.NOTES_LIMIT:
            raise InvalidRequestError(
                f"the planner has {state_changes.NOTES_LIMIT} messages to read already, and reads them with the next "
                "plan. Put what matters into the report"
            )

    def answer(self, value: Any) -> str:
        """Answer the question that the episode waits for, or that is open beside what runs."""
        [(question, answer)] = self._questions.read(value)
        if not question.needs_person and answer.text:
            said = (self._record.state.iteration, answer.option, answer.text, answer.by)
            # An agent may send its report on a limit twice: the second one is not about the delivery after it.
            if said == self._reported:
                self._record.log("duplicate", f"{answer.by}: {answer.option} {answer.text}")
                return "this report was heard already, and is not about what runs now. If it happened again, say so"
            self._reported = said
        [(question, answer)] = self._questions.answer(value)
        if question.needs_person:
            self._intervene("answer")
        self._take(question, answer)
        return f"the answer is {answer.option!r}; {_AFTER.get(answer.option, 'the episode goes on')}"

    def top_up(self, addition: Any) -> str:
        """Raise the bounded items of the budget; a wait for that ends where it is enough."""
        added = control.read_top_up(addition)
        self._intervene("top_up")
        state = self._record.state
        self._record.replace(state.evolve(budget=topped_up(state.budget, added)))
        self._record.log("topped up", control.describe_amounts(added))
        still = decisions.guard_rails(self._record.state).question
        if still is not None:
            return f"the budget is raised, but {still.title}"
        for question in self._questions.waiting:
            if question.kind is QuestionKind.BUDGET:
                self._questions.settle(question)
        return "the budget is raised"

    def amend(self, amendment: Any) -> str:
        """Change what is pursued or who works on it, from the next step on."""
        change = control.read_amendment(amendment)
        self._intervene("amend")
        before, request = self._record.request, change.applied(self._record.request)
        self._record.amend(request)
        self.is_amended = True
        if (request.goal, request.definition_of_done) != (before.goal, before.definition_of_done):
            self._record.replace(self._record.state.evolve(checked_tree=""))
            self._record.log("amended", f"the goal or the definition of done was changed by {change.by}")
            self._record.note("The goal or the definition of done was changed; read them again.")
        else:
            who = f"executor {request.executor.name}, planner {request.planner}"
            self._record.log("amended", f"{who} (by {change.by})")
        return "the change is used from the next step on"

    def read_amendment(self, amendment: Any) -> None:
        """Refuse a change that cannot work.

        Raises:
            InvalidRequestError: with a sentence for the first wrong field.
        """
        control.read_amendment(amendment).applied(self._record.request).check()

    # -- small things -------------------------------------------------------------------------------

    def _intervene(self, message: str) -> None:
        state = self._record.state
        spent = state.spent.evolve(interventions=state.spent.interventions + 1)
        self._record.replace(state.evolve(spent=spent))
        self._count(message)

    def _take(self, question: Question, answer: Answer) -> None:
        if question.kind is not QuestionKind.OPERATOR:
            self._record.log("answered", f"{answer.by}: {answer.option} to {question.title!r} {answer.text}".rstrip())
        self._answers[question.id] = answer
        if answer.option == CANCEL:
            self._cancel({"text": answer.text, "by": answer.by})
        if not question.needs_person or (answer.option == END and self.pause_wanted is not None):
            self._interrupt()

    def _refuse_when_closed(self) -> None:
        if not self._record.is_open:
            raise InvalidRequestError(f"the episode is closing ({self._record.status}) and takes no more messages")
