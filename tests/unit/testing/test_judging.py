"""Which tests count, by what was seen of their runs."""

import pytest

from tightloop.testing import Collection, GateReport, Item, Outcome, Run, Session, can_fail
from tightloop.testing.claims import JudgedTests
from tightloop.testing.judging import Evidence, judge, why_none_fails
from tightloop.testing.mutants import Mutant

TEST, CODE = "tests/test_m.py::test_it", "m.py"
LINES = {CODE: frozenset({2})}
GREEN = Run(id=TEST, outcome=Outcome.PASSED, lines=LINES)
FAILURE = Run(id=TEST, outcome=Outcome.FAILED, assertion=True, place="test", text="AssertionError: 1 == 2")
CRASH = Run(id=TEST, outcome=Outcome.FAILED, place="changed", text="TypeError: no")
MUTANT = Mutant(CODE, 2, (2,), 0, 1, "x", "`a < b` became `a <= b`")
COLLECTED = Collection(
    items=(Item(id=TEST, function=TEST, path="tests/test_m.py"),),
    imported={CODE: frozenset({1})},
    executable={CODE: frozenset({1, 2, 3})},
)


def report(
    *mutated: Run, before: tuple[Run, ...] | None = (), reading: JudgedTests | None = None, **fields: object
) -> GateReport:
    after = Session(collected=COLLECTED, plain=(GREEN, GREEN), mutated={0: mutated} if mutated else {}, ended=True)
    evidence = Evidence(
        after=after.evolve(**fields),
        before=None if before is None else Session(collected=COLLECTED, plain=before, ended=True),
        readings={} if reading is None else {TEST: reading},
        changed={CODE: frozenset({1, 2, 3})},
        bodies={CODE: frozenset({2, 3})},
        mutants=(MUTANT,),
        tests=("tests/test_m.py",),
        test_limit_s=10.0,
    )
    return judge(evidence)


def reason(*mutated: Run, **fields: object) -> str:
    found = report(*mutated, **fields)  # type: ignore[arg-type]
    assert not found.accepted
    [one] = found.refused
    return one.reason


def test_a_test_that_kills_a_mutant_counts() -> None:
    [one] = report(FAILURE).accepted
    assert (one.test, one.killed, one.fails_before) == (TEST, 1, False)
    assert one.proof == "kills 1 mutant"
    assert report(FAILURE).survived == ()


def test_a_test_that_fails_before_counts_and_what_survives_is_told() -> None:
    found = report(GREEN, before=(FAILURE, FAILURE))
    assert found.accepted[0].proof == "fails on the tree before the change"
    assert found.survived == ("m.py:2: `a < b` became `a <= b`",)


def test_a_failure_before_that_comes_only_once_proves_nothing() -> None:
    assert "varies between runs" in reason(GREEN, before=(FAILURE, GREEN))


def test_a_test_that_only_crashes_is_told_so() -> None:
    assert "fails only with an error" in reason(CRASH)
    assert "TypeError: no" in reason(CRASH)
    assert report(CRASH).survived == ("m.py:2: `a < b` became `a <= b`",)


def test_a_test_that_passes_on_everything_is_told_with_how_many_mutants() -> None:
    assert "with each of 1 mutant in the lines" in reason(GREEN)


def test_a_weak_test_counts_only_where_it_fails_before() -> None:
    weak = JudgedTests(asserts=True, weak="The test only asserts that there is a result.")
    assert reason(FAILURE, reading=weak) == weak.weak
    assert report(FAILURE, before=(FAILURE, FAILURE), reading=weak).accepted
    assert reason(FAILURE, before=(FAILURE, FAILURE), reading=weak._replace(names_only=True)) == weak.weak


def test_a_test_that_executes_no_changed_function_does_not_count_by_failing_before() -> None:
    idle = GREEN.evolve(lines={})
    assert "executes none" in reason(plain=(idle, idle), before=None)
    assert not report(plain=(idle, idle), before=(FAILURE, FAILURE)).accepted


@pytest.mark.parametrize(
    ("outcome", "said"),
    [
        (Outcome.SKIPPED, "is skipped"),
        (Outcome.XFAIL, "expected to fail"),
        (Outcome.TIMEOUT, "longer than 10 s"),
        (Outcome.CRASHED, "ends Python"),
        (Outcome.FAILED, "fails on the tree with the change"),
    ],
)
def test_a_test_has_to_pass_with_the_change(outcome: Outcome, said: str) -> None:
    bad = GREEN.evolve(outcome=outcome)
    assert said in reason(FAILURE, plain=(bad, bad))


def test_a_test_that_does_not_end_the_same_way_each_time_does_not_count() -> None:
    assert "varies between runs" in reason(FAILURE, plain=(GREEN, FAILURE))


def test_hooks_that_change_results_are_noticed() -> None:
    assert "Hooks" in reason(FAILURE, plain=(GREEN.evolve(honest=False),) * 2)


def test_lines_that_accepted_tests_execute_are_counted() -> None:
    coverage = report(FAILURE).coverage
    assert (coverage.covered, coverage.total, coverage.missing) == (2, 3, ("m.py:3",))
    assert report(GREEN).coverage.covered == 0


def test_what_there_was_no_time_for_is_noted() -> None:
    found = report(before=None, ended=False)
    assert "There was only time to test 0 of 1 mutant." in found.notes
    assert "The run was stopped before it finished." in found.notes


def test_a_file_without_tests_and_one_that_cannot_be_collected_are_refused() -> None:
    nothing = Collection()
    assert "No tests were collected" in reason(collected=nothing, plain=())
    broken = Collection(problems=(("tests/test_m.py", "Traceback\nNameError: x"),))
    assert reason(collected=broken, plain=()) == "The test could not be collected: NameError: x."
    assert "Install pytest" in reason(collected=None, plain=(), missing="python3 (Python 3.12) has no pytest")


@pytest.mark.parametrize(
    "change",
    [
        {"outcome": Outcome.PASSED},
        {"assertion": False},
        {"place": "changed"},
        {"place": "other"},
        {"honest": False},
        {"reached": frozenset({"builtins.TypeError"})},
    ],
)
def test_only_an_assertion_of_the_test_itself_proves_something(change: dict[str, object]) -> None:
    assert can_fail(FAILURE, GREEN)
    assert not can_fail(FAILURE.evolve(**change), GREEN)


def test_an_exception_that_the_test_always_sees_does_not_matter() -> None:
    seen = frozenset({"builtins.ValueError"})
    assert can_fail(FAILURE.evolve(reached=seen), GREEN.evolve(reached=seen))


def test_another_exception_than_the_expected_one_is_as_good_as_none() -> None:
    wrong, green = CRASH.evolve(line=7), GREEN.evolve(raised=frozenset({7}))
    assert can_fail(wrong, green, frozenset({7}))
    assert not can_fail(wrong, green)
    assert not can_fail(wrong, GREEN, frozenset({7}))


PATH = "tests/test_m.py"
OF_THE_CODE = FAILURE.evolve(place="changed")
ALTERED = FAILURE.evolve(honest=False)


@pytest.mark.parametrize(
    ("runs", "reading", "problem"),
    [
        ((FAILURE, FAILURE), None, ""),
        ((GREEN, GREEN), None, "passes before any work"),
        ((FAILURE, GREEN), None, "does not fail by its own assertion"),
        ((FAILURE,), None, "does not fail by its own assertion"),
        ((CRASH,), None, "does not fail by its own assertion: TypeError: no"),
        ((OF_THE_CODE, OF_THE_CODE), None, "does not fail by its own assertion"),
        ((ALTERED, ALTERED), None, "does not fail by its own assertion"),
        ((), None, "passes before any work"),
        ((FAILURE, FAILURE), JudgedTests(asserts=True, names_only=True), "only asserts that names exist"),
        ((FAILURE, FAILURE), JudgedTests(asserts=True, refused="It always fails."), "It always fails."),
    ],
)
def test_a_new_test_shows_what_is_missing_only_by_its_own_assertion(
    runs: tuple[Run, ...], reading: JudgedTests | None, problem: str
) -> None:
    session = Session(collected=COLLECTED, plain=runs, ended=True)
    told = why_none_fails(session, {} if reading is None else {TEST: reading}, PATH)
    assert (problem in told) if problem else told == ""


def test_a_test_that_breaks_is_refused_beside_one_that_fails() -> None:
    other = CRASH.evolve(id="tests/test_m.py::test_other")
    items = (*COLLECTED.items, Item(id=other.id, function=other.id, path=PATH))
    session = Session(collected=Collection(items=items), plain=(FAILURE, FAILURE, other), ended=True)
    assert why_none_fails(session, {}, PATH).startswith("tests/test_m.py::test_other does not fail by its own")


def test_a_file_that_cannot_be_collected_shows_nothing() -> None:
    problems = ((PATH, "ModuleNotFoundError: No module named 'm2'\n"),)
    session = Session(collected=Collection(problems=problems), ended=True)
    assert why_none_fails(session, {}, PATH).startswith("The test could not be collected: ModuleNotFoundError")
