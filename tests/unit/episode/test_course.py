"""What the tracker learns from one iteration after the other, and what it remembers."""

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tightloop.episode.budget import Spent
from tightloop.episode.check import CheckReport, CheckResult, CheckStatus, Counts, FailedCheck, Verification
from tightloop.episode.failure import ComparableOutput
from tightloop.episode.progress.course import (
    ERRORS_REMEMBERED,
    ITEMS_REMEMBERED,
    REMEMBERED,
    ChangedFile,
    Iteration,
    observe,
    reset_counts,
)
from tightloop.episode.progress.tracking import Spending, Touched, TrackerMemory, TrackingFacts
from tightloop.executor.message import PlanMessage, PlannedStep, Reflection
from tightloop.executor.model import ExecutorReport, ExecutorStatus

DONE = ExecutorReport(key="k", status=ExecutorStatus.COMPLETED)
NOTHING = ExecutorReport(key="k", status=ExecutorStatus.NO_CHANGE)
GREEN = Verification(tree="t", total=2)


def red(signature: str = "s", *, progress: bool = False, **more: Any) -> Verification:
    failed = (FailedCheck(name="pytest", signature=signature),)
    fields = {"tree": "t", "total": 2, "failed_count": 1, "signature": signature, "progress": progress}
    return Verification(failed=failed, **{**fields, **more})


def plan(*titles: str, scope: tuple[str, ...] = (), items: tuple[str, ...] = (), number: int = 1) -> PlanMessage:
    steps = tuple(PlannedStep(title=title) for title in titles)
    return PlanMessage(iteration=number, steps=steps, scope=scope, reflection=Reflection(action_items=items))


def changed(*paths: str, lines: int = 10) -> dict[str, Any]:
    return {"changed": tuple(ChangedFile(path=path, lines=lines) for path in paths), "files_changed": len(paths)}


def checks(**signatures: str) -> CheckReport:
    """Return a report; a check without a signature passed."""
    return CheckReport(
        results=tuple(
            CheckResult(name=name, run=name, status=CheckStatus.FAILED if mark else CheckStatus.PASSED, signature=mark)
            for name, mark in signatures.items()
        )
    )


def course(*iterations: Iteration) -> tuple[list[TrackingFacts], TrackerMemory]:
    """Observe one iteration after the other."""
    memory: TrackerMemory | None = None
    found = []
    for number, iteration in enumerate(iterations, start=1):
        spent = iteration.spent.evolve(iterations=number)
        facts, memory = observe(memory, iteration.evolve(spent=spent))
        found.append(facts)
    assert memory is not None
    return found, memory


def delivered(verification: Verification | None = None, **more: Any) -> Iteration:
    return Iteration(**{"report": DONE, "verification": verification or red(), **changed("a.py"), **more})


# errors, plans and deliveries that come back


def test_same_failure_is_counted_once_it_is_not_new() -> None:
    found, _ = course(*(delivered(red(mark), new_work=place in (0, 2)) for place, mark in enumerate("aabbaa")))
    assert [facts.error_count for facts in found] == [1, 1, 1, 1, 1, 2]
    assert [facts.error_seen_before for facts in found] == [False, False, False, False, True, False]


def test_failure_of_before_the_first_plan_is_not_new() -> None:
    found, _ = course(*(delivered(red("a", same=True)) for _ in range(3)))
    assert [facts.error_count for facts in found] == [1, 2, 3]
    assert not any(facts.progress for facts in found)


def test_what_progress_left_is_not_yet_the_same_failure_again() -> None:
    found, _ = course(delivered(red("a", progress=True)), *(delivered(red("a")) for _ in range(3)))
    assert [facts.error_count for facts in found] == [1, 1, 2, 3]
    assert [facts.error_seen_before for facts in found] == [False] * 4


def test_failures_that_go_round_are_noticed_while_the_trees_differ() -> None:
    found, _ = course(*(delivered(red(mark), new_work=place < 3) for place, mark in enumerate("abcabcabc")))
    assert [facts.errors_alternate for facts in found] == [False] * 8 + [True]


def test_circle_with_progress_in_it_is_none() -> None:
    found, _ = course(*(delivered(new_work=new_work) for new_work in (False, False, True) * 4))
    assert not any(facts.errors_alternate for facts in found)


def test_iteration_without_checks_has_no_error_and_forgets_none() -> None:
    found, _ = course(delivered(red("a", same=True)), Iteration(), delivered(red("a")))
    assert (found[1].error_count, found[1].checks_failed) == (0, None)
    assert found[2].error_count == 2


# what is new


@pytest.mark.parametrize("report", [DONE, NOTHING, None])
@pytest.mark.parametrize("verification", [GREEN, red("new", progress=True), None])
def test_iteration_that_changes_no_file_is_no_progress(
    report: ExecutorReport | None, verification: Verification | None
) -> None:
    idle = Iteration(report=report, verification=verification)
    found, _ = course(delivered(red("a")), *[idle] * 3)
    assert not any(facts.progress for facts in found)


def test_checks_that_pass_after_a_change_are_progress() -> None:
    found, _ = course(delivered(red("a")), delivered(GREEN))
    assert [facts.progress for facts in found] == [False, True]


def test_better_checks_count_once_not_each_time_they_come_back() -> None:
    swings = (red("bad", same=True), red("good", progress=True)) * 3
    found, _ = course(*map(delivered, swings))
    assert [facts.progress for facts in found] == [False, True, False, False, False, False]


def test_new_work_goes_on_while_the_checks_say_the_same() -> None:
    found, memory = course(*(delivered(red("a", same=True), new_work=True) for _ in range(9)))
    assert all(facts.progress for facts in found)
    assert found[-1].since_progress.iterations == 0
    assert memory.unmoved == 9


def failing(*names: str, numbers: tuple[float, ...] = ()) -> CheckReport:
    result = CheckResult(
        name="c", run="c", status=CheckStatus.FAILED, failing=names, printed=ComparableOutput(numbers=numbers)
    )
    return CheckReport(results=(result,))


@pytest.mark.parametrize("worse", [{"newly_failing": ("mypy",)}, {"regress": True}])
def test_new_work_that_makes_more_tests_fail_is_no_progress(worse: dict[str, Any]) -> None:
    result = CheckResult(name="c", run="c", status=CheckStatus.FAILED, counts=Counts(failed=3))
    report = CheckReport(results=(result,))
    found, _ = course(*(delivered(red(str(n), **worse), new_work=True, checks=report) for n in range(4)))
    assert not any(facts.progress for facts in found)


def test_another_test_that_fails_is_progress_the_first_time() -> None:
    names = "aabba"
    found, _ = course(*(delivered(red(str(n)), checks=failing(name)) for n, name in enumerate(names)))
    assert [facts.progress for facts in found] == [False, False, True, False, False]


@pytest.mark.parametrize("idle", [{"tree_seen_before": True}, {"files_changed": 0}])
def test_another_failure_of_files_that_stay_as_they_are_is_chance(idle: dict[str, Any]) -> None:
    found, _ = course(*(delivered(red(mark), checks=failing(mark), **idle) for mark in "abc"))
    assert not any(facts.progress for facts in found)


def test_number_that_is_lower_than_ever_before_is_progress() -> None:
    found, _ = course(*(delivered(red("a"), checks=failing("t", numbers=(n,))) for n in (9, 8, 8, 7, 9, 6)))
    assert [facts.progress for facts in found] == [False, True, False, True, False, True]


def test_same_plan_again_is_noticed_whatever_its_number_and_reflection() -> None:
    again = plan("fix the parser", number=2, items=("other",))
    found, _ = course(delivered(plan=plan("fix the parser")), delivered(plan=again), delivered(plan=plan("else")))
    assert [facts.plan_seen_before for facts in found] == [False, True, False]


@pytest.mark.parametrize("status", [ExecutorStatus.TIMED_OUT, ExecutorStatus.FAILED, ExecutorStatus.OUTCOME_UNKNOWN])
def test_plan_that_was_not_carried_out_may_be_given_again(status: ExecutorStatus) -> None:
    cut = delivered(plan=plan("fix"), report=ExecutorReport(key="k", status=status))
    found, _ = course(cut, delivered(plan=plan("fix")), delivered(plan=plan("fix")))
    assert [facts.plan_seen_before for facts in found] == [False, False, True]


def test_deliveries_that_changed_nothing_are_counted_until_one_does() -> None:
    idle = Iteration(report=NOTHING, verification=red())
    found, _ = course(idle, idle, Iteration(verification=red()), idle, delivered(), idle)
    assert [facts.no_change_streak for facts in found] == [1, 2, 2, 3, 0, 1]
    assert [facts.executor_changed_nothing for facts in found] == [True, True, False, True, False, True]


def test_executor_that_did_what_a_person_allowed_did_not_fail() -> None:
    refused = ExecutorReport(key="k", status=ExecutorStatus.REFUSED)
    found, _ = course(delivered(report=refused), delivered(report=refused, obeyed=True))
    assert [facts.executor_failed for facts in found] == [True, False]


# scope


def test_share_outside_of_the_scope_is_one_of_lines() -> None:
    files = (ChangedFile(path="src/a.py", lines=30), ChangedFile(path="db/b.py", lines=10))
    found, _ = course(delivered(plan=plan("x", scope=("src/",)), changed=files, files_changed=2))
    assert (found[0].scope_announced, found[0].out_of_scope, found[0].out_of_scope_share) == (True, ("db/b.py",), 0.25)


def test_share_of_changes_without_lines_is_one_of_files() -> None:
    found, _ = course(delivered(plan=plan("x", scope=("a.png",)), **changed("a.png", "b.png", lines=0)))
    assert found[0].out_of_scope_share == 0.5


def test_renamed_file_is_in_scope_by_either_of_its_names() -> None:
    moved = (ChangedFile(path="lib/new.py", was="src/old.py"), ChangedFile(path="lib/x.py", was="src/y.py"))
    found, _ = course(delivered(plan=plan("x", scope=("src/old.py",)), changed=moved, files_changed=2))
    assert found[0].out_of_scope == ("lib/x.py",)


def test_plan_without_a_scope_or_that_was_not_delivered_accuses_nobody() -> None:
    found, _ = course(delivered(plan=plan("x")), delivered(plan=plan("x", scope=("b.py",)), report=None))
    assert [(facts.scope_announced, facts.out_of_scope) for facts in found] == [(False, ()), (False, ())]


# action items


def test_item_is_open_until_a_file_that_it_names_was_changed() -> None:
    item = "undo the change in app/config.py"
    other, right = changed("a.py"), changed("app/config.py")
    found, _ = course(*(delivered(items=(item,), **files) for files in (other, other, right, other)))
    assert [facts.open_for for facts in found] == [1, 2, 0, 0]
    assert [facts.open_items for facts in found] == [(item,), (item,), (), ()]


def test_item_about_a_check_is_open_while_the_check_fails_in_the_same_way() -> None:
    item = "make 'mypy' pass"
    passes = [
        delivered(red(f"{number}"), items=(item,), checks=checks(mypy=mark, pytest="p"))
        for number, mark in enumerate(("a", "a", "b", "", "b"))
    ]
    found, _ = course(*passes)
    assert [facts.open_for for facts in found] == [1, 2, 1, 0, 1]


def test_same_error_is_not_held_against_an_item_once_more() -> None:
    again = delivered(red("a", same=True), items=("make 'mypy' pass",), checks=checks(mypy="a"))
    found, _ = course(again, again, again)
    assert [(facts.error_count, facts.open_for) for facts in found] == [(1, 1), (2, 0), (3, 0)]


@pytest.mark.parametrize(
    "item", ["form a new diagnosis", "do not touch db/models.py", "keep src/api.py as it is", "use the other parser"]
)
def test_item_that_files_and_checks_cannot_judge_is_never_open(item: str) -> None:
    found, memory = course(delivered(items=(item,), checks=checks(pytest="p")))
    assert found[0].open_items == ()
    assert memory.items == ()


def test_items_of_the_plan_count_too_and_those_that_nobody_repeats_are_dropped() -> None:
    mine = plan("x", items=("change b.py",))
    found, memory = course(delivered(plan=mine), delivered(plan=mine), delivered(plan=plan("x")))
    assert [facts.open_for for facts in found] == [1, 2, 0]
    assert memory.items == ()


# cost


def test_spending_is_counted_from_the_last_checks_that_got_better() -> None:
    def spent(tokens: int, hours: float) -> Spent:
        return Spent(input_tokens=tokens, cost_usd=tokens / 1000, wall_time=timedelta(hours=hours))

    found, _ = course(
        delivered(red("a", same=True), spent=spent(1000, 1)),
        delivered(red("b", progress=True), spent=spent(3000, 2)),
        delivered(red("b"), spent=spent(3500, 2.5)),
        delivered(GREEN, spent=spent(9000, 8)),
        delivered(red("b"), spent=spent(9100, 8)),
    )
    assert [facts.since_progress.iterations for facts in found] == [1, 0, 1, 0, 1]
    assert [facts.since_progress.tokens for facts in found] == [1000, 0, 500, 0, 100]
    assert found[2].since_progress.wall_time == timedelta(minutes=30)


def test_iterations_are_counted_from_the_one_in_which_the_checks_showed_progress() -> None:
    same, unchecked, other = delivered(), Iteration(report=DONE), delivered(red("b", progress=True))
    counts = [course(*passes)[1].unmoved for passes in ([same] * 3, [same, unchecked, same], [same, other, same])]
    assert counts == [3, 3, 1]
    assert course(same, same, delivered(GREEN))[1].unmoved == 0


def test_episode_that_is_older_than_the_memory_is_not_charged_for_its_past() -> None:
    facts, memory = observe(None, delivered(spent=Spent(iterations=9, input_tokens=10**7)))
    assert facts.since_progress == Spending()
    later, _ = observe(memory, delivered(spent=Spent(iterations=10, input_tokens=10**7 + 5)))
    assert (later.since_progress.iterations, later.since_progress.tokens) == (1, 5)


def test_person_who_stepped_in_starts_the_count_anew() -> None:
    _, memory = course(delivered(red("a"), plan=plan("x")), delivered(red("a"), plan=plan("y")))
    fresh = reset_counts(memory, Spent(iterations=2, input_tokens=70))
    assert (fresh.errors, fresh.plans, fresh.at_progress) == ((), (), Spending(iterations=2, tokens=70))
    touched = Touched(files="abcd")
    assert reset_counts(TrackerMemory(known=touched, unmoved=4), Spent()) == TrackerMemory(
        known=touched, at_progress=Spending()
    ), "old files are not new"
    assert reset_counts(memory, Spent(), keep_plans=True).plans == memory.plans
    assert reset_counts(None, Spent(), keep_plans=True).plans == ()


# bounds

verifications = st.none() | st.builds(red, st.sampled_from("abc"), progress=st.booleans()) | st.just(GREEN)
plans = st.none() | st.builds(
    plan,
    st.sampled_from(["x", "y", "fix test_2"]),
    scope=st.lists(st.text(max_size=8), max_size=3).map(tuple),
    items=st.lists(st.sampled_from(["change a.py", "make 'pytest' pass", "think"]), max_size=3).map(tuple),
)
iterations = st.builds(
    Iteration,
    plan=plans,
    items=st.lists(st.from_regex(r"change [a-z]{1,3}\.py", fullmatch=True), max_size=20).map(tuple),
    report=st.none() | st.builds(ExecutorReport, key=st.just("k"), status=st.sampled_from(ExecutorStatus)),
    verification=verifications,
    checks=st.just(checks(pytest="p")),
    files_changed=st.integers(min_value=0, max_value=3),
)


@given(st.lists(iterations, min_size=1, max_size=20))
def test_memory_stays_bounded_and_survives_storage(passes: list[Iteration]) -> None:
    found, memory = course(*passes)
    assert len(memory.plans) <= REMEMBERED
    assert len(memory.errors) <= ERRORS_REMEMBERED
    assert len(memory.items) <= ITEMS_REMEMBERED
    assert len(memory.model_dump_json()) < 2_500
    assert TrackerMemory.model_validate_json(memory.model_dump_json()) == memory
    assert all(facts.since_progress.iterations <= number for number, facts in enumerate(found, start=1))
