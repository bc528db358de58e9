"""What is seen of a test without running it."""

import ast
import textwrap

import pytest

from tightloop.testing.claims import JudgedTests, Known, functions_with_values, read_tests
from tightloop.testing.copies import patterns_of

CODE = '''
def total(lines, rate):
    """Return what lines cost."""
    amount = 0
    for line in lines:
        amount += line.price * line.quantity
    return round(amount * (100 + rate) / 100)


def is_empty(lines):
    return not lines


def names(lines):
    return [line.name for line in lines]
'''
TREE = ast.parse(CODE)
KNOWN = Known(patterns_of(TREE, frozenset(range(1, 99))), functions_with_values(TREE))


def read(body: str, before: str = "") -> JudgedTests:
    source = f"{before}\ndef test_it():\n{textwrap.indent(textwrap.dedent(body), '    ')}\n"
    return read_tests("test_m.py", source, KNOWN)["test_m.py::test_it"]


@pytest.mark.parametrize(
    "body",
    [
        "assert total(x, 1) is not None",
        "result = total(x, 1)\nassert result",
        "assert names(x)",
        "assert isinstance(names(x), list)",
        "assert type(names(x)) is list",
        "assert len(names(x)) > 0",
        "assert names(x) is not None and isinstance(names(x), list)",
        "assert names(x) == names(x)",
        "first = names(x)\nsecond = names(x)\nassert first == second",
        "self.assertIsNotNone(names(x))",
        "self.assertEqual(names(x), names(x))",
        "self.assertTrue(isinstance(names(x), list))",
        "assert hasattr(m, 'total')",
        "assert 'total' in dir(m)",
        "names(x)\nassert True",
        "names(x)\nassert 2 + 2 == 4",
    ],
)
def test_assertions_that_say_nothing_of_the_result_are_weak(body: str) -> None:
    assert read(body).weak


@pytest.mark.parametrize(
    "body",
    [
        "assert total(x, 1) == 5",
        "assert is_empty(x)",
        "assert not is_empty(x)",
        "assert unknown(x)",
        "assert names(x) is None",
        "assert names(x) == names(y)",
        "first = names(x)\nsecond = names(x)\nassert first != second",
        "assert isinstance(names(x), list)\nassert names(x) == ['a']",
        "assert len(names(x)) == 1",
        "self.assertEqual(names(x), ['a'])",
        "with pytest.raises(ValueError):\n    names(x)",
        "mock.assert_called_once_with(1)",
        "names(x)",
    ],
)
def test_other_assertions_are_not(body: str) -> None:
    assert not read(body).weak


def test_a_test_asserts_by_its_helpers_too() -> None:
    helper = "def check(value):\n    assert value == 3\n"
    assert read("check(names(x))", helper).asserts
    assert not read("names(x)", helper).asserts


@pytest.mark.parametrize(
    ("before", "body"),
    [
        ("", "amount = 5\nassert total(x, 7) == round(amount * (100 + 7) / 100)"),
        ("", "amount = 0\nfor one in x:\n    amount += one.price * one.quantity\nassert total(x, 0) == amount"),
        ("def wanted(rows):\n    n = 0\n    for row in rows:\n        n += row.price * row.quantity\n    return n\n",
         "assert total(x, 0) == wanted(x)"),
    ],
)  # fmt: skip
def test_the_code_of_what_is_tested_is_known_again(before: str, body: str) -> None:
    assert "repeats the code of `total`" in read(body, before).refused


@pytest.mark.parametrize(
    "body",
    [
        "assert total([Line('pen', 100, 2)], 7) == 214",
        "assert total([line(100 * n) for n in range(3)], 0) == 100 + 200",
        "expected = sum(line.price for line in x)\nassert total(x, 0) == expected",
        "for line in lines:\n    cart.add(line.name, line.price)\nassert cart.total(0) == 5",
    ],
)
def test_results_that_are_written_down_are_no_copy(body: str) -> None:
    assert not read(body).refused


@pytest.mark.parametrize(
    "body",
    ["os._exit(0)", "sys.settrace(None)", "assert 'x' in inspect.getsource(total)", "open('/proc/self/maps')",
     "assert total.__code__ == y"],
)  # fmt: skip
def test_a_test_that_can_see_how_it_is_run_is_refused(body: str) -> None:
    assert "can see how it is run" in read(body).refused


def test_lines_that_expect_a_certain_exception_are_known() -> None:
    body = (
        "with pytest.raises(ValueError, match='x'):\n    total(x, 1)\nwith pytest.raises(Exception):\n    total(x, 2)"
    )
    assert read(body).expecting == {4}


def test_methods_of_classes_are_named_as_pytest_names_them() -> None:
    source = "class TestA:\n    class TestB:\n        def test_c(self): ...\n    async def test_d(self): ...\n"
    assert set(read_tests("t.py", source, KNOWN)) == {"t.py::TestA::TestB::test_c", "t.py::TestA::test_d"}
