"""Answers of models: calls that can be made, or a sentence that the model can act on."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from activities.coder.judging import MOST_CALLS, PROBLEM_CHARACTERS, judge
from activities.coder.port import ToolSpec
from activities.model.observed import ModelAnswer, ProposedCall
from tests.support.coder_turns import SPECS, TEXT

CORPORA = Path(__file__).parents[2] / "data" / "coder"
ANSWERS = yaml.safe_load((CORPORA / "answers.yaml").read_text(encoding="utf-8"))
HELD_BACK = yaml.safe_load((CORPORA / "answers_held_back.yaml").read_text(encoding="utf-8"))
LINE = {"type": ["integer", "null"]}
PATH_ONLY = {"path": {"type": "string"}}


def loose(name: str, *needed: str, **properties: dict[str, Any]) -> ToolSpec:
    """A tool whose other arguments may be left out."""
    return ToolSpec(name, name, {"type": "object", "properties": properties, "required": needed})


LOOSE = (
    loose("read_file", "path", **PATH_ONLY, start=LINE, end=LINE),
    loose("edit_file", "path", **PATH_ONLY, old=TEXT, new=TEXT),
    loose("delete_file", "path", **PATH_ONLY),
    loose("run_tests"),
    loose("finish", summary=TEXT),
)


def called(*calls: tuple[str, str], **options: Any) -> ModelAnswer:
    return ModelAnswer(calls=tuple(ProposedCall(f"c{n}", *call) for n, call in enumerate(calls)), **options)


@pytest.mark.parametrize(
    ("written", "start"),
    [
        ('{"path": "a.py", "start": 3}', 3),
        ('{"path": "a.py"}', None),
        ('{"path": "a.py", "start": "3"}', 3),
        (json.dumps('{"path": "a.py", "start": 3}'), 3),
        ("{path: 'a.py', start: 3,}", 3),
        ('```json\n{"path": "a.py", "start": 3}\n```', 3),
        ('{"path":\n"a.py",\r\n"start": 3}', 3),
    ],
)
def test_call_that_can_be_understood_is_made(written: str, start: int | None) -> None:
    answer, problem = judge(called(("read_file", written)), SPECS, number=1)
    assert problem == ""
    assert json.loads(answer.calls[0].arguments) == {"path": "a.py", "start": start}


@pytest.mark.parametrize(
    ("reply", "sentence"),
    [
        (called(("raed_file", "{}")), "Unknown tool 'raed_file'. Did you mean 'read_file'?"),
        (
            called(("read_file", '{"path": "a')),
            "The arguments of read_file are too long and were truncated. Split the call into smaller calls.",
        ),
        (
            called(("read_file", "a.py")),
            "The arguments of read_file are not a JSON object: 'a.py'. Pass an object",
        ),
        (called(("read_file", "[1]")), "The arguments of read_file are not a JSON object: '[1]'."),
        (called(("read_file", "null")), "The arguments of read_file are not a JSON object: 'null'."),
        (called(("read_file", "[" * 100_000)), "The arguments of read_file "),
        (called(("finish", "")), "finish: invalid arguments: 'summary' is a required property."),
        (
            called(("finish", json.dumps({"summary": "a" * 2_000_000}))),
            "The arguments of finish are longer than 2,000,000 characters.",
        ),
        (called(("read_file", '{"path": 5}')), "read_file: invalid arguments at path: 5 is not of type 'string'."),
        (called(("finish", "{}")), "finish: invalid arguments: 'summary' is a required property."),
        (called(("finish", '{"summary": "a", "x": 1}')), "finish: unknown argument 'x'."),
        (
            ModelAnswer(text="I would read it."),
            "Your answer contains no tool call. Call one of read_file, edit_file, run_tests",
        ),
        (ModelAnswer(), "Your answer contains no tool call."),
        (called(("finish", '{"summary": "a"}'), truncated=True), "Your answer was cut off at the output limit"),
        (
            ModelAnswer(refusal="I must not."),
            "You refused the task: I must not. If the task cannot be done, call `finish`",
        ),
    ],
)
def test_what_is_wrong_is_said_so_that_the_model_can_act(reply: ModelAnswer, sentence: str) -> None:
    answer, problem = judge(reply, SPECS, number=1)
    assert problem.startswith(sentence)
    assert answer.calls == ()
    assert answer.text != ""


def test_one_bad_call_stops_the_good_ones_beside_it() -> None:
    answer, problem = judge(called(("read_file", '{"path": "a"}'), ("nothing", "{}")), SPECS, number=1)
    assert answer.calls == ()
    assert problem.endswith("Nothing in this answer was executed.")


def test_too_many_calls_are_refused() -> None:
    _, problem = judge(called(*[("finish", '{"summary": "a"}')] * (MOST_CALLS + 1)), SPECS, number=1)
    assert f"at most {MOST_CALLS}" in problem


@pytest.mark.parametrize("case", ANSWERS, ids=lambda case: case["name"])
def test_an_answer_is_calls_only_where_it_is_nothing_else(case: dict[str, Any]) -> None:
    answer, problem = judge(ModelAnswer(text=case["text"]), SPECS, number=4)
    assert [f"{call.tool} {json.loads(call.arguments).get('path')}" for call in answer.calls] == case["calls"]
    assert bool(problem) != bool(answer.calls)


@pytest.mark.parametrize("case", HELD_BACK, ids=lambda case: case["name"])
def test_held_back_answer_is_never_taken_for_a_call_that_it_is_not(case: dict[str, Any]) -> None:
    answer, _ = judge(ModelAnswer(text=case["text"]), LOOSE, number=4)
    made = [f"{call.tool} {json.loads(call.arguments).get('path')}" for call in answer.calls]
    # A form of a call that is not known is sent back to the model: that costs a turn and does no harm.
    assert made in ([], case["calls"])


def test_most_calls_of_the_held_back_answers_are_understood() -> None:
    calls = [case for case in HELD_BACK if case["calls"]]
    understood = [case for case in calls if judge(ModelAnswer(text=case["text"]), LOOSE, number=4)[0].calls]
    assert len(understood) / len(calls) >= 0.6


@given(st.sampled_from([case["text"] for case in ANSWERS if case["calls"]]), st.text(min_size=1), st.booleans())
def test_words_beside_a_call_make_it_a_quotation(answer: str, words: str, after: bool) -> None:
    text = f"{answer} {words}" if after else f"{words} {answer}"
    made, _ = judge(ModelAnswer(text=text), SPECS, number=4)
    # Blanks are no words, and a call may be followed by its own end.
    assert made.calls == () or not words.strip()


def test_calls_written_as_text_get_ids_of_their_turn() -> None:
    text = (
        '[{"name": "read_file", "arguments": {"path": "a.py"}}, {"name": "read_file", "arguments": {"path": "b.py"}}]'
    )
    assert [call.id for call in judge(ModelAnswer(text=text), SPECS, number=4)[0].calls] == ["call_4_0", "call_4_1"]


def test_text_about_a_tool_that_does_not_exist_is_no_call() -> None:
    assert judge(ModelAnswer(text='{"name": "rm", "arguments": {}}'), SPECS, number=4)[0].calls == ()


def test_calls_get_ids_of_their_own_where_the_service_gives_none() -> None:
    calls = tuple(ProposedCall(given, "finish", '{"summary": "a"}') for given in ("", "x", "x", "y" * 100))
    ids = [call.id for call in judge(ModelAnswer(calls=calls), SPECS, number=7)[0].calls]
    assert ids == ["call_7_0", "x", "call_7_2", "call_7_3"]


def test_raw_line_breaks_in_a_text_are_read() -> None:
    [call] = judge(called(("finish", '{"summary": "a\nb"}')), SPECS, number=1)[0].calls
    assert json.loads(call.arguments) == {"summary": "a\nb"}


def test_half_a_surrogate_pair_can_be_stored() -> None:
    [call] = judge(called(("finish", '{"summary": "\\ud800 done"}')), SPECS, number=1)[0].calls
    assert call.arguments.encode() == b'{"summary": "? done"}'


@given(
    st.text(max_size=200), st.sampled_from(["read_file", "edit_file", "run_tests", "finish", "other"]), st.booleans()
)
def test_whatever_is_answered_ends_in_calls_that_fit_or_a_problem(written: str, tool: str, truncated: bool) -> None:
    reply = ModelAnswer(text=written, calls=(ProposedCall("c", tool, written),), truncated=truncated)
    answer, problem = judge(reply, SPECS, number=1)
    assert bool(answer.calls) != bool(problem)
    assert len(problem) <= PROBLEM_CHARACTERS + 40
    schemas = {spec.name: spec.parameters for spec in SPECS}
    for call in answer.calls:
        Draft202012Validator(dict(schemas[call.tool])).validate(json.loads(call.arguments))
