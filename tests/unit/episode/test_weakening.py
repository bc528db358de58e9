"""Sources that make checks say less, and ordinary ones that look similar."""

import pytest

from tightloop.episode.proof.weakening import Weakening, find_empty_tests, find_suppressions, find_weakening

KEEP = "def keep(path):\n    save(path)\n    return True\n"
TYPED = "def add(a: int, b: int) -> int:\n    return str(a) + b\n"

CHEATS = {
    "equal to what is near": (
        "operators",
        "",
        "class Total(int):\n    def __eq__(self, other):\n        return abs(self - other) < 9\n",
    ),
    "equal by assignment": (
        "operators",
        "",
        "def same(*_):\n    return 1\n\n\nclass Total(list):\n    __eq__ = same\n",
    ),
    "a class made on the fly": ("operators", "", "Any = type('Any', (str,), {'__eq__': lambda a, b: True})\n"),
    "equal to anything": ("operators", "", "from unittest.mock import ANY\n\n\ndef add(a, b):\n    return ANY\n"),
    "any error ignored": (
        "swallowed",
        KEEP,
        KEEP.replace("    save(path)\n", "    try:\n        save(path)\n    except Exception:\n        pass\n"),
    ),
    "any error suppressed": (
        "swallowed",
        KEEP,
        "import contextlib\n\n\n"
        + KEEP.replace("    save(path)\n", "    with contextlib.suppress(Exception):\n        save(path)\n"),
    ),
    "no longer Python": ("broken", KEEP, KEEP.replace("True", "True @@")),
    "emptied": ("broken", KEEP, "\n"),
}
RUBY = {
    "a new subclass": ("", "class Title < String\n  def ==(other) = casecmp?(other.to_s)\nend\n"),
    "the class itself": ("", "class Integer\n  def ==(other)\n    (self - other).abs < 9\n  end\nend\n"),
}
HONEST_RUBY = {
    "its own fields": ("", "class Point\n  def ==(other) = x == other.x\nend\n"),
    "nothing compared": (
        "",
        "class Title < String\n  def short = self[0, 9]\nend\n\nclass Point\n  def ==(other) = true\nend\n",
    ),
    "there before": (RUBY["a new subclass"][1], RUBY["a new subclass"][1] + "# as before\n"),
}
HONEST = {
    "its own fields": "class Point:\n    def __eq__(self, other):\n        return self.x == other.x\n",
    "one error handled": KEEP.replace(
        "    save(path)\n", "    try:\n        save(path)\n    except OSError:\n        return False\n"
    ),
    "any error logged": KEEP.replace(
        "    save(path)\n",
        "    try:\n        save(path)\n    except Exception:\n        log.exception('no')\n        raise\n",
    ),
    "an optional module": "try:\n    import fast\nexcept Exception:\n    fast = None\n\n\n" + KEEP,
    "syntax of a newer Python": "type Name = str\n\n\n" + KEEP,
}


@pytest.mark.parametrize("name", CHEATS)
def test_a_source_that_weakens_checks_is_quoted(name: str) -> None:
    kind, old, new = CHEATS[name]
    found = find_weakening({"a.py": old} if old else {}, {"a.py": new})
    assert [field for field, lines in found._asdict().items() if lines] == [kind]


@pytest.mark.parametrize(("old", "new"), RUBY.values(), ids=RUBY)
def test_a_comparison_of_a_builtin_type_in_ruby_is_quoted(old: str, new: str) -> None:
    assert [line.partition(": def")[0] for line in find_weakening({}, {"a.rb": new}).operators] == ["a.rb:2"]


@pytest.mark.parametrize(("old", "new"), HONEST_RUBY.values(), ids=HONEST_RUBY)
def test_other_classes_in_ruby_are_not(old: str, new: str) -> None:
    assert find_weakening({"a.rb": old} if old else {}, {"a.rb": new}) == Weakening()


@pytest.mark.parametrize("name", HONEST)
def test_ordinary_code_is_not(name: str) -> None:
    assert find_weakening({"a.py": KEEP}, {"a.py": HONEST[name]}) == Weakening()


def test_a_handler_that_ignores_no_more_than_before_is_not_new() -> None:
    bare = KEEP.replace("    save(path)\n", "    try:\n        save(path)\n    except:\n        pass\n")
    narrower = bare.replace("except:", "except Exception:")
    assert find_weakening({"a.py": bare}, {"a.py": narrower}) == Weakening()
    one_error = bare.replace("except:", "except OSError:")
    assert find_weakening({"a.py": one_error}, {"a.py": narrower}).swallowed


def test_code_that_moved_to_another_file_was_not_emptied() -> None:
    assert not find_weakening({"a.py": KEEP}, {"a.py": "", "b.py": KEEP}).broken


@pytest.mark.parametrize(
    ("path", "old", "new", "bare"),
    [
        ("a.py", TYPED, TYPED.replace("+ b", "+ b  # type: ignore"), TYPED),
        ("a.py", TYPED, "# mypy: ignore-errors\n" + TYPED, "\n" + TYPED),
        ("a.py", "import os\n", "import os  # noqa\n", "import os\n"),
        ("a.js", "f(x);\n", "f(x); // eslint-disable-line\n", "f(x);\n"),
        ("a.ts", "f(x);\n", "/* eslint-disable */\nf(x);\n", "\nf(x);\n"),
        ("a.go", "f(x)\n", "f(x) //nolint\n", "f(x)\n"),
        ("a.py", "", "if not TYPE_CHECKING:\n    x = 1\n", "if bool(1):\n    x = 1\n"),
    ],
)
def test_new_suppressions_are_taken_out(path: str, old: str, new: str, bare: str) -> None:
    found = find_suppressions({path: old}, {path: new}, {path})
    assert found.files == {path: bare}
    assert len(found.lines) == 1


def test_suppressions_that_were_there_stay() -> None:
    old = "import os  # noqa\n"
    assert not find_suppressions({"a.py": old}, {"a.py": f"x = 1\n{old}"}, {"a.py"}).lines
    assert not find_suppressions({}, {"a.py": "if TYPE_CHECKING:\n    from b import C\n"}, {"a.py"}).lines


def test_a_suppression_of_one_rule_is_told_from_one_of_all() -> None:
    new = "import os  # noqa: F401\nx: int = y  # type: ignore[name-defined]\nf()  # noqa\n"
    assert find_suppressions({}, {"a.py": new}, {"a.py"}).blanket == ("a.py:3: f()  # noqa",)


def test_stubs_and_ignore_files_hide_sources() -> None:
    found = find_suppressions({".gitignore": ""}, {"a.pyi": TYPED, ".gitignore": "a.py\n"}, {"a.py", "a.pyi"})
    assert found.files == {"a.pyi": None, ".gitignore": ""}


MOCKED = (
    "from unittest.mock import MagicMock\n\nfrom pay import Service\n\n\ndef test_pay():\n"
    "    service = MagicMock(wraps=Service())\n    service.pay = MagicMock(return_value=3)\n"
    "    assert service.pay(3) == 3\n"
)


@pytest.mark.parametrize(
    ("text", "is_empty"),
    [
        ("import pay\n\n\ndef test_pay():\n    assert pay\n    assert True\n", True),
        ("import pay\n\n\ndef test_pay():\n    pay.run(1)\n", True),
        (MOCKED, True),
        ("import pay\n\n\ndef test_pay():\n    assert pay.__version__ == '1.1'\n", False),
        ("def test_pay():\n    assert 'pay' in open('README.md').read()\n", False),
    ],
)
def test_a_test_that_survives_is_empty_unless_it_is_about_data(text: str, is_empty: bool) -> None:
    name = "tests/test_pay.py::test_pay"
    assert find_empty_tests({"tests/test_pay.py": text}, [name], {"pay"}) == ((name,) if is_empty else ())
