"""What an operator does from the Temporal CLI and Web UI, without our client."""

import asyncio
import json
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from temporalio.common import SearchAttributeKey

from tests.support.episodes import APPEND, Working, eventually, scripted
from tightloop.episode.budget import Budget
from tightloop.episode.model import EpisodeOutcome
from worker.server import temporal_binary

TemporalCli = Callable[..., Awaitable["subprocess.CompletedProcess[str]"]]


def until(file: Path) -> dict[str, Any]:
    """A step that leaves its line and goes on once this file is there."""
    return {**APPEND, "run": ["sh", "-c", f"until test -e {file}; do sleep 0.05; done"]}


@pytest.fixture
def temporal_cli(temporal) -> TemporalCli:
    async def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [str(temporal_binary()), *arguments, "--address", temporal.client.service_client.config.target_host]
        # In a thread: the worker that has to answer lives in this event loop.
        return await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=60)

    return run


async def test_bare_pause_and_resume_signals_work(
    client, temporal_client, temporal_cli, working: Working, request_for, tmp_path
):
    go = tmp_path / "go"
    async with working():
        episode_id = await client.start(request_for(executor=scripted(until(go))))
        sent = await temporal_cli("workflow", "signal", "--name", "pause", "-w", episode_id)
        go.touch()

        async def waits() -> bool:
            # While the pause waits for a running check, the episode is asked about it, but still runs.
            return (await client.status(episode_id)).status == "paused"

        await eventually(waits)
        status = await client.status(episode_id)

        async def is_listed_as_paused() -> bool:
            described = await temporal_client.get_workflow_handle(episode_id).describe()
            return described.typed_search_attributes.get(SearchAttributeKey.for_keyword("TightloopStatus")) == "paused"

        await eventually(is_listed_as_paused)
        metadata = await temporal_cli("workflow", "metadata", "-w", episode_id)
        await temporal_cli("workflow", "signal", "--name", "resume", "-w", episode_id)
        result = await client.result(episode_id)
    assert sent.returncode == 0, sent.stderr
    assert status.status == "paused"
    assert "waits for a person" in metadata.stdout
    assert "restore_checkpoint" in metadata.stdout
    assert result.outcome is EpisodeOutcome.SUCCEEDED


async def test_what_temporal_started_is_found_by_its_status_while_it_runs(
    client, temporal_client, temporal_cli, working: Working, request_for, settings, tmp_path
):
    go, episode_id = tmp_path / "go", f"raw-{uuid4().hex}"
    raw = tmp_path / "request.json"
    raw.write_text(request_for(executor=scripted(until(go))).model_dump_json())
    start = ("--type", "EpisodeWorkflow", "--task-queue", settings.temporal.task_queue, "--input-file", str(raw))
    async with working():
        sent = await temporal_cli("workflow", "start", "-w", episode_id, *start)
        assert sent.returncode == 0, sent.stderr
        query = f'WorkflowId="{episode_id}" AND TightloopStatus="running"'

        async def is_listed() -> bool:
            return (await temporal_client.count_workflows(query)).count == 1

        await eventually(is_listed)
        go.touch()
        result = await client.result(episode_id)
    assert result.outcome is EpisodeOutcome.SUCCEEDED


async def test_signals_with_more_inputs_than_one_do_what_they_say(client, temporal_cli, working, request_for, tmp_path):
    go = tmp_path / "go"
    async with working():
        episode_id = await client.start(request_for(executor=scripted(until(go))))
        two = ("--input", json.dumps("lunch"), "--input", "2")
        await temporal_cli("workflow", "signal", "--name", "pause", "-w", episode_id, *two)
        go.touch()

        async def waits() -> bool:
            # Before the pause begins it may be asked what is to become of a check that still runs.
            return [question.title for question in (await client.status(episode_id)).questions] == ["lunch"]

        await eventually(waits)
        await temporal_cli("workflow", "signal", "--name", "resume", "-w", episode_id, *two)
        result = await client.result(episode_id)
    assert result.outcome is EpisodeOutcome.SUCCEEDED


async def test_a_pause_with_a_reason_shows_it(client, temporal_cli, working: Working, request_for, tmp_path):
    go = tmp_path / "go"
    async with working():
        episode_id = await client.start(request_for(executor=scripted(until(go))))
        await temporal_cli("workflow", "signal", "--name", "pause", "-w", episode_id, "--input", json.dumps("lunch"))
        go.touch()

        async def waits() -> bool:
            return [question.title for question in (await client.status(episode_id)).questions] == ["lunch"]

        await eventually(waits)
        status = await client.status(episode_id)
        await temporal_cli(
            "workflow", "signal", "--name", "pause", "-w", episode_id, "--input", json.dumps("a meeting")
        )
        await temporal_cli("workflow", "signal", "--name", "cancel", "-w", episode_id)
        result = await client.result(episode_id)
        timeline = await client.timeline(episode_id)
    [asked] = status.questions
    kept = f"pause ignored: {asked.id} is already waiting for an answer. Reason given: a meeting"
    assert [entry.text for entry in timeline if entry.kind == "refused"] == [kept]
    assert result.outcome is EpisodeOutcome.CANCELLED


@pytest.mark.parametrize(
    ("update", "value", "sentence"),
    [
        ("restore_checkpoint", '{"checkpoint": "ckpt-0"}', "Example: "),
        ("restore_checkpoint", '"nonsense"', "the episode has no checkpoint 'nonsense'"),
        ("top_up", '{"iteration": 5}', "top_up: unknown field 'iteration'. Did you mean 'iterations'?"),
        ("respond", '""', "the message is empty"),
        ("answer", '"allow"', "answer: there is no question to answer"),
        ("amend_goal", "{}", "the request does not change anything"),
        ("amend_goal", '{"goal": "%s"}' % ("x" * 9_000), "the goal is 9000 characters long"),
        ("amend_goal", '{"definition_of_done": [{"run": "true", "timeout_s": 1e300}]}', "s, got 1e+300 s"),
    ],
)
async def test_a_wrong_update_gets_a_sentence(client, temporal_cli, working, request_for, update, value, sentence):
    async with working():
        episode_id = await client.start(request_for(executor=scripted({**APPEND, "hang": True})))

        async def runs() -> bool:
            return (await client.status(episode_id)).iteration == 1

        await eventually(runs)
        sent = await temporal_cli("workflow", "update", "execute", "--name", update, "-w", episode_id, "--input", value)
        await client.cancel(episode_id)
        await client.result(episode_id)
    assert sent.returncode != 0
    assert sentence in sent.stderr + sent.stdout
    assert "Traceback" not in (sent.stderr + sent.stdout).split(sentence)[0]


async def test_cancelling_in_temporal_ends_an_episode_of_short_steps(client, temporal_client, working, request_for):
    """No activity runs long enough to be cancelled itself; the cancellation must not be swallowed."""
    async with working():
        episode_id = await client.start(
            request_for(definition_of_done=["false"], pause_after=1_000, budget=Budget(max_iterations=1_000))
        )

        async def runs() -> bool:
            return (await client.status(episode_id)).iteration >= 2

        await eventually(runs)
        await temporal_client.get_workflow_handle(episode_id).cancel()
        result = await client.result(episode_id)
    assert result.outcome is EpisodeOutcome.CANCELLED


async def test_cancelling_in_temporal_gives_the_workspace_back(client, temporal_client, working, request_for):
    async with working():
        episode_id = await client.start(request_for(executor=scripted({**APPEND, "hang": True})))

        async def runs() -> bool:
            return (await client.status(episode_id)).phase.value == "EXECUTING"

        await eventually(runs)
        await temporal_client.get_workflow_handle(episode_id).cancel()
        result = await client.result(episode_id)
        again = await client.start(request_for())
        second = await client.result(again)
    assert result.outcome is EpisodeOutcome.CANCELLED
    assert second.outcome is EpisodeOutcome.SUCCEEDED
