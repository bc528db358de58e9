"""Expressions of plans: what they are worth, what is refused and where."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tightloop.errors import ExpressionError, ReferenceMissingError
from tightloop.plan.expression import parse_expression

VALUES: dict[str, Any] = {
    "exit_code": 5,
    "collect.sources": ["a", "b", "c"],
    "build.stdout": "v1.2.3\n",
    "count.stdout": "12\n",
    "facts.claims": [{"ok": True, "n": 2}, {"ok": False, "n": 3}],
    "empty": None,
}


def lookup(name: str) -> Any:
    if name not in VALUES:
        raise ReferenceMissingError(f"${{{name}}} has no value")
    return VALUES[name]


def value(text: str) -> Any:
    return parse_expression(text).evaluate(lookup)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("${exit_code} == 5", True),
        ("${exit_code} in [1, 5]", True),
        ("4 < ${exit_code} <= 5", True),
        ("len(${collect.sources}) >= 5", False),
        ("'b' in ${collect.sources} and not 'z' in ${collect.sources}", True),
        (r"matches(${build.stdout}, '^v\d+\.\d+')", True),
        ("number(${count.stdout}) * 2 + 1", 25),
        ("'code ${exit_code}' == \"code 5\"", True),
        ("'${exit_code}' == '5'", True),
        ("${facts.claims}[1]['n']", 3),
        ("${collect.sources}[1:]", ["b", "c"]),
        ("exists(${nobody.x})", False),
        ("default(${nobody.x}, 7)", 7),
        ("${empty} == null", True),
        ("max(1, 2.5) - min([1, 4])", 1.5),
        ("sum([1, 2, 3]) % 4", 2),
        ("any([false, true]) and all([1, 1])", True),
        ("'yes' if true else 'no'", "yes"),
        ("round(2.345, 1)", 2.3),
        ("abs(-3)", 3),
        ("lower(trim('  AB '))", "ab"),
        ("{'a': [1, (2, 3)]}", {"a": [1, [2, 3]]}),
        ("2 ** 10 // 3", 341),
        ('"it\'s"', "it's"),
        ("'$${x}'", "${x}"),
        ("\n  1 +\n  1\n", 2),
    ],
)
def test_expression_has_the_value_that_a_reader_expects(text: str, expected: Any) -> None:
    assert value(text) == expected


@pytest.mark.parametrize(
    ("text", "column", "words"),
    [
        ("exit_code == 0", 1, "${exit_code}"),
        ("1 + foo", 5, "'foo' is unknown"),
        ("${a b}", 1, "not a valid reference"),
        ("1 == ${open", 6, "closing brace"),
        ("${exit_code}.real", 1, "value['field']"),
        ("().__class__", 1, "fields cannot be read with a dot"),
        ("__import__('os')", 1, "unknown function '__import__'"),
        ("os.path.exists('x')", 1, "unknown function 'os.path.exists'"),
        ("'a'.upper()", 1, "unknown function 'upper'"),
        ("(lambda: 1)()", 1, "unknown function '?'"),
        ("[x for x in ${collect.sources}]", 1, "fields of all items"),
        ("matches('a', '(')", 1, "unclosed group"),
        ("matches('a', '(?=b)')", 1, "look-around"),
        ("len(1, 2)", 1, "takes 1"),
        ("1 is 1", 1, "write =="),
        ("1 | 2", 1, "the operator | is not allowed"),
        ("f'x'", 1, "operator is missing"),
        ("'a' 'b'", 5, "not a valid expression"),
        ("'open", 1, "closing quote"),
        ("", 1, "empty"),
        ("-" * 100 + "1", 41, "nested"),
        ("(" * 1500, 1, ""),
        ("x" * 2001, 2000, "2000 characters"),
        ("b'x' == 1", 1, ""),
        ("exists(1)", 1, "requires a reference"),
        ("max(*${collect.sources})", 5, "not supported in expressions"),
        ("1 < 2 <", 7, "not a valid expression"),
    ],
)
def test_expression_is_refused_with_its_column_and_what_to_write(text: str, column: int, words: str) -> None:
    with pytest.raises(ExpressionError) as refused:
        parse_expression(text)
    assert words in refused.value.message
    assert refused.value.column == column or not words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("${count.stdout} > 3", "number(...)"),
        ("${count.stdout} == 12", "number(...)"),
        ("${count.stdout} == true", "cannot compare a string with a boolean"),
        ("9 ** 9 ** 9", "exponent"),
        ("10 ** 60 * 10 ** 60", "too large"),
        ("'a' * 5", "'*' is not supported for a string and a number"),
        ("1 / 0", "division by zero"),
        ("${collect.sources}[9]", "has no [9]"),
        ("number('many')", "not a number"),
        ("min([])", "at least one item"),
        ("len(5)", "a number"),
        ("-'a'", "not a string"),
        ("(-8) ** 0.5", "not a number"),
        ("1e99 ** 9", "too large"),
    ],
)
def test_expression_that_does_not_fit_its_values_says_why(text: str, words: str) -> None:
    with pytest.raises(ExpressionError) as failed:
        value(text)
    assert words in failed.value.message


def test_reference_is_only_read_where_it_is_reached() -> None:
    assert value("${exit_code} == 5 or ${nobody.x}") is True
    with pytest.raises(ReferenceMissingError, match="nobody"):
        value("${exit_code} == 5 and ${nobody.x}")


def test_references_are_listed_once_from_texts_too() -> None:
    expression = parse_expression("${a.b} == 'x${c.d}' or ${a.b} == exists(${e.f})")
    assert expression.references == ("a.b", "c.d", "e.f")


def test_pattern_that_would_hang_a_backtracking_engine_is_quick() -> None:
    assert value(f"matches('{'a' * 1500}!', '^(a+)+$')") is False


@given(st.text(alphabet="${}()[]'\"\\ab1.,+-*/<>=! \nǃandortif", max_size=60))
def test_any_text_is_read_or_refused_with_a_column_inside_it(text: str) -> None:
    column = 1
    try:
        parse_expression(text).evaluate(lookup)
    except ExpressionError as error:
        column = error.column
    except ReferenceMissingError:
        pass
    assert 1 <= column <= max(len(text), 1)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.text("abc'\"\\n t", max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("xyz", max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(_JSON)
def test_json_is_an_expression_that_is_worth_itself(given_value: Any) -> None:
    assert parse_expression(json.dumps(given_value)).evaluate(lookup) == given_value
