"""Which tool a check's shell command calls."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tightloop.episode.fixes import ToolCall, echoed_calls, tool_calls


@pytest.mark.parametrize(
    ("command", "launcher", "program", "args"),
    [
        ("ruff check src tests", (), "ruff", ("check", "src", "tests")),
        ("uv run ruff check .", ("uv", "run"), "ruff", ("check", ".")),
        ("uv run --with ruff --frozen ruff check", ("uv", "run", "--with", "ruff", "--frozen"), "ruff", ("check",)),
        ("python -m ruff check .", ("python", "-m"), "ruff", ("check", ".")),
        ("uv run python3.12 -m pytest -q", ("uv", "run", "python3.12", "-m"), "pytest", ("-q",)),
        (".venv/bin/ruff check .", (), ".venv/bin/ruff", ("check", ".")),
        ("npx --no-install prettier --check .", ("npx", "--no-install"), "prettier", ("--check", ".")),
        ("FORCE_COLOR=1 env X=2 timeout 60 black --check .", (), "black", ("--check", ".")),
        ("ruff check . 2>&1 > out.txt", (), "ruff", ("check", ".")),
        ("bash -lc 'ruff check .'", (), "ruff", ("check", ".")),
        ("python script.py", (), "python", ("script.py",)),
    ],
)
def test_launcher_and_tool_are_told_apart(
    command: str, launcher: tuple[str, ...], program: str, args: tuple[str, ...]
) -> None:
    assert tool_calls(command) == (ToolCall(launcher=launcher, program=program, args=args),)


def test_all_commands_of_a_line_are_found() -> None:
    calls = tool_calls("cd web && npx eslint . ; ruff format --check . || exit 1 | tee log")
    assert [(call.name, call.folder) for call in calls] == [
        ("eslint", "web"), ("ruff", "web"), ("exit", "web"), ("tee", "web"),
    ]  # fmt: skip


def test_command_substitution_is_looked_into() -> None:
    assert ToolCall(program="gofmt", args=("-l", ".")) in tool_calls('test -z "$(gofmt -l .)"')


def test_commands_that_make_echoes_are_found() -> None:
    output = "ruff check src\nF401 `os` imported but unused\n> eslint .\nmake: *** [lint] Error 1"
    assert [call.args for call in echoed_calls(output, frozenset({"ruff", "eslint"}))] == [("check", "src"), (".",)]


@given(st.text())
def test_any_text_is_survived(command: str) -> None:
    assert isinstance(tool_calls(command), tuple)
