"""Plans: 10 000 steps that do nothing against a bare workflow on the same graph, wide graphs, and the makespan."""

import gc
import json
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import uuid4

import psutil
from temporalio.api.enums.v1 import EventType, WorkflowTaskFailedCause
from temporalio.client import Client, WorkflowHistory
from temporalio.worker import Replayer, Worker

from tests.benchmarks.figures import Report, Spread, progress
from tests.benchmarks.plan_bare import WINDOW, BareGraph, pass_node
from tests.benchmarks.plan_makespan import SLOTS, Layered, layered, list_schedule
from tests.benchmarks.stage import InstantPlanner, Stage, stage
from tightloop.client import TightloopClient
from tightloop.client.encryption import open_all
from tightloop.plan.request import PlanOutcome, PlanRequest
from worker.build import workflow_runner
from workflows.plan.workflow import PlanWorkflow

LIMIT_S = 1_200
ROUNDS = 3
LAYERS = WIDTH = 100
PER_RUN = 1_000
WIDE, FAN_IN = 2_500, 1_000
MAKESPANS = 3
STEPS = frozenset({"pass_milestone", "pass_node", "run_shell"})
PLAN, BARE, ENDLESS = "plan", "bare, a new run each 1 000", "bare, one run"
_FAILED = EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED
_TIMED_OUT = EventType.EVENT_TYPE_WORKFLOW_TASK_TIMED_OUT


@dataclass
class Run:
    """One workflow from start to end."""

    steps: int
    wall: float
    worker_cpu: float
    server_cpu: float
    histories: list[WorkflowHistory] = field(default_factory=list)

    @property
    def speed(self) -> float:
        """Steps a second."""
        return self.steps / self.wall

    @property
    def cpu(self) -> float:
        """CPU seconds of worker and server."""
        return self.worker_cpu + self.server_cpu

    @property
    def span(self) -> float:
        """Seconds from the first step's start to the last one's end, by the server's clock."""
        spans = [_span(history) for history in self.histories]
        return max(end for _, end in spans) - min(begin for begin, _ in spans)

    @property
    def events(self) -> float:
        """Events of one step."""
        return sum(len(history.events) for history in self.histories) / self.steps

    @property
    def bytes(self) -> float:
        """Bytes of history of one step."""
        return sum(event.ByteSize() for history in self.histories for event in history.events) / self.steps

    @property
    def troubles(self) -> str:
        """Workflow tasks that failed, by cause, and that timed out."""
        found = Counter(trouble for history in self.histories for trouble in _troubles(history))
        return ", ".join(f"{count} {name}" for name, count in found.items()) or "0"


async def measure() -> Report:
    """Run the three kinds of workflow in turn, then the wide plans, then those whose steps take time."""
    report = Report(
        f"plan: {LAYERS * WIDTH} steps that do nothing, window {WINDOW}",
        (
            "kind",
            "steps/s",
            "worker CPU ms/step",
            "server CPU ms/step",
            "events/step",
            "bytes/step",
            "tasks failed",
            "",
        ),
    )
    async with stage() as small:
        on = replace(small, settings=_with_slots(small.settings, WINDOW))
        async with on.worker(InstantPlanner()) as worker, _bare(on, worker):
            graph = _layers(LAYERS, WIDTH)
            await _plan(on, _layers(5, 20))
            runs = await _in_turns(on, graph)
            for name, each in runs.items():
                _row(report, name, each)
            _ratios(report, runs)
            await _replay(report, on, runs[PLAN][0])
            for name, wide in (("width 2 500", _wide(WIDE, 1)), ("fan-in 1 000, five in a row", _wide(FAN_IN - 1, 5))):
                progress(f"plan: {name}")
                _row(report, f"plan, {name}", [await _plan(on, wide)])
        async with replace(small, settings=_with_slots(small.settings, SLOTS)).worker(InstantPlanner()):
            await _makespans(report, small)
    return report


async def _in_turns(on: Stage, graph: list[list[int]]) -> dict[str, list[Run]]:
    arms: dict[str, Callable[[], Awaitable[Run]]] = {
        PLAN: lambda: _plan(on, graph),
        BARE: lambda: _bare_run(on, graph, PER_RUN),
        ENDLESS: lambda: _bare_run(on, graph, 0),
    }
    found: dict[str, list[Run]] = {name: [] for name in arms}
    for number in range(ROUNDS):
        order = list(arms)[number % len(arms) :] + list(arms)[: number % len(arms)]
        for name in order:
            progress(f"plan: round {number + 1} of {ROUNDS}, {name}")
            found[name].append(await arms[name]())
            progress(f"plan: {found[name][-1].speed:.0f} steps/s")
    return found


# -- graphs -------------------------------------------------------------------------------------------


def _layers(depth: int, width: int) -> list[list[int]]:
    """Layers in which each step needs three of the layer before."""
    chance = random.Random(width)
    return [
        sorted(chance.sample(range((layer - 1) * width, layer * width), min(3, width))) if layer else []
        for layer in range(depth)
        for _ in range(width)
    ]


def _wide(width: int, times: int) -> list[list[int]]:
    """Steps side by side in front of one that needs them all, again and again."""
    needs: list[list[int]] = []
    for _ in range(times):
        meeting, first = [len(needs) - 1] if needs else [], len(needs)
        needs += [meeting] * width
        needs.append(list(range(first, first + width)))
    return needs


# -- runs ---------------------------------------------------------------------------------------------


async def _plan(on: Stage, graph: list[list[int]]) -> Run:
    steps = [{"id": f"s{node}", "needs": [f"s{source}" for source in sources]} for node, sources in enumerate(graph)]
    return await _of_steps(on, steps, WINDOW)


async def _of_steps(on: Stage, steps: Sequence[dict[str, Any]], slots: int) -> Run:
    workspace = on.workspace()
    (workspace / "plan.json").write_text(json.dumps({"id": "bench", "max_parallel": slots, "steps": steps}))
    plans = TightloopClient(on.client, on.settings)
    request = PlanRequest(workspace=str(workspace), file="plan.json", attempts_per_run=PER_RUN)
    begun = _clocks()
    plan_id = await plans.start(request)
    result = await plans.result(plan_id)
    run = _run(len(steps), begun)
    assert (result.outcome, result.counts) == (PlanOutcome.COMPLETED, {"completed": len(steps)}), result
    run.histories = await _histories(on, plan_id)
    return run


async def _bare_run(on: Stage, graph: list[list[int]], per_run: int) -> Run:
    workflow_id = f"bare-{uuid4().hex[:8]}"
    begun = _clocks()
    done = await on.client.execute_workflow(
        BareGraph.run, args=[graph, "", per_run], id=workflow_id, task_queue=_bare_queue(on)
    )
    run = _run(len(graph), begun)
    assert done == len(graph)
    run.histories = await _histories(on, workflow_id)
    return run


def _bare_queue(on: Stage) -> str:
    return f"{on.settings.temporal.task_queue}-bare"


def _bare(on: Stage, plans: Worker) -> Worker:
    """Return a worker with the same settings, but without our interceptors."""
    config: Any = plans.config()
    config |= {
        "task_queue": _bare_queue(on),
        "workflows": [BareGraph],
        "activities": [pass_node],
        "interceptors": [],
    }
    return Worker(**config)


def _with_slots(settings: Any, slots: int) -> Any:
    return settings.evolve(worker=settings.worker.evolve(max_concurrent_activities=slots))


def _clocks() -> tuple[float, float, float]:
    gc.collect()
    servers = [child for child in psutil.Process().children(recursive=True) if "temporal" in child.name()]
    server = sum(sum(each.cpu_times()[:2]) for each in servers)
    return time.perf_counter(), time.process_time(), server


def _run(steps: int, begun: tuple[float, float, float]) -> Run:
    wall, worker, server = (now - then for now, then in zip(_clocks(), begun, strict=True))
    return Run(steps, wall, worker, server)


async def _histories(on: Stage, workflow_id: str) -> list[WorkflowHistory]:
    """Return the histories of all runs, oldest first."""
    found: list[WorkflowHistory] = []
    run_id: str | None = None
    while True:
        history = await on.client.get_workflow_handle(workflow_id, run_id=run_id).fetch_history()
        found.insert(0, history)
        run_id = history.events[0].workflow_execution_started_event_attributes.continued_execution_run_id
        if not run_id:
            return found


def _span(history: WorkflowHistory) -> tuple[float, float]:
    """Return when the first step of a run was scheduled, and when the last one had ended."""
    begins = {
        event.event_id: event.event_time.ToNanoseconds() / 1e9
        for event in history.events
        if event.activity_task_scheduled_event_attributes.activity_type.name in STEPS
    }
    ends = [
        event.event_time.ToNanoseconds() / 1e9
        for event in history.events
        if event.activity_task_completed_event_attributes.scheduled_event_id in begins
    ]
    return min(begins.values()), max(ends)


async def _durations(run: Run, steps: int, client: Client) -> list[float]:
    """Return how long each step `s<number>` ran, from its start to its end, in seconds by the server's clock."""
    found = [0.0] * steps
    for history in run.histories:
        events = {event.event_id: event for event in history.events}
        for event in history.events:
            ended = event.activity_task_completed_event_attributes
            begun = events.get(ended.started_event_id)
            asked = events.get(ended.scheduled_event_id)
            if begun is None or asked is None:
                continue
            scheduled = asked.activity_task_scheduled_event_attributes
            if scheduled.activity_type.name in STEPS:
                if codec := client.data_converter.payload_codec:
                    await open_all(scheduled, codec)
                step = json.loads(scheduled.input.payloads[0].data)["step"]
                nanoseconds = event.event_time.ToNanoseconds() - begun.event_time.ToNanoseconds()
                found[int(step.removeprefix("s"))] = nanoseconds / 1e9
    return found


def _troubles(history: WorkflowHistory) -> list[str]:
    found = []
    for event in history.events:
        if event.event_type == _FAILED:
            cause = event.workflow_task_failed_event_attributes.cause
            found.append(WorkflowTaskFailedCause.Name(cause).removeprefix("WORKFLOW_TASK_FAILED_CAUSE_"))
        elif event.event_type == _TIMED_OUT:
            found.append("TIMED_OUT")
    return found


# -- figures ------------------------------------------------------------------------------------------


def _row(report: Report, name: str, runs: list[Run]) -> None:
    per_step = [[getattr(run, part) / run.steps * 1e3 for run in runs] for part in ("worker_cpu", "server_cpu")]
    troubles = "; ".join(dict.fromkeys(run.troubles for run in runs))
    report.add(
        name,
        Spread.of(run.speed for run in runs),
        Spread.of(per_step[0]),
        Spread.of(per_step[1]),
        Spread.of(run.events for run in runs),
        Spread.of(run.bytes for run in runs),
        troubles,
        aim="0 failed",
    )


def _ratios(report: Report, runs: dict[str, list[Run]]) -> None:
    for other in (BARE, ENDLESS):
        speed = Spread.of_ratios([run.speed for run in runs[PLAN]], [run.speed for run in runs[other]])
        running = Spread.of_ratios([run.span for run in runs[other]], [run.span for run in runs[PLAN]])
        cpu = Spread.of_ratios([run.cpu for run in runs[PLAN]], [run.cpu for run in runs[other]])
        _note(report, f"ratio of steps/s, {PLAN} to {other}", speed, "aim >= 0.9")
        _note(report, f"the same without opening and closing, {PLAN} to {other}", running, "")
        _note(report, f"ratio of CPU time (worker and server), {PLAN} to {other}", cpu, "")


async def _replay(report: Report, on: Stage, run: Run) -> None:
    """Replay the largest run of a plan in this process."""
    largest = max(run.histories, key=lambda history: len(history.events))
    replayer = Replayer(
        workflows=[PlanWorkflow],
        workflow_runner=workflow_runner(),
        data_converter=on.client.data_converter,
        namespace=on.client.namespace,
    )
    begun = time.process_time()
    await replayer.replay_workflow(largest)
    seconds = time.process_time() - begun
    _note(report, f"CPU seconds to replay the largest run ({len(largest.events)} events)", seconds, "aim <= 2")
    _note(report, "runs of a plan", len(run.histories), "")


async def _makespans(report: Report, on: Stage) -> None:
    ratios, asleep, whole = [], [], []
    for seed in range(MAKESPANS):
        work = layered(seed)
        progress(f"plan: makespan of {len(work.durations)} sleeping commands")
        run = await _of_steps(on, _sleeping(work), SLOTS)
        taken = Layered(work.needs, await _durations(run, len(work.needs), on.client))
        bound, ideal = list_schedule(taken, SLOTS), list_schedule(work, SLOTS)
        ratios.append(run.span / bound)
        asleep.append(run.span / ideal)
        whole.append(run.wall / bound)
        progress(f"plan: {run.span:.1f} s, list schedule {bound:.1f} s, of the sleeping alone {ideal:.1f} s")
    title = f"makespan on {SLOTS} slots against list scheduling, {MAKESPANS} plans"
    _note(report, title, Spread.of(ratios), "aim <= 1.1")
    _note(report, "the same, with opening and closing the plan", Spread.of(whole), "")
    _note(report, "the same, were a command no longer than it sleeps", Spread.of(asleep), "")


def _sleeping(work: Layered) -> list[dict[str, Any]]:
    return [
        {
            "id": f"s{node}",
            "needs": [f"s{source}" for source in sources],
            "shell": {"run": f"sleep {duration}"},
            "access": "none",
            "estimate_s": duration,
        }
        for node, (sources, duration) in enumerate(zip(work.needs, work.durations, strict=True))
    ]


def _note(report: Report, title: str, value: Any, aim: str) -> None:
    shown = value if isinstance(value, Spread) else f"{value:.3g}" if isinstance(value, float) else value
    report.notes.append(f"{title:<72} {shown}  {aim}".rstrip())
    report.figures[title] = value.__dict__ if isinstance(value, Spread) else value
