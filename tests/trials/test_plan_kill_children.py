"""A worker process is killed with SIGKILL while the workflows that steps of a plan started are at work.

Whatever the moments: the files end byte for byte as without a kill, nothing that was recorded is done again, each
workflow is started once, and neither worktrees nor claims are left.
"""

import asyncio
import json
import subprocess
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowExecutionStatus

from activities.plan.records import open_file_records
from tests.support.extent import some
from tests.support.stack.faulty_plan_worker import SCRIPT
from tests.support.stack.plan_killing import Killing, Left, Place, counting, killing_stack, make_template
from tests.support.stack.stack import Stack
from tightloop.host import state_folder
from tightloop.plan.document import Plan
from tightloop.plan.request import PlanOutcome
from tightloop.plan.step import Capability, Step
from tightloop.plan.text.reading import read_plan

CHILDREN = ("parts.1", "ways.1.long", "ways.1.short", "agent.1")
"""What the steps start, behind the id of the plan."""
AGENT = """
steps:
  - append: [{path: relay/agent.txt, text: "line {n}\\n"}]
  - append: [{path: relay/agent.txt, text: "line {n}\\n"}]
"""
PLAN = """
id: children
on_failure: fail
steps:
  - {id: before, shell: {run: "echo before > relay/parts.txt"}}
  - id: parts
    needs: [before]
    subplan:
      steps:
        - {id: first, shell: {run: "echo first >> relay/parts.txt"}}
        - id: second
          needs: [first]
          edit: {files: [{path: relay/parts.txt, search: "first\\n", replace: "first\\nsecond\\n"}]}
        - {id: third, needs: [second], shell: {run: "echo third >> relay/parts.txt"}}
  - id: ways
    needs: [parts]
    branch:
      checks: [{run: "grep -q third relay/parts.txt"}]
      score: "wc -c < relay/way.txt"
      alternatives:
        - name: long
          steps:
            - {id: write, shell: {run: "seq 1 9 > relay/way.txt"}}
            - {id: more, needs: [write], shell: {run: "seq 10 20 >> relay/way.txt"}}
        - name: short
          steps:
            - {id: brief, edit: {files: [{path: relay/way.txt, content: "1\\n"}]}}
  - id: agent
    needs: [ways]
    episode: {goal: write two lines, executor: scripted, definition_of_done: ["test $(wc -l < relay/agent.txt) -ge 2"]}
  - {id: after, needs: [agent], shell: {run: "cat relay/parts.txt relay/way.txt relay/agent.txt > relay/all.txt"}}
"""
EVERY_KILL: dict[str, tuple[Place, ...]] = {
    "prepared": (("prepare-parts", "recorded"), ("prepare-ways", "recorded"), ("prepare-agent", "recorded")),
    "opened": (("open_plan@parts.1", "recorded"), ("open_plan@ways.1.long", "recorded")),
    "opened-agent": (("open_workspace@agent.1", "recorded"), ("hand_off@agent.1", "recorded")),
    "acted": (("first", "acted"), ("more", "acted"), ("execute@agent.1", "acted")),
    "recorded": (("second", "recorded"), ("write", "recorded"), ("track_iteration@agent.1", "recorded")),
    "closed": (("close_plan@parts.1", "recorded"), ("close_plan@ways.1.long", "recorded")),
    "closed-agent": (("verify@agent.1", "acted"), ("close_workspace@agent.1", "recorded")),
    "settled": (("settle-parts", "before"), ("settle-ways", "acted"), ("settle-agent", "before")),
    "taken-over": (("settle-parts", "recorded"), ("settle-ways", "taken-over"), ("settle-agent", "recorded")),
    "tidied": (("settle-ways", "released"), ("settle-ways", "recorded")),
}
"""Name of a run -> where its worker is killed, one after the other."""
KILLS = dict(some(tuple(EVERY_KILL.items()), 4))


def with_children(counts: Path) -> Plan:
    """Return the plan, with steps that count how often they run; those in worktrees in files below `counts`."""
    plan = read_plan(PLAN).plan
    return plan.evolve(steps=tuple(_counted(step, counts) for step in plan.steps))


def _counted(step: Step, counts: Path) -> Step:
    if step.subplan is not None:
        inner = tuple(map(counting, step.subplan.steps))
        return step.evolve(subplan=step.subplan.evolve(steps=inner))
    if step.branch is not None:
        own = f'"{counts}/$(basename "$PWD")"'
        alternatives = tuple(
            one.evolve(steps=tuple(counting(inner, own) for inner in one.steps)) for one in step.branch.alternatives
        )
        return step.evolve(branch=step.branch.evolve(alternatives=alternatives))
    return counting(step)


def all_steps(plan: Plan) -> dict[str, tuple[Step, ...]]:
    """Return the steps of the plan and of the plans that it starts, by what stands behind its id in theirs."""
    found = {"": plan.steps}
    for step in plan.steps:
        if step.subplan is not None:
            found[f".{step.id}.1"] = step.subplan.steps
        if step.branch is not None:
            found.update({f".{step.id}.1.{one.name}": one.steps for one in step.branch.alternatives})
    return found


@pytest.fixture(scope="module")
def counts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where steps in worktrees, which are removed, count how often they run."""
    return tmp_path_factory.mktemp("counts")


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory, counts: Path) -> Iterator[Stack]:
    with killing_stack(
        tmp_path_factory.mktemp("stack"), {"TIGHTLOOP_SANDBOX__WRITE": json.dumps([str(counts)])}
    ) as running:
        yield running


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_template(tmp_path_factory.mktemp("template") / "relay")
    (folder / SCRIPT).write_text(AGENT)
    return folder


def check_files(places: tuple[Place, ...], left: Left, untouched: Left, plan: Plan) -> None:
    """Compare what is left with what a plan leaves that nobody touched."""
    assert left.deaths == places, f"the worker died only at {left.deaths}"
    assert left.same_end(untouched), f"{places}: {left.result.outcome} {left.result.reason} {left.result.tree}"
    shell = {step.id for steps in all_steps(plan).values() for step in steps if step.capability is Capability.SHELL}
    # Between a command and its record nobody can know that it ran: there, and only there, it runs again.
    again = Counter(target for target, moment in places if moment == "acted" and target in shell)
    assert left.ran == untouched.ran + again, f"{places}: {left.ran}"


def check_records(name: str, left: Left, plan: Plan) -> None:
    """Every step has one record, of its first attempt: a step that is done again would have another one."""
    records = open_file_records(left.project)
    for behind, steps in all_steps(plan).items():
        found = sorted((record.step, record.attempt) for record in records.all(name + behind))
        assert found == sorted((step.id, 1) for step in steps), f"{name}{behind}"


def check_tidy(left: Left) -> None:
    """Nothing is left of the worktrees, and the tree is free again."""
    state = state_folder(left.project)
    listed = subprocess.run(
        ("git", "worktree", "list", "--porcelain"), cwd=left.project, capture_output=True, check=True, text=True
    )
    assert listed.stdout.count("worktree ") == 1, listed.stdout
    assert [path.name for path in state.glob("worktrees/*")] == []
    assert [path.name for path in state.glob("claims/*.json")] == []
    assert len(list(state.glob("trees/states/*"))) == 1


async def check_workflows(client: Client, name: str) -> None:
    """The plan asked once for each child, and each was run once, to its end."""
    asked = Counter[str]()
    async for event in client.get_workflow_handle(name).fetch_history_events():
        if event.event_type == EventType.EVENT_TYPE_START_CHILD_WORKFLOW_EXECUTION_INITIATED:
            asked[event.start_child_workflow_execution_initiated_event_attributes.workflow_id] += 1
    children = {f"{name}.{child}": 1 for child in CHILDREN}
    assert asked == children
    for child in children:
        runs = [run async for run in client.list_workflows(f"WorkflowId = '{child}'")]
        assert [run.status for run in runs] == [WorkflowExecutionStatus.COMPLETED], child


@pytest.mark.timeout(600)
async def test_children_of_a_plan_end_as_if_nobody_had_killed_a_worker(
    stack: Stack, template: Path, counts: Path, tmp_path: Path
) -> None:
    plan = with_children(counts)
    killing = Killing(stack, template, plan, tmp_path)

    async def run(name: str, places: tuple[Place, ...]) -> Left:
        left = await killing.run(name, places)
        # In a sandbox, a worktree appears at the workspace's path and so has its name.
        in_worktrees = (path.read_text().split() for path in counts.iterdir() if path.name.split(".")[0] == name)
        return replace(left, ran=left.ran + Counter(chain.from_iterable(in_worktrees)))

    untouched, *killed = await asyncio.gather(run("nowhere", ()), *(run(*kill) for kill in KILLS.items()))
    assert untouched.result.outcome is PlanOutcome.COMPLETED, untouched.result.reason
    assert untouched.files["relay/parts.txt"] == b"before\nfirst\nsecond\nthird\n"
    assert untouched.files["relay/way.txt"] == "".join(f"{n}\n" for n in range(1, 21)).encode()
    assert untouched.files["relay/agent.txt"] == b"line 1\nline 2\n"
    assert untouched.ran == dict.fromkeys(("before", "first", "third", "write", "more", "after"), 1)
    temporal = await Client.connect(stack.settings.temporal.address, namespace=stack.settings.temporal.namespace)
    for name, left in zip(("nowhere", *KILLS), (untouched, *killed), strict=True):
        check_files(KILLS.get(name, ()), left, untouched, plan)
        check_records(name, left, plan)
        check_tidy(left)
        await check_workflows(temporal, name)
    print(f"\n{sum(map(len, KILLS.values()))} kills, the files are the same each time")
