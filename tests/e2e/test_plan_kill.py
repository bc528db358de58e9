"""A worker process is killed with SIGKILL at every boundary of every step of the refactoring example.

Whatever the moment: the files end byte for byte as without a kill, and no step that was recorded is done again.
"""

import asyncio
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.e2e.faulty_plan_worker import MOMENTS
from tests.e2e.stack import ROOT, Stack, wait_for_port
from tightloop.client import TightloopClient
from tightloop.plan.action import ShellAction
from tightloop.plan.model import Access, Capability, Compensation, OnPlanFailure, Plan, Step
from tightloop.plan.request import PlanOutcome, PlanRequest, PlanResult
from tightloop.plan.text.reading import read_plan
from tightloop.plan.text.writing import write_plan

EXAMPLES = ROOT / "examples" / "plans"
COUNTS = ".counts"
"""Ignored by git: the steps' commands append a line each time they really run, and nothing takes it back."""
AT_ONCE = 6
PLAN_SECONDS = 600.0
STEPS = ("baseline", "before", "rename-definition", "rename-uses", "announce", "test", "careful-rename", "test-again")
TAKEN_BACK = ("undo-announce", "undo-rename-uses", "undo-rename-definition")
AROUND = ("open_plan", "verify_plan", "close_plan")
"""What they do is not recorded step by step; they are killed before and after."""
RECOVERS = [
    *((step, moment) for step in (*STEPS, "commit", *TAKEN_BACK) for moment in MOMENTS),
    *((name, moment) for name in AROUND for moment in ("before", "recorded")),
]
GIVES_UP = [(step, moment) for step in TAKEN_BACK for moment in MOMENTS]
NOWHERE = ("nowhere", "before")


@dataclass(frozen=True)
class Left:
    """What a plan left behind."""

    result: PlanResult
    files: dict[str, bytes]
    """Path -> content of everything but git's and tightloop's own files."""
    ran: Counter[str]
    """How often each step's command ran; `-step` for the one that takes it back."""
    commits: int
    died: bool
    project: Path

    def same_end(self, other: "Left") -> bool:
        """Whether both ended alike, byte for byte."""
        mine, others = self.result, other.result
        return (mine.outcome, mine.tree, self.files, self.commits) == (
            others.outcome,
            others.tree,
            other.files,
            other.commits,
        )


def counting(step: Step) -> Step:
    """Return the step with a command that leaves a line whenever it runs."""
    if step.shell is None:
        return step
    return step.model_copy(update={"shell": ShellAction(run=f"echo {step.id} >> {COUNTS}\n{step.shell.run}")})


def refactoring(*, recovers: bool) -> Plan:
    """Return the example, with a step that is taken back by a command of its own.

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
    edge = test.on_failure.model_copy(update={"compensate": (*test.on_failure.compensate, "announce")})
    steps["test"] = test.model_copy(update={"needs": (*test.needs, "announce"), "on_failure": edge})
    if not recovers:
        steps = {name: step for name, step in steps.items() if name not in ("careful-rename", "test-again")}
        steps["test"] = steps["test"].model_copy(update={"on_failure": None})
        steps["commit"] = steps["commit"].model_copy(update={"needs": ("test",)})
    return plan.model_copy(update={"steps": tuple(steps.values()), "on_failure": OnPlanFailure.COMPENSATE})


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A server on a file, and the process that keeps the workers."""
    environment = {"TIGHTLOOP_WORKER__STICKY_TIMEOUT_S": "1"}
    with Stack(tmp_path_factory.mktemp("stack"), environment) as running:
        (running.folder / "workers").mkdir(parents=True)
        running.start_server()
        wait_for_port(running.settings.temporal.address)
        keeper = running.start_keeper(running.folder / "workers")
        yield running
        keeper.send_signal(signal.SIGTERM)
        keeper.wait(90)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample project, with the file of counts ignored."""
    folder = tmp_path_factory.mktemp("template") / "relay"
    subprocess.run((sys.executable, EXAMPLES / "sample/create.py", folder), check=True, capture_output=True, timeout=60)
    with (folder / ".git" / "info" / "exclude").open("a") as ignored:
        ignored.write(f"/{COUNTS}\n")
    return folder


class Killing:
    """Runs plans, each with a worker that dies at one moment."""

    def __init__(self, stack: Stack, template: Path, plan: Plan, folder: Path) -> None:
        self._stack, self._template, self._folder = stack, template, folder
        self._source = write_plan(plan, "yaml")
        self._at_once = asyncio.Semaphore(AT_ONCE)

    async def run(self, place: tuple[str, str]) -> Left:
        """Run the plan in a project of its own, with a kill at this place."""
        async with self._at_once:
            name = f"{self._folder.name}-{'-'.join(place)}"
            project = self._folder / name
            await asyncio.to_thread(subprocess.run, ("cp", "-a", self._template, project), check=True, timeout=60)
            wanted = self._stack.folder / "workers" / f"{name}.wanted"
            wanted.with_suffix(".new").write_text(" ".join(place))
            wanted.with_suffix(".new").rename(wanted)
            try:
                result = await self._result(name, project)
            finally:
                wanted.unlink()
            return self._left(result, project, died=wanted.with_suffix(".died").exists())

    async def _result(self, name: str, project: Path) -> PlanResult:
        settings = self._stack.settings
        temporal = settings.temporal.model_copy(update={"task_queue": name})
        client = await TightloopClient.connect(settings.model_copy(update={"temporal": temporal}))
        request = PlanRequest(workspace=str(project), source=self._source)
        await client.plans.start(request, plan_id=name)
        try:
            async with asyncio.timeout(PLAN_SECONDS):
                return await client.plans.result(name)
        except TimeoutError:
            told = "; ".join(f"{event.event} {event.text}" for event in await client.plans.timeline(name))
            raise AssertionError(f"{name} does not end: {told}") from None

    def _left(self, result: PlanResult, project: Path, *, died: bool) -> Left:
        own = (".git", ".tightloop", COUNTS, "__pycache__")
        found = [path for path in project.rglob("*") if path.is_file() and not set(path.parts) & set(own)]
        log = subprocess.run(
            ("git", "log", "--oneline", "--all", "--not", "--glob=refs/tightloop"), cwd=project, capture_output=True,
            check=True, timeout=60,
        )  # fmt: skip
        counts = project / COUNTS
        return Left(
            result=result,
            files={str(path.relative_to(project)): path.read_bytes() for path in found},
            ran=Counter(counts.read_text().split() if counts.exists() else ()),
            commits=len(log.stdout.splitlines()),
            died=died,
            project=project,
        )


def check(place: tuple[str, str], left: Left, untouched: Left, plan: Plan) -> None:
    """Compare a plan whose worker was killed with one that nobody touched."""
    target, moment = place
    assert left.died, f"{place}: the worker did not die"
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
    places = RECOVERS if recovers else GIVES_UP
    untouched, *killed = await asyncio.gather(*map(killing.run, (NOWHERE, *places)))
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
