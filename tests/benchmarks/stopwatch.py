"""Times the body of every activity: the function alone, without what the SDK and our interceptors add."""

import functools
import inspect
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import temporalio.client
import temporalio.worker
from temporalio import activity


@dataclass(frozen=True)
class Lap:
    """One execution of an activity; times of `time.perf_counter`."""

    workflow_id: str
    run_id: str
    name: str
    begun: float
    ended: float
    cpu: float
    """Processor time of all that was measured, in seconds, when it began."""


@dataclass(frozen=True)
class Pass:
    """One iteration: from the begin of its first activity to the begin of the next iteration's."""

    wall: float
    inside: float
    """Time in the bodies of its activities."""
    calls: int
    cpu: float
    """Processor time of worker, client, server and what they ran, in seconds."""

    @property
    def outside(self) -> float:
        """What the engine takes: server, SDK, workflow code, interceptors, threads."""
        return self.wall - self.inside


class Stopwatch(temporalio.client.Interceptor, temporalio.worker.Interceptor):
    """An interceptor of the client: so it also stands in the workers that production code builds."""

    def __init__(self, cpu: Callable[[], float] = time.process_time) -> None:
        """Take what tells the processor time, in seconds."""
        self.laps: list[Lap] = []
        self.cpu = cpu

    def intercept_activity(
        self, next: temporalio.worker.ActivityInboundInterceptor
    ) -> temporalio.worker.ActivityInboundInterceptor:
        """Time an activity."""
        return _Timed(next, self.laps, self.cpu)

    def passes(self, workflow_id: str, first: str) -> list[Pass]:
        """Return the iterations of a workflow, each beginning with the activity `first`; the last is left out."""
        laps = [lap for lap in self.laps if lap.workflow_id == workflow_id]
        starts = [index for index, lap in enumerate(laps) if lap.name == first]
        return [
            Pass(
                wall=laps[b].begun - laps[a].begun,
                inside=sum(lap.ended - lap.begun for lap in laps[a:b]),
                calls=b - a,
                cpu=laps[b].cpu - laps[a].cpu,
            )
            for a, b in pairwise(starts)
        ]

    def runs(self, workflow_id: str) -> list[str]:
        """Return the ids of the runs of a workflow, in their order."""
        return list(dict.fromkeys(lap.run_id for lap in self.laps if lap.workflow_id == workflow_id))


class _Timed(temporalio.worker.ActivityInboundInterceptor):
    def __init__(
        self, next: temporalio.worker.ActivityInboundInterceptor, laps: list[Lap], cpu: Callable[[], float]
    ) -> None:
        super().__init__(next)
        self._laps, self._cpu = laps, cpu

    async def execute_activity(self, input: temporalio.worker.ExecuteActivityInput) -> Any:
        info, cpu = activity.info(), self._cpu()

        def note(begun: float) -> None:
            ended = time.perf_counter()
            self._laps.append(
                Lap(info.workflow_id or "", info.workflow_run_id or "", info.activity_type, begun, ended, cpu)
            )

        input.fn = _timed(input.fn, note)
        return await super().execute_activity(input)


def _timed(function: Callable[..., Any], note: Callable[[float], None]) -> Callable[..., Any]:
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def awaited(*arguments: Any) -> Any:
            begun = time.perf_counter()
            try:
                return await function(*arguments)
            finally:
                note(begun)

        return awaited

    @functools.wraps(function)
    def called(*arguments: Any) -> Any:
        begun = time.perf_counter()
        try:
            return function(*arguments)
        finally:
            note(begun)

    return called
