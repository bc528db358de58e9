"""Codex and Claude Code, run by our executors, against a fake model that others wrote (aimock)."""

import json
import os
import re
import select
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from activities.executor.agent.acp.agents import AGENTS
from activities.executor.agent.acp.executor import AcpExecutor
from activities.executor.agent.cli import AgentExecutor
from activities.executor.agent.codex import CodexAdapter
from tests.support.agents.install import agent_program
from tests.support.orders import Supervision, order
from tightloop.executor.model import AgentMode, ErrorKind, ExecutorOutcome, ExecutorStatus
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


def deliver(name: str, base_url: str, folder: Path) -> ExecutorOutcome:
    """Let the executor work, without a gateway: what the agent itself reports is what counts here."""
    root = folder / "tree"
    root.mkdir()
    program = "claude-agent-acp" if name == "claude" else name
    settings = AgentSettings(program=str(agent_program(program)), base_url=base_url, model="some-model", gateway=False)
    work = order(root, name=name, mode=AgentMode.FULL, wall_limit_s=RUN_TIMEOUT_S).evolve(prompt="make a.txt")
    executor = (
        AcpExecutor(AGENTS[name], settings=settings, homes=folder / "homes")
        if name in AGENTS
        else AgentExecutor(CodexAdapter(settings), settings=settings, homes=folder / "homes")
    )
    return executor.execute(work, Supervision(), folder / "state")


both = pytest.mark.parametrize(("name", "path"), [("codex", "/v1/responses"), ("claude", "/v1/messages")])


def _base_url(name: str, address: str) -> str:
    return f"{address}/v1" if name == "codex" else address


@both
def test_an_agent_does_its_work_with_a_model_server_of_others(name: str, path: str, tmp_path: Path) -> None:
    with aimock(tmp_path) as address:
        outcome = deliver(name, _base_url(name, address), tmp_path)
        made = calls(address)
    assert outcome.status is ExecutorStatus.COMPLETED, outcome
    assert (tmp_path / "tree" / "a.txt").read_text() == "by aimock\n"
    assert "aimock is content" in outcome.summary
    assert outcome.usage is not None
    assert (outcome.usage.input_tokens, outcome.usage.output_tokens) == (150, 15)
    assert [call["path"].partition("?")[0] for call in made] == [path, path]
    assert "some-model" in json.dumps(made[0]["body"])


@pytest.mark.parametrize("name", ["codex", "claude"])
def test_a_limit_that_a_server_of_others_sets_is_seen_as_one(name: str, tmp_path: Path) -> None:
    with aimock(tmp_path, "--chaos-ratelimit", "1") as address:
        outcome = deliver(name, _base_url(name, address), tmp_path)
    assert outcome.status is ExecutorStatus.LIMIT_HIT, outcome
    assert outcome.error_kind is ErrorKind.RATE
    assert outcome.limit is not None
    assert not (tmp_path / "tree" / "a.txt").exists()
