"""A plan with a definition of done is completed with a proof only; what speaks against it is one question."""

import asyncio
import base64
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import yaml
from click.testing import CliRunner
from temporalio.testing import WorkflowEnvironment

from activities.artifacts.port import get_model
from activities.artifacts.stores import open_local_store
from activities.plan.requests import StepRun
from activities.proof.proving import subject_of
from activities.workspace.scope import EpisodeScope
from tests.data.proof import ALONE, CALC, FIXED, PYTEST, SCRIPT, Work
from tests.data.proof.cheats import CHEATS
from tests.support.doubles import ScriptedPlanner, planned
from tests.support.episodes import RESULT_SECONDS, Working, eventually, scripted
from tests.support.plan.doubles import BASE, DOUBTED, Playing, asks
from tests.support.proving import make_environment, make_project
from tightloop.cli.main import app
from tightloop.client import TightloopClient
from tightloop.episode.check import ProofRule
from tightloop.episode.proof import Proof, ProofVerdict
from tightloop.episode.proof import TestsFrom as From
from tightloop.plan.document import Plan, StoredPlan
from tightloop.plan.request import PlanOutcome, PlanRequest, PlanResult, PlanStatus
from tightloop.plan.step import Step
from tightloop.run.question import QuestionKind
from tightloop.safety.announcement import find_requested_changes
from tightloop.safety.approval import FileVersion, ShownChange
from tightloop.settings import Settings, parse_settings

ONE = 'id: one\nsteps: [{id: a, shell: {run: "true"}}]\n'
DONE = "definition_of_done: [pytest -q]\n"


# -- what the workflow does with a proof ------------------------------------------------------------


async def test_tree_is_compared_with_that_of_the_beginning_and_the_result_has_the_proof(playing: Playing):
    async with playing(ONE + DONE, request={"allow": ["tests_changed"]}) as stage:
        result, status = await stage.result(), await stage.status()
    [begun], [proven] = stage.scripted.begun, stage.scripted.proven
    assert (begun.expected_tree, begun.base_tree) == (BASE, "")
    assert proven.expected_tree == f"{BASE},a"
    assert proven.allow == (ProofRule.TESTS_CHANGED,)
    assert proven.beginning is not None
    assert result.reason == "all steps are done, and the definition of done is proven"
    assert result.proof is not None
    assert result.proof == status.proof


@pytest.mark.parametrize(
    ("source", "request_", "reason"),
    [
        (ONE, {}, "all steps are done"),
        (ONE, {"depth": 2}, "all steps are done"),
        (ONE + DONE, {"dry_run": True}, "all steps are done"),
    ],
)
async def test_where_there_is_nothing_to_prove_the_result_says_so(playing: Playing, source, request_, reason):
    async with playing(source, request=request_) as stage:
        result = await stage.result()
    assert (result.outcome, result.reason, result.proof) == (PlanOutcome.COMPLETED, reason, None)
    assert (stage.scripted.begun, stage.scripted.proven) == ([], [])


@pytest.mark.parametrize("policy", ["ask", "fail", "compensate"])
async def test_person_accepts_what_speaks_against_the_proof(playing: Playing, policy):
    """Also where failures are not asked about: a doubt is not a failure."""
    async with playing(f"{ONE}on_failure: {policy}\n{DONE}", proofs=[DOUBTED]) as stage:
        status = await stage.paused()
        [question] = status.questions
        await stage.plans.answer(stage.id, "accept", by="ada")
        result = await stage.result()
    assert (question.kind, question.names, question.default) == (
        QuestionKind.PROOF,
        ("work", "accept", "cancel"),
        "work",
    )
    assert question.evidence == DOUBTED.evidence
    assert [request.by for request in stage.scripted.accepted] == ["ada"]
    assert len(stage.scripted.proven) == 1
    assert result.outcome is PlanOutcome.COMPLETED
    assert result.reason == "all steps are done, and the definition of done passes"
    assert result.qualifier.startswith(
        "not proven: ada accepted the result despite this finding: 1 original test did not run"
    )
    assert result.proof is not None
    assert result.proof.name == "accepted"


async def test_a_person_asked_for_the_change_that_the_proof_has_found(playing: Playing):
    change = ShownChange(files=(FileVersion(path="test_a.py", before="1"),), lines=("-def test_a(): ...",))
    async with playing(ONE + DONE, proofs=[DOUBTED.evolve(change=change)]) as stage:
        [question] = (await stage.paused()).questions
        await stage.plans.answer(stage.id, "asked", by="ada")
        result = await stage.result()
        told = await stage.told()
    assert question.names == ("work", "asked", "accept", "cancel")
    assert question.change == change
    [request] = stage.scripted.accepted
    assert request.asked_for is not None
    assert (request.asked_for.by, request.asked_for.files) == ("ada", change.files)
    assert (result.outcome, result.qualifier) == (PlanOutcome.COMPLETED, "")
    assert result.reason == (
        f"PROVEN; {request.asked_for.sentence}; all steps are done, and the definition of done is proven"
    )
    assert "answered asked (by ada)" in told
    assert result.approvals == (request.asked_for,)


async def test_what_was_accepted_is_not_what_a_person_edited_meanwhile(playing: Playing):
    async with playing(ONE + DONE, proofs=[DOUBTED]) as stage:
        await stage.paused()
        stage.scripted.edited = "edited"
        await stage.plans.answer(stage.id, "accept")
        result = await stage.result()
    assert [request.expected_tree for request in stage.scripted.proven] == [f"{BASE},a", "edited"]
    assert not stage.scripted.accepted
    assert (result.tree, result.reason.endswith("is proven")) == ("edited", True)


async def test_work_proves_again_what_a_person_made_of_the_files(playing: Playing):
    async with playing(ONE + DONE, proofs=[DOUBTED, DOUBTED]) as stage:
        await stage.paused()
        await stage.plans.resume(stage.id)
        await stage.until(lambda status: any(question.id == "q2" for question in status.questions))
        stage.scripted.edited = "edited"
        await stage.plans.answer(stage.id, "work", by="ada")
        result = await stage.result()
    assert [request.expected_tree for request in stage.scripted.proven] == [f"{BASE},a", f"{BASE},a", "edited"]
    assert result.outcome is PlanOutcome.COMPLETED


@pytest.mark.parametrize("word", ["answer", "replan"])
async def test_change_of_the_plan_takes_the_question_back(playing: Playing, word):
    longer = ONE.replace("]\n", ', {id: b, needs: [a], shell: {run: "true"}}]\n') + DONE
    async with playing(ONE + DONE, proofs=[DOUBTED], planner=longer) as stage:
        [question] = (await stage.paused()).questions
        if word == "answer":
            await stage.plans.answer(stage.id, "replan")
        else:
            await stage.plans.replan(stage.id, longer)
        result = await stage.result()
    assert question.names == ("work", "replan", "accept", "cancel")
    assert result.tree == f"{BASE},a,b"
    assert result.reason.endswith("is proven")
    assert word == "replan" or "deleted test_a.py" in stage.scripted.revisions[0].trouble


async def test_answer_is_taken_in_the_run_that_follows(playing: Playing):
    async with playing(ONE + DONE, None, {"attempts_per_run": 1}, proofs=[DOUBTED]) as stage:
        await stage.until(lambda status: status.status == "paused" and stage.scripted.loads)
        await stage.plans.answer(stage.id, "accept", by="ada")
        result = await stage.result()
    assert result.outcome is PlanOutcome.COMPLETED
    assert len(stage.scripted.begun) == len(stage.scripted.proven) == len(stage.scripted.accepted) == 1


async def test_plan_is_cancelled_while_it_waits_for_an_answer(playing: Playing):
    async with playing(ONE + DONE, proofs=[DOUBTED]) as stage:
        await stage.paused()
        await stage.plans.answer(stage.id, "cancel", by="ada")
        result = await stage.result()
    assert (result.outcome, result.proof) == (PlanOutcome.CANCELLED, None)


async def test_definition_of_done_that_comes_later_is_held_against_the_tree_of_the_beginning(playing: Playing):
    source = 'id: one\nsteps: [{id: a, shell: {run: "true"}}, {id: b, needs: [a], shell: {run: "true"}}]\n'
    async with playing(source, {"b": [asks()]}) as stage:
        await stage.waits()
        await stage.plans.replan(stage.id, source + DONE)
        await stage.plans.answer(stage.id, "approve")
        await stage.result()
    [begun] = stage.scripted.begun
    assert (begun.base_tree, begun.expected_tree) == (BASE, f"{BASE},a,b")


async def test_what_is_allowed_is_allowed_for_plans_within(playing: Playing):
    child = PlanRequest(workspace="/sample/project", source=ONE + DONE)
    source = 'id: outer\nsteps: [{id: in, subplan: {steps: [{id: x, shell: {run: "true"}}]}}]\n' + DONE
    children = {"in": StepRun(plans=(child,))}
    async with playing(source, request={"allow": ["tests_changed"]}, children=children) as stage:
        await stage.result()
    inner, outer = stage.scripted.proven
    assert inner.scope.episode_id.startswith(outer.scope.episode_id)
    assert inner.allow == outer.allow == (ProofRule.TESTS_CHANGED,)
    assert outer.earlier == inner.beginning, "the proof of the plan within"


# -- real proofs ------------------------------------------------------------------------------------


def commands_of(work: Work) -> str:
    """Return what an executor would do as commands of a step."""
    lines = [shlex.join(work.run)] if work.run else []
    for path, text in reversed(work.write.items()):
        content = base64.b64encode(text.encode()).decode()
        lines.insert(0, f"mkdir -p $(dirname {path}); echo {content} | base64 -d > {path}")
    return "\n".join([*lines, *(f"rm -r {path}" for path in work.delete)])


def plan_of(work: Work, *steps: dict[str, Any], **fields: Any) -> str:
    made = [{"id": "work", "access": "writes", "shell": {"run": commands_of(work)}}, *steps]
    return yaml.safe_dump(
        {"id": "p", "title": work.wanted, "steps": made, "definition_of_done": [work.command], **fields}
    )


async def stands(client: TightloopClient, plan_id: str) -> PlanStatus:
    """Wait until the plan has ended, or asks about more than a command that nobody can read."""

    async def is_there() -> PlanStatus | None:
        status = await client.status(plan_id)
        assert isinstance(status, PlanStatus)
        if [question.kind for question in status.questions] == [QuestionKind.POLICY]:
            await client.answer(plan_id, "approve", question=status.questions[0].id)
            return None
        return status if status.questions or status.status not in ("running", "paused") else None

    found: PlanStatus = await eventually(is_there, seconds=RESULT_SECONDS)
    return found


def proof_of(project: Path, ref: Any) -> Proof:
    assert ref is not None
    return get_model(open_local_store(project), ref, Proof)


async def result_of(client: TightloopClient, plan_id: str) -> PlanResult:
    result: Any = await client.result(plan_id)
    assert isinstance(result, PlanResult)
    return result


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_environment(tmp_path_factory.mktemp("environment") / ".venv")


@pytest.fixture
def settings(temporal: WorkflowEnvironment) -> Settings:
    """A coding agent that is one command: it fixes the one line."""
    address = temporal.client.service_client.config.target_host
    return parse_settings(
        f"temporal: {{address: '{address}', task_queue: 'test-{uuid4().hex[:12]}', authenticate: false}}\n"
        "worker: {sticky_timeout_s: 2, graceful_shutdown_s: 1}\n"
        "sandbox: {unsafe_local: true}\n"
        "executor: {argv: [sed, -i, 's/a - b/a + b/', calc.py]}\n",
        {},
    )


HONEST = Work("fixed", PYTEST, write={"calc.py": FIXED}, done=f"{ALONE}.venv/bin/pytest -q", environment=True)
CHOSEN = (
    ("deleted beside a new one", PYTEST),
    ("conftest sets the exit status", PYTEST),
    ("planted bytecode", PYTEST),
    ("pytest replaced", PYTEST),
    ("script says yes", SCRIPT),
)


@pytest.mark.parametrize(("name", "checker"), CHOSEN)
async def test_step_that_cheats_does_not_complete_the_plan_silently(
    client: TightloopClient, working: Working, tmp_path: Path, environment: Path, name: str, checker: str
) -> None:
    [work] = [one for one in CHEATS if (one.name, one.checker) == (name, checker)]
    project = make_project(tmp_path / "project", work, environment)
    async with working():
        plan_id = await client.start(PlanRequest(workspace=str(project), source=plan_of(work)))
        status = await stands(client, plan_id)
        await client.answer(plan_id, "cancel")
        result = await result_of(client, plan_id)
    assert [question.kind for question in status.questions] == [QuestionKind.PROOF], (status.reason, status.questions)
    assert status.questions[0].evidence
    assert proof_of(project, status.proof).verdict is ProofVerdict.DOUBTED
    assert (result.outcome, result.proof) == (PlanOutcome.CANCELLED, None)


async def test_honest_plan_is_proven_without_a_question_and_its_proof_verified_elsewhere(
    client: TightloopClient, working: Working, settings: Settings, tmp_path: Path, environment: Path
) -> None:
    project, file = make_project(tmp_path / "project", HONEST, environment), tmp_path / "proof.json"

    def command(*words: object) -> tuple[int, str]:
        done = CliRunner().invoke(app, ["--address", settings.temporal.address, *map(str, words)])
        return done.exit_code, done.output

    async with working():
        plan_id = await client.start(PlanRequest(workspace=str(project), source=plan_of(HONEST)))
        result = await result_of(client, plan_id)
        code, out = await asyncio.to_thread(command, "proof", plan_id, "--output", file, "--unsigned")
        assert code == 0, out
        assert f"{plan_id}: PROVEN" in out
        code, out = await asyncio.to_thread(command, "verify", file, "--repo", project, "--run", "--unsigned")
        assert code == 0, out
    assert result.reason == "all steps are done, and the definition of done is proven"
    proof = proof_of(project, result.proof)
    assert (proof.verdict, proof.episode_id, proof.delivered_tree) == (ProofVerdict.PROVEN, plan_id, result.tree)
    assert [run.tests for run in proof.runs] == [From.DELIVERED], "nothing that decides what checks say changed"
    assert proof.runs[0].checks[0].reports[0].passed == 3
    file.write_text(file.read_text().replace("payload", "payl0ad"))
    assert (await asyncio.to_thread(command, "verify", file, "--repo", project, "--unsigned"))[0] == 1


async def test_what_is_allowed_on_the_command_line_is_not_asked(
    client: TightloopClient, working: Working, settings: Settings, tmp_path: Path, environment: Path
) -> None:
    [work] = [one for one in CHEATS if (one.name, one.checker) == ("script says yes", SCRIPT)]
    project, file = make_project(tmp_path / "project", work, environment), tmp_path / "plan.yaml"
    file.write_text(plan_of(work))
    words = ["plan", "run", str(file), "--workspace", str(project), "--id", "allowed", "--allow"]

    async with working():
        queue = settings.temporal.task_queue
        done = await asyncio.to_thread(
            CliRunner(env={"TIGHTLOOP_TEMPORAL__TASK_QUEUE": queue}).invoke,
            app,
            ["--address", settings.temporal.address, *words, "configuration_changed", "--detach"],
        )
        assert done.exit_code == 0, done.output
        result = await result_of(client, "allowed")
    proof = proof_of(project, result.proof)
    assert result.outcome is PlanOutcome.COMPLETED
    assert [(finding.rule, finding.announced) for finding in proof.findings] == [
        (ProofRule.CONFIGURATION_CHANGED, True)
    ]


# -- plans and what is within them ------------------------------------------------------------------

AGENT = {"id": "agent", "needs": ["work"], "episode": {"goal": "Fix add()."}}


async def test_what_an_episode_within_has_proven_is_not_run_a_second_time(
    client: TightloopClient, working: Working, tmp_path: Path, environment: Path
) -> None:
    project = make_project(tmp_path / "project", HONEST, environment)
    source = yaml.safe_dump({"id": "p", "steps": [AGENT | {"needs": []}], "definition_of_done": [HONEST.command]})
    async with working():
        plan_id = await client.start(PlanRequest(workspace=str(project), source=source))
        result = await result_of(client, plan_id)
        child = await client.result(f"{plan_id}.agent.1")
    outer, inner = proof_of(project, result.proof), proof_of(project, child.proof)
    assert result.outcome is PlanOutcome.COMPLETED
    assert (outer.episode_id, inner.episode_id) == (plan_id, f"{plan_id}.agent.1")
    assert outer.runs == inner.runs, "the same run, to the second"


SKIPPING = """import unittest


class T(unittest.TestCase):
{skip}    def test_clock(self): pass

    def test_it(self): pass
"""


async def test_an_answer_within_an_episode_holds_for_the_proof_of_its_plan(
    client: TightloopClient, working: Working, workspace: Path, git
) -> None:
    (workspace / "test_it.py").write_text(SKIPPING.format(skip=""))
    git(workspace, "add", "--all")
    git(workspace, "commit", "--quiet", "-m", "tests")
    skipped = {"path": "test_it.py", "text": SKIPPING.format(skip="    @unittest.skip('flaky')\n")}
    checks = ["test -f done.txt", f"{sys.executable} -m unittest discover -q"]
    work = {"goal": "make it pass", "definition_of_done": checks}
    source = yaml.safe_dump({"id": "p", "steps": [{"id": "agent", "episode": work}], "definition_of_done": checks})
    executor = scripted({"write": [{"path": "done.txt", "text": "1"}, skipped]})
    async with working():
        plan_id = await client.start(PlanRequest(workspace=str(workspace), source=source, executor=executor))
        child = f"{plan_id}.agent.1"

        async def is_asked() -> bool:
            status = await client.status(plan_id)
            return bool(status.children or status.questions)

        await eventually(is_asked, seconds=60)
        await client.answer(child, "asked", by="ada")
        result = await result_of(client, plan_id)
        told = await client.timeline(plan_id)
    assert result.qualifier == "", "the plan's proof did not ask again"
    assert result.reason.startswith("PROVEN; ada asked for the change to test_it.py at ")
    assert not [line for line in told if line.kind == "paused"]
    assert proof_of(workspace, result.proof).verdict is ProofVerdict.PROVEN


async def test_proof_of_an_episode_does_not_speak_for_the_steps_before_it(
    client: TightloopClient, working: Working, tmp_path: Path, environment: Path
) -> None:
    """A step weakens the tests, and an agent makes them green: its own proof holds, that of the plan does not."""
    [work] = [one for one in CHEATS if (one.name, one.checker) == ("emptied", PYTEST)]
    # Written so that the agent does not find what it would fix.
    work = replace(work, base={**work.base, "calc.py": CALC.replace("a - b", "a -b")})
    project = make_project(tmp_path / "project", work, environment)
    agent = AGENT | {"episode": {"goal": "Make mul() faster."}}
    async with working(ScriptedPlanner(lambda _: planned("look at it", final=True))):
        plan_id = await client.start(PlanRequest(workspace=str(project), source=plan_of(work, agent)))
        status = await stands(client, plan_id)
        await client.answer(plan_id, "cancel")
        await result_of(client, plan_id)
        child = await client.result(f"{plan_id}.agent.1")
    assert proof_of(project, child.proof).verdict is ProofVerdict.NOT_PROVEN
    assert [question.kind for question in status.questions] == [QuestionKind.PROOF]


async def test_person_announces_changes_of_tests_in_the_plan_and_a_model_does_not(tmp_path: Path) -> None:
    store = open_local_store(tmp_path)
    plan = Plan(id="p", title="Tidy", steps=(Step(id="a", title="Rewrite the tests of the parser."),))
    model = StoredPlan(plan_id="p", plan=plan, prompts_sha256="0" * 64)
    scope = EpisodeScope(episode_id="p", workspace=str(tmp_path))

    def announces(stored: StoredPlan, goal: str = "") -> bool:
        ref = store.put(stored.content(), name="plan")
        return find_requested_changes(subject_of(store, scope, ref, goal).goal).everything

    assert announces(model.evolve(prompts_sha256=""))
    assert not announces(model)
    assert announces(model, "Rewrite the tests.")
    first = store.put(model.evolve(prompts_sha256="").content(), name="plan")
    assert announces(model.evolve(revision=2, previous=first)), "what a person wrote first still counts"
