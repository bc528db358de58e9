"""What tests of loops and of episodes beside each other share: an agent that does what its goal says."""

import re
import subprocess
from contextlib import suppress
from pathlib import Path

from activities.executor.port import Control, Executor
from activities.loop.tasks import TaskAnswer, TaskBriefing
from tests.support import doubles
from tests.support.doubles import ScriptedPlanner
from tests.support.episodes import eventually
from tightloop.client import TightloopClient
from tightloop.episode.check import Check
from tightloop.errors import ServiceUnavailableError
from tightloop.executor.model import ExecutorOutcome, ExecutorStatus, WorkOrder
from tightloop.loop.model import LoopRequest, LoopStatus, LoopTask

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
                if control.is_cancelled():
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
