"""Codex and Claude Code, launched by our adapters, against a fake model that others wrote (aimock)."""

import json
import os
import re
import select
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from activities.execution.agent.claude import ClaudeAdapter
from activities.execution.agent.codex import CodexAdapter
from activities.execution.agent.home import write_files
from activities.execution.agent.port import AgentAdapter, Ending, ModelAccess
from tests.integration.agents import agent_program
from tightloop.executor import (
    AgentMode,
    ErrorKind,
    EventKind,
    ExecutorChoice,
    ExecutorOutcome,
    ExecutorStatus,
    WorkOrder,
)
from tightloop.message import PlanMessage
from tightloop.settings import AgentSettings

COMMAND = "echo by aimock > a.txt"
FIXTURES = {
    "fixtures": [
        {
            "match": {"toolName": "exec_command", "hasToolResult": False},
            "response": {
                "toolCalls": [{"name": "exec_command", "arguments": {"cmd": COMMAND}}],
                "usage": {"input_tokens": 70, "output_tokens": 7},
            },
        },
        {
            "match": {"toolName": "Bash", "hasToolResult": False},
            "response": {
                "toolCalls": [{"name": "Bash", "arguments": {"command": COMMAND}}],
                "usage": {"input_tokens": 70, "output_tokens": 7},
            },
        },
        {
            "match": {"hasToolResult": True},
            "response": {"content": "aimock is content", "usage": {"input_tokens": 80, "output_tokens": 8}},
        },
    ]
}
LISTENS = re.compile(rb"listening on (http://127\.0\.0\.1:\d+)")
START_TIMEOUT_S = 60.0
RUN_TIMEOUT_S = 110.0


@contextmanager
def aimock(folder: Path, *arguments: str) -> Iterator[str]:
    """Run the server and yield its address; a request that no fixture answers is refused."""
    program = agent_program("llmock")
    if shutil.which("node") is None:
        pytest.skip("llmock needs node on PATH")
    fixtures = folder / "fixtures.json"
    fixtures.write_text(json.dumps(FIXTURES))
    argv = (str(program), "--port", "0", "--fixtures", str(fixtures), "--strict", "--log-level", "info", *arguments)
    with subprocess.Popen(argv, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as server:
        try:
            yield _address(server)
        finally:
            server.kill()


def _address(server: subprocess.Popen[bytes]) -> str:
    assert server.stdout is not None
    output, until = b"", time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < until:
        ready, _, _ = select.select([server.stdout], [], [], 0.5)
        chunk = os.read(server.stdout.fileno(), 4096) if ready else b""
        output += chunk
        if found := LISTENS.search(output):
            return found[1].decode()
        if ready and not chunk:
            break
    raise AssertionError(f"aimock does not listen: {output.decode('utf-8', 'replace')}")


def calls(address: str) -> list[Any]:
    """The calls of a model that the server saw."""
    with urllib.request.urlopen(f"{address}/__aimock/journal", timeout=10) as answer:
        return [entry for entry in json.load(answer) if entry["method"] == "POST"]


def deliver(adapter: AgentAdapter, base_url: str, folder: Path) -> ExecutorOutcome:
    """Start the agent exactly as its adapter says, and return what its reader makes of it."""
    root, home = folder / "tree", folder / "home"
    root.mkdir()
    home.mkdir()
    choice = ExecutorChoice(name=adapter.name, mode=AgentMode.FULL)
    order = WorkOrder(
        key="k", episode_id="e", iteration=1, root=str(root), plan=PlanMessage(), prompt="make a.txt", executor=choice
    )
    access = ModelAccess(base_url=base_url, key="sk-not-a-key-0123456789abcdef", model="some-model")
    launch = adapter.launch(order, home, access, None)
    write_files(home, launch.files)
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), **launch.environment, **launch.secrets}
    done = subprocess.run(
        launch.argv,
        cwd=root,
        env=environment,
        input=launch.stdin.encode(),
        capture_output=True,
        timeout=RUN_TIMEOUT_S,
        check=False,
    )
    reader = adapter.reader(order)
    events = [event for line in done.stdout.decode().splitlines() for event in reader.feed(line)]
    assert [event for event in events if event.kind is EventKind.SESSION], done
    assert reader.finished, done
    return reader.verdict(Ending(exit_code=done.returncode, output_end=done.stderr.decode()[-4000:]))


AGENTS = pytest.mark.parametrize(
    ("name", "adapter", "path"),
    [
        pytest.param("codex", CodexAdapter, "/v1/responses", id="codex"),
        pytest.param("claude", ClaudeAdapter, "/v1/messages", id="claude"),
    ],
)


def _base_url(name: str, address: str) -> str:
    return f"{address}/v1" if name == "codex" else address


@AGENTS
def test_an_agent_does_its_work_with_a_model_server_of_others(
    name: str, adapter: Callable[[AgentSettings], AgentAdapter], path: str, tmp_path: Path
) -> None:
    settings = AgentSettings(program=str(agent_program(name)))
    with aimock(tmp_path) as address:
        outcome = deliver(adapter(settings), _base_url(name, address), tmp_path)
        made = calls(address)
    assert outcome.status is ExecutorStatus.COMPLETED, outcome
    assert (tmp_path / "tree" / "a.txt").read_text() == "by aimock\n"
    assert "aimock is content" in outcome.summary
    assert outcome.usage is not None
    assert (outcome.usage.input_tokens, outcome.usage.output_tokens) == (150, 15)
    assert [call["path"].partition("?")[0] for call in made] == [path, path]
    assert "some-model" in json.dumps(made[0]["body"])


@AGENTS
def test_a_limit_that_a_server_of_others_sets_is_seen_as_one(
    name: str, adapter: Callable[[AgentSettings], AgentAdapter], path: str, tmp_path: Path
) -> None:
    settings = AgentSettings(program=str(agent_program(name)))
    with aimock(tmp_path, "--chaos-ratelimit", "1") as address:
        outcome = deliver(adapter(settings), _base_url(name, address), tmp_path)
    assert outcome.status is ExecutorStatus.LIMIT_HIT, outcome
    assert outcome.error_kind is ErrorKind.RATE
    assert outcome.limit is not None
    assert not (tmp_path / "tree" / "a.txt").exists()
