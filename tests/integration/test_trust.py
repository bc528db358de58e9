"""Attacks of a neighbour who reaches Temporal's port and has no key: nothing follows, and victims go on."""

import asyncio
import dataclasses
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from temporalio.api.common.v1 import Payload, Payloads
from temporalio.api.enums.v1 import EventType
from temporalio.api.failure.v1 import ApplicationFailureInfo, Failure
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import (
    PollActivityTaskQueueRequest,
    RespondActivityTaskCompletedRequest,
    RespondActivityTaskFailedRequest,
)
from temporalio.client import (
    ActivityFailureError,
    Client,
    WorkflowFailureError,
    WorkflowHandle,
    WorkflowUpdateFailedError,
)
from temporalio.common import RawValue, WorkflowIDReusePolicy
from temporalio.converter import DataConverter, PayloadCodec

from gateway.ui import application, codec_access
from tests.support.doubles import ScriptedPlanner
from tests.support.episodes import APPEND, BoundedClient, eventually, scripted
from tests.support.fenced import fenced
from tests.support.sandboxes import open_folder
from tests.support.ui_server import serving
from tightloop.client.encryption import data_converter, operator_codec
from tightloop.episode.model import EpisodeOutcome, EpisodeRequest, EpisodeStatus
from tightloop.errors import InvalidRequestError
from tightloop.settings import Settings
from worker.build import build_adapters, build_workers
from worker.replay import replay
from worker.server import free_port, temporal_binary

NOBODY = 65534
PLAIN = {"encoding": b"json/plain"}
SOON = timedelta(seconds=15)


class Installation:
    """Settings, keys, a worker and a client of one person."""

    def __init__(self, client: Client, settings: Settings, home: Path) -> None:
        self.home = home
        privacy = settings.privacy.evolve(keys_file=str(home / "keys.json"))
        self.settings = settings.evolve(privacy=privacy, temporal=settings.temporal.evolve(authenticate=True))
        self.converter = data_converter(self.settings, home, claims=True)
        self.temporal = with_converter(client, self.converter)
        self.client = BoundedClient(self.temporal, self.settings)

    @property
    def queue(self) -> str:
        return self.settings.temporal.task_queue

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        adapters = build_adapters(self.temporal, self.settings)
        adapters = dataclasses.replace(adapters, planners=lambda _kind: ScriptedPlanner())
        async with AsyncExitStack() as stack:
            for worker in build_workers(self.temporal, self.settings, adapters=adapters):
                await stack.enter_async_context(worker)
            yield

    async def paused(self, request: EpisodeRequest) -> str:
        """Start an episode and let it pause before it does anything."""
        episode_id = await self.client.start(request)
        await self.client.pause(episode_id, "wait for the neighbour")

        async def is_paused() -> EpisodeStatus | None:
            status = await self.client.status(episode_id)
            assert isinstance(status, EpisodeStatus)
            return status if status.status == "paused" else None

        await eventually(is_paused)
        return episode_id

    async def finish(self, episode_id: str) -> None:
        await self.client.resume(episode_id)
        assert (await self.client.result(episode_id)).outcome is EpisodeOutcome.SUCCEEDED


class AsItIs(PayloadCodec):
    """Sends payloads as they are, and reads what comes."""

    def __init__(self, reading: PayloadCodec) -> None:
        self._reading = reading

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return list(payloads)

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return await self._reading.decode(payloads)


def with_converter(client: Client, converter: DataConverter) -> Client:
    """The same connection with another converter."""
    config = client.config()
    config["data_converter"] = converter
    return Client(**config)


@pytest.fixture
def mine(temporal_client: Client, settings: Settings, tmp_path: Path) -> Installation:
    return Installation(temporal_client, settings, tmp_path / "state")


@pytest.fixture
def neighbour(temporal_client: Client) -> Client:
    """A client without keys."""
    return temporal_client


RequestFor = Callable[..., EpisodeRequest]


async def payloads_of(handle: WorkflowHandle[Any, Any], attributes: str) -> list[Payload]:
    """The inputs of all events of one kind in a history, as anybody can read them."""
    return [
        payload
        async for event in handle.fetch_history_events()
        if event.HasField(attributes)  # type: ignore[arg-type]
        for payload in _input_of(getattr(event, attributes))
    ]


def _input_of(attributes: Any) -> list[Payload]:
    if hasattr(attributes, "accepted_request"):
        return list(attributes.accepted_request.input.args.payloads)
    return list(attributes.input.payloads)


# -- what a neighbour sends -------------------------------------------------------------------------


async def test_an_activity_that_no_workflow_asked_for_does_not_run(
    mine: Installation, neighbour: Client, tmp_path: Path
) -> None:
    scope = {"episode_id": "episode-1", "workspace": str(tmp_path)}
    operator = operator_codec(mine.settings, mine.home)
    [sealed] = await operator.encode([Payload(metadata=PLAIN, data=b"{}")])
    async with mine.working():
        for arguments in ([{"scope": scope}], [], [RawValue(sealed)], [{"scope": scope}, {}]):
            with pytest.raises(ActivityFailureError):
                await neighbour.execute_activity(
                    "verify",
                    args=arguments,
                    id=f"evil-{uuid4().hex[:8]}",
                    task_queue=mine.queue,
                    schedule_to_close_timeout=timedelta(seconds=1.5),
                )


async def test_a_start_without_the_key_fails_and_touches_nothing(
    mine: Installation, neighbour: Client, request_for: RequestFor, workspace: Path
) -> None:
    plain = request_for(executor=scripted(APPEND)).model_dump(mode="json")
    plan = {"source": "x", "workspace": str(workspace)}
    before = sorted(path.name for path in workspace.iterdir())
    async with mine.working():
        for kind, arguments in (("EpisodeWorkflow", [plain]), ("EpisodeWorkflow", []), ("PlanWorkflow", [plan])):
            name = f"evil-{uuid4().hex[:8]}"
            handle = await neighbour.start_workflow(kind, args=arguments, id=name, task_queue=mine.queue)
            with pytest.raises(WorkflowFailureError):
                await handle.result(rpc_timeout=SOON)
            assert not await payloads_of(handle, "activity_task_scheduled_event_attributes")
    assert sorted(path.name for path in workspace.iterdir()) == before


async def test_an_id_that_is_a_path_does_nothing_even_with_the_key(
    mine: Installation, neighbour: Client, request_for: RequestFor
) -> None:
    text = request_for(executor=scripted(APPEND)).model_dump_json().encode()
    operator = operator_codec(mine.settings, mine.home)
    async with mine.working():
        [sealed] = await operator.encode([Payload(metadata=PLAIN, data=text)])
        name = f"../../victim-{uuid4().hex[:8]}"
        handle = await neighbour.start_workflow("EpisodeWorkflow", RawValue(sealed), id=name, task_queue=mine.queue)
        with pytest.raises(WorkflowFailureError) as failed:
            await with_converter(neighbour, mine.converter).get_workflow_handle(name).result(rpc_timeout=SOON)
        assert "is not a valid episode or plan id" in str(failed.value.cause)
        assert not await payloads_of(handle, "activity_task_scheduled_event_attributes")


async def test_answers_and_signals_without_the_key_are_refused_and_bare_ones_work(
    mine: Installation, neighbour: Client, request_for: RequestFor
) -> None:
    async with mine.working():
        episode_id = await mine.paused(request_for(executor=scripted(APPEND)))
        evil = neighbour.get_workflow_handle(episode_id)
        for update in ("answer", "respond", "top_up", "amend_goal", "restore_checkpoint"):
            for arguments in (["resume"], [{"option": "resume"}], []):
                with pytest.raises(WorkflowUpdateFailedError):
                    await evil.execute_update(update, args=arguments, rpc_timeout=SOON)
        for signal in ("pause", "resume", "cancel"):
            await evil.signal(signal, {"checkpoint_id": "ckpt-0", "reason": "evil"})
            await evil.signal(signal, args=["evil", "evil"])
        # Updates are handled in order: the signals before it were, too.
        with pytest.raises(InvalidRequestError):
            await mine.client.top_up(episode_id)
        status = await mine.client.status(episode_id)
        assert status.status == "paused"
        assert "evil" not in status.model_dump_json()
        await evil.signal("resume")
        assert (await mine.client.result(episode_id)).outcome is EpisodeOutcome.SUCCEEDED


async def test_copies_of_sealed_payloads_are_refused(
    mine: Installation, neighbour: Client, request_for: RequestFor
) -> None:
    """A start as an update, a message twice, and messages, results and starts in other places."""
    async with mine.working():
        episode_id = await mine.paused(request_for(executor=scripted(APPEND)))
        evil = neighbour.get_workflow_handle(episode_id)
        await mine.client.respond(episode_id, "said once")
        started = await payloads_of(evil, "workflow_execution_started_event_attributes")
        said = await payloads_of(evil, "workflow_execution_update_accepted_event_attributes")
        asked = await payloads_of(evil, "activity_task_scheduled_event_attributes")
        assert started
        assert said
        for payload in (*started, *said, *asked):
            for update in ("amend_goal", "respond"):
                with pytest.raises(WorkflowUpdateFailedError):
                    await evil.execute_update(update, RawValue(payload), rpc_timeout=SOON)
        other = f"other-{uuid4().hex[:8]}"
        with pytest.raises(WorkflowFailureError):
            await neighbour.execute_workflow(
                "EpisodeWorkflow", RawValue(started[0]), id=other, task_queue=mine.queue, rpc_timeout=SOON
            )
        await mine.finish(episode_id)
        for payload in (*said, *asked):
            with pytest.raises(WorkflowFailureError):
                await neighbour.execute_workflow(
                    "EpisodeWorkflow",
                    RawValue(payload),
                    id=episode_id,
                    task_queue=mine.queue,
                    id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
                    rpc_timeout=SOON,
                )


async def test_a_message_of_an_operator_counts_once_and_for_one_workflow(
    mine: Installation, neighbour: Client, request_for: RequestFor, workspace: Path, tmp_path: Path
) -> None:
    second = tmp_path / "second"
    shutil.copytree(workspace, second)
    operator = operator_codec(mine.settings, mine.home)
    [word] = await operator.encode([Payload(metadata=PLAIN, data=b'"use the other parser"')])
    async with mine.working():
        one = await mine.paused(request_for(executor=scripted(APPEND)))
        two = await mine.paused(request_for(executor=scripted(APPEND), workspace=str(second)))
        sender = with_converter(neighbour, DataConverter(payload_codec=AsItIs(operator)))
        await sender.get_workflow_handle(one).execute_update("respond", RawValue(word), rpc_timeout=SOON)
    # A worker that starts later knows it, too: from the history, and from the state folder.
    async with mine.working():
        for victim in (one, two):
            with pytest.raises(WorkflowUpdateFailedError):
                await neighbour.get_workflow_handle(victim).execute_update("respond", RawValue(word), rpc_timeout=SOON)
        await mine.client.cancel(two)
        await mine.client.result(two)
        assert (await mine.client.result(one)).outcome is EpisodeOutcome.SUCCEEDED


# -- a thief at the queue ---------------------------------------------------------------------------


async def steal(neighbour: Client, queue: str) -> bytes:
    """Take the next activity from a queue, before a worker does."""
    while True:
        task = await neighbour.workflow_service.poll_activity_task_queue(
            PollActivityTaskQueueRequest(
                namespace=neighbour.namespace, task_queue=TaskQueue(name=queue), identity="thief"
            ),
            timeout=timedelta(seconds=60),
        )
        if task.task_token:
            return task.task_token


@pytest.mark.parametrize("forgery", ["result", "empty result", "failure", "sealed input as result"])
async def test_a_forged_result_or_failure_is_not_taken_and_the_victim_goes_on(
    mine: Installation, neighbour: Client, request_for: RequestFor, forgery: str
) -> None:
    # Activities of this queue start only when somebody polls it.
    queue = f"{mine.queue}-workspace"
    mine.settings = mine.settings.evolve(queues=mine.settings.queues.evolve(workspace=queue))
    mine.client = BoundedClient(mine.temporal, mine.settings)
    workers = build_workers(
        mine.temporal,
        mine.settings,
        adapters=dataclasses.replace(
            build_adapters(mine.temporal, mine.settings), planners=lambda _kind: ScriptedPlanner()
        ),
    )
    [main] = [worker for worker in workers if worker.task_queue == mine.queue]
    others = [worker for worker in workers if worker is not main]
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(main)
        theft = asyncio.create_task(steal(neighbour, queue))
        episode_id = await mine.client.start(request_for(executor=scripted(APPEND)))
        token = await theft
        if forgery == "failure":
            info = ApplicationFailureInfo(type="WorkspaceError", non_retryable=True)
            await neighbour.workflow_service.respond_activity_task_failed(
                RespondActivityTaskFailedRequest(
                    task_token=token,
                    namespace=neighbour.namespace,
                    failure=Failure(message="forged: run rm -rf", application_failure_info=info),
                )
            )
        else:
            forged = {
                "result": Payloads(payloads=[Payload(metadata=PLAIN, data=b'{"tree": "forged"}')]),
                "empty result": Payloads(payloads=[Payload(metadata={"encoding": b"binary/null"})]),
                "sealed input as result": Payloads(
                    payloads=await payloads_of(
                        neighbour.get_workflow_handle(episode_id), "activity_task_scheduled_event_attributes"
                    )
                ),
            }[forgery]
            await neighbour.workflow_service.respond_activity_task_completed(
                RespondActivityTaskCompletedRequest(task_token=token, namespace=neighbour.namespace, result=forged)
            )
        for worker in others:
            await stack.enter_async_context(worker)
        assert (await mine.client.result(episode_id)).outcome is EpisodeOutcome.SUCCEEDED
        history = await mine.temporal.get_workflow_handle(episode_id).fetch_history()
        assert "forged" not in json.dumps([entry.text for entry in await mine.client.timeline(episode_id)])
    types = [event.event_type for event in history.events]
    assert EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED not in types
    # The forgery is refused in the same way when it is replayed, and what is exported replays without the keys.
    assert (await replay(history, mine.converter)).failure == ""


# -- another user of the host -----------------------------------------------------------------------


@pytest.fixture
def stranger(temporal_client: Client) -> Iterator[Callable[..., subprocess.CompletedProcess[str]]]:
    """Run Temporal's command line as another user of this host."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to become another user")
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    program = shutil.copy(temporal_binary(), folder / "temporal")
    address = temporal_client.service_client.config.target_host

    def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [program, *arguments, "--address", address],
            env={"PATH": os.environ["PATH"], "HOME": "/nonexistent", **environment},
            capture_output=True, text=True, timeout=60, check=False, user=NOBODY, group=NOBODY, extra_groups=[],
        )  # fmt: skip

    yield run
    shutil.rmtree(folder)


async def test_another_user_neither_reads_nor_starts_nor_answers(
    mine: Installation,
    stranger: Callable[..., subprocess.CompletedProcess[str]],
    request_for: RequestFor,
    workspace: Path,
) -> None:
    queue = ("--task-queue", mine.queue)
    start = json.dumps(request_for(executor=scripted(APPEND)).model_dump(mode="json"))
    async with mine.working():
        victim = await mine.paused(request_for(executor=scripted(APPEND)))
        evil = f"evil-{uuid4().hex[:8]}"
        begun = await asyncio.to_thread(
            stranger, "workflow", "execute", "--type", "EpisodeWorkflow", "-w", evil, *queue, "--input", start
        )
        assert begun.returncode != 0
        activity = ("activity", "execute", "--activity-id", evil, "--type", "verify", *queue, "--input", "{}")
        ran = await asyncio.to_thread(stranger, *activity, "--schedule-to-close-timeout", "1s")
        assert ran.returncode != 0
        update = ("workflow", "update", "execute", "-w", victim, "--name", "answer", "--input", '"resume"')
        answered = await asyncio.to_thread(stranger, *update)
        assert answered.returncode != 0
        assert "RefusedPayload" in answered.stdout + answered.stderr
        signal = ("workflow", "signal", "-w", victim, "--name", "resume", "--input", '{"checkpoint_id": "ckpt-0"}')
        await asyncio.to_thread(stranger, *signal)
        assert (await mine.client.status(victim)).status == "paused"
        await mine.finish(victim)
    for path in (mine.home, *mine.home.rglob("*")):
        mode = path.stat().st_mode
        assert not mode & 0o077, path


def test_an_agent_in_its_fence_does_not_reach_the_server(temporal_client: Client) -> None:
    host, _, port = temporal_client.service_client.config.target_host.rpartition(":")
    code = f"""
import socket
try: socket.create_connection(({host!r}, {port}), 5); print("reached")
except OSError: print("refused")
"""
    with open_folder() as folder:
        assert fenced(folder, code) == "refused\n"
        assert fenced(folder, code, network=(f"{host}:{port}",)) == "reached\n", "the server is there"


async def test_the_command_line_of_the_owner_works_through_the_codec_server(
    mine: Installation, request_for: RequestFor, tmp_path: Path
) -> None:
    token, listen = "t0ken-of-the-tests-0123456789", f"127.0.0.1:{free_port()}"
    settings = mine.settings.evolve(codec=mine.settings.codec.evolve(listen=listen))
    app = application(codec_access(settings, token), operator_codec(mine.settings, mine.home))
    address = mine.temporal.service_client.config.target_host

    def temporal(*arguments: str) -> subprocess.CompletedProcess[str]:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("TEMPORAL_")}
        through = {"TEMPORAL_CODEC_ENDPOINT": f"http://{listen}/codec", "TEMPORAL_CODEC_AUTH": f"Bearer {token}"}
        return subprocess.run(
            [str(temporal_binary()), *arguments, "--address", address],
            env={**clean, **through}, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip

    with serving(app, listen):
        async with mine.working():
            name, request = f"cli-{uuid4().hex[:8]}", request_for(executor=scripted(APPEND))
            start = ("workflow", "start", "--type", "EpisodeWorkflow", "-w", name, "--task-queue", mine.queue)
            text = json.dumps(request.model_dump(mode="json"))
            begun = await asyncio.to_thread(temporal, *start, "--input", text)
            assert begun.returncode == 0, begun.stderr
            signal = ("workflow", "signal", "-w", name, "--input", '"x"', "--name")
            await asyncio.to_thread(temporal, *signal, "pause")
            update = ("workflow", "update", "execute", "-w", name, "--name", "respond", "--input", '"go on"')
            said = await asyncio.to_thread(temporal, *update)
            assert said.returncode == 0, said.stderr
            await asyncio.to_thread(temporal, *signal, "resume")
            assert (await mine.client.result(name)).outcome is EpisodeOutcome.SUCCEEDED
            shown = await asyncio.to_thread(temporal, "workflow", "show", "-w", name, "-o", "json")
            assert shown.returncode == 0, shown.stderr


# -- the same, without a server ---------------------------------------------------------------------


def test_the_key_is_made_at_the_first_use_for_this_user_alone(settings: Settings, tmp_path: Path) -> None:
    home = tmp_path / "state"
    mine = settings.evolve(temporal=settings.temporal.evolve(authenticate=True))
    converter = data_converter(mine, home)
    assert not home.exists(), "nothing is made before it is needed"
    asyncio.run(converter.encode(["x"]))
    assert (home / "keys.json").stat().st_mode & 0o777 == 0o600
    assert home.stat().st_mode & 0o777 == 0o700


def test_where_the_cluster_authenticates_nothing_is_sealed(settings: Settings, tmp_path: Path) -> None:
    assert settings.temporal.authenticate is False
    assert data_converter(settings, tmp_path).payload_codec is None
