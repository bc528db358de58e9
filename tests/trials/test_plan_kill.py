"""A worker process is killed with SIGKILL at boundaries of the steps of the refactoring example.

Whatever the moment: the files end byte for byte as without a kill, and no step that was recorded is done again.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.extent import draw_seed, part
from tests.support.stack.faulty_plan_worker import MOMENTS
from tests.support.stack.plan_killing import (
    COUNTS,
    EXAMPLES,
    Killing,
    Left,
    Place,
    counting,
    killing_stack,
    make_template,
)
from tests.support.stack.stack import Stack
from tightloop.plan.action import ShellAction
from tightloop.plan.document import OnPlanFailure, Plan
from tightloop.plan.failing import Compensation
from tightloop.plan.request import PlanOutcome
from tightloop.plan.step import Access, Capability, Step
from tightloop.plan.text.reading import read_plan

STEPS = ("baseline", "before", "rename-definition", "rename-uses", "announce", "test", "careful-rename", "test-again")
TAKEN_BACK = ("undo-announce", "undo-rename-uses", "undo-rename-definition")
AROUND = ("open_plan", "begin", "verify_plan", "prove", "close_plan")
"""What they do is not recorded step by step; they are killed before and after."""
RECOVERS = [
    *((step, moment) for step in (*STEPS, "commit", *TAKEN_BACK) for moment in MOMENTS),
    *((name, moment) for name in AROUND for moment in ("before", "recorded")),
    *((name, "acted") for name in ("begin", "prove")),
]
PLACES = part(5, of=100)
"""How many of them are tried, chosen anew in each run; all of a plan that recovers: 48."""
GIVES_UP = [(step, moment) for step in TAKEN_BACK for moment in MOMENTS]


def refactoring(*, recovers: bool) -> Plan:
    """Return the example, with a step that is undone by a command of its own.

    Without `recovers` there is no alternate: the failed test ends the plan, which takes everything back.
    """
    plan = read_plan((EXAMPLES / "refactor.yaml").read_text()).plan
    announce = Step(
        id="announce",
        needs=("rename-uses",),
        access=Access.NONE,
        shell=ShellAction(run="true"),
        compensate=Compensation(run=f"echo -announce >> {COUNTS}"),
    )
    steps = {step.id: counting(step) for step in (*plan.steps, announce)}
    test = steps["test"]
    assert test.on_failure is not None
    edge = test.on_failure.evolve(compensate=(*test.on_failure.compensate, "announce"))
    steps["test"] = test.evolve(needs=(*test.needs, "announce"), on_failure=edge)
    if not recovers:
        steps = {name: step for name, step in steps.items() if name not in ("careful-rename", "test-again")}
        steps["test"] = steps["test"].evolve(on_failure=None)
        steps["commit"] = steps["commit"].evolve(needs=("test",))
    policy = plan.policy.evolve(write=(*plan.policy.write, COUNTS))
    return plan.evolve(steps=tuple(steps.values()), policy=policy, on_failure=OnPlanFailure.COMPENSATE)


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with killing_stack(tmp_path_factory.mktemp("stack")) as running:
        yield running


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_template(tmp_path_factory.mktemp("template") / "relay")


def check(place: Place, left: Left, untouched: Left, plan: Plan) -> None:
    """Compare a plan whose worker was killed with one that nobody touched."""
    target, moment = place
    assert left.deaths == (place,), f"{place}: the worker did not die"
    assert left.same_end(untouched), f"{place}: {left.result.outcome} {left.result.reason} {left.result.tree}"
    step = next((step for step in plan.steps if step.id == target.removeprefix("undo-")), None)
    # Between a command and its record nobody can know that it ran: there, and only there, it runs again.
    again = ""
    if moment == "acted" and step is not None and step.capability is Capability.SHELL:
        again = f"-{step.id}" if target.startswith("undo-") else step.id
    assert left.ran == untouched.ran + Counter([again] if again else []), f"{place}: {left.ran}"


@pytest.mark.timeout(1500)
@pytest.mark.parametrize("recovers", [True, False], ids=["recovers", "gives-up"])
async def test_files_end_as_if_nobody_had_killed_a_worker(
    recovers: bool, stack: Stack, template: Path, tmp_path: Path
) -> None:
    plan = refactoring(recovers=recovers)
    folder = tmp_path / ("recovers" if recovers else "gives-up")
    folder.mkdir()
    killing = Killing(stack, template, plan, folder)
    seed = draw_seed()
    every = RECOVERS if recovers else GIVES_UP
    places = random.Random(seed).sample(every, min(PLACES, len(every)))
    print(f"\nseed {seed}")
    untouched, *killed = await asyncio.gather(
        killing.run(f"{folder.name}-nowhere", ()),
        *(killing.run(f"{folder.name}-{'-'.join(place)}", (place,)) for place in places),
    )
    assert set(untouched.ran.values()) == {1}
    if recovers:
        assert untouched.result.outcome is PlanOutcome.COMPLETED
        assert b"def as_text(" in untouched.files["relay/text.py"]
        assert untouched.ran["-announce"] == 1
    else:
        assert untouched.result.outcome is PlanOutcome.COMPENSATED
        assert untouched.files == _files_of(template)
    for place, left in zip(places, killed, strict=True):
        check(place, left, untouched, plan)
    print(f"\n{len(places)} kills, the files are the same each time")


def _files_of(project: Path) -> dict[str, bytes]:
    found = [path for path in project.rglob("*") if path.is_file() and ".git" not in path.parts]
    return {str(path.relative_to(project)): path.read_bytes() for path in found}
