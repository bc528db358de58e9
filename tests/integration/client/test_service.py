"""What a service meets that uses the client alone: settings, defaults, refusals, encryption."""

import asyncio
import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from temporalio.client import Client

from tests.support.episodes import Working
from tightloop.cli.start import build_request
from tightloop.client import EpisodeRequest, PlanRequest, TightloopClient
from tightloop.client.encryption import PLAIN_CONVERTER
from tightloop.episode.budget import Budget
from tightloop.episode.check import Check
from tightloop.episode.control import EpisodeInput
from tightloop.episode.model import EpisodeOutcome
from tightloop.errors import InvalidRequestError, SettingsError, TightloopError
from tightloop.executor.model import ExecutorChoice
from tightloop.settings import Settings
from worker.build import build_workers
from worker.connect import connect as connect_worker

FILE = """
budget: {max_iterations: 7, warn_at_iteration: 5, max_tokens: 900}
executor: {default: codex, fallback: [person], wall_limit_s: 60, on_crash: ask}
planner: {kind: heuristic}
tracking: {pause_after: 2}
queues: {llm: models}
"""
SECRET = "the-goal-nobody-else-reads"


def wanted(workspace: Path, **changes: Any) -> EpisodeRequest:
    fields: dict[str, Any] = {
        "goal": SECRET,
        "workspace": str(workspace),
        "definition_of_done": (Check(run="true"),),
    }
    return EpisodeRequest(**{**fields, **changes})


@pytest.fixture
def in_force(settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Put settings where the command line finds them: a file of the user, and variables."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    file = tmp_path / "config" / "tightloop" / "settings.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(FILE)
    monkeypatch.setenv("TIGHTLOOP_TEMPORAL__ADDRESS", settings.temporal.address)
    monkeypatch.setenv("TIGHTLOOP_TEMPORAL__TASK_QUEUE", settings.temporal.task_queue)
    monkeypatch.setenv("TIGHTLOOP_BUDGET__MAX_TOKENS", "1000")
    return settings


@pytest.fixture
def sealed(settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """The same server and task queue, for workers and clients that encrypt."""
    monkeypatch.setenv("TIGHTLOOP_HOME", str(tmp_path / uuid4().hex))
    return settings.evolve(temporal=settings.temporal.evolve(authenticate=True))


# -- settings and defaults ---------------------------------------------------------------------------


async def test_connect_without_arguments_uses_what_the_command_line_uses(
    in_force: Settings, working: Working, workspace: Path
) -> None:
    client = await TightloopClient.connect()
    async with working():
        episode_id = await client.start(wanted(workspace, executor=ExecutorChoice(name="scripted", options=STEPS)))
        request = await client.request(episode_id)
        await client.cancel(episode_id)
        await client.result(episode_id)
    assert isinstance(request, EpisodeRequest)
    assert (request.budget.max_iterations, request.budget.max_tokens, request.planner) == (7, 1000, "heuristic")
    assert (request.executor.name, request.executor.fallback) == ("scripted", ("person",))
    assert (request.executor.wall_limit_s, request.executor.on_crash.value) == (60, "ask")
    assert (request.pause_after, request.queues.llm) == (2, "models")


STEPS = {"steps": [{"hang": True}]}


async def test_client_and_command_line_make_the_same_request(in_force: Settings, workspace: Path) -> None:
    client = await TightloopClient.connect()
    await client.start(wanted(workspace, budget=Budget(max_cost_usd=2)), new_id=(one := f"same-{uuid4().hex[:6]}"))
    typed = {"goal": SECRET, "definition_of_done": ["true"], "budget": {"max_cost_usd": 2}}
    request = build_request(client._settings, typed, {"workspace": str(workspace)})
    sent = await _input_of(client, one)
    assert {name: sent[name] for name in EpisodeRequest.model_fields} == request.model_dump(mode="json")


async def _input_of(client: TightloopClient, workflow_id: str) -> dict[str, Any]:
    """Return what Temporal stores as the input, and end the workflow that nobody works on."""
    handle = client._calls.client.get_workflow_handle(workflow_id)
    history = await handle.fetch_history()
    await handle.terminate()
    found: dict[str, Any] = json.loads(
        history.events[0].workflow_execution_started_event_attributes.input.payloads[0].data
    )
    return found


async def test_a_plan_gets_the_queues_of_the_settings(in_force: Settings, workspace: Path) -> None:
    client = await TightloopClient.connect()
    plan_id = await client.start(PlanRequest(workspace=str(workspace), file="plan.yaml"))
    assert (await _input_of(client, plan_id))["queues"]["llm"] == "models"


async def test_settings_in_place_of_an_address_are_refused_with_the_right_spelling() -> None:
    spelling: Any = Settings()
    with pytest.raises(InvalidRequestError, match=r"neither files nor the environment.*settings="):
        await TightloopClient.connect(spelling)


async def test_missing_namespace_is_noticed_when_connecting(settings: Settings) -> None:
    with pytest.raises(SettingsError, match=r"has no namespace 'nowhere'.* setup --namespace nowhere"):
        await TightloopClient.connect(settings.temporal.address, namespace="nowhere")


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: EpisodeRequest(goal=3), "EpisodeRequest: goal: must be a string, not 3"),
        (lambda: EpisodeRequest(workspace=None), "EpisodeRequest: workspace: must be a string, not null"),
        (lambda: EpisodeRequest(workspce="/w"), "unknown field 'workspce'. Did you mean 'workspace'?"),
        (lambda: PlanRequest(sorce="x"), "unknown field 'sorce'. Did you mean 'source'?"),
        (lambda: Budget(max_cost=5), "unknown field 'max_cost'. Did you mean 'max_cost_usd'?"),
        (lambda: Check(run="true", timout_s=5), "unknown field 'timout_s'. Did you mean 'timeout_s'?"),
    ],
)
def test_wrong_argument_is_one_sentence_of_ours(make: Callable[[], object], sentence: str) -> None:
    with pytest.raises(TightloopError) as refused:
        make()
    assert sentence in refused.value.message
    assert "\n" not in refused.value.message


# -- names and commands, at every door ---------------------------------------------------------------

WRONG = [
    ({"executor": {"name": "codx"}}, "unknown executor 'codx'. Did you mean 'codex'?"),
    ({"executor": {"fallback": ["clade"]}}, "unknown executor 'clade'. Did you mean 'claude'?"),
    (
        {"executor": {"name": "codex", "options": {"efort": "low"}}},
        "the executor codex has no option 'efort'. Did you mean 'effort'?",
    ),
    (
        {"executor": {"name": "claude", "options": {"max_turns": "many"}}},
        "the options of the executor claude are not valid: max_turns: must be a whole number",
    ),
    ({"executor": {"name": "person", "options": {"x": 1}}}, "the executor person has no option 'x'. It has no options"),
    ({"definition_of_done": ["pytest -k 'slow"]}, "has an unclosed quote. Put the whole command in"),
    ({"definition_of_done": ["true", " "]}, "a check has no command. Put the whole command in"),
]
MISSPELT = [
    ({"workspce": "/w", "workspace": None}, "unknown field 'workspce'. Did you mean 'workspace'?"),
    ({"gaol": "g", "goal": None}, "unknown field 'gaol'. Did you mean 'goal'?"),
    ({"budget": {"max_cost": 1}}, "unknown field 'budget.max_cost'. Did you mean 'max_cost_usd'?"),
    (
        {"definition_of_done": [{"run": "true", "timout_s": 1}]},
        "unknown field 'definition_of_done.timout_s'. Did you mean 'timeout_s'?",
    ),
]


@pytest.mark.parametrize(("change", "sentence"), WRONG)
async def test_the_client_refuses_what_cannot_work_before_it_starts_anything(
    client: TightloopClient, workspace: Path, change: dict[str, Any], sentence: str
) -> None:
    request = EpisodeRequest.model_validate({**wanted(workspace).model_dump(), **change})
    with pytest.raises(InvalidRequestError) as refused:
        await client.start(request)
    assert sentence in refused.value.message


@pytest.mark.parametrize(("change", "sentence"), WRONG + MISSPELT)
async def test_a_raw_start_is_refused_with_the_nearest_name(
    client: TightloopClient,
    temporal_client: Client,
    settings: Settings,
    working: Working,
    workspace: Path,
    change: dict[str, Any],
    sentence: str,
) -> None:
    queue = settings.temporal.task_queue
    given = {"goal": "g", "workspace": str(workspace), "definition_of_done": ["true"], **change}
    given = {name: value for name, value in given.items() if value is not None}
    async with working():
        handle = await temporal_client.start_workflow("EpisodeWorkflow", given, id=f"raw-{queue}", task_queue=queue)
        result = await client.result(handle.id)
    assert result.outcome is EpisodeOutcome.FAILED
    assert sentence in result.reason
    types = [event.WhichOneof("attributes") for event in (await handle.fetch_history()).events]
    assert not any("activity" in str(one) for one in types)


async def test_a_raw_start_of_a_plan_is_refused_with_the_nearest_name(
    client: TightloopClient, temporal_client: Client, settings: Settings, working: Working, workspace: Path
) -> None:
    queue = settings.temporal.task_queue
    given = {"workspace": str(workspace), "file": "plan.yaml", "max_paralel": 2}
    async with working():
        handle = await temporal_client.start_workflow("PlanWorkflow", given, id=f"raw-{queue}", task_queue=queue)
        result = await client.result(handle.id)
    assert "unknown field 'max_paralel'. Did you mean 'max_parallel'?" in result.reason


async def test_a_field_that_a_newer_client_sends_is_ignored(
    client: TightloopClient, temporal_client: Client, settings: Settings, working: Working, request_for
) -> None:
    queue = settings.temporal.task_queue
    newer = EpisodeInput.of(request_for()).model_dump(mode="json") | {"of_the_next_release": True}
    async with working():
        handle = await temporal_client.start_workflow("EpisodeWorkflow", newer, id=f"newer-{queue}", task_queue=queue)
        assert (await client.result(handle.id)).outcome is EpisodeOutcome.SUCCEEDED


# -- encryption --------------------------------------------------------------------------------------


def plain_client(temporal_client: Client, settings: Settings) -> TightloopClient:
    config = temporal_client.config()
    config["data_converter"] = PLAIN_CONVERTER
    return TightloopClient(Client(**config), settings)


async def test_a_plain_start_is_refused_where_workers_encrypt(
    temporal_client: Client, settings: Settings, sealed: Settings, workspace: Path
) -> None:
    plain, new_id = plain_client(temporal_client, settings), f"plain-{uuid4().hex[:6]}"
    [worker, *_] = build_workers(await connect_worker(sealed), sealed)
    async with worker:
        await _polls(plain, settings)
        for request in (wanted(workspace), PlanRequest(workspace=str(workspace), goal=SECRET)):
            with pytest.raises(SettingsError, match=r"encrypt what Temporal stores.*nothing was sent"):
                await plain.start(request, new_id=new_id)
        with pytest.raises(TightloopError, match="no such episode or plan"):
            await plain.summary(new_id)
        secret = await TightloopClient.connect(settings=sealed)
        episode_id = await secret.start(wanted(workspace, executor=ExecutorChoice(name="scripted", options=STEPS)))
        with pytest.raises(SettingsError, match=r"is encrypted.*nothing was sent"):
            await plain.respond(episode_id, SECRET)
        with pytest.raises(SettingsError, match=r"is encrypted.*nothing was sent"):
            await plain.pause(episode_id, SECRET)
        await secret.cancel(episode_id)
        await secret.result(episode_id)
    history = await temporal_client.get_workflow_handle(episode_id).fetch_history()
    assert SECRET.encode() not in b"".join(event.SerializeToString() for event in history.events)


async def _polls(client: TightloopClient, settings: Settings) -> None:
    async with asyncio.timeout(20):
        while not await client.pollers(settings.temporal.task_queue):
            await asyncio.sleep(0.05)


async def test_a_plain_start_is_refused_where_the_last_episode_is_encrypted_and_no_worker_is_up(
    temporal_client: Client, settings: Settings, sealed: Settings, workspace: Path
) -> None:
    secret = await TightloopClient.connect(settings=sealed)
    episode_id = await secret.start(wanted(workspace))
    plain = plain_client(temporal_client, settings)
    async with asyncio.timeout(20):
        while episode_id not in [row.id for row in await plain.list()]:
            await asyncio.sleep(0.05)
    with pytest.raises(SettingsError, match=r"encrypt what Temporal stores.*nothing was sent"):
        await plain.start(wanted(workspace))
    await temporal_client.get_workflow_handle(episode_id).terminate()


async def test_a_plain_start_goes_on_where_nobody_encrypts(
    temporal_client: Client, settings: Settings, working: Working, request_for
) -> None:
    plain = plain_client(temporal_client, settings)
    async with working():
        episode_id = await plain.start(request_for())
        assert (await plain.result(episode_id)).outcome is EpisodeOutcome.SUCCEEDED


async def test_a_message_that_temporal_cannot_carry_is_refused_and_the_episode_goes_on(
    temporal_client: Client, settings: Settings, working: Working, request_for
) -> None:
    client = TightloopClient(temporal_client, settings)
    async with working():
        episode_id = await client.start(request_for(executor=ExecutorChoice(name="person")))
        async with asyncio.timeout(30):
            async for status in client.watch(episode_id):
                if status.questions:
                    break
        for send in (client.respond, client.pause, client.cancel):
            with pytest.raises(InvalidRequestError, match=r"the message is 3000\d\d\d bytes, but the limit is 1500000"):
                await send(episode_id, "x" * 3_000_000)
        assert "the planner will read the message" in await client.respond(episode_id, "x" * 4_000)
        with pytest.raises(TimeoutError, match=rf"{episode_id} did not end within 0:00:00.1\d* and is still open"):
            await client.result(episode_id, timeout=timedelta(milliseconds=100))
        await client.cancel(episode_id)
        assert (await client.result(episode_id)).outcome is EpisodeOutcome.CANCELLED
