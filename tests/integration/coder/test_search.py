"""Searching: the same by ripgrep and by `re`, bounded, and never for ever."""

import os
import shutil
import time
from pathlib import Path

import pytest

from activities.coder.files import LINES_LIMIT, Query, find_files, search_files
from activities.coder.port import ToolError
from tests.support.coder_tools import Bench, bench

FILES = {
    "a.py": "def f():\n    return 1\n\ndef g():\n    return f() # Return\n",
    "sub/b.py": "from a import f\r\nreturn_value = 1\r\n",
    "sub/notes.md": "return (here)\n",
    ".github/ci.yml": "run: return\n",
    ".gitignore": "*.log\nbuild/\n",
    "x.log": "return ignored\n",
    "build/c.py": "return ignored\n",
    "long.txt": "return " + "x" * 3_000 + "\n",
}
RIPGREP = shutil.which("rg") is not None
PROGRAMS = [
    pytest.param(True, id="ripgrep", marks=pytest.mark.skipif(not RIPGREP, reason="rg is missing")),
    pytest.param(False, id="re"),
]


@pytest.fixture
def made(tmp_path: Path) -> Bench:
    found = bench(tmp_path, FILES)
    (found.root / "binary.bin").write_bytes(b"return\0return\n")
    (found.root / "link.txt").symlink_to("/etc/passwd")
    return found


def found(made: Bench, program: bool, pattern: str, path: str | None = None, glob: str | None = None, **more) -> str:
    query = Query(pattern=pattern, **more)
    names = find_files(made.root, path, glob)
    return search_files(made.root, names, query, cancelled=lambda: False, with_ripgrep=program)


@pytest.mark.parametrize("program", PROGRAMS)
class TestBothPrograms:
    def test_lines_are_found_with_path_and_number(self, made: Bench, program: bool) -> None:
        lines = found(made, program, r"return\b").split("\n")
        assert lines[:3] == [".github/ci.yml:1:run: return", "a.py:2:    return 1", "a.py:5:    return f() # Return"]
        assert "sub/notes.md:1:return (here)" in lines
        assert not any(name in line for line in lines for name in ("ignored", "binary", "link", "sub/b.py"))

    def test_long_lines_are_cut(self, made: Bench, program: bool) -> None:
        line = found(made, program, "return", "long.txt")
        assert line.startswith("long.txt:1:return xxx")
        assert len(line) < 620

    def test_case_literals_and_places_are_heeded(self, made: Bench, program: bool) -> None:
        assert found(made, program, "RETURN 1", ignore_case=True) == "a.py:2:    return 1"
        assert found(made, program, "(here)", literal=True) == "sub/notes.md:1:return (here)"
        assert found(made, program, "return", "sub", "*.py") == "sub/b.py:2:return_value = 1"
        assert found(made, program, "1$", "sub") == "sub/b.py:2:return_value = 1"
        assert found(made, program, "nowhere") == "no match"

    def test_lines_around_a_match_are_shown(self, made: Bench, program: bool) -> None:
        shown = found(made, program, "def g", "a.py", context=1)
        assert shown == "a.py:3-\na.py:4:def g():\na.py:5-    return f() # Return"

    def test_a_wrong_expression_is_told(self, made: Bench, program: bool) -> None:
        with pytest.raises(ToolError, match="regex parse error"):
            found(made, program, "(")

    def test_too_many_lines_are_cut(self, made: Bench, program: bool) -> None:
        (made.root / "many.txt").write_text("return\n" * 5_000)
        lines = found(made, program, "return", "many.txt").split("\n")
        assert len(lines) == LINES_LIMIT + 1
        assert "Narrow the pattern" in lines[-1]

    def test_a_pattern_that_looks_like_an_option_is_a_pattern(self, made: Bench, program: bool) -> None:
        (made.root / "-f").write_text("--files here\n")
        assert found(made, program, "--files") == "-f:1:--files here"

    def test_an_expression_that_backtracks_for_ever_ends(self, made: Bench, program: bool) -> None:
        (made.root / "evil.txt").write_text("a" * 64 + "!\n")
        begun = time.monotonic()
        if program:
            assert found(made, program, r"^(a+)+$", "evil.txt", seconds=1.0) == "no match"
        else:
            with pytest.raises(ToolError, match="timed out after 1 s"):
                found(made, program, r"^(a+)+$", "evil.txt", seconds=1.0)
        assert time.monotonic() - begun < 10

    def test_many_files_are_searched_in_batches(self, made: Bench, program: bool) -> None:
        folder = made.root / "many" / ("n" * 100)
        folder.mkdir(parents=True)
        for number in range(3_000):
            (folder / f"{number:05}.txt").write_text("needle\n" if number % 1_500 == 7 else "hay\n")
        assert [line.rpartition("/")[2] for line in found(made, program, "needle").split("\n")] == [
            "00007.txt:1:needle",
            "01507.txt:1:needle",
        ]


def test_settings_of_the_user_and_the_project_do_not_change_what_is_found(made: Bench, tmp_path: Path) -> None:
    (made.root / ".ignore").write_text("*\n")
    (made.root / ".rgignore").write_text("*\n")
    (tmp_path / ".gitignore").write_text("*\n")
    assert "a.py:2:" in made.done("search", pattern="return 1")


def test_a_pipe_in_the_tree_does_not_hold_up_a_search(made: Bench) -> None:
    os.mkfifo(made.root / "pipe.py")
    assert "a.py:2:" in made.done("search", pattern="return 1")
    assert "pipe.py" not in made.done("list_files")


def test_files_are_listed_without_those_that_git_ignores(made: Bench) -> None:
    assert made.done("list_files").split("\n") == [
        ".github/ci.yml", ".gitignore", "a.py", "binary.bin", "link.txt", "long.txt", "sub/b.py", "sub/notes.md",
    ]  # fmt: skip
    assert made.done("list_files", path="sub/", glob="*.py") == "sub/b.py"
    assert "nowhere does not exist" in made.failed("list_files", path="nowhere")


def test_a_long_list_is_cut(made: Bench) -> None:
    for number in range(500):
        (made.root / f"{number:03}.txt").touch()
    assert "[... 108 more files. Specify a path or a glob ...]" in made.done("list_files")
