"""The events of an episode over all its runs, with a cursor that keeps its meaning."""

import asyncio
import json
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from temporalio.testing import WorkflowEnvironment

from tests.support.doubles import ScriptedPlanner
from tests.support.episodes import Working, eventually
from tests.workflow.test_restore import paused_after, reset_to
from tightloop.cli.main import app
from tightloop.client import Event, TightloopClient
from tightloop.episode.budget import Budget
from tightloop.episode.model import EpisodeRequest
from tightloop.errors import InvalidRequestError
from tightloop.plan.request import PlanRequest
from tightloop.settings import Settings
from worker.replay import read_history

Requests = Callable[..., EpisodeRequest]


def lines_of(count: int) -> str:
    return f"test $(wc -l < log.txt) -ge {count}"


async def all_of(client: TightloopClient, episode_id: str, after: str = "") -> list[Event]:
    async with aclosing(client.events(episode_id, after=after)) as events:
        return [event async for event in events]


async def test_timeline_of_a_restored_episode_has_what_was_before(
    client: TightloopClient, working: Working, request_for: Requests
) -> None:
    async with working(ScriptedPlanner()):
        episode_id = await client.start(
            request_for(definition_of_done=[lines_of(5)], iterations_per_run=2, pause_after=50)
        )
        await client.result(episode_id)
        first = await client.timeline(episode_id)
        await client.restore(episode_id, "ckpt-2", reason="look again")
        await client.result(episode_id)
        told = await client.timeline(episode_id)
        status = await client.status(episode_id)
        followed = await all_of(client, episode_id)
        pages = [await client.timeline(episode_id, limit=3)]
        rest = [await client.timeline(episode_id, after=event.cursor) for event in told]
        one = await client.timeline(episode_id, after=told[0].cursor, limit=1)
    kinds = [event.kind for event in told]
    assert told[: len(first)] == first
    assert kinds.count("closed") == 2
    assert kinds.count("opened") == 2
    assert kinds.count("restored") == 1
    assert len({event.cursor for event in told}) == len(told)
    assert len({event.run_id for event in told}) >= 4
    assert tuple(followed) == told
    assert pages == [told[-3:]]
    assert rest == [told[number + 1 :] for number in range(len(told))]
    assert one == (told[1],)
    assert status.runs >= 4


async def test_export_holds_the_history_and_the_events_of_every_run(
    client: TightloopClient, working: Working, request_for: Requests, settings: Settings, tmp_path: Path
) -> None:
    async def cli(*arguments: str) -> Result:
        return await asyncio.to_thread(CliRunner().invoke, app, ["--address", settings.temporal.address, *arguments])

    async with working(ScriptedPlanner()):
        episode_id = await client.start(request_for(iterations_per_run=2))
        await client.result(episode_id)
        await client.restore(episode_id, "ckpt-2")
        await client.result(episode_id)
        runs = await client.runs(episode_id)
        told = await client.timeline(episode_id)
        await cli("export", episode_id, "--out", str(tmp_path / "all.json"))
        await cli("export", episode_id, "--out", str(tmp_path / "all"))
        shown = await cli("export", episode_id)
        proven = await cli("proof", episode_id, "--run", runs[1].run_id)
        unproven = await cli("proof", episode_id, "--run", runs[0].run_id)
    document = json.loads((tmp_path / "all.json").read_text())
    earlier = {path.stem: json.loads(path.read_text()) for path in (tmp_path / "all" / "runs").iterdir()}
    assert [run.status for run in runs] == ["continued", "succeeded", "succeeded"]
    assert [run["run_id"] for run in document["runs"]] == [run.run_id for run in runs]
    assert [run["history"] for run in document["runs"][:-1]] == [earlier[run.run_id] for run in runs[:-1]]
    ends = [history["events"][-1]["eventType"] for history in (*earlier.values(), document["history"])]
    assert sorted(ends)[:2] == ["EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED"] * 2
    assert len(document["timeline"]) == len(told)
    assert json.loads(shown.stdout)["runs"] == document["runs"]
    assert read_history(tmp_path / "all.json").workflow_id == episode_id
    assert (proven.exit_code, unproven.exit_code) == (0, 2)
    assert f"Runs with a result: {runs[1].run_id}, {runs[2].run_id}" in unproven.output


async def test_whoever_follows_sees_each_event_once_through_new_runs_and_a_reset(
    client: TightloopClient, temporal: WorkflowEnvironment, working: Working, request_for: Requests
) -> None:
    request = request_for(
        definition_of_done=["test -f never"],
        budget=Budget(max_iterations=5),
        iterations_per_run=2,
        pause_after=50,
    )
    seen: list[list[Event]] = [[], [], []]

    async def follow(events: list[Event]) -> None:
        async for event in client.events(episode_id):
            events.append(event)

    async with working(ScriptedPlanner()):
        episode_id = await client.start(request)
        following = [asyncio.create_task(follow(one)) for one in seen]
        await paused_after(client, episode_id, 5)
        cursor = (await client.timeline(episode_id))[-1].cursor
        await reset_to(temporal, episode_id, (await client.checkpoints(episode_id))[3])

        async def is_reset() -> bool:
            return any(event.kind == "reset" for event in seen[0])

        await eventually(is_reset)
        await paused_after(client, episode_id, 5)
        await client.cancel(episode_id)
        await asyncio.wait_for(asyncio.gather(*following), 60)
        told = await client.timeline(episode_id)
        later = await client.timeline(episode_id, after=cursor)
    assert tuple(seen[0]) == told
    assert seen[1:] == [seen[0], seen[0]]
    assert len({(event.at, event.kind, event.text) for event in told}) == len(told)
    assert [event.kind for event in told].count("opened") == 1
    # The task that made the checkpoint runs once more.
    assert [event.kind for event in later[:4]] == ["iteration", "saved", "saved", "reset"]
    assert told[-len(later) :] == later
    assert "closed" in [event.kind for event in told[-2:]]


async def test_wrong_and_old_cursors_are_refused(
    client: TightloopClient, working: Working, request_for: Requests
) -> None:
    async with working():
        episode_id = await client.start(request_for(definition_of_done=[lines_of(1)]))
        await client.result(episode_id)
        with pytest.raises(InvalidRequestError, match="'yesterday' is not a valid cursor"):
            await client.timeline(episode_id, after="yesterday")
        unknown = "00000000-0000-0000-0000-000000000000.3"
        with pytest.raises(InvalidRequestError, match="no longer stored"):
            await client.timeline(episode_id, after=unknown)
        with pytest.raises(InvalidRequestError, match="no longer stored"):
            await all_of(client, episode_id, after=unknown)


async def test_events_of_a_plan_are_followed_alike(client: TightloopClient, working: Working, workspace: Path) -> None:
    source = 'id: p\nsteps:\n  - {id: one, shell: {run: "echo one"}}\n  - {id: two, shell: {run: "echo two"}}\n'
    async with working():
        plan_id = await client.start(PlanRequest(workspace=str(workspace), source=source))
        followed = await all_of(client, plan_id)
        told = await client.timeline(plan_id)
    assert tuple(followed) == told
    assert {event.step for event in told} == {"", "one", "two"}


async def test_who_terminated_an_episode_and_why_is_its_last_event(
    client: TightloopClient, temporal: WorkflowEnvironment, working: Working, request_for: Requests
) -> None:
    request = request_for(definition_of_done=["test -f never"], budget=Budget(max_iterations=1))
    async with working(ScriptedPlanner()):
        episode_id = await client.start(request)
        following = asyncio.create_task(all_of(client, episode_id))

        async def told_of_the_pause() -> tuple[Event, ...]:
            events = await client.timeline(episode_id)
            return events if any(event.kind == "alert" for event in events) else ()

        before = await eventually(told_of_the_pause)
        await temporal.client.get_workflow_handle(episode_id).terminate(reason="wrong host")
        followed = await asyncio.wait_for(following, 60)
        told = await client.timeline(episode_id)
        after = [await client.timeline(episode_id, after=event.cursor) for event in told]
        [last] = await client.timeline(episode_id, limit=1)
        await client.restore(episode_id, "ckpt-0")
        await paused_after(client, episode_id, 1)
        later = await client.timeline(episode_id)
        await client.cancel(episode_id)
    identity = temporal.client.service_client.config.identity
    assert (last.kind, last.text) == ("terminated", f"wrong host (by {identity})")
    assert tuple(followed) == told == (*before, last)
    assert after == [told[number + 1 :] for number in range(len(told))]
    assert later[: len(told)] == told
