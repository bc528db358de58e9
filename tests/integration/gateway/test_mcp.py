"""Agents and assistants over MCP, with the official client, real workers and real transports."""

import asyncio
import contextlib
import json
import socket
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client, MCPError

from gateway.mcp.tools import TOOLS
from tests.support.episodes import Working, eventually
from tests.support.gateway import NAMES, Gateway, fill, gateway, project_id, secret_of
from tests.support.mcp import TRANSPORTS, call, connected, over_http, over_stdio, refused, socket_server
from tightloop.client import Check, EpisodeRequest, ExecutorChoice, TightloopClient
from tightloop.database.access.tokens import Tokens
from tightloop.database.opening import open_ledger
from tightloop.executor.messages.message import PlanRequestMessage, render_plan_request
from tightloop.executor.messages.reflection import Alignment, Reflection
from tightloop.host import state_folder
from tightloop.question import QuestionKind
from tightloop.safety.person import Role
from tightloop.settings import Settings

READING = {tool.run.__name__ for tool in TOOLS if tool.needs is Role.VIEWER}


def report(iteration: int, **changes: Any) -> str:
    """A plan request as the rules file asks for it."""
    fields: dict[str, Any] = {
        "project": "project",
        "goal": "two files",
        "iteration": iteration,
        "outcome": "completed",
        "report": "wrote a file",
        "reflection": Reflection(diagnosis="one file at a time", action_items=("write the other one",)),
        "alignment": Alignment(rationale="only what the plan says"),
        **changes,
    }
    return render_plan_request(PlanRequestMessage(**fields))


@pytest.fixture
async def episode(client: TightloopClient, workspace: Path, working: Working) -> AsyncIterator[str]:
    """An episode whose work is done by whoever reports on it; it needs two files."""
    request = EpisodeRequest(
        goal="two files",
        workspace=str(workspace),
        definition_of_done=(Check(run="test -s a.txt && test -s b.txt"),),
        executor=ExecutorChoice(name="person"),
    )
    async with working():
        started = await client.start(request)
        await awaits_work(client, started, 1)
        yield started
        with contextlib.suppress(Exception):
            await client.cancel(started)


@pytest.fixture
async def served(tmp_path: Path, client: TightloopClient, settings: Settings) -> AsyncIterator[Gateway]:
    """A gateway with the ledger that the workers write."""
    async with gateway(tmp_path, client, settings, open_ledger(settings)) as served:
        yield served
        for token in Tokens(served.ledger.database).all():
            if token.revoked is None:
                Tokens(served.ledger.database).revoke(token.name)


async def awaits_work(client: TightloopClient, episode_id: str, iteration: int) -> None:
    async def waits() -> bool:
        status = await client.status(episode_id)
        kinds = {question.kind for question in status.questions}
        return QuestionKind.WORK in kinds and getattr(status, "iteration", 0) == iteration

    await eventually(waits, seconds=90)


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_every_tool_is_called_and_an_agent_reports(
    transport: str, tmp_path: Path, workspace: Path, client: TightloopClient, served: Gateway, episode: str
) -> None:
    project = state_folder(workspace).name
    names = {Role.AGENT: f"agent-{transport}", Role.OPERATOR: f"operator-{transport}"}
    tokens = {role: served.token(name, role, [project]) for role, name in names.items()}
    where = ("--workspace", str(workspace))
    async with (
        connected(transport, tmp_path, served, tokens[Role.AGENT], "--role", "agent", *where) as agent,
        connected(transport, tmp_path, served, tokens[Role.OPERATOR], "--role", "operator", *where) as operator,
    ):
        shown = await agent.list_tools()
        assert {tool.name for tool in shown.tools} == {tool.run.__name__ for tool in TOOLS}
        await work_of_agent(agent, client, workspace, episode)
        await work_of_operator(operator, client, workspace, episode)
        (workspace / "b.txt").write_text("b\n")
        long = Reflection(diagnosis="x" * 900, action_items=("nothing",))
        told = await call(agent, "send_message", target="planner", message=report(3, reflection=long))
        assert "'done'" in told["ack"]
        assert (await client.result(episode)).outcome == "SUCCEEDED"
        kept = [one.id for one in await client.checkpoints(episode)]
        timeline = json.loads((await agent.read_resource(f"tightloop://episodes/{episode}/timeline")).contents[0].text)
        assert any("scratchpad of the executor" in event["text"] for event in timeline)
        listed = json.loads((await agent.read_resource(f"tightloop://episodes/{episode}/checkpoints")).contents[0].text)
        assert [one["id"] for one in listed] == kept


async def work_of_agent(agent: Client, client: TightloopClient, workspace: Path, episode: str) -> None:
    """Iteration 1: what an agent may do, and that it decides nothing."""
    assert (await call(agent, "status"))["iteration"] == 1
    assert "scratchpad" in await refused(agent, "record_checkpoint", iteration=1, role="executor", scratchpad="")
    assert "unknown" in await refused(agent, "pause_episode", reasn="typo", reason="x")
    recorded = await call(agent, "record_checkpoint", iteration=1, role="executor", scratchpad="a.txt is next")
    assert "iteration 1" in await refused(agent, "record_checkpoint", iteration=7, role="executor", scratchpad="x")
    said = await refused(agent, "send_message", target="planner", message="I am done!")
    assert "[🪞 REFLECTION] is missing" in said
    assert "A right message looks like this" in said
    assert "it must be one of" in await refused(
        agent, "send_message", target="planner", message=report(1, outcome="great")
    )
    assert "iteration 5" in await refused(agent, "send_message", target="planner", message=report(5))
    assert "executor" in await refused(agent, "send_message", target="executor", message="do it")
    (workspace / "a.txt").write_text("a\n")
    assert "'done'" in (await call(agent, "send_message", target="planner", message=report(1)))["ack"]
    await awaits_work(client, episode, 2)
    assert recorded["ckpt_id"] in [one.id for one in await client.checkpoints(episode)]
    compared = await call(agent, "diff_and_classify", from_id="ckpt-0", to_id=recorded["ckpt_id"])
    assert "+++ b/a.txt" in compared["patch"]
    assert compared["probability_class"] in ("HIGH", "MEDIUM", "LOW")
    assert "ckpt-77" in await refused(agent, "diff_and_classify", from_id="ckpt-0", to_id="ckpt-77")
    assert await call(agent, "pause_episode", reason="look at a.txt") == {"episode_id": episode}
    question = (await call(agent, "inbox"))["items"][0]["question"]
    for name, arguments in (
        ("answer", {"id": episode, "option": "done", "question": question["id"]}),
        ("answer", {"id": episode[:-1], "option": "done"}),
        ("resume_episode", {"ckpt_id": "ckpt-0"}),
        ("respond", {"id": episode, "text": "go on"}),
        ("start_episode", {"goal": "more", "workspace": str(workspace), "definition_of_done": ["true"]}),
    ):
        assert "this needs an operator" in await refused(agent, name, **arguments), name
    assert (await client.status(episode)).questions[0].id == question["id"], "nothing was answered"


async def work_of_operator(operator: Client, client: TightloopClient, workspace: Path, episode: str) -> None:
    """Iteration 2: what an operator does."""
    found = (await call(operator, "list_workflows", kind="episode"))["items"]
    assert [one["id"] for one in found] == [episode]
    assert "no plan has the id" in await refused(operator, "plan", id="nowhere")
    assert "respond" not in (await call(operator, "respond", id=episode, text="mind the line ends"))["ack"]
    assert "ckpt-0" in await refused(operator, "resume_episode", ckpt_id="ckpt-99")
    assert "must be" in await refused(operator, "answer", id=episode, option=7)
    assert "going back to ckpt-1" in (await call(operator, "resume_episode", ckpt_id="ckpt-1"))["ack"]
    # Iterations are counted on; the next one begins with the files of the checkpoint.
    await awaits_work(client, episode, 3)
    elsewhere = workspace.parent / "elsewhere"
    assert "none of the projects" in await refused(
        operator, "start_episode", goal="more", workspace=str(elsewhere), definition_of_done=["true"]
    )
