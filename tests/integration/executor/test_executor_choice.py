"""The executors of a worker: found by name, made when needed, and honest about what is missing."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from activities.executor.choose import executors
from activities.executor.scripted import ScriptedExecutor
from tests.support.bucket import careless_server
from tests.support.orders import order
from tightloop.errors import ExecutorError, SettingsError
from tightloop.executor.model import ExecutorChoice
from tightloop.settings import parse_settings
from worker.build import build_executor_dependencies

NAMES = {"command", "scripted", "person", "codex", "claude", "cursor", "opencode", "gemini", "copilot", "acp"}


def test_every_executor_says_whether_it_can_be_used_and_if_not_why() -> None:
    registry = executors(build_executor_dependencies(parse_settings("", {})))
    assert set(registry.names) >= NAMES
    seen = {name: registry(name).availability() for name in registry.names}
    assert seen["person"].usable
    assert seen["scripted"].usable
    silent = [name for name, availability in seen.items() if not availability.usable and not availability.reason]
    assert silent == []


def test_an_unknown_name_gets_the_nearest_and_all_that_there_are() -> None:
    registry = executors(build_executor_dependencies(parse_settings("", {})))
    with pytest.raises(
        ExecutorError, match=r"unknown executor 'gemnii'\. Did you mean gemini\? Executors on this worker: acp, cl"
    ):
        registry("gemnii")


def test_settings_of_an_agent_that_there_is_not_are_refused_with_the_nearest() -> None:
    settings = parse_settings("executor: {agents: {opncode: {model: m}}}", {})
    with pytest.raises(SettingsError, match=r"unknown executor 'opncode'.* Did you mean opencode\?"):
        executors(build_executor_dependencies(settings))


@pytest.mark.parametrize(
    ("settings", "name", "choice", "effects"),
    [
        ("", "person", {}, ""),
        ("", "scripted", {"options": {"steps": [{}]}}, ""),
        ("", "command", {}, ""),
        ("", "command", {"options": {"network": ["example.org"]}}, "the command may reach example.org"),
        ("sandbox: {network: [example.org]}", "command", {}, "the command may reach example.org"),
        ("sandbox: {write: [/srv]}", "command", {}, "the command may reach /srv"),
        ("", "claude", {}, ""),
        ("", "codex", {}, ""),
        ("", "claude", {"mode": "full"}, "the agent runs in mode full, which has no sandbox"),
        ("sandbox: {network: ['*']}", "claude", {}, "the agent may reach *"),
        ("executor: {agents: {claude: {login: true}}}", "claude", {}, "the agent connects to its provider directly"),
        ("executor: {agents: {codex: {gateway: false}}}", "codex", {}, "the agent connects to its provider directly"),
        ("", "cursor", {}, "the agent connects to its provider directly"),
        ("", "codex-acp", {}, "the agent runs only in its own sandbox"),
        ("", "cursor-acp", {}, "the agent connects to its provider directly"),
        ("", "acp", {}, "the agent connects to its provider directly"),
    ],
)
def test_executors_declare_what_their_walls_leave_open(
    workspace: Path, settings: str, name: str, choice: dict[str, Any], effects: str
) -> None:
    executor = executors(build_executor_dependencies(parse_settings(settings, {})))(name)
    work = order(workspace).evolve(executor=ExecutorChoice.model_validate({"name": name, **choice}))
    declared = executor.effects_outside(work)
    assert declared.startswith(effects) if effects else declared == ""


def test_executors_of_an_embedder_win_and_are_the_same_each_time() -> None:
    own = ScriptedExecutor()
    registry = executors(build_executor_dependencies(parse_settings("", {})), {"command": own, "mine": own})
    assert registry("command") is registry("mine") is own
    assert registry("person") is registry("person")


def test_the_host_is_described_as_the_doctor_reads_it(tmp_path: Path) -> None:
    """A program that is named in the settings is looked for where they say."""
    settings = tmp_path / "settings.yaml"
    agents = "executor: {agents: {codex: {program: /no/such/codex}}}\n"
    environment = {**os.environ, "TIGHTLOOP_HOME": str(tmp_path / "home"), "OPENAI_API_KEY": "sk-planted-4711"}
    command = [sys.executable, "-P", "-m", "worker", "--settings", str(settings), "describe"]
    with careless_server() as remote:
        keys = f"access_key: key, secret_key: {remote.secret_key.get_secret_value()}"
        settings.write_text(f"{agents}remote: {{bucket: {remote.bucket}, endpoint: '{remote.endpoint}', {keys}}}\n")
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=True)
    document = json.loads(done.stdout)
    [bucket] = document["buckets"]
    assert bucket["name"] == remote.bucket
    assert "ignores conditional writes" in bucket["problem"]
    rows = {row["name"]: row for row in document["executors"]}
    assert set(rows) >= NAMES
    assert not rows["codex"]["usable"]
    assert "/no/such/codex" in rows["codex"]["reason"]
    assert document["sandboxes"]
    assert "sk-planted-4711" not in done.stdout + done.stderr


def test_a_worker_of_workflows_alone_never_imports_what_agents_need() -> None:
    """Agents' libraries take most of a second and megabytes."""
    script = (
        "import sys, worker.build; "
        "print([name for name in ('acp', 'openai', 'activities.executor.agent.cli') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
