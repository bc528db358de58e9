"""Workers that kill themselves at moments of activities of a plan, once at each; each has a task queue of its own.

The parent keeps one worker alive for each file in a folder: its name is the task queue, its lines say where the worker
dies, such as `rename-uses acted`. It forks, so that a new one is there at once, and ends those whose file is gone.

A step is named by its id, `undo-`, `prepare-` or `settle-` and its id where it is undone or starts workflows; all
else by its activity, with `@build.1` behind it in the workflow that attempt 1 of step `build` started. An episode has
the scripted executor with the script in `SCRIPT` of its workspace.
"""

import asyncio
import fcntl
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path
from typing import Any

import temporalio.client
import temporalio.worker
from temporalio import activity

from activities.checks.runner import CheckRunner
from activities.executor.port import Control, Executor
from activities.executor.scripted import ScriptedExecutor
from activities.plan.port import Runner, RunnerResult, Work
from activities.plan.requests import RunStepRequest, SettleRequest
from activities.plan.runners.decision import CheckpointRunner
from activities.plan.runners.edit import EditRunner
from activities.plan.runners.git import GitRunner
from activities.sandbox.port import Sandbox, SandboxResult, SandboxSpec
from activities.workspace.scope import EpisodeScope
from activities.workspace.working_tree import WorkingTree, Workspaces
from tests.support.doubles import ScriptedPlanner
from tightloop.executor.model import ExecutorOutcome, WorkOrder
from tightloop.host import load_settings
from tightloop.plan.step import Capability
from worker.build import build_adapters, build_workers
from worker.connect import connect
from worker.up import stop_event

MOMENTS = ("before", "acted", "recorded")
"""Before the activity does anything; when its work is done but not recorded; recorded, but not told to the server.

While alternatives are settled also: `taken-over`, the files of the best one are in the tree of the plan; `released`,
the claim of the first worktree is given back, and the worktree is about to go.
"""
SCRIPT = "agent.yaml"
_here: ContextVar[str] = ContextVar("here", default="")


class Fault:
    """Kills this process at its moments, unless a process before it died there."""

    def __init__(self, places: str, deaths: Path) -> None:
        """Take a line for each place; `deaths` has a line for each where a process has died."""
        self._places = frozenset(places.splitlines())
        self._deaths = deaths

    def reached(self, moment: str, target: str | None = None) -> None:
        """Die if this is a moment to die."""
        place = f"{target or _here.get()} {moment}"
        if place not in self._places:
            return
        with self._deaths.open("a+") as deaths:
            fcntl.flock(deaths, fcntl.LOCK_EX)
            deaths.seek(0)
            if place in deaths.read().splitlines():
                return
            deaths.write(f"{place}\n")
            deaths.flush()
            os.kill(os.getpid(), signal.SIGKILL)


class AroundActivities(temporalio.client.Interceptor, temporalio.worker.Interceptor):
    """Dies before and after activities; it comes into the workers by their client, outside of everything else."""

    def __init__(self, fault: Fault) -> None:
        self._fault = fault

    def intercept_activity(
        self, next: temporalio.worker.ActivityInboundInterceptor
    ) -> temporalio.worker.ActivityInboundInterceptor:
        return _Around(next, self._fault)


class _Around(temporalio.worker.ActivityInboundInterceptor):
    def __init__(self, next: temporalio.worker.ActivityInboundInterceptor, fault: Fault) -> None:
        super().__init__(next)
        self._fault = fault

    async def execute_activity(self, input: temporalio.worker.ExecuteActivityInput) -> Any:
        target = _named(activity.info().activity_type, input.args[0] if input.args else None)
        _here.set(target)
        self._fault.reached("before")
        result = await super().execute_activity(input)
        self._fault.reached("recorded", target)
        return result


_PREFIXES = {"prepare_children": "prepare-", "compensate_step": "undo-"}


def _named(name: str, request: object) -> str:
    match request:
        case RunStepRequest():
            return _PREFIXES.get(name, "") + request.step
        case SettleRequest():
            return f"settle-{request.run.step}"
    scope = getattr(request, "scope", None)
    child = scope.episode_id.partition(".")[2] if isinstance(scope, EpisodeScope) else ""
    return f"{name}@{child}" if child else name


class FaultySandbox:
    """The real sandbox, in a process that dies when a command has ended."""

    def __init__(self, sandbox: Sandbox, fault: Fault) -> None:
        self._sandbox, self._fault = sandbox, fault

    @property
    def name(self) -> str:
        return self._sandbox.name

    def probe(self) -> str:
        return self._sandbox.probe()

    def run(
        self,
        spec: SandboxSpec,
        *,
        cancelled: Callable[[], bool],
        started: Callable[[int], None],
        on_output: Callable[[bytes], None] | None = None,
    ) -> SandboxResult:
        result = self._sandbox.run(spec, cancelled=cancelled, started=started, on_output=on_output)
        self._fault.reached("acted")
        return result


class FaultyRunner:
    """A real runner, in a process that dies when it has done its work."""

    def __init__(self, runner: Runner, fault: Fault) -> None:
        self._runner, self._fault = runner, fault

    def preview(self, work: Work) -> str:
        return self._runner.preview(work)

    def run(self, work: Work) -> RunnerResult:
        done = self._runner.run(work)
        self._fault.reached("acted")
        return done


class FaultyExecutor(Executor):
    """The scripted executor, in a process that dies when it has done its work."""

    def __init__(self, fault: Fault) -> None:
        self._executor, self._fault = ScriptedExecutor(), fault

    def effects_outside(self, order: WorkOrder) -> str:
        del order
        return ""

    def execute(self, order: WorkOrder, control: Control, state_folder: Path) -> ExecutorOutcome:
        choice = order.executor.evolve(options={"script": SCRIPT})
        outcome = self._executor.execute(order.evolve(executor=choice), control, state_folder)
        self._fault.reached("acted")
        return outcome


class FaultyTree:
    """The real working tree, in a process that dies when files were put back, or taken over from an alternative."""

    def __init__(self, tree: WorkingTree, fault: Fault) -> None:
        self._tree, self._fault = tree, fault

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tree, name)

    def restore(self, tree: str) -> None:
        self._tree.restore(tree)
        if _here.get().startswith("undo-"):
            self._fault.reached("acted")
        elif _here.get().startswith("settle-"):
            self._fault.reached("taken-over")

    def ensure(self, *given: Any, **named: Any) -> Any:
        drift = self._tree.ensure(*given, **named)
        if _here.get().startswith("undo-"):
            self._fault.reached("acted")
        return drift


class FaultyWorkspaces:
    """The real workspaces with such trees."""

    def __init__(self, workspaces: Workspaces, fault: Fault) -> None:
        self._workspaces, self._fault = workspaces, fault

    def prepare(self, scope: EpisodeScope, *, take_over: Callable[[str], bool]) -> tuple[str, ...]:
        return self._workspaces.prepare(scope, take_over=take_over)

    def release(self, scope: EpisodeScope) -> None:
        self._workspaces.release(scope)
        self._fault.reached("released")

    @contextmanager
    def hold(self, scope: EpisodeScope) -> Iterator[WorkingTree]:
        with self._workspaces.hold(scope) as tree:
            yield FaultyTree(tree, self._fault)


async def work(queue: str, fault: Fault) -> None:
    """Work on one queue until stopped, or until killed."""
    stopped = stop_event()
    settings = load_settings()
    settings = settings.evolve(temporal=settings.temporal.evolve(task_queue=queue))
    config = (await connect(settings)).config()
    config["interceptors"] = [*config["interceptors"], AroundActivities(fault)]
    client = temporalio.client.Client(**config)
    adapters = build_adapters(client, settings)
    assert adapters.sandbox is not None
    sandbox = FaultySandbox(adapters.sandbox, fault)
    runners = {
        Capability.EDIT: EditRunner(),
        Capability.GIT: GitRunner(),
        Capability.CHECKPOINT: CheckpointRunner(),
    }
    adapters = replace(
        adapters,
        sandbox=sandbox,
        checks=CheckRunner(sandbox, settings.sandbox),
        executors=lambda _name: FaultyExecutor(fault),
        planners=lambda _kind: ScriptedPlanner(),
        workspaces=FaultyWorkspaces(adapters.workspaces, fault),
        plan_runners={
            **adapters.plan_runners,
            **{capability: FaultyRunner(runner, fault) for capability, runner in runners.items()},
        },
    )
    async with AsyncExitStack() as stack:
        for worker in build_workers(client, settings, adapters=adapters):
            await stack.enter_async_context(worker)
        await stopped.wait()


def keep(folder: Path) -> None:
    """Keep one worker alive for each file until a signal ends this process; they end with it."""
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _frame: stopped.append(number))
    living: dict[int, Path] = {}
    while not stopped:
        wanted = set(folder.glob("*.wanted"))
        for file in sorted(wanted - set(living.values())):
            child = os.fork()
            if child == 0:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                asyncio.run(work(file.stem, Fault(file.read_text(), file.with_suffix(".died"))))
                os._exit(0)
            living[child] = file
        for child in [child for child, file in living.items() if file not in wanted]:
            os.kill(child, signal.SIGKILL)
        _reap(living)
        time.sleep(0.02)
    for child in living:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def _reap(living: dict[int, Path]) -> None:
    while living:
        ended, _status = os.waitpid(-1, os.WNOHANG)
        if not ended:
            return
        living.pop(ended, None)


if __name__ == "__main__":
    keep(Path(sys.argv[1]))
