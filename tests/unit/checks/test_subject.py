"""Which failed tests a goal is about, by the code that they use."""

import pytest

from tightloop.checks.subject import Sources, blocks_of, find_reaching_tests

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
