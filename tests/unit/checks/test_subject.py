"""Failed tests that a goal covers, found by the code that they use."""

import pytest

from tightloop.checks.choice import Sources, blocks_of, find_reaching_tests, finds_no_tests
from tightloop.episode.check import failed_tests

PYTHON = {
    "shop/prices.py": "def windowed(items):\n    return items\n\n\nclass Basket:\n    def total(self):\n"
    "        return windowed(self.items)\n\n\ndef windowed_total(items):\n    return 1\n",
    "shop/mail.py": "def send(address):\n    return address\n",
    "tests/test_shop.py": "class BasketTests:\n    def test_basic(self):\n        assert Basket().total() == 2\n\n\n"
    "class MailTests:\n    def test_basic(self):\n        assert send('a')\n\n\n"
    "def test_sum():\n    assert windowed_total([]) == 0\n",
}
GO = {
    "words.go": "package words\n\nfunc Parse(line string) []string {\n\tescaped, tab := false, 't'\n\treturn nil\n}\n\n"
    "func Expand(line string) string {\n\treturn line\n}\n",
    "words_test.go": "package words\n\nfunc TestSimple(t *testing.T) {\n\tParse(`a`)\n}\n\n"
    "func TestExpand(t *testing.T) {\n\tExpand(`a`)\n}\n",
}
NODE = {
    "lib/parse-url.js": "module.exports = function parseURL (url) {\n  return url\n}\n",
    "test/url.test.js": "test('two slashes begin a path', () => { parseURL('//a') })\n",
    "test/mail.test.js": "test('mail is sent', () => { send('a') })\n",
}
BASKET = "test_basic (tests.test_shop.BasketTests.test_basic)"
MAIL = "test_basic (tests.test_shop.MailTests.test_basic)"


@pytest.mark.parametrize(
    ("sources", "goal", "failed", "reached"),
    [
        (PYTHON, "Fix windowed: one window too many", (BASKET, MAIL), (BASKET,)),
        (
            PYTHON,
            "Fix windowed: one too many",
            ("tests/test_shop.py::test_sum", MAIL),
            ("tests/test_shop.py::test_sum",),
        ),
        (PYTHON, "Repair Basket.total", ("tests/test_shop.py::BasketTests::test_basic[1 - a]",), 1),
        (PYTHON, "Fix the sending in shop/mail.py", (BASKET, MAIL), (MAIL,)),
        (GO, "Fix escapes: a backslash and t is no tab", ("TestSimple", "TestExpand"), ("TestSimple",)),
        (NODE, "Fix parseURL: slashes", ("two slashes begin a path", "mail is sent"), ("two slashes begin a path",)),
        (NODE, "Fix parseURL: slashes", ("mail is sent",), ()),
        (PYTHON, "Fix the bug", (BASKET, MAIL), ()),
        (PYTHON, "Explain colours", (BASKET, MAIL), ()),
    ],
)
def test_failed_tests_that_use_the_named_code_are_what_the_goal_is_about(
    sources: dict[str, str], goal: str, failed: tuple[str, ...], reached: tuple[str, ...] | int
) -> None:
    assert find_reaching_tests(goal, failed, lambda: sources) == (failed if reached == 1 else reached)


def test_generated_test_without_source_is_known_by_its_name() -> None:
    failed = (BASKET, "windowed works for 3", "mail works for 3")
    assert find_reaching_tests("Fix windowed", failed, lambda: PYTHON) == failed[:2]


def test_definition_contains_everything_that_is_indented_below_it() -> None:
    blocks = {block.name: block.text for block in blocks_of("shop/prices.py", PYTHON["shop/prices.py"])}
    assert list(blocks) == ["windowed", "Basket", "total", "windowed_total"]
    assert blocks["total"] in blocks["Basket"]
    assert "windowed_total" not in blocks["Basket"]


def test_name_with_many_definitions_leads_nowhere() -> None:
    many = "".join(f"class C{number}:\n    def run(self):\n        return price()\n\n\n" for number in range(8))
    sources = Sources({"a.py": f"def price():\n    return 1\n\n\n{many}"})
    assert "run" not in sources.callers_of(frozenset({"price"}))


PYTEST_STOPPED = "ERROR test_chunks.py - AssertionError\n!!!! Interrupted: 1 error during collection !!!!\n"
UNITTEST_STOPPED = "ERROR: test_chunks (unittest.loader._FailedTest.test_chunks)\nRan 1 test in 0.000s\n"
SCRIPT = "from chunks import chunk\n\n\ndef same(left, right):\n    assert left == right\n\n\nsame(chunk([1]), [[1]])\n"


@pytest.mark.parametrize("output", [PYTEST_STOPPED, UNITTEST_STOPPED])
@pytest.mark.parametrize(
    ("tests", "none"),
    [
        ({"test_chunks.py": SCRIPT}, True),
        ({"test_chunks.py": SCRIPT, "chunks.py": "def test_mode():\n    pass\n"}, True),
        ({"test_chunks.py": SCRIPT, "test_more.py": "def test_more():\n    pass\n"}, False),
        ({"test_chunks.py": SCRIPT + "\n\nasync def test_more():\n    pass\n"}, False),
        ({"test_chunks.py": "from chunks import x\n\n\nclass ChunkTest(Base):\n    pass\n"}, False),
        ({"test_chunks.py": "class Chunks(unittest.TestCase):\n    pass\n"}, False),
        ({"test_chunks.py": "from tests.common import *\n"}, False),
        ({"test_chunks.py": "from tests.common import test_all\n"}, False),
        ({"test_chunks.py": "test_all = make(chunk)\n"}, False),
        ({"test_chunks.py": SCRIPT + '"""\n>>> chunk([])\n[]\n"""\n'}, False),
    ],
)
def test_script_that_is_not_imported_has_tests_or_none(output: str, tests: dict[str, str], none: bool) -> None:
    assert finds_no_tests(output, failed_tests(output), lambda: tests) is none


@pytest.mark.parametrize(
    "output", ["FAILED checks/a.py\n", PYTEST_STOPPED + "FAILED test_more.py::test_a\n", "AssertionError\n"]
)
def test_check_that_ran_a_test_or_is_of_another_kind_is_not_judged_by_its_files(output: str) -> None:
    assert not finds_no_tests(output, failed_tests(output), lambda: {"test_chunks.py": SCRIPT})
