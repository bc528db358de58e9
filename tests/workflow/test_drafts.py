"""Hidden scenarios that a model drafts: which of them count, and what their failures lead to."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from activities.model.client import ModelService
from activities.planner.writers import scenario_writers
from tests.support.doubles import ScriptedPlanner, planned
from tests.support.episodes import Working, asked, scripted
from tests.support.model_server import Asked, ModelServer, Reply, fails, says
from tests.support.sandboxes import sandbox_named
from tests.workflow.test_proof import proof_of
from tightloop.cli.main import app
from tightloop.client import TightloopClient
from tightloop.client.scenarios import ScenarioStore
from tightloop.episode.model import EpisodeRequest
from tightloop.episode.proof import ProofVerdict

Requests = Callable[..., EpisodeRequest]

WRONG = "def add(a, b):\n    return a - b\n\n\ndef mul(a, b):\n    return a * b\n"
GENERAL = WRONG.replace("a - b", "a + b")
SPECIAL = WRONG.replace("a - b", "{(2, 2): 4}.get((a, b), a - b)")
VISIBLE = 'python3 -c "from calc import add; assert add(2, 2) == 4"'
GOAL = "add() must return the sum of two numbers"


def draft(number: int, code: str, prints: str, *, keep: bool = False) -> dict[str, Any]:
    path = f"draft_{number}.py"
    return {"path": path, "content": f"{code}\n", "run": f"python3 {path}", "prints": prints, "keep": keep}


SUM = draft(1, "from calc import add\nprint(add(40, 3))", "43")
PRODUCT = draft(2, "from calc import mul\nprint(mul(6, 7))", "42", keep=True)


def model(drafts: list[dict[str, Any]], prints: list[str] | None = None) -> Callable[[Asked], Reply]:
    """Answer the question for drafts, and then that for their output, which is as drafted by default."""

    def reply(question: Asked) -> Reply:
        if "You predict the output" in question.text:
            return says({"prints": prints if prints is not None else [entry["prints"] for entry in drafts]})
        return says({"scenarios": drafts})

    return reply


def drafting(server: ModelServer) -> dict[str, Any]:
    service = ModelService(api_key="key-1", base_url=server.url, models=("m1",), timeout_s=60.0)
    return {"scenario_writers": scenario_writers(service)}


@pytest.fixture
def adding(workspace: Path, git: Callable[..., str], request_for: Requests) -> Requests:
    """Requests on a project whose sum is wrong, with an executor that corrects it."""
    if problem := sandbox_named("bubblewrap").probe():
        pytest.skip(f"bubblewrap does not work here: {problem}")
    (workspace / "calc.py").write_text(WRONG)
    git(workspace, "add", "--all")
    git(workspace, "commit", "--quiet", "-m", "calc")

    def build(*works: str, **changes: Any) -> EpisodeRequest:
        steps = [{"write": [{"path": "calc.py", "text": text}]} for text in works or (GENERAL,)]
        fields = {"goal": GOAL, "definition_of_done": [VISIBLE], "executor": scripted(*steps), "drafts": 5}
        return request_for(**{**fields, **changes})

    return build


def planner() -> ScriptedPlanner:
    return ScriptedPlanner(lambda _briefing: planned("work", final=True))


async def test_drafts_that_fail_at_the_start_or_have_to_stay_are_part_of_the_proof(
    client: TightloopClient, working: Working, adding: Requests, settings, workspace: Path
) -> None:
    unusable = [
        draft(3, "from calc import missing\nprint(missing(1))", "1"),
        draft(4, "print(1", "1"),
        # It passes at the start, and nobody says that this has to stay.
        draft(5, "from calc import mul\nprint(mul(2, 3))", "6"),
        # It has to stay, but fails at the start.
        draft(6, "from calc import add\nprint(add(1, 1))", "2", keep=True),
    ]
    drafts = [SUM, PRODUCT, *unusable]
    with ModelServer(model(drafts)) as server:
        async with working(planner(), **drafting(server)):
            episode_id = await client.start(adding(drafts=9))
            result = await client.result(episode_id)
            timeline = [f"{entry.kind}: {entry.text}" for entry in await client.timeline(episode_id)]
        assert len(server.requests) == 2
        assert "43" not in server.requests[1].text, "the second answer must not see what the first one expects"
    assert result.reason == "all checks pass: 1/1, also 2 hidden scenarios (2 drafted)"
    assert "scenarios: 2 drafted scenarios will be part of the proof" in timeline
    proof = proof_of(workspace, result.proof)
    assert proof.verdict is ProofVerdict.PROVEN
    scenarios = proof.scenarios
    assert scenarios is not None
    assert (scenarios.total, scenarios.drafted, scenarios.failed_before, scenarios.digest) == (2, 2, 1, "")
    bundle = ScenarioStore(settings).find(scenarios.drafts_digest)
    assert bundle is not None
    assert [scenario.prints for scenario in bundle.scenarios] == ["43", "42"]
    assert result.spent.tokens is not None


@pytest.mark.parametrize(
    ("prints", "reason"),
    [(["44", ""], "the model's second answer does not match any of the 2 drafts"), (["43"], "no usable answer")],
)
async def test_drafts_without_a_second_answer_that_agrees_do_not_count(
    client: TightloopClient, working: Working, adding: Requests, workspace: Path, prints: list[str], reason: str
) -> None:
    with ModelServer(model([SUM, PRODUCT], prints)) as server:
        async with working(planner(), **drafting(server)):
            episode_id = await client.start(adding())
            result = await client.result(episode_id)
            timeline = [f"{entry.kind}: {entry.text}" for entry in await client.timeline(episode_id)]
    assert result.reason == "all checks pass: 1/1"
    assert proof_of(workspace, result.proof).scenarios is None
    [line] = [line for line in timeline if line.startswith("scenarios: ")]
    assert "no scenarios were drafted" in line
    assert reason in line


async def test_a_model_that_refuses_to_draft_does_not_stop_the_work(
    client: TightloopClient, working: Working, adding: Requests
) -> None:
    with ModelServer(fails(401, "Incorrect API key provided")) as server:
        async with working(planner(), **drafting(server)):
            result = await client.result(await client.start(adding()))
    assert result.reason == "all checks pass: 1/1"


async def test_nothing_is_drafted_where_it_is_off_or_prompts_must_not_contain_code(
    client: TightloopClient, working: Working, adding: Requests, settings
) -> None:
    private = settings.evolve(privacy=settings.privacy.evolve(prompts="summary"))
    with ModelServer(model([SUM])) as server:
        async with working(planner(), **drafting(server)):
            off = await client.result(await client.start(adding(drafts=0)))
        async with working(planner(), under=private, **drafting(server)):
            request = adding(SPECIAL, definition_of_done=["grep -q 4 calc.py"])
            summary = await client.result(await client.start(request))
        assert server.requests == []
    assert off.reason == summary.reason == "all checks pass: 1/1"


@pytest.mark.parametrize("option", ["withdraw", "work"])
async def test_if_only_drafts_fail_twice_the_owner_decides_who_is_wrong(
    client: TightloopClient, working: Working, adding: Requests, settings, workspace: Path, tmp_path: Path, option: str
) -> None:
    def command(*words: object) -> tuple[int, str]:
        done = CliRunner().invoke(app, ["--address", settings.temporal.address, *map(str, words)])
        return done.exit_code, done.output

    works = (SPECIAL, f"{SPECIAL}# 1\n", f"{SPECIAL}# 2\n", GENERAL)
    planning = planner()
    with ModelServer(model([SUM, PRODUCT])) as server:
        async with working(planning, **drafting(server)):
            episode_id = await client.start(adding(*works))
            status = await asked(client, episode_id)
            arguments = ("scenarios", "show", episode_id, "--output", tmp_path / "own")
            code, shown = await asyncio.to_thread(command, *arguments)
            await client.answer(episode_id, option, by="ada")
            result = await client.result(episode_id)
            _, lines = await asyncio.to_thread(command, "proof", episode_id)
    [question] = status.questions
    assert [entry.name for entry in question.options] == ["work", "withdraw", "accept", "cancel"]
    assert (
        question.title
        == "the checks pass, but the proof has a finding (scenarios_failed): 1 of 2 hidden scenarios fails"
    )
    assert "add(40" not in question.model_dump_json()
    assert code == 0, shown
    assert "expected: 43" in shown
    assert "the product prints: 37" in shown
    assert sorted(ScenarioStore(settings).read(tmp_path / "own").files) == ["draft_1.py", "draft_2.py"]
    notes = [note for briefing in planning.briefings for note in briefing.notes]
    assert notes[:2] == [f"Success was not accepted: {question.title}"] * 2
    assert not any(line in note for note in notes for line in ("37", "43", "draft_"))
    scenarios = proof_of(workspace, result.proof).scenarios
    assert scenarios is not None
    if option == "withdraw":
        assert result.reason == "all checks pass: 1/1, also 1 hidden scenario (1 drafted)"
        [change] = scenarios.changes
        assert change.startswith("ada decided that the scenarios are wrong: 1 drafted scenario withdrawn (")
        assert change in lines
        assert (workspace / "calc.py").read_text() == works[2]
    else:
        assert result.reason == "all checks pass: 1/1, also 2 hidden scenarios (2 drafted)"
        assert (workspace / "calc.py").read_text() == GENERAL


async def test_a_person_withdraws_all_drafts(
    client: TightloopClient, working: Working, adding: Requests, workspace: Path
) -> None:
    with ModelServer(model([SUM])) as server:
        async with working(planner(), **drafting(server)):
            episode_id = await client.start(adding(SPECIAL, f"{SPECIAL}# 1\n", f"{SPECIAL}# 2\n"))
            await asked(client, episode_id)
            await client.amend(episode_id, no_drafts=True, by="ada")
            result = await client.result(episode_id)
    assert result.reason == "all checks pass: 1/1"
    scenarios = proof_of(workspace, result.proof).scenarios
    assert scenarios is not None
    assert (scenarios.total, scenarios.drafted) == (0, 0)
    assert scenarios.changes[0].startswith("ada withdrew the scenarios: 1 drafted scenario withdrawn")
