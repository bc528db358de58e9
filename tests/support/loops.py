"""What tests of loops and of episodes beside each other share: an agent that does what its goal says."""

import asyncio
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from activities.executor.port import Control, Executor
from activities.loop.tasks.port import TaskAnswer, TaskBriefing
from tests.support import doubles
from tests.support.doubles import ScriptedPlanner
from tests.support.episodes import eventually
from tightloop.client import TightloopClient
from tightloop.episode.check import Check
from tightloop.errors import InvalidRequestError, ServiceUnavailableError
from tightloop.executor.model import ExecutorOutcome, ExecutorStatus, WorkOrder
from tightloop.loop.model import LoopRequest, LoopResult, LoopStatus, LoopTask
from tightloop.settings import Settings

LOOP_SECONDS = 80.0

_COMMAND = re.compile(r"RUN: (.*)")


def planner_of_goals() -> ScriptedPlanner:
    """Return a planner that passes the goal on."""
    return ScriptedPlanner(lambda briefing: doubles.planned(briefing.goal))


class ObedientExecutor(Executor):
    """Runs the shell command behind `RUN:` in the goal."""

    def execute(self, order: WorkOrder, control: Control, state_folder: Path) -> ExecutorOutcome:
        """Run it in the working tree."""
        found = _COMMAND.search(order.plan.steps[0].title)
        command = found[1] if found is not None else "true"
        process = subprocess.Popen(
            ["sh", "-c", command], cwd=order.root, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        control.own_process(process.pid)
        try:
            while True:
                with suppress(subprocess.TimeoutExpired):
                    said = process.communicate(timeout=0.1)[0].decode("utf-8", "replace")
                    return ExecutorOutcome(status=ExecutorStatus.COMPLETED, summary=said[-200:] or "done")
                if control.cancelled():
                    return ExecutorOutcome(status=ExecutorStatus.CANCELLED)
        finally:
            process.kill()
            process.wait(10)


def task(number: int, command: str, done: str, *needs: int, priority: int = 1) -> LoopTask:
    """Return a task that is done by a shell command."""
    return LoopTask(
        task_id=f"ptask_{number}",
        description=f"RUN: {command}",
        priority=priority,
        dependencies=tuple(f"ptask_{each}" for each in needs),
        definition_of_done=(Check(run=done),),
    )


class ScriptedTaskPlanner:
    """Answers with the same tasks, or with none and why."""

    def __init__(self, *tasks: LoopTask, problem: str = "") -> None:
        self._answer = TaskAnswer(tasks=tasks, problem=problem, model="scripted")
        self.briefings: list[TaskBriefing] = []

    async def plan(self, briefing: TaskBriefing) -> TaskAnswer:
        """Answer and remember."""
        self.briefings.append(briefing)
        return self._answer


def five_tasks() -> tuple[LoopTask, ...]:
    """Return five tasks in different files, of which the last two depend on others."""
    return (
        *(task(number, f"echo {number} > made{number}.txt", f"test -s made{number}.txt") for number in (1, 2, 3)),
        task(4, "cat made1.txt made2.txt > both.txt", "grep -q 2 both.txt", 1, 2),
        task(5, "cat both.txt made3.txt > all.txt", "test $(cat all.txt | wc -l) -eq 3", 4, 3),
    )


async def ended(client: TightloopClient, plan_id: str) -> LoopStatus:
    """Wait until all tasks of a plan have ended, or the plan has."""

    async def is_over() -> LoopStatus | None:
        try:
            status = await client.status(plan_id)
        except ServiceUnavailableError:
            return None  # the worker is busy
        assert isinstance(status, LoopStatus)
        return status if status.completed_at is not None or not status.possible else None

    found: LoopStatus = await eventually(is_over, seconds=LOOP_SECONDS)
    return found


async def planned(client: TightloopClient, request: LoopRequest) -> str:
    """Start a plan and wait until it is a draft, or has failed."""
    plan_id = await client.plan_project(request)

    async def is_planned() -> bool:
        status = await client.status(plan_id)
        assert isinstance(status, LoopStatus)
        return "dispatch" in status.possible or not status.possible

    await eventually(is_planned, seconds=LOOP_SECONDS)
    return plan_id


@asynccontextmanager
async def dying_worker(settings: Settings, notes: Path, moments: Sequence[str]) -> AsyncIterator[None]:
    """Keep a worker process alive that dies at each of these moments once; see `dying_loop_worker.py`."""
    temporal = settings.temporal
    module = "tests.support.dying_loop_worker"
    command = [sys.executable, "-m", module, temporal.address, temporal.task_queue, str(notes), *moments]

    async def keep() -> None:
        process: asyncio.subprocess.Process | None = None
        try:
            while True:
                process = await asyncio.create_subprocess_exec(*command, start_new_session=True)
                if await process.wait() != -signal.SIGKILL:
                    return  # it cannot work at all
        finally:
            if process is not None and process.returncode is None:
                process.kill()
                await process.wait()

    keeping = asyncio.create_task(keep())
    try:
        yield
    finally:
        keeping.cancel()
        with suppress(asyncio.CancelledError):
            await keeping


async def whole_loop(client: TightloopClient, workspace: Path, *, seconds: float) -> LoopResult:
    """Plan, dispatch and verify the five tasks, however often the worker dies."""

    async def patiently(what: Callable[[], Awaitable[str]]) -> None:
        async def succeeds() -> bool:
            try:
                await what()
            except ServiceUnavailableError:
                return False
            except InvalidRequestError:
                pass  # it has arrived before, and its worker died before it could answer
            return True

        await eventually(succeeds, seconds=seconds)

    async def stands(wanted: str) -> bool | None:
        status = await client.status(plan_id)
        assert isinstance(status, LoopStatus)
        return wanted in status.possible or not status.possible

    async def until(wanted: str) -> None:
        async def is_there() -> bool | None:
            with suppress(ServiceUnavailableError):
                return await stands(wanted)
            return None

        await eventually(is_there, seconds=seconds)

    gates = (Check(run="test -s all.txt"), Check(run="test $(cat all.txt | wc -l) -eq 3"))
    plan_id = await client.plan_project(LoopRequest(workspace=str(workspace), goal="make files", gates=gates))
    await until("dispatch")
    await patiently(lambda: client.dispatch(plan_id))
    await until("verify")
    await patiently(lambda: client.verify(plan_id))
    async with asyncio.timeout(seconds):
        result = await client.result(plan_id)
    assert isinstance(result, LoopResult)
    return result
