"""Plans on a real server: the order of things, the tree, retries, templates, children, the end."""

import asyncio
import subprocess

import pytest

from activities.plan.requests import PlanVerification, StepRun
from tests.support.plan.doubles import BASE, Playing, done, fails, skipped
from tightloop.errors import InvalidRequestError
from tightloop.plan.child import EvidenceNote
from tightloop.plan.request import PlanOutcome, PlanRequest
from worker.server import temporal_binary

DIAMOND = """
id: diamond
title: Four steps
steps:
  - {id: a, shell: {run: "true"}, access: none}
  - {id: b, needs: [a], shell: {run: "true"}, access: none}
  - {id: c, needs: [a], shell: {run: "true"}, access: none}
  - {id: d, needs: [b, c], title: The last one, shell: {run: "true"}, access: none}
"""
WRITERS = """
id: writers
max_parallel: 10
steps:
  - {id: w1, shell: {run: "true"}}
  - {id: w2, shell: {run: "true"}}
  - {id: r1, shell: {run: "true"}, access: reads}
  - {id: r2, shell: {run: "true"}, access: reads}
  - {id: n1, shell: {run: "true"}, access: none}
"""
TEMPLATE = """
id: template
steps:
  - {id: list, shell: {run: "true"}, access: none, outputs: {found: json}}
  - {id: look-*, needs: [list], for_each: "${list.found}", shell: {run: "echo ${item}"}, access: none}
  - {id: sum, needs: ["look-*"], shell: {run: "true"}, access: none}
"""


def one(**step: object) -> str:
    """A plan with one step."""
    fields = ", ".join(f"{name}: {value}" for name, value in step.items())
    return f'id: one\nsteps:\n  - {{id: a, shell: {{run: "true"}}, access: none, {fields}}}\n'


async def test_steps_run_in_the_order_of_their_needs(playing: Playing):
    async with playing(DIAMOND) as stage:
        result = await stage.result()
        status, told = await stage.status(), await stage.told()
    assert result.outcome is PlanOutcome.COMPLETED
    assert result.counts == {"completed": 4}
    assert result.spent.attempts == 4
    order = stage.scripted.order
    assert order.index("-a") < min(order.index("+b"), order.index("+c"))
    assert max(order.index("-b"), order.index("-c")) < order.index("+d")
    assert (status.status, status.title) == ("completed", "Four steps")
    assert told[0] == "opened 4 steps"
    assert told[-1].startswith("closed COMPLETED, not proven: no definition of done (all steps are done)")


async def test_independent_steps_run_at_the_same_time_up_to_the_limit(playing: Playing):
    steps = "".join(f'  - {{id: s{n}, shell: {{run: "true"}}, access: none}}\n' for n in range(6))
    running, most, full = 0, 0, asyncio.Event()

    async def act(_request):
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == 3:
            full.set()
        await full.wait()
        await asyncio.sleep(0.2)  # time for one too many to show itself
        running -= 1
        return done()

    script = {f"s{n}": act for n in range(6)}
    async with playing(f"id: wide\nmax_parallel: 3\nsteps:\n{steps}", script) as stage:
        await stage.result()
    assert most == 3


async def test_writers_are_alone_with_the_tree_and_each_gets_what_the_one_before_left(playing: Playing):
    tree: set[str] = set()
    met: list[tuple[str, frozenset[str]]] = []
    readers = asyncio.Barrier(2)

    async def act(request):
        met.append((request.step, frozenset(tree)))
        tree.add(request.step)
        if request.step[0] == "r":
            await readers.wait()
        await asyncio.sleep(0.1)  # time for whoever must not be there to show itself
        tree.remove(request.step)
        return done()

    async with playing(WRITERS, dict.fromkeys(("w1", "w2", "r1", "r2", "n1"), act)) as stage:
        result = await stage.result()
    for step, others in met:
        assert not (step[0] == "w" and any(other[0] in "wr" for other in others)), (step, others)
        assert not (step[0] == "r" and any(other[0] == "w" for other in others)), (step, others)
    assert any(step[0] == "r" and {"r1", "r2"} <= {step, *others} for step, others in met)
    assert result.tree == f"{BASE},w1,w2"
    assert stage.scripted.closed[0].expected_tree == result.tree
    assert [ran.expected_tree for ran in stage.scripted.ran if ran.step == "n1"] == [""]


async def test_transient_failure_is_tried_again_after_its_wait(playing: Playing):
    script = {"a": [fails("busy", "transient"), fails("busy", "transient"), done()]}
    async with playing(one(retry="{attempts: 3, initial_s: 0.05}"), script) as stage:
        result = await stage.result()
        told = await stage.told()
    assert result.outcome is PlanOutcome.COMPLETED
    assert [ran.attempt for ran in stage.scripted.ran] == [1, 2, 3]
    assert told.count("failed a: transient: busy") == 2


async def test_template_becomes_as_many_steps_as_its_source_has_items(playing: Playing):
    async with playing(TEMPLATE, {"list": done(counts={"found": 3})}) as stage:
        result = await stage.result()
        steps = await stage.steps()
    assert result.outcome is PlanOutcome.COMPLETED
    assert {"look-1", "look-2", "look-3", "sum"} < steps.keys()
    assert "look-*" not in steps
    ran = {ran.step: ran for ran in stage.scripted.ran}
    assert [(ran[f"look-{n}"].template, ran[f"look-{n}"].item) for n in (1, 2, 3)] == [("look-*", n) for n in range(3)]
    assert stage.scripted.names()[-1] == "sum"


async def test_template_of_nothing_is_skipped(playing: Playing):
    async with playing(TEMPLATE, {"list": done(counts={"found": 0})}) as stage:
        result = await stage.result()
    assert result.outcome is PlanOutcome.COMPLETED
    assert stage.scripted.names() == ["list"]


async def test_skipped_step_skips_what_needs_it(playing: Playing):
    async with playing(DIAMOND, {"b": skipped()}) as stage:
        result = await stage.result()
        steps = await stage.steps()
    assert result.outcome is PlanOutcome.COMPLETED
    assert steps == {"a": "completed", "b": "skipped", "c": "completed", "d": "skipped"}


async def test_decision_starts_only_the_chosen_path(playing: Playing):
    source = """
id: fork
steps:
  - {id: pick, decision: {rules: [{when: "1 == 1", to: [left]}], otherwise: [right]}}
  - {id: left, shell: {run: "true"}, access: none}
  - {id: right, shell: {run: "true"}, access: none}
  - {id: meet, needs: [left, right], join: any, shell: {run: "true"}, access: none}
"""
    async with playing(source, {"pick": done(chosen=("left",))}) as stage:
        await stage.result()
        steps = await stage.steps()
    assert steps == {"pick": "completed", "left": "completed", "right": "skipped", "meet": "completed"}


async def test_evidence_changes_what_the_plan_believes_and_decisions_hear_of_it(playing: Playing):
    source = """
id: beliefs
hypotheses: [{id: H1, prior: 0.5}]
steps:
  - {id: test, shell: {run: "true"}, access: none}
  - {id: pick, needs: [test], decision: {hypotheses: {H1: [fix]}}}
  - {id: fix, shell: {run: "true"}, access: none}
"""
    note = EvidenceNote(hypothesis="H1", verdict="supports", strength="strong", step="test")
    async with playing(source, {"test": done(evidence=(note,)), "pick": done(chosen=("fix",))}) as stage:
        await stage.result()
        status = await stage.status()
    heard = next(ran.beliefs for ran in stage.scripted.ran if ran.step == "pick")
    assert heard == status.beliefs
    assert heard[0].confidence == pytest.approx(10 / 11)


async def test_definition_of_done_decides_whether_the_plan_is_completed(playing: Playing):
    source = DIAMOND + "definition_of_done: [pytest -q]\non_failure: fail\n"
    no = PlanVerification(passed=False, total=1, failed=("pytest -q: 2 failed",))
    async with playing(source, verifications=[no]) as stage:
        result = await stage.result()
    assert result.outcome is PlanOutcome.FAILED
    assert result.reason == "the definition of done is not met: pytest -q: 2 failed"


async def test_person_fixes_the_files_where_the_definition_of_done_does_not_hold(playing: Playing):
    source = DIAMOND + "definition_of_done: [pytest -q]\n"
    no = PlanVerification(passed=False, total=1, failed=("pytest -q: 2 failed",))
    async with playing(source, verifications=[no]) as stage:
        status = await stage.paused()
        stage.scripted.edited = f"{BASE},by hand"
        await stage.plans.resume(stage.id)
        result = await stage.result()
    assert "pytest -q: 2 failed" in status.questions[0].title
    assert (result.outcome, result.tree) == (PlanOutcome.COMPLETED, f"{BASE},by hand")


async def test_dry_run_asks_every_step_for_its_preview_and_verifies_nothing(playing: Playing):
    source = DIAMOND + "definition_of_done: [pytest -q]\n"
    async with playing(source, request={"dry_run": True}, verifications=[PlanVerification(passed=False)]) as stage:
        result = await stage.result()
    assert result.outcome is PlanOutcome.COMPLETED
    assert all(ran.dry_run for ran in stage.scripted.ran)


async def test_subplan_runs_as_a_child_on_the_same_tree_one_level_deeper(playing: Playing):
    source = """
id: outer
steps:
  - {id: inner, subplan: {steps: [{id: x, shell: {run: "true"}}]}}
  - {id: after, needs: [inner], shell: {run: "true"}}
"""
    child = PlanRequest(workspace="/sample/project", source=DIAMOND, depth=2)
    async with playing(source, children={"inner": StepRun(plans=(child,))}) as stage:
        result = await stage.result()
    settled = stage.scripted.settled[0]
    assert result.outcome is PlanOutcome.COMPLETED
    assert settled.children == (f"{stage.id}.inner.1",)
    assert settled.outcomes == ("COMPLETED",)
    inside = [ran for ran in stage.scripted.ran if ran.step == "a"]
    assert [ran.scope.within for ran in inside] == [stage.id]
    assert result.tree == f"{BASE},inner,after"


async def test_failed_child_is_the_failure_of_its_step(playing: Playing):
    source = 'id: outer\non_failure: fail\nsteps: [{id: inner, subplan: {steps: [{id: x, shell: {run: "true"}}]}}]\n'
    child = PlanRequest(workspace="/sample/project", source=DIAMOND + "on_failure: fail\n", depth=2)
    async with playing(source, {"b": fails("no disk")}, children={"inner": StepRun(plans=(child,))}) as stage:
        result = await stage.result()
    assert result.outcome is PlanOutcome.FAILED
    assert "no disk" in result.reason


async def test_plans_are_not_nested_deeper_than_the_budget_allows(playing: Playing, settings):
    source = """
id: outer
on_failure: fail
budget: {max_depth: 1}
steps: [{id: inner, subplan: {steps: [{id: x, shell: {run: "true"}}]}}]
"""
    given, queue = {"workspace": "/sample/project", "source": source}, settings.temporal.task_queue
    async with playing(DIAMOND) as stage:
        # As from another language: our client would refuse the text before it starts anything.
        await stage.temporal.start_workflow("PlanWorkflow", given, id="nested", task_queue=queue)
        result = await stage.plans.result("nested")
        await stage.result()
    assert result.outcome is PlanOutcome.FAILED
    assert "max_depth is 1" in result.reason
    assert "x" not in stage.scripted.names()


async def test_plan_that_cannot_be_opened_fails_with_the_reason(playing: Playing, settings):
    given = {"workspace": "/sample/project", "source": "id: broken\nsteps: [{id: a, shel: {run: x}}]\n"}
    queue = settings.temporal.task_queue
    async with playing(DIAMOND) as stage:
        # As from another language: our client would refuse the text before it starts anything.
        await stage.temporal.start_workflow("PlanWorkflow", given, id="broken", task_queue=queue)
        result = await stage.plans.result("broken")
        status = await stage.plans.status("broken")
        await stage.result()
    assert result.outcome is PlanOutcome.FAILED
    assert result.reason == "2:17: unknown field 'shel' in step 'a'. Did you mean 'shell'?"
    assert (status.status, status.reason) == ("failed", result.reason)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"workspace": "project"}, "the workspace 'project' is not an absolute path"),
        ({"source": ""}, "exactly one of source, file and goal"),
        ({"max_parallel": 101}, "max_parallel must be between 1 and 100, got 101"),
        ({"source": "x" * 1_000_001}, "1000001 bytes"),
    ],
)
async def test_request_that_cannot_work_is_refused_by_the_client(plans, changes, sentence):
    fields = {"workspace": "/sample/project", "source": DIAMOND, **changes}
    with pytest.raises(InvalidRequestError, match=sentence):
        await plans.start(PlanRequest.model_validate(fields))


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ("{}", "the workspace '' is not an absolute path"),
        (
            '{"workspace": "/x", "file": "p.yaml", "max_parallel": "many"}',
            "max_parallel: must be a whole number",
        ),
        ('"plan.yaml"', "input: {"),
    ],
)
async def test_wrong_input_from_the_temporal_cli_fails_with_a_sentence(playing: Playing, settings, given, sentence):
    async with playing(DIAMOND) as stage:
        address = stage.temporal.service_client.config.target_host
        words = ["workflow", "execute", "--type", "PlanWorkflow", "-t", settings.temporal.task_queue, "--input", given]
        command = [str(temporal_binary()), *words, "--address", address]
        done_ = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=60)
        await stage.result()
    assert done_.returncode != 0
    assert sentence in done_.stdout + done_.stderr
