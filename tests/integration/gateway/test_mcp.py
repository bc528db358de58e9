"""Agents and assistants over MCP, with the official client, real workers and real transports."""

import asyncio
import contextlib
import json
import shutil
import stat
import subprocess
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, MCPError

from gateway.mcp.__main__ import person_of
from gateway.mcp.report import serve_socket
from gateway.mcp.server import ALL_TOOLS
from tests.support.episodes import Working, eventually
from tests.support.gateway import NAMES, Gateway, fill, gateway, project_id, secret_of
from tests.support.mcp import SERVE, call, environment, over_http, over_socket, over_stdio, refused, socket_of
from tests.support.stack.stack import ROOT
from tightloop.cli.mcp import bridge
from tightloop.client import Check, EpisodeRequest, ExecutorChoice, PlanRequest, TightloopClient
from tightloop.database.access import Tokens
from tightloop.database.ledger import open_ledger
from tightloop.errors import ServiceUnavailableError, SettingsError
from tightloop.executor.message import Alignment, PlanRequestMessage, Reflection, render_plan_request
from tightloop.host import state_folder
from tightloop.run.question import QuestionKind
from tightloop.safety.seal import Person, Role
from tightloop.settings import Settings

PLAN = "title: One step\nsteps:\n- {id: build, shell: {run: 'true'}, access: none}\n"
READING = {tool.name for tool in ALL_TOOLS if tool.needs is Role.VIEWER}


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


@asynccontextmanager
async def two_ends(
    transport: str, folder: Path, served: Gateway, client: TightloopClient, project: str, episode: str
) -> AsyncIterator[tuple[Client, Client]]:
    """The connections of an agent and of an operator."""
    async with AsyncExitStack() as stack:
        made: list[AbstractAsyncContextManager[Client]] = []
        for role in (Role.AGENT, Role.OPERATOR):
            if transport == "http":
                made.append(over_http(served, served.token(f"{role}-of-test", role, [project])))
            elif transport == "stdio":
                # A process of the agent asks for more than it was given.
                asked, bound = ("admin", {"TIGHTLOOP_EPISODE": episode}) if role is Role.AGENT else ("operator", {})
                workspace = served.ledger.project(project).workspace
                made.append(over_stdio(served.settings, "--role", asked, "--workspace", workspace, **bound))
            else:
                path = folder / f"{role}.sock"
                person = Person(name=role.value, role=role, projects=(project,))
                await stack.enter_async_context(socket_of(path, served, client, person))
                made.append(over_socket(path))
        agent, operator = [await stack.enter_async_context(one) for one in made]
        yield agent, operator


@pytest.mark.parametrize("transport", ["http", "stdio", "socket"])
async def test_every_tool_is_called_and_an_agent_reports(
    transport: str, tmp_path: Path, workspace: Path, client: TightloopClient, served: Gateway, episode: str
) -> None:
    project = state_folder(workspace).name
    async with two_ends(transport, tmp_path, served, client, project, episode) as (agent, operator):
        shown = await agent.list_tools()
        assert {tool.name for tool in shown.tools} == {tool.name for tool in ALL_TOOLS}
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
    assert "A correct message looks like this" in said
    assert "must be one of" in await refused(
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
    question = (await call(agent, "inbox", project=state_folder(workspace).name))["items"][0]["question"]
    for name, arguments in (
        ("answer", {"id": episode, "option": "done", "question": question["id"]}),
        ("answer", {"id": episode[:-1], "option": "done"}),
        ("resume_episode", {"ckpt_id": "ckpt-0"}),
        ("respond", {"id": episode, "text": "go on"}),
        ("start_episode", {"goal": "more", "workspace": str(workspace), "definition_of_done": ["true"]}),
    ):
        assert "this requires an operator" in await refused(agent, name, **arguments), name
    assert (await client.status(episode)).questions[0].id == question["id"], "nothing was answered"


async def work_of_operator(operator: Client, client: TightloopClient, workspace: Path, episode: str) -> None:
    """Iteration 2: what an operator does."""
    found = (await call(operator, "list_workflows", kind="episode"))["items"]
    assert [one["id"] for one in found] == [episode]
    assert "no such plan for this connection" in await refused(operator, "plan", id="nowhere")
    assert "respond" not in (await call(operator, "respond", id=episode, text="mind the line ends"))["ack"]
    assert "ckpt-0" in await refused(operator, "resume_episode", ckpt_id="ckpt-99")
    assert "must be" in await refused(operator, "answer", id=episode, option=7)
    assert "restoring ckpt-1" in (await call(operator, "resume_episode", ckpt_id="ckpt-1"))["ack"]
    # Iterations are counted on; the next one begins with the files of the checkpoint.
    await awaits_work(client, episode, 3)
    elsewhere = workspace.parent / "elsewhere"
    assert "this token has no access to a project" in await refused(
        operator, "start_episode", goal="more", workspace=str(elsewhere), definition_of_done=["true"]
    )


ARGUMENTS: dict[str, dict[str, Any]] = {
    "record_checkpoint": {"iteration": 1, "role": "executor", "scratchpad": "x"},
    "diff_and_classify": {"from_id": "ckpt-0", "to_id": "ckpt-1"},
    "send_message": {"target": "planner", "message": "x"},
    "pause_episode": {"reason": "x"},
    "resume_episode": {"ckpt_id": "ckpt-0"},
    "start_episode": {"goal": "x", "workspace": "/nowhere", "definition_of_done": ["true"]},
    "status": {"id": "relay-episode-0"},
    "list_workflows": {},
    "plan": {"id": "relay-plan-0"},
    "inbox": {},
    "answer": {"id": "relay-episode-1", "option": "allow"},
    "respond": {"id": "relay-episode-1", "text": "x"},
}
"""For every tool what names the project `relay` where it can."""


async def test_a_token_reaches_what_its_role_and_projects_say(
    tmp_path: Path, client: TightloopClient, settings: Settings
) -> None:
    assert set(ARGUMENTS) == {tool.name for tool in ALL_TOOLS}
    async with gateway(tmp_path, client, settings) as served:
        fill(served.ledger, tmp_path)
        orders = project_id(tmp_path, "orders")
        viewer = served.token("viewer", Role.VIEWER)
        async with over_http(served, viewer) as seen:
            for name in sorted(set(ARGUMENTS) - READING):
                assert "viewer is a viewer, but this requires an" in await refused(seen, name, **ARGUMENTS[name]), name
            assert "list_workflows" in await refused(seen, "delete_everything")
        limited = served.token("orders-admin", Role.ADMIN, [orders])
        async with over_http(served, limited, "?episode=relay-episode-1") as other:
            for name, arguments in ARGUMENTS.items():
                result = await other.call_tool(name, arguments)
                assert secret_of("relay") not in str(result), name
                assert result.is_error == (name not in ("list_workflows", "inbox")), name
            assert secret_of("orders") in str(await other.call_tool("list_workflows", {}))
            for part in ("status", "timeline", "checkpoints"):
                with pytest.raises(MCPError, match="no such episode for this connection"):
                    await other.read_resource(f"tightloop://episodes/relay-episode-1/{part}")
        async with over_http(served, limited) as several:
            assert "5 episodes are open" in await refused(several, "pause_episode", reason="x")


async def test_without_a_valid_token_nothing_is_told(
    tmp_path: Path, client: TightloopClient, settings: Settings
) -> None:
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    accept = {"Accept": "application/json, text/event-stream"}
    async with gateway(tmp_path, client, settings) as served:
        fill(served.ledger, tmp_path)
        revoked = served.token("gone", Role.ADMIN)
        Tokens(served.ledger.database).revoke("gone")
        for token in ("", "tl_x_y", revoked):
            async with served.http(token, **accept) as http:
                answers = [await http.post("/mcp", json=message), await http.get("/mcp"), await http.delete("/mcp")]
            assert {answer.status_code for answer in answers} == {401}
            assert not any(name in answer.text for answer in answers for name in (*NAMES, "record_checkpoint"))
        async with served.http(served.token("anna", Role.VIEWER), **accept) as http:
            assert (await http.get("/mcp")).status_code == 405
            assert (
                await http.post("/mcp", json=message, headers={"Origin": "https://evil.example"})
            ).status_code == 403
            assert (await http.post("/mcp", content=b"x" * 300_000)).status_code == 413
            assert (await http.post("/mcp", content=b"{")).status_code == 400


async def test_an_agent_is_bound_to_its_episode(
    tmp_path: Path, workspace: Path, client: TightloopClient, settings: Settings, served: Gateway, episode: str
) -> None:
    tokens, project = Tokens(served.ledger.database), state_folder(workspace).name
    _, bound = tokens.create("bound", Role.AGENT, [project], episode=episode)
    async with over_http(served, bound, "?episode=another") as elsewhere:
        assert f"but its token is only valid for episode {episode}" in await refused(
            elsewhere, "pause_episode", reason="x"
        )
    async with served.http(bound) as http:
        for action in ("answer", "resume", "pause", "respond", "restore", "cancel"):
            sent = await http.post(f"/api/episodes/{episode}/{action}", json={})
            assert sent.status_code == 403, action
    person = person_of(Role.ADMIN, "another", episode)
    assert (person.role, person.episode) == (Role.AGENT, episode), "an agent's process asks for more than it was given"


async def test_an_agent_ends_no_pause(
    workspace: Path, client: TightloopClient, served: Gateway, working: Working, request_for: Any
) -> None:
    async with working():
        episode = await client.start(request_for())
        await client.pause(episode, "wait for the release", by="anna")

        async def pauses() -> bool:
            return (await client.status(episode)).status == "paused"

        await eventually(pauses, seconds=60)
        agent = served.token("noting", Role.AGENT, [state_folder(workspace).name])
        async with over_http(served, agent, f"?episode={episode}") as noting:
            told = await call(noting, "send_message", target="planner", message="the release is out")
        assert told["ack"] == "the planner will read the message. The episode stays paused"
        assert await pauses()
        assert "continues" in await client.respond(episode, "now")
        assert (await client.result(episode)).outcome == "SUCCEEDED"


async def test_a_socket_is_this_users_alone(tmp_path: Path, client: TightloopClient, served: Gateway) -> None:
    path, admin = tmp_path / "mcp.sock", Person(name="me", role=Role.ADMIN)
    async with socket_of(path, served, client, admin):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        _, rude = await asyncio.open_unix_connection(str(path))
        rude.write(b"not json\n" + b"x" * 300_000)
        with contextlib.suppress(ConnectionError):
            await rude.drain()
        rude.close()
        async with over_socket(path) as still:
            assert len((await still.list_tools()).tools) == len(ALL_TOOLS)
    assert not path.exists()
    path.write_text("mine")
    nothing: Any = None
    with pytest.raises(ServiceUnavailableError, match="is not a socket"):
        await serve_socket(nothing, path)
    assert path.read_text() == "mine"
    with pytest.raises(ServiceUnavailableError, match="no MCP server is listening"):
        bridge(tmp_path / "none.sock")
    tmp_path.chmod(0o777)
    with pytest.raises(SettingsError, match="is writable by others"):
        await serve_socket(nothing, tmp_path / "x.sock")


def test_every_tool_says_what_it_is_for() -> None:
    for tool in ALL_TOOLS:
        assert tool.shown.description, tool.name
        assert tool.shown.input_schema["additionalProperties"] is False
    named = {tool.name: list(tool.shown.input_schema["properties"]) for tool in ALL_TOOLS}
    own = {
        "record_checkpoint": ["iteration", "role", "scratchpad"],
        "diff_and_classify": ["from_id", "to_id"],
        "send_message": ["target", "message"],
        "pause_episode": ["reason"],
        "resume_episode": ["ckpt_id"],
    }
    assert {name: named[name] for name in own} == own


INSPECTOR = shutil.which("mcp-inspector")


@pytest.mark.skipif(INSPECTOR is None, reason="needs node 22 and: npm install -g @modelcontextprotocol/inspector@2")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("transport", ["http", "stdio", "socket"])
async def test_the_inspectors_command_line_calls_every_tool(
    transport: str, tmp_path: Path, workspace: Path, client: TightloopClient, served: Gateway, episode: str
) -> None:
    project, called = state_folder(workspace).name, set[str]()
    options = ("--role", "operator", "--workspace", str(workspace))
    async with socket_of(
        tmp_path / "mcp.sock", served, client, Person(name="me", role=Role.OPERATOR, projects=(project,))
    ):
        token = served.token("inspector", Role.OPERATOR, [project])
        # It starts programs with a few variables of its own only.
        variables = environment(served.settings).items()
        named = [f"{key}={value}" for key, value in variables if key.startswith(("TIGHTLOOP_", "PYTHONPATH"))]
        given = [word for one in named for word in ("-e", one)]
        target = {
            "http": ("--transport", "http", "--header", f"Authorization: Bearer {token}", "--", f"{served.url}/mcp"),
            "stdio": (*given, "--", *SERVE, *options),
            "socket": (*given, "--", *SERVE, "--connect", str(tmp_path / "mcp.sock")),
        }[transport]

        async def inspect(name: str, **arguments: Any) -> Any:
            words = [word for key, value in arguments.items() for word in ("--tool-arg", f"{key}={value}")]
            command = (
                str(INSPECTOR),
                "--cli",
                "--connect-timeout",
                "60000",
                "--method",
                "tools/call",
                "--tool-name",
                name,
                *words,
                *target,
            )
            done = await asyncio.to_thread(
                subprocess.run, command, env=environment(served.settings), cwd=ROOT, capture_output=True, timeout=120
            )
            result = json.loads(done.stdout or done.stderr)
            assert "content" in result, result
            assert not result.get("isError"), result
            called.add(name)
            print(f"{transport:6} {name:18} {result['content'][0]['text'][:90]}")
            return result["structuredContent"]

        assert (await inspect("status"))["iteration"] == 1
        assert (await inspect("list_workflows"))["items"][0]["id"] == episode
        assert (await inspect("inbox"))["items"][0]["workflow_id"] == episode
        await inspect("record_checkpoint", iteration=1, role="executor", scratchpad="a.txt is next")
        (workspace / "a.txt").write_text("a\n")
        await inspect("send_message", target="planner", message=report(1))
        await awaits_work(client, episode, 2)
        assert "+a" in (await inspect("diff_and_classify", from_id="ckpt-0", to_id="ckpt-1"))["patch"]
        await inspect("respond", id=episode, text="mind the line ends")
        assert await inspect("pause_episode", reason="look at a.txt") == {"episode_id": episode}
        await inspect("resume_episode", ckpt_id="ckpt-1")
        await awaits_work(client, episode, 3)
        (workspace / "b.txt").write_text("b\n")
        await inspect("answer", id=episode, option="done")
        assert (await client.result(episode)).outcome == "SUCCEEDED"
        green = await inspect("start_episode", goal="stay green", workspace=workspace, definition_of_done='["true"]')
        await client.cancel(green["id"])
        plan = await client.start(PlanRequest(workspace=str(workspace), source=PLAN))
        await inspect("plan", id=plan)
    assert called == {tool.name for tool in ALL_TOOLS}
