"""An agent in a window reports by MCP while its executor watches it: only the desktop is not real."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from activities.executor.gui.executor import CONTINUE
from tests.integration.gateway.test_mcp import report
from tests.support.episodes import BoundedClient, Working, eventually
from tests.support.gateway import Gateway, gateway
from tests.support.gui.agent import Agent
from tests.support.mcp import call, over_http, refused
from tests.workflow.test_gui import transcripts
from tightloop.cli.views import todo_lines
from tightloop.client import Check, TightloopClient
from tightloop.database.access import Tokens
from tightloop.database.ledger import open_ledger
from tightloop.episode.model import EpisodeOutcome, EpisodeRequest, EpisodeStatus
from tightloop.executor.asking import LIMIT
from tightloop.host import state_folder
from tightloop.run.core import Queues
from tightloop.run.question import Question, QuestionKind
from tightloop.safety.seal import Role
from tightloop.settings import Settings

__all__ = ["transcripts"]


@pytest.fixture
async def served(tmp_path: Path, client: TightloopClient, settings: Settings) -> AsyncIterator[Gateway]:
    async with gateway(tmp_path, client, settings, open_ledger(settings)) as served:
        yield served
        for token in Tokens(served.ledger.database).all():
            if token.revoked is None:
                Tokens(served.ledger.database).revoke(token.name)


@pytest.fixture
async def started(
    working: Working,
    client: BoundedClient,
    registry: Callable[..., dict[str, Any]],
    request_for: Callable[..., EpisodeRequest],
    workspace: Path,
    tmp_path: Path,
) -> AsyncIterator[tuple[str, Agent]]:
    """An episode whose agent works and says nothing in its window."""
    agent = Agent(tmp_path / "gui", workspace, silent=True)
    async with working(**registry(**{"cursor-gui": agent.executor})):
        yield await client.start(request_for(executor="cursor-gui")), agent


async def watched(client: BoundedClient, episode_id: str, agent: Agent, count: int = 1) -> Question:
    """Wait until the agent has so many prompts, and return the question that its report answers."""

    async def at_work() -> Question | None:
        status = await client.status(episode_id)
        assert isinstance(status, EpisodeStatus)
        waiting = [question for question in status.questions if question.kind is QuestionKind.WORK]
        return waiting[0] if waiting and len(agent.desktop.submitted) == count else None

    found = await eventually(at_work)
    assert isinstance(found, Question)
    return found


async def reported(served: Gateway, workspace: Path, episode_id: str, *messages: str) -> list[str]:
    token = served.token("reporting", Role.AGENT, [state_folder(workspace).name])
    async with over_http(served, token, f"?episode={episode_id}") as agent:
        acks = [(await call(agent, "send_message", target="planner", message=text))["ack"] for text in messages]
    Tokens(served.ledger.database).revoke("reporting")
    return acks


async def test_report_ends_the_delivery_and_one_more_is_a_note(
    client: BoundedClient, served: Gateway, workspace: Path, started: tuple[str, Agent]
) -> None:
    episode_id, agent = started
    ledger = served.ledger.limit_to([state_folder(workspace).name])
    question = await watched(client, episode_id, agent)
    seen = await client.status(episode_id)
    assert (seen.status, question.blocks) == ("running", "")
    assert ledger.inbox() == (), "a person has nothing to do"
    assert todo_lines(seen)[0].startswith("No answer needed: the agent in the window is working")
    done, again = await reported(served, workspace, episode_id, report(1), report(1))
    result = await client.result(episode_id)
    timeline = [f"{entry.kind}: {entry.text}" for entry in await client.timeline(episode_id)]
    assert (result.outcome, result.iterations) == (EpisodeOutcome.SUCCEEDED, 1)
    assert done == "the answer is 'done', so the episode continues"
    assert again.startswith("no report is expected at the moment")
    assert any("answered: reporting chose done" in line and "wrote a file" in line for line in timeline)
    assert not any(line.startswith(("paused", "resumed")) for line in timeline)


async def test_work_that_the_agent_reports_as_impossible_is_a_question(
    client: BoundedClient, served: Gateway, workspace: Path, started: tuple[str, Agent]
) -> None:
    episode_id, agent = started
    await watched(client, episode_id, agent)
    await reported(served, workspace, episode_id, report(1, outcome="impossible", report="two tests contradict"))

    async def asks() -> Question | None:
        return next(iter((await client.status(episode_id)).questions), None)

    question = await eventually(asks)
    assert isinstance(question, Question)
    assert question.kind is QuestionKind.IMPOSSIBLE
    assert question.title.startswith("the executor stopped: impossible: two tests contradict")
    await client.cancel(episode_id)


async def test_limit_that_the_agent_reports_leads_to_continue(
    client: BoundedClient, served: Gateway, workspace: Path, started: tuple[str, Agent]
) -> None:
    episode_id, agent = started
    await watched(client, episode_id, agent)
    [limited] = await reported(served, workspace, episode_id, report(1, outcome="limit_hit", report="25 tool calls"))
    agent.tell(hook_event_name="stop", status="completed")
    await watched(client, episode_id, agent, 2)
    await client.answer(episode_id, "done", by="anna")
    result = await client.result(episode_id)
    timeline = [entry.text for entry in await client.timeline(episode_id) if entry.kind == "limit"]
    assert LIMIT in limited
    assert (result.outcome, result.iterations) == (EpisodeOutcome.SUCCEEDED, 1)
    assert [CONTINUE in text for text in agent.desktop.submitted] == [False, True]
    assert len(timeline) == 1
    assert "delivery failure 1: next attempt in 0 s" in timeline[0]
    assert "25 tool calls" in timeline[0]


async def test_continue_goes_with_the_end_of_the_turn_in_which_the_limit_was_reported(
    client: BoundedClient, served: Gateway, workspace: Path, tmp_path: Path, started: tuple[str, Agent]
) -> None:
    episode_id, agent = started
    await watched(client, episode_id, agent)
    await reported(served, workspace, episode_id, report(1, outcome="limit_hit", report="25 tool calls"))

    async def is_offered() -> bool:
        return any((tmp_path / "gui" / "hooks" / "next").glob("*.json"))

    await eventually(is_offered)
    given = agent.tell(hook_event_name="stop", status="completed")["followup_message"]
    assert CONTINUE in given
    agent.work(given)
    await watched(client, episode_id, agent)
    await reported(served, workspace, episode_id, report(1))
    result = await client.result(episode_id)
    assert (result.outcome, result.iterations) == (EpisodeOutcome.SUCCEEDED, 1)
    assert len(agent.desktop.submitted) == 1, "the window was not touched again"


async def test_limit_that_is_reported_twice_counts_once_and_work_in_three_portions_is_checked(
    client: BoundedClient, served: Gateway, workspace: Path, started: tuple[str, Agent]
) -> None:
    episode_id, agent = started
    await watched(client, episode_id, agent)
    stopped = report(1, outcome="limit_hit", report="25 tool calls")
    await reported(served, workspace, episode_id, stopped)
    agent.tell(hook_event_name="stop", status="completed")
    going_on = await watched(client, episode_id, agent, 2)
    [again] = await reported(served, workspace, episode_id, stopped)
    assert again.startswith("the same report was already received")
    assert (await watched(client, episode_id, agent, 2)).id == going_on.id
    [other] = await reported(served, workspace, episode_id, report(1, outcome="limit_hit", report="25 more"))
    agent.tell(hook_event_name="stop", status="completed")
    await watched(client, episode_id, agent, 3)
    [third] = await reported(served, workspace, episode_id, report(1, outcome="limit_hit", report="and 25 more"))

    async def is_checked() -> bool:
        return any(entry.kind in ("iteration", "closed") for entry in await client.timeline(episode_id))

    await eventually(is_checked)
    assert LIMIT in other
    assert LIMIT in third
    timeline = [entry.text for entry in await client.timeline(episode_id) if entry.kind in ("limit", "duplicate")]
    assert [line.split(":")[0] for line in timeline] == ["delivery failure 1", "reporting", "delivery failure 2"]
    await client.cancel(episode_id)


async def test_report_on_another_iteration_or_of_another_episode_is_refused(
    client: BoundedClient, served: Gateway, workspace: Path, started: tuple[str, Agent]
) -> None:
    episode_id, agent = started
    await watched(client, episode_id, agent)
    token = served.token("reporting", Role.AGENT, [state_folder(workspace).name])
    async with over_http(served, token, f"?episode={episode_id}") as mine:
        stale = await refused(mine, "send_message", target="planner", message=report(7))
        nameless = await refused(mine, "send_message", target="planner", message=report(0))
        broken = await refused(mine, "send_message", target="planner", message=report(1, outcome="splendid"))
    async with over_http(served, token, "?episode=another") as other:
        elsewhere = await refused(other, "send_message", target="planner", message=report(1))
    assert "is in iteration 1" in stale
    assert "does not contain an [🔁 ITERATION] section" in nameless
    assert "limit_hit" in broken
    assert "another" in elsewhere
    assert (await client.status(episode_id)).questions
    await client.cancel(episode_id)
    assert (await client.result(episode_id)).outcome is EpisodeOutcome.CANCELLED


async def test_pause_and_resume_are_not_about_the_report(
    client: BoundedClient, served: Gateway, workspace: Path, started: tuple[str, Agent]
) -> None:
    episode_id, agent = started
    await watched(client, episode_id, agent)
    await client.resume(episode_id, note="use the other parser")
    await client.pause(episode_id, "lunch")
    still = await watched(client, episode_id, agent)
    await reported(served, workspace, episode_id, report(1))

    async def pauses() -> bool:
        return (await client.status(episode_id)).status == "paused"

    await eventually(pauses)
    [asked] = (await client.status(episode_id)).questions
    assert (asked.kind, asked.title, still.answers) == (QuestionKind.OPERATOR, "lunch", ())
    await client.resume(episode_id)
    assert (await client.result(episode_id)).outcome is EpisodeOutcome.SUCCEEDED
    assert len(agent.desktop.submitted) == 1


async def test_agent_that_tells_without_end_is_told_to_stop(
    client: BoundedClient, served: Gateway, workspace: Path, started: tuple[str, Agent]
) -> None:
    episode_id, agent = started
    await watched(client, episode_id, agent)
    token = served.token("reporting", Role.AGENT, [state_folder(workspace).name])
    scratch = {"iteration": 1, "role": "executor"}
    async with over_http(served, token, f"?episode={episode_id}") as mine:
        for number in range(5):
            await call(mine, "record_checkpoint", scratchpad=f"note {number}", **scratch)
        enough = await refused(mine, "record_checkpoint", scratchpad="note 6", **scratch)
        told = await call(mine, "send_message", target="planner", message=report(1, report="a long story " * 100))
    assert "5 messages are already waiting for the planner" in enough
    assert "'done'" in told["ack"], "a long report is heard although its whole text is one note too many"
    assert (await client.result(episode_id)).outcome is EpisodeOutcome.SUCCEEDED


async def test_report_and_end_of_the_turn_at_the_same_moment_end_one_delivery(
    client: BoundedClient, served: Gateway, workspace: Path, started: tuple[str, Agent]
) -> None:
    episode_id, agent = started
    await watched(client, episode_id, agent)
    token = served.token("racing", Role.AGENT, [state_folder(workspace).name])
    async with over_http(served, token, f"?episode={episode_id}") as mine:

        async def end_turn() -> None:
            for event in ({"hook_event_name": "afterAgentResponse", "text": "done"}, {"hook_event_name": "stop"}):
                await asyncio.to_thread(agent.tell, status="completed", **event)

        one, other, _ = await asyncio.gather(
            *(call(mine, "send_message", target="planner", message=report(1)) for _ in range(2)), end_turn()
        )
    result = await client.result(episode_id)
    assert (result.outcome, result.iterations, len(agent.desktop.submitted)) == (EpisodeOutcome.SUCCEEDED, 1, 1)
    heard = ("the answer is 'done'", "no report is expected at the moment", "the same report was already received")
    for told in (one, other):
        assert told["ack"].startswith(heard)


async def test_report_that_comes_late_is_kept_and_is_not_about_the_next_plan(
    client: BoundedClient,
    served: Gateway,
    workspace: Path,
    working: Working,
    registry: Callable[..., dict[str, Any]],
    request_for: Callable[..., EpisodeRequest],
    tmp_path: Path,
) -> None:
    agent = Agent(tmp_path / "gui", workspace, silent=True)
    async with working(**registry(**{"cursor-gui": agent.executor})):
        done = (Check(run="test $(cat log.txt | wc -l) -ge 6"),)
        episode_id = await client.start(request_for(executor="cursor-gui", definition_of_done=done))
        await watched(client, episode_id, agent)
        await reported(served, workspace, episode_id, report(1))
        agent.tell(hook_event_name="stop", status="completed")
        second = await watched(client, episode_id, agent, 2)
        [late] = await reported(served, workspace, episode_id, report(1))
        assert (
            late == "no report is expected at the moment, so the message was saved as a note: the planner will read "
            "the message"
        )
        assert (await watched(client, episode_id, agent, 2)).id == second.id
        await reported(served, workspace, episode_id, report(2))
        result = await client.result(episode_id)
        [ended] = await reported(served, workspace, episode_id, report(2))
    assert (result.outcome, result.iterations, len(agent.desktop.submitted)) == (EpisodeOutcome.SUCCEEDED, 2, 2)
    assert "was not saved" in ended
    assert "You do not need to do anything" in ended


@pytest.mark.parametrize("after_s", [2.9, 3.0, 3.05, 3.1, 3.2])
async def test_stop_around_a_look_for_workers_is_not_lost(
    after_s: float, working: Working, client: BoundedClient, request_for: Callable[..., EpisodeRequest]
) -> None:
    async with working():
        queues = Queues(executor="nobody-at-the-screen")
        episode_id = await client.start(request_for(executor="cursor-gui", queues=queues))

        async def waits() -> bool:
            return getattr(await client.status(episode_id), "phase", "") == "HANDING_OFF"

        await eventually(waits)
        # It is looked for workers after three seconds.
        await asyncio.sleep(after_s)
        await client.cancel(episode_id, "enough")
        async with asyncio.timeout(20):
            assert (await client.result(episode_id)).outcome is EpisodeOutcome.CANCELLED
