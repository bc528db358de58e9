"""Worker processes of the simulated eight hours: production's, with a planner and an operator that follow the mix.

python -m tests.support.simulation.worker    (settings and SIMULATION_... from the environment)

The parent only starts another worker for each one that ended; it forks, so that a new one is there at once.
"""

import asyncio
import os
import signal
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import temporalio.client
import temporalio.worker
from temporalio import workflow
from temporalio.client import Client

from activities.alerts.activity import AlertDelivery
from activities.executor.activity import ExecuteRequest
from activities.planner.activity import NextPlanRequest
from tests.support.doubles import malformed, planned
from tests.support.simulation.mix import PLANNING_S, WORK_S, Deal, Fault, deal, simulated_s
from tightloop.episode.planning import Briefing, PlannerAnswer
from tightloop.executor.message import Alignment, Reflection
from tightloop.host import load_settings
from tightloop.ledger.alert import AlertKind, Notice
from worker.build import build_adapters, build_workers
from worker.connect import connect
from worker.up import stop_event


def once(folder: Path, name: str) -> bool:
    """Return whether this is the first time, over all processes, that this is asked for the name."""
    try:
        os.close(os.open(folder / name, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


class MixedPlanner:
    """Plans the next failing test, and answers badly where the mix says so."""

    def __init__(self, dealt: Deal, folder: Path) -> None:
        self._dealt = dealt
        self._folder = folder

    async def plan(self, briefing: Briefing) -> PlannerAnswer:
        """Answer."""
        fault = self._dealt.at(briefing.iteration)
        if fault is Fault.RESTARTED and once(self._folder, f"{briefing.iteration}.restarted"):
            os.kill(os.getpid(), signal.SIGTERM)
        if fault is Fault.UNUSABLE_PLAN:
            return malformed()
        answer = planned(_title(briefing))
        if fault is Fault.INCOMPLETE_PLAN and not briefing.sent_back:
            assert answer.message is not None
            wrong = answer.message.evolve(reflection=Reflection(diagnosis="d"), alignment=Alignment())
            return answer.evolve(message=wrong)
        return answer


def _title(briefing: Briefing) -> str:
    failing = [name for result in briefing.checks.failed for name in result.failing] if briefing.checks else []
    title = f"fix {failing[0] if failing else 'what fails'}"
    return f"{title} in another way than before ({briefing.iteration})" if briefing.reflection_is_fresh else title


class Operator:
    """Is alerted like a person, notes what of, and at once lets the episode go on without a word of help."""

    name = "operator"
    kinds: frozenset[AlertKind] = frozenset()

    def __init__(self, client: Client, folder: Path) -> None:
        self._client = client
        self._folder = folder

    async def deliver(self, notice: Notice) -> None:
        """Resume. A running activity keeps time from being skipped, so the pause cannot time out before."""
        if once(self._folder, f"{notice.key}.alert"):
            with (self._folder / "interventions").open("a") as told:
                told.write(f"{notice.iteration} {notice.kind.value}\n")
        await self._client.get_workflow_handle(notice.episode_id).signal("resume")


class TakesTime(temporalio.client.Interceptor, temporalio.worker.Interceptor):
    """Puts a durable timer before every plan and every delivery: the simulated time that they take."""

    def __init__(self, seconds: Callable[[object], float]) -> None:
        """Set the function that returns the simulated seconds before an activity with this request."""
        self._seconds = seconds

    def workflow_interceptor_class(
        self, input: temporalio.worker.WorkflowInterceptorClassInput
    ) -> type[temporalio.worker.WorkflowInboundInterceptor]:
        """Return the class; it only hooks in the outbound side."""
        del input
        seconds = self._seconds

        class Inbound(temporalio.worker.WorkflowInboundInterceptor):
            def init(self, outbound: temporalio.worker.WorkflowOutboundInterceptor) -> None:
                super().init(_Slow(outbound, seconds))

        return Inbound


class _Slow(temporalio.worker.WorkflowOutboundInterceptor):
    def __init__(
        self, outbound: temporalio.worker.WorkflowOutboundInterceptor, seconds: Callable[[object], float]
    ) -> None:
        super().__init__(outbound)
        self._seconds = seconds

    def start_activity(self, input: temporalio.worker.StartActivityInput) -> Any:
        seconds = self._seconds(input.args[0])
        if seconds == 0:
            return super().start_activity(input)
        return asyncio.create_task(self._later(seconds, input))

    async def _later(self, seconds: float, input: temporalio.worker.StartActivityInput) -> Any:
        await workflow.sleep(seconds)
        return await super().start_activity(input)


def _seconds(seed: int, request: object) -> float:
    if isinstance(request, ExecuteRequest):
        return simulated_s(seed, "work/" + request.key.partition("/")[2], WORK_S)
    if isinstance(request, NextPlanRequest):
        return simulated_s(seed, f"plan/{request.iteration}", PLANNING_S)
    return 0.0


async def work() -> None:
    """Work until stopped, or until killed."""
    stopped = stop_event()
    settings = load_settings()
    folder = Path(os.environ["SIMULATION_FOLDER"])
    dealt = deal(int(os.environ["SIMULATION_SEED"]), int(os.environ["SIMULATION_ITERATIONS"]))
    config = (await connect(settings)).config()
    config["interceptors"] = [TakesTime(partial(_seconds, dealt.seed))]
    client = Client(**config)
    planner = MixedPlanner(dealt, folder)
    adapters = replace(
        build_adapters(client, settings),
        planners=lambda _kind: planner,
        post=AlertDelivery(channels=(Operator(client, folder),)),
    )
    async with AsyncExitStack() as stack:
        for worker in build_workers(client, settings, adapters=adapters):
            await stack.enter_async_context(worker)
        await stopped.wait()


def keep() -> None:
    """Keep one worker alive until a signal ends this process, which ends it, too."""
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _frame: stopped.append(number))
    while not stopped:
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            asyncio.run(work())
            os._exit(0)
        while not stopped and os.waitpid(child, os.WNOHANG)[0] == 0:
            time.sleep(0.02)
        if stopped:
            os.kill(child, signal.SIGKILL)


if __name__ == "__main__":
    keep()
