"""Every kind of wait of an episode is answered by the client, on the command line, and by the JSON of the details."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from temporalio.client import Client

from activities.executor.choose import executors
from tests.support.doubles import AskingExecutor, BreakingExecutor, ScriptedPlanner, gives_up, planned
from tests.support.episodes import Working, eventually, scripted
from tightloop.cli.main import app
from tightloop.client import TightloopClient
from tightloop.episode.planning import Briefing, PlannerAnswer
from tightloop.executor.message import PlannedStep
from tightloop.run.question import Question, QuestionKind
from worker.build import build_executor_dependencies

NEVER = ["echo nope; false"]
CIRCLING = scripted(*({"write": [{"path": "app.py", "text": f"{word} = 0\n"}]} for word in ("one", "two")))
CHEATING = scripted({"write": [{"path": "done.txt", "text": "1"}, {"path": "check.sh", "text": "exit 0\n"}]})
ENDING = scripted({"write": [{"path": ".tightloop-ending", "text": "impossible: the API was removed\n"}]})
LIMITED = scripted({"limit_tries": 3, "retry_after_s": 0.01}).evolve(retries=3)
FORCE = planned("bring the branch up to date")
assert FORCE.message is not None
PUSH = PlannedStep(title="bring the branch up to date", run=("git", "push", "--force", "origin", "main"))
FORCE = FORCE.evolve(message=FORCE.message.evolve(steps=(PUSH,)))

KINDS: dict[QuestionKind, tuple[str, dict[str, Any]]] = {
    QuestionKind.OPERATOR: ("resume", {}),
    QuestionKind.BUDGET: ("extend", {"definition_of_done": NEVER, "budget": {"max_iterations": 1}}),
    QuestionKind.REPEATED_ERROR: (
        "continue",
        {"definition_of_done": NEVER, "pause_after": 2, "executor": scripted({})},
    ),
    QuestionKind.DEVIATION: (
        "continue",
        {"definition_of_done": NEVER, "executor": CIRCLING},
    ),
    QuestionKind.LIMIT: ("retry", {"executor": LIMITED}),
    QuestionKind.FATAL: ("retry", {"executor": scripted({"status": "fatal", "error": "no key"})}),
    QuestionKind.SETUP: ("skip", {}),
    QuestionKind.ALREADY_GREEN: ("continue", {"definition_of_done": ["test -f app.py"], "attended": True}),
    QuestionKind.PLANNER_GAVE_UP: ("retry", {}),
    QuestionKind.IMPOSSIBLE: ("work", {"executor": ENDING}),
    QuestionKind.ALIGNMENT: ("refuse", {}),
    QuestionKind.PROOF: ("work", {"definition_of_done": ["test -f done.txt && sh check.sh"], "executor": CHEATING}),
    QuestionKind.PERMISSION: ("deny", {"executor": {"name": "asking"}}),
    QuestionKind.CRASH: ("verify", {"executor": {"name": "breaking", "on_crash": "ask"}}),
    QuestionKind.WORK: ("failed", {"executor": {"name": "person"}}),
    QuestionKind.DRIFT: ("undo", {"definition_of_done": NEVER}),
}
PLANNERS = {QuestionKind.PLANNER_GAVE_UP: gives_up(), QuestionKind.ALIGNMENT: FORCE}
Way = Callable[[Question, str], Awaitable[None]]


def edits(workspace: Path) -> Callable[[Briefing], PlannerAnswer]:
    """Somebody edits the workspace while a plan is made."""

    def answer(_: Briefing) -> PlannerAnswer:
        (workspace / "mine.txt").write_text("mine\n")
        return planned()

    return answer


@pytest.fixture
def ways(client: TightloopClient, temporal_client: Client, settings) -> Callable[[str, str], Way]:
    """How the question of an episode can be answered."""

    def way(name: str, episode_id: str) -> Way:
        async def by_client(question: Question, option: str) -> None:
            await client.answer(episode_id, option, question=question.id, by="ada")

        async def by_command(question: Question, option: str) -> None:
            words = ["answer", episode_id, option, "--question", question.id, "--by", "ada"]
            done = await asyncio.to_thread(CliRunner().invoke, app, ["--address", settings.temporal.address, *words])
            assert done.exit_code == 0, done.output

        async def by_update(question: Question, option: str) -> None:
            handle = temporal_client.get_workflow_handle(episode_id)
            details = (await handle.query("__temporal_workflow_metadata")).current_details
            [row] = [line for line in details.splitlines() if line.startswith(f"| {option}: ")]
            value = json.loads(row.split("`")[-2])
            assert value == {"question": question.id, "option": option}
            await handle.execute_update("answer", value)

        return {"client": by_client, "command": by_command, "update": by_update}[name]

    return way


@pytest.mark.parametrize("name", ["client", "command", "update"])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.value)
async def test_every_kind_of_wait_is_answered_in_three_ways(
    client: TightloopClient,
    working: Working,
    request_for,
    settings,
    ways,
    workspace: Path,
    git,
    kind: QuestionKind,
    name,
) -> None:
    (workspace / "check.sh").write_text("grep -q right app.py\n")
    if kind is QuestionKind.SETUP:
        (workspace / "requirements.txt").write_text("six==1.17.0\n")
    git(workspace, "add", "--all")
    git(workspace, "commit", "--quiet", "-m", "check")
    option, changes = KINDS[kind]
    answer = PLANNERS.get(kind)
    planner = ScriptedPlanner(lambda _: answer) if answer is not None else ScriptedPlanner()
    if kind is QuestionKind.DRIFT:
        planner = ScriptedPlanner(edits(workspace))
    episode_id = await client.start(request_for(**changes))
    if kind is QuestionKind.OPERATOR:
        await client.pause(episode_id, "lunch")

    async def waiting() -> tuple[Question, ...]:
        return (await client.status(episode_id)).questions

    async def answered() -> bool:
        status = await client.status(episode_id)
        return status.outcome is not None or all(each.id != question.id for each in status.questions)

    async with working(
        planner,
        executors=executors(
            build_executor_dependencies(settings), {"asking": AskingExecutor(), "breaking": BreakingExecutor()}
        ),
    ):
        [question] = await eventually(waiting)
        await ways(name, episode_id)(question, option)
        await eventually(answered)
        told = [entry.text for entry in await client.timeline(episode_id)]
        if (await client.status(episode_id)).outcome is None:
            await client.cancel(episode_id)
        await client.result(episode_id)
    assert question.kind is kind
    assert option in question.names
    by = "operator" if name == "update" else "ada"
    assert kind is QuestionKind.OPERATOR or any(line.startswith(f"{by} chose {option} for ") for line in told)


def test_every_kind_that_an_episode_asks_is_here() -> None:
    of_plans = {
        QuestionKind.GATE,
        QuestionKind.POLICY,
        QuestionKind.FAILED_STEP,
        QuestionKind.UNMET,
        QuestionKind.CLARIFICATION,
    }
    assert set(KINDS) | of_plans == set(QuestionKind)


async def test_a_caller_that_is_cancelled_is_cancelled(client: TightloopClient, request_for) -> None:
    episode_id = await client.start(request_for())
    # No worker is there, so the answer would be waited for.
    calling = asyncio.create_task(client.answer(episode_id, "approve"))
    done, _ = await asyncio.wait([calling], timeout=1.0)
    assert not done
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling
