"""Whole courses by the rules alone: what only gets better is never paused, and what goes round always is."""

import itertools
from collections.abc import Callable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.episode.test_episode import GREEN, REQUEST, record
from tightloop.episode.check import (
    Check,
    CheckReport,
    FailedCheck,
    Verification,
    judge,
    newly_failing,
    progress,
    regress,
)
from tightloop.episode.checkpoint import Tracked
from tightloop.episode.decisions import NextAction, after_tracking
from tightloop.episode.failure import goes_round
from tightloop.episode.model import EpisodeState
from tightloop.episode.progress.course import Iteration, observe
from tightloop.episode.progress.tracking import TrackerMemory, Tracking, find_new_work
from tightloop.episode.state_changes import begin_iteration, with_tracking, with_verification
from tightloop.executor.model import ExecutorReport, ExecutorStatus
from tightloop.run.question import Question, QuestionKind
from tightloop.safety.change.patch import FilePatch, Lines

DONE = ExecutorReport(key="k", status=ExecutorStatus.COMPLETED)
CHECK = Check(run="make test")
PAUSES_WITHIN = 5
Step = tuple[Mapping[str, str], str]
"""Text of each file, and what the check prints about them."""


class Followed:
    """A course, as far as it went.

    Attributes:
        paused: the iteration that paused, if one did.
        question: its question.
        told: the iterations after which people got an alert.
    """

    def __init__(self, course: list[Step], *, unattended: bool = False) -> None:
        self.paused: int | None = None
        self.question: Question | None = None
        self.told: list[int] = []
        self._request = REQUEST.evolve(unattended=unattended)
        self._state, self._report = EpisodeState(baseline_red=True), _report(course[0])
        for number, (before, after) in enumerate(itertools.pairwise(course), start=1):
            self._follow(number, before, after)
            if self.paused is not None:
                break

    def _follow(self, number: int, before: Step, after: Step) -> None:
        tree, patches = repr(after[0]), _patches(before[0], after[0])
        previous, self._report = self._report, _report(after)
        verification = Verification(
            tree=tree,
            total=1,
            failed=(FailedCheck(name="make test"),),
            failed_count=1,
            signature=self._report.signature,
            progress=progress(previous, self._report),
            regress=regress(previous, self._report),
            same=previous.signature == self._report.signature,
            newly_failing=newly_failing(previous, self._report),
        )
        new_work, touched = find_new_work(patches, (self._state.memory or TrackerMemory()).known)
        state = with_verification(begin_iteration(self._state), verification)
        iteration = Iteration(
            spent=state.spent,
            files_changed=len(patches),
            new_work=new_work,
            touched=touched,
            tree_seen_before=tree in state.trees,
            report=DONE,
            verification=verification,
            checks=self._report,
        )
        facts, memory = observe(state.memory, iteration)
        tracking = Tracking(
            files_changed=len(patches),
            progress=facts.progress,
            circles=goes_round((*state.trees, tree)) or facts.errors_alternate,
            memory=memory,
        )
        tracked = Tracked(tracking=tracking, checkpoint=record(number).evolve(tree=tree))
        self._state = with_tracking(state.evolve(executor_status=DONE.status), tracked, verification)
        decision = after_tracking(self._state, self._request)
        if decision.action is NextAction.ASK:
            self.paused, self.question = number, decision.question
        elif decision.action is NextAction.TELL:
            self.told.append(number)


def _report(step: Step) -> CheckReport:
    result = judge(CHECK, tree=repr(step[0]), exit_code=1, timed_out=False, duration_s=0.1, output=step[1])
    return CheckReport(tree=repr(step[0]), results=(result,))


def _patches(before: Mapping[str, str], after: Mapping[str, str]) -> list[FilePatch]:
    return [
        FilePatch(
            path,
            added=Lines(text.split("\n")),
            removed=Lines(before[path].split("\n") if path in before else []),
            new=path not in before,
        )
        for path, text in after.items()
        if before.get(path) != text
    ]


FILES = 26


def files(count: int) -> dict[str, str]:
    return {f"src/part_{n}.py": f"VALUE = {n}\n" for n in range(1, count + 1)}


def missing(count: int) -> list[str]:
    return [f"src/part_{n}.py is missing" for n in range(count + 1, FILES + 1)]


def functions(count: int) -> str:
    return "".join(f"def step_{n}(rows):\n    return rows[{n}]\n\n" for n in range(1, count + 1))


HONEST: dict[str, Callable[[int], Step]] = {
    "26 files, the check names the next": lambda n: (files(n), missing(n)[0] if missing(n) else ""),
    "26 files, the check lists all missing": lambda n: (files(n), "\n".join(missing(n))),
    "26 files below a silent check": lambda n: (files(n), ""),
    "one file grows below one message": lambda n: ({"src/flow.py": functions(n)}, "AssertionError: not finished"),
}
STUCK: dict[str, Callable[[int], Step]] = {
    "the same file again": lambda n: ({"src/a.py": "VALUE = 1\n"} if n else {}, "AssertionError: 1 != 2"),
    "two contents in turn": lambda n: ({"src/a.py": f"VALUE = {'one' if n % 2 else 'two'}\n"}, "AssertionError"),
    "one constant, ever higher": lambda n: ({"src/a.py": f"LIMIT = {n}\n"}, f"AssertionError: {n} != x"),
    "another word each time": lambda n: ({"src/a.py": f"NAME = '{'abcdefghi'[n]}'\n"}, "AssertionError"),
}


@pytest.mark.parametrize("name", HONEST)
def test_honest_work_is_never_paused(name: str) -> None:
    assert Followed([HONEST[name](n) for n in range(FILES + 1)]).paused is None


@pytest.mark.parametrize("name", STUCK)
def test_stuck_work_is_paused_soon(name: str) -> None:
    course = [STUCK[name](n) for n in range(9)]
    assert Followed(course).paused in range(1, PAUSES_WITHIN + 1)
    unattended = Followed(course, unattended=True)
    assert unattended.paused is None
    assert unattended.told


@pytest.mark.parametrize(
    ("name", "kind", "title"),
    [
        ("the same file again", QuestionKind.REPEATED_ERROR, "4 iterations in a row changed no files ("),
        ("another word each time", QuestionKind.REPEATED_ERROR, "the same error 4 times without progress: "),
        (
            "two contents in turn",
            QuestionKind.DEVIATION,
            "the work is going in circles: 4 iterations without progress ",
        ),
    ],
)
def test_question_names_the_cause(name: str, kind: QuestionKind, title: str) -> None:
    question = Followed([STUCK[name](n) for n in range(9)]).question
    assert question is not None
    assert (question.kind, question.title[: len(title)]) == (kind, title)


words = st.from_regex(r"[a-z]{3,9}", fullmatch=True)
distinct = st.lists(words, min_size=2, max_size=14, unique=True)


def in_one_file(*steps: tuple[str, str]) -> list[Step]:
    return [({"a.py": text}, output) for text, output in steps]


@given(distinct, st.booleans())
def test_failing_set_that_shrinks_never_pauses(names: list[str], counter_only: bool) -> None:
    course = []
    for left in range(len(names), 0, -1):
        text = f"left = {left}" if counter_only else "\n".join(names[left:])
        course.append((text, "\n".join(f"FAILED {name}" for name in names[:left])))
    assert Followed(in_one_file(*course)).paused is None


@given(distinct, words)
def test_lines_that_come_one_after_the_other_never_pause(names: list[str], output: str) -> None:
    course = [("\n".join(f"def {name}(): ..." for name in names[:n]), output) for n in range(len(names) + 1)]
    assert Followed(in_one_file(*course)).paused is None


@given(st.lists(words, min_size=1, max_size=4, unique=True), words, st.integers(min_value=0, max_value=9))
def test_circle_of_trees_with_the_same_output_always_pauses(circle: list[str], output: str, number: int) -> None:
    course = [(f"{name}()", f"{output} at line {n * number}") for n, name in enumerate(circle * 5)]
    found = Followed(in_one_file(("start()", output), *course)).paused
    assert found is not None
    assert found <= len(circle) + PAUSES_WITHIN


@given(distinct, words)
def test_people_hear_of_new_lines_that_the_checks_do_not_show(names: list[str], output: str) -> None:
    course = [("\n".join(f"def {names[0]}_{n}(): ..." for n in range(at)), output) for at in range(8)]
    followed = Followed(in_one_file(*course))
    assert followed.paused is None
    assert len(followed.told) == 1


def test_green_checks_end_the_count() -> None:
    state = EpisodeState(baseline_red=True)
    tracked = Tracked(tracking=Tracking(files_changed=1), checkpoint=record(1))
    assert with_tracking(state, tracked, GREEN).failures.last is None
