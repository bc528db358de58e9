"""What a person says leads to work, also where the checks are green already."""

from pathlib import Path

import pytest

from activities.executor.port import Control, Executor
from activities.planner.planners import HeuristicPlanner
from tests.support.doubles import ScriptedPlanner, claims_done, gives_up, planned
from tests.support.episodes import Working, asked, eventually
from tightloop.client import TightloopClient
from tightloop.episode.budget import Budget
from tightloop.episode.fixes import RuffRules
from tightloop.episode.model import EpisodeOutcome, EpisodePhase
from tightloop.episode.planning import Briefing, PlannerAnswer
from tightloop.errors import WrongStateError
from tightloop.executor.model import ExecutorChoice, ExecutorOutcome, ExecutorStatus, WorkOrder
from tightloop.run.question import QuestionKind


class Obedient(Executor):
    """Cheats until somebody asks for the right thing."""

    def __init__(self) -> None:
        self.prompts: list[str] = []

    def execute(self, order: WorkOrder, control: Control, state_folder: Path) -> ExecutorOutcome:
        """Do it right where the prompt says so."""
        self.prompts.append(order.prompt)
        root = Path(order.root)
        if "fix app.py" in order.prompt:
            (root / "check.sh").write_text("grep -q right app.py\n")
            (root / "app.py").write_text("right = 1\n")
        else:
            (root / "check.sh").write_text("exit 0\n")
        return ExecutorOutcome(status=ExecutorStatus.COMPLETED, summary="done")


@pytest.fixture
def project(workspace: Path, git) -> Path:
    (workspace / "check.sh").write_text("grep -q right app.py\n")
    git(workspace, "add", "--all")
    git(workspace, "commit", "--quiet", "-m", "check")
    return workspace


def agent(executor: Executor, planner: object) -> dict[str, object]:
    return {"executors": lambda _name: executor, "planners": lambda _kind: planner}


class NoRuff:
    """A ruff that can fix nothing."""

    def rules(self, start: tuple[str, ...], root: Path) -> RuffRules:
        """Return no rules."""
        return RuffRules()


HEURISTIC = HeuristicPlanner(NoRuff())


@pytest.mark.parametrize("how", ["respond", "answer", "twice"])
async def test_words_at_a_pause_with_green_checks_reach_the_executor(
    how: str, client: TightloopClient, working: Working, request_for, project: Path
) -> None:
    executor = Obedient()
    async with working(**agent(executor, HEURISTIC)):
        choice = ExecutorChoice(name="scripted")
        episode_id = await client.start(request_for(definition_of_done=["sh check.sh"], executor=choice))
        status = await asked(client, episode_id)
        match how:
            case "respond":
                await client.respond(episode_id, "undo that and fix app.py")
            case "twice":
                await client.respond(episode_id, "undo that")
                await client.respond(episode_id, "and fix app.py")
            case _:
                await client.answer(episode_id, "work", text="undo that and fix app.py")
        if how == "twice":
            await client.resume(episode_id)
        result = await client.result(episode_id)
    assert status.questions[0].kind is QuestionKind.PROOF
    assert result.outcome is EpisodeOutcome.SUCCEEDED
    assert any("fix app.py" in prompt for prompt in executor.prompts[1:])
    assert (project / "app.py").read_text() == "right = 1\n"


async def test_an_answer_that_changes_nothing_leads_to_the_same_question(
    client: TightloopClient, working: Working, request_for, project: Path
) -> None:
    executor = Obedient()
    async with working(**agent(executor, HEURISTIC)):
        choice = ExecutorChoice(name="scripted")
        episode_id = await client.start(request_for(definition_of_done=["sh check.sh"], executor=choice))
        first = await asked(client, episode_id)
        await client.answer(episode_id, "work", by="ada")
        second = await asked(client, episode_id, since=first)
        await client.answer(episode_id, "work", text="undo that and fix app.py")
        result = await client.result(episode_id)
    assert [(q.kind, q.title) for q in first.questions] == [(q.kind, q.title) for q in second.questions]
    assert second.questions[0].kind is QuestionKind.PROOF
    assert (second.iteration, len(executor.prompts)) == (2, 3)
    assert result.outcome is EpisodeOutcome.SUCCEEDED


async def test_words_while_the_planner_works_are_read_before_the_episode_ends(
    client: TightloopClient, working: Working, request_for, workspace: Path
) -> None:
    said: list[str] = []

    class Slow(ScriptedPlanner):
        async def plan(self, briefing: Briefing) -> PlannerAnswer:
            if briefing.iteration == 1:
                said.append(await client.respond(episode_id, "also write docs.md"))
            return await super().plan(briefing)

    planner = Slow(lambda briefing: planned("once") if briefing.iteration == 1 else claims_done())
    async with working(planner):
        episode_id = await client.start(request_for(definition_of_done=["test -f log.txt"]))
        result = await client.result(episode_id)
    assert said == ["the planner will read the message"]
    assert result.iterations == 2
    assert any("also write docs.md" in note for note in planner.briefings[1].notes)
    assert (workspace / "log.txt").read_text() == "1\n2\n", "the claim that nothing is left became a delivery"


async def test_words_at_a_spent_budget_are_read_after_the_top_up(
    client: TightloopClient, working: Working, request_for
) -> None:
    planner = ScriptedPlanner()
    async with working(planner):
        episode_id = await client.start(request_for(budget=Budget(max_iterations=2)))
        await asked(client, episode_id)
        answer = await client.respond(episode_id, "shorter lines")
        with pytest.raises(WrongStateError, match="extend, cancel"):
            await client.resume(episode_id)
        still = await client.status(episode_id)
        await client.top_up(episode_id, iterations=3)
        await client.result(episode_id)
    assert "still needs an answer" in answer
    assert still.questions[0].kind is QuestionKind.BUDGET
    assert "operator: shorter lines" in planner.briefings[2].notes


async def test_words_at_an_operators_pause_are_work_although_the_checks_turned_green(
    client: TightloopClient, working: Working, request_for, workspace: Path
) -> None:
    paused = False

    class Pausing(Executor):
        def execute(self, order: WorkOrder, control: Control, state_folder: Path) -> ExecutorOutcome:
            """Leave one line."""
            with (Path(order.root) / "log.txt").open("a") as log:
                log.write(f"{'docs.md' in order.prompt}\n")
            return ExecutorOutcome(status=ExecutorStatus.COMPLETED, summary="appended")

    async def is_executing() -> bool:
        return (await client.status(episode_id)).phase is not EpisodePhase.OPENING

    async def is_paused() -> bool:
        return (await client.status(episode_id)).status == "paused"

    async with working(**agent(Pausing(), HEURISTIC)):
        choice = ExecutorChoice(name="scripted")
        episode_id = await client.start(request_for(definition_of_done=["test -f log.txt && sleep 1"], executor=choice))
        paused = await eventually(is_executing)
        await client.pause(episode_id)
        await eventually(is_paused)
        await client.respond(episode_id, "also write docs.md")
        result = await client.result(episode_id)
    assert paused
    assert result.outcome is EpisodeOutcome.SUCCEEDED
    assert "True\n" in (workspace / "log.txt").read_text()


async def test_words_to_a_planner_that_gave_up_are_read_and_choose_nothing(
    client: TightloopClient, working: Working, request_for
) -> None:
    planner = ScriptedPlanner(lambda briefing: planned("once") if briefing.notes else gives_up("which parser?"))
    async with working(planner):
        episode_id = await client.start(request_for(definition_of_done=["test -f log.txt"]))
        status = await asked(client, episode_id)
        said = await client.respond(episode_id, "the one in lib", by="ada")
        result = await client.result(episode_id)
        told = [entry.kind for entry in await client.timeline(episode_id)]
    assert status.questions[0].kind is QuestionKind.PLANNER_GAVE_UP
    assert said == "the planner will read the message. The episode continues"
    assert "ada: the one in lib" in planner.briefings[-1].notes
    assert result.outcome is EpisodeOutcome.SUCCEEDED
    assert "answered" not in told, "nobody chose an option"


async def test_words_where_a_person_has_to_decide_leave_the_question_open(
    client: TightloopClient, working: Working, request_for, workspace: Path
) -> None:
    def edits(briefing: Briefing) -> PlannerAnswer:
        if briefing.iteration == 1:
            (workspace / "mine.txt").write_text("mine\n")
        return planned()

    async with working(ScriptedPlanner(edits)):
        episode_id = await client.start(request_for())
        status = await asked(client, episode_id)
        said = await client.respond(episode_id, "what is mine.txt?", by="ada")
        still = await client.status(episode_id)
        await client.answer(episode_id, "undo")
        await client.result(episode_id)
    assert (status.questions[0].kind, still.questions) == (QuestionKind.DRIFT, status.questions)
    assert said.startswith("the planner will read the message. Question q1 still needs an answer: ")
    assert not (workspace / "mine.txt").exists()
