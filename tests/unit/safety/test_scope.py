"""Which files a plan announced, read from what planners really write into a scope."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tightloop.safety.scope import files_in, list_scope_paths, outside


@pytest.mark.parametrize(
    ("item", "paths"),
    [
        ("src/parser.py", ("src/parser.py",)),
        ("./src/parser.py", ("src/parser.py",)),
        ("`src/parser.py` - keep the last line", ("src/parser.py",)),
        ("src/parser.py: keep the last line", ("src/parser.py",)),
        ("src/parser.py (new)", ("src/parser.py",)),
        ("src/a.py, src/b.py", ("src/a.py", "src/b.py")),
        ("`a.py` and `tests/test_a.py`", ("a.py", "tests/test_a.py")),
        ("tests/", ("tests/",)),
        ("src/**/*.py", ("src/**/*.py",)),
        ("*.md", ("*.md",)),
        ("Makefile", ("Makefile",)),
        ("app/[id]/page.tsx", ("app/[id]/page.tsx",)),
        (".", ("**",)),
        ("./", ("**",)),
        ("/home/ada/shop/src/a.py", ("src/a.py",)),
        ("/home/ada/shop", ("**",)),
        ("/etc/hosts", ("/etc/hosts",)),
        ("the parser module", ()),
        ("tests as needed", ()),
        ("e.g. the parser", ()),
        ("https://example.org/a.py", ()),
        ("", ()),
    ],
)
def test_scope_is_read_from_what_planners_write(item: str, paths: tuple[str, ...]) -> None:
    assert list_scope_paths((item,), ("/home/ada/shop",)) == paths


@pytest.mark.parametrize(
    ("pattern", "inside", "stranger"),
    [
        ("src/parser.py", "src/parser.py", "src/parser.pyi"),
        ("src", "src/deep/a.py", "srcs/a.py"),
        ("tests/", "tests/unit/test_a.py", "unit/tests.py"),
        ("*.py", "deep/down/a.py", "a.pyc"),
        ("conftest.py", "tests/conftest.py", "tests/my_conftest.py"),
        ("src/*.py", "src/a.py", "src/deep/a.py"),
        ("src/**/*.py", "src/a.py", "lib/a.py"),
        ("src/**/*.py", "src/x/y/a.py", "src/a.txt"),
        ("**/test_*.py", "test_a.py", "atest_a.py"),
        ("web/*.{ts,tsx}", "web/a.tsx", "web/a.js"),
        ("app/[id]/page.tsx", "app/[id]/page.tsx", "app/i/page.tsx"),
        ("a?.py", "ab.py", "abc.py"),
        ("d*/f.py", "deep/f.py", "e/f.py"),
        ("**/a/b.py", "x/a/b.py", "x/a/c.py"),
        ("**/b.py", "x/a/b.py", "x/a/c.py"),
        ("src/**.py", "src/x/b.py", "lib/b.py"),
        ("package.json", "package-lock.json", "yarn.json"),
        ("web/package.json", "web/pnpm-lock.yaml", "pnpm-lock.yaml"),
        ("**", "anything/at/all", ""),
    ],
)
def test_pattern_covers_its_files_and_no_others(pattern: str, inside: str, stranger: str) -> None:
    assert outside((pattern,), (inside,)) == ()
    if stranger:
        assert outside((pattern,), (stranger, inside)) == (stranger,)


@given(st.lists(st.text(max_size=30), max_size=4), st.lists(st.text(max_size=30), max_size=4))
def test_any_scope_can_be_compared_with_any_names(items: list[str], changed: list[str]) -> None:
    found = outside(list_scope_paths(items), changed)
    assert set(found) <= set(changed)
    assert outside(list_scope_paths(("**",)), changed) == ()


@given(st.lists(st.sampled_from(["a.py", "b/c.py", "b/d.md", "e/f/g.py"]), max_size=4))
def test_wider_scope_never_leaves_more_files_outside(changed: list[str]) -> None:
    narrow = outside(("a.py", "b/"), changed)
    assert set(outside(("a.py", "b/", "*.py"), changed)) <= set(narrow)


def test_scope_that_names_no_path_accuses_nobody() -> None:
    assert outside(list_scope_paths(("whatever it takes",)), ("a.py",)) == ()


@pytest.mark.parametrize(
    ("text", "files"),
    [
        ("undo the change in app/config.py", ("app/config.py",)),
        ("change `a.py`, then tests/test_a.py.", ("a.py", "tests/test_a.py")),
        ("describe it in docs/", ("docs/",)),
        ("call self.close and os.path.join on read/write", ()),
        ("use Node.js and/or version 3.11 of client/server", ()),
        ("raise the limit in Makefile", ("Makefile",)),
    ],
)
def test_files_are_told_from_other_words(text: str, files: tuple[str, ...]) -> None:
    assert files_in(text) == files


def test_long_word_is_read_in_no_time() -> None:
    assert list_scope_paths(("/" * 100_000 + ":", "a*" * 100_000)) == ()
    assert outside(("a*" * 190 + "b",), ("a" * 4_000,)) == ("a" * 4_000,)
    assert outside(("**/a/" * 70 + "b",), ("a/" * 2_000,)) == ("a/" * 2_000,)
    assert outside(("{a,b}" * 60,), ("a" * 60, "c")) == ("a" * 60, "c")
