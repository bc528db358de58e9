"""The command line of the MCP Inspector calls every tool over every transport."""

import asyncio
import json
import shutil
import subprocess
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from gateway.mcp.tools import TOOLS
from tests.support.gateway import NAMES, fill, gateway, project_id
from tests.support.mcp import SERVE, environment, socket_of
from tests.support.stack.stack import ROOT
from tightloop.client import TightloopClient
from tightloop.database.opening import open_ledger
from tightloop.safety.person import Person, Role
from tightloop.settings import Settings

INSPECTOR = shutil.which("mcp-inspector")
CALLS: dict[str, tuple[str, ...]] = {
    "record_checkpoint": ("iteration=1", "role=executor", "scratchpad=x"),
    "diff_and_classify": ("from_id=ckpt-0", "to_id=ckpt-1"),
    "send_message": ("target=planner", "message=x"),
    "pause_episode": ("reason=x",),
    "resume_episode": ("ckpt_id=ckpt-0",),
    "start_episode": ("goal=x", "workspace=relative", 'definition_of_done=["true"]'),
    "status": ("id=nowhere",),
    "list_workflows": ("kind=plan",),
    "plan": ("id=orders-plan-0",),
    "inbox": (),
    "answer": ("id=orders-episode-1", "option=allow"),
    "respond": ("id=orders-episode-1", "text=x"),
}
ANSWERS = {"list_workflows", "inbox"}
"""All others are about workflows that only the ledger knows: their refusals are sentences of ours."""

pytestmark = [
    pytest.mark.skipif(INSPECTOR is None, reason="needs: npm install -g @modelcontextprotocol/inspector"),
    pytest.mark.timeout(900),
]


@pytest.mark.parametrize("transport", ["http", "stdio", "socket"])
async def test_the_inspector_calls_every_tool(
    transport: str, tmp_path: Path, client: TightloopClient, settings: Settings
) -> None:
    assert set(CALLS) == {tool.run.__name__ for tool in TOOLS}
    async with gateway(tmp_path, client, settings, open_ledger(settings)) as served, AsyncExitStack() as stack:
        fill(served.ledger, tmp_path)
        options = ("--role", "operator", "--workspace", str(tmp_path / NAMES[0]))
        if transport == "http":
            token = served.token("inspector", Role.OPERATOR, [project_id(tmp_path, NAMES[0])])
            target = (f"{served.url}/mcp", "--transport", "http", "--header", f"Authorization: Bearer {token}")
        elif transport == "stdio":
            target = (*SERVE, *options)
        else:
            path = tmp_path / "mcp.sock"
            person = Person(name="me", role=Role.OPERATOR, projects=(project_id(tmp_path, NAMES[0]),))
            await stack.enter_async_context(socket_of(path, served, client, person))
            target = (*SERVE, "--connect", str(path))

        async def inspect(*arguments: str) -> Any:
            return await asyncio.to_thread(inspected, settings, target, arguments)

        listed = await inspect("--method", "tools/list")
        assert {tool["name"] for tool in listed["tools"]} == set(CALLS)
        for name, given in CALLS.items():
            words = [word for one in given for word in ("--tool-arg", one)]
            result = await inspect("--method", "tools/call", "--tool-name", name, *words)
            said = result["content"][0]["text"]
            assert result.get("isError", False) == (name not in ANSWERS), (name, said)
            assert "Traceback" not in said
            print(f"{transport:6} {name:18} {said[:90]}")


def inspected(settings: Settings, target: tuple[str, ...], arguments: tuple[str, ...]) -> Any:
    """Run the Inspector once; returns what it prints."""
    assert INSPECTOR is not None
    command = (INSPECTOR, "--cli", *target, *arguments)
    done = subprocess.run(
        command, env=environment(settings), cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout.lstrip().startswith("{"), done.stdout[-600:] + done.stderr[-600:]
    return json.loads(done.stdout)
