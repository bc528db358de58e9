"""Runs schedules on this side: starts the product's workflows, answers for it, and observes what came of them."""

import asyncio
import dataclasses
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import temporalio.client
import temporalio.worker
from temporalio import activity, workflow
from temporalio.client import Client, WorkflowFailureError, WorkflowQueryFailedError
from temporalio.common import WorkflowIDReusePolicy
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError
from temporalio.testing import TimeSkippingConfig, WorkflowEnvironment
from temporalio.worker import Worker

from activities.alerts.activity import AlertsSent, SendAlertsRequest
from activities.plan.requests import SettleRequest
from activities.proof.port import AcceptRequest, AcceptResult, BeginRequest, BeginResult, ProveRequest, ProveResult
from activities.tracking.activity import Recorded, RecordRequest
from activities.workspace.port import AdoptRequest, AdoptResult
from tests.support.differential.product.coders import ScriptedCoders
from tests.support.differential.product.episodes import EpisodeActivities, accepted
from tests.support.differential.product.plans import PlanFolder, ScriptedPlans
from tests.support.differential.product.projects import ScriptedProjects, gate_checks
from tests.support.differential.product.world import NotSkippedError, StuckError, World, ask_again, cause_of
from tests.support.differential.schedule import Act, Observation, Schedule, Sent
from tests.support.plan.doubles import impatient_staffing
from tightloop.coder.model import CoderInput, CoderProgress, CoderStatus
from tightloop.episode.checkpoint import RestoreTarget
from tightloop.episode.control import EpisodeInput
from tightloop.episode.model import EpisodeStatus
from tightloop.loop.model import LoopInput, LoopStatus
from tightloop.plan.progress import PlanInput
from tightloop.plan.request import PlanStatus, StepPage
from tightloop.run.core import TimelineLine
from tightloop.run.question import Option, QuestionKind
from worker.build import PRODUCTION_RUNNER
from worker.connect import DATA_CONVERTER
from worker.server import temporal_binary, tuning_arguments
from workflows.coder import CoderWorkflow
from workflows.episode.workflow import EpisodeWorkflow
from workflows.plan.project import ProjectWorkflow
from workflows.plan.workflow import PlanWorkflow

WORKFLOWS = [EpisodeWorkflow, PlanWorkflow, ProjectWorkflow, CoderWorkflow]
WORKSPACE = "/sample/project"
LIMIT_S = 400.0
CONTINUED = 6
"""Deliveries of a session of the coder after the first one."""
SKIPS = 100_000
TIMELINE = {"continues": "goes on"}
"""Kinds of timeline entries by their name on this side, where it is another one than in the recordings."""
LEFT_OUT = frozenset({"alert"})
"""Kinds that depend on what runs beside the work."""
NOT_SPENT = frozenset({"wall_time"})
STATUS = {
    "EpisodeWorkflow": EpisodeStatus, "PlanWorkflow": PlanStatus, "LoopWorkflow": LoopStatus,
}  # fmt: skip

TYPES = {"episode": "EpisodeWorkflow", "plan": "PlanWorkflow", "project": "LoopWorkflow", "coder": "CoderWorkflow"}
LINES: dict[str, Any] = dict.fromkeys(TYPES, list[TimelineLine])  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Pseudo:
    """What a project plan waits for without a question."""

    id: str
    kind: Any
    options: tuple[Option, ...]
    title: str = ""
    blocks: str = "the plan"


@dataclasses.dataclass(frozen=True)
class _Kind:
    value: str


class Lane(EpisodeActivities, ScriptedProjects, ScriptedPlans, ScriptedCoders):
    """One task queue with its workers; it runs one schedule after the other."""

    def __init__(self, client: Client, *, cached: bool) -> None:
        self.client, self.queue, self._cached = client, f"lane-{uuid4().hex[:10]}", cached
        self._workflows: Worker | None = None
        self._running: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()
        EpisodeActivities.__init__(self)
        ScriptedCoders.__init__(self)

    @asynccontextmanager
    async def open(self) -> AsyncIterator["Lane"]:
        """Run the workers."""
        work = Worker(
            self.client,
            task_queue=self.queue,
            activities=self._definitions(),
            max_concurrent_activities=50,
            max_heartbeat_throttle_interval=activity_pace(),
            default_heartbeat_throttle_interval=activity_pace(),
        )
        async with work:
            await self._start()
            try:
                yield self
            finally:
                await self._stop()

    def _definitions(self) -> list[Callable[..., Any]]:
        return [
            *EpisodeActivities.all(self), *ScriptedPlans.all(self), *ScriptedProjects.all(self), *self.on_host(),
            self.begin, self.prove, self.accept_proof, self.adopt_workspace, self.record, self.send_alerts,
        ]  # fmt: skip

    async def _start(self) -> None:
        self._workflows = Worker(
            self.client,
            task_queue=self.queue,
            workflows=WORKFLOWS,
            # Local ones run here.
            activities=[*impatient_staffing(self.client, self.queue), self.use_tool],
            no_remote_activities=True,
            workflow_runner=PRODUCTION_RUNNER,
            interceptors=[_Continuing(self)],
            max_cached_workflows=1_000 if self._cached else 0,
            max_concurrent_workflow_task_polls=2 if self._cached else 1,
            sticky_queue_schedule_to_start_timeout=activity_pace() * 20,
        )
        self._running = asyncio.create_task(self._workflows.run())

    async def _stop(self) -> None:
        if self._workflows is not None and self._running is not None:
            await self._workflows.shutdown()
            await self._running

    async def restart(self) -> None:
        """Replace the worker of the workflows by one that remembers nothing."""
        await self._stop()
        await self._start()

    # -- one schedule -----------------------------------------------------------------------------------

    async def run(self, schedule: Schedule) -> Observation:
        """Run a schedule to its end and observe what came of it."""
        prefix = "plan_" if schedule.kind == "project" else f"{schedule.kind}-"
        root = f"{prefix}{uuid4().hex[:12]}" if prefix != "plan_" else f"plan_{uuid4()}"
        EpisodeActivities.__init__(self)
        ScriptedCoders.__init__(self)
        self.world = world = World(schedule, self.client, root, self.restart)
        self.tree = PlanFolder(world)
        world.edit, world.checkpoints = self._edit, self._checkpoints
        outcome, code = await self._outcome(schedule, root)
        if schedule.reopen and schedule.kind == "episode" and outcome != "stuck" and root in self.folders:
            world.spent.pop(root, None)
            again = RestoreTarget(checkpoint_id=schedule.reopen, reason="look again", by="ada")
            if schedule.reopen in self.folders[root].records:
                given = self._input(schedule).evolve(restore=again, replace=True)
                outcome, code = await self._outcome(schedule, root, given)
        for _ in range(CONTINUED):
            if family_of(schedule) != "coder" or outcome not in ("paused", "needs_person"):
                break
            # As its episode does after a pause or an answer.
            world.sent.append(Sent(name="delivery", taken=outcome))
            outcome, code = await self._outcome(schedule, root, self._input(schedule))
        await world.settle_updates()
        return await self._observe(schedule, root, outcome, code)

    def _edit(self, act: Act) -> None:
        root = self.folders.get(self.world.root)
        if root is not None:
            root.edit(act)
        else:
            self.tree.edit(act)

    def _checkpoints(self) -> list[str]:
        root = self.folders.get(self.world.root)
        return list(root.records) if root is not None else []

    def _input(self, schedule: Schedule) -> Any:
        request = {"workspace": WORKSPACE, **schedule.request}
        match family_of(schedule):
            case "episode":
                request.pop("bounds", None)
                return EpisodeInput.model_validate({**request, "sealed_as": None})
            case "plan":
                request["source"] = json.dumps(request["source"])
                return PlanInput.model_validate({**request, "sealed_as": None})
            case "project":
                fields = {name: value for name, value in request.items() if name != "tasks"}
                fields["gates"] = gate_checks(fields["gates"])
                return LoopInput.model_validate({**fields, "sealed_as": None})
            case _:
                fields = {name: value for name, value in request.items() if name != "bounds"}
                return CoderInput.model_validate({"key": "e/1.1", "base_tree": "tree", "title": "code it", **fields})

    async def _outcome(self, schedule: Schedule, root: str, given: Any = None) -> tuple[str, str]:
        signals: dict[str, Any] = {}
        if schedule.at_start and given is None:
            first = schedule.at_start[0]
            signals = {"start_signal": first.name, "start_signal_args": [] if first.value is None else [first.value]}
        await self.client.start_workflow(
            TYPES[family_of(schedule)],
            given or self._input(schedule),
            id=root,
            task_queue=self.queue,
            id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
            **signals,
        )
        try:
            result = await self.world.result_of(root, LIMIT_S)
        except StuckError as stuck:
            await self.world.stop()
            return "stuck", str(stuck)
        except (TimeoutError, NotSkippedError):
            await self.world.stop()
            raise
        except WorkflowFailureError as failure:
            return self._failure(failure)
        return self._ended(schedule, result)

    def _ended(self, schedule: Schedule, result: dict[str, Any]) -> tuple[str, str]:
        if family_of(schedule) == "coder":
            self.progress = CoderProgress.model_validate(result["progress"])
            if result.get("question"):
                self.world.sent.append(_sent_question(result["question"]))
            progress = result.get("progress", {})
            return result["status"], f"{progress.get('state')} round {progress.get('round', 1)}"
        return result["outcome"], ""

    def _failure(self, failure: WorkflowFailureError) -> tuple[str, str]:
        cause = cause_of(failure)
        if not isinstance(cause, ApplicationError):
            return "CANCELLED", type(failure.cause).__name__
        outcome = next((d.get("outcome", "") for d in cause.details if isinstance(d, dict)), "")
        if outcome and self.world.asked and self.world.asked[-1].replied == "silence":
            return outcome, "unanswered"
        return outcome or "refused", cause.type or ""

    # -- what is observed -------------------------------------------------------------------------------

    async def _observe(self, schedule: Schedule, root: str, outcome: str, code: str) -> Observation:
        world, handle = self.world, self.client.get_workflow_handle(root)
        parts: dict[str, str] = {}
        spent: dict[str, float] = {}
        tree: dict[str, str] = {}
        lines: list[Any] = []
        family = family_of(schedule)

        def ask(name: str, kind: Any, *arguments: Any) -> Any:
            return ask_again(lambda: handle.query(name, *arguments, result_type=kind))

        try:
            lines = await ask("timeline", LINES[family])
            match family:
                case "episode":
                    status = await ask("status", EpisodeStatus)
                    spent = amounts(status.spent)
                    parts = {"branch": str(status.branch), "checks": status.checks, "drifts": str(len(status.drifts))}
                    budget = status.budget.model_dump(mode="json").items()
                    parts |= {name: str(bound) for name, bound in budget if bound is not None}
                    if root in self.folders:
                        parts["notes"] = " ".join(self.folders[root].notes)
                    world.note_spending(root, spent)
                case "plan":
                    plan = await ask("status", PlanStatus)
                    spent = amounts(plan.spent)
                    page = await ask("steps", StepPage, 1)
                    parts = {line.id: f"{line.status.value} {line.attempt}" for line in page.lines}
                    parts |= {"revision": str(plan.revision), "drifts": str(len(plan.drifts))}
                    world.note_spending(root, spent)
                case "project":
                    loop = await ask("status", LoopStatus)
                    parts = {task.task_id: task.state.value for task in loop.tasks}
                    gates = loop.gate_result.checks if loop.gate_result else ()
                    parts |= {check.name: "passed" if check.passed else "failed" for check in gates}
                case _:
                    coder = await ask("status", CoderStatus)
                    parts = {"turns": str(coder.turns), "round": str(coder.round), "state": coder.state.value}
                    used = coder.usage.model_dump()
                    spent = {name: round(float(value), 6) for name, value in used.items() if value is not None}
        except (RPCError, WorkflowQueryFailedError):
            if outcome != "stuck":
                raise
        if root in self.folders:
            tree = dict(self.folders[root].files)
        elif schedule.kind in ("plan", "project"):
            tree = {"tree": self.tree.disk}
        together = schedule.kind == "project"
        names = [name for line in lines if (name := _entry(line)).split()[0] not in LEFT_OUT]
        kinds = [f"{TIMELINE.get(word, word)} {step}".strip() for word, _, step in (n.partition(" ") for n in names)]
        return Observation(
            outcome=outcome,
            code=code,
            questions=tuple(world.asked),
            sent=tuple(world.sent),
            spent=spent,
            timeline=tuple(kinds),
            parts=parts,
            tree=tree,
            deliveries=tuple(sorted(world.deliveries) if together else world.deliveries),
            undone=tuple(world.undone),
            proven=self._is_proven(root),
            broken=tuple(sorted(set(world.broken))),
        )

    def _is_proven(self, root: str) -> bool:
        folder = self.folders.get(root)
        return bool(folder.proven_tree) if folder is not None else bool(self.tree.proven_tree)

    # -- activities that several families have ----------------------------------------------------------

    @property
    def _is_plan(self) -> bool:
        return activity.info().workflow_type in ("PlanWorkflow", "LoopWorkflow")

    @activity.defn
    async def begin(self, request: BeginRequest) -> BeginResult:
        if self._is_plan:
            return await self.world.call("baseline", lambda _s, n: self.tree.begin(request.expected_tree, n))
        return await self.world.call("baseline", lambda step, n: self.folder().begin(step, request, n))

    @activity.defn
    async def prove(self, request: ProveRequest) -> ProveResult:
        if self._is_plan:
            return await self.world.call("prove", lambda step, n: self.tree.prove(step, request.expected_tree, n))
        return await self.world.call("prove", lambda step, n: self.folder().prove(step, request, n))

    @activity.defn
    async def accept_proof(self, request: AcceptRequest) -> AcceptResult:
        def of_plan() -> AcceptResult:
            self.tree.proven_tree = self.tree.disk
            return accepted(request)

        if self._is_plan:
            return await self.world.call("accept", lambda _step, _n: of_plan())
        return await self.world.call("accept", lambda _step, _n: self.folder().accept(request))

    @activity.defn
    async def adopt_workspace(self, request: AdoptRequest) -> AdoptResult:
        if self._is_plan:
            return await self.world.call("adopt", lambda _step, n: self.tree.adopt(request, n))
        return await self.world.call("adopt", lambda _step, n: self.folder().adopt(request, n))

    @activity.defn
    async def settle_children(self, request: SettleRequest) -> Any:
        step = request.run.step
        return await self.world.call(f"settle {step}", lambda given, n: self.tree.settle(given, request, n))

    @activity.defn
    async def send_alerts(self, request: SendAlertsRequest) -> AlertsSent:
        del request
        return AlertsSent()

    @activity.defn
    async def record(self, request: RecordRequest) -> Recorded:
        """Let the person look: a workflow records whatever it asks, and time stands still meanwhile."""
        info = activity.info()
        details = request.snapshot.details
        spent = details.get("spent")
        if isinstance(spent, dict):
            numbers = {k: float(v) for k, v in spent.items() if k not in NOT_SPENT and isinstance(v, int | float)}
            self.world.note_spending(info.workflow_id or "", numbers)
        await self.world.attend(self._questions)
        return Recorded()

    async def _questions(self) -> list[Any]:
        info = activity.info()
        handle = self.client.get_workflow_handle(info.workflow_id or "")
        kind = STATUS[info.workflow_type or ""]
        status: Any = await ask_again(lambda: handle.query("status", result_type=kind))
        waiting: list[Any] = list(status.questions)
        if isinstance(status, LoopStatus) and not waiting:
            for command in ("dispatch", "verify"):
                if command in status.possible:
                    options = (Option(name=command), Option(name="cancel"))
                    waiting.append(Pseudo(f"{command} {status.verify_run_id}", _Kind(command), options))
        return waiting


def family_of(schedule: Schedule) -> str:
    """Return which workflow a schedule starts: the coder also works within an episode."""
    is_episode = schedule.kind == "coder" and "definition_of_done" in schedule.request
    return "episode" if is_episode else schedule.kind


def _entry(line: TimelineLine) -> str:
    """Return kind and step of a line."""
    return f"{line.kind} {line.step}".strip()


def amounts(spent: Any) -> dict[str, float]:
    """Return the sums that do not depend on time."""
    values = spent.model_dump(mode="json")
    return {name: round(float(value), 6) for name, value in values.items() if name not in NOT_SPENT}


def _sent_question(question: dict[str, Any]) -> Sent:
    return Sent(name=f"question {QuestionKind(question['kind']).value}", taken="returned")


def activity_pace() -> Any:
    """Return how often heartbeats are sent."""
    from datetime import timedelta

    return timedelta(milliseconds=50)


class _Continuing(temporalio.worker.Interceptor):
    """Sends a signal at the very moment at which a run is being followed by another one."""

    def __init__(self, lane: Lane) -> None:
        self._lane = lane

    def workflow_interceptor_class(
        self, input: temporalio.worker.WorkflowInterceptorClassInput
    ) -> type[temporalio.worker.WorkflowInboundInterceptor]:
        del input
        lane = self._lane

        class Inbound(temporalio.worker.WorkflowInboundInterceptor):
            def init(self, outbound: temporalio.worker.WorkflowOutboundInterceptor) -> None:
                super().init(_Outbound(outbound, lane))

        return Inbound


class _Outbound(temporalio.worker.WorkflowOutboundInterceptor):
    def __init__(self, outbound: temporalio.worker.WorkflowOutboundInterceptor, lane: Lane) -> None:
        super().__init__(outbound)
        self._lane = lane

    def continue_as_new(self, input: temporalio.worker.ContinueAsNewInput) -> Any:
        lane = self._lane
        info = workflow.info()
        if info.workflow_id == lane.world.root and not workflow.unsafe.is_replaying():
            act = lane.world.continue_act()
            if act is not None:
                handle = lane.client.get_workflow_handle(info.workflow_id)
                arguments = [] if act.value is None else [act.value]
                sending = handle.signal(act.name, *arguments)
                asyncio.run_coroutine_threadsafe(sending, lane._loop).result(20)
        return super().continue_as_new(input)


class Side:
    """Lanes on one server, for schedules at the same time."""

    def __init__(self, cached: asyncio.Queue[Lane], uncached: asyncio.Queue[Lane]) -> None:
        self._cached, self._uncached = cached, uncached

    async def run(self, schedule: Schedule) -> Observation:
        """Run a schedule in the next free lane."""
        lanes = self._cached if schedule.cached else self._uncached
        lane = await lanes.get()
        try:
            try:
                return await lane.run(schedule)
            except NotSkippedError as error:
                # It says nothing about the product. Twice in a row is a failure nevertheless.
                print(f"{schedule.kind} {schedule.seed} runs again: {error}", flush=True)
                return await lane.run(schedule)
        finally:
            lanes.put_nowait(lane)


@asynccontextmanager
async def open_side(lanes: int = 6) -> AsyncIterator[Side]:
    """Start a server that skips time, and lanes on it; one in six replays its history in every task."""
    environment = await WorkflowEnvironment.start_time_skipping_v2(
        ts_config=TimeSkippingConfig(max_session_skip_count=SKIPS),
        data_converter=DATA_CONVERTER,
        dev_server_existing_path=str(temporal_binary()),
        dev_server_extra_args=[
            *tuning_arguments(), "--dynamic-config-value", "frontend.WorkflowTimeSkippingEnabled=true",
        ],
    )  # fmt: skip
    async with environment:
        from contextlib import AsyncExitStack

        async with AsyncExitStack() as stack:
            queues: dict[bool, asyncio.Queue[Lane]] = {True: asyncio.Queue(), False: asyncio.Queue()}
            for number in range(lanes + max(1, lanes // 6)):
                cached = number < lanes
                lane = await stack.enter_async_context(Lane(environment.client, cached=cached).open())
                queues[cached].put_nowait(lane)
            yield Side(queues[True], queues[False])
