"""Alignment: a plan or a change that a person has to see first pauses, and goes on after they said so."""

import sys
from pathlib import Path

from temporalio.client import Client

from activities.safety.gate import AlignmentChecker
from tests.data.alignment import KEYS
from tests.support.doubles import ScriptedPlanner, claims_done, planned
from tests.support.episodes import Working, eventually, scripted
from tightloop.cli.views import todo_lines
from tightloop.client import TightloopClient
from tightloop.episode.model import EpisodeOutcome, EpisodeStatus
from tightloop.episode.planning import Briefing, PlannerAnswer
from tightloop.executor.message import PlannedStep
from tightloop.run.question import QuestionKind
from tightloop.safety.rubric import Rubric


async def paused(client: TightloopClient, episode_id: str) -> EpisodeStatus:
    async def is_paused() -> EpisodeStatus | None:
        status = await client.status(episode_id)
        return status if status.questions else None

    found: EpisodeStatus = await eventually(is_paused)
    return found


async def again(client: TightloopClient, episode_id: str, before: EpisodeStatus) -> EpisodeStatus | None:
    status = await client.status(episode_id)
    return status if status.questions and status.questions[0].since != before.questions[0].since else None


def running(*command: str) -> PlannerAnswer:
    answer = planned("bring the branch up to date")
    assert answer.message is not None
    steps = (PlannedStep(title="bring the branch up to date", run=command),)
    return answer.evolve(message=answer.message.evolve(steps=steps))


METADATA = "__temporal_workflow_metadata"
FORCE = ("git", "push", "--force", "origin", "main")


async def test_a_destructive_plan_waits_and_is_carried_out_once_allowed(
    client: TightloopClient, working: Working, request_for, workspace: Path
) -> None:
    planner = ScriptedPlanner(lambda _briefing: running(*FORCE))
    async with working(planner):
        episode_id = await client.start(request_for(definition_of_done=["test $(cat log.txt | wc -l) -ge 2"]))
        status = await paused(client, episode_id)
        untouched = not (workspace / "log.txt").exists()
        await client.answer(episode_id, "allow")
        result = await client.result(episode_id)
        told = await client.timeline(episode_id)
    assert any(entry.kind == "answered" and "rewrites_history" in entry.text for entry in told)
    assert status.questions
    assert status.questions[0].kind is QuestionKind.ALIGNMENT
    assert status.questions[0].title.startswith(
        "rewrites_history, irreversible damage: step 1: git push --force origin main"
    )
    assert any("leave git's history" in line for line in status.questions[0].evidence)
    assert untouched, "the plan was delivered before a person saw it"
    assert result.outcome is EpisodeOutcome.SUCCEEDED
    assert result.iterations == 2
    assert len(planner.briefings) == 2, "what was allowed is neither planned nor asked for again"


async def test_a_refused_plan_is_made_anew_and_asked_about_again(
    client: TightloopClient, working: Working, request_for
) -> None:
    """A planner that does not listen gets no permission from a person's no."""

    def answer(briefing: Briefing) -> PlannerAnswer:
        return planned() if any("append a line" in note for note in briefing.notes) else running(*FORCE)

    async with working(ScriptedPlanner(answer)):
        episode_id = await client.start(request_for(definition_of_done=["test -f log.txt"]))
        first = await paused(client, episode_id)
        await client.answer(episode_id, "refuse", "not by force")
        second = await eventually(lambda: again(client, episode_id, first))
        await client.answer(episode_id, "refuse", "append a line instead")
        result = await client.result(episode_id)
    assert second.questions[0].title == first.questions[0].title
    assert result.outcome is EpisodeOutcome.SUCCEEDED


async def test_a_planted_key_waits_before_success_and_is_accepted_by_a_person(
    client: TightloopClient, temporal_client: Client, working: Working, request_for
) -> None:
    leak = {"write": [{"path": "client.py", "text": f"KEY = '{KEYS['openai']}'\n"}]}
    async with working():
        episode_id = await client.start(
            request_for(definition_of_done=["test -f client.py"], executor=scripted(leak, repeat=False))
        )
        status = await paused(client, episode_id)
        checks = status.checks
        details = (await temporal_client.get_workflow_handle(episode_id).query(METADATA)).current_details
        await client.answer(episode_id, "allow")
        result = await client.result(episode_id)
    assert status.questions
    assert status.questions[0].kind is QuestionKind.ALIGNMENT
    assert "secret_added, data privacy: client.py:1: KEY = '[secret:openai-key]'" in status.questions[0].title
    assert KEYS["openai"] not in status.model_dump_json()
    assert any("read it from the environment" in line for line in status.questions[0].evidence)
    assert checks == "1/1", "green checks alone would have been a success"
    # The checkpoint that has the key is no way back from it.
    assert status.checkpoint_id == "ckpt-1"
    assert any(line.startswith(f"  tightloop restore {episode_id} ckpt-0 ") for line in todo_lines(status))
    assert '{"checkpoint_id": "ckpt-0", "reason": "why"}' in details
    assert result.outcome is EpisodeOutcome.SUCCEEDED
    assert result.iterations == 1


async def test_a_refused_change_is_undone_although_the_checks_pass_and_the_planner_sees_nothing_to_do(
    client: TightloopClient, working: Working, request_for, workspace: Path
) -> None:
    leak = {"write": [{"path": "client.py", "text": f"KEY = '{KEYS['openai']}'\n"}]}
    clean = {"write": [{"path": "client.py", "text": "KEY = os.environ['KEY']\n"}]}
    planner = ScriptedPlanner(lambda briefing: planned() if briefing.iteration == 1 else claims_done())
    async with working(planner):
        episode_id = await client.start(
            request_for(definition_of_done=["test -f client.py"], executor=scripted(leak, clean, repeat=False))
        )
        await paused(client, episode_id)
        await client.answer(episode_id, "refuse", "read it from the environment", by="ada")
        result = await client.result(episode_id)
    (asked,) = planner.briefings[1].asked_for
    assert asked.startswith("ada rejected the following, so avoid or undo it: secret_added")
    assert asked.endswith("\nread it from the environment")
    assert (result.outcome, result.iterations) == (EpisodeOutcome.SUCCEEDED, 2)
    assert KEYS["openai"] not in (workspace / "client.py").read_text()


async def test_an_iteration_that_burns_more_processor_time_than_allowed_is_asked_about(
    client: TightloopClient, working: Working, request_for
) -> None:
    burn = "import time\nwhile time.process_time() < 1: pass"
    busy = f"{sys.executable} -c '{burn}' && test -f log.txt"
    async with working(gate=AlignmentChecker(Rubric(cpu_minutes=0.2 / 60))):
        episode_id = await client.start(request_for(definition_of_done=[busy]))
        status = await paused(client, episode_id)
        await client.answer(episode_id, "allow")
        result = await client.result(episode_id)
    assert status.questions
    assert status.questions[0].title.startswith("cpu_time")
    assert result.outcome is EpisodeOutcome.SUCCEEDED
