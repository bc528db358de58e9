"""References in texts: finding, resolving, quoting, taking apart."""

import shlex
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tightloop.errors import ExpressionError, ReferenceMissingError
from tightloop.plan.reference import find_references, follow, resolve, split_reference, split_segments

VALUES: dict[str, Any] = {
    "plan.name": "o'clock; rm -rf /",
    "collect.sources": ["a b", "c"],
    "collect.table": [{"x": 1}],
    "look-*.answer": ["one", "two"],
    "n": 3,
    "nothing": None,
}


def test_text_that_is_one_reference_becomes_the_value_itself() -> None:
    assert resolve("${collect.sources}", VALUES.__getitem__) == ["a b", "c"]
    assert resolve({"k": ["${n}", 4]}, VALUES.__getitem__) == {"k": [3, 4]}


def test_within_text_values_are_written_as_text() -> None:
    assert resolve("n=${n}, ${nothing}!${collect.sources}", VALUES.__getitem__) == 'n=3, !["a b", "c"]'


def test_literal_dollar_brace_is_kept() -> None:
    assert resolve("echo $${HOME} $HOME $$ ${n}", VALUES.__getitem__) == "echo ${HOME} $HOME $$ 3"


def test_quoted_values_stay_single_words_of_a_shell() -> None:
    command = resolve("cat ${plan.name} ${collect.sources} ${collect.table}", VALUES.__getitem__, shlex.quote)
    assert shlex.split(command) == ["cat", "o'clock; rm -rf /", "a b", "c", '[{"x": 1}]']
    assert resolve("${plan.name}", VALUES.__getitem__, shlex.quote) == shlex.quote("o'clock; rm -rf /")


def test_references_are_found_everywhere_and_once() -> None:
    assert find_references({"a": "${x.y} ${x.y}", "b": ["${look-*.answer}", 5]}) == ("x.y", "look-*.answer")


@pytest.mark.parametrize(
    ("text", "column", "words"),
    [
        ("echo ${HOME:-x}", 6, "$${"),
        ("a ${open", 3, "closing brace"),
        ("${}", 1, "not a valid reference"),
        ("${ }", 1, "Write a reference such as"),
    ],
)
def test_malformed_reference_is_refused_with_its_column(text: str, column: int, words: str) -> None:
    with pytest.raises(ExpressionError) as refused:
        find_references(text)
    assert refused.value.column == column
    assert words in refused.value.message


def test_longest_known_step_is_meant() -> None:
    assert split_reference("a.b.c", ["a", "a.b"]) == ("a.b", ("c",))
    assert split_reference("a.b.c", ["a"]) == ("a", ("b", "c"))
    assert split_reference("plan.x", []) == ("plan", ("x",))
    assert split_reference("exit_code", []) == ("exit_code", ())
    assert split_reference("look-*.answer", ["look-*"]) == ("look-*", ("answer",))
    with pytest.raises(ReferenceMissingError, match=r"HOME.*literal"):
        split_reference("HOME", ["a"])


def test_fields_of_all_items_of_a_list_are_a_list() -> None:
    claims = [{"ok": True, "by": ["x"]}, {"ok": False, "by": ["y"]}]
    assert follow(claims, ["ok"], name="c.ok") == [True, False]
    assert follow(claims, ["1", "by", "0"], name="c.1") == "y"
    with pytest.raises(ReferenceMissingError, match="no 'gone', only by, ok"):
        follow(claims, ["0", "gone"], name="c.gone")
    with pytest.raises(ReferenceMissingError, match="2 items"):
        follow(claims, ["7"], name="c.7")


@given(st.text(alphabet="ab${}.-*$ \n", max_size=40))
def test_pieces_of_any_text_make_the_text_again(text: str) -> None:
    try:
        parts = split_segments(text)
    except ExpressionError as error:
        column = error.column
        parts = split_segments(text[: column - 1])
        text = text[: column - 1]
    again = "".join(f"${{{part.text}}}" if part.is_reference else part.text.replace("${", "$${") for part in parts)
    assert "".join(again.split()) == "".join(text.split())
