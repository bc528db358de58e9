"""Large plans and long ones: width, fan-in, and runs that give way to new ones with all that they know."""

import asyncio

import pytest
from temporalio.api.enums.v1 import WorkflowTaskFailedCause

from activities.plan.requests import StepRun
from tests.support.extent import part
from tests.support.plan.doubles import BASE, Hanging, Playing, asks, done, fails
from tightloop.plan.child import EvidenceNote
from tightloop.plan.request import PlanOutcome, PlanRequest


def layers(width: int, depth: int) -> str:
    """A plan of milestones in layers, each layer joined by one."""
    lines = ["id: layers", "max_parallel: 50", "budget: {max_fan_out: 2500}", "steps:"]
    for layer in range(depth):
        needs = f", needs: [join{layer - 1}]" if layer else ""
        lines += [f"  - {{id: l{layer}n{n}{needs}}}" for n in range(width)]
        lines.append(f"  - {{id: join{layer}, needs: [{', '.join(f'l{layer}n{n}' for n in range(width))}]}}")
    return "\n".join(lines) + "\n"


DONE_AGAIN = (
    WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_UNHANDLED_COMMAND,
    WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_FORCE_CLOSE_COMMAND,
)


def line(length: int, extra: str = "") -> str:
    """A plan of steps one after the other, that write."""
    steps = [f'  - {{id: s{n}, needs: [{f"s{n - 1}" if n else ""}], shell: {{run: "true"}}}}\n' for n in range(length)]
    return f"id: line\n{extra}steps:\n{''.join(steps)}"


async def events_of(stage) -> list[int]:
    """Return the number of events of each run, oldest first, and check that no workflow task failed.

    Not counted is what the server itself has done again: the end of a run while a message comes in, and a task during
    which more events came than it buffers, which depends on how busy the host is.
    """
    handle = stage.temporal.get_workflow_handle(stage.id)
    counts: list[int] = []
    run_id = None
    while True:
        handle = stage.temporal.get_workflow_handle(stage.id, run_id=run_id)
        history = await handle.fetch_history()
        failed = [each for each in history.events if each.HasField("workflow_task_failed_event_attributes")]
        assert not [each for each in failed if each.workflow_task_failed_event_attributes.cause not in DONE_AGAIN]
        counts.insert(0, len(history.events))
        run_id = history.events[0].workflow_execution_started_event_attributes.continued_execution_run_id
        if not run_id:
            return counts


@pytest.mark.timeout(420)
async def test_plan_of_thousands_of_steps_side_by_side_with_a_fan_in_is_carried_out(playing: Playing):
    count = part(1_200, of=2_500)
    items = ", ".join(map(str, range(count)))
    source = f"""
id: wide
max_parallel: 100
budget: {{max_fan_out: 2500}}
steps:
  - {{id: look-*, for_each: [{items}]}}
  - {{id: join, needs: ["look-*"]}}
"""
    async with playing(source, request={"attempts_per_run": count * 2 // 5}) as stage:
        result = await stage.result(seconds=360)
        lines = await stage.plans.steps(stage.id)
        counts = await events_of(stage)
    assert (result.outcome, result.counts) == (PlanOutcome.COMPLETED, {"completed": count + 1})
    assert stage.scripted.names()[-1] == "join"
    assert len(set(stage.scripted.names())) == len(stage.scripted.names()) == count + 1
    assert len(lines) == count + 1
    assert len(counts) >= 2
    assert max(counts) < 3 * count, "one run for all of them would have more"


async def test_fan_in_of_1_000_starts_once_after_all_of_them(playing: Playing):
    async with playing(layers(1_000, 1)) as stage:
        result = await stage.result(seconds=160)
    assert result.counts == {"completed": 1_001}
    assert stage.scripted.names()[-1] == "join0"


async def test_run_gives_way_to_a_new_one_and_nothing_is_done_twice(playing: Playing):
    async with playing(layers(20, 5), request={"attempts_per_run": 25}) as stage:
        result = await stage.result()
        counts = await events_of(stage)
    assert result.counts == {"completed": 105}
    assert result.spent.attempts == 105
    assert len(stage.scripted.names()) == len(set(stage.scripted.names())) == 105
    assert len(counts) >= 3
    assert stage.scripted.loads == len(counts) - 1


async def test_everything_a_plan_knows_goes_along_to_the_next_run(playing: Playing):
    source = line(4, "on_failure: compensate\nhypotheses: [{id: H1}]\n") + (
        "  - {id: gate, gate: {approval: {}}}\n"
        '  - {id: again, shell: {run: "true"}, access: none, retry: {attempts: 5, initial_s: 1.5, factor: 1}}\n'
        '  - {id: last, needs: [s3, gate, again], shell: {run: "true"}, access: none}\n'
    )
    note = EvidenceNote(hypothesis="H1", verdict="supports", step="s0")
    script = {
        "s0": done(evidence=(note,)),
        "gate": asks(count=2),
        "again": [fails("busy", "transient"), done()],
        "last": fails("no disk"),
    }
    async with playing(source, script, {"attempts_per_run": 2}) as stage:
        status = await stage.until(lambda status: status.questions and status.counts.get("completed") == 5, seconds=60)
        await stage.plans.answer(stage.id, "approve", question="gate", by="ada")
        await stage.plans.pause(stage.id, "lunch")
        await stage.plans.resume(stage.id)
        await stage.plans.answer(stage.id, "approve", question="gate", by="bob")
        result = await stage.result()
        told, counts = await stage.told(), await events_of(stage)
    assert len(counts) >= 3
    assert status.beliefs[0].evidence == 1
    assert result.outcome is PlanOutcome.COMPENSATED
    assert stage.scripted.taken_back == ["s3", "s2", "s1", "s0"]
    assert result.tree == BASE
    assert [ran.attempt for ran in stage.scripted.ran if ran.step == "again"] == [1, 2]
    assert [len(ran.answers) for ran in stage.scripted.ran if ran.step == "gate"] == [0, 2]
    assert told[0].startswith("opened")
    assert sum("completed s" in line for line in told) == 4


async def test_long_step_is_not_waited_for_in_vain_when_a_run_should_give_way(playing: Playing):
    slow = Hanging()
    source = line(4) + '  - {id: slow, shell: {run: "true"}, access: none}\n'
    async with playing(source, {"slow": slow}, {"attempts_per_run": 4}) as stage:
        status = await stage.until(lambda status: status.counts.get("completed") == 4, seconds=60)
        slow.go.set()
        result = await stage.result()
    assert [line.id for line in status.running] == ["slow"]
    assert result.outcome is PlanOutcome.COMPLETED
    assert len(stage.scripted.names()) == 5


async def test_run_does_not_give_way_while_a_child_runs(playing: Playing):
    slow = Hanging()
    child = PlanRequest(
        workspace="/sample/project",
        source='id: inner\nsteps: [{id: slow, shell: {run: "true"}, access: none}]\n',
        depth=2,
    )
    source = """
id: outer
steps:
  - {id: inner, access: none, subplan: {steps: [{id: x, shell: {run: "true"}}]}}
  - {id: a}
  - {id: b, needs: [a]}
  - {id: c, needs: [b]}
"""
    request = {"attempts_per_run": 2}
    async with playing(source, {"slow": slow}, request, children={"inner": StepRun(plans=(child,))}) as stage:
        await slow.started.wait()
        await stage.until(lambda status: status.counts.get("completed") == 3, seconds=60)
        loads = stage.scripted.loads
        slow.go.set()
        result = await stage.result()
    assert loads == 0
    assert slow.cancelled == 0
    assert result.outcome is PlanOutcome.COMPLETED


async def test_changes_and_approvals_sent_at_any_moment_reach_the_plan(playing: Playing):
    """Messages come while runs give way to others; the last step waits for the last message."""
    last = Hanging()
    async with playing(layers(10, 6), {"join5": last}, {"attempts_per_run": 7}) as stage:
        for _ in range(10):
            await stage.plans.top_up(stage.id, attempts=1)
            await asyncio.sleep(0.02)
        last.go.set()
        result = await stage.result()
        told = await stage.told()
    assert result.outcome is PlanOutcome.COMPLETED
    assert sum(line.startswith("topped up") for line in told) == 10


async def test_worker_that_forgets_everything_between_two_tasks_comes_to_the_same(playing: Playing):
    """Each workflow task is replayed from the start of its run: whatever is not deterministic fails it."""
    source = line(3, "on_failure: compensate\nmax_parallel: 4\n") + (
        "  - {id: look-*, for_each: [1, 2, 3, 4, 5]}\n"
        "  - {id: gate, needs: [s1], gate: {approval: {}}}\n"
        '  - {id: again, shell: {run: "true"}, access: none, retry: {initial_s: 0.2}, watchdog: {after_s: 30}}\n'
        '  - {id: inner, needs: [s2], subplan: {steps: [{id: x, shell: {run: "true"}}]}}\n'
        '  - {id: last, needs: [inner, gate, again, "look-*"], shell: {run: "true"}}\n'
    )
    child = PlanRequest(workspace="/sample/project", source=layers(3, 2), depth=2)
    script = {"gate": asks(), "again": [fails("busy", "transient"), done()], "last": fails("no disk")}
    request = {"attempts_per_run": 8}
    async with playing(source, script, request, children={"inner": StepRun(plans=(child,))}, cached=0) as stage:
        await stage.until(lambda status: status.questions, seconds=90)
        await stage.plans.pause(stage.id)
        await stage.plans.answer(stage.id, "approve")
        await stage.plans.resume(stage.id)
        result = await stage.result(seconds=90)
        counts = await events_of(stage)
    assert result.outcome is PlanOutcome.COMPENSATED
    assert stage.scripted.taken_back == ["inner", "s2", "s1", "s0"]
    assert len(counts) >= 2
