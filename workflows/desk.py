"""The operator's desk of an episode: signals, updates and queries, and what they leave for the loop.

Handlers only take note; the loop acts on it at its next safe point.
"""

from collections.abc import Callable
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ApplicationError
from tightloop import control, loop
from tightloop.budget import topped_up
from tightloop.checkpoint import CheckpointRecord
from tightloop.display import details_markdown, status_of
from tightloop.episode import (
    RIGHT_INPUT,
    EpisodeInput,
    EpisodePhase,
    EpisodeRequest,
    EpisodeState,
    EpisodeStatus,
    Pause,
    PauseKind,
    RestoreTarget,
    TimelineEntry,
    first_state,
)
from tightloop.errors import InvalidRequestError
from tightloop.executor import Answer, Question
from tightloop.loop import Step
from tightloop.value import shorten

from workflows.steps import Steps


class OperatorDesk:
    """What people say to an episode, and what they can ask it."""

    def __init__(self, request: EpisodeInput | None = None) -> None:
        """Take up the state of the run before."""
        self._input = request or EpisodeInput(problem=f"there is no input. A right input: {RIGHT_INPUT}")
        self._request: EpisodeRequest = EpisodeRequest() if self._input.problem else self._input.as_request()
        self._state: EpisodeState = self._input.state or first_state(self._request)
        self._status = "running"
        self._steps = Steps()
        self._pause_wanted: Pause | None = self._state.pause
        self._resume_wanted = False
        self._answer: Answer | None = None
        self._abort_wanted: str | None = self._state.abort
        self._restore_wanted: RestoreTarget | None = None
        self._amended = self._state.amended
        self._resets = 0
        workflow.register_random_seed_callback(self._on_reset)

    # -- signals: what cannot be wrong ---------------------------------------------------------------

    @workflow.signal(description="Pause at the next safe point. Optional: a reason as text.")
    def pause(self, reason: Any = None, *_more: Any) -> None:
        """Ask for a pause; asking twice is harmless."""
        if self._pause_wanted is None and self._status == "running":
            remark = self._remark(reason)
            text = remark.text or "paused by an operator"
            self._pause_wanted = loop.paused(PauseKind.OPERATOR, text, by=remark.by).pause

    @workflow.signal(description="End a pause. Optional: a checkpoint id to go back to, or a note.")
    def resume(self, note: Any = None, *_more: Any) -> None:
        """End a pause, or take a pause back that has not begun. A checkpoint id goes back to it first."""
        if (isinstance(note, str) and note.startswith("ckpt-")) or (isinstance(note, dict) and "checkpoint_id" in note):
            try:
                self._refuse_when_closing()
                self._go_back_to(note)
            except InvalidRequestError as error:
                self._log("refused", error.message)
            return
        remark = self._remark(note)
        if not self._takes_as_answer(remark) and remark.text:
            self._state = loop.with_note(self._state, remark.text)
        self._resume_wanted = True
        if self._state.pause is None:
            self._pause_wanted = None

    @workflow.signal(description="End the episode for good; the files stay as they are. Optional: a reason.")
    def abort(self, reason: Any = None, *_more: Any) -> None:
        """Stop what is running and end the episode."""
        self._abort_wanted = self._remark(reason).text
        if self._status == "running":
            self._steps.interrupt()

    # -- updates: what can be wrong, and is answered ---------------------------------------------------

    @workflow.update(
        description='Go back to a checkpoint, state and files: {"checkpoint_id": "ckpt-2", "reason": "why"}'
    )
    async def restore_checkpoint(self, target: Any = None) -> str:
        """Stop what is running and continue from a checkpoint as a new run."""
        wanted = self._go_back_to(target)
        return f"going back to {wanted.checkpoint_id}; a new run continues on branch {self._state.branch + 1}"

    @restore_checkpoint.validator
    def _check_restore(self, target: Any = None) -> None:
        self._checked(lambda: self._read_restore(target))

    @workflow.update(description='Tell the planner something, and resume if it waits: "use the other parser"')
    async def respond(self, message: Any = None) -> str:
        """Give the planner a message, or report on the work that the episode waits for; ends a pause."""
        remark = control.read_response(message)
        question = self._question
        if question is not None and self._takes_as_answer(remark):
            self._resume_wanted = True
            return "it is taken as the answer; the episode goes on"
        self._state = loop.with_note(self._state, f"{remark.by}: {remark.text}")
        self._log("response", f"{remark.by}: {remark.text}")
        if question is not None:
            return f"the planner will read it; the question is still open. Send answer: {_examples(question)}"
        waits = self._state.pause is not None
        self._resume_wanted = self._resume_wanted or waits
        return "the planner will read it" + ("; the episode goes on" if waits else "")

    @respond.validator
    def _check_respond(self, message: Any = None) -> None:
        self._checked(lambda: control.read_response(message))

    @workflow.update(
        description='Answer what the executor asks: "allow", "deny", "done", "failed: why", or the JSON of the details'
    )
    async def answer(self, said: Any = None) -> str:
        """Answer the question that the episode waits for; ends the pause."""
        given = control.read_answer(said, self._asked())
        self._answer = given
        self._resume_wanted = True
        return f"the answer is {given.kind.value!r}; the episode goes on"

    @answer.validator
    def _check_answer(self, said: Any = None) -> None:
        self._checked(lambda: control.read_answer(said, self._asked()))

    @workflow.update(description='Raise the budget, and resume if it waits for that: {"iterations": 5}')
    async def top_up(self, addition: Any = None) -> str:
        """Raise the bounded items of the budget."""
        self._state = self._state.model_copy(
            update={"budget": topped_up(self._state.budget, control.read_top_up(addition))}
        )
        enough = loop.guard_rails(self._state).step is Step.CONTINUE
        if self._state.pause is not None and self._state.pause.kind is PauseKind.BUDGET and enough:
            self._resume_wanted = True
        self._log("topped up", str(addition))
        return "the budget is raised" + ("" if enough else ", but another bound is still reached")

    @top_up.validator
    def _check_top_up(self, addition: Any = None) -> None:
        self._checked(lambda: control.read_top_up(addition))

    @workflow.update(
        description='Change the goal, the definition of done or who works: {"goal": "...", '
        '"definition_of_done": ["pytest -q"], "executor": {"name": "codex"}}'
    )
    async def amend_goal(self, amendment: Any = None) -> str:
        """Change what is pursued or who works on it, from the next step on."""
        change = control.read_amendment(amendment)
        before, self._request = self._request, change.applied(self._request)
        self._amended = True
        if (self._request.goal, self._request.definition_of_done) != (before.goal, before.definition_of_done):
            self._state = self._state.model_copy(update={"checked_tree": ""})
            self._log("amended", f"the goal or the definition of done was changed by {change.by}")
            self._state = loop.with_note(
                self._state, "The goal or the definition of done was changed; read them again."
            )
        else:
            choice = self._request.executor
            self._log("amended", f"executor {choice.name}, planner {self._request.planner} (by {change.by})")
        return "the change is used from the next step on"

    @amend_goal.validator
    def _check_amend(self, amendment: Any = None) -> None:
        self._checked(lambda: control.read_amendment(amendment).applied(self._request).check())

    # -- queries ---------------------------------------------------------------------------------------

    @workflow.query(description="Where the episode is, what it waits for and what it has spent")
    def status(self) -> EpisodeStatus:
        """Return a snapshot."""
        info = workflow.info()
        status = "paused" if self._state.pause is not None and self._status == "running" else self._status
        seen = status_of(self._request, self._state, episode_id=info.workflow_id, run_id=info.run_id, status=status)
        asked = self._pause_wanted is not None and self._state.pause is None and self._status == "running"
        return seen.model_copy(update={"pause_requested": asked})

    @workflow.query(description="Checkpoints, newest last, also discarded ones")
    def checkpoints(self) -> list[CheckpointRecord]:
        """Return the checkpoints that this run carries."""
        return list(self._state.checkpoints)

    @workflow.query(description="What happened, newest last")
    def timeline(self) -> list[TimelineEntry]:
        """Return the last events."""
        return list(self._state.timeline)

    @workflow.query(description="The request, with amendments")
    def request(self) -> EpisodeRequest:
        """Return what was asked for."""
        return self._request

    # -- small things -------------------------------------------------------------------------------

    def _on_reset(self, _seed: int) -> None:
        # Runs outside the workflow's event loop: only a mark may be left here.
        self._resets += 1

    @property
    def _question(self) -> Question | None:
        """What the episode waits for an answer to, and has none yet."""
        pause = self._state.pause
        return None if pause is None or self._answer is not None else pause.question

    def _asked(self) -> Question:
        question = self._question
        if question is None:
            state = "it was answered already" if self._answer is not None else "nothing is asked now"
            raise InvalidRequestError(f'answer: {state}. Talk to the planner with respond, such as: "use lib/parse.py"')
        return question

    def _take_answer(self) -> Answer | None:
        """Return what was answered, and forget it."""
        given, self._answer = self._answer, None
        return given

    def _takes_as_answer(self, remark: control.Remark) -> bool:
        """Take a remark as the answer to an open question, if it is one; a bare one means that work is done."""
        question = self._question
        self._answer = self._answer or (control.as_answer(remark, question) if question else None)
        return question is not None and self._answer is not None

    def _go_back_to(self, target: Any) -> RestoreTarget:
        self._restore_wanted = self._read_restore(target)
        self._steps.interrupt()
        return self._restore_wanted

    def _read_restore(self, target: Any) -> RestoreTarget:
        known = self._state.checkpoints
        return control.read_restore(target, known, newest=max((record.number for record in known), default=-1))

    def _checked(self, read: Callable[[], object]) -> None:
        try:
            self._refuse_when_closing()
            read()
        except InvalidRequestError as error:
            raise ApplicationError(error.message, type="InvalidRequestError", non_retryable=True) from None

    def _refuse_when_closing(self) -> None:
        if self._status != "running":
            raise InvalidRequestError(f"the episode is closing ({self._status}) and takes no more messages")

    @staticmethod
    def _remark(value: Any) -> control.Remark:
        try:
            return control.read_remark(value)
        except InvalidRequestError:
            return control.Remark(text=shorten(str(value), 200))

    def _log(self, kind: str, text: str) -> None:
        self._state = loop.with_entry(self._state, workflow.now(), kind, text)

    def _enter(self, phase: EpisodePhase) -> None:
        self._state = self._state.model_copy(update={"phase": phase})
        self._show(self._status)

    def _show(self, status: str) -> None:
        workflow.set_current_details(details_markdown(self._request, self._state, status=status))


def _examples(question: Question) -> str:
    return control.ANSWER_EXAMPLES[question.kind]
