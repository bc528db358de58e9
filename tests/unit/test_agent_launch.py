"""What the adapters of Claude Code and Cursor put on a command line, and what they never put there."""

import os
from pathlib import Path
from typing import Any

import pytest

from activities.execution.agent.claude import ClaudeAdapter
from activities.execution.agent.cursor import CursorAdapter
from activities.execution.agent.port import AgentAdapter, Launch, ModelAccess
from activities.execution.agent.program import version_of
from tightloop.errors import ExecutorError
from tightloop.executor import AgentMode, ExecutorChoice, PermissionRule, ResumeToken, WorkOrder
from tightloop.message import PlanMessage
from tightloop.settings import AgentSettings

ACCESS = ModelAccess(base_url="http://127.0.0.1:9", key="gateway-token-1234567890", model="some-model")


def order(key: str = "run/1/1", **choice: Any) -> WorkOrder:
    return WorkOrder(
        key=key,
        episode_id="episode-1",
        iteration=1,
        root="/srv/project",
        plan=PlanMessage(goal="tidy up"),
        prompt="a secret plan",
        executor=ExecutorChoice(**choice),
    )


def launched(home: Path, adapter: AgentAdapter, **choice: Any) -> Launch:
    return adapter.launch(order(**choice), home, ACCESS, None)


def claude(**settings: Any) -> ClaudeAdapter:
    return ClaudeAdapter(AgentSettings(**settings))


def flag(launch: Launch, name: str) -> str:
    return next((word.partition("=")[2] for word in launch.argv if word.startswith(f"--{name}=")), "")


@pytest.mark.parametrize("adapter", [claude(), CursorAdapter(AgentSettings())])
def test_neither_prompt_nor_key_is_on_the_command_line_or_in_the_repr(tmp_path: Path, adapter: AgentAdapter) -> None:
    launch = launched(tmp_path, adapter)
    assert launch.stdin == "a secret plan"
    assert "secret plan" not in " ".join(launch.argv)
    assert ACCESS.key in launch.secrets.values()
    assert ACCESS.key not in repr(launch)
    assert ACCESS.key not in " ".join([*launch.argv, *launch.environment.values(), *launch.files.values()])
    assert flag(launch, "model") == "some-model"


def test_variables_with_the_key_are_taken_from_the_shells_of_claude(tmp_path: Path) -> None:
    launch = launched(tmp_path, claude())
    script = launch.files[Path(launch.environment["CLAUDE_ENV_FILE"]).relative_to(tmp_path).as_posix()]
    assert script.split()[0] == "unset"
    assert set(launch.secrets) <= set(script.split()[1:])


@pytest.mark.parametrize(
    ("choice", "wanted"),
    [
        ({"mode": AgentMode.READ_ONLY}, "plan"),
        ({"mode": AgentMode.READ_ONLY, "permissions": PermissionRule.ASK}, "plan"),
        ({"permissions": PermissionRule.DENY}, "default"),
        ({"mode": AgentMode.FULL, "permissions": PermissionRule.DENY}, "default"),
        ({}, "acceptEdits"),
    ],
)
def test_permission_mode_of_claude_follows_mode_and_rule(tmp_path: Path, choice: dict[str, Any], wanted: str) -> None:
    launch = launched(tmp_path, claude(), **choice)
    assert flag(launch, "permission-mode") == wanted
    assert ("Bash" in flag(launch, "allowedTools")) is (wanted == "acceptEdits")
    assert "--dangerously-skip-permissions" not in launch.argv
    assert "--setting-sources=user" in launch.argv


def test_claude_skips_its_checks_only_in_mode_full(tmp_path: Path) -> None:
    assert "--dangerously-skip-permissions" in launched(tmp_path, claude(), mode=AgentMode.FULL).argv


def test_session_of_claude_is_the_same_for_the_same_delivery_only(tmp_path: Path) -> None:
    first = flag(claude().launch(order(), tmp_path, ACCESS, None), "session-id")
    again = flag(claude().launch(order(), tmp_path, ACCESS, None), "session-id")
    other = flag(claude().launch(order(key="run/2/1"), tmp_path, ACCESS, None), "session-id")
    assert first == again
    assert first
    assert other != first


def test_token_that_is_no_session_of_claude_is_refused(tmp_path: Path) -> None:
    token = ResumeToken(adapter="claude", session_id="--help")
    with pytest.raises(ExecutorError, match="is not the id of a session"):
        claude().launch(order(), tmp_path, ACCESS, token)


def test_smaller_bound_of_calls_counts_for_claude(tmp_path: Path) -> None:
    launch = launched(tmp_path, claude(), max_model_calls=5, options={"max_turns": 3, "max_budget_usd": 1.5})
    assert flag(launch, "max-turns") == "3"
    assert flag(launch, "max-budget-usd") == "1.5"
    assert launch.bounds_calls
    assert not launched(tmp_path, claude()).bounds_calls


def test_arguments_of_the_operator_come_last(tmp_path: Path) -> None:
    assert launched(tmp_path, claude(arguments=("--effort=low",))).argv[-1] == "--effort=low"


def test_claude_gets_a_placeholder_where_a_service_of_ones_own_needs_no_key(tmp_path: Path) -> None:
    launch = claude().launch(order(), tmp_path, ModelAccess(base_url="http://127.0.0.1:9"), None)
    assert launch.secrets == {"ANTHROPIC_API_KEY": "none"}


@pytest.mark.parametrize(
    ("choice", "forced"),
    [
        ({}, True),
        ({"mode": AgentMode.FULL}, True),
        ({"mode": AgentMode.READ_ONLY}, False),
        ({"permissions": PermissionRule.DENY}, False),
    ],
)
def test_cursor_is_forced_only_where_it_may_write(tmp_path: Path, choice: dict[str, Any], forced: bool) -> None:
    launch = launched(tmp_path, CursorAdapter(AgentSettings()), **choice)
    assert ("--force" in launch.argv) is forced
    assert ("--mode=plan" in launch.argv) is not forced
    assert "--trust" in launch.argv


def test_cursor_knows_no_options(tmp_path: Path) -> None:
    with pytest.raises(ExecutorError, match="has no options, but got argv"):
        launched(tmp_path, CursorAdapter(AgentSettings()), options={"argv": []})


def test_program_that_is_mended_or_updated_is_asked_again(tmp_path: Path) -> None:
    program = tmp_path / "agent"
    answers = []
    for number, line in enumerate(("exit 1", "echo agent 1.2.3", "echo 2026.01.28-fd13201 of it")):
        program.write_text(f"#!/bin/sh\n{line}\n", encoding="utf-8")
        program.chmod(0o700)
        os.utime(program, ns=(number, number))
        answers.append(version_of(str(program)))
    assert answers == ["", "1.2.3", "2026.01.28-fd13201"]
    assert version_of(str(tmp_path / "none")) == ""
