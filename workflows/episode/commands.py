"""Commands of people to an episode. They are noted here; the episode acts on them at its next safe point."""

from collections.abc import Callable
from typing import Any

from tightloop.episode import control, decisions, state_changes
from tightloop.episode.budget import TopUp, topped_up
from tightloop.episode.checkpoint import MoveTarget, RestoreTarget, check_move
from tightloop.episode.control import Amendment
from tightloop.episode.decisions import CANCEL, END, WAIT, is_ended_by_message, make_question
from tightloop.errors import InvalidRequestError
from tightloop.run.commands import Remark, read_remark
from tightloop.run.question import Answer, AnswerCommand, Question, QuestionKind
from workflows.episode.record import EpisodeRecord
from workflows.run.workflow import Commands

_AFTER = {
    CANCEL: "the episode ends",
    END: "the episode pauses as soon as it has ended",
    WAIT: "the episode pauses when it has ended",
}


class EpisodeCommands(Commands):
    """Takes commands for an episode."""

    def __init__(self, record: EpisodeRecord, interrupt: Callable[[], None]) -> None:
        """`interrupt` stops the activity that is running."""
        self._record, self._interrupt = record, interrupt
        self._reported: tuple[int, str, str, str] | None = None

    def refuse_late(self) -> None:
        """Refuse what comes while the episode closes."""
        if not self._record.is_running:
            raise InvalidRequestError(f"the episode is closing ({self._record.status}) and takes no more messages")

    def pause(self, remark: Remark) -> None:
        """Ask for a pause; asking twice, or while a question waits, is harmless."""
        record = self._record
        # A restore or a move that is accepted ends the wait for an answer, but not the wish for a pause.
        is_asked = record.is_paused and not record.continues
        if is_asked and remark.text:
            record.log("refused", f"pause: {record.waiting[0].id} waits already; the reason was: {remark.text}")
        elif record.core.pause is None and not is_asked and record.is_running:
            self._intervene("pause")
            text = remark.text or "paused by an operator"
            record.want_pause(make_question(QuestionKind.OPERATOR, text, by=remark.by))

    async def resume(self, note: Any) -> None:
        """Choose the default of what waits, or take back a pause that has not begun; go back to a checkpoint."""
        if (isinstance(note, str) and note.startswith("ckpt-")) or (isinstance(note, dict) and "checkpoint_id" in note):
            try:
                self.refuse_late()
                self.restore(self.read_restore(note))
            except InvalidRequestError as error:
                self._record.log("refused", error.message)
            return
        record, remark = self._record, read_remark(note)
        answered = record.answer(record.core.questions.defaults(remark.text, remark.by))
        if answered or remark.text or record.core.pause is not None:
            self._intervene("resume")
        for question, answer in answered:
            self._apply(question, answer)
        left = [question for question in record.waiting if question.blocks]
        if left:
            record.log("refused", f"resume: {left[0].id} needs a decision. Send answer, such as {left[0].example}")
        if remark.text and (left or not answered):
            record.note(remark.text)
        record.want_pause(None)

    def cancel(self, remark: Remark) -> None:
        """Stop what is running and end the episode."""
        self._intervene("cancel")
        self._cancel(remark.text)

    def _cancel(self, reason: str) -> None:
        self._record.cancel(reason)
        if self._record.is_running:
            self._interrupt()

    # -- updates: what can be wrong, and is answered ---------------------------------------------------

    def restore(self, target: RestoreTarget) -> str:
        """Stop what is running and continue from a checkpoint as a new run."""
        self._record.restore_wanted = target
        self._intervene("restore")
        self._interrupt()
        branch = self._record.state.branch + 1
        return f"going back to {target.checkpoint_id}; a new run continues on branch {branch}"

    def read_restore(self, target: Any) -> RestoreTarget:
        """Return a checkpoint to go back to.

        Raises:
            InvalidRequestError: there is none of this id (the message names those that exist), or it is too late.
        """
        if self._record.core.cancel is not None:
            raise InvalidRequestError(
                "the episode is being cancelled. Once it is closed, restore opens it again from a checkpoint"
            )
        known = self._record.state.checkpoints
        return control.read_restore(target, known, newest=max((record.number for record in known), default=-1))

    def move(self, target: MoveTarget) -> str:
        """Stop what is running and go on from the last checkpoint in the remote store, on another host."""
        self._record.move_wanted = target
        self._intervene("move")
        self._interrupt()
        return f"moving to {target.to}; a new run goes on there from the last checkpoint in the remote store"

    def read_move(self, target: Any) -> MoveTarget:
        """Return the host to go on with.

        Raises:
            InvalidRequestError: the episode cannot move there; the message says why.
        """
        record, wanted = self._record, control.read_move(target)
        if record.core.cancel is not None:
            raise InvalidRequestError("move: the episode is being cancelled")
        check_move(wanted, home=record.request.queues.home, epoch=record.state.epoch, waits=record.is_paused)
        return wanted

    def respond(self, remark: Remark) -> str:
        """Give the planner a message. It ends a wait after which the planner is asked, and chooses no option."""
        # What does not resume comes from an agent.
        if remark.resumes:
            self._intervene("respond")
        self._record.note(f"{remark.by}: {remark.text}", asks=remark.resumes)
        self._record.log("response", f"{remark.by}: {remark.text}")
        waiting = self._record.waiting
        if not self._record.is_paused:
            return "the planner will read it"
        if not remark.resumes:
            return "the planner will read it; the episode stays paused"
        if not all(map(is_ended_by_message, waiting)):
            question = waiting[0]
            return f"the planner will read it; {question.id} still waits. Send answer, such as {question.example}"
        self._record.close_questions(*(question.id for question in waiting))
        return "the planner will read it; the episode goes on"

    def read_response(self, message: Any) -> Remark:
        """Return a message to the planner.

        Raises:
            InvalidRequestError: it is empty, or one more of an agent than the planner reads.
        """
        remark = control.read_response(message)
        if not remark.resumes and len(self._record.state.notes) >= state_changes.NOTES_LIMIT:
            raise InvalidRequestError(
                f"the planner has {state_changes.NOTES_LIMIT} messages to read already, and reads them with the next "
                "plan. Put what matters into the report"
            )
        return remark

    async def answer(self, command: AnswerCommand) -> str:
        """Answer the question that the episode waits for, or that is open beside what runs."""
        [(question, answer)] = matched = self._record.match(command)
        if not question.needs_person and answer.text:
            said = (self._record.state.iteration, answer.option, answer.text, answer.by)
            # An agent may send its report on a limit twice: the second one is not about the delivery after it.
            if said == self._reported:
                self._record.log("duplicate", f"{answer.by}: {answer.option} {answer.text}")
                return "this report was heard already, and is not about what runs now. If it happened again, say so"
            self._reported = said
        [(question, answer)] = self._record.answer(matched)
        if question.needs_person:
            self._intervene("answer")
        self._apply(question, answer)
        return f"the answer is {answer.option!r}; {_AFTER.get(answer.option, 'the episode goes on')}"

    def read_top_up(self, value: Any) -> TopUp:
        """Return what is added to the budget."""
        return control.read_top_up(value)

    async def top_up(self, addition: TopUp) -> str:
        """Raise the limits of the budget; a wait for that ends where it is enough."""
        record = self._record
        self._intervene("top_up")
        record.replace(record.state.evolve(budget=topped_up(record.state.budget, addition)))
        record.log("topped up", str(addition))
        still = decisions.guard_rails(record.state).question
        if still is not None:
            return f"the budget is raised, but {still.title}"
        for question in record.find(QuestionKind.BUDGET):
            record.settle_question(question)
        return "the budget is raised"

    def read_amendment(self, value: Any) -> Amendment:
        """Return a change of the request.

        Raises:
            InvalidRequestError: it cannot work; the message is about the first invalid field.
        """
        amendment = control.read_amendment(value)
        amendment.applied(self._record.request).check()
        return amendment

    def amend(self, change: Amendment) -> str:
        """Change what is pursued or who works on it, from the next step on."""
        record = self._record
        self._intervene("amend")
        before, request = record.request, change.applied(record.request)
        record.amend(request)
        record.is_amended = True
        if (request.goal, request.definition_of_done) != (before.goal, before.definition_of_done):
            record.replace(record.state.evolve(checked_tree=""))
            record.log("amended", f"the goal or the definition of done was changed by {change.by}")
            record.note("The goal or the definition of done was changed; read them again.")
        else:
            who = f"executor {request.executor.name}, planner {request.planner}"
            record.log("amended", f"{who} (by {change.by})")
        return "the change is used from the next step on"

    # -- what follows -----------------------------------------------------------------------------------

    def _intervene(self, message: str) -> None:
        record = self._record
        record.replace(state_changes.with_intervention(record.state))
        record.meter.count("tightloop_interventions", message=message)

    def _apply(self, question: Question, answer: Answer) -> None:
        if question.kind is not QuestionKind.OPERATOR:
            self._record.log("answered", f"{answer.by}: {answer.option} to {question.title!r} {answer.text}".rstrip())
        self._record.keep_answer(answer)
        if answer.option == CANCEL:
            self._cancel(answer.text)
        if not question.needs_person or (answer.option == END and self._record.core.pause is not None):
            self._interrupt()
