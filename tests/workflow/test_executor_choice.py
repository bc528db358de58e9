"""Who works: a fallback, another executor while the episode runs, mistyped names, a person with a whole plan."""

import asyncio
import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from activities.executor.outbox import open_outbox
from tests.support.doubles import AppendingExecutor, AskingExecutor
from tests.support.episodes import Working, asked, eventually
from tests.support.loops import ended
from tightloop.cli.main import app
from tightloop.episode.control import ExecutorAmendment
from tightloop.episode.model import EpisodeOutcome, EpisodeStatus
from tightloop.errors import InvalidRequestError
from tightloop.executor.model import OnCrash
from tightloop.host import state_folder
from tightloop.run.question import QuestionKind
from worker.build import build_adapters

ONE_LINE = {"definition_of_done": ["test -f log.txt"]}


async def test_a_fallback_works_where_the_first_choice_cannot(
    client, working: Working, request_for, registry, workspace: Path
) -> None:
    absent = AskingExecutor(reason="it is not installed: npm install -g asking")
    async with working(**registry(absent=absent, appending=AppendingExecutor())):
        request = request_for()
        choice = request.executor.evolve(name="absent", fallback=("appending",), model="m")
        episode_id = await client.start(request_for(executor=choice))
        result = await client.result(episode_id)
        told = [f"{entry.kind}: {entry.text}" for entry in await client.timeline(episode_id)]
        shown = await client.status(episode_id)
        report = open_outbox(workspace).deliveries(episode_id)[0].report
    assert result.outcome is EpisodeOutcome.SUCCEEDED
    assert report is not None
    assert report.executor == "appending"
    assert shown.executor == "appending in place of absent"
    assert any("appending replaces absent: absent: it is not installed: npm install" in line for line in told)


async def test_no_usable_executor_pauses_with_every_reason_and_another_one_fixes_it(
    client, working: Working, request_for, registry
) -> None:
    one, two = AskingExecutor(reason="no program"), AskingExecutor(reason="no key")
    async with working(**registry(one=one, two=two)):
        request = request_for()
        choice = request.executor.evolve(name="one", fallback=("two",))
        episode_id = await client.start(request_for(executor=choice))
        status = await asked(client, episode_id)
        changes = ExecutorAmendment(name="scripted", fallback=(), on_crash=OnCrash.VERIFY)
        await client.amend(episode_id, executor=changes)
        await client.resume(episode_id)
        result = await client.result(episode_id)
        amended = await client.request(episode_id)
    assert status.questions
    assert status.questions[0].kind is QuestionKind.FATAL
    assert "one: no program; two: no key" in status.questions[0].title
    assert result.outcome is EpisodeOutcome.SUCCEEDED
    assert (amended.executor.name, amended.executor.on_crash) == ("scripted", OnCrash.VERIFY)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            {"executor": {"name": "askng"}},
            r"unknown executor 'askng'\. Did you mean asking\? Executors on this worker: ",
        ),
        (
            {"executor": {"name": "scripted", "fallback": ["askng"]}},
            r"unknown executor 'askng'\. Did you mean asking\?",
        ),
    ],
)
async def test_mistyped_names_that_only_the_worker_knows_are_refused_when_the_workspace_is_opened(
    client, working: Working, request_for, registry, change, sentence
) -> None:
    async with working(**registry(asking=AskingExecutor())):
        episode_id = await client.start(request_for(**change))
        result = await client.result(episode_id)
    assert result.outcome is EpisodeOutcome.FAILED
    assert re.search(sentence, result.reason), result.reason


async def test_a_mistyped_executor_of_a_running_episode_is_fixed(
    client, working: Working, request_for, registry, cli
) -> None:
    async with working(**registry(asking=AskingExecutor())):
        episode_id = await client.start(request_for(budget={"max_iterations": 1}))
        await asked(client, episode_id)
        with pytest.raises(InvalidRequestError, match=r"unknown executor 'scrpted'\. Did you mean 'scripted'\?"):
            await client.amend(episode_id, executor="scrpted")
        await client.amend(episode_id, executor="askng")
        await client.top_up(episode_id, iterations=5)

        async def fatal() -> EpisodeStatus | None:
            status = await client.status(episode_id)
            return status if status.questions and status.questions[0].kind is QuestionKind.FATAL else None

        status = await eventually(fatal)
        code, out = await cli("amend", episode_id, "--executor", "scripted")
        await client.resume(episode_id)
        result = await client.result(episode_id)
    assert "Did you mean asking?" in status.questions[0].title
    assert code == 0, out
    assert result.outcome is EpisodeOutcome.SUCCEEDED


async def test_start_takes_who_works_and_how_and_says_that_nobody_is_there_yet(
    settings, client, working: Working, workspace: Path, tmp_path: Path
) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(settings.as_yaml().replace("api_key: '**********'", "api_key: ''"))
    command = ["--settings", str(file), "start", "one line", "--workspace", str(workspace), "--done", "test -f log.txt"]
    command += ["--executor", "person", "--fallback", "command", "--on-crash", "ask", "--json"]
    done = await asyncio.to_thread(CliRunner().invoke, app, command)
    assert done.exit_code == 0, done.output
    episode_id = json.loads(done.stdout)["id"]
    async with working():
        await asked(client, episode_id)
        choice = (await client.request(episode_id)).executor
        again = await asyncio.to_thread(CliRunner().invoke, app, [*command, "--id", "second"])
        await client.cancel(episode_id)
        await client.result(episode_id)
    waiting = f"{episode_id} is waiting because no worker is polling task queue '{settings.temporal.task_queue}'"
    assert waiting in done.stderr
    assert (choice.name, choice.fallback, choice.on_crash) == ("person", ("command",), OnCrash.ASK)
    assert "no worker is polling" not in again.stderr
    assert f"{episode_id} is using {workspace}" in again.stderr.replace("\n", " ")


async def test_without_a_model_an_executor_that_takes_whole_plans_gets_the_goal_and_what_fails(
    client, temporal_client, settings, working: Working, request_for, workspace: Path
) -> None:
    heuristic = build_adapters(temporal_client, settings).planners
    check = "echo 'the log is missing'; test -f log.txt"
    async with working(planners=heuristic):
        episode_id = await client.start(
            request_for(goal="keep a log", executor={"name": "person"}, definition_of_done=[check])
        )
        status = await asked(client, episode_id)
        [plan] = (state_folder(workspace) / "inbox").glob("*.md")
        told = plan.read_text()
        (workspace / "log.txt").write_text("by hand\n")
        await client.answer(episode_id, "done")
        result = await client.result(episode_id)
    assert status.questions
    assert "keep a log" in told
    assert "the log is missing" in told
    assert any(str(plan) in line for line in status.questions[0].evidence)
    assert result.outcome is EpisodeOutcome.SUCCEEDED


@pytest.mark.parametrize("kind", ["project plan", "plan of steps"])
async def test_plans_run_a_program_that_only_their_command_line_names(
    kind: str, client, temporal_client, settings, working: Working, workspace: Path, tmp_path: Path
) -> None:
    """The worker's settings know nothing of the program, and the worker keeps running."""
    file, plan_file, run = tmp_path / "settings.yaml", workspace / "plan.yaml", kind.replace(" ", "-")
    file.write_text(settings.as_yaml().replace("api_key: '**********'", "api_key: ''"))
    argv = ["sh", "-c", 'head -1 "$1" > made.txt', "agent", "{plan_file}"]
    who = ("--executor", "command", "--executor-option", f"argv={json.dumps(argv)}", "--workspace", str(workspace))
    if kind == "project plan":
        command = ["loop", "plan", "make it", "--gate", "test -s made.txt", "--planner", "heuristic", "--id", run, *who]
    else:
        step = {"id": "make", "episode": {"goal": "make it", "definition_of_done": ["test -s made.txt"]}}
        plan_file.write_text(
            json.dumps(
                {
                    "id": "own",
                    "title": "Make it",
                    "definition_of_done": step["episode"]["definition_of_done"],
                    "steps": [step],
                }
            )
        )
        command = ["plan", "run", str(plan_file), "--id", run, *who]
    async with working(planners=build_adapters(temporal_client, settings).planners):
        done = await asyncio.to_thread(CliRunner().invoke, app, ["--settings", str(file), *command])
        assert done.exit_code == 0, done.output
        if kind == "project plan":
            await client.dispatch(run)
            await ended(client, run)
            await client.verify(run)
        result = await client.result(run)
    assert result.outcome in ("VERIFIED", "COMPLETED"), result.reason
    assert (workspace / "made.txt").read_text().strip()
