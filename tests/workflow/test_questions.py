"""An executor that asks a person: the episode waits, takes the answer at every door, and goes on where it was."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from temporalio.common import SearchAttributeKey

from activities.executor.outbox import open_outbox
from tests.support.doubles import AskingExecutor, ScriptedPlanner
from tests.support.episodes import Working, asked, eventually
from tightloop.episode.model import EpisodeOutcome
from tightloop.errors import InvalidRequestError
from tightloop.executor.model import ExecutorStatus
from tightloop.run.question import QuestionKind
from worker.server import temporal_binary

ACP_AGENT = Path(__file__).parents[1] / "support" / "agents" / "acp_fake_agent.py"
ONE_LINE = {"definition_of_done": ["test -f log.txt"]}


@pytest.fixture
def signal(settings) -> Callable[..., Awaitable[None]]:
    """Temporal's own command line, as an operator without our client has it."""

    async def send(name: str, episode_id: str) -> None:
        command = [str(temporal_binary()), "workflow", "signal", "--name", name, "-w", episode_id]
        command += ["--address", settings.temporal.address]
        await asyncio.to_thread(subprocess.run, command, check=True, capture_output=True, timeout=60)

    return send


async def test_an_allowed_permission_goes_on_in_the_same_session(
    client, temporal_client, working: Working, request_for, registry, workspace: Path
) -> None:
    asking = AskingExecutor()
    async with working(**registry(asking=asking)):
        episode_id = await client.start(request_for(executor={"name": "asking"}, **ONE_LINE))
        status = await asked(client, episode_id)
        attributes = (await temporal_client.get_workflow_handle(episode_id).describe()).typed_search_attributes
        said = await client.answer(episode_id, "allow", by="ada")
        result = await client.result(episode_id)
        told = [f"{entry.kind}: {entry.text}" for entry in await client.timeline(episode_id)]
    assert status.questions
    [question] = status.questions
    assert (question.kind, question.title, question.evidence) == (
        QuestionKind.PERMISSION,
        "append line 1",
        ("log.txt",),
    )
    assert attributes.get(SearchAttributeKey.for_keyword("TightloopPauseKind")) == "permission"
    assert said == "the answer is 'allow', so the episode continues"
    assert result.outcome is EpisodeOutcome.SUCCEEDED
    assert (result.iterations, result.spent.executor_failures) == (1, 0)
    assert (workspace / "log.txt").read_text() == "1\n"
    first, second = asking.orders
    assert (first.resume, first.grants) == (None, ())
    assert second.resume is not None
    assert second.resume.session_id == "session-1"
    assert [grant.allowed for grant in second.grants] == [True]
    assert "answered: ada chose allow for 'append line 1'" in told


async def test_a_denied_permission_is_told_to_executor_and_planner(
    client, working: Working, request_for, registry, workspace: Path
) -> None:
    planner = ScriptedPlanner()
    async with working(planner, **registry(asking=AskingExecutor())):
        episode_id = await client.start(request_for(executor={"name": "asking"}, **ONE_LINE))
        first = await asked(client, episode_id)
        await client.answer(episode_id, "deny", "use another file", by="ada")
        await asked(client, episode_id, since=first)
        await client.cancel(episode_id)
        await client.result(episode_id)
        report = open_outbox(workspace).deliveries(episode_id)[1].report
    assert report is not None
    assert (report.status, report.denied) == (ExecutorStatus.NO_CHANGE, ("append line 1",))
    assert any("asked about append line 1: use another file" in note for note in planner.briefings[1].notes)
    assert "Not allowed: append line 1" in str(planner.briefings[1].plan_request)
    assert not (workspace / "log.txt").exists()


async def test_the_json_that_the_web_ui_shows_is_the_answer(
    client, temporal_client, settings, working: Working, request_for, registry
) -> None:
    async with working(**registry(asking=AskingExecutor())):
        episode_id = await client.start(request_for(executor={"name": "asking"}, **ONE_LINE))
        await asked(client, episode_id)
        handle = temporal_client.get_workflow_handle(episode_id)
        details = (await handle.query("__temporal_workflow_metadata")).current_details
        [row] = [line for line in details.splitlines() if line.startswith("| allow: ") and "update `answer`" in line]
        shown = row.split("`")[-2]
        command = [str(temporal_binary()), "workflow", "update", "execute", "--name", "answer", "-w", episode_id]
        command += ["--input", shown, "--address", settings.temporal.address]
        sent = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=60)
        result = await client.result(episode_id)
    assert details.startswith("**NEEDS RESPONSE**")
    assert sent.returncode == 0, sent.stderr
    assert result.outcome is EpisodeOutcome.SUCCEEDED


async def test_words_do_not_give_a_permission(client, working: Working, request_for, registry, signal) -> None:
    asking, planner = AskingExecutor(), ScriptedPlanner()
    async with working(planner, **registry(asking=asking)):
        episode_id = await client.start(request_for(executor={"name": "asking"}, **ONE_LINE))
        first = await asked(client, episode_id)
        await signal("resume", episode_id)
        await client.resume(episode_id, note="allow", by="ada")
        said = [await client.respond(episode_id, text) for text in ("it is only a log", "allow", "yes, allow it")]
        still = await client.status(episode_id)
        told = [f"{entry.kind}: {entry.text}" for entry in await client.timeline(episode_id)]
        await client.answer(episode_id, "allow")
        # What was said is planned, although the checks are green by then.
        await asked(client, episode_id, since=first)
        await client.answer(episode_id, "allow")
        result = await client.result(episode_id)
    example = '{"question": "q1", "option": "allow"}'
    assert said == ["the planner will read the message. Question q1 still needs an answer: allow, deny"] * 3
    assert still.questions == first.questions
    assert f"refused: cannot resume: q1 needs a decision: allow, deny. Send an answer, for example: {example}" in told
    assert result.outcome is EpisodeOutcome.SUCCEEDED
    assert [len(order.grants) for order in asking.orders] == [0, 1, 0, 1]
    assert "operator: it is only a log" in planner.briefings[1].notes


async def test_wrong_and_late_answers_get_a_sentence(client, working: Working, request_for, registry) -> None:
    async with working(**registry(asking=AskingExecutor())):
        episode_id = await client.start(request_for(executor={"name": "asking"}, **ONE_LINE))
        await asked(client, episode_id)
        with pytest.raises(
            InvalidRequestError,
            match=r"'done' is not an option of q1 \('append line 1'\)\. Options: allow, deny\. Example",
        ):
            await client.answer(episode_id, "done")
        await client.pause(episode_id, "asked twice")
        await client.answer(episode_id, "allow")
        await client.result(episode_id)
        with pytest.raises(InvalidRequestError, match="closed"):
            await client.answer(episode_id, "allow")


async def test_an_option_of_another_question_is_refused(client, working: Working, request_for) -> None:
    async with working():
        episode_id = await client.start(request_for(budget={"max_iterations": 1}))
        await asked(client, episode_id)
        with pytest.raises(InvalidRequestError, match=r"'allow' is not an option of q1 .* Options: extend, cancel"):
            await client.answer(episode_id, "allow")
        await client.cancel(episode_id)
        await client.result(episode_id)


async def test_a_persons_work_is_adopted_verified_and_recorded(
    client, working: Working, request_for, workspace: Path
) -> None:
    async with working():
        episode_id = await client.start(request_for(executor={"name": "person"}, **ONE_LINE))
        status = await asked(client, episode_id)
        (workspace / "log.txt").write_text("by hand\n")
        await client.answer(episode_id, "done", "wrote it by hand", by="ada")
        result = await client.result(episode_id)
        told = [f"{entry.kind}: {entry.text}" for entry in await client.timeline(episode_id)]
        last = (await client.checkpoints(episode_id))[-1]
    assert status.questions
    assert status.questions[0] is not None
    assert result.outcome is EpisodeOutcome.SUCCEEDED
    assert (result.iterations, result.spent.executor_failures) == (1, 0)
    assert last.tree == result.tree
    assert any(line.startswith("answered: ada chose done for ") and "wrote it by hand" in line for line in told)
    assert (workspace / "log.txt").read_text() == "by hand\n"


async def test_a_bare_resume_does_not_say_that_a_persons_work_is_done(
    client, working: Working, request_for, signal
) -> None:
    async with working():
        episode_id = await client.start(request_for(executor={"name": "person"}, **ONE_LINE))
        await asked(client, episode_id)
        await signal("resume", episode_id)

        async def is_refused() -> bool:
            return any("q1 needs a decision" in entry.text for entry in await client.timeline(episode_id))

        await eventually(is_refused)
        status = await client.status(episode_id)
        await client.cancel(episode_id)
        result = await client.result(episode_id)
    assert [question.id for question in status.questions] == ["q1"]
    assert result.outcome is EpisodeOutcome.CANCELLED


async def test_work_that_a_person_could_not_do_is_a_failed_iteration_and_no_failure_of_the_executor(
    client, working: Working, request_for, cli
) -> None:
    planner = ScriptedPlanner()
    async with working(planner):
        episode_id = await client.start(request_for(executor={"name": "person"}, **ONE_LINE))
        first = await asked(client, episode_id)
        code, out = await cli("answer", episode_id, "failed", "the iron is cold", "--json")
        second = await asked(client, episode_id, since=first)
        shown = (await cli("status", episode_id))[1]

        async def is_listed() -> bool:
            lines = (await cli("list"))[1].splitlines()
            return any(episode_id in line and "NEEDS RESPONSE" in line for line in lines)

        await eventually(is_listed)
        await client.cancel(episode_id)
        result = await client.result(episode_id)
    assert (code, json.loads(out)["id"]) == (0, episode_id)
    assert second.iteration == 2
    assert "the iron is cold" in str(planner.briefings[1].plan_request)
    assert result.spent.executor_failures == 0
    assert "NEEDS RESPONSE" in shown
    assert f"tightloop answer {episode_id} done" in shown


@pytest.mark.parametrize("answer", ["allow", "deny"])
async def test_a_real_agent_process_waits_for_the_person_and_goes_on_in_its_session(
    client, working: Working, request_for, workspace: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, answer: str
) -> None:
    """Over the Agent Client Protocol: the process ends while the person thinks, its session does not."""
    monkeypatch.setenv("TIGHTLOOP_HOME", str(tmp_path / "home"))
    choice = {
        "name": "acp",
        "mode": "full",
        "permissions": "ask",
        "options": {"argv": [sys.executable, str(ACP_AGENT), "works", "resume"]},
    }
    async with working():
        episode_id = await client.start(request_for(executor=choice, definition_of_done=["test -f made.txt"]))
        status = await asked(client, episode_id)
        await client.answer(episode_id, answer, by="ada")
        if answer == "allow":
            assert (await client.result(episode_id)).outcome is EpisodeOutcome.SUCCEEDED
        else:
            await asked(client, episode_id, since=status)
            await client.cancel(episode_id)
            await client.result(episode_id)
        deliveries = open_outbox(workspace).deliveries(episode_id)
        told = [f"{entry.kind}: {entry.text}" for entry in await client.timeline(episode_id)]
    assert status.questions
    assert "echo made > made.txt" in status.questions[0].title
    reports = [delivery.report for delivery in deliveries if delivery.report is not None]
    assert reports[0].status is ExecutorStatus.NEEDS_PERSON
    assert reports[0].resume is not None
    assert reports[1].status is (ExecutorStatus.COMPLETED if answer == "allow" else ExecutorStatus.REFUSED)
    assert (workspace / "made.txt").exists() is (answer == "allow")
    [session] = (tmp_path / "home" / "homes").glob(f"*/acp/{reports[0].resume.session_id}.log")
    assert "resumed" in session.read_text()
    assert any(
        line.startswith(f"answered: ada chose {answer} for ") and "echo made > made.txt" in line for line in told
    )
