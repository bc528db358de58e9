"""Arguments of tool calls as models write them."""

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from activities.coder.calls import ArgumentsError, optional, read_arguments, schema, text

SCHEMA = schema(path=text("a path"), start=optional("integer", "a line", minimum=1))


def test_what_may_be_null_may_be_left_out() -> None:
    assert read_arguments('{"path": "a"}', SCHEMA) == {"path": "a", "start": None}


def test_json_within_json_is_read() -> None:
    assert read_arguments(json.dumps('{"path": "a", "start": 2}'), SCHEMA) == {"path": "a", "start": 2}


def test_raw_line_breaks_in_a_text_are_read() -> None:
    assert read_arguments('{"path": "a\nb"}', SCHEMA)["path"] == "a\nb"


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("", "'path' is a required property"),
        ("{}", "'path' is a required property"),
        ('{"path": 1}', "path: 1 is not of type 'string'"),
        ('{"path": "a", "start": "2"}', "start: '2' is not of type 'integer', 'null'"),
        ('{"path": "a", "start": 0}', "start: 0 is less than the minimum of 1"),
        ('{"path": "a", "strat": 1}', "unknown argument 'strat'. Did you mean 'start'?"),
        ("[1]", "have to be a JSON object"),
        ("null", "have to be a JSON object"),
        ('{"path": ', "not valid JSON"),
        ('{"path": "\\ud800"}', "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ('{"path": "' + "a" * 2_000_000 + '"}', "more than 2,000,000 characters"),
    ],
)
def test_what_cannot_be_used_is_refused_with_the_reason(written: str, said: str) -> None:
    with pytest.raises(ArgumentsError) as refused:
        read_arguments(written, SCHEMA)
    assert said in str(refused.value)
    assert len(str(refused.value)) < 500


@given(st.text() | st.recursive(st.none() | st.booleans() | st.floats() | st.text(), st.lists).map(json.dumps))
def test_no_text_breaks_it(written: str) -> None:
    with suppress(ArgumentsError):
        assert set(read_arguments(written, SCHEMA)) == {"path", "start"}
