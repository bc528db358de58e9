"""What formatters and linters change in a test is not a change of the test; whatever else looks like it is."""

import pytest

from tightloop.episode.proof.same_code import is_same_code

OLD = '''\
"""Tests of sums."""
import os
import json, sys
from unittest import mock
from calc import add
import pytest

@pytest.mark.slow
@pytest.mark.parametrize('left, right', [(1, 2), (-1, 1)])
def test_sum(left, right):
    total = add(left,
                right)
    assert total == left + right, f"no sum"

class TestMore:
    @mock.patch("calc.log")
    @mock.patch("calc.round")
    def test_both(self, rounds, logs):
        'Checks both.'
        assert add(1.0, 2) == 3.0   # as a float
        assert json.dumps(add(1, 2)) == u"3" and sys.path
'''
NEW = '''\
"""Tests of sums, and of what they log."""

import json
import sys
from typing import Any
from unittest import mock

import pytest
from calc import add


@pytest.mark.slow
@pytest.mark.parametrize("left, right", [(1, 2), (-1, 1)])
def test_sum(left: int, right: "int | Any") -> None:
    total: int = add(left, right)
    assert total == left + right, "no sum"


class TestMore:
    @mock.patch("calc.log")
    @mock.patch("calc.round")
    def test_both(self, rounds, logs):
        # They stand in for the real ones.
        assert add(1.0, 2) == 3.0
        assert json.dumps(add(1, 2)) == "3" and sys.path
'''


def test_formatting_imports_and_annotations_of_tests_are_no_change() -> None:
    assert is_same_code("test_a.py", OLD.encode(), NEW.encode())
    assert is_same_code("test_a.py", NEW.encode(), OLD.encode())
    assert is_same_code(
        "test_a.py",
        NEW.replace("import json", "from __future__ import annotations\n\nimport json").encode(),
        NEW.encode(),
    )


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("left + right", "right + left"),
        ("(-1, 1)", "(-1, 2)"),
        ("3.0\n", "3\n"),
        ("== 3.0", "!= 3.0"),
        ('    assert total == left + right, "no sum"\n', ""),
        ('total == left + right, "no sum"', '(total == left + right, "no sum")'),
        ('assert total == left + right, "no sum"', '"""assert total == left + right"""'),
        ("        assert add(1.0, 2) == 3.0\n", "        # assert add(1.0, 2) == 3.0\n"),
        ('log")\n    @mock.patch("calc.round', 'round")\n    @mock.patch("calc.log'),
        ("@pytest.mark.slow\n", "@pytest.mark.skip\n"),
        ("@pytest.mark.slow\n", ""),
        ("import json\n", "import json  # noqa: F401\n"),
        ("import json\n", "# ruff: noqa\nimport json\n"),
        ("add(left, right)\n", "add(left, right)  # type: ignore\n"),
        ("from calc import add", "from calc.fake import add"),
        ("from calc import add", "from calc import add, cheat"),
        ("from calc import add", "from calc import add\nimport cheat"),
        ("from typing import Any", "from typing import Any as add"),
        ("from typing import Any", "from json import *"),
        ("left: int", "left: cheat()"),
        ("def test_sum", "def check_sum"),
        ("def test_sum", "async def test_sum"),
        ("        assert json", "    assert json"),
        ("add(left, right)", "add(left, right"),
        ('"""Tests of sums, and of what they log."""', '"""PYTEST_DONT_REWRITE"""'),
        ('"""Tests of sums, and of what they log."""', '""">>> add(1, 2)\n3"""'),
    ],
)  # fmt: skip
def test_whatever_else_looks_like_formatting_is_a_change(old: str, new: str) -> None:
    changed = NEW.replace(old, new)
    assert changed != NEW
    assert not is_same_code("test_a.py", NEW.encode(), changed.encode())
    assert not is_same_code("test_a.py", OLD.encode(), changed.encode())


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"from a import f\nfrom b import f\nf()\n", b"from b import f\nfrom a import f\nf()\n"),
        (b"from a import *\nfrom b import g\ng()\n", b"from b import g\nfrom a import *\ng()\n"),
        (b"from fixtures import db\n\n\ndef test_a():\n    pass\n", b"def test_a():\n    pass\n"),
        (b"import app\n", b""),
        (b"class A:\n    x: int = 1\n", b"class A:\n    x: str = 1\n"),
        (b"def helper(x: int):\n    return x\n", b"def helper(x: str):\n    return x\n"),
        (b"def test_a():\n    x: int\n    x\n", b"def test_a():\n    x\n"),
        (b"@given(...)\ndef test_a(x: int):\n    x\n", b"@given(...)\ndef test_a(x: bool):\n    x\n"),
        (b"def test_a():\n    x = 1\n    assert x\n", b"def test_a():\n    x = True\n    assert x\n"),
        (b"from time import sleep\nwith_patch('sleep')\n", b"with_patch('sleep')\n"),
        (b"import a\nimport b\n", b"import a\nimport c\n"),
        (b"x = 1  # fmt: off\n# fmt: on\n", b"x = 1  # fmt: off\n"),
        (b"x = " + b"(" * 5_000, b"x = " + b"(" * 5_001),
        (b"x = " + b"-" * 100_000 + b"1", b"x = " + b"-" * 100_001 + b"1"),
        (b"x = 1\n", b"x  = 1\n" + b"\n" * 300_000),
        (b"\xff", b"\xff "),
    ],
)
def test_what_decides_by_order_by_name_or_by_annotation_is_a_change(old: bytes, new: bytes) -> None:
    assert not is_same_code("test_a.py", old, new)


SCRIPT = "import { add } from './calc.js'\n\ntest('adds', () => {\n  expect(add([1,2])).toBe('a b')\n})\n"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("'", '"'),
        (")\n})", ");\n});"),
        ("[1,2]", "[\n    1,\n    2,\n  ]"),
        ("  expect", "  // As in the goal.\n  expect"),
    ],
)
def test_formatting_is_no_change_in_javascript_either(old: str, new: str) -> None:
    changed = SCRIPT.replace(old, new)
    assert changed != SCRIPT
    assert is_same_code("calc.test.ts", SCRIPT.encode(), changed.encode())
    assert not is_same_code("calc.bats", SCRIPT.encode(), changed.encode())


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("'a b'", "'ab'"),
        ("'a b'", "`a b`"),
        ("'a b'", "/'a  b/"),
        ("[1,2]", "[1,3]"),
        ("  expect", "  // expect"),
        ("  expect", "  // @ts-ignore\n  expect"),
        ("  expect", "  return\n  expect"),
        (")).to", "))\n  [0].to"),
    ],
)
def test_what_looks_like_formatting_in_javascript_is_a_change(old: str, new: str) -> None:
    changed = SCRIPT.replace(old, new)
    assert changed != SCRIPT
    assert not is_same_code("calc.test.ts", SCRIPT.encode(), changed.encode())
