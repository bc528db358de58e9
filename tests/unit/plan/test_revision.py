"""Revisions of a running plan: what is different, what is refused, what is kept."""

from tightloop.plan.action import ShellAction
from tightloop.plan.child import StepFailure, StepStatus
from tightloop.plan.document import Plan
from tightloop.plan.engine.graph import compile_graph
from tightloop.plan.engine.revision import carry_over, diff_plans, find_refusals, step_digest
from tightloop.plan.engine.schedule import Schedule
from tightloop.plan.failing import OnFailure
from tightloop.plan.progress import PlanProgress
from tightloop.plan.step import Step


def _step(name: str, *needs: str, run: str = "true", **fields: object) -> Step:
    return Step(id=name, needs=needs, shell=ShellAction(run=run), access="none", **fields)


def _plan(*steps: Step, **fields: object) -> Plan:
    return Plan(id="p", steps=steps, **fields)


def _revised(schedule: Schedule, old: Plan, new: Plan) -> Schedule:
    graph = compile_graph(new)
    return Schedule(graph, carry_over(schedule.graph, schedule.save(), graph, diff_plans(old, new).redone).state)


def test_a_revision_that_nobody_asked_for_keeps_what_failed_and_blocks_what_needs_it() -> None:
    old = _plan(_step("a"), _step("b", "a"), _step("c"), _step("end", "b", "c", join="ended"))
    new = _plan(*old.steps[:3], _step("d", on_success=()), old.steps[3].evolve(needs=("b", "c", "d")))
    schedule = Schedule(compile_graph(old))
    assert len(schedule.take(2)) == 2
    schedule.fail(0)
    graph = compile_graph(new)

    kept = Schedule(graph, carry_over(schedule.graph, schedule.save(), graph, keeps_failures=True).state)
    again = Schedule(graph, carry_over(schedule.graph, schedule.save(), graph).state)

    assert _statuses(kept) == {"a": "failed", "b": "blocked", "c": "running", "d": "pending", "end": "pending"}
    assert _statuses(again)["a"] == "pending"


def test_a_step_that_is_parked_fails_over_to_what_a_revision_added() -> None:
    old = _plan(_step("a"), _step("b", "a"))
    new = _plan(old.steps[0].evolve(on_failure=OnFailure(to="fix")), _step("fix"), old.steps[1])
    schedule = Schedule(compile_graph(old))
    schedule.take(1)
    schedule.retry_later(0)
    graph = compile_graph(new)

    schedule = Schedule(graph, carry_over(schedule.graph, schedule.save(), graph, keeps_failures=True).state)
    schedule.fail(schedule.find("a") or 0, alternate=True)
    assert _statuses(schedule) == {"a": "failed", "fix": "pending", "b": "pending"}
    _complete(schedule, "fix")

    assert _statuses(schedule) == {"a": "recovered", "fix": "completed", "b": "pending"}


def _statuses(schedule: Schedule) -> dict[str, str]:
    return {schedule.name(number): schedule.status(number).value for number in range(len(schedule))}


def _complete(schedule: Schedule, *names: str) -> None:
    for name in names:
        assert [schedule.name(number) for number in schedule.take(1)] == [name]
        schedule.finish(schedule.find(name) or 0, StepStatus.COMPLETED)


def test_the_difference_is_told_step_by_step() -> None:
    old = _plan(_step("a"), _step("b", "a"), _step("c", "b"), _step("gone"))
    new = _plan(_step("a", title="A"), _step("b", "a", run="false"), _step("c", "a"), _step("new"), title="T")

    found = diff_plans(old, new)

    assert (found.added, found.removed, found.redone) == (("new",), ("gone",), ("b",))
    assert found.changed == {"a": ("title",), "b": ("shell",)}
    assert found.moved == {"c": ("needs",)}
    assert found.words() == (
        "added: new\nremoved: gone\nchanged: a (title), b (shell)\nedges changed: c (needs)\nplan fields: title"
    )


def test_equal_plans_are_no_revision() -> None:
    plan = _plan(_step("a"))
    assert diff_plans(plan, plan).empty
    assert diff_plans(plan, plan).words() == "no changes"


def test_a_difference_of_thousands_of_steps_is_told_in_a_few_lines() -> None:
    new = _plan(*(_step(f"a-rather-long-name-{n}") for n in range(3_000)))
    words = diff_plans(_plan(), new).words()
    assert len(words) <= 1_000
    assert "and 2992 more" in words


def test_a_digest_follows_what_is_done_not_when() -> None:
    step = _step("a")
    assert step_digest(_step("a", "z", priority=3, title="T")) == step_digest(step)
    assert step_digest(_step("a", run="false")) != step_digest(step)
    assert step_digest(_step("a", inputs={"x": 1})) != step_digest(step)
    assert step_digest(_step("a", expect=("${exit_code} == 0",))) != step_digest(step)


def test_completed_and_running_steps_cannot_be_changed_and_running_ones_not_be_left_out() -> None:
    old = _plan(_step("done"), _step("busy"), _step("old"), _step("free"))
    new = _plan(_step("done", run="x"), _step("free", run="x"))

    found = find_refusals(diff_plans(old, new), fixed=("done", "busy", "old"), running=("busy",))

    assert found == (
        "step 'done' is completed and cannot be changed. Leave the step unchanged, or use another id for the new work",
        "step 'busy' is running and cannot be removed. Cancel the plan, or wait until the step ends",
    )


def test_a_template_of_which_one_step_is_done_cannot_be_changed() -> None:
    old = _plan(_step("look-*", for_each=(1, 2)), _step("lookout"))
    new = _plan(_step("look-*", for_each=(1, 2, 3)), _step("lookout", run="x"))
    assert "'look-*' is completed" in find_refusals(diff_plans(old, new), fixed=("look-2",))[0]
    assert find_refusals(diff_plans(old, new), fixed=("look-x",)) == ()


def test_completed_work_is_kept_and_what_failed_gets_another_go() -> None:
    old = _plan(_step("a"), _step("b", "a"), _step("c", "b"))
    schedule = Schedule(compile_graph(old))
    _complete(schedule, "a")
    (failed,) = schedule.take(1)
    schedule.fail(failed)
    new = _plan(_step("a"), _step("prepare", "a"), _step("b", "prepare"), _step("c", "b"))

    revised = _revised(schedule, old, new)

    assert _statuses(revised) == {"a": "completed", "prepare": "pending", "b": "pending", "c": "pending"}
    _complete(revised, "prepare", "b", "c")
    assert revised.is_settled
    assert revised.attempt(revised.find("b") or 0) == 2


def test_the_revised_schedule_goes_on_with_what_runs_and_waits() -> None:
    old = _plan(_step("a"), _step("b"), _step("c"), _step("d", "a", "b", "c"))
    schedule = Schedule(compile_graph(old))
    first, second, third = schedule.take(3)
    schedule.mark_waiting(second)
    schedule.retry_later(third)

    revised = _revised(schedule, old, _plan(_step("z"), *old.steps))

    assert _statuses(revised) == {"z": "pending", "a": "running", "b": "waiting", "c": "pending", "d": "pending"}
    assert revised.running == 1
    assert [revised.name(number) for number in revised.take(9)] == ["z"]
    assert first == 0


def test_steps_made_from_a_template_stay_what_they_are() -> None:
    old = _plan(_step("look-*", for_each=(1, 2, 3)), _step("end", "look-*"))
    schedule = Schedule(compile_graph(old))
    first, second, third = schedule.take(3)
    schedule.finish(first, StepStatus.COMPLETED)
    schedule.fail(second)
    schedule.finish(third, StepStatus.COMPLETED)
    assert _statuses(schedule)["look-*"] == "failed"

    revised = _revised(schedule, old, _plan(_step("before"), *old.steps))

    assert _statuses(revised)["look-1"] == "completed"
    assert _statuses(revised)["look-2"] == "pending"
    taken = revised.take(9)
    assert sorted(revised.name(number) for number in taken) == ["before", "look-2"]
    for number in taken:
        revised.finish(number, StepStatus.COMPLETED)
    assert _statuses(revised)["look-*"] == "completed"
    assert [revised.name(number) for number in revised.take(9)] == ["end"]


def test_what_is_known_of_steps_that_start_anew_is_forgotten() -> None:
    old = _plan(_step("a"), _step("b"))
    schedule = Schedule(compile_graph(old))
    a, b = schedule.take(2)
    schedule.fail(a)
    schedule.fail(b)
    failure = StepFailure(failure_class="logic", reason="no")
    new = _plan(_step("a"))
    progress = PlanProgress(failures={"a": failure, "b": failure})

    fresh = carry_over(schedule.graph, schedule.save(), compile_graph(new)).reset_steps

    assert progress.settle(*fresh, spent=False).failures == {}


def test_a_recovery_that_is_under_way_goes_on() -> None:
    old = _plan(_step("a", on_failure=OnFailure(to="rescue")), _step("rescue"), _step("end", "a"))
    schedule = Schedule(compile_graph(old))
    schedule.fail(schedule.take(1)[0], alternate=True)
    schedule.take(1)

    revised = _revised(schedule, old, _plan(*old.steps, _step("more", "end")))

    assert _statuses(revised)["a"] == "failed"
    revised.finish(revised.find("rescue") or 0, StepStatus.COMPLETED)
    assert _statuses(revised)["a"] == "recovered"
    assert [revised.name(number) for number in revised.take(9)] == ["end"]


def test_a_step_that_waits_for_its_next_attempt_waits_for_what_the_revision_put_before_it() -> None:
    old = _plan(_step("a"))
    schedule = Schedule(compile_graph(old))
    schedule.retry_later(schedule.take(1)[0])

    revised = _revised(schedule, old, _plan(_step("fix"), _step("a", "fix")))
    revised.resume(revised.find("a") or 0)

    _complete(revised, "fix", "a")
    assert revised.is_settled
