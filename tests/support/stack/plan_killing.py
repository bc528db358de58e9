"""Runs plans on the whole stack, each with a worker that is killed at moments of its own, and says what is left."""

import asyncio
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.stack.stack import ROOT, Stack, shared_state, wait_for_port
from tightloop.client import TightloopClient
from tightloop.plan.action import ShellAction
from tightloop.plan.document import Plan
from tightloop.plan.request import PlanRequest, PlanResult
from tightloop.plan.step import Step
from tightloop.plan.text.writing import write_plan

EXAMPLES = ROOT / "examples" / "plans"
COUNTS = ".counts"
"""Ignored by git: the steps' commands append a line each time they really run, and nothing takes it back."""
AT_ONCE = 6
PLAN_SECONDS = 600.0
Place = tuple[str, str]
"""What is killed, and at which moment of it; see `faulty_plan_worker.py`."""


@dataclass(frozen=True)
class Left:
    """What a plan left behind."""

    result: PlanResult
    files: dict[str, bytes]
    """Path -> content of everything but git's and tightloop's own files."""
    ran: Counter[str]
    """How often each step's command ran; `-step` for the one that takes it back."""
    commits: int
    deaths: tuple[Place, ...]
    """Where a worker died."""
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


def counting(step: Step, counts: str = COUNTS) -> Step:
    """Return the step with a command that leaves a line in `counts`, as the shell reads it, whenever it runs."""
    if step.shell is None:
        return step
    return step.evolve(shell=ShellAction(run=f"echo {step.id} >> {counts}\n{step.shell.run}"))


@contextmanager
def killing_stack(folder: Path, environment: dict[str, str] | None = None) -> Iterator[Stack]:
    """Start a server on a file, and the process that keeps the workers."""
    with Stack(folder, {**shared_state(), "TIGHTLOOP_WORKER__STICKY_TIMEOUT_S": "1", **(environment or {})}) as running:
        (running.folder / "workers").mkdir(parents=True)
        running.start_server()
        wait_for_port(running.settings.temporal.address)
        keeper = running.start_keeper(running.folder / "workers")
        yield running
        keeper.send_signal(signal.SIGTERM)
        keeper.wait(90)


def make_template(folder: Path) -> Path:
    """Make the sample project, with the file of counts ignored."""
    subprocess.run((sys.executable, EXAMPLES / "sample/create.py", folder), check=True, capture_output=True, timeout=60)
    with (folder / ".git" / "info" / "exclude").open("a") as ignored:
        ignored.write(f"/{COUNTS}\n")
    return folder


class Killing:
    """Runs one plan in projects of its own, each time with a worker that dies at other moments."""

    def __init__(self, stack: Stack, template: Path, plan: Plan, folder: Path) -> None:
        self._stack, self._template, self._folder = stack, template, folder
        self._source = write_plan(plan, "yaml")
        self._at_once = asyncio.Semaphore(AT_ONCE)

    async def run(self, name: str, places: Sequence[Place]) -> Left:
        """Run the plan under this id in a project of its own, with a kill at each of these places."""
        async with self._at_once:
            project = self._folder / name
            await asyncio.to_thread(subprocess.run, ("cp", "-a", self._template, project), check=True, timeout=60)
            wanted = self._stack.folder / "workers" / f"{name}.wanted"
            wanted.with_suffix(".new").write_text("\n".join(map(" ".join, places)))
            wanted.with_suffix(".new").rename(wanted)
            try:
                result = await self._result(name, project)
            finally:
                wanted.unlink()
            died = wanted.with_suffix(".died")
            deaths = died.read_text().splitlines() if died.exists() else ()
            return self._left(result, project, tuple(place for place in places if " ".join(place) in deaths))

    async def client(self, name: str) -> TightloopClient:
        """Return a client of the task queue of one run."""
        settings = self._stack.settings
        temporal = settings.temporal.evolve(task_queue=name)
        return await TightloopClient.connect(settings=settings.evolve(temporal=temporal))

    async def _result(self, name: str, project: Path) -> PlanResult:
        client = await self.client(name)
        request = PlanRequest(workspace=str(project), source=self._source)
        await client.start(request, new_id=name)
        try:
            async with asyncio.timeout(PLAN_SECONDS):
                return await client.result(name)
        except TimeoutError:
            told = "; ".join(f"{event.kind} {event.text}" for event in await client.timeline(name))
            raise AssertionError(f"{name} does not end: {told}") from None

    def _left(self, result: PlanResult, project: Path, deaths: tuple[Place, ...]) -> Left:
        own = (".git", COUNTS, "__pycache__")
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
            deaths=deaths,
            project=project,
        )
