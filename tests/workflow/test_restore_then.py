"""A restore that was accepted comes first, whatever people want right after it, and is never dropped silently."""

import asyncio
import re
import shlex
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from temporalio.api.sdk.v1 import WorkflowMetadata
from temporalio.client import Client

from tests.support.episodes import APPEND, Working, asked, eventually, scripted
from tests.workflow.test_restore import five_iterations, paused_after
from tightloop.client import TightloopClient
from tightloop.episode.budget import Budget
from tightloop.episode.model import EpisodeOutcome, EpisodeRequest, EpisodeStatus
from tightloop.run.question import QuestionKind
from worker.server import temporal_binary

Requests = Callable[..., EpisodeRequest]
MINE = "by a person\n"


@asynccontextmanager
async def hanging(client: TightloopClient, working: Working, request_for: Requests) -> AsyncIterator[str]:
    """An episode with two lines, whose executor hangs in the third iteration and goes on in all others."""
    steps = (APPEND, APPEND, {**APPEND, "hang": True}, APPEND, APPEND)
    request = request_for(executor=scripted(*steps, repeat=False), definition_of_done=["test -e end.txt"])
    async with working():
        episode_id = await client.start(request)

        async def hangs() -> bool:
            status = await client.status(episode_id)
            return status.iteration == 3 and status.phase.value == "EXECUTING"

        await eventually(hangs)
        yield episode_id


async def paused_by_operator(client: TightloopClient, episode_id: str) -> EpisodeStatus:
    async def waits() -> EpisodeStatus | None:
        status = await client.status(episode_id)
        return status if status.branch == 2 and status.status == "paused" else None

    return await eventually(waits, seconds=60)


async def edits_of_the_pause_are_kept(client: TightloopClient, episode_id: str, workspace: Path) -> None:
    """Edit in the pause, go on, and find that the files went back before the pause and the edit is still there."""
    status = await paused_by_operator(client, episode_id)
    assert [question.kind for question in status.questions] == [QuestionKind.OPERATOR]
    assert (workspace / "log.txt").read_text() == "1\n"
    (workspace / "mine.txt").write_text(MINE)
    (workspace / "end.txt").touch()
    await client.top_up(episode_id, iterations=3)
    await client.resume(episode_id)
    assert (await client.result(episode_id)).outcome is EpisodeOutcome.SUCCEEDED
    assert (workspace / "mine.txt").read_text() == MINE
    kinds = [line.kind for line in await client.timeline(episode_id)]
    since = kinds[kinds.index("restored") :]
    assert since.index("paused") < since.index("resumed")


@pytest.mark.parametrize("first", ["restore", "pause"])
async def test_a_pause_beside_a_restore_begins_when_the_files_are_back(
    client: TightloopClient, working: Working, request_for: Requests, workspace: Path, first: str
) -> None:
    async with hanging(client, working, request_for) as episode_id:
        if first == "pause":
            await client.pause(episode_id)
        await client.restore(episode_id, "ckpt-1")
        if first == "restore":
            await client.pause(episode_id)
        await edits_of_the_pause_are_kept(client, episode_id, workspace)


@asynccontextmanager
async def sent_together(
    client: TightloopClient,
    temporal_client: Client,
    working: Working,
    request: EpisodeRequest,
    *signals: tuple[str, str],
) -> AsyncIterator[str]:
    """An episode with two lines that waits for a budget, and then gets messages all in one workflow task."""
    async with working():
        episode_id = await client.start(request)
        await asked(client, episode_id)
    for name, content in signals:
        await temporal_client.get_workflow_handle(episode_id).signal(name, content)
    async with working():
        yield episode_id


def waiting(request_for: Requests) -> EpisodeRequest:
    return request_for(definition_of_done=["test -e end.txt"], budget=Budget(max_iterations=2))


async def test_a_pause_is_not_forgotten_where_the_restore_ends_the_wait_for_an_answer(
    client: TightloopClient, temporal_client: Client, working: Working, request_for: Requests, workspace: Path
) -> None:
    both = (("resume", "ckpt-1"), ("pause", "look first"))
    async with sent_together(client, temporal_client, working, waiting(request_for), *both) as episode_id:
        await edits_of_the_pause_are_kept(client, episode_id, workspace)


async def test_a_cancellation_that_drops_a_restore_says_so(
    client: TightloopClient, temporal_client: Client, working: Working, request_for: Requests, workspace: Path
) -> None:
    both = (("resume", "ckpt-1"), ("cancel", "enough"))
    async with sent_together(client, temporal_client, working, waiting(request_for), *both) as episode_id:
        result = await client.result(episode_id)
        timeline = await client.timeline(episode_id)
    assert result.outcome is EpisodeOutcome.CANCELLED
    told = "enough. Checkpoint ckpt-1 was not restored, and the files are unchanged"
    assert result.reason == told
    # The worker of before stopped while it sent an alert: its line may be the last.
    assert f"CANCELLED: {told}" in [line.text for line in timeline]
    assert (workspace / "log.txt").read_text() == "1\n2\n"


async def test_a_restore_is_refused_once_the_episode_is_being_cancelled(
    client: TightloopClient, temporal_client: Client, working: Working, request_for: Requests, workspace: Path
) -> None:
    both = (("cancel", "enough"), ("resume", "ckpt-1"))
    async with sent_together(client, temporal_client, working, waiting(request_for), *both) as episode_id:
        assert (await client.result(episode_id)).reason == "enough"
        timeline = await client.timeline(episode_id)
    assert "being cancelled" in next(line.text for line in timeline if line.kind == "refused")


@asynccontextmanager
async def stuck(
    client: TightloopClient, temporal_client: Client, working: Working, request_for: Requests, workspace: Path
) -> AsyncIterator[str]:
    """An episode that asks what to do about a restore that failed, as its workspace was away."""
    away = workspace.with_name("away")
    async with working():
        episode_id = await client.start(waiting(request_for))
        await asked(client, episode_id)
    workspace.rename(away)
    await temporal_client.get_workflow_handle(episode_id).signal("resume", "ckpt-1")
    async with working():

        async def fails() -> bool:
            return [each.kind for each in (await client.status(episode_id)).questions] == [QuestionKind.FATAL]

        await eventually(fails, seconds=60)
        away.rename(workspace)
        (workspace / "mine.txt").write_text(MINE)
        yield episode_id


async def test_edits_made_while_a_restore_waits_are_not_called_kept_and_can_be_brought_back(
    client: TightloopClient, temporal_client: Client, working: Working, request_for: Requests, workspace: Path
) -> None:
    async with stuck(client, temporal_client, working, request_for, workspace) as episode_id:
        assert "cannot restore ckpt-1 yet" in (await client.status(episode_id)).questions[0].title
        await client.resume(episode_id)
        await eventually(lambda: is_on_branch(client, episode_id, 2), seconds=60)
        timeline = await client.timeline(episode_id)
        assert not (workspace / "mine.txt").exists()
        await client.cancel(episode_id)
        await client.result(episode_id)
    assert not [line for line in timeline if "were kept" in line.text]
    command = [line.text for line in timeline if line.kind == "saved"][-1].removeprefix(
        "to restore the saved files, run: "
    )
    subprocess.run(command, shell=True, check=False, timeout=60, cwd="/")
    assert (workspace / "mine.txt").read_text() == MINE


async def test_cancelling_a_restore_that_failed_leaves_the_files_and_says_that_it_was_not_carried_out(
    client: TightloopClient, temporal_client: Client, working: Working, request_for: Requests, workspace: Path
) -> None:
    async with stuck(client, temporal_client, working, request_for, workspace) as episode_id:
        await client.answer(episode_id, "cancel")
        result = await client.result(episode_id)
    assert "Checkpoint ckpt-1 was not restored" in result.reason
    assert (workspace / "mine.txt").read_text() == MINE
    assert (workspace / "log.txt").read_text() == "1\n2\n"


async def is_on_branch(client: TightloopClient, episode_id: str, branch: int) -> bool:
    return (await client.status(episode_id)).branch == branch


async def test_the_details_have_the_whole_command_of_a_reset_after_a_restore_too(
    client: TightloopClient, temporal_client: Client, working: Working, request_for: Requests, workspace: Path
) -> None:
    async with working():
        episode_id = await client.start(five_iterations(request_for))
        await paused_after(client, episode_id, 5)
        await client.restore(episode_id, "ckpt-2")

        async def is_back() -> bool:
            status = await client.status(episode_id)
            return status.branch == 2 and status.questions

        await eventually(is_back)
        handle = temporal_client.get_workflow_handle(episode_id)
        seen = await handle.query("__temporal_workflow_metadata", result_type=WorkflowMetadata)
        command = re.search("`temporal (workflow reset .*)`", seen.current_details)
        assert command is not None
        where = ["--address", temporal_client.service_client.config.target_host, "--reapply-exclude", "All"]
        reset = [str(temporal_binary()), *shlex.split(command[1]), *where]
        await asyncio.to_thread(subprocess.run, reset, check=True, capture_output=True, timeout=60)

        async def has_gone_on() -> bool:
            return any(line.kind == "reset" for line in await client.timeline(episode_id))

        await eventually(has_gone_on)
        await paused_after(client, episode_id, 5)
        lines = (workspace / "log.txt").read_text()
        await client.cancel(episode_id)
        await client.result(episode_id)
    assert "back to ckpt-1" in command[1]
    assert lines == "1\n2\n3\n4\n5\n", "the second line was written again"
