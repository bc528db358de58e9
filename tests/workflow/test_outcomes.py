"""An outcome never says more than what happened: work, proof, messages, and work that cannot be done.

Rows of docs/reference/outcomes.md, and the test that produces each on a real server (here, if no file is named):

| row | test |
|---|---|
| files changed, and a check failed before | `test_red_to_green_by_work_is_a_plain_success` |
| all checks passed throughout, or found no tests | `test_checks_that_never_failed_prove_nothing` |
| a check failed once and passed when repeated | `test_a_check_that_fails_at_random_...` (two tests) |
| the executor changed nothing | `test_a_success_without_a_changed_file_says_so` |
| the planner claimed at once | `test_a_claim_without_any_work_is_named` |
| only a person edited files | `test_edits_of_a_person_are_no_work_of_the_run` (episode, plan) |
| a person answered `accept` | `test_a_person_accepts_or_cancels`; of a project: `test_loop.py` |
| all steps ran and are proven | `test_a_plan_whose_steps_make_its_checks_pass_is_completed` |
| no definition of done; steps skipped, by `when`, or failed and tolerated | `test_outcome_cases.py` |
| steps partly done | `test_a_nested_plan_says_what_it_left_out` |
| dry run | `test_plan.py` |
| verified | `test_loop.py` |
| a task without a proof; undone work | `test_loop_failures.py`: `test_verified_says_what_is_not_proven` |
| failed: checks, budget, killed | `test_checks_that_fail_or_are_killed_end_the_run` (episode, plan) |
| failed: a task or a gate, also killed | `test_loop_failures.py`: `test_plan_with_a_...` |
| compensated | `test_plan_recovery.py`, `test_plan_real.py` |
| a person ended the run | `test_a_person_accepts_or_cancels`; of a project: `test_loop_failures.py` |
"""

import asyncio
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.support.doubles import ScriptedPlanner, claims_done, planned
from tests.support.episodes import APPEND, Working, asked, eventually, scripted
from tests.support.extent import draw_seed, part
from tests.support.line_writing import PLAN, line_request
from tests.support.model_server import ModelServer, says
from tests.support.stack.stack import Stack, shared_state, wait_for_port
from tightloop.cli.main import app
from tightloop.client import TightloopClient
from tightloop.episode.check import Check
from tightloop.episode.model import EpisodeOutcome, EpisodeResult, EpisodeStatus
from tightloop.episode.planning import Briefing, PlannerAnswer
from tightloop.errors import InvalidRequestError, ServiceUnavailableError
from tightloop.plan.request import PlanOutcome, PlanRequest, PlanResult
from tightloop.run.outcome import exit_code
from tightloop.run.question import QuestionKind

RED = "grep -q 2 log.txt"
GREEN = "test -f app.py"
ENDING = ".tightloop-ending"
Files = Callable[[dict[str, str]], None]


@pytest.fixture
def files(workspace: Path, git) -> Files:
    """Commit files to the project."""

    def commit(contents: dict[str, str]) -> None:
        for name, text in contents.items():
            (workspace / name).write_text(text)
        git(workspace, "add", "--all")
        git(workspace, "commit", "--quiet", "-m", "files")

    return commit


def once(briefing: Briefing) -> PlannerAnswer:
    """Plan one step, and then claim that the goal is met."""
    return planned() if briefing.iteration == 1 else claims_done()


async def run(client: TightloopClient, request: Any) -> EpisodeResult:
    episode_id = await client.start(request)
    result = await client.result(episode_id)
    status = await client.status(episode_id)
    assert isinstance(result, EpisodeResult)
    assert (status.qualifier, status.files_changed) == (result.qualifier, result.files_changed)
    closed = [entry.text for entry in await client.timeline(episode_id) if entry.kind == "closed"]
    assert closed[-1].startswith(f"SUCCEEDED, {result.qualifier}"[:200] if result.qualifier else "SUCCEEDED: ")
    return result


def plan(*steps: str, done: str, more: str = "") -> str:
    return f"id: p\ntitle: p\n{more}definition_of_done: [{done}]\nsteps:\n" + "".join(f"- {step}\n" for step in steps)


async def complete(client: TightloopClient, workspace: Path, *steps: str, done: str) -> PlanResult:
    """Run a plan to its end."""
    source = plan(*steps, done=json.dumps(done))
    result = await client.result(await client.start(PlanRequest(workspace=str(workspace), source=source)))
    assert isinstance(result, PlanResult)
    return result


async def accept_proof(client: TightloopClient, run_id: str) -> EpisodeResult | PlanResult:
    """Wait for a question about the proof, accept the files, and return the result."""
    status = await asked(client, run_id)
    assert [question.kind for question in status.questions] == [QuestionKind.PROOF]
    await client.answer(run_id, "accept", by="ada")
    result = await client.result(run_id)
    assert "ada accepted the result despite this finding: " in result.qualifier
    return result


async def test_red_to_green_by_work_is_a_plain_success(client: TightloopClient, working: Working, request_for) -> None:
    async with working():
        result = await run(client, request_for(definition_of_done=[RED], executor=scripted(APPEND)))
    assert (result.outcome, result.qualifier, result.files_changed) == (EpisodeOutcome.SUCCEEDED, "", 1)


@pytest.mark.parametrize("check", [GREEN, "echo 'Ran 0 tests in 0.000s'"])
async def test_checks_that_never_failed_prove_nothing(
    client: TightloopClient, working: Working, request_for, check: str
) -> None:
    async with working(ScriptedPlanner(once)):
        result = await run(client, request_for(definition_of_done=[check], executor=scripted(APPEND)))
    assert (result.qualifier, result.files_changed) == ("not proven: no check ever failed", 1)


async def test_a_claim_without_any_work_is_named(
    client: TightloopClient, working: Working, request_for, settings
) -> None:
    async with working(ScriptedPlanner(lambda _: claims_done())):
        episode_id = await client.start(request_for(definition_of_done=[GREEN]))
        result = await client.result(episode_id)
        done = await asyncio.to_thread(
            CliRunner().invoke, app, ["--address", settings.temporal.address, "watch", episode_id]
        )
    assert result.qualifier == "not proven: 0 files changed, no check ever failed"
    assert (done.exit_code, "SUCCEEDED, not proven: 0 files changed" in done.output) == (4, True)


async def test_a_check_that_fails_at_random_was_not_seen_to_fail(
    client: TightloopClient, working: Working, request_for, files: Files
) -> None:
    # Red at the first run in a folder, and green from then on without any change of a tracked file.
    files({".gitignore": "ran\n"})
    async with working(ScriptedPlanner(once)):
        request = request_for(definition_of_done=["test -e ran || { touch ran; false; }"], executor=scripted(APPEND))
        episode_id = await client.start(request)
        status = await asked(client, episode_id)
        await client.answer(episode_id, "accept", by="ada")
        result = await client.result(episode_id)
    assert status.questions[0].kind is QuestionKind.PROOF
    assert result.qualifier.startswith("not proven: no check ever failed (flaky: test -e ran ||")
    assert "ada accepted the result despite this finding: " in result.qualifier


@pytest.mark.parametrize("is_plan", [False, True])
async def test_a_check_that_fails_at_random_during_the_work_was_not_seen_to_fail(
    client: TightloopClient, working: Working, request_for, workspace: Path, files: Files, is_plan: bool
) -> None:
    files({".gitignore": "ran\n"})
    # Green at the start, red at its first run after the work, and green from then on.
    check = "test ! -e log.txt || test -e ran || { touch ran; false; }"
    async with working(ScriptedPlanner(once)):
        if is_plan:
            source = plan("{id: work, run: 'echo 1 > log.txt'}", done=json.dumps(check))
            run_id = await client.start(PlanRequest(workspace=str(workspace), source=source))
        else:
            run_id = await client.start(request_for(definition_of_done=[check], executor=scripted(APPEND)))
        result = await accept_proof(client, run_id)
    assert result.qualifier.startswith("not proven: no check ever failed (flaky: test ! -e log.txt")


async def test_a_check_that_keeps_its_name_but_gets_another_command_has_not_failed(
    client: TightloopClient, working: Working, request_for
) -> None:
    async with working():
        named = {"name": "tests", "run": "test -f absent.txt"}
        request = request_for(definition_of_done=[named], executor=scripted(APPEND), budget={"max_iterations": 1})
        episode_id = await client.start(request)
        await asked(client, episode_id)
        await client.amend(episode_id, definition_of_done=[Check(name="tests", run=GREEN)])
        await client.top_up(episode_id, iterations=3)
        result = await client.result(episode_id)
    assert (result.outcome, result.qualifier) == (EpisodeOutcome.SUCCEEDED, "not proven: no check ever failed")


@pytest.mark.parametrize("is_plan", [False, True])
async def test_a_success_without_a_changed_file_says_so(
    client: TightloopClient, working: Working, request_for, workspace: Path, files: Files, is_plan: bool
) -> None:
    # git ignores the only file that the work makes.
    files({".gitignore": "made\n"})
    async with working():
        if is_plan:
            source = plan("{id: work, run: 'touch made'}", done="test -e made")
            run_id = await client.start(PlanRequest(workspace=str(workspace), source=source))
        else:
            step = {"write": [{"path": "made", "text": "x"}]}
            run_id = await client.start(request_for(definition_of_done=["test -e made"], executor=scripted(step)))
        result = await accept_proof(client, run_id)
    assert result.qualifier.startswith("not proven: 0 files changed")
    assert result.files_changed == 0


@pytest.mark.parametrize("kind", ["episode", "restored episode", "plan"])
async def test_edits_of_a_person_are_no_work_of_the_run(
    client: TightloopClient, working: Working, request_for, workspace: Path, kind: str
) -> None:
    red = "grep -q mine log.txt"
    async with working():
        if kind == "plan":
            source = plan("{id: ask, gate: {approval: {question: 'Go on?'}}}", done=json.dumps(red))
            run_id = await client.start(PlanRequest(workspace=str(workspace), source=source))
        else:
            step = APPEND if kind == "restored episode" else {"sleep": 0}
            fields = {"definition_of_done": [red], "budget": {"max_iterations": 1}}
            run_id = await client.start(request_for(executor=scripted(step), **fields))
        status = await asked(client, run_id)
        if kind == "restored episode":
            await client.restore(run_id, "ckpt-0")
            await eventually(lambda: _on_branch(client, run_id), seconds=60)
            await asked(client, run_id, since=status)
        if kind == "plan":
            await client.pause(run_id, by="ada")
            await eventually(lambda: _is_paused(client, run_id), seconds=60)
        (workspace / "log.txt").write_text("mine\n")
        if kind == "plan":
            await client.resume(run_id)
            await client.answer(run_id, "approve", by="ada")
        else:
            await client.top_up(run_id, iterations=5)
        result = await client.result(run_id)
    assert result.qualifier == "not proven: no executor changed a file"


async def test_a_plan_whose_steps_make_its_checks_pass_is_completed(
    client: TightloopClient, working: Working, workspace: Path
) -> None:
    async with working():
        result = await complete(client, workspace, "{id: work, run: 'echo 2 > log.txt'}", done=RED)
    assert (result.outcome, result.qualifier, result.files_changed) == (PlanOutcome.COMPLETED, "", 1)


@pytest.mark.parametrize("left_out", ["when: '0'", "failure_modes: [{name: red, recover: continue}]"])
async def test_a_nested_plan_says_what_it_left_out(
    client: TightloopClient, working: Working, workspace: Path, left_out: str
) -> None:
    inner = f"[{{id: made, run: 'echo 2 > log.txt'}}, {{id: extra, run: 'false', {left_out}}}]"
    async with working():
        result = await complete(client, workspace, f"{{id: sub, subplan: {{steps: {inner}}}}}", done=RED)
    assert result.qualifier == "1 of 1 step partly done: sub"


KILLED = [
    pytest.param({"run": "test -e absent.txt"}, id="red"),
    pytest.param({"run": "test -e absent.txt || kill -9 $$"}, id="killed by a signal"),
    pytest.param({"run": "test -e absent.txt || sleep 60", "timeout_s": 1}, id="killed at its time limit"),
    pytest.param({"run": "echo 'no tests ran in 0.01s'; test -e absent.txt || exit 5"}, id="no tests"),
]


@pytest.mark.parametrize("is_plan", [False, True])
@pytest.mark.parametrize("check", KILLED)
async def test_checks_that_fail_or_are_killed_end_the_run(
    client: TightloopClient, working: Working, request_for, workspace: Path, check: dict[str, Any], is_plan: bool
) -> None:
    async with working():
        if is_plan:
            source = plan("{id: work, run: 'echo 2 > log.txt'}", done=json.dumps(check), more="on_failure: fail\n")
            run_id = await client.start(PlanRequest(workspace=str(workspace), source=source))
        else:
            fields = {"budget": {"max_iterations": 1}, "pause_timeout": 2}
            run_id = await client.start(request_for(definition_of_done=[check], executor=scripted(APPEND), **fields))
        result = await client.result(run_id)
        status = await client.status(run_id)
    assert (result.outcome, result.qualifier) == ("FAILED", "")
    assert exit_code(status.list_status, status.qualifier, is_closed=True) == 1


@pytest.mark.parametrize("answer", ["accept", "cancel"])
@pytest.mark.parametrize("is_plan", [False, True])
async def test_a_person_accepts_or_cancels(
    client: TightloopClient, working: Working, request_for, workspace: Path, files: Files, answer: str, is_plan: bool
) -> None:
    # The check passes in the working tree only, because git ignores the file that it needs.
    files({".gitignore": "*.log\n"})
    made = "echo 2 > log.txt; echo 2 > only.log"
    async with working():
        if is_plan:
            source = plan(f"{{id: work, run: '{made}'}}", done=json.dumps("grep -q 2 only.log"))
            run_id = await client.start(PlanRequest(workspace=str(workspace), source=source))
        else:
            step = {"append": [{"path": "log.txt", "text": "2\n"}, {"path": "only.log", "text": "2\n"}]}
            request = request_for(definition_of_done=["grep -q 2 only.log"], executor=scripted(step))
            run_id = await client.start(request)
        status = await asked(client, run_id)
        await client.answer(run_id, answer, by="ada")
        result = await client.result(run_id)
    assert status.questions[0].kind is QuestionKind.PROOF
    if answer == "cancel":
        assert (result.outcome, result.qualifier) == ("CANCELLED", "")
    else:
        assert "ada accepted the result despite this finding: " in result.qualifier


async def test_a_restore_and_a_fork_keep_what_was_seen(client: TightloopClient, working: Working, request_for) -> None:
    async with working():
        first = await client.start(request_for(definition_of_done=[RED], executor=scripted(APPEND)))
        await client.result(first)
        await client.restore(first, "ckpt-1")
        restored = await client.result(first)
        second = await client.fork(first, "ckpt-2")
        forked = await client.result(second)
    assert (restored.qualifier, forked.qualifier) == ("", "")
    assert forked.outcome is EpisodeOutcome.SUCCEEDED


async def test_checks_that_replace_the_failed_ones_prove_nothing(
    client: TightloopClient, working: Working, request_for
) -> None:
    async with working():
        request = request_for(definition_of_done=["false"], executor=scripted(APPEND), budget={"max_iterations": 1})
        episode_id = await client.start(request)
        await asked(client, episode_id)
        with pytest.raises(InvalidRequestError, match="always passes"):
            await client.amend(episode_id, definition_of_done=["false || true"])
        await client.amend(episode_id, definition_of_done=[GREEN])
        await client.top_up(episode_id, iterations=3)
        result = await client.result(episode_id)
    assert (result.outcome, result.qualifier) == (EpisodeOutcome.SUCCEEDED, "not proven: no check ever failed")


async def test_a_file_that_the_project_has_is_no_ending(
    client: TightloopClient, working: Working, request_for, files: Files, workspace: Path
) -> None:
    files({ENDING: "impossible: somebody committed this\n"})
    async with working():
        result = await run(client, request_for(definition_of_done=[RED], executor=scripted(APPEND)))
    assert result.qualifier == ""
    assert (workspace / ENDING).exists()


@pytest.mark.parametrize("words", ["impossible", "left red on purpose", "IMPOSSIBLE"])
async def test_work_that_cannot_be_done_is_a_question_after_the_first_delivery(
    words: str, client: TightloopClient, working: Working, request_for, workspace: Path
) -> None:
    ending = {"write": [{"path": ENDING, "text": f"{words}: two checks\ncontradict each other\n"}]}
    async with working():
        episode_id = await client.start(request_for(executor=scripted(ending, APPEND)))
        status = await asked(client, episode_id)
        left = (workspace / ENDING).exists()
        await client.answer(episode_id, "work", text="the second one counts", by="ada")
        await eventually(lambda: _iteration(client, episode_id, 2))
        await client.cancel(episode_id)
        await client.result(episode_id)
    [question] = status.questions
    assert (question.kind, status.iteration) == (QuestionKind.IMPOSSIBLE, 1)
    assert question.title == f"the executor stopped: {words.lower()}: two checks contradict each other"
    assert not left
    assert status.spent.executor_failures == 0


@pytest.mark.parametrize(
    "words",
    [
        "It is impossible to say how long this takes.",
        "I cannot find the config, so I made one.",
        "impossible: that was my first thought, but it works.",
        "left red on purpose: no test, all are green.",
        "This cannot be done in one step; the first step is done.",
    ],
)
async def test_prose_in_a_report_never_decides(
    words: str, client: TightloopClient, working: Working, request_for
) -> None:
    async with working():
        step = {**APPEND, "summary": words}
        result = await run(client, request_for(definition_of_done=[RED], executor=scripted(step)))
    assert result.outcome is EpisodeOutcome.SUCCEEDED


async def test_a_later_question_shows_the_last_words(client: TightloopClient, working: Working, request_for) -> None:
    step = {**APPEND, "summary": "The test contradicts the specification in docs/rules.md."}
    async with working():
        request = request_for(definition_of_done=["false"], executor=scripted(step), budget={"max_iterations": 1})
        episode_id = await client.start(request)
        status = await asked(client, episode_id)
        await client.cancel(episode_id)
        await client.result(episode_id)
    [question] = status.questions
    assert question.kind is QuestionKind.BUDGET
    assert any("contradicts the specification in docs/rules.md" in line for line in question.evidence)


@pytest.mark.timeout(1500)
async def test_every_confirmed_message_is_in_the_next_prompt(workspace: Path, tmp_path: Path) -> None:
    chance, count = random.Random(draw_seed()), part(30, of=500)
    # Each kill costs some seconds.
    kills = set(chance.sample(range(2, count, 2), part(1, of=10)))
    confirmed: list[str] = []
    refused: list[str] = []

    async def send(number: int) -> None:
        text = f"message {number} {'x' * chance.choice((0, 20, 900))}."
        await asyncio.sleep(chance.random() * 0.1)
        try:
            reply = await client.respond(episode_id, text, by="ada")
        except InvalidRequestError as error:
            refused.append(error.message)
            return
        except ServiceUnavailableError:
            return
        assert reply.startswith("the planner will read the message")
        confirmed.append(f"ada: {text}")

    environment = {"OPENAI_API_KEY": "test", **shared_state()}
    with ModelServer(says(PLAN)) as models:
        environment["TIGHTLOOP_PLANNER__BASE_URL"] = models.url
        with Stack(tmp_path / "stack", environment) as stack:
            stack.start_server()
            wait_for_port(stack.settings.temporal.address)
            stack.start_worker()
            client = await TightloopClient.connect(settings=stack.settings)
            episode_id = await client.start(line_request(workspace, 100_000, {}, iterations_per_run=3))
            for first in range(0, count, 2):
                if chance.random() < 0.2:
                    await client.pause(episode_id, "lunch")
                sent = asyncio.gather(send(first), send(first + 1))
                if first in kills:
                    await asyncio.sleep(chance.random() * 0.1)
                    stack.kill_worker()
                    await asyncio.to_thread(stack.start_worker)
                await sent
                await client.resume(episode_id)
                await asyncio.sleep(chance.random() * 0.2)
            asked = len(models.requests)
            # The first of them may have been written before the last message was confirmed.
            await eventually(lambda: _reaches(lambda: len(models.requests) >= asked + 2), seconds=150)
            await client.cancel(episode_id)
    prompts = "\n".join(request.text for request in models.requests)
    assert len(confirmed) > count / 2
    assert all("no room for another" in message for message in refused)
    assert [text for text in confirmed if text not in prompts] == []


async def test_a_message_that_is_too_long_is_refused_and_not_cut(
    client: TightloopClient, working: Working, request_for
) -> None:
    async with working():
        episode_id = await client.start(request_for(definition_of_done=["false"]))
        with pytest.raises(InvalidRequestError, match="4001 characters"):
            await client.respond(episode_id, "x" * 4001)
        await client.cancel(episode_id)
        await client.result(episode_id)


async def _reaches(condition: Callable[[], bool]) -> bool:
    return condition()


async def _is_paused(client: TightloopClient, run_id: str) -> bool:
    return (await client.status(run_id)).list_status == "paused"


async def _on_branch(client: TightloopClient, episode_id: str) -> bool:
    status = await client.status(episode_id)
    return isinstance(status, EpisodeStatus) and status.branch > 0


async def _iteration(client: TightloopClient, episode_id: str, number: int) -> bool:
    status = await client.status(episode_id)
    return status.iteration >= number
