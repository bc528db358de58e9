"""Arguments of tool calls, and the schemas that they follow."""

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from activities.coder.calls import fit_arguments, optional, schema, text
from activities.coder.port import ToolError

SCHEMA = schema(path=text("a path"), start=optional("integer", "a line", minimum=1))
VALUES = st.recursive(st.none() | st.booleans() | st.floats() | st.text(), st.lists)


def test_what_may_be_null_may_be_left_out() -> None:
    assert fit_arguments({"path": "a"}, SCHEMA) == {"path": "a", "start": None}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "'path' is a required property"),
        ({"path": 1}, "path: 1 is not of type 'string'"),
        ({"path": "a", "start": "2"}, "start: '2' is not of type 'integer', 'null'"),
        ({"path": "a", "start": 0}, "start: 0 is less than the minimum of 1"),
        ({"path": "a", "strat": 1}, "unknown argument 'strat'. Did you mean 'start'?"),
        ({"path": ["a" * 2_000]}, "invalid arguments at path: ['aaa"),
    ],
)
def test_what_cannot_be_used_is_refused_with_the_reason(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ToolError) as refused:
        fit_arguments(arguments, SCHEMA)
    assert said in str(refused.value)
    assert len(str(refused.value)) < 500


@given(st.dictionaries(st.text() | st.sampled_from(["path", "start"]), VALUES))
def test_no_arguments_break_it(arguments: dict[str, Any]) -> None:
    with suppress(ToolError):
        assert set(fit_arguments(arguments, SCHEMA)) == {"path", "start"}
