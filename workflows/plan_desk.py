"""The operator's desk of a plan: signals, updates and queries. Handlers take note and wake the loop."""

import difflib
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from temporalio import workflow
from temporalio.exceptions import ApplicationError
from tightloop.control import Remark, read_remark
from tightloop.episode import PauseKind
from tightloop.errors import InvalidRequestError
from tightloop.plan import control
from tightloop.plan.book import is_decided
from tightloop.plan.child_wait import read_child_note
from tightloop.plan.control import FailureAnswer, FailureWord, GateWord
from tightloop.plan.engine.schedule import Schedule
from tightloop.plan.input import PlanInput
from tightloop.plan.request import PlanRequest, PlanStatus, StepPage
from tightloop.plan.result import PersonDecision, StepStatus
from tightloop.plan.state import PlanEvent
from tightloop.value import shorten

from workflows.plan_notice import RESUME, Ended
from workflows.plan_revision import ENDING, PlanRevisions

PAGE_LINES = 500
MESSAGE_CHARACTERS = 2_000

R = TypeVar("R")


class PlanDesk(PlanRevisions):
    """What people say to a plan, and what they can ask it."""

    def __init__(self, request: PlanInput | None = None) -> None:
        """Begin with nothing said."""
        super().__init__(request)
        self._before_open: deque[Callable[[], object]] = deque()

    # -- signals ------------------------------------------------------------------------------------
    # An argument too many would stop the workflow at every try, so they take any number.

    @workflow.signal(description="Start no new steps; those that run go on. Optional: a reason as text.")
    def pause(self, reason: Any = None, *_more: Any) -> None:
        """Pause; asking twice is harmless."""
        if self._status != "running":
            return
        remark = _remark(reason)
        text = remark.text or "paused by an operator"
        if self._book.pause is None:
            self._begin_pause(PauseKind.OPERATOR, text, RESUME, by=remark.by)
        else:
            self._pause_too(text, remark.by)

    @workflow.signal(description="End a pause; failed steps that a person was asked about are tried again.")
    def resume(self, note: Any = None, *_more: Any) -> None:
        """End a pause. Edits of files that a person made meanwhile are kept."""
        pause = self._book.pause
        if pause is None:
            return
        if pause.kind == PauseKind.RESPONSE:
            by = _remark(note).by
            self._when_open(lambda: self._answer_failures(list(self._book.asked), FailureAnswer.RETRY, by=by))
        self._end_pause(_remark(note), wholly=True)

    @workflow.signal(description="End the plan for good: running steps are stopped. Optional: a reason.")
    def cancel(self, reason: Any = None, *_more: Any) -> None:
        """Stop what runs and end the plan."""
        if self._status == "running" and self._book.cancel is None:
            remark = _remark(reason)
            self._book.cancel = remark.text or f"cancelled by {remark.by}"
            self._log("cancelled", detail=f"{self._book.cancel} (by {remark.by})")
            self._wake()

    @workflow.signal(
        description='Approve what waits: no input where one gate waits, "gate", or the JSON of the details'
    )
    def approve_gate(self, word: Any = None, *_more: Any) -> None:
        """Approve; a wrong word is noted in the timeline."""
        self._when_open(lambda: self._decide(word, approved=True))

    @workflow.signal(description='Refuse what waits: "gate", or {"gate": "...", "rationale": "why"}')
    def reject_gate(self, word: Any = None, *_more: Any) -> None:
        """Refuse; a wrong word is noted in the timeline."""
        self._when_open(lambda: self._decide(word, approved=False))

    @workflow.signal(name="answer", description='Say what follows a failure: "retry", "skip", "abort"')
    def answer_failure(self, word: Any = None, *_more: Any) -> None:
        """Answer; a wrong word is noted in the timeline."""
        self._when_open(lambda: self._answer(control.read_failure_word(word)))

    @workflow.signal(description="Told by the workflows that steps started: what waits there for a person")
    def child_waits(self, note: Any = None, *_more: Any) -> None:
        """Show it here too; a wrong word is noted in the timeline."""
        self._tolerantly(lambda: self._hear(read_child_note(note)))

    # -- updates ------------------------------------------------------------------------------------

    @workflow.update(description='Approve what waits: {"gate": "release", "by": "ada", "rationale": "looked at it"}')
    async def approve(self, word: Any = None) -> str:
        """Approve a gate, or all gates of a window."""
        return await self._done_when_open(lambda: self._decide(word, approved=True))

    @approve.validator
    def _check_approve(self, word: Any = None) -> None:
        self._checked(lambda: self._approvable(control.read_gate_word(word, what="approve_gate")))

    @workflow.update(description='Refuse what waits: {"gate": "release", "by": "ada", "rationale": "why"}')
    async def reject(self, word: Any = None) -> str:
        """Refuse a gate, or all gates of a window; for the plan that is a failure of class policy."""
        return await self._done_when_open(lambda: self._decide(word, approved=False))

    @reject.validator
    def _check_reject(self, word: Any = None) -> None:
        what = "reject_gate"
        self._checked(
            lambda: control.gates_meant(control.read_gate_word(word, what=what), self._book.waiting, what=what)
        )

    @workflow.update(
        description='Say what follows a failure: {"step": "build", "answer": "retry"} or skip, abort, replan'
    )
    async def answer(self, word: Any = None) -> str:
        """Answer about failed steps."""
        said = control.read_failure_word(word)
        if said.answer is FailureAnswer.REPLAN:
            trouble = "; ".join(self._book.failures[name].reason for name in self._asked_about(said.step)[:10])
            return await self._revise(
                said.text, f"an answer about {said.step or 'what failed'}", said.by, trouble=trouble
            )
        return await self._done_when_open(lambda: self._answer(said))

    @answer.validator
    def _check_answer(self, word: Any = None) -> None:
        self._checked(lambda: self._asked_about(control.read_failure_word(word).step))

    @workflow.update(description='Change the plan: {"source": "<the whole plan>", "rationale": "why", "by": "ada"}')
    async def replan(self, word: Any = None) -> str:
        """Take up another text of the plan, or (without one) ask a planner for it."""
        said = control.read_replan(word)
        return await self._revise(said.source, said.rationale, said.by)

    @replan.validator
    def _check_replan(self, word: Any = None) -> None:
        self._checked(lambda: (self._known_schedule(), control.read_replan(word)))

    @workflow.update(description='Start one step now, also in a pause, or a failed one again: "build"')
    def run_step(self, word: Any = None) -> str:
        """Start a step that is ready, or a failed one again, whatever the plan waits for."""
        name = self._startable(control.read_step_word(word).step)
        schedule = self._known_schedule()
        number = schedule.find(name)
        if number is not None and schedule.status(number) is StepStatus.FAILED:
            schedule.reopen(number)
            self._book.settled(name)
        self._book.wanted.append(name)
        self._log("wanted", name, f"by {control.read_step_word(word).by}")
        self._wake()
        return f"{name} is started as soon as the tree is free"

    @run_step.validator
    def _check_run_step(self, word: Any = None) -> None:
        self._checked(lambda: self._startable(control.read_step_word(word).step))

    @workflow.update(description='Raise the budget, and resume if it waits for that: {"cost_usd": 1, "steps": 100}')
    async def top_up(self, addition: Any = None) -> str:
        """Raise bounds of the plan."""
        # Before the plan is open its own budget is not known.
        return await self._done_when_open(lambda: self._raise_bounds(addition))

    @top_up.validator
    def _check_top_up(self, addition: Any = None) -> None:
        self._checked(lambda: control.read_plan_top_up(addition))

    # -- queries ------------------------------------------------------------------------------------

    @workflow.query(description="Where the plan is, what it waits for and what it has spent")
    def status(self) -> PlanStatus:
        """Return a snapshot."""
        return self._snapshot()

    @workflow.query(description="All steps, 500 a page: 1")
    def steps(self, page: int = 1) -> StepPage:
        """Return a page of the listing of steps, counted from 1."""
        schedule = self._schedule
        if schedule is None:
            return StepPage()
        numbers = [number for number in range(len(schedule)) if not schedule.grown(number)]
        pages = max(-(-len(numbers) // PAGE_LINES), 1)
        page = min(max(page, 1), pages)
        shown = numbers[(page - 1) * PAGE_LINES : page * PAGE_LINES]
        lines = tuple(self._line(schedule.name(number)) for number in shown)
        return StepPage(lines=lines, page=page, pages=pages, total=len(numbers))

    @workflow.query(description="What happened, newest last")
    def timeline(self) -> list[PlanEvent]:
        """Return the last events."""
        return list(self._book.timeline)

    @workflow.query(description="The request")
    def request(self) -> PlanRequest:
        """Return what was asked for."""
        return self._request

    # -- gates and failures -------------------------------------------------------------------------

    def _raise_bounds(self, addition: Any) -> str:
        self._book.budget = control.read_plan_top_up(addition).applied(self._book.budget)
        self._log("topped up", detail=str(addition))
        still = self._breach()
        if self._book.pause is not None and self._book.pause.kind == PauseKind.BUDGET and still is None:
            self._end_pause(Remark())
        return "the budget is raised" + (f", but {still}" if still else "")

    def _approvable(self, word: GateWord) -> list[str]:
        """Return the steps that an approval counts for; of a window those that it fits."""
        waiting = self._book.waiting
        fitting: list[str] = []
        refusal: InvalidRequestError | None = None
        for name in control.gates_meant(word, waiting, what="approve_gate"):
            try:
                control.check_approval(word, name, waiting[name])
                fitting.append(name)
            except InvalidRequestError as error:
                refusal = refusal or error
        if not fitting and refusal is not None:
            raise refusal
        return fitting

    def _rejectable(self, word: GateWord) -> list[str]:
        return list(control.gates_meant(word, self._book.waiting, what="reject_gate"))

    def _decide(self, value: Any, *, approved: bool) -> str:
        word = control.read_gate_word(value, what="approve_gate" if approved else "reject_gate")
        meant = self._approvable(word) if approved else self._rejectable(word)
        return "; ".join([self._decide_one(name, word, approved=approved) for name in meant])

    def _decide_one(self, name: str, word: GateWord, *, approved: bool) -> str:
        decision = PersonDecision(
            step=name,
            by=word.by,
            approved=approved,
            option=word.option if approved else "",
            rationale=word.rationale,
            at=workflow.now(),
        )
        gate = self._book.decide(self._book.waiting[name], decision)
        said = "approved" if approved else "rejected"
        detail = " ".join(part for part in (f"by {word.by}", word.option, word.rationale) if part)
        self._log(said, name, detail)
        if not is_decided(gate):
            missing = gate.question.count - len({each.by for each in gate.decisions})
            self._show(force=True)
            return f"{name} is approved by {word.by}; {missing} more must approve"
        del self._book.waiting[name]
        self._book.decisions[name] = gate.decisions
        number = self._known_schedule().find(name)
        if number is not None:
            self._known_schedule().ready_again(number)
        self._wake()
        self._show_attention()
        return f"{name} is {said}"

    def _asked_about(self, step: str) -> list[str]:
        asked = self._book.asked
        if step and step in asked:
            return [step]
        if not asked and not (self._unmet and not step):
            raise InvalidRequestError("answer: no failed step waits for an answer now")
        if step:
            known = ", ".join(asked[:12])
            raise InvalidRequestError(f"answer: {step!r} does not wait for an answer. Waiting are: {known}")
        return list(asked)

    def _answer(self, said: FailureWord) -> str:
        names = self._asked_about(said.step)
        if said.answer is FailureAnswer.REPLAN:
            raise InvalidRequestError("answer: to change the plan send the update answer, or replan, not a signal")
        self._answer_failures(names, said.answer, by=said.by)
        if not names and said.answer is FailureAnswer.ABORT:
            self._over = Ended(f"the definition of done does not hold, and {said.by} leaves it so")
        if not self._book.asked and self._book.pause is not None and self._book.pause.kind == PauseKind.RESPONSE:
            self._end_pause(Remark(by=said.by))
        return f"{', '.join(names[:12]) or 'the definition of done'}: {said.answer.value}"

    def _answer_failures(self, names: list[str], answer: FailureAnswer, *, by: str) -> None:
        schedule = self._known_schedule()
        for name in names:
            number = schedule.find(name)
            self._log("answered", name, f"{answer.value} (by {by})")
            if number is None or answer is FailureAnswer.ABORT:
                self._book.asked.remove(name)
                continue
            if answer is FailureAnswer.RETRY:
                schedule.reopen(number)
            else:
                schedule.finish(number, StepStatus.SKIPPED)
            self._book.settled(name)
        self._wake()

    # -- small things -------------------------------------------------------------------------------

    def _known_schedule(self) -> Schedule:
        if self._schedule is None:
            raise InvalidRequestError("the plan is not open yet; send it again in a moment")
        return self._schedule

    def _startable(self, name: str) -> str:
        schedule = self._known_schedule()
        number = schedule.find(name)
        if number is None:
            near = difflib.get_close_matches(name, [schedule.name(each) for each in range(len(schedule))], n=3)
            raise InvalidRequestError(
                f"run_step: there is no step {name!r}." + (f" Did you mean {', '.join(near)}?" if near else "")
            )
        status = schedule.status(number)
        if status is StepStatus.FAILED and name not in self._running:
            return name
        if status is StepStatus.PENDING and schedule.is_ready(number):
            return name
        why = {
            StepStatus.PENDING: "waits for other steps, or for its next attempt",
            StepStatus.WAITING: "waits for an approval",
            StepStatus.BLOCKED: "is blocked by a failed step; answer for that one",
        }
        raise InvalidRequestError(
            f"run_step: {name} {why.get(status, f'is {status.value}')}. Only a ready or a failed step can be started"
        )

    def _checked(self, read: Callable[[], R]) -> R:
        try:
            if self._status != "running":
                raise InvalidRequestError(f"the plan is closing ({self._status}) and takes no more messages")
            if self._ending:
                raise InvalidRequestError(ENDING)
            return read()
        except InvalidRequestError as error:
            # It may quote what was sent; an answer has a bound too.
            message = shorten(error.message, MESSAGE_CHARACTERS)
            raise ApplicationError(message, type="InvalidRequestError", non_retryable=True) from None

    async def _done_when_open(self, act: Callable[[], R]) -> R:
        """Do what an update asks for; a run that follows another one first has to load the graph."""
        if self._schedule is None:
            await workflow.wait_condition(lambda: self._schedule is not None or self._status != "running")
        return self._checked(act)

    def _when_open(self, act: Callable[[], object]) -> None:
        """Do what a signal asks for, once the graph is loaded."""
        if self._schedule is None:
            self._before_open.append(act)
        else:
            self._tolerantly(act)

    def _catch_up(self) -> None:
        """Do what was asked for before the graph was loaded."""
        while self._before_open:
            self._tolerantly(self._before_open.popleft())

    def _tolerantly(self, act: Callable[[], object]) -> None:
        """Do what a signal asks for; it has no caller to tell, so the timeline says what was wrong."""
        try:
            act()
        except InvalidRequestError as error:
            self._log("refused", detail=error.message)
            self._wake()  # so that a run does not grow without bound under wrong signals


def _remark(value: Any) -> Remark:
    try:
        remark = read_remark(value)
        return remark.model_copy(update={"by": shorten(remark.by, control.NAME_CHARACTERS)})
    except InvalidRequestError:
        return Remark(text=shorten(str(value), 200))
