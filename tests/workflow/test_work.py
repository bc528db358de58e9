"""What runs now: a person sees the command or the call, its age, its limit and its attempts, and may end a check."""

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from activities.model.client import ModelService
from activities.planner.planners import OpenAIPlanner
from tests.support.episodes import Working, eventually
from tests.support.model_server import ModelServer, Reply, hangs, says
from tightloop.cli.main import app
from tightloop.client import TightloopClient
from tightloop.episode.model import EpisodeOutcome, EpisodePhase, EpisodeStatus
from tightloop.run.question import QuestionKind
from tightloop.settings import PlannerSettings, Settings


@pytest.fixture
def go(tmp_path: Path) -> Path:
    """A file that checks wait for; it lies where they can look."""
    folder = tmp_path / "gate"
    folder.mkdir()
    return folder / "go"


@pytest.fixture
def settings(settings: Settings, go: Path) -> Settings:
    return settings.evolve(sandbox=settings.sandbox.evolve(read=(str(go.parent),)))


def waits_for(file: Path) -> str:
    """A check that leaves a file in the tree and passes once another file is there."""
    return f"touch half-done; until test -e {file}; do sleep 0.05; done"


async def shows(client: TightloopClient, episode_id: str, word: str) -> EpisodeStatus:
    """Wait until the status names what runs."""

    async def found() -> EpisodeStatus | None:
        status = await client.status(episode_id)
        assert isinstance(status, EpisodeStatus)
        return status if status.work and word in status.work.describe(datetime.now(UTC)) else None

    return await eventually(found)


async def test_a_long_check_is_shown_with_its_command_its_age_and_its_limit(
    client, temporal_client, working: Working, request_for, go, settings
):
    done = [{"run": "true", "name": "quick"}, {"run": waits_for(go), "name": "the slow one", "timeout_s": 90}]
    async with working():
        episode_id = await client.start(request_for(definition_of_done=done))
        status = await shows(client, episode_id, "check 2 of 2: the slow one")
        handle = temporal_client.get_workflow_handle(episode_id)
        details = (await handle.query("__temporal_workflow_metadata")).current_details
        command = ["--address", settings.temporal.address, "status", episode_id]
        printed = await asyncio.to_thread(CliRunner().invoke, app, command)
        go.touch()
        await client.cancel(episode_id)
        await client.result(episode_id)
    assert status.phase is EpisodePhase.VERIFYING
    assert status.work.limit_s == 90
    assert "check 2 of 2: the slow one, for" in printed.output
    assert "of at most 90 s" in printed.output.replace("\n", " ")
    # The workflow does not know which of them it is, but which they are, since when, and until when.
    assert "now: checks: quick, the slow one, since" in details
    assert "of at most 11 min 30 s" in details


@pytest.mark.parametrize("answer", ["end", "wait"])
async def test_a_pause_during_a_long_check_asks_whether_to_end_it(
    client, working: Working, request_for, go, workspace, settings, answer
):

    async def waits() -> tuple[Any, ...]:
        return (await client.status(episode_id)).questions

    async def is_paused() -> bool:
        return (await client.status(episode_id)).status == "paused"

    async with working():
        episode_id = await client.start(request_for(definition_of_done=[waits_for(go)]))
        await shows(client, episode_id, "touch half-done")
        command = ["--address", settings.temporal.address, "pause", episode_id, "--reason", "lunch"]
        said = await asyncio.to_thread(CliRunner().invoke, app, command)
        (asked,) = await eventually(waits)
        heard = await client.respond(episode_id, "fewer lines")
        meanwhile = await client.status(episode_id)
        told = await client.answer(episode_id, answer)
        if answer == "wait":
            await asyncio.sleep(1.5)
            assert (await client.status(episode_id)).status == "running"
            go.touch()
        await eventually(is_paused)
        (paused,) = await waits()
        left = (workspace / "half-done").exists()
        go.touch()
        await client.cancel(episode_id)
        await client.result(episode_id)
        lines = [entry.text for entry in await client.timeline(episode_id)]
    assert "will pause when the running work ends: check: touch half-done" in said.output
    assert f"tightloop answer {episode_id} end" in said.output
    assert heard == "the planner will read the message", "words neither end the check nor take the pause back"
    assert meanwhile.status == "running"
    assert meanwhile.questions == (asked,)
    assert meanwhile.pause_requested
    assert asked.names == ("wait", "end")
    assert "the pause takes effect when the running work finishes: check: touch half-done" in asked.title
    assert told.endswith(
        "will stop and the episode will pause" if answer == "end" else "will pause when the running work ends"
    )
    assert (paused.kind, paused.title) == (QuestionKind.OPERATOR, "lunch")
    assert not left, "what a check that was ended left behind is not a person's edit"
    assert not any("were kept" in line for line in lines)


async def test_a_check_that_was_ended_for_a_pause_runs_again_after_it(client, working: Working, request_for, go):
    done = [f"until test -e {go}; do sleep 0.05; done; test $(cat log.txt | wc -l) -ge 1"]
    async with working():
        episode_id = await client.start(request_for(definition_of_done=done))
        await shows(client, episode_id, "check: until")
        await client.pause(episode_id)

        async def asked() -> bool:
            return bool((await client.status(episode_id)).questions)

        await eventually(asked)
        await client.answer(episode_id, "end")

        async def is_paused() -> bool:
            return (await client.status(episode_id)).status == "paused"

        await eventually(is_paused)
        go.touch()
        await client.resume(episode_id)
        result = await client.result(episode_id)
    assert result.outcome is EpisodeOutcome.SUCCEEDED


NOT_A_PLAN = says("I think you should look at the parser.")


@pytest.mark.parametrize(
    ("replies", "shown", "told"),
    [
        ([NOT_A_PLAN, hangs(30)], "answer 2 of 3 from model weak", "no JSON object"),
        ([hangs(30)], "attempt 2 of 12", "model weak did not respond in time"),
    ],
)
async def test_all_attempts_at_a_plan_end_in_a_question_that_says_what_came(
    client, working: Working, request_for, settings, replies: list[Reply], shown: str, told: str
):
    bounds = PlannerSettings(timeout_s=3, plan_timeout_s=12)
    with ModelServer(*replies) as server:
        service = ModelService(api_key="k", base_url=server.url, models=("weak",), timeout_s=bounds.timeout_s)
        planner = OpenAIPlanner(service)
        async with working(planner, under=settings.evolve(planner=bounds)):
            episode_id = await client.start(request_for())
            seen = await shows(client, episode_id, shown)
            asked = await eventually(lambda: questions(client, episode_id))
            await client.cancel(episode_id)
            await client.result(episode_id)
    assert seen.phase is EpisodePhase.PLANNING
    assert seen.work.limit_s == 12
    assert asked[0].kind is QuestionKind.FATAL
    assert "the planner returned no plan after 12 s and " in asked[0].title
    assert told in asked[0].title
    assert f"tightloop amend {episode_id} --planner heuristic" in asked[0].title


async def questions(client: TightloopClient, episode_id: str) -> tuple[Any, ...]:
    """What waits for a person."""
    return (await client.status(episode_id)).questions
