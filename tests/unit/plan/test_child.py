"""The ids of the workflows that steps start."""

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tightloop.plan.child import CHILD_NAME_CHARACTERS, child_id

PLAN = "plan-0123456789ab"
STEPS = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", fullmatch=True)
WAYS = st.one_of(st.just(""), st.text("ab._- /é", min_size=1, max_size=80))
PLACES = st.tuples(STEPS, st.integers(1, 20), WAYS)


@given(PLACES, PLACES)
@example(("a.b", 1, ""), ("a_b", 1, ""))
@example(("a.b", 1, ""), ("a_b-2e7336dc8eba", 1, ""))
@example(("try", 1, "a b"), ("try", 1, "a_b"))
@example(("a", 1, ""), ("a.1", 1, ""))
@example(("try", 1, "x" * 200), ("try", 1, "x" * 199 + "y"))
def test_different_places_have_different_ids(one: tuple[str, int, str], other: tuple[str, int, str]) -> None:
    assert (child_id(PLAN, *one) == child_id(PLAN, *other)) is (one == other)


@given(PLACES)
def test_id_is_fit_for_git_and_for_a_file_name(place: tuple[str, int, str]) -> None:
    found = child_id(PLAN, *place)
    assert re.fullmatch(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)+", found)
    assert len(found) <= CHILD_NAME_CHARACTERS


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        (("build", 1, ""), f"{PLAN}.build.1"),
        (("look-3", 12, ""), f"{PLAN}.look-3.12"),
        (("Try_it", 2, "second-way"), f"{PLAN}.Try_it.2.second-way"),
    ],
)
def test_ordinary_names_stand_in_the_id_as_they_are(place: tuple[str, int, str], expected: str) -> None:
    assert child_id(PLAN, *place) == expected


def test_other_names_stay_readable() -> None:
    assert child_id(PLAN, "a.b", 1) == f"{PLAN}.a_b-2e7336dc8eba.1"
