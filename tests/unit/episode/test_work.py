"""Which changes add to the work, as far as the files show it."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tightloop.episode.progress.tracking import (
    FILES_REMEMBERED,
    LINES_REMEMBERED,
    SAMPLE,
    Touched,
    find_new_work,
    is_test,
)
from tightloop.safety.change.patch import FilePatch, Lines


def edit(path: str, before: str, after: str) -> FilePatch:
    return FilePatch(path, added=Lines(after.split("\n")), removed=Lines(before.split("\n")), new=not before)


def judged(*states: str) -> list[bool]:
    """Return whether each state of a file adds to the work of the states before."""
    touched, found = Touched(), []
    for before, after in itertools.pairwise(states):
        new, touched = find_new_work([edit("a.py", before, after)], touched)
        found.append(new)
    return found


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        (("x = f()", "x = g()", "x = h()", "x = k()"), [True, False, False]),
        (("x = f()", "x = g()", "x = f()", "x = g()"), [True, False, False]),
        (("x = 1", "x = 2", "x = 3"), [True, False]),
        (("a", "a\nb", "a\nb\nc", "a\nb\nc\nd"), [True, True, True]),
        (("a\nb\nc", "b\nc", "c", ""), [True, True, True]),
        (("f()", "f(a)", "f(a, b)", "f(a, b, c)"), [True, True, True]),
        (("a\nb", "a\nb\nc", "b\na\nc"), [True, False]),
        (("a", "a\n# why", "a\n# why not"), [False, False]),
        (("a", "a b", "a  b"), [True, False]),
    ],
)
def test_lines_count_that_are_new_and_stay(states: tuple[str, ...], expected: list[bool]) -> None:
    assert judged(*states) == expected


def test_every_file_counts_the_first_time() -> None:
    touched, found = Touched(), []
    for path in ("a.py", "b.py", "a.py"):
        new, touched = find_new_work([edit(path, "x = 1", "x = 2")], touched)
        found.append(new)
    assert found == [True, True, False]


@pytest.mark.parametrize("patch", [FilePatch("b.py", was="a.py"), FilePatch("a.png"), FilePatch("a.py", deleted=True)])
def test_files_without_lines_count_once(patch: FilePatch) -> None:
    new, touched = find_new_work([patch], Touched())
    assert (new, find_new_work([patch], touched)[0]) == (True, False)


@given(st.lists(st.text(alphabet="abcxyz", min_size=1, max_size=4), min_size=1, max_size=300, unique=True))
def test_memory_is_bounded(names: list[str]) -> None:
    touched = Touched()
    for name in names:
        _, touched = find_new_work([edit(f"{name}.py", "", "\n".join(names))], touched)
    assert len(touched.lines) <= 4 * LINES_REMEMBERED
    assert len(touched.files) <= 4 * FILES_REMEMBERED
    assert SAMPLE * 6 == LINES_REMEMBERED


def test_tests_are_recognised_by_their_path() -> None:
    assert all(map(is_test, ("tests/a.py", "test_a.py", "src/a.spec.ts", "ATest.java")))
    assert not any(map(is_test, ("src/attest.py", "latest.py")))
