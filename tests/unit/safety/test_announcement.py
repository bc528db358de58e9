"""A goal announces changes to tests and configuration with a verb and its object, and values by naming them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tightloop.safety.announcement import find_requested_changes


@pytest.mark.parametrize(
    ("goal", "everything", "files"),
    [
        ("make the tests pass", False, ()),
        ("Fix the failing tests", False, ()),
        ("Add tests for the parser", False, ()),
        ("Do not change the tests", False, ()),
        ("Fix add without changing tests", False, ()),
        ("Change the parser so that the tests pass", False, ()),
        ("Refactor module x, all tests must still pass", False, ()),
        ("Update calc.py to make test_add pass", False, ("calc.py",)),
        ("Fix add() and update tests as needed.", False, ()),
        ("Fix add() and adapt the tests where necessary.", False, ()),
        ("update tests accordingly", True, ()),
        ("Fix it and update the snapshots.", True, ()),
        ("Remove the obsolete tests of the old API", True, ()),
        ("Move the tests into tests/unit/", False, ("tests/unit/",)),
        ("Rewrite the tests in tests/test_a.py with pytest", False, ("tests/test_a.py",)),
        ("raise line-length in pyproject.toml", False, ("pyproject.toml",)),
        ("Fix validator.py: it must accept an empty list.", False, ("validator.py",)),
        ("Fix the prices in catalog.json", False, ("catalog.json",)),
        ("Fix tests/test_calc.py", False, ()),
        ("Fix what tools/scan.py reports.", False, ()),
        ("Fix add() so that check.py passes.", False, ()),
    ],
)
def test_a_goal_announces_changes_with_a_verb_and_its_object(
    goal: str, everything: bool, files: tuple[str, ...]
) -> None:
    requested = find_requested_changes(goal)
    assert (requested.everything, requested.files) == (everything, files)


@pytest.mark.parametrize(
    ("goal", "tests"),
    [
        ("Rename test_add to test_sum", ("test_add", "test_sum")),
        ("test_clock is flaky (issue 864): skip it until that is fixed", ("test_clock",)),
        ('Skip the test "adds numbers"', ("adds numbers",)),
        ("Fix add() so that test_add passes", ()),
        ("Fix test_add", ()),
    ],
)
def test_a_goal_announces_the_tests_that_it_names(goal: str, tests: tuple[str, ...]) -> None:
    assert find_requested_changes(goal).tests == tests


@pytest.mark.parametrize(
    ("goal", "value", "wanted"),
    [
        ("test_mul expects 5 for 2 * 3, which is wrong: it must be 6.", "6", True),
        ("test_mul expects 5 for 2 * 3, which is wrong: it must be 6.", "5", False),
        ("Release 1.1.", "1.1", True),
        ("The CSV export needs a header line: name,price.", "name,price", True),
        ("Raise TypeError for strings instead of joining them.", "TypeError", True),
        ("add(2, 2) returns 0 instead of 4", "0", False),
        ("add(2, 2) is 0, but it should be 4", "0", False),
        ("Fix add()", "0", False),
    ],
)
def test_a_value_is_announced_as_what_is_to_be(goal: str, value: str, wanted: bool) -> None:
    assert find_requested_changes(goal).wants(value) is wanted


def test_a_removal_names_what_it_removes() -> None:
    requested = find_requested_changes("Remove the legacy exporter. Keep parse().")
    assert requested.removes("export.LegacyExporter")
    assert not requested.removes("parse")
    assert not find_requested_changes("Do not remove old_sum()").removes("old_sum")


@given(st.text(max_size=400))
def test_any_goal_is_read(goal: str) -> None:
    assert all(name in goal for name in find_requested_changes(goal).files)


def test_who_may_change_tests_may_not_change_configuration() -> None:
    requested = find_requested_changes("update the tests")
    assert requested.covers("tests/test_a.py")
    assert not requested.covers("pytest.ini", is_test=False)
    assert not requested.covers("conftest.py", is_new=True)


def test_a_goal_announces_the_test_class_that_it_names() -> None:
    requested = find_requested_changes("Rename Cart::sum() to total(), and adapt CartTest.")
    assert requested.covers("tests/CartTest.php")
    assert requested.covers_test("CartTest::testSum")
    assert not requested.covers("tests/CountTest.php")
    assert not find_requested_changes("Fix Cart so that CartTest passes.").covers("tests/CartTest.php")


def test_a_goal_announces_new_configuration_by_what_it_is_for() -> None:
    requested = find_requested_changes("Add a tox configuration, and a build script that stores the date.")
    assert requested.covers("build.rs", is_test=False, is_new=True)
    assert requested.covers("tox.ini", is_test=False, is_new=True)
    assert not requested.covers("build.rs", is_test=False), "it was there"
    assert not requested.covers("pytest.ini", is_test=False, is_new=True)


@pytest.mark.parametrize(
    ("old", "new", "lost"),
    [("mean 11.33", "mean 11", True), ("mean 11", "mean 11.33", False), ("mean 12", "mean 11", False)],
)
def test_a_number_that_the_goal_wants_may_not_make_way_for_another_one(old: str, new: str, lost: bool) -> None:
    requested = find_requested_changes("The mean has to have two decimals (10, 11, 13 -> 11.33)")
    assert requested.wants_more_of(old, new) is lost
