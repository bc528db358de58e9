"""The command line against a real worker: looking at an episode and at a plan with the same words."""

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from temporalio.testing import WorkflowEnvironment

from tests.support.doubles import ScriptedPlanner
from tests.support.episodes import Working, asked, eventually
from tightloop.cli.main import app
from tightloop.client import TightloopClient
from tightloop.episode.budget import Budget
from tightloop.errors import WrongStateError
from tightloop.plan.request import PlanRequest
from worker.connect import DATA_CONVERTER
from worker.server import temporal_binary, tuning_arguments

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
    assert "no checkpoint ckpt-9. Known checkpoints: ckpt-0, ckpt-1, ckpt-2" in unknown[1]


async def test_same_commands_show_what_a_plan_waits_for_and_steer_it(
    client: TightloopClient, working: Working, workspace: Path, cli: Cli
) -> None:
    async with working():
        plan_id = await client.start(PlanRequest(workspace=str(workspace), source=GATE))

        async def is_listed() -> bool:
            return f"{plan_id}: release is waiting for a person: Release?" in (await cli("list"))[1]

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
    assert (paused[0], resumed[0], wrong[0], approved[0], watched[0]) == (0, 0, 2, 0, 4)
    assert "COMPLETED, not proven: no definition of done" in watched[1]
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
    assert "plan-gated is waiting for a person. Answer its question, then run: tightloop watch plan-gated" in said
    assert "tightloop answer plan-gated approve" in said
    assert again[0] == 3
    assert done[0] == 4, "it has no definition of done"


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
    assert "no worker is responding" in said
    assert "tightloop up" in said
    assert "as of" in said
    assert str(workspace) in said
    assert "completed 1" in said
    assert json.loads(as_json[1][as_json[1].index("{") :])["as_of"]


async def test_status_without_a_worker_names_no_branch_that_it_does_not_know(
    client: TightloopClient, working: Working, request_for, cli: Cli
) -> None:
    request = request_for(definition_of_done=["test -f never"], budget=Budget(max_iterations=1))
    async with working(ScriptedPlanner()):
        episode_id = await client.start(request)
        await asked(client, episode_id)
        await client.restore(episode_id, "ckpt-0")

        async def is_on_branch() -> bool:
            status = await client.status(episode_id)
            return status.branch == 2 and bool(status.questions)

        await eventually(is_on_branch)
        known = await cli("status", episode_id)
    _, said = await cli("status", episode_id)
    _, as_json = await cli("status", episode_id, "--json")
    assert "1 on checkpoint branch 2" in known[1]
    assert "no worker is responding" in said
    assert "branch" not in said
    assert json.loads(as_json[as_json.index("{") :])["branch"] == 0


SERVICE = """
import asyncio, sys
from tightloop.client import TightloopClient

async def main():
    client = await TightloopClient.connect(sys.argv[2])
    async for status in client.watch(sys.argv[4], on_silence=print):
        print(status.status, flush=True)

asyncio.run(main())
"""


@pytest.mark.parametrize("program", [("-m", "tightloop.cli.main"), ("-c", SERVICE)], ids=["command", "service"])
async def test_server_that_goes_away_is_told_in_our_own_words(request_for, program: tuple[str, str]) -> None:
    server = await WorkflowEnvironment.start_local(
        data_converter=DATA_CONVERTER,
        dev_server_existing_path=str(temporal_binary()),
        dev_server_extra_args=tuning_arguments(),
    )
    async with server:
        episode_id = await TightloopClient(server.client).start(request_for())
        address = server.client.service_client.config.target_host
        watching = await asyncio.create_subprocess_exec(
            *(sys.executable, *program, "--address", address, "watch", episode_id),
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        assert watching.stdout is not None
        said = bytearray(await asyncio.wait_for(watching.stdout.read(1), 30))
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(8):
            while chunk := await watching.stdout.read(4_096):
                said += chunk
    watching.kill()
    await watching.wait()
    text = said.decode()
    assert "cannot reach Temporal" in text
    assert "retried" not in text


async def test_resume_and_pause_claim_no_success_for_what_they_do_not_do(
    cli: Cli, client: TightloopClient, working: Working, request_for
) -> None:
    async with working():
        episode_id = await client.start(request_for(budget=Budget(max_iterations=1)))
        await asked(client, episode_id)
        code, said = await cli("resume", episode_id)
        assert code == 2
        assert "cannot continue without a decision: q1" in said
        # Also for programs: the API answers 409, and nothing is written into the timeline.
        with pytest.raises(WrongStateError, match="without a decision: q1") as no:
            await client.resume(episode_id)
        assert (no.value.status, no.value.details) == (409, {"state": "paused", "possible": ["answer"]})
        assert not [entry for entry in await client.timeline(episode_id) if entry.kind == "refused"]
        assert f"tightloop answer {episode_id} extend" in said
        code, said = await cli("top-up", episode_id)
        assert code == 2
        assert "Add one, for example --iterations 5" in " ".join(said.split())
        code, said = await cli("move", episode_id, "--to", "nowhere")
        assert code == 2
        assert "move: no workspace worker is running on 'nowhere'" in " ".join(said.split())
        code, said = await cli("pause", episode_id)
        assert (code, said.splitlines()[0]) == (0, f"{episode_id} is already paused")
        await client.cancel(episode_id)
        await client.result(episode_id)


async def test_cancel_says_that_no_worker_is_there(cli: Cli, client: TightloopClient, working, request_for) -> None:
    episode_id = await client.start(request_for())
    code, said = await cli("cancel", episode_id)
    assert code == 0
    assert "will end when a worker responds: no worker is responding on task queue" in " ".join(said.split())
    async with working():
        await client.result(episode_id)
