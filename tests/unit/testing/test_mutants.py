"""Mutants: what is changed, where, and that the rest stays as it is."""

import ast
import inspect
import json.decoder
import statistics
import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tightloop.testing import changed_lines, touched_bodies
from tightloop.testing.mutants import Mutant, Weight, choose, mutants_of

EVERYTHING = frozenset(range(1, 100_000))


def mutated(source: str, mutant: Mutant) -> str:
    content = source.encode()
    return (content[: mutant.start] + mutant.text.encode() + content[mutant.end :]).decode()


def whats(source: str, changed: frozenset[int] = EVERYTHING) -> list[str]:
    return [mutant.what for mutant in mutants_of("m.py", textwrap.dedent(source), changed)]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("a < b", ["`a < b` became `a <= b`", "`a < b` became `a >= b`"]),
        ("a == b", ["`a == b` became `a != b`"]),
        ("a in b", ["`a in b` became `a not in b`"]),
        ("a is None", ["`a is None` became `a is not None`"]),
        ("a and b", ["`a and b` became `a or b`"]),
        ("not a", ["`not a` became `a`"]),
        ("-a", ["`-a` became `a`"]),
        ("a + b", ["`a + b` became `a - b`"]),
        ("a // b", ["`a // b` became `a * b`"]),
        ("x = 7", ["`7` became `8`"]),
        ("x = True", ["`True` became `False`"]),
        ("x = 'a'", ["`'a'` became `'XXa'`"]),
        ("x = f'a{b}'", ["`f'a{b}'` became `'mutated'`"]),
        ("x += y", ["`x += y` became `x -= y`", "`x += y` was removed"]),
        ("raise E", ["`raise E` was removed"]),
        ("f(x)", ["`f(x)` was removed"]),
        ("x = min(a)", ["`min(a)` became `max(a)`"]),
        ("x = sorted(a, key=k)", ["`sorted(a, key=k)` became `list(a)`", "`sorted(a, key=k)` became `sorted(a)`"]),
        ("x = s.lower()", ["`s.lower()` became `s.upper()`"]),
        ("x = s.strip()", ["`s.strip()` became `s`"]),
        ("x = f(a, b)", ["`f(a, b)` became `f(b, a)`"]),
        ("x = [y for y in z if y.ok]", ["`z` became `()`", "`y.ok` became `not (y.ok)`"]),
        ("for y in z: break", ["`z` became `()`", "`break` became `continue`"]),
        ("if a: b = c", ["`a` became `not (a)`"]),
        ("self.a = b", ["`self.a = b` was removed"]),
        ("del a[b]", ["`del a[b]` was removed"]),
    ],
)
def test_each_kind_of_code_has_its_mutants(source: str, expected: list[str]) -> None:
    assert whats(source) == expected


@pytest.mark.parametrize(
    "source",
    [
        "def f():\n    return x",
        "def f():\n    return None",
        '"""A docstring."""',
        "class A:\n    '''A docstring.'''\n    x: 'int'",
        "def f(a: 'int') -> 'str': ...",
        "import a\nfrom b import c",
        "__all__ = ['a']",
        "if TYPE_CHECKING:\n    x = 1",
        "if __name__ == '__main__':\n    main(1)",
        "@cache(maxsize=3)\ndef f(): ...",
        "assert a == 1",
        "match a:\n    case 1 | 'x':\n        pass",
        "x = f()\ny = self.f()",
    ],
)
def test_what_proves_nothing_or_cannot_be_judged_is_left_alone(source: str) -> None:
    assert whats(source) == []


def test_nothing_makes_a_function_return_none() -> None:
    for module in (json.decoder, textwrap):
        source = inspect.getsource(module)
        for mutant in mutants_of("m.py", source, EVERYTHING):
            old = source.encode()[mutant.start : mutant.end].decode()
            assert not (old.startswith("return") and mutant.text == "pass")
            assert mutant.text.strip("()\n") != "None"


@pytest.mark.parametrize("module", [statistics, json.decoder, textwrap])
def test_every_mutant_of_real_modules_can_be_compiled_and_keeps_all_lines(module: object) -> None:
    source = inspect.getsource(module)  # type: ignore[arg-type]
    found = mutants_of("m.py", source, EVERYTHING)
    assert len(found) > 50
    for mutant in found[:: max(len(found) // 25, 1)]:
        other = mutated(source, mutant)
        assert other != source
        assert other.count("\n") == source.count("\n")
        ast.parse(other)


def test_code_over_several_lines_keeps_the_numbers_of_those_that_follow() -> None:
    source = "x = (\n    a\n    + b\n)\nraise E(\n    c\n)\nlast = 1\n"
    for mutant in mutants_of("m.py", source, EVERYTHING):
        tree = ast.parse(mutated(source, mutant))
        assert tree.body[-1].lineno == 8


def test_bytes_are_counted_where_letters_need_several() -> None:
    source = "x = 'äöü' if a < b else 'ß'\n"
    shown = {mutated(source, mutant) for mutant in mutants_of("m.py", source, EVERYTHING)}
    assert "x = 'äöü' if (a <= b) else 'ß'\n" in shown
    assert "x = 'äöü' if a < b else ('XXß')\n" in shown


def test_only_changed_lines_have_mutants() -> None:
    source = "a = 1\nb = 2\nc = 3\n"
    assert whats(source, frozenset({2})) == ["`2` became `3`"]


def test_a_mutant_knows_the_lines_of_its_statement_and_not_of_its_block() -> None:
    source = "if (a and\n        b):\n    c = 1\n"
    by_what = {mutant.what: mutant.lines for mutant in mutants_of("m.py", source, EVERYTHING)}
    assert by_what["`a and b` became `a or b`"] == (1, 2)
    assert by_what["`1` became `2`"] == (3,)


def test_a_module_never_takes_the_place_of_a_result() -> None:
    assert whats("import re\nx = re.sub(a, a)\n") == []


def test_where_there_is_time_for_few_each_line_has_one_and_logic_comes_first() -> None:
    source = "raise E('no')\na = b < c and 'text'\n"
    chosen = choose(mutants_of("m.py", source, EVERYTHING), 2)
    assert {mutant.line for mutant in chosen} == {1, 2}
    assert all(mutant.weight is Weight.LOGIC for mutant in chosen)
    assert choose(chosen, 100) == choose(chosen, 2)


TEXT = st.lists(st.sampled_from("abcd"), max_size=12).map("\n".join)


@given(TEXT, TEXT)
def test_lines_that_did_not_change_are_the_old_ones_in_their_order(old: str, new: str) -> None:
    changed = changed_lines(old, new).lines
    kept = [line for number, line in enumerate(new.splitlines(), start=1) if number not in changed]
    rest = iter(old.splitlines())
    assert all(line in rest for line in kept)
    assert not changed or max(changed) <= len(new.splitlines())


@given(TEXT)
def test_a_new_file_has_changed_as_a_whole_and_an_equal_one_not_at_all(text: str) -> None:
    assert changed_lines("", text).lines == frozenset(range(1, len(text.splitlines()) + 1))
    assert changed_lines(text, text) == (frozenset(), frozenset())


def test_a_function_is_touched_where_a_line_of_it_changed_or_was_removed() -> None:
    old = "def f():\n    a = 1\n    b = 2\n    return a\n\ndef g():\n    return 1\n"
    for new, lines in (
        (old.replace("    b = 2\n", ""), {2, 3}),
        (old.replace("return 1", "return 2"), {7}),
        (old + "X = 1\n", set()),
    ):
        assert touched_bodies(ast.parse(new), changed_lines(old, new)) == lines
