"""Reading the object out of what models really write; the corpus is made here, from known truth."""

import json
import random
import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from activities.model.asking import UnusableAnswerError
from activities.model.repair import ANSWER_CHARACTERS, REPAIR_CHARACTERS, Level, Reading, read_object
from activities.planner.reflectors import read_reflection
from tests.data.reflections.mutate import FAULTS, Chance, Truth
from tests.data.reflections.mutate import TRUTHS as MADE
from tightloop.executor.message import Reflection

KEYS = ("diagnosis", "action_items")


def expected(truth: Truth) -> str:
    return Reflection(diagnosis=truth["diagnosis"], action_items=tuple(truth["action_items"])).model_dump_json()


def taken(reading: Reading) -> str:
    """What the reflector takes from a reading; empty where it sends the answer back."""
    try:
        return read_reflection(reading.value or {}).model_dump_json()
    except (UnusableAnswerError, ValidationError):
        return ""


TRUTHS = [
    {"diagnosis": "two tests fail because parse() drops the last line", "action_items": ["keep it", "test it"]},
    {"diagnosis": 'it says {"a": 1} and "quoted" \\ back', "action_items": ["use `{}` as the default"]},
    {"diagnosis": "Umlaute äöü, 漢字 and 🙂\nsecond line", "action_items": ["a, b; c", "d: [e]"]},
]

Fault = Callable[[str], str]
UNWRAPPED: dict[str, Fault] = {
    "fence": lambda text: f"```json\n{text}\n```",
    "bare fence": lambda text: f"```\n{text}\n```\n",
    "prose around": lambda text: f"Sure! Here is the plan:\n\n{text}\n\nLet me know if {{anything}} is unclear.",
    "thoughts with braces": lambda text: f'<think>maybe {{"diagnosis": "x"}} or {{}}...</think>\n{text}',
    "unclosed thoughts": lambda text: f"<think>hm { {} } so\n{text}",
    "double encoded": lambda text: json.dumps(text),
    "white space": lambda text: f"\n\t  {text}  \n",
    "draft first": lambda text: f'{{"diagnosis": "draft", "action_items": []}}\nBetter:\n{text}',
    "wrapped": lambda text: f'{{"answer": {text}}}',
    "byte order mark": lambda text: "\ufeff" + text,
}
REPAIRED: dict[str, Fault] = {
    "trailing comma": lambda text: text[:-1] + ",}",
    "missing brace": lambda text: text[:-1],
    "unquoted key": lambda text: text.replace('"diagnosis"', "diagnosis", 1),
    "comment": lambda text: text.replace("{", "{ // the answer\n", 1),
    "missing comma": lambda text: text.replace('", "action_items"', '" "action_items"', 1),
    "fence and trailing comma": lambda text: f"```json\n{text[:-1]},}}\n```",
    "prose and trailing comma": lambda text: f"I {{really}} think:\n{text[:-1]},}}",
}


@pytest.mark.parametrize("fault", UNWRAPPED)
@pytest.mark.parametrize("truth", TRUTHS)
def test_sound_object_is_found_in_its_wrapping(fault: str, truth: dict[str, object]) -> None:
    reading = read_object(UNWRAPPED[fault](json.dumps(truth, ensure_ascii=False)), KEYS)
    assert reading.value == truth
    assert reading.level in (Level.EXACT, Level.UNWRAPPED)


@pytest.mark.parametrize("fault", REPAIRED)
@pytest.mark.parametrize("truth", TRUTHS[::2])
def test_broken_object_is_repaired_and_said_so(fault: str, truth: dict[str, object]) -> None:
    reading = read_object(REPAIRED[fault](json.dumps(truth, ensure_ascii=False)), KEYS)
    assert reading.value == truth
    assert reading.level is Level.REPAIRED


def test_sound_object_without_the_keys_is_returned_for_the_validation_to_name_them() -> None:
    assert read_object('{"plan": "x"}', KEYS) == Reading({"plan": "x"}, Level.EXACT)
    assert read_object('So:\n{"diagnosis": "x",}', KEYS) == Reading({"diagnosis": "x"}, Level.REPAIRED)


@pytest.mark.parametrize("text", ["", "  \n", "I cannot do that.", "[1, 2]", "null", "<html>502 Bad Gateway</html>"])
def test_text_without_object_is_a_problem_in_words(text: str) -> None:
    reading = read_object(text, KEYS)
    assert reading.value is None
    assert reading.problem.startswith("the answer ")


def test_answer_over_the_bound_is_not_read() -> None:
    reading = read_object(json.dumps(TRUTHS[0]) + " " * ANSWER_CHARACTERS, KEYS)
    assert reading.value is None
    assert "1,000,000" in reading.problem


@pytest.mark.parametrize(
    "text",
    ['{"a":' * 200_000, "<think>" * 140_000, "{" * 1_000_000, "```\n" * 250_000, "[" * 1_000_000,
     '{"a": 1}, ' * 90_000,
     "{" * 39_000, '{"diagnosis": [' * 2_500,
     '{"diagnosis": a' + " " * 39_000 + '|"', '{"diagnosis": "' + '"/*' * 13_000, '{"diagnosis": "' + '", ' * 13_000,
     '{"diagnosis": "a" ' * 2_000, "{/*" * 300_000, "</think>" * 120_000, '{\\"' * 300_000, "{" + " " * 900_000],
    ids=["deep objects", "open thoughts", "braces", "fences", "deep lists", "many objects",
         "braces to repair", "depth to repair", "bare spaces", "open remarks", "quotes", "starts", "remarks",
         "closed thoughts", "escapes", "spaces"],
)  # fmt: skip
def test_hostile_megabyte_is_answered_in_bounded_time(text: str) -> None:
    started = time.process_time()
    assert not set(KEYS) <= set(read_object(text, KEYS).value or ())
    assert time.process_time() - started < 30


@given(st.text(max_size=300))
def test_any_text_is_survived(text: str) -> None:
    found = read_object(text, KEYS)
    assert (found.value is None) == (found.level is Level.NONE)


@given(st.integers(0, 10_000))
def test_random_damage_gives_an_object_or_a_problem(seed: int) -> None:
    chance = random.Random(seed)
    text = list(json.dumps(chance.choice(TRUTHS)))
    for _ in range(chance.randint(1, 6)):
        text[chance.randrange(len(text))] = chance.choice('{}[]",:\\ x\n')
    reading = read_object("".join(text), KEYS)
    assert bool(reading.problem) == (reading.value is None or reading.truncated)


@pytest.mark.parametrize("kind", [kind for kind in FAULTS if kind not in ("no opening brace", "draft first")])
def test_object_that_is_cut_anywhere_is_marked_or_whole(kind: str) -> None:
    for truth in MADE[:6]:
        text = FAULTS[kind](truth, Chance(1))
        for end in range(text.lower().index("diagnosis"), len(text)):
            reading = read_object(text[:end], KEYS)
            if not reading.truncated:
                assert reading.value is not None, text[:end]
                assert taken(reading) in (expected(truth), ""), text[:end]


def test_thoughts_without_an_answer_are_marked_as_cut() -> None:
    answer = json.dumps(TRUTHS[0])
    for text in (f"<think>{answer}</think>\n", f"<think>perhaps {answer[:30]}", "<think>I wonder"):
        assert read_object(text, KEYS).truncated, text
    assert not read_object(f"<think>I wonder</think>{answer}", KEYS).truncated


def test_cut_text_keeps_a_true_prefix_of_what_was_meant() -> None:
    reading = read_object('{"diagnosis": "two tests", "action_items": ["keep it", "te', KEYS)
    assert reading.truncated
    assert reading.value == {"diagnosis": "two tests", "action_items": ["keep it", "te"]}


def test_single_words_without_quotes_are_not_taken_for_texts() -> None:
    assert read_object('{"diagnosis": text, "action_items": [text]}', KEYS).value is None


def test_object_beyond_the_bound_of_repair_is_only_parsed() -> None:
    sound = json.dumps(TRUTHS[0])
    padding = "prose " * (REPAIR_CHARACTERS // 6 + 1)
    assert read_object(padding + sound[:-1] + ",}", KEYS).value == TRUTHS[0]
    assert read_object(sound + padding, KEYS).value == TRUTHS[0]
    assert read_object(sound[:-1] + ",}" + padding, KEYS).value is None
