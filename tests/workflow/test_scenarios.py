"""Hidden scenarios: only the proof runs them, and nobody learns more than how many fail."""

import asyncio
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.support.doubles import ScriptedPlanner, planned
from tests.support.episodes import Working, asked, eventually, scripted
from tests.workflow.test_proof import proof_of
from tests.workflow.test_responses import HEURISTIC
from tightloop.cli.main import app
from tightloop.client import TightloopClient
from tightloop.client.scenarios import ScenarioStore
from tightloop.episode.model import EpisodeOutcome
from tightloop.episode.planning import Briefing, PlannerAnswer
from tightloop.episode.proof import ProofVerdict
from tightloop.plan.request import PlanRequest, PlanStatus
from tightloop.run.question import QuestionKind

VISIBLE = 'python3 -c "from calc import add; assert add(2, 2) == 4"'
SPECIAL = {"write": [{"path": "calc.py", "text": "def add(a, b):\n    return 4\n"}]}
GENERAL = {"write": [{"path": "calc.py", "text": "def add(a, b):\n    return a + b\n"}]}
SECRET = "forty-two-and-a-half"


@pytest.fixture
def hidden(tmp_path: Path) -> Path:
    """A folder with two scenarios, one of which is in a file."""
    folder = tmp_path / "hidden"
    (folder / "files" / "hidden").mkdir(parents=True)
    (folder / "files" / "hidden" / "check.py").write_text(
        f"import sys\nsys.path.insert(0, '.')\nfrom calc import add\nassert add(40, 2) == 42, '{SECRET}'\n"
    )
    (folder / "scenarios.yaml").write_text(
        f"scenarios:\n- name: {SECRET}\n  run: python3 hidden/check.py\n"
        "- python3 -c 'from calc import add; assert add(2, 2) == 4'\n"
    )
    return folder


async def test_failed_scenarios_are_counted_for_the_planner_and_then_a_question(
    client: TightloopClient, working: Working, request_for, settings, workspace: Path, hidden: Path
) -> None:
    def answer(briefing: Briefing) -> PlannerAnswer:
        return planned("work", final=True)

    planner = ScriptedPlanner(answer)
    edits = [{"write": [*SPECIAL["write"], {"path": "n.txt", "text": f"{number}"}]} for number in range(3)]
    commitment = ScenarioStore(settings).commit(hidden)
    async with working(planner):
        request = request_for(
            definition_of_done=[VISIBLE],
            executor=scripted(*edits, GENERAL, repeat=False),
            scenarios=commitment,
            scenario_reports=2,
        )
        episode_id = await client.start(request)
        status = await asked(client, episode_id)
        timeline = [line.text for line in await client.timeline(episode_id)]
        await client.answer(episode_id, "work")
        result = await client.result(episode_id)
    [question] = status.questions
    assert question.kind is QuestionKind.PROOF
    assert (
        question.title
        == "the checks pass, but the proof has a finding (scenarios_failed): 1 of 2 hidden scenarios fails"
    )
    assert not any(word in line for line in question.evidence for word in ("hidden/", SECRET))
    notes = [note for briefing in planner.briefings for note in briefing.notes]
    assert notes[:2] == [f"Success was not accepted: {question.title}"] * 2
    assert any("The planner was notified (report 2 of 2)" in line for line in timeline)
    assert result.outcome is EpisodeOutcome.SUCCEEDED
    assert result.reason == "all checks pass: 1/1, also 2 hidden scenarios"
    proof = proof_of(workspace, result.proof)
    assert proof.verdict is ProofVerdict.PROVEN
    assert proof.scenarios is not None
    assert (proof.scenarios.digest, proof.scenarios.passed) == (commitment.digest, 2)
    assert proof.scenarios.failed_before == 2, "without the module, both failed at the start"


async def test_work_that_stands_still_after_a_refused_proof_is_asked_about_with_the_finding(
    client: TightloopClient, working: Working, request_for, settings, hidden: Path
) -> None:
    commitment = ScenarioStore(settings).commit(hidden)
    async with working(HEURISTIC):
        # Every further delivery writes the same file again, so it changes nothing.
        request = request_for(
            definition_of_done=[VISIBLE], executor=scripted(SPECIAL), scenarios=commitment, scenario_reports=2
        )
        episode_id = await client.start(request)
        first = await asked(client, episode_id)
        await client.answer(episode_id, "work", by="ada")
        second = await asked(client, episode_id, since=first)
        timeline = [line.text for line in await client.timeline(episode_id)]
        await client.answer(episode_id, "accept", by="ada")
        result = await client.result(episode_id)
    for status in (first, second):
        [question] = status.questions
        assert question.kind is QuestionKind.PROOF
        assert (
            question.title
            == "the checks pass, but the proof has a finding (scenarios_failed): 1 of 2 hidden scenarios fails"
        )
    # Each report and each answer leads to one delivery.
    assert (first.iteration, second.iteration) == (3, 4)
    assert sum("The planner was notified" in line for line in timeline) == 2
    assert sum("0 files changed" in line for line in timeline) == 3
    assert result.outcome is EpisodeOutcome.SUCCEEDED


async def test_a_scenario_that_failed_at_the_start_counts_as_a_check_that_was_seen_to_fail(
    client: TightloopClient, working: Working, request_for, settings, workspace: Path, git, hidden: Path
) -> None:
    (workspace / "calc.py").write_text(SPECIAL["write"][0]["text"])
    git(workspace, "add", "--all")
    git(workspace, "commit", "--quiet", "-m", "special")
    planner = ScriptedPlanner(lambda _briefing: planned("work", final=True))
    async with working(planner):
        request = request_for(
            definition_of_done=[VISIBLE], executor=scripted(GENERAL), scenarios=ScenarioStore(settings).commit(hidden)
        )
        result = await client.result(await client.start(request))
    assert (result.outcome, result.qualifier) == (EpisodeOutcome.SUCCEEDED, "")
    assert (scenarios := proof_of(workspace, result.proof).scenarios) is not None
    assert scenarios.failed_before == 1


async def test_the_owner_amends_and_withdraws_scenarios_and_the_proof_says_so(
    client: TightloopClient, working: Working, request_for, settings, workspace: Path, hidden: Path, tmp_path: Path
) -> None:
    def command(*words: object) -> tuple[int, str]:
        done = CliRunner().invoke(app, ["--address", settings.temporal.address, *map(str, words)])
        return done.exit_code, done.output

    wrong = tmp_path / "wrong.yaml"
    wrong.write_text("- python3 -c 'from calc import add; assert add(1, 1) == 3'\n")
    async with working():
        store = ScenarioStore(settings)
        request = request_for(
            definition_of_done=[VISIBLE],
            executor=scripted(GENERAL),
            scenarios=store.commit(wrong),
            scenario_reports=0,
        )
        episode_id = await client.start(request)
        await asked(client, episode_id)
        code, out = await asyncio.to_thread(command, "amend", episode_id, "--scenarios", hidden, "--by", "ada")
        assert code == 0, out
        result = await client.result(episode_id)
        code, out = await asyncio.to_thread(command, "proof", episode_id)
    assert result.reason == "all checks pass: 1/1, also 2 hidden scenarios"
    assert code == 0, out
    assert f"{episode_id}: PROVEN, also by 2 hidden scenarios" in out
    assert "ada replaced 1 scenario" in out
    assert SECRET not in out


PLAN = "id: sums\ndefinition_of_done: [{}]\nsteps: [{{id: a, shell: {{run: {}}}}}]\n"


@pytest.mark.parametrize("is_general", [True, False])
async def test_a_plan_is_proven_also_by_scenarios(
    client: TightloopClient, working: Working, settings, workspace: Path, hidden: Path, is_general: bool
) -> None:
    body = "a + b" if is_general else "4"
    step = f"printf 'def add(a, b):\\n    return {body}\\n' > calc.py"
    source = PLAN.format(json.dumps(VISIBLE), json.dumps(step))
    async with working():
        scenarios = ScenarioStore(settings).commit(hidden)
        plan_id = await client.start(PlanRequest(workspace=str(workspace), source=source, scenarios=scenarios))

        async def is_over() -> PlanStatus | None:
            status = await client.status(plan_id)
            assert isinstance(status, PlanStatus)
            return status if status.questions or status.status not in ("running", "paused") else None

        status: PlanStatus = await eventually(is_over, seconds=90)
        if not is_general:
            await client.answer(plan_id, "cancel")
    if is_general:
        assert status.reason == "all steps are done, and the definition of done is proven, also 2 hidden scenarios"
    else:
        [question] = status.questions
        assert (
            question.title
            == "the checks pass, but the proof has a finding (scenarios_failed): 1 of 2 hidden scenarios fails"
        )


async def test_scenarios_of_a_plan_without_a_proof_and_unknown_ones_are_refused(
    client: TightloopClient, working: Working, request_for, settings, workspace: Path, hidden: Path
) -> None:
    source = "id: sums\nsteps: [{id: a, shell: {run: 'true'}}]\n"
    async with working():
        scenarios = ScenarioStore(settings).commit(hidden)
        plan_id = await client.start(PlanRequest(workspace=str(workspace), source=source, scenarios=scenarios))
        plan = await client.result(plan_id)
        unknown = request_for(scenarios=scenarios.evolve(digest="0" * 64))
        episode = await client.result(await client.start(unknown))
    assert "a plan without a definition_of_done has no proof" in plan.reason
    assert "are not on this host" in episode.reason


def test_scenarios_are_written_packed_and_checked(working, settings, workspace: Path, tmp_path: Path) -> None:
    folder, bundle = tmp_path / "new", tmp_path / "hidden.bundle"

    def command(*words: object) -> tuple[int, str]:
        done = CliRunner().invoke(app, [*map(str, words)])
        return done.exit_code, done.output

    assert command("scenarios", "new", folder)[0] == 0
    (workspace / "fees.py").write_text("def fee(total):\n    return 20\n")
    code, out = command("scenarios", "check", folder, "--workspace", workspace)
    assert code == 1
    assert "1 of 2 scenarios passed" in out
    assert "20000" in out, "this is the owner's own command, so it shows output"
    code, out = command("scenarios", "pack", folder, "--output", bundle, "--json")
    assert code == 0
    assert b"large" not in bundle.read_bytes()
    (workspace / "fees.py").write_text("def fee(total):\n    return total // 50\n")
    assert command("scenarios", "check", bundle, "--workspace", workspace)[0] == 0
    code, again = command("scenarios", "pack", bundle, "--json")
    digests = [json.loads(text[text.index("{") : text.index("}") + 1])["digest"] for text in (out, again)]
    assert digests[0] == digests[1]
    (workspace / "inside").mkdir()
    (workspace / "inside" / "scenarios.yaml").write_text("- 'true'\n")
    code, out = command("scenarios", "check", workspace / "inside", "--workspace", workspace)
    assert code != 0
    assert "where agents can read them" in out
