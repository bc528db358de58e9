"""The client and the command line against a real Temporal server, with a small stand-in for the workflow."""

import asyncio
import itertools
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from click.testing import CliRunner
from temporalio import workflow
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import (
    DeleteWorkflowExecutionRequest,
    PauseWorkflowExecutionRequest,
    ResetWorkflowExecutionRequest,
)
from temporalio.client import Client
from temporalio.common import SearchAttributeKey
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.exceptions import ApplicationError
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from tests.support.episodes import eventually
from tightloop.cli.follow import Follower
from tightloop.cli.main import app
from tightloop.client import TightloopClient
from tightloop.episode.checkpoint import CheckpointRecord
from tightloop.episode.control import EpisodeInput, status_of
from tightloop.episode.model import EpisodeOutcome, EpisodeRequest, EpisodeResult, EpisodeState, EpisodeStatus
from tightloop.errors import EpisodeNotFoundError, InvalidRequestError, ServiceUnavailableError, SettingsError
from tightloop.plan.request import PlanRequest
from tightloop.run.core import RunCore, RunTimeline, TimelineLine, TimelinePage
from tightloop.settings import Settings, parse_settings
from worker.server import free_port, temporal_binary, tuning_arguments

STATUS = SearchAttributeKey.for_keyword("TightloopStatus")
PAUSABLE = ["--dynamic-config-value", "frontend.WorkflowPauseEnabled=true"]
WAIT = timedelta(milliseconds=20)


@workflow.defn(name="EpisodeWorkflow")
class StandIn:
    """Answers like an episode and ends as it is told to."""

    @workflow.init
    def __init__(self, request: EpisodeInput) -> None:
        self.input = request
        self.state = request.state or EpisodeState(iteration=1)
        self.status_word = "running"
        self.said: list[Any] = []
        self.ending = ""

    @workflow.run
    async def run(self, request: EpisodeInput) -> EpisodeResult:
        await workflow.wait_condition(lambda: self.ending != "")
        await workflow.wait_condition(workflow.all_handlers_finished)
        if self.ending == "again":
            state = self.state.evolve(iteration=self.state.iteration + 1, runs=self.state.runs + 1)
            workflow.continue_as_new(request.evolve(state=state))
        outcome = EpisodeOutcome(self.ending)
        self.status_word = outcome.value.lower()
        workflow.upsert_search_attributes([STATUS.value_set(self.status_word)])
        result = EpisodeResult(outcome=outcome, reason="as told", iterations=self.state.iteration, checks="2/2")
        if outcome is EpisodeOutcome.FAILED:
            raise ApplicationError("as told", result, type="EpisodeFailed", non_retryable=True)
        return result

    @workflow.signal
    def end(self, how: str) -> None:
        self.ending = how

    @workflow.signal
    def pause(self, word: Any = None) -> None:
        self.said.append(("pause", word))

    @workflow.signal
    def resume(self, word: Any = None) -> None:
        self.said.append(("resume", word))

    @workflow.signal
    def cancel(self, word: Any = None) -> None:
        self.ending = "CANCELLED"

    @workflow.update
    def restore_checkpoint(self, word: Any = None) -> str:
        return f"going back to {word['checkpoint_id']}"

    @restore_checkpoint.validator
    def _check(self, word: Any = None) -> None:
        if word["checkpoint_id"] == "ckpt-9":
            raise ApplicationError(
                "the episode has no checkpoint 'ckpt-9'. Known checkpoints: ckpt-0, ckpt-1", type="InvalidRequestError"
            )

    @workflow.update
    def top_up(self, word: Any = None) -> str:
        return json.dumps(word)

    @workflow.update
    def amend_goal(self, word: Any = None) -> str:
        return json.dumps(word)

    @workflow.update
    def respond(self, word: Any = None) -> str:
        return json.dumps(word)

    @workflow.query
    def status(self) -> EpisodeStatus:
        info = workflow.info()
        return status_of(
            self.input, self.state, RunCore(), episode_id=info.workflow_id, run_id=info.run_id, status=self.status_word
        )

    @workflow.query
    def checkpoints(self) -> list[CheckpointRecord]:
        return [CheckpointRecord(id=f"ckpt-{n}", iteration=n, discarded=n == 0, tree="f" * 40) for n in range(2)]

    @workflow.query
    def timeline(self) -> list[TimelineLine]:
        at = workflow.info().start_time
        return [TimelineLine(at=at, kind=kind, text=json.dumps(word)) for kind, word in self.said]

    @workflow.query
    def events(self, after: int = 0) -> TimelinePage:
        lines = RunTimeline()
        for entry in self.timeline():
            lines.add(entry)
        return lines.page(after)

    @workflow.query
    def request(self) -> EpisodeRequest:
        return EpisodeRequest.of(self.input)


@pytest.fixture(scope="module")
async def server() -> AsyncIterator[WorkflowEnvironment]:
    environment = await WorkflowEnvironment.start_local(
        data_converter=pydantic_data_converter,
        dev_server_existing_path=str(temporal_binary()),
        dev_server_extra_args=tuning_arguments() + PAUSABLE,
    )
    async with environment:
        yield environment


def settings_for(client: Client, **queues: str) -> Settings:
    address = client.service_client.config.target_host
    queue = f"test-{uuid4().hex[:12]}"
    document = {"temporal": {"address": address, "task_queue": queue, "authenticate": False}, "queues": queues}
    return parse_settings(json.dumps(document), {})


@pytest.fixture
def settings(server: WorkflowEnvironment) -> Settings:
    return settings_for(server.client)


@pytest.fixture
def client(server: WorkflowEnvironment, settings: Settings) -> TightloopClient:
    return TightloopClient(server.client, settings, query_timeout=timedelta(seconds=30))


@pytest.fixture
def hasty(server: WorkflowEnvironment, settings: Settings) -> TightloopClient:
    """A client that soon takes a worker for absent."""
    return TightloopClient(server.client, settings, query_timeout=timedelta(seconds=1.5))


Working = Callable[[], AbstractAsyncContextManager[Worker]]


@pytest.fixture
def working(server: WorkflowEnvironment, settings: Settings) -> Working:
    return lambda: worker_for(server.client, settings)


@asynccontextmanager
async def worker_for(client: Client, settings: Settings) -> AsyncIterator[Worker]:
    worker = Worker(
        client,
        task_queue=settings.temporal.task_queue,
        workflows=[StandIn],
        workflow_runner=UnsandboxedWorkflowRunner(),
        sticky_queue_schedule_to_start_timeout=timedelta(seconds=1),
    )
    async with worker:
        yield worker


def a_request(**changes: Any) -> EpisodeRequest:
    fields = {"goal": "make it green", "workspace": "/srv/project", "definition_of_done": ["true"]}
    return EpisodeRequest.model_validate({**fields, **changes})


async def tell(server: WorkflowEnvironment, episode_id: str, how: str) -> None:
    await server.client.get_workflow_handle(episode_id).signal("end", how)


async def test_started_episode_is_listed_with_its_goal_and_has_no_goal_in_its_id(
    client: TightloopClient, working: Working
) -> None:
    async with working():
        episode_id = await client.start(a_request(goal="g" * 300))
        status = await client.status(episode_id)
        async with asyncio.timeout(60):
            while episode_id not in (rows := {row.id: row for row in await client.list("running")}):
                await asyncio.sleep(0.05)
    assert episode_id.startswith("episode-")
    assert len(episode_id) == len("episode-") + 8
    assert (status.status, status.iteration, status.goal) == ("running", 1, "g" * 300)
    row = rows[episode_id]
    assert (row.goal, row.workspace, row.executor, row.closed) == ("g" * 200, "/srv/project", "command", None)


async def test_queues_of_the_settings_fill_what_the_request_leaves_open(server: WorkflowEnvironment) -> None:
    settings = settings_for(server.client, workspace="ws", llm="model")
    client = await TightloopClient.connect(settings=settings)
    async with worker_for(server.client, settings):
        episode_id = await client.start(a_request(queues={"llm": "mine"}))
        request = await client.request(episode_id)
    assert (request.queues.workspace, request.queues.llm, request.queues.executor) == ("ws", "mine", "")


async def test_id_of_an_open_episode_is_refused(client: TightloopClient) -> None:
    episode_id = await client.start(a_request(), new_id=f"nightly-{uuid4().hex[:6]}")
    with pytest.raises(InvalidRequestError, match=r"exists: an episode, running\. .* tightloop cancel nightly-"):
        await client.start(a_request(), new_id=episode_id)


@pytest.mark.parametrize("wrong", ["last", "", "a b", "a..b", "a.lock", "-a", "a/b", "a.", "a\n", "x" * 101])
async def test_id_that_git_or_a_person_would_misread_is_refused(client: TightloopClient, wrong: str) -> None:
    with pytest.raises(InvalidRequestError, match="is not a valid episode id"):
        await client.start(a_request(), new_id=wrong)


@pytest.mark.parametrize(
    ("ending", "status", "code"),
    [("SUCCEEDED", "succeeded", 0), ("FAILED", "failed", 1), ("CANCELLED", "cancelled", 1)],
)
async def test_every_outcome_has_a_result_and_an_exit_code(
    server: WorkflowEnvironment, client: TightloopClient, working: Working, ending: str, status: str, code: int
) -> None:
    async with working():
        episode_id = await client.start(a_request())
        await tell(server, episode_id, ending)
        result = await client.result(episode_id)
        seen = await client.status(episode_id)
        exit_code, out, _ = await run_cli(server, "watch", episode_id)
    assert (result.outcome, result.reason, result.checks) == (EpisodeOutcome(ending), "as told", "2/2")
    assert (seen.status, seen.phase.value, seen.reason, seen.checks) == (status, "CLOSED", "as told", "2/2")
    assert exit_code == code
    assert "as told" in out


async def test_end_that_temporal_made_counts_as_cancelled(
    server: WorkflowEnvironment, client: TightloopClient, working: Working
) -> None:
    async with working():
        killed, cancelled = [await client.start(a_request()) for _ in range(2)]
        await client.status(cancelled)
        await server.client.get_workflow_handle(killed).terminate(reason="out of money")
        await server.client.get_workflow_handle(cancelled).cancel()
        results = [await client.result(name) for name in (killed, cancelled)]
        words = [(await client.status(name)).status for name in (killed, cancelled)]
    assert [result.outcome for result in results] == [EpisodeOutcome.CANCELLED] * 2
    assert results[0].reason == "terminated in Temporal: out of money"
    assert words == ["terminated", "cancelled"]


async def test_closed_episode_can_be_looked_at_without_a_worker(
    server: WorkflowEnvironment, client: TightloopClient, hasty: TightloopClient, working: Working
) -> None:
    async with working():
        episode_id = await client.start(a_request())
        await tell(server, episode_id, "SUCCEEDED")
        await client.result(episode_id)
    status = await hasty.status(episode_id)
    exported = await run_cli(server, "export", episode_id)
    assert (status.status, status.outcome, status.goal) == ("succeeded", EpisodeOutcome.SUCCEEDED, "make it green")
    document = json.loads(exported[1])
    assert document["status"]["status"] == "succeeded"
    assert document["history"]["events"][0]["eventType"] == "EVENT_TYPE_WORKFLOW_EXECUTION_STARTED"
    assert "no worker is responding" in exported[2]


async def test_open_episode_without_a_worker_says_which_queue_needs_one(
    hasty: TightloopClient, settings: Settings
) -> None:
    episode_id = await hasty.start(a_request())
    with pytest.raises(
        ServiceUnavailableError, match=f"no worker is responding on task queue '{settings.temporal.task_queue}'"
    ):
        await hasty.status(episode_id)


async def test_unknown_id_names_the_nearest_known_ones(client: TightloopClient) -> None:
    known = await client.start(a_request(), new_id=f"nearest-{uuid4().hex}")
    wrong = known[:-1] + "z"
    async with asyncio.timeout(60):
        while not any(row.id == known for row in await client.list()):
            await asyncio.sleep(0.05)
    for call in (client.status(wrong), client.pause(wrong), client.respond(wrong, "x"), client.history(wrong)):
        with pytest.raises(EpisodeNotFoundError, match=known):
            await call


async def test_beginning_of_an_id_and_last_mean_an_episode(client: TightloopClient) -> None:
    first = await client.start(a_request(), new_id=f"alpha-{uuid4().hex}")
    last = await client.start(a_request())
    async with asyncio.timeout(60):
        while (rows := [row.id for row in await client.list()])[:1] != [last] or first not in rows:
            await asyncio.sleep(0.05)
    assert await client.resolve("last") == last
    assert await client.resolve(last.removeprefix("episode-")) == last
    assert await client.resolve(first[:20]) == first
    other = await client.start(a_request(), new_id=f"{first[:-1]}{'0' if first[-1] != '0' else '1'}")
    async with asyncio.timeout(60):
        while other not in [row.id for row in await client.list()]:
            await asyncio.sleep(0.05)
    with pytest.raises(InvalidRequestError, match="matches 2 ids"):
        await client.resolve(first[:-1])


async def test_an_id_of_which_temporal_deleted_the_last_run_is_not_taken_for_another(
    client: TightloopClient, server: WorkflowEnvironment
) -> None:
    """Temporal deletes one run at a time."""
    name = f"cut-{uuid4().hex}"
    longer = await client.start(a_request(), new_id=f"{name}-more")
    handle = server.client.get_workflow_handle(await client.start(a_request(), new_id=name))
    await handle.terminate()
    await client.start(a_request(), new_id=name, replace=True)
    gone = (await handle.describe()).run_id
    await handle.terminate()
    where = WorkflowExecution(workflow_id=name, run_id=gone)
    asked = DeleteWorkflowExecutionRequest(namespace=server.client.namespace, workflow_execution=where)
    await server.client.workflow_service.delete_workflow_execution(asked)
    async with asyncio.timeout(60):
        while True:
            runs = [row.run_id async for row in server.client.list_workflows(f'WorkflowId="{name}"')]
            if len(runs) == 1 and gone not in runs and longer in [row.id for row in await client.list()]:
                break
            await asyncio.sleep(0.05)
    assert await client.resolve(name) == name


async def test_refusal_of_the_workflow_reaches_the_caller_in_its_own_words(
    client: TightloopClient, working: Working
) -> None:
    async with working():
        episode_id = await client.start(a_request())
        assert await client.restore(episode_id, "ckpt-1") == "going back to ckpt-1"
        with pytest.raises(InvalidRequestError, match=r"no checkpoint 'ckpt-9'\. Known checkpoints: ckpt-0, ckpt-1"):
            await client.restore(episode_id, "ckpt-9")
        with pytest.raises(InvalidRequestError, match="ckpt-9"):
            await client.resume(episode_id, checkpoint_id="ckpt-9")


async def test_words_of_the_operator_arrive_as_the_workflow_reads_them(
    client: TightloopClient, working: Working
) -> None:
    async with working():
        episode_id = await client.start(a_request())
        await client.pause(episode_id, "lunch", by="ada")
        await client.resume(episode_id, note="go", by="ada")
        await client.resume(episode_id, checkpoint_id="1")
        said = [json.loads(entry.text) for entry in await client.timeline(episode_id)]
        topped_up = await client.top_up(episode_id, iterations=5, cost_usd=1.5, by="ada")
        amended = await client.amend(episode_id, goal="less", definition_of_done=["true"])
        answered = await client.respond(episode_id, "use lib", by="ada")
    assert said[0] == {"reason": "lunch", "by": "ada"}
    assert said[1] == {"note": "go", "by": "ada"}
    assert said[2]["checkpoint_id"] == "ckpt-1"
    assert json.loads(topped_up) == {"by": "ada", "iterations": 5, "cost_usd": 1.5}
    assert json.loads(amended)["definition_of_done"][0]["run"] == "true"
    assert json.loads(answered) == {"text": "use lib", "by": "ada"}


async def test_message_to_a_closed_episode_is_refused_with_the_way_on(
    client: TightloopClient, working: Working
) -> None:
    async with working():
        episode_id = await client.start(a_request())
        await client.cancel(episode_id)
        await client.result(episode_id)
        for call in (client.pause(episode_id), client.respond(episode_id, "x")):
            with pytest.raises(InvalidRequestError, match="tightloop restore"):
                await call


async def test_closed_episode_is_opened_again_from_a_checkpoint(
    server: WorkflowEnvironment, client: TightloopClient, working: Working
) -> None:
    async with working():
        episode_id = await client.start(a_request())
        await client.cancel(episode_id)
        await client.result(episode_id)
        with pytest.raises(InvalidRequestError, match="no checkpoint 'ckpt-7'"):
            await client.restore(episode_id, "ckpt-7")
        await client.restore(episode_id, "1", reason="wrong turn", by="ada")
        status = await client.status(episode_id)
        started = await started_with(server.client, episode_id)
    assert status.status == "running"
    assert started.restore is not None
    assert (started.restore.checkpoint_id, started.restore.reason, started.restore.by) == (
        "ckpt-1",
        "wrong turn",
        "ada",
    )
    assert started.goal == "make it green"


async def test_fork_is_a_new_episode_in_a_worktree(
    server: WorkflowEnvironment, client: TightloopClient, working: Working
) -> None:
    async with working():
        episode_id = await client.start(a_request())
        forked = await client.fork(episode_id, "ckpt-1")
        started = await started_with(server.client, forked)
        old = await client.status(episode_id)
    assert forked != episode_id
    assert started.worktree
    assert started.restore is not None
    assert (started.restore.episode_id, started.restore.checkpoint_id) == (episode_id, "ckpt-1")
    assert old.status == "running"


async def started_with(client: Client, episode_id: str) -> EpisodeInput:
    history = await client.get_workflow_handle(episode_id).fetch_history()
    payload = history.events[0].workflow_execution_started_event_attributes.input.payloads[0]
    return EpisodeInput.model_validate_json(payload.data)


async def test_watch_and_result_go_on_through_new_runs_resets_and_a_missing_worker(
    server: WorkflowEnvironment, client: TightloopClient, hasty: TightloopClient, working: Working
) -> None:
    seen: list[EpisodeStatus] = []
    silences: list[str] = []
    episode_id = await client.start(a_request())

    async def follow() -> None:
        async for status in hasty.watch(episode_id, poll=WAIT, on_silence=lambda e: silences.append(e.message)):
            seen.append(status)

    watching = asyncio.create_task(follow())
    waiting = asyncio.create_task(client.result(episode_id))
    async with asyncio.timeout(120):
        while not silences:
            await asyncio.sleep(0.05)
        async with working():
            await tell(server, episode_id, "again")
            while not seen or seen[-1].runs < 2:
                await asyncio.sleep(0.05)
            await reset(server.client, episode_id)
            await tell(server, episode_id, "SUCCEEDED")
            await watching
            result = await waiting
    assert "no worker is responding" in silences[0]
    assert seen[-1].status == "succeeded"
    assert result.outcome is EpisodeOutcome.SUCCEEDED
    assert all(one != two for one, two in itertools.pairwise(seen))


async def test_who_watches_is_told_once_that_nobody_answers(
    client: TightloopClient, hasty: TightloopClient, capsys: pytest.CaptureFixture[str]
) -> None:
    episode_id = await client.start(a_request())
    with suppress(TimeoutError):
        async with asyncio.timeout(8):
            await Follower(hasty, episode_id).run(as_json=True)
    assert capsys.readouterr().err.count("still trying") == 1


async def reset(client: Client, episode_id: str) -> None:
    description = await client.get_workflow_handle(episode_id).describe()
    await client.workflow_service.reset_workflow_execution(
        ResetWorkflowExecutionRequest(
            namespace=client.namespace,
            workflow_execution=WorkflowExecution(workflow_id=episode_id, run_id=description.run_id),
            reason="stuck",
            workflow_task_finish_event_id=3,
            request_id=uuid4().hex,
        )
    )


async def test_watch_survives_a_restart_of_the_server(tmp_path: Path) -> None:
    port = free_port()
    seen: list[EpisodeStatus] = []
    silences: list[str] = []

    async def start() -> WorkflowEnvironment:
        return await WorkflowEnvironment.start_local(
            data_converter=pydantic_data_converter,
            port=port,
            dev_server_existing_path=str(temporal_binary()),
            dev_server_database_filename=str(tmp_path / "temporal.db"),
            dev_server_extra_args=tuning_arguments(),
        )

    first = await start()
    settings = settings_for(first.client)
    client = await TightloopClient.connect(settings=settings)
    episode_id = await client.start(a_request())

    async def follow() -> None:
        async for status in client.watch(episode_id, poll=WAIT, on_silence=lambda e: silences.append(e.message)):
            seen.append(status)

    watching = asyncio.create_task(follow())
    async with asyncio.timeout(150), worker_for(first.client, settings):
        while not seen:
            await asyncio.sleep(0.05)
        await first.shutdown()
        while not silences:
            await asyncio.sleep(0.05)
        second = await start()
        await tell(second, episode_id, "SUCCEEDED")
        await watching
    await second.shutdown()
    assert f"cannot reach Temporal at 127.0.0.1:{port}" in silences[0].replace("localhost", "127.0.0.1")
    assert seen[-1].status == "succeeded"


async def test_episode_that_temporal_itself_paused_is_shown_and_explained(
    server: WorkflowEnvironment, client: TightloopClient, working: Working
) -> None:
    async with working():
        episode_id = await client.start(a_request())
        await client.status(episode_id)
        await server.client.workflow_service.pause_workflow_execution(
            PauseWorkflowExecutionRequest(
                namespace="default", workflow_id=episode_id, reason="hold it", request_id=uuid4().hex
            )
        )
        status = await client.status(episode_id)
        with pytest.raises(InvalidRequestError, match="temporal workflow unpause"):
            await client.respond(episode_id, "x")
        with pytest.raises(InvalidRequestError, match="temporal workflow unpause"):
            await client.checkpoints(episode_id)
        async with asyncio.timeout(60):
            while not any(row.id == episode_id for row in await client.list("paused")):
                await asyncio.sleep(0.05)
        await server.client.get_workflow_handle(episode_id).terminate()
    assert status.status == "paused"
    assert status.questions
    assert status.questions[0].title == "paused in Temporal: hold it"


async def test_namespace_without_our_search_attributes_is_explained(tmp_path: Path) -> None:
    environment = await WorkflowEnvironment.start_local(dev_server_existing_path=str(temporal_binary()))
    async with environment:
        client = await TightloopClient.connect(settings=settings_for(environment.client))
        assert set(await client.missing_search_attributes()) == {
            "TightloopStatus",
            "TightloopIteration",
            "TightloopPauseKind",
        }
        with pytest.raises(SettingsError) as refused:
            await client.start(a_request())
        assert await client.list() == ()
        # As a person pastes it.
        command = refused.value.message.partition("by hand: ")[2]
        address = environment.client.service_client.config.target_host
        variables = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "TIGHTLOOP_TEMPORAL__ADDRESS": address,
        }
        done = await asyncio.to_thread(
            subprocess.run, ["sh", "-c", command], env=variables, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert await client.missing_search_attributes() == ()


async def test_wrong_namespace_is_explained(server: WorkflowEnvironment) -> None:
    settings = settings_for(server.client)
    wrong = settings.evolve(temporal=settings.temporal.evolve(namespace="nowhere"))
    config = server.client.config()
    config["namespace"] = "nowhere"
    client = TightloopClient(Client(**config), wrong)
    for call in (client.list(), client.status("x"), client.start(a_request())):
        with pytest.raises(SettingsError, match="has no namespace 'nowhere'"):
            await call


async def run_cli(server: WorkflowEnvironment, *arguments: str) -> tuple[int, str, str]:
    address = server.client.service_client.config.target_host
    result = await asyncio.to_thread(CliRunner().invoke, app, ["--address", address, *arguments])
    return result.exit_code, result.stdout, result.stderr


async def test_command_line_reads_are_one_json_document(
    server: WorkflowEnvironment, client: TightloopClient, working: Working
) -> None:
    async with working():
        episode_id = await client.start(a_request())
        documents = {}
        for command in ("status", "checkpoints", "timeline"):
            code, out, _ = await run_cli(server, command, episode_id, "--json")
            assert code == 0
            documents[command] = json.loads(out)
        code, out, _ = await run_cli(server, "list", "--json", "--limit", "1")
        shown = await run_cli(server, "checkpoints", episode_id)
        everything = await run_cli(server, "checkpoints", episode_id, "--all")
    assert documents["status"]["episode_id"] == episode_id
    assert [record["id"] for record in documents["checkpoints"]] == ["ckpt-0", "ckpt-1"]
    assert documents["timeline"] == []
    assert len(json.loads(out)) == 1
    assert "ckpt-0" not in shown[1]
    assert "ckpt-0" in everything[1]


async def test_command_line_steers_an_episode(
    server: WorkflowEnvironment, settings: Settings, working: Working, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TIGHTLOOP_TEMPORAL__TASK_QUEUE", settings.temporal.task_queue)
    async with working():
        code, out, _ = await run_cli(
            server, "start", "make it green", "--workspace", str(tmp_path), "--done", "true", "--json"
        )
        episode_id = json.loads(out)["id"]
        changes = ["--executor", "command", "--executor-option", 'argv=["agent", "{plan_file}"]']
        _, amended, _ = await run_cli(server, "amend", episode_id, *changes)
        for command in (
            ["pause", episode_id, "--reason", "lunch"],
            ["resume", episode_id],
            ["respond", episode_id, "use lib"],
            ["top-up", episode_id, "--iterations", "5"],
            ["amend", episode_id, "--goal", "less"],
            ["restore", episode_id, "1"],
            ["fork", episode_id, "1"],
            ["cancel", episode_id],
        ):
            code, out, error = await run_cli(server, *command)
            assert (code, error) == (0, "")
            assert out.strip()
        code, out, _ = await run_cli(server, "status", episode_id)
    assert code == 0
    assert "cancelled" in out
    assert json.loads(amended)["executor"]["options"] == {"argv": ["agent", "{plan_file}"]}


async def test_command_that_is_given_one_of_the_other_kind_says_so(
    server: WorkflowEnvironment, client: TightloopClient
) -> None:
    episode_id = await client.start(a_request())
    code, _, error = await run_cli(server, "plan", "show", episode_id)
    assert (code, error) == (
        2,
        f"error: {episode_id} is an episode, not a plan. To see its status, run: tightloop status {episode_id}\n",
    )


async def test_id_of_the_other_kind_never_means_what_that_one_started(
    server: WorkflowEnvironment, settings: Settings, client: TightloopClient
) -> None:
    plan_id = await client.start(PlanRequest(workspace="/srv/app", source="id: p\nsteps: [{id: a}]"))
    child = await server.client.start_workflow(
        "EpisodeWorkflow",
        a_request(),
        id=f"{plan_id}.hand.1",
        task_queue=settings.temporal.task_queue,
    )
    async with asyncio.timeout(30):
        while child.id not in [row.id for row in await client.list()]:
            await asyncio.sleep(0.1)
    code, _, error = await run_cli(server, "amend", plan_id, "--goal", "x")
    assert (code, error) == (
        2,
        f"error: {plan_id} is a plan, not an episode. To see its status, run: tightloop status {plan_id}\n",
    )
    history = await child.fetch_history()
    assert not [event for event in history.events if event.HasField("workflow_execution_signaled_event_attributes")]


async def test_replay_of_nothing_names_what_it_could_be(server: WorkflowEnvironment) -> None:
    code, _, error = await run_cli(server, "replay", "nothing")
    assert code == 1
    assert error.startswith("error: no such file, episode or plan: 'nothing'. List runs with: ")


async def test_doctor_finds_server_attributes_and_workers(
    server: WorkflowEnvironment,
    settings: Settings,
    client: TightloopClient,
    working: Working,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TIGHTLOOP_TEMPORAL__TASK_QUEUE", settings.temporal.task_queue)
    name = f"workers on {settings.temporal.task_queue}"

    async def diagnosed() -> tuple[int, dict[str, bool]]:
        code, told, _ = await run_cli(server, "doctor", "--json")
        return code, {row["name"]: row["ok"] for row in json.loads(told)}

    async def with_worker() -> tuple[int, dict[str, bool]] | None:
        # The server tells a worker a moment after it came.
        code, found = await diagnosed()
        return (code, found) if found[name] else None

    assert not (await diagnosed())[1][name]
    async with working():
        await client.status(await client.start(a_request()))
        code, found = await eventually(with_worker, seconds=90)
    # This worker only runs workflows, so that an episode would wait.
    assert (code, found["workers for workspaces"]) == (1, False)
    assert found["search attributes"]
    assert found["Temporal server"]
