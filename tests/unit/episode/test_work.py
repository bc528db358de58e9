"""What counts as work: lines that are new, and not comments, numbers, logs or another try of the same."""

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tightloop.episode.progress.work import SAMPLE, TOUCHED, Work, weigh_work
from tightloop.safety.change.patch import FilePatch, Lines

AGAIN, NEW, NOTHING, REWORK = Work.AGAIN, Work.NEW, Work.NOTHING, Work.REWORK


def edit(path: str, before: str, after: str) -> FilePatch:
    """Return the patch between two texts, all lines replaced."""
    return FilePatch(path, added=Lines(after.splitlines()), removed=Lines(before.splitlines()))


def course(path: str, texts: Sequence[str], said: Sequence[str] = ()) -> list[Work]:
    """Weigh the changes that lead from one text of a file to the next."""
    touched, found = "", []
    for before, after in pairwise(texts):
        work, touched = weigh_work([edit(path, before, after)], touched, said)
        found.append(work)
    return found


@pytest.mark.parametrize(
    ("path", "texts", "expected"),
    [
        ("a.py", ["", "x = f()", "x = f()\ny = g()"], [NEW, NEW]),
        ("a.py", ["x = f()", "x = f()  # why", "# really\nx = f()"], [NOTHING, NOTHING]),
        ("a.py", ["def f(a, b):\n    go()", "def f( a,b ):\n  go()\n\n"], [NOTHING]),
        ("a.c", ["", "#include <a.h>"], [NEW]),
        ("a.py", ["", "LIMIT = 1", "LIMIT = 2", "LIMIT = 30"], [NEW, AGAIN, AGAIN]),
        ("a.py", ["", "a()", "b()", "c()"], [NEW, REWORK, REWORK]),
        ("a.py", ["", "a()", "b()", "a()", "b()"], [NEW, REWORK, AGAIN, AGAIN]),
        ("a.py", ["", "N = ['a']", "N = ['a', 'b']", "N = ['a', 'b', 'c']"], [NEW, NEW, NEW]),
        ("a.py", ["", "go()", "go()\ngo()"], [NEW, AGAIN]),
        ("a.py", ["old()\nkept()", "kept()"], [NEW]),
        ("rows.csv", ["", "1,2", "1,2\n3,4"], [NEW, NEW]),
        ("run.log", ["", "10:00 red", "10:00 red\n11:00 red"], [NOTHING, NOTHING]),
        ("tries.txt", ["", "try 1", "try 1\ntry 2"], [NOTHING, NOTHING]),
        ("README.md", ["", "# How\nRun it.", "# How\nRun it.\n# Why\nIt is fast."], [NEW, NEW]),
    ],
)
def test_change_is_weighed_by_what_is_new(path: str, texts: list[str], expected: list[Work]) -> None:
    assert course(path, texts) == expected


def test_list_that_a_check_names_is_work() -> None:
    texts = ["", "item 1", "item 1\nitem 2"]
    assert course("out/items.txt", texts, ["test $(wc -l < out/items.txt) -ge 9"]) == [NEW, NEW]


def test_numbered_notes_that_say_the_same_are_one_note() -> None:
    touched, found = "", []
    for number in range(1, 4):
        note = FilePatch(f"notes/{number}.md", added=Lines([f"Try {number} failed."]), new=True)
        work, touched = weigh_work([note], touched, ())
        found.append(work)
    assert found == [NEW, NOTHING, NOTHING]


def test_what_moves_to_another_file_is_not_replaced() -> None:
    written, touched = weigh_work([edit("big.py", "", "f()\ng()")], "", ())
    moved = [edit("big.py", "f()\ng()", "g()"), edit("small.py", "", "f()")]
    assert (written, weigh_work(moved, touched, ())[0]) == (NEW, NEW)


def test_file_that_only_gets_other_names_is_one_try_after_the_other() -> None:
    first, touched = weigh_work([FilePatch("b.py", was="a.py")], "", ())
    second, _ = weigh_work([FilePatch("c.py", was="b.py")], touched, ())
    assert (first, second) == (NEW, REWORK)


texts = st.lists(st.text(st.characters(codec="utf-8"), max_size=30), max_size=8).map("\n".join)


@given(st.lists(texts, min_size=2, max_size=4), st.integers(min_value=2, max_value=3))
def test_circle_of_texts_is_new_once(circle: list[str], rounds: int) -> None:
    found = course("a.py", ["", *circle * rounds])
    assert not set(found[len(circle) + 1 :]) & {NEW, REWORK}


@given(st.integers(min_value=1, max_value=40))
def test_file_that_grows_by_names_is_always_new(lines: int) -> None:
    names = [f"def part_{n}(): ..." for n in range(lines)]
    assert set(course("a.py", ["\n".join(names[:n]) for n in range(lines + 1)])) == {NEW}


@given(st.lists(texts, max_size=6))
def test_memory_is_bounded(each: list[str]) -> None:
    touched = ""
    for text in each:
        _, touched = weigh_work([edit("a.py", "", text * SAMPLE)], touched, ())
    assert len(touched) <= 4 * TOUCHED
