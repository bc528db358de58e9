"""What the adapter of Cursor puts on a command line, and what it never puts there."""

import os
from pathlib import Path
from typing import Any

import pytest

from activities.executor.agent.cursor import CursorAdapter
from activities.executor.agent.host import AgentAdapter, Launch, ModelAccess
from activities.executor.agent.program import version_of
from tightloop.errors import ExecutorError
from tightloop.executor.message import PlanMessage
from tightloop.executor.model import AgentMode, ExecutorChoice, WorkOrder
from tightloop.safety.rubric import Verdict
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


def flag(launch: Launch, name: str) -> str:
    return next((word.partition("=")[2] for word in launch.argv if word.startswith(f"--{name}=")), "")


def test_neither_prompt_nor_key_is_on_the_command_line_or_in_the_repr(tmp_path: Path) -> None:
    launch = launched(tmp_path, CursorAdapter(AgentSettings()))
    assert launch.stdin == "a secret plan"
    assert "secret plan" not in " ".join(launch.argv)
    assert ACCESS.key in launch.secrets.values()
    assert ACCESS.key not in repr(launch)
    assert ACCESS.key not in " ".join([*launch.argv, *launch.environment.values(), *launch.files.values()])
    assert flag(launch, "model") == "some-model"


@pytest.mark.parametrize(
    ("choice", "forced"),
    [
        ({}, True),
        ({"mode": AgentMode.FULL}, True),
        ({"mode": AgentMode.READ_ONLY}, False),
        ({"permissions": Verdict.DENY}, False),
    ],
)
def test_cursor_is_forced_only_where_it_may_write(tmp_path: Path, choice: dict[str, Any], forced: bool) -> None:
    launch = launched(tmp_path, CursorAdapter(AgentSettings()), **choice)
    assert ("--force" in launch.argv) is forced
    assert ("--mode=plan" in launch.argv) is not forced
    assert "--trust" in launch.argv


def test_cursor_knows_no_options(tmp_path: Path) -> None:
    with pytest.raises(ExecutorError, match="accepts no options, got argv"):
        launched(tmp_path, CursorAdapter(AgentSettings()), options={"argv": []})


def test_program_that_is_fixed_or_updated_is_asked_again(tmp_path: Path) -> None:
    program = tmp_path / "agent"
    answers = []
    for number, line in enumerate(("exit 1", "echo agent 1.2.3", "echo 2026.01.28-fd13201 of it")):
        program.write_text(f"#!/bin/sh\n{line}\n", encoding="utf-8")
        program.chmod(0o700)
        os.utime(program, ns=(number, number))
        answers.append(version_of(str(program)))
    assert answers == ["", "1.2.3", "2026.01.28-fd13201"]
    assert version_of(str(tmp_path / "none")) == ""
