"""The scheduler against an independent specification, and its rules one by one."""

import random
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.plan.model import DONE, Script, Scripted, predicted, random_plan, random_script
from tightloop.plan.action import DecisionAction, Rule
from tightloop.plan.child import StepFailure, StepStatus
from tightloop.plan.document import OnPlanFailure, Plan, PlanBudget
from tightloop.plan.engine.graph import Graph, compile_graph
from tightloop.plan.engine.recovery import RouteAction, choose_route
from tightloop.plan.engine.revision import carry_over
from tightloop.plan.engine.schedule import UNKNOWN_LENGTH, Schedule
from tightloop.plan.engine.state import ScheduleState
from tightloop.plan.failing import OnFailure
from tightloop.plan.step import Access, Join, Step, StepKind

SIZES = st.integers(min_value=1, max_value=200)
SEEDS = st.integers(min_value=0, max_value=2**32)


class Run:
    """Runs a plan by its script, in an order that chance decides, and checks each start."""

    def __init__(self, plan: Plan, script: Script, chance: random.Random) -> None:
        self.plan, self.script, self.chance = plan, script, chance
        self.graph = Graph.unpack(compile_graph(plan).pack())
        self.schedule = Schedule(self.graph)
        self.running: list[int] = []
        self.aside: list[int] = []
        self.starts: set[tuple[str, int]] = set()
        self.asked: set[int] = set()
        self.revise_at: int | None = None

    def all(self, *, rebuilds: bool) -> dict[str, StepStatus]:
        slots = self.chance.randrange(1, 9)
        while not self.schedule.is_settled:
            if rebuilds and self.chance.random() < 0.2:
                self.rebuild()
            if self.revise_at is not None and len(self.starts) >= self.revise_at:
                self._revise()
            self._start(slots)
            self._hold()
            if self.aside and (not self.running or self.chance.random() < 0.3):
                self.schedule.resume(self.aside.pop(self.chance.randrange(len(self.aside))))
            elif self.running:
                self._end(self.running.pop(self.chance.randrange(len(self.running))))
        self.schedule.close()
        return {self.schedule.name(number): self.schedule.status(number) for number in range(len(self.schedule))}

    def rebuild(self) -> None:
        """Go on from what is stored, as after continue-as-new; what comes next must be the same."""
        old = self.schedule
        stored = old.save().model_dump_json()
        self.schedule = Schedule(Graph.unpack(self.graph.pack()), ScheduleState.model_validate_json(stored))
        assert self.schedule.codes() == old.codes()
        assert self.schedule.counts() == old.counts()
        assert (self.schedule.ready, self.schedule.running) == (old.ready, old.running)
        assert self.schedule.held == old.held
        twin = Schedule(self.graph, ScheduleState.model_validate_json(stored))
        assert twin.take(1_000) == old.take(1_000)

    def _revise(self) -> None:
        self.revise_at = None
        steps = list(self.plan.steps)
        self.chance.shuffle(steps)
        graph = compile_graph(self.plan.evolve(steps=tuple(steps)))
        old = self.schedule
        self.schedule = Schedule(graph, carry_over(self.graph, old.save(), graph).state)

        def moved(number: int) -> int:
            found = self.schedule.find(old.name(number))
            assert found is not None
            return found

        self.running, self.aside = [moved(n) for n in self.running], [moved(n) for n in self.aside]
        self.graph, self.asked = graph, {moved(n) for n in self.asked}

    def _start(self, slots: int) -> None:
        for number in self.schedule.take(slots - self.schedule.running):
            self._check_start(number)
            self.running.append(number)
        access = [self.schedule.node(number).access for number in self.running]
        writers = access.count(Access.WRITES)
        assert writers == 0 or (writers == 1 and Access.READS not in access)
        assert len(self.running) == self.schedule.running <= slots

    def _check_start(self, number: int) -> None:
        schedule = self.schedule
        name, node = schedule.name(number), schedule.node(number)
        if number not in self.asked:
            assert (name, schedule.attempt(number)) not in self.starts
        self.starts.add((name, schedule.attempt(number)))
        needs = [schedule.status(need) for need in node.needs]
        if node.join is Join.ENDED:
            assert not any(status in (StepStatus.PENDING, StepStatus.RUNNING, StepStatus.WAITING) for status in needs)
            return
        assert all(status in DONE or (node.join is Join.ANY and status is StepStatus.SKIPPED) for status in needs)
        assert not needs or any(status in DONE for status in needs)

    def _hold(self) -> None:
        for number, count in list(self.schedule.held.items()):
            assert count == UNKNOWN_LENGTH
            self.schedule.fail(number, alternate=True)

    def _end(self, number: int) -> None:
        if number not in self.asked and self.chance.random() < 0.1:
            self.asked.add(number)
            self.schedule.mark_waiting(number)
            self.aside.append(number)
            return
        self.asked.discard(number)
        ending = self.script(self.schedule.name(number), self.schedule.attempt(number))
        if ending.failure is None:
            self.schedule.finish(number, ending.status, selected_steps=ending.chosen, counts=ending.counts)
        else:
            self._fail(number, ending)

    def _fail(self, number: int, ending: Scripted) -> None:
        found = choose_route(
            self.schedule.node(number),
            StepFailure(failure_class=ending.failure, reason="scripted"),
            attempt=self.schedule.attempt(number),
            elapsed=timedelta(),
            replan_allowed=False,
            on_plan_failure=OnPlanFailure.FAIL,
        )
        if found.action is RouteAction.RETRY:
            self.schedule.retry_later(number)
            self.aside.append(number)
        else:
            self.schedule.fail(number, alternate=found.action is RouteAction.ALTERNATE)


@settings(max_examples=300, deadline=None)
@given(SEEDS, SIZES, st.booleans())
def test_every_step_ends_as_the_specification_says_whatever_the_order(seed: int, size: int, rebuilds: bool) -> None:
    plan = random_plan(random.Random(seed), size)
    script = random_script(random.Random(seed + 1), plan)

    found = Run(plan, script, random.Random(seed + 2)).all(rebuilds=rebuilds and size <= 80)

    assert found == predicted(plan, script)


@settings(max_examples=100, deadline=None)
@given(SEEDS, st.integers(min_value=2, max_value=60))
def test_a_revision_that_only_sorts_the_steps_changes_nothing(seed: int, size: int) -> None:
    plan = random_plan(random.Random(seed), size)
    scripted = random_script(random.Random(seed + 1), plan)

    def script(name: str, attempt: int) -> Scripted:
        return replace(scripted(name, attempt), failure=None)

    run = Run(plan, script, random.Random(seed + 2))
    run.revise_at = run.chance.randrange(size)
    assert run.all(rebuilds=False) == predicted(plan, script)


@settings(max_examples=100, deadline=None)
@given(SEEDS, st.integers(min_value=1, max_value=60))
def test_the_best_step_is_the_one_with_priority_then_the_longest_way_to_go(seed: int, size: int) -> None:
    chance = random.Random(seed)
    names = [f"s{number}" for number in range(size)]
    steps = tuple(
        Step(
            id=name,
            needs=tuple(chance.sample(names[:number], min(number, chance.randrange(4)))),
            priority=chance.choice((0, 0, 2)),
            estimate_s=chance.choice((1, 2, 7)),
        )
        for number, name in enumerate(names)
    )
    plan = Plan(id="p", steps=steps)
    ways = _ways_to_go(plan)
    schedule = Schedule(compile_graph(plan))
    done: set[str] = set()
    while not schedule.is_settled:
        could = [step for step in steps if step.id not in done and done.issuperset(step.needs)]
        best = min(could, key=lambda step: (-step.priority, -ways[step.id], names.index(step.id)))
        (taken,) = schedule.take(1)
        assert schedule.name(taken) == best.id
        schedule.finish(taken, StepStatus.COMPLETED)
        done.add(best.id)
    assert len(done) == size


def _ways_to_go(plan: Plan) -> dict[str, float]:
    ways: dict[str, float] = {}
    for step in reversed(plan.steps):
        ways[step.id] = step.estimate_s + max((ways[s.id] for s in plan.steps if step.id in s.needs), default=0)
    return ways


def test_a_waiting_writer_that_is_best_is_not_overtaken_by_readers() -> None:
    steps = [Step(id=f"read-{number}", access=Access.READS) for number in range(4)]
    writer = Step(id="write", access=Access.WRITES, priority=1, needs=("read-0",))
    schedule = Schedule(compile_graph(Plan(id="p", steps=(*steps, writer, Step(id="other")))))
    assert _take(schedule, 2) == ["read-0", "read-1"]

    _complete(schedule, "read-0")

    assert _take(schedule, 8) == ["other"]
    _complete(schedule, "read-1")
    assert _take(schedule, 8) == ["write"]
    assert _take(schedule, 8) == []
    _complete(schedule, "write")
    assert _take(schedule, 8) == ["read-2", "read-3"]


def test_a_writer_that_waits_for_a_person_gives_the_tree_to_others() -> None:
    steps = (Step(id="ask", access=Access.WRITES), Step(id="work", access=Access.WRITES))
    schedule = Schedule(compile_graph(Plan(id="p", steps=steps)))
    assert _take(schedule, 8) == ["ask"]

    schedule.mark_waiting(_number(schedule, "ask"))

    assert _take(schedule, 8) == ["work"]
    schedule.resume(_number(schedule, "ask"))
    assert _take(schedule, 8) == []
    _complete(schedule, "work")
    assert _take(schedule, 8) == ["ask"]
    assert schedule.attempt(_number(schedule, "ask")) == 1


def test_a_plan_is_not_settled_while_a_person_or_a_back_off_is_waited_for() -> None:
    schedule = Schedule(compile_graph(Plan(id="p", steps=(Step(id="a"), Step(id="b")))))
    _take(schedule, 2)
    schedule.mark_waiting(_number(schedule, "a"))
    schedule.retry_later(_number(schedule, "b"))
    assert not schedule.is_settled
    schedule.resume(_number(schedule, "b"))
    assert _take(schedule, 2) == ["b"]
    assert schedule.attempt(_number(schedule, "b")) == 2


def test_the_steps_of_a_template_start_in_the_order_of_its_items() -> None:
    steps = (
        Step(id="find"),
        Step(id="look-*", needs=("find",), for_each="${find.files}"),
        Step(id="end", needs=("look-*",)),
    )
    schedule = Schedule(compile_graph(Plan(id="p", steps=steps)))
    _take(schedule, 1)
    schedule.finish(0, StepStatus.COMPLETED, counts={"files": 3})

    taken = schedule.take(9)

    assert [schedule.name(number) for number in taken] == ["look-1", "look-2", "look-3"]
    assert [schedule.template(number) for number in taken] == [("look-*", 0), ("look-*", 1), ("look-*", 2)]
    assert schedule.counts() == {"completed": 1, "running": 3, "pending": 1}
    for number in taken:
        assert _take(schedule, 9) == []
        schedule.finish(number, StepStatus.COMPLETED)
    assert schedule.status(1) is StepStatus.COMPLETED
    assert _take(schedule, 9) == ["end"]


def test_a_template_that_explodes_is_held_until_somebody_decides() -> None:
    plan = Plan(id="p", budget=PlanBudget(max_fan_out=10), steps=(Step(id="look-*", for_each=tuple(range(11))),))
    schedule = Schedule(compile_graph(plan))
    assert schedule.held == {0: 11}
    assert not schedule.is_settled
    assert schedule.take(20) == []

    schedule.expand(0, 11)

    assert len(schedule.take(20)) == 11
    assert schedule.held == {}


def test_a_template_without_a_list_can_be_put_off_and_is_held_again() -> None:
    steps = (Step(id="find"), Step(id="look-*", needs=("find",), for_each="${find.files}"))
    schedule = Schedule(compile_graph(Plan(id="p", steps=steps)))
    schedule.take(1)
    schedule.finish(0, StepStatus.COMPLETED)
    assert schedule.held == {1: UNKNOWN_LENGTH}

    schedule.retry_later(1)
    assert schedule.held == {}
    assert not schedule.is_settled

    schedule.resume(1)
    assert schedule.held == {1: UNKNOWN_LENGTH}
    schedule.fail(1)
    assert schedule.is_settled
    assert schedule.counts() == {"completed": 1, "failed": 1}


def test_the_items_of_a_recovered_step_are_those_of_the_step_that_stood_in() -> None:
    steps = (
        Step(id="find", on_failure=OnFailure(to="ask")),
        Step(id="ask"),
        Step(id="look-*", needs=("find",), for_each="${find.files}"),
    )
    schedule = Schedule(compile_graph(Plan(id="p", steps=steps)))
    schedule.fail(schedule.take(1)[0], alternate=True)
    schedule.finish(schedule.take(1)[0], StepStatus.COMPLETED, counts={"files": 2})
    assert _take(schedule, 9) == ["look-1", "look-2"]


def test_steps_behind_a_failure_are_blocked_and_free_again_when_it_is_tried_again() -> None:
    schedule = _chain_that_failed()
    assert _status(schedule, "b", "c") == [StepStatus.BLOCKED, StepStatus.BLOCKED]
    assert schedule.is_settled
    assert [schedule.name(number) for number in schedule.list_unrecovered_steps()] == ["a"]

    schedule.reopen(0)

    assert _take(schedule, 9) == ["a"]
    assert schedule.attempt(0) == 2
    for name in "abc":
        _complete(schedule, name)
        _take(schedule, 9)
    assert schedule.counts() == {"completed": 3}


def test_a_failure_that_is_passed_over_skips_what_needs_it() -> None:
    schedule = _chain_that_failed()
    schedule.finish(0, StepStatus.SKIPPED)
    assert schedule.counts() == {"skipped": 3}


def test_a_step_that_another_one_recovers_lets_its_dependents_go() -> None:
    steps = (
        Step(id="a", on_failure=OnFailure(to="b")),
        Step(id="b", on_failure=OnFailure(to="c")),
        Step(id="c"),
        Step(id="d", needs=("a",)),
    )
    schedule = Schedule(compile_graph(Plan(id="p", steps=steps)))
    for name in "ab":
        assert _take(schedule, 9) == [name]
        schedule.fail(_number(schedule, name), alternate=True)
    assert schedule.list_unrecovered_steps() == []
    assert _take(schedule, 9) == ["c"]
    _complete(schedule, "c")
    assert _status(schedule, "a", "b") == [StepStatus.RECOVERED, StepStatus.RECOVERED]
    assert _take(schedule, 9) == ["d"]


def test_what_starts_on_success_does_not_start_after_a_recovery() -> None:
    steps = (Step(id="a", on_success=("next",), on_failure=OnFailure(to="b")), Step(id="b"), Step(id="next"))
    schedule = Schedule(compile_graph(Plan(id="p", steps=steps)))
    _take(schedule, 1)
    schedule.fail(0, alternate=True)
    _take(schedule, 1)
    _complete(schedule, "b")
    schedule = Schedule(schedule.graph, schedule.save())
    assert _status(schedule, "a", "b", "next") == [StepStatus.RECOVERED, StepStatus.COMPLETED, StepStatus.SKIPPED]


def test_a_decision_starts_what_it_chose_and_skips_the_rest() -> None:
    rules = (Rule(when="1 == 1", to=("left",)), Rule(when="1 == 2", to=("right",)))
    steps = (
        Step(id="which", decision=DecisionAction(rules=rules)),
        Step(id="left"),
        Step(id="right"),
        Step(id="after", needs=("left", "right"), join=Join.ANY),
    )
    schedule = Schedule(compile_graph(Plan(id="p", steps=steps)))
    assert _take(schedule, 9) == ["which"]
    schedule.finish(0, StepStatus.COMPLETED, selected_steps=("left", "no-such-step"))
    assert _take(schedule, 9) == ["left"]
    assert _status(schedule, "right") == [StepStatus.SKIPPED]
    _complete(schedule, "left")
    assert _take(schedule, 9) == ["after"]


def test_a_step_that_joins_what_is_settled_starts_whatever_came_of_its_needs() -> None:
    steps = (
        Step(id="a"),
        Step(id="b"),
        Step(id="c", needs=("b",)),
        Step(id="end", needs=("a", "b", "c"), join=Join.ENDED),
        Step(id="never", needs=("c",)),
    )
    schedule = Schedule(compile_graph(Plan(id="p", steps=steps)))
    assert sorted(_take(schedule, 9)) == ["a", "b"]
    schedule.fail(1)
    assert _take(schedule, 9) == []
    _complete(schedule, "a")
    assert _status(schedule, "c", "never") == [StepStatus.BLOCKED, StepStatus.BLOCKED]
    assert _take(schedule, 9) == ["end"]


def test_a_compensation_step_is_no_part_of_the_way_forward() -> None:
    steps = (Step(id="a"), Step(id="undo-a", kind=StepKind.COMPENSATION))
    schedule = Schedule(compile_graph(Plan(id="p", steps=steps)))
    assert _take(schedule, 9) == ["a"]
    _complete(schedule, "a")
    assert schedule.is_settled
    schedule.record_compensation(0)
    assert schedule.counts() == {"skipped": 1, "compensated": 1}


def test_reopening_a_step_repeats_the_undone_steps_that_it_needs_and_no_others() -> None:
    steps = (
        Step(id="base"),
        Step(id="beside"),
        Step(id="look", needs=("base",)),
        Step(id="kept", needs=("base",)),
        Step(id="end", needs=("look", "kept")),
    )
    schedule = Schedule(compile_graph(Plan(id="p", steps=steps)))
    for names in (["base", "beside"], ["look", "kept"]):
        assert _take(schedule, 9) == names
        for name in names:
            _complete(schedule, name)
    assert _take(schedule, 9) == ["end"]
    schedule.fail(_number(schedule, "end"))
    for name in ("look", "base", "beside"):
        schedule.record_compensation(_number(schedule, name))

    again = schedule.reopen(_number(schedule, "end"))

    assert [schedule.name(number) for number in again] == ["base", "look"]
    assert _status(schedule, "beside", "kept") == [StepStatus.COMPENSATED, StepStatus.COMPLETED]
    for name in ("base", "look", "end"):
        assert _take(schedule, 9) == [name]
        _complete(schedule, name)
    assert schedule.is_settled


def test_a_step_does_not_finish_with_a_status_that_is_no_end() -> None:
    schedule = Schedule(compile_graph(Plan(id="p", steps=(Step(id="a"),))))
    with pytest.raises(ValueError, match="cannot finish as failed"):
        schedule.finish(0, StepStatus.FAILED)


def test_a_chain_of_ten_thousand_steps_does_not_run_out_of_stack() -> None:
    steps = [Step(id="s0"), *(Step(id=f"s{n}", needs=(f"s{n - 1}",)) for n in range(1, 10_000))]
    schedule = Schedule(compile_graph(Plan(id="p", steps=tuple(steps))))
    _take(schedule, 1)
    schedule.fail(0)
    assert schedule.counts() == {"failed": 1, "blocked": 9_999}


def _chain_that_failed() -> Schedule:
    steps = (Step(id="a"), Step(id="b", needs=("a",)), Step(id="c", needs=("b",)))
    schedule = Schedule(compile_graph(Plan(id="p", steps=steps)))
    _take(schedule, 9)
    schedule.fail(0)
    return schedule


def _number(schedule: Schedule, name: str) -> int:
    number = schedule.find(name)
    assert number is not None
    return number


def _take(schedule: Schedule, slots: int) -> list[str]:
    return [schedule.name(number) for number in schedule.take(slots)]


def _complete(schedule: Schedule, name: str) -> None:
    schedule.finish(_number(schedule, name), StepStatus.COMPLETED)


def _status(schedule: Schedule, *names: str) -> list[StepStatus]:
    return [schedule.status(_number(schedule, name)) for name in names]
