"""Somebody edits files while an episode or a plan works: nothing of theirs vanishes without a word."""

import asyncio
import subprocess
from pathlib import Path

import pytest

from tests.support.doubles import ScriptedPlanner, planned
from tests.support.episodes import RESULT_SECONDS, Working, eventually
from tightloop.cli.views import end_lines
from tightloop.client import RunStatus, TightloopClient
from tightloop.episode.model import EpisodeOutcome
from tightloop.errors import InvalidRequestError
from tightloop.plan.request import PlanOutcome, PlanRequest
from tightloop.run.question import Question, QuestionKind
from tightloop.settings import Settings

PLAN = """
id: steps
steps:
  - {id: one, shell: {run: "echo one >> log.txt"}}
  - {id: look, needs: [one], shell: {run: "mkdir -p __pycache__ && date > __pycache__/x.pyc"}, access: reads}
  - {id: ask, needs: [look], gate: {approval: {question: go on?}}}
  - {id: two, needs: [ask], shell: {run: "echo two >> log.txt"}}
"""


async def asked(client: TightloopClient, workflow_id: str, kind: QuestionKind) -> Question:
    async def question() -> Question | None:
        waiting = (await client.status(workflow_id)).questions
        return next((one for one in waiting if one.kind is kind), None)

    found: Question = await eventually(question, seconds=RESULT_SECONDS)
    return found


async def ended(client: TightloopClient, workflow_id: str) -> RunStatus:
    async with asyncio.timeout(RESULT_SECONDS):
        await client.result(workflow_id)
    return await client.status(workflow_id)


def edit(workspace: Path) -> None:
    with (workspace / "app.py").open("a") as file:
        file.write("# by a person\n")
    (workspace / "my notes.txt").write_text("mine\n")


async def start(client: TightloopClient, workspace: Path) -> str:
    plan_id = await client.start(PlanRequest(workspace=str(workspace), source=PLAN))
    await asked(client, plan_id, QuestionKind.GATE)
    edit(workspace)
    await client.answer(plan_id, "approve", question="ask")
    return plan_id


async def test_plan_asks_about_edits_outside_a_pause_and_keeps_what_is_named(
    client: TightloopClient, working: Working, workspace: Path
) -> None:
    async with working():
        plan_id = await start(client, workspace)
        question = await asked(client, plan_id, QuestionKind.DRIFT)
        assert (workspace / "my notes.txt").exists(), "nothing is undone before somebody says so"
        with pytest.raises(
            InvalidRequestError, match=r"'my note\.txt' does not match any file in .* Did you mean 'my notes\.txt'"
        ):
            await client.answer(plan_id, "keep", "'my note.txt'")
        await client.answer(plan_id, "keep", "my notes.txt")
        status = await ended(client, plan_id)
        result = await client.result(plan_id)
    assert question.title == "somebody else changed 2 files: app.py, my notes.txt. Keep or undo the change?"
    assert [line.partition(" at ")[0] for line in question.evidence] == ["app.py: changed", "my notes.txt: added"]
    assert question.default == "keep"
    assert result.outcome is PlanOutcome.COMPLETED
    assert (workspace / "log.txt").read_text() == "one\ntwo\n"
    assert (workspace / "my notes.txt").read_text() == "mine\n"
    assert "by a person" not in (workspace / "app.py").read_text()
    told = "\n".join(end_lines(status))
    assert "changes made outside a pause were undone (1 file: app.py" in told
    subprocess.run(status.drifts[0].bring_back, shell=True, check=True, timeout=60)
    assert "by a person" in (workspace / "app.py").read_text()


@pytest.mark.parametrize("word", ["keep", "undo", "resume", "resume: looks good, go on"])
async def test_plan_does_with_all_edits_what_a_person_says(
    client: TightloopClient, working: Working, workspace: Path, word: str
) -> None:
    async with working():
        plan_id = await start(client, workspace)
        await asked(client, plan_id, QuestionKind.DRIFT)
        verb, _, remark = word.partition(": ")
        await (client.resume(plan_id, note=remark) if verb == "resume" else client.answer(plan_id, word))
        status = await ended(client, plan_id)
    is_kept = word != "undo"
    assert status.status == "completed"
    assert (workspace / "my notes.txt").exists() is is_kept
    assert ("by a person" in (workspace / "app.py").read_text()) is is_kept
    assert bool(status.drifts) is not is_kept
    assert not (workspace / "__pycache__").exists(), "what a step that reads left behind is not an edit"


async def test_cancelled_plan_leaves_edits_where_they_are(
    client: TightloopClient, working: Working, workspace: Path
) -> None:
    async with working():
        plan_id = await start(client, workspace)
        await asked(client, plan_id, QuestionKind.DRIFT)
        await client.answer(plan_id, "cancel")
        status = await ended(client, plan_id)
    assert status.status == "cancelled"
    assert (workspace / "my notes.txt").exists()
    assert "kept together with the delivered changes (2 files" in "\n".join(end_lines(status))


class TestUndo:
    """The setting `workspace.drift: undo`."""

    @pytest.fixture
    def settings(self, settings: Settings) -> Settings:
        return settings.evolve(workspace=settings.workspace.evolve(drift="undo"))

    async def test_edits_are_undone_and_the_end_says_how_to_bring_them_back(
        self, client: TightloopClient, working: Working, workspace: Path
    ) -> None:
        async with working():
            plan_id = await start(client, workspace)
            status = await ended(client, plan_id)
        assert status.status == "completed"
        assert not (workspace / "my notes.txt").exists()
        told = end_lines(status)
        assert "changes made outside a pause were undone (2 files: app.py, my notes.txt)" in told
        command = next(line for line in told if "restore the changes" in line).partition("restore the changes: ")[2]
        subprocess.run(command, shell=True, check=True, timeout=60)
        assert (workspace / "my notes.txt").read_text() == "mine\n"
        assert "by a person" in (workspace / "app.py").read_text()


async def test_two_plans_within_a_plan_that_come_upon_edits_ask_once(
    client: TightloopClient, working: Working, workspace: Path
) -> None:
    look = 'subplan: {steps: [{id: a, shell: {run: "cat app.py"}, access: reads}]}, access: reads'
    source = (
        "id: p\nsteps:\n  - {id: ask, gate: {approval: {question: go on?}}}\n"
        f"  - {{id: x, needs: [ask], {look}}}\n  - {{id: y, needs: [ask], {look}}}\n"
        '  - {id: z, needs: [x, y], shell: {run: "echo z > z.txt"}}\n'
    )
    async with working():
        plan_id = await client.start(PlanRequest(workspace=str(workspace), source=source))
        await asked(client, plan_id, QuestionKind.GATE)
        edit(workspace)
        await client.answer(plan_id, "approve", question="ask")
        await asked(client, plan_id, QuestionKind.DRIFT)
        await client.answer(plan_id, "keep")
        status = await ended(client, plan_id)
        told = [f"{event.kind} {event.text}" for event in await client.timeline(plan_id)]
    assert status.status == "completed"
    assert sum("drift: somebody else changed 2 files" in line for line in told) == 1, told
    assert (workspace / "my notes.txt").exists()


async def test_episode_asks_about_edits_outside_a_pause(
    client: TightloopClient, working: Working, request_for, workspace: Path
) -> None:
    def meddle(briefing):
        if briefing.iteration == 2:
            edit(workspace)
        return planned()

    async with working(ScriptedPlanner(meddle)):
        episode_id = await client.start(request_for())
        question = await asked(client, episode_id, QuestionKind.DRIFT)
        await client.answer(episode_id, "undo", "app.py")
        result = await client.result(episode_id)
        status = await client.status(episode_id)
    assert question.paths == ("app.py", "my notes.txt")
    assert result.outcome is EpisodeOutcome.SUCCEEDED
    assert (workspace / "my notes.txt").read_text() == "mine\n"
    assert "by a person" not in (workspace / "app.py").read_text()
    assert [drift.paths for drift in status.drifts] == [("app.py",)]
    assert (workspace / "log.txt").read_text() == "1\n2\n3\n"


async def test_remark_of_a_resume_is_not_a_list_of_files(
    client: TightloopClient, working: Working, request_for, workspace: Path
) -> None:
    def meddle(briefing):
        if briefing.iteration == 2:
            edit(workspace)
        return planned()

    async with working(ScriptedPlanner(meddle)):
        episode_id = await client.start(request_for())
        await asked(client, episode_id, QuestionKind.DRIFT)
        await client.resume(episode_id, note="looks good, go on")
        result = await client.result(episode_id)
        status = await client.status(episode_id)
        timeline = await client.timeline(episode_id)
    assert any("looks good, go on" in line.text for line in timeline)
    assert (result.outcome, status.drifts) == (EpisodeOutcome.SUCCEEDED, ())
    assert "by a person" in (workspace / "app.py").read_text()
    assert (workspace / "my notes.txt").read_text() == "mine\n"
