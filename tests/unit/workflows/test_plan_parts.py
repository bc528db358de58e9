"""The parts of the plan workflow, without a server."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.support.runs import KeptMeter
from tightloop.errors import InvalidRequestError
from tightloop.ledger.alert import Alert
from tightloop.plan.child import StepFailure, StepStatus
from tightloop.plan.control import PlanTopUp
from tightloop.plan.document import Plan, PlanBudget
from tightloop.plan.engine.graph import compile_graph
from tightloop.plan.engine.state import choices
from tightloop.plan.failing import FailureClass
from tightloop.plan.progress import PlanInput
from tightloop.plan.step import Capability
from tightloop.run.commands import read_remark
from tightloop.run.question import Question, QuestionKind
from workflows.plan.commands import PlanCommands
from workflows.plan.context import Attempt, PlanContext, PlanEnd
from workflows.plan.dispatch import RATE_LIMIT, StartRate
from workflows.plan.recovery import Recovery
from workflows.plan.reporting import PlanQuestions

NOW = datetime(2026, 1, 1, tzinfo=UTC)
NO_DISK = StepFailure(failure_class=FailureClass.LOGIC, reason="no disk")
BUSY = StepFailure(failure_class=FailureClass.TRANSIENT, reason="busy")
GATE = Question(id="", kind=QuestionKind.GATE, title="Release?", options=choices(), count=2)


class Told:
    """Takes what would be sent or shown."""

    def __init__(self) -> None:
        self.alerts: list[Alert] = []
        self.waits: list[float] = []

    def send(self, alert: Alert) -> None:
        self.alerts.append(alert)

    def show(self) -> None:
        """Show nothing."""

    async def wait(self, seconds: float, _summary: str) -> None:
        self.waits.append(seconds)


class Parts:
    """A plan of two steps, and what asks people about it."""

    def __init__(self, **fields: Any) -> None:
        steps = [{"id": "a", "shell": {"run": "true"}}, {"id": "b", "needs": ["a"], "shell": {"run": "true"}}]
        plan = Plan.model_validate({"id": "p", "steps": steps, **fields})
        self.told: Any = Told()
        self.context = PlanContext(
            PlanInput(workspace="/w", source="x"), run_id="p", now=lambda: NOW, meter=KeptMeter()
        )
        self.context.alerts = self.told
        self.context.open(compile_graph(plan), has_planner=False)
        self.context.progress = self.context.progress.begin(plan.budget, ())
        self.questions = PlanQuestions(self.context)
        unused: Any = None
        self.commands = PlanCommands(self.context, self.questions, unused, self.told, self.told)
        self.recovery = Recovery(self.context, self.questions, unused, unused, wait=self.told.wait)

    async def answer(self, value: Any) -> str:
        """Take the argument of the update `answer`."""
        return await self.commands.answer(self.context.read_answer(value))

    def fail(self, failure: StepFailure = NO_DISK) -> int:
        """Let the first step fail."""
        [number] = self.context.schedule.take(1)
        self.recovery.fail("a", number, failure, attempt=1)
        return number


async def test_failed_step_is_asked_about_and_an_answer_opens_it_again() -> None:
    parts = Parts()
    number = parts.fail()
    [question] = parts.context.waiting
    assert (question.kind, question.names, question.default) == (
        QuestionKind.FAILED_STEP, ("retry", "skip", "fail"), ""
    )  # fmt: skip
    assert [(alert.reason, alert.step) for alert in parts.told.alerts] == [("a failed: no disk", "a")]
    assert await parts.answer("retry: it was full") == "a: retry"
    assert parts.context.schedule.status(number) is StepStatus.PENDING
    assert parts.context.progress.failures == {}
    assert parts.context.progress.adopt


async def test_transient_failure_is_tried_again_without_a_question() -> None:
    parts = Parts()
    number = parts.fail(BUSY)
    assert parts.recovery.is_backing_off
    for _ in range(3):
        await asyncio.sleep(0)
    assert parts.told.waits == [1.0]
    assert parts.context.waiting == ()
    assert parts.context.schedule.is_ready(number)


async def test_failure_ends_the_plan_where_it_says_so() -> None:
    parts = Parts(on_failure="compensate")
    parts.fail()
    assert isinstance(parts.context.end, PlanEnd)
    assert (parts.context.end.reason, parts.context.end.compensate) == ("a: no disk", True)


async def test_gate_waits_for_two_people_and_their_answers_go_to_the_step() -> None:
    parts = Parts()
    [number] = parts.context.schedule.take(1)
    parts.context.schedule.mark_waiting(number)
    parts.questions.ask_for_step("a", GATE)
    assert not parts.context.is_paused
    assert await parts.answer({"question": "a", "option": "approve", "by": "ada"}) == (
        "a: approve by ada. Approvals still needed: 1"
    )
    with pytest.raises(InvalidRequestError, match="ada has already answered q1"):
        await parts.answer({"question": "a", "option": "approve", "by": "ada"})
    assert await parts.answer({"question": "a", "option": "approve", "by": "bob"}) == "a: approve"
    assert [answer.by for answer in parts.context.progress.answers["a"]] == ["ada", "bob"]
    assert parts.context.schedule.is_ready(number)


async def test_resume_ends_the_pause_and_says_that_the_budget_needs_a_decision() -> None:
    parts = Parts(budget={"max_attempts": 1})
    parts.commands.pause(read_remark("lunch"))
    parts.commands.pause(read_remark("again"))
    parts.questions.pause(QuestionKind.BUDGET, "max_attempts is 1")
    await parts.commands.resume({"note": "extend", "by": "ada"})
    assert [question.kind for question in parts.context.waiting] == [QuestionKind.BUDGET]
    assert parts.context.core.timeline[-1].text == "budget needs a decision: extend, cancel"
    spent = parts.context.progress.spent.evolve(attempts=1)
    parts.context.progress = parts.context.progress.evolve(spent=spent)
    assert await parts.answer("extend") == "budget: extend"
    assert parts.context.progress.budget == PlanBudget(max_attempts=2)
    assert not parts.context.is_paused


async def test_plan_stops_at_its_time_and_goes_on_without_it() -> None:
    parts = Parts()
    parts.context.progress = parts.context.progress.evolve(until=NOW)
    assert parts.context.find_breach() == f"the plan may only run until {NOW:%Y-%m-%d %H:%M %Z}"
    parts.questions.pause(QuestionKind.BUDGET, "the plan was to end")
    assert await parts.answer("extend") == "budget: extend"
    assert parts.context.find_breach() is None
    parts.context.progress = parts.context.progress.evolve(until=NOW)
    assert await parts.commands.top_up(PlanTopUp(wall_minutes=5)) == "the budget was raised"
    assert parts.context.progress.until == NOW + timedelta(minutes=5)


async def test_cancel_is_an_option_and_a_signal_and_the_first_reason_counts() -> None:
    parts = Parts()
    parts.questions.ask_about_unmet("pytest -q")
    assert await parts.answer("cancel: good enough") == "unmet: cancel"
    parts.commands.cancel(read_remark("too late"))
    assert parts.context.core.cancel == "good enough"


def test_question_outlives_no_change_of_the_plan_that_settles_it() -> None:
    parts = Parts()
    [number] = parts.context.schedule.take(1)
    parts.context.schedule.fail(number)
    parts.questions.ask_about_failure("a", NO_DISK)
    assert parts.questions.find_outdated_questions() == ()
    parts.context.schedule.reopen(number)
    assert [question.step for question in parts.questions.find_outdated_questions()] == ["a"]


def test_before_the_graph_is_loaded_a_person_is_told_to_wait() -> None:
    context = PlanContext(
        PlanInput(problem="the workflow input is missing"), run_id="p", now=lambda: NOW, meter=KeptMeter()
    )
    with pytest.raises(InvalidRequestError, match="the workflow input is missing"):
        context.check_start()
    with pytest.raises(InvalidRequestError, match="not open yet"):
        context.need_schedule()


def test_only_so_many_attempts_begin_within_a_moment() -> None:
    clock, context = [NOW], Parts().context
    context.now = lambda: clock[0]
    rate, request, attempts = StartRate(context), context.request, context.running
    attempts |= {
        name: Attempt(name, Capability.SHELL, _no_request(), "", instant=False, timeout=None, plan=request, since=NOW)
        for name in map(str, range(10))
    }
    for attempt in attempts.values():
        rate.add(attempt)
    assert rate.count_free_starts() == RATE_LIMIT - 10
    del attempts["0"]
    assert rate.count_free_starts() == RATE_LIMIT - 9
    clock[0] += timedelta(seconds=2)
    assert rate.count_free_starts() == RATE_LIMIT


def _no_request() -> Any:
    return None
