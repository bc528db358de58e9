"""What becomes of 500 answers, most of them broken the way models break them; see tests/data/reflections."""

from collections import Counter
from typing import NamedTuple

import pytest
from pydantic import ValidationError

from activities.model.asking import UnusableAnswerError
from activities.model.repair import Level, Reading, read_object
from activities.planner.reflectors import ACTIONS_LIMIT, read_reflection
from tests.data.reflections.corpus import Case, cases
from tests.data.reflections.mutate import FILE, lines
from tightloop.executor.message import Reflection

KEYS = ("diagnosis", "action_items")
CASES = cases()


class Result(NamedTuple):
    case: Case
    reading: Reading
    reflection: Reflection | None
    """What the reflector takes without asking again."""

    @property
    def verdict(self) -> str:
        if self.case.truth == "truncated":
            return "marked" if self.reading.truncated else "wrong" if self.reflection else "lost"
        if self.case.truth == "unusable":
            return "refused" if self.reflection is None else "wrong"
        if self.reflection is None:
            return "lost"
        return "right" if self.reflection == self.case.reflection else "wrong"


def result(case: Case) -> Result:
    reading = read_object(case.text, KEYS)
    try:
        taken = None if reading.value is None or reading.truncated else read_reflection(reading.value)
    except (UnusableAnswerError, ValidationError):
        taken = None
    return Result(case, reading, taken)


@pytest.fixture(scope="module")
def results() -> list[Result]:
    return [result(case) for case in CASES]


def named(results: list[Result], *verdicts: str) -> list[str]:
    return [f"{r.verdict}: {r.case.name}" for r in results if r.verdict in verdicts]


def test_corpus_is_large_and_its_made_part_is_what_the_script_makes() -> None:
    assert len(CASES) >= 250
    assert sum(case.handwritten for case in CASES) >= 60
    assert FILE.read_text(encoding="utf-8").splitlines() == list(lines())


def test_most_broken_answers_are_read_as_they_were_meant(results: list[Result]) -> None:
    meant = [r for r in results if r.case.reflection is not None]
    levels = Counter(r.reading.level.value for r in meant)
    right = sum(r.verdict == "right" for r in meant)
    wrong = len(named(results, "wrong"))
    print(
        f"\n{len(results)} answers: {right} of {len(meant)} that have a truth read as it ({right / len(meant):.1%}; "
        f"{dict(levels)}), {wrong} wrong without an error"
    )
    assert right / len(meant) >= 0.95, named(meant, "lost", "wrong")
    assert wrong / len(results) < 0.01, named(results, "wrong")
    assert levels[Level.REPAIRED.value] > 100


def test_every_cut_answer_is_marked_and_none_of_them_is_taken(results: list[Result]) -> None:
    cut = [r for r in results if r.case.truth == "truncated"]
    print(f"\n{len(cut)} cut answers, {sum(r.reading.truncated for r in cut)} marked")
    assert [r.case.name for r in cut if not r.reading.truncated] == []


def test_whole_answers_are_not_taken_for_cut_ones(results: list[Result]) -> None:
    assert [r.case.name for r in results if r.case.reflection is not None and r.reading.truncated] == []


def test_answer_without_a_reflection_is_refused(results: list[Result]) -> None:
    unusable = [r for r in results if r.case.truth == "unusable"]
    assert len(unusable) >= 10
    assert named(unusable, "wrong") == []


@pytest.mark.parametrize(
    ("given", "items"),
    [
        ("keep it", ("keep it",)),
        ("- keep it\n- test it", ("keep it", "test it")),
        ({"1": "keep it", "2": "test it"}, ("keep it", "test it")),
        ([{"Action": "keep it"}, {"priority": 1, "task": "test it"}], ("keep it", "test it")),
        ([f"do {n}" for n in range(30)], tuple(f"do {n}" for n in range(ACTIONS_LIMIT))),
        (["...", "keep it", " "], ("keep it",)),
    ],
)
def test_items_are_understood_in_the_forms_that_models_use(given: object, items: tuple[str, ...]) -> None:
    assert read_reflection({"diagnosis": "d", "action_items": given}).action_items == items


@pytest.mark.parametrize("given", [[1, 2], [{"priority": "high"}], 5, [["a"]], {"a": "b"}, [None]])
def test_items_of_another_type_are_refused(given: object) -> None:
    with pytest.raises(ValidationError):
        read_reflection({"diagnosis": "d", "action_items": given})
