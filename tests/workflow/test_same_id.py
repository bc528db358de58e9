"""An id that has been used: nothing that ended under it is hidden or written over."""

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest
from click.testing import CliRunner
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.testing import WorkflowEnvironment

from tests.support.doubles import ScriptedPlanner
from tests.support.episodes import Git, Working, eventually
from tightloop.cli.main import app
from tightloop.client import TightloopClient
from tightloop.episode.model import EpisodeRequest
from tightloop.errors import IdTakenError
from tightloop.host import store_folder
from tightloop.plan.request import PlanRequest
from tightloop.settings import Settings
from worker.build import build_adapters, build_workers
from worker.connect import DATA_CONVERTER
from worker.replay import fetch_history, replay
from worker.server import temporal_binary, tuning_arguments

TWO_LINES = "test $(wc -l < log.txt) -ge 2"
FOUR_LINES = "test $(wc -l < log.txt) -ge 4"
PLAN = 'id: p\nsteps:\n  - {id: one, shell: {run: "echo one >> log.txt"}}\n'
Requests = Callable[..., EpisodeRequest]


async def start_with_temporal(settings: Settings, workflow_type: str, name: str, given: dict[str, object]) -> None:
    """`temporal workflow start`, as an operator types it."""
    temporal = settings.temporal
    where = ["--address", temporal.address, "-w", name, "-t", temporal.task_queue, "--type", workflow_type]
    command = [str(temporal_binary()), "workflow", "start", *where, "-i", json.dumps(given)]
    await asyncio.to_thread(subprocess.run, command, check=True, capture_output=True, timeout=60)


@pytest.fixture
async def forgetful(settings: Settings) -> AsyncIterator[TightloopClient]:
    """A client of another Temporal server, with a worker: it knows of no id, as after the end of their retention."""
    server = await WorkflowEnvironment.start_local(
        data_converter=DATA_CONVERTER,
        dev_server_existing_path=str(temporal_binary()),
        dev_server_extra_args=tuning_arguments(),
    )
    async with server, AsyncExitStack() as stack:
        chosen = replace(build_adapters(server.client, settings), planners=lambda _kind: ScriptedPlanner())
        for worker in build_workers(server.client, settings, adapters=chosen):
            await stack.enter_async_context(worker)
        yield TightloopClient(server.client, settings)


async def raw_status(client: TightloopClient, name: str, status: WorkflowExecutionStatus) -> bool:
    """What Temporal says of the newest run."""
    return (await client._calls.client.get_workflow_handle(name).describe()).status is status


def refs(workspace: Path, git: Git, name: str) -> set[str]:
    """The checkpoints of an episode; `current` is what is on disk, `result` the newest result."""
    lines = git(store_folder(workspace), "for-each-ref", f"refs/tightloop/{name}").splitlines()
    return {line for line in lines if not line.endswith(("/current", "/result"))}


async def finished(client: TightloopClient, request: EpisodeRequest) -> str:
    name = await client.start(request, new_id=f"nightly-{uuid4().hex[:6]}")
    await client.result(name)
    return name


async def test_id_of_a_finished_episode_is_refused_and_the_message_says_how_to_go_on(
    client: TightloopClient, working: Working, request_for: Requests
) -> None:
    async with working():
        name = await finished(client, request_for(definition_of_done=[TWO_LINES]))
        with pytest.raises(IdTakenError) as refused:
            await client.start(request_for(goal="another one"), new_id=name)
        with pytest.raises(IdTakenError):
            await client.start(PlanRequest(workspace="/srv/p", source=PLAN), new_id=name)
        with pytest.raises(IdTakenError):
            await client.fork(name, "ckpt-1", name)
        status, checkpoints = await client.status(name), await client.checkpoints(name)
    assert f"{name} already exists: an episode, succeeded" in refused.value.message
    assert "'write three lines'" in refused.value.message
    assert f"tightloop restore {name} CKPT" in refused.value.message
    assert "--replace" in refused.value.message
    assert (status.status, [one.id for one in checkpoints]) == ("succeeded", ["ckpt-0", "ckpt-1", "ckpt-2"])


async def test_replacing_an_episode_keeps_what_it_left(
    client: TightloopClient, working: Working, request_for: Requests, settings: Settings, workspace: Path
) -> None:
    async with working():
        name = await finished(client, request_for(definition_of_done=[TWO_LINES]))
        options = ["--address", settings.temporal.address, "start", "more", "--workspace", str(workspace)]
        missing = await asyncio.to_thread(CliRunner().invoke, app, [*options, "--done", "true", "--replace"])
        steps = request_for(definition_of_done=["test $(wc -l < log.txt) -ge 3"], goal="another one")
        await client.start(steps, new_id=name, replace=True)
        await client.result(name)
        checkpoints = await client.checkpoints(name)
        fork = await client.fork(name, "ckpt-1")
        await client.result(fork)
        opened = await client.checkpoints(fork)
    assert (missing.exit_code, "--id ID --replace" in missing.output) == (2, True)
    assert [one.id for one in checkpoints] == [f"ckpt-{number}" for number in range(5)]
    assert [one.discarded for one in checkpoints] == [True, True, True, False, False]
    assert opened[1].tree == checkpoints[1].tree


async def test_raw_start_under_the_id_of_a_finished_episode_hides_nothing(
    client: TightloopClient,
    temporal_client: Client,
    working: Working,
    request_for: Requests,
    settings: Settings,
    workspace: Path,
    git: Git,
) -> None:
    async with working():
        name = await finished(client, request_for(definition_of_done=[TWO_LINES]))
        kept = refs(workspace, git, name)
        given = request_for(goal="another one").model_dump(mode="json")
        await start_with_temporal(settings, "EpisodeWorkflow", name, given)
        await eventually(lambda: raw_status(client, name, WorkflowExecutionStatus.FAILED))
        status, checkpoints = await client.status(name), await client.checkpoints(name)
        [listed] = [row for row in await client.list() if row.id == name]
        replayed = await replay(await fetch_history(temporal_client, name))
        sentence = await client.restore(name, "ckpt-1")
        await client.result(name)
        again = await client.status(name)
    assert (status.status, status.goal, listed.status) == ("succeeded", "write three lines", "succeeded")
    assert [one.id for one in checkpoints] == ["ckpt-0", "ckpt-1", "ckpt-2"]
    assert [entry.kind for entry in replayed.timeline] == ["opened", "iteration", "iteration", "closed"]
    assert kept <= refs(workspace, git, name)
    assert sentence == f"reopened {name} (previously succeeded) from ckpt-1"
    assert (again.goal, again.status) == ("write three lines", "succeeded")


async def test_id_that_temporal_has_forgotten_is_refused_by_the_host(
    client: TightloopClient,
    working: Working,
    request_for: Requests,
    forgetful: TightloopClient,
    workspace: Path,
    git: Git,
) -> None:
    async with working():
        name = await finished(client, request_for(definition_of_done=[TWO_LINES]))
    kept = refs(workspace, git, name)
    await forgetful.start(request_for(), new_id=name)
    refused = await forgetful.result(name)
    unchanged = refs(workspace, git, name)
    await forgetful.start(request_for(), new_id=name, replace=True)
    await forgetful.result(name)
    checkpoints = await forgetful.checkpoints(name)
    assert f"episode {name} already exists in {workspace}, with 3 checkpoints (latest: ckpt-2" in refused.reason
    assert kept == unchanged
    assert f"tightloop restore {name} ckpt-2" in refused.reason
    assert [one.id for one in checkpoints][:3] == ["ckpt-0", "ckpt-1", "ckpt-2"]


async def test_id_of_a_plan_is_refused_until_it_is_asked_for(
    client: TightloopClient, working: Working, workspace: Path, settings: Settings, forgetful: TightloopClient
) -> None:
    request = PlanRequest(workspace=str(workspace), source=PLAN)
    async with working():
        name = await client.start(request, new_id=f"nightly-{uuid4().hex[:6]}")
        await client.result(name)
        with pytest.raises(IdTakenError, match=f"a plan, completed.*tightloop plan run --again {name}"):
            await client.start(request, new_id=name)
        await start_with_temporal(settings, "PlanWorkflow", name, request.model_dump(mode="json"))
        await eventually(lambda: raw_status(client, name, WorkflowExecutionStatus.FAILED))
        assert (await client.status(name)).status == "completed"
    await forgetful.start(request, new_id=name)
    refused = await forgetful.result(name)
    await forgetful.start(request, new_id=name, replace=True)
    again = await forgetful.result(name)
    assert f"plan {name} already exists in {workspace}" in refused.reason
    assert again.outcome.value == "COMPLETED"
    assert (workspace / "log.txt").read_text() == "one\n"


async def test_episode_started_with_temporals_own_command_line_is_listed_and_compared_from_anywhere(
    client: TightloopClient,
    working: Working,
    request_for: Requests,
    settings: Settings,
    workspace: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    name = f"raw-{uuid4().hex[:6]}"
    async with working():
        given = request_for(definition_of_done=[TWO_LINES]).model_dump(mode="json")
        await start_with_temporal(settings, "EpisodeWorkflow", name, given)
        await eventually(lambda: raw_status(client, name, WorkflowExecutionStatus.COMPLETED))
        [row] = [row for row in await client.list() if row.id == name]
        diff = ["--address", settings.temporal.address, "diff", name, "1", "2"]
        compared = await asyncio.to_thread(CliRunner().invoke, app, diff)
        monkeypatch.setenv("TIGHTLOOP_HOME", str(tmp_path / "another-host"))
        elsewhere = await asyncio.to_thread(CliRunner().invoke, app, diff)
    assert (row.goal, row.workspace, row.executor) == ("write three lines", str(workspace), "scripted")
    assert "+2" in compared.output
    assert elsewhere.exit_code == 1
    assert f"{name} for {workspace}" in elsewhere.output
    assert "on the workspace's host" in elsewhere.output


async def raw_answer(client: TightloopClient, name: str) -> dict[str, object]:
    """What `temporal workflow query --type status` prints."""
    answer: dict[str, object] = await client._calls.client.get_workflow_handle(name).query("status")
    return answer


@pytest.mark.parametrize("wrong", [{"workspace": "/nowhere/at/all"}, {"goal": ""}])
async def test_raw_start_that_is_refused_says_why_and_leaves_its_id_free(
    client: TightloopClient, working: Working, request_for: Requests, settings: Settings, wrong: dict[str, object]
) -> None:
    name = f"raw-{uuid4().hex[:6]}"
    async with working():
        await finished(client, request_for(definition_of_done=[TWO_LINES]))
        given = request_for(definition_of_done=[FOUR_LINES]).model_dump(mode="json")
        for _ in range(2):
            await start_with_temporal(settings, "EpisodeWorkflow", name, given | wrong)
            await eventually(lambda: raw_status(client, name, WorkflowExecutionStatus.FAILED))
        seen, reason = await raw_answer(client, name), (await client.result(name)).reason
        last = await eventually(lambda: is_listed(client, name)) and await client.resolve("last")
        told = [event.text for event in await client.timeline(name)]
        await client.start(request_for(definition_of_done=[FOUR_LINES]), new_id=name)
        again = await client.result(name)
        with pytest.raises(IdTakenError, match="an episode, succeeded"):
            await client.start(request_for(), new_id=name)
        [listed] = [row for row in await client.list() if row.id == name]
    assert (seen["status"], seen["phase"], seen["reason"]) == ("failed", "CLOSED", reason)
    assert reason
    assert told[-1] == f"FAILED: {reason}"
    # Others may have begun something meanwhile.
    assert last != name
    assert (again.outcome.value, listed.status) == ("SUCCEEDED", "succeeded")


async def is_listed(client: TightloopClient, name: str) -> bool:
    return any(row.id == name and row.status == "failed" for row in await client.list())


async def test_plan_that_is_refused_says_why_and_leaves_its_id_free(
    client: TightloopClient, working: Working, workspace: Path, tmp_path: Path
) -> None:
    name = f"nightly-{uuid4().hex[:6]}"
    async with working():
        await client.start(PlanRequest(workspace=str(tmp_path / "missing"), source=PLAN), new_id=name)
        refused = await client.result(name)
        seen = await raw_answer(client, name)
        await client.start(PlanRequest(workspace=str(workspace), source=PLAN), new_id=name)
        again = await client.result(name)
        status = await client.status(name)
    assert (seen["status"], seen["phase"], seen["reason"]) == ("failed", "CLOSED", refused.reason)
    assert "missing" in refused.reason
    assert (again.outcome.value, status.status) == ("COMPLETED", "completed")
