"""All checks pass before any work: a question in a terminal, a check of the model, or a qualified success."""

import asyncio
import json
import os
import pty
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from activities.model.client import ModelService
from activities.planner.planners import OpenAIPlanner
from activities.planner.writers import check_writers
from tests.support.doubles import ScriptedPlanner, claims_done, planned
from tests.support.episodes import APPEND, Working, asked, scripted
from tests.support.gateway import gateway
from tests.support.line_writing import PLAN
from tests.support.mcp import call, over_http
from tests.support.model_server import Asked, ModelServer, Reply, says
from tests.support.stack.stack import ROOT
from tightloop.client import TightloopClient
from tightloop.database.ledger import open_ledger
from tightloop.episode.model import EpisodeOutcome, EpisodeRequest, EpisodeStatus
from tightloop.episode.planning import Briefing, PlannerAnswer
from tightloop.errors import InvalidRequestError
from tightloop.run.question import QuestionKind
from tightloop.safety.seal import Role
from tightloop.settings import Settings

GREEN = "test -f app.py"
RED = "grep -q 1 log.txt"
Requests = Callable[..., EpisodeRequest]


def once(briefing: Briefing) -> PlannerAnswer:
    """Plan one step, and then claim that the goal is met."""
    return planned() if briefing.iteration == 1 else claims_done()


async def in_a_terminal(settings: Settings, *arguments: str) -> str:
    """Run a command whose standard input is a terminal, and return what it prints."""
    ours, theirs = pty.openpty()
    try:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tightloop.cli.main", "--address", settings.temporal.address, *arguments),
            cwd=ROOT,
            env={**os.environ, "TIGHTLOOP_TEMPORAL__TASK_QUEUE": settings.temporal.task_queue},
            stdin=theirs,
            stdout=asyncio.subprocess.PIPE,
        )
        output, _ = await asyncio.wait_for(process.communicate(), 90)
    finally:
        os.close(ours)
        os.close(theirs)
    return output.decode()


@pytest.fixture
def start_arguments(workspace: Path) -> list[str]:
    executor = f"steps={json.dumps([APPEND])}"
    return [
        *("start", "write a line", "--workspace", str(workspace), "--done", GREEN, "--json"),
        *("--executor", "scripted", "--executor-option", executor, "--executor-option", "repeat=true"),
    ]


@pytest.mark.parametrize("option", ["add", "accept", "continue"])
async def test_a_terminal_is_asked_once_and_every_answer_acts(
    option: str, client: TightloopClient, working: Working, settings: Settings, start_arguments: list[str]
) -> None:
    async with working(ScriptedPlanner(once)):
        episode_id = json.loads(await in_a_terminal(settings, *start_arguments))["id"]
        status = await asked(client, episode_id)
        shown = await in_a_terminal(settings, "status", episode_id)
        await in_a_terminal(settings, "answer", episode_id, option, *([RED] if option == "add" else []), "--by", "ada")
        result = await client.result(episode_id)
        timeline = await client.timeline(episode_id)
    [question] = status.questions
    assert (question.kind, question.default) == (QuestionKind.ALREADY_GREEN, "continue")
    assert question.names == ("continue", "add", "accept", "cancel")
    assert question.title.startswith("the only check passes before any work")
    assert question.evidence == (f"passes: {GREEN}",)
    assert f"tightloop answer {episode_id} add COMMAND" in shown
    assert len([entry for entry in timeline if entry.kind == "paused"]) == 1
    expected = {
        "add": ("", 1),
        "accept": ("not proven: 0 files changed, no check ever failed", 0),
        "continue": ("not proven: no check ever failed", 1),
    }
    assert (result.outcome, result.qualifier, result.files_changed) == (EpisodeOutcome.SUCCEEDED, *expected[option])
    assert result.checks == ("2/2" if option == "add" else "1/1")


@pytest.mark.parametrize("changes", [{}, {"attended": True, "keep_green": True}], ids=["no terminal", "keep green"])
async def test_without_a_terminal_or_with_keep_green_nothing_is_asked(
    changes: dict[str, Any], client: TightloopClient, working: Working, request_for: Requests
) -> None:
    async with working(ScriptedPlanner(once)):
        request = request_for(definition_of_done=[GREEN], executor=scripted(APPEND), **changes)
        episode_id = await client.start(request)
        result = await client.result(episode_id)
        timeline = await client.timeline(episode_id)
    assert result.qualifier == "not proven: no check ever failed"
    assert [entry for entry in timeline if entry.kind == "paused"] == []


async def test_keep_green_and_the_terminal_are_in_the_request(
    client: TightloopClient, working: Working, settings: Settings, start_arguments: list[str]
) -> None:
    async with working(ScriptedPlanner(once)):
        started = json.loads(await in_a_terminal(settings, *start_arguments, "--keep-green"))["id"]
        result = await client.result(started)
        request = await client.request(started)
    assert (request.keep_green, request.attended) == (True, True)
    assert result.qualifier == "not proven: no check ever failed"


async def test_a_check_that_cannot_be_added_is_refused_and_the_question_stays(
    client: TightloopClient, working: Working, request_for: Requests
) -> None:
    async with working(ScriptedPlanner(once)):
        episode_id = await client.start(
            request_for(definition_of_done=[GREEN], executor=scripted(APPEND), attended=True)
        )
        before = await asked(client, episode_id)
        for text, problem in (
            ("", "requires an argument: COMMAND"),
            (GREEN, "already in the definition of done"),
            ("pytest -q || true", "always passes"),
            ("grep 'x", "unclosed quote"),
            ("x" * 4_001, "4000 characters"),
        ):
            with pytest.raises(InvalidRequestError, match=problem):
                await client.answer(episode_id, "add", text)
        assert (await client.status(episode_id)).questions == before.questions
        await client.answer(episode_id, "add", GREEN + " && test -f notes.txt", by="ada")
        result = await client.result(episode_id)
        timeline = [f"{entry.kind}: {entry.text}" for entry in await client.timeline(episode_id)]
    # A check that passes as well proves nothing, but it is not asked about again.
    assert (result.qualifier, result.checks) == ("not proven: no check ever failed", "2/2")
    assert len([line for line in timeline if line.startswith("paused")]) == 1


@pytest.mark.parametrize("surface", ["HTTP", "MCP"])
async def test_services_and_assistants_can_add_a_check(
    surface: str, client: TightloopClient, working: Working, request_for: Requests, settings: Settings, tmp_path: Path
) -> None:
    async with gateway(tmp_path, client, settings, open_ledger(settings)) as served, working(ScriptedPlanner(once)):
        request = request_for(definition_of_done=[GREEN], executor=scripted(APPEND), attended=True)
        episode_id = await client.start(request)
        await asked(client, episode_id)
        token = served.token(f"olga-{surface.lower()}", Role.OPERATOR)
        if surface == "HTTP":
            async with served.http(token) as http:
                reply = await http.post(f"/api/episodes/{episode_id}/answer", json={"option": "add", "text": RED})
                assert reply.status_code == 200, reply.text
        else:
            async with over_http(served, token) as assistant:
                await call(assistant, "answer", id=episode_id, option="add", text=RED)
        result = await client.result(episode_id)
    assert (result.qualifier, result.checks) == ("", "2/2")


async def test_a_message_starts_the_work(client: TightloopClient, working: Working, request_for: Requests) -> None:
    planner = ScriptedPlanner(once)
    async with working(planner):
        episode_id = await client.start(
            request_for(definition_of_done=[GREEN], executor=scripted(APPEND), attended=True)
        )
        await asked(client, episode_id)
        assert (await client.respond(episode_id, "keep it short", by="ada")).endswith("The episode continues")
        result = await client.result(episode_id)
    assert "ada: keep it short" in planner.briefings[0].notes
    assert result.qualifier == "not proven: no check ever failed"


# -- with a model -----------------------------------------------------------------------------------------


TEXT = "def shout(text):\n    return text\n"
FIXED = "def shout(text):\n    return text.upper()\n"
TEST = "from text import shout\n\n\ndef test_shout():\n    assert shout('a') == 'A'\n"
PYTEST = f"{sys.executable} -m pytest -q -p no:cacheprovider tests/test_shout.py"


def check(run: str, content: str = "", **changes: Any) -> dict[str, Any]:
    path = "tests/test_shout.py" if content else ""
    return {"run": run, "path": path, "content": content, "cannot": False, "reason": "", **changes}


def model(*checks: dict[str, Any]) -> Callable[[Asked], Reply]:
    """Answer requests for a check in order, and all others with the same plan."""
    left = list(checks)

    def reply(request: Asked) -> Reply:
        return says(left.pop(0) if "Write one\ncheck that fails now" in request.text else PLAN)

    return reply


@pytest.fixture
def fixing(workspace: Path, git: Callable[..., str], request_for: Requests) -> Requests:
    """Requests on a project with a function that is wrong, and an executor that corrects it."""
    (workspace / "text.py").write_text(TEXT)
    (workspace / "conftest.py").write_text("")
    git(workspace, "add", "--all")
    git(workspace, "commit", "--quiet", "-m", "text")

    def build(**changes: Any) -> EpisodeRequest:
        executor = scripted({"write": [{"path": "text.py", "text": FIXED}]})
        fields = {"goal": "shout() must return the text in upper case", "definition_of_done": [GREEN]}
        return request_for(**{**fields, "executor": executor, **changes})

    return build


def asks(server: ModelServer) -> dict[str, Any]:
    service = ModelService(api_key="key-1", base_url=server.url, models=("m1",), timeout_s=60.0)
    return {"planners": lambda _kind: OpenAIPlanner(service), "check_writers": check_writers(service)}


async def test_a_test_that_fails_by_its_assertion_counts(
    client: TightloopClient, working: Working, fixing: Requests, workspace: Path
) -> None:
    with ModelServer(model(check(PYTEST, TEST))) as server:
        async with working(**asks(server)):
            episode_id = await client.start(fixing(attended=True))
            result = await client.result(episode_id)
            request = await client.request(episode_id)
            status = await client.status(episode_id)
            timeline = [f"{entry.kind}: {entry.text}" for entry in await client.timeline(episode_id)]
    assert (result.outcome, result.qualifier, result.checks) == (EpisodeOutcome.SUCCEEDED, "", "2/2")
    # The test is part of the beginning and not of the work.
    assert (result.files_changed, (workspace / "tests/test_shout.py").read_text()) == (1, TEST)
    assert [entry.run for entry in request.definition_of_done] == [GREEN, PYTEST]
    assert f"check: the planner added a check that fails: {PYTEST}" in timeline
    assert not any(line.startswith("paused") for line in timeline)
    assert "def shout(text)" in server.requests[0].text
    assert isinstance(status, EpisodeStatus)
    assert status.spent.tokens > 0


async def test_the_first_checkpoint_is_restored_with_the_test_of_the_planner(
    client: TightloopClient, working: Working, fixing: Requests, workspace: Path
) -> None:
    with ModelServer(model(check(PYTEST, TEST))) as server:
        async with working(**asks(server)):
            episode_id = await client.start(fixing())
            await client.result(episode_id)
            await client.restore(episode_id, "ckpt-0")
            restored = await client.result(episode_id)
            fork = await client.fork(episode_id, "ckpt-0")
            forked = await client.result(fork)
            trees = {record.tree for record in await client.checkpoints(fork)}
    assert (restored.outcome, restored.qualifier, restored.checks) == (EpisodeOutcome.SUCCEEDED, "", "2/2")
    assert (forked.outcome, forked.qualifier, forked.checks) == (EpisodeOutcome.SUCCEEDED, "", "2/2")
    assert (workspace / "tests/test_shout.py").read_text() == TEST
    assert forked.tree in trees


BROKEN = [
    (check(PYTEST, TEST.replace("import shout", "import yell as shout")), "could not be collected"),
    (check(PYTEST, "def test_shout(:\n"), "Your last check does not count"),
    (check(PYTEST, TEST.replace("'A'", "'a'")), "passes before any work"),
    (check(PYTEST, TEST.replace("shout('a')", "shout(1, 2)")), "does not fail by its own assertion"),
    (
        check(PYTEST, "import text\n\n\ndef test_name():\n    assert hasattr(text, 'yell')\n"),
        "only asserts that a name exists",
    ),
    (check(f"{sys.executable} -c 'import texts'"), "ModuleNotFoundError"),
    (check("grep -q upper missing.py"), "exit code 2"),
    (check("no-such-program --check"), "not found"),
    (check("grep -q shout text.py"), "passes before any work"),
]


@pytest.mark.parametrize(("bad", "complaint"), BROKEN)
async def test_a_check_that_breaks_or_passes_does_not_count(
    bad: dict[str, Any],
    complaint: str,
    client: TightloopClient,
    working: Working,
    fixing: Requests,
    workspace: Path,
) -> None:
    with ModelServer(model(bad, check("grep -q upper text.py"))) as server:
        async with working(**asks(server)):
            episode_id = await client.start(fixing())
            result = await client.result(episode_id)
    assert complaint in server.requests[1].text
    assert (result.outcome, result.qualifier, result.files_changed) == (EpisodeOutcome.SUCCEEDED, "", 1)
    assert not (workspace / "tests").exists()


async def test_without_a_check_that_fails_the_run_goes_on_and_proves_nothing(
    client: TightloopClient, working: Working, fixing: Requests
) -> None:
    passing = check("test -f text.py")
    with ModelServer(model(passing, passing, passing)) as server:
        async with working(**{**asks(server), "planners": lambda _kind: ScriptedPlanner(once)}):
            episode_id = await client.start(fixing(attended=True))
            result = await client.result(episode_id)
            timeline = [f"{entry.kind}: {entry.text}" for entry in await client.timeline(episode_id)]
    assert (result.qualifier, result.checks) == ("not proven: no check ever failed", "1/1")
    assert not any(line.startswith("paused") for line in timeline)
    assert any("found no failing check, so the checks only show that nothing breaks" in line for line in timeline)


async def test_a_refactoring_gets_no_check(client: TightloopClient, working: Working, fixing: Requests) -> None:
    cannot = check("", cannot=True, reason="the goal changes no behavior")
    with ModelServer(model(cannot)) as server:
        async with working(**{**asks(server), "planners": lambda _kind: ScriptedPlanner(once)}):
            episode_id = await client.start(fixing())
            result = await client.result(episode_id)
            again = fixing(keep_green=True, executor=scripted(APPEND))
            kept = await client.result(await client.start(again))
            timeline = [entry.text for entry in await client.timeline(episode_id)]
    assert any(
        line.endswith("so the checks only show that nothing breaks: the goal changes no behavior") for line in timeline
    )
    assert result.qualifier == kept.qualifier == "not proven: no check ever failed"
    assert len(server.requests) == 1
