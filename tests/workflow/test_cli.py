"""The command line against a real worker: looking at an episode and at a plan with the same words."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.support.doubles import ScriptedPlanner
from tests.support.episodes import Working, eventually
from tightloop.cli.main import app
from tightloop.client import TightloopClient
from tightloop.plan.request import PlanRequest

TWO_LINES = "test $(wc -l < log.txt) -ge 2"
GATE = """\
id: gate
steps:
  - {id: release, gate: {approval: {question: "Release?"}}}
"""
Cli = Callable[..., Awaitable[tuple[int, str]]]


@pytest.fixture
def cli(settings) -> Cli:
    """The command line, in a thread: the worker that has to answer lives in this event loop."""

    async def run(*arguments: str) -> tuple[int, str]:
        address = ("--address", settings.temporal.address)
        done = await asyncio.to_thread(CliRunner().invoke, app, [*address, *arguments])
        return done.exit_code, done.output

    return run


async def test_diff_shows_how_the_plan_changed_between_two_checkpoints(
    client: TightloopClient, working: Working, request_for, cli: Cli
) -> None:
    async with working(ScriptedPlanner()):
        episode_id = await client.start(request_for(definition_of_done=[TWO_LINES]))
        await client.result(episode_id)
        beside = await cli("diff", episode_id, "1", "ckpt-2", "--plan", "--json")
        apart = await cli("diff", episode_id, "0", "2", "--plan")
        same = await cli("diff", episode_id, "1", "1", "--plan")
        files = await cli("diff", episode_id, "1", "2")
        unknown = await cli("diff", episode_id, "1", "9", "--plan")
    assert beside[0] == 0
    document = json.loads(beside[1])
    assert (document["from"], document["to"]) == ("ckpt-1", "ckpt-2")
    assert "[-1-]{+2+}" in document["plan_change"]
    assert "{+- step 2" in apart[1]
    assert same == (0, "the plan is the same in ckpt-1 and ckpt-1\n")
    assert "+2" in files[1]
    assert unknown[0] == 2
    assert "no checkpoint ckpt-9. Known: ckpt-0, ckpt-1, ckpt-2" in unknown[1]


async def test_same_commands_show_what_a_plan_waits_for_and_steer_it(
    client: TightloopClient, working: Working, workspace: Path, cli: Cli
) -> None:
    async with working():
        plan_id = await client.start(PlanRequest(workspace=str(workspace), source=GATE))

        async def is_listed() -> bool:
            return f"{plan_id}: release waits for a person: Release?" in (await cli("list"))[1]

        await eventually(is_listed)
        listed = (await cli("list", "--kind", "plan"))[1]
        shown = (await cli("status", plan_id))[1]
        paused = await cli("pause", plan_id, "--reason", "lunch")
        resumed = await cli("resume", plan_id)
        wrong = await cli("answer", plan_id, "maybe")
        approved = await cli("approve", plan_id, "--by", "ada")
        watched = await cli("watch", plan_id)
        report = await cli("export", plan_id, "--report")
        none = await cli("list", "--kind", "episode", "--json")
    for text in (listed, shown):
        assert f"tightloop answer {plan_id} approve" in text
    assert (paused[0], resumed[0], wrong[0], approved[0], watched[0]) == (0, 0, 2, 0, 0)
    assert "COMPLETED: all steps are done" in watched[1]
    assert report[1].startswith("# ")
    assert plan_id not in none[1]


async def test_command_that_does_not_wait_for_people_ends_with_a_code_of_its_own(
    client: TightloopClient, working: Working, workspace: Path, cli: Cli
) -> None:
    async with working():
        await client.start(PlanRequest(workspace=str(workspace), source=GATE), new_id="plan-gated")
        code, said = await cli("watch", "plan-gated")
        again = await cli("watch", "plan-gated", "--no-wait", "--json")
        await client.answer("plan-gated", "approve")
        done = await cli("watch", "plan-gated")
    assert code == 3, said
    assert "plan-gated waits for a person. Answer, then follow it again: tightloop watch plan-gated" in said
    assert "tightloop answer plan-gated approve" in said
    assert again[0] == 3
    assert done[0] == 0


async def test_status_without_a_worker_says_what_is_stored_and_how_old_it_is(
    client: TightloopClient, working: Working, workspace: Path, request_for, cli: Cli
) -> None:
    source = GATE + '  - {id: first, priority: 9, shell: {run: "true"}}\n'
    async with working(ScriptedPlanner()):
        plan_id = await client.start(PlanRequest(workspace=str(workspace), source=source))

        async def is_waiting() -> bool:
            status = await client.status(plan_id)
            return bool(status.questions) and status.counts.get("completed") == 1

        await eventually(is_waiting)
    code, said = await cli("status", plan_id)
    as_json = await cli("status", plan_id, "--json")
    assert code == 0, said
    assert "no worker answers" in said
    assert "tightloop up" in said
    assert "as of" in said
    assert str(workspace) in said
    assert "completed 1" in said
    assert json.loads(as_json[1][as_json[1].index("{") :])["as_of"]
