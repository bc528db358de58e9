"""What counts as work: lines that are new, and not comments, numbers, logs or another try of the same."""

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tightloop.episode.progress.tracking import Work
from tightloop.episode.progress.work import REMEMBERED_WORDS, SAMPLE, TOUCHED, compare_words, only_tests, weigh_work
from tightloop.safety.change.patch import FilePatch, Lines

AGAIN, NEW, NOTHING, REWORK, DOUBTFUL = Work.AGAIN, Work.NEW, Work.NOTHING, Work.REWORK, Work.DOUBTFUL


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
        ("README.md", ["", "# How\nRun it.", "# How\nRun it.\n# Why\nIt is fast."], [DOUBTFUL, DOUBTFUL]),
        ("pins.txt.lock", ["a==1\nb==1", "a==2\nb==1", "a==2\nb==2", "a==3\nb==2"], [NEW, NEW, AGAIN]),
    ],
)
def test_change_is_weighed_by_what_is_new(path: str, texts: list[str], expected: list[Work]) -> None:
    assert course(path, texts) == expected


def test_list_that_a_check_names_is_work() -> None:
    texts = ["", "item 1", "item 1\nitem 2"]
    assert course("out/items.txt", texts, ["test $(wc -l < out/items.txt) -ge 9"]) == [NEW, NEW]


@pytest.mark.parametrize(
    ("run", "expected"), [("sh check.sh", NEW), ("ls manual/*.md", NEW), ("test -x app", DOUBTFUL)]
)
def test_text_is_work_where_the_checks_may_look_at_it(run: str, expected: Work) -> None:
    page = FilePatch("manual/start.md", added=Lines(["# Start", "Press the button."]), new=True)
    assert weigh_work([page], "", [run])[0] is expected


def test_same_file_in_another_folder_is_not_new() -> None:
    touched, found = "", []
    for folder in ("etc", "conf", "app"):
        copy = FilePatch(f"{folder}/settings.toml", added=Lines(["[server]", "port = 9000"]), new=True)
        work, touched = weigh_work([copy], touched, ())
        found.append(work)
    assert found == [NEW, AGAIN, AGAIN]


@pytest.mark.parametrize(("same_error", "expected"), [(True, [NEW, DOUBTFUL, DOUBTFUL]), (False, [NEW, NEW, NEW])])
def test_same_line_elsewhere_is_doubtful_while_the_error_stays(same_error: bool, expected: list[Work]) -> None:
    touched, found = "", []
    for path in ("a.py", "b.py", "c.py"):
        work, touched = weigh_work([edit(path, "", "@retry(3)")], touched, (), same_error=same_error)
        found.append(work)
    assert found == expected


def news(*runs: tuple[FilePatch, str]) -> list[bool]:
    """Return for each run of the checks whether it says something new about the change before it."""
    heard, found = "", []
    for file, said in runs:
        new, _, heard = compare_words([file], said, heard)
        found.append(new)
    return found


def test_failure_that_repeats_what_the_change_wrote_is_no_news() -> None:
    told = [("birch", "KeyError"), ("cedar", "KeyError"), ("dune", "TypeError")]
    runs = [(edit("c.py", "", f"KEY = '{key}'"), f"{error}: '{key}'") for key, error in told]
    assert news(*runs) == [True, False, True]


def test_message_of_a_test_is_no_news_though_its_line_is_printed() -> None:
    line = "assert tax(100) == 7, '{} goods'"
    trace = 'Traceback (most recent call last):\n  File "a.py", line 3, in <module>\n    {}\nAssertionError: {} goods'
    runs = [(line.format(word), trace.format(line.format(word), word)) for word in ("birch", "cedar", "dune")]
    assert news(*((edit("a.py", "", code), said) for code, said in runs)) == [True, False, False]


@pytest.mark.parametrize(
    "said", ["web-7d24{0}-x{0}k2 does not start", "worker x{0}k{0}q is gone"], ids=["pod", "worker"]
)
def test_id_that_is_another_one_each_time_is_no_news(said: str) -> None:
    assert news(*((edit("a.py", "", ""), said.format(n)) for n in range(1, 6))) == [True] + [False] * 4


def test_text_with_another_number_is_another_text_once() -> None:
    heard, found = "", []
    for number in (9, 7, 9, 7):
        _, other, heard = compare_words((), f"{number} left", heard)
        found.append(other)
    assert found == [True, True, False, False]


@pytest.mark.parametrize(
    ("path", "before", "expected"),
    [
        ("tests/test_a.py", "", True),
        ("src/a.spec.ts", "", True),
        ("tests/test_a.py", "old", False),
        ("a.py", "", False),
    ],
)
def test_change_that_only_adds_tests_is_known_by_its_files(path: str, before: str, *, expected: bool) -> None:
    assert only_tests([edit(path, before, "assert f()")]) is expected
    assert not only_tests([edit(path, before, "assert f()"), edit("a.py", "", "f()")])


def test_report_that_is_printed_as_it_is_counts_as_said() -> None:
    assert news(*((edit("out.txt", "", said), said) for said in ("no method go", "no type run"))) == [True, True]


@pytest.mark.parametrize("said", ["{} of 9 differ", "line {}: bad", "ci.yml:{}:7 error", "at 10:0{}:00 it broke"])
def test_failure_with_another_number_is_no_news(said: str) -> None:
    assert news(*((edit("a.py", "", ""), said.format(n)) for n in range(1, 9))) == [True] + [False] * 7


@given(st.lists(st.lists(st.from_regex(r"[a-z]{3,9}", fullmatch=True), min_size=1, max_size=9), min_size=1, max_size=4))
def test_circle_of_failures_is_news_in_its_first_round_at_most(circle: list[list[str]]) -> None:
    found = news(*((edit("a.py", "", f"n = {at}"), " ".join(words)) for at, words in enumerate(circle * 3)))
    assert not any(found[len(circle) :])


@given(st.lists(st.text(max_size=400), max_size=30))
def test_words_that_are_remembered_stay_bounded(runs: list[str]) -> None:
    heard = ""
    for said in runs:
        _, _, heard = compare_words((), said, heard)
        assert len(heard) <= 4 * REMEMBERED_WORDS
        assert compare_words((), said, heard) == (False, False, heard)


def test_numbered_notes_that_say_the_same_are_one_note() -> None:
    touched, found = "", []
    for number in range(1, 4):
        note = FilePatch(f"notes/{number}.md", added=Lines([f"Try {number} failed."]), new=True)
        work, touched = weigh_work([note], touched, ())
        found.append(work)
    assert found == [DOUBTFUL, NOTHING, NOTHING]


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
