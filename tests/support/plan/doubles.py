"""Plan activities that follow a script, and a worker for them: the workflow and the server are the real ones."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import timedelta
from typing import Any

from temporalio import activity
from temporalio.client import Client
from temporalio.worker import Worker

from activities.alerts.activity import AlertsSent, SendAlertsRequest
from activities.plan.activity import STEP_ACTIVITIES, PlanActivities
from activities.plan.requests import (
    ClosePlanRequest,
    CompensationResult,
    LoadPlanRequest,
    OpenedPlan,
    OpenPlanRequest,
    PlanClosed,
    PlanVerification,
    RevisedPlan,
    RevisePlanRequest,
    RunStepRequest,
    SettleRequest,
    StepRun,
    VerifyPlanRequest,
)
from activities.proof.port import AcceptRequest, AcceptResult, BeginRequest, BeginResult, ProveRequest, ProveResult
from activities.staffing import WorkerCheckActivities
from activities.tracking.activity import Recorded, RecordRequest
from activities.workspace.port import AdoptRequest, AdoptResult
from tightloop.client import TightloopClient
from tightloop.episode.check import Verification
from tightloop.episode.proof import ProofVerdict
from tightloop.errors import PlanError
from tightloop.plan.action import Option, ShellAction
from tightloop.plan.child import StepFailure, StepResult, StepStatus
from tightloop.plan.document import Plan
from tightloop.plan.engine.graph import compile_graph
from tightloop.plan.engine.revision import diff_plans, find_refusals
from tightloop.plan.engine.state import choices
from tightloop.plan.failing import FailureClass
from tightloop.plan.request import PlanRequest, PlanResult, PlanStatus
from tightloop.plan.step import Access, Capability
from tightloop.plan.text.reading import read_plan
from tightloop.run.core import Evidence
from tightloop.run.question import Question, QuestionKind
from tightloop.value import ArtifactRef
from worker.build import workflow_runner
from worker.hosting.interceptor import ActivityInterceptor
from worker.hosting.presence import WorkerQueries
from workflows.episode.workflow import EpisodeWorkflow
from workflows.plan.workflow import PlanWorkflow

Act = Callable[[RunStepRequest], Awaitable[StepResult]]
Wait = Callable[[], Awaitable[None]]
BASE = "tree"
PROOF = ArtifactRef(sha256="0" * 64, size_bytes=1, media_type="application/json", name="proof")
DOUBTED = ProveResult(
    proof=PROOF,
    verdict=ProofVerdict.DOUBTED,
    title="the checks are green, but: a test is gone",
    evidence=("changed: deleted test_a.py",),
)


async def at_once() -> None:
    """Wait for nothing."""


def done(**fields: Any) -> StepResult:
    """A step that completed."""
    return StepResult(status=StepStatus.COMPLETED, **fields)


def skipped() -> StepResult:
    """A step whose condition did not hold."""
    return StepResult(status=StepStatus.SKIPPED)


def fails(reason: str = "it is broken", failure_class: str = "logic", **fields: Any) -> StepResult:
    """A step that failed."""
    failure = StepFailure(failure_class=FailureClass(failure_class), reason=reason, **fields)
    return StepResult(status=StepStatus.FAILED, failure=failure)


def asks(text: str = "may it go on?", **fields: Any) -> Act:
    """A gate: it asks until there are answers, opens with them, and fails by policy on a no."""

    async def act(request: RunStepRequest) -> StepResult:
        refused = next((said for said in request.answers if said.option == "reject"), None)
        if refused is not None:
            return fails(f"{refused.by} refused: {refused.text}", "policy")
        if request.answers:
            return done(chosen={option.name: option.to for option in options}.get(request.answers[-1].option))
        return StepResult(status=StepStatus.WAITING, question=question)

    options: tuple[Option, ...] = fields.pop("options", ())
    kind = fields.pop("kind", QuestionKind.GATE)
    question = Question(id="", kind=kind, title=text, options=choices(options), **fields)
    return act


def option(name: str, *to: str) -> Option:
    """An answer that a person can give, and the steps that it starts."""
    return Option(name=name, to=to)


class Hanging:
    """A step that runs until it is let go, or cancelled."""

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.go = asyncio.Event()
        self.cancelled = 0

    async def __call__(self, request: RunStepRequest) -> StepResult:
        """Wait."""
        self.started.set()
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return done()


Script = dict[str, "StepResult | Act | Sequence[StepResult | Act]"]


class ScriptedPlanActivities:
    """What the plan activities would do, from a script by step id; a step that is not in it just completes.

    The tree is a text: each step that writes adds its name, and taking it back removes it.
    """

    def __init__(self, script: Script | None = None, **changes: Any) -> None:
        self.script: Script = script or {}
        self.ran: list[RunStepRequest] = []
        self.order: list[str] = []
        """`+name` and `-name` as steps begin and end."""
        self.taken_back: list[str] = []
        self.alerts: list[SendAlertsRequest] = []
        self.recorded: list[RecordRequest] = []
        self.revisions: list[RevisePlanRequest] = []
        self.closed: list[ClosePlanRequest] = []
        self.settled: list[SettleRequest] = []
        self.loads = 0
        self.opening_failure: Exception | None = changes.get("opening_failure")
        self.verifications: list[PlanVerification] = changes.get("verifications", [])
        self.proofs: list[ProveResult] = changes.get("proofs", [])
        self.proven: list[ProveRequest] = []
        self.begun: list[BeginRequest] = []
        self.accepted: list[AcceptRequest] = []
        self.hang_when_verifying: bool = changes.get("hang_when_verifying", False)
        self.cannot_take_back: set[str] = changes.get("cannot_take_back", set())
        self.edited: str | None = None
        """A tree that a person made during a pause."""
        self.children: dict[str, StepRun] = changes.get("children", {})
        self.planner: str | None = changes.get("planner")
        """The text that a planner writes; None: there is no planner."""
        self.before_revision: tuple[asyncio.Event, asyncio.Event] | None = None
        """Set when a revision begins, and waited for before it is decided on."""
        self.before_opening: Wait = changes.get("before_opening", at_once)
        self.before_load: Wait = at_once
        self.before_verification: Wait = at_once
        self.before_proof: Wait = at_once
        self.before_compensation: Wait = at_once
        self._plans: dict[str, Plan] = {}

    def all(self) -> list[Callable[..., Any]]:
        """Return what a worker registers."""
        steps = [self._step(method.__name__) for method in (PlanActivities.pass_milestone, *STEP_ACTIVITIES.values())]
        return [
            *steps,
            self.open_plan,
            self.load_plan,
            self.revise_plan,
            self.prepare_children,
            self.settle_children,
            self.compensate_step,
            self.verify_plan,
            self.begin,
            self.prove,
            self.accept_proof,
            self.close_plan,
            self.adopt_workspace,
            self.send_alerts,
            self.record,
        ]

    def names(self) -> list[str]:
        """Return the ids of all attempts in the order of their starts."""
        return [request.step for request in self.ran]

    def _step(self, name: str) -> Callable[..., Any]:
        @activity.defn(name=name)
        async def run(request: RunStepRequest) -> StepResult:
            self.ran.append(request)
            self.order.append(f"+{request.step}")
            try:
                return await self._act(request)
            finally:
                self.order.append(f"-{request.step}")

        return run

    async def _act(self, request: RunStepRequest) -> StepResult:
        entry = self.script.get(request.step) or self.script.get(request.template) or done()
        if isinstance(entry, Sequence):
            entry = entry[min(sum(ran.step == request.step for ran in self.ran), len(entry)) - 1]
        result = entry if isinstance(entry, StepResult) else await entry(request)
        if result.status is StepStatus.COMPLETED and request.expected_tree and not result.tree:
            result = result.evolve(tree=f"{request.expected_tree},{request.step}")
        return result

    @activity.defn
    async def open_plan(self, request: OpenPlanRequest) -> OpenedPlan:
        """Read the text."""
        await self.before_opening()
        if self.opening_failure is not None:
            raise self.opening_failure
        return self._opened(self._keep(request.request.source, 1), BASE)

    @activity.defn
    async def load_plan(self, request: LoadPlanRequest) -> OpenedPlan:
        """Find the stored revision."""
        self.loads += 1
        await self.before_load()
        assert request.scope.plan is not None
        return self._opened(request.scope.plan, "")

    @activity.defn
    async def revise_plan(self, request: RevisePlanRequest) -> RevisedPlan:
        """Read the new text and refuse what may not be changed."""
        self.revisions.append(request)
        if self.before_revision is not None:
            begun, go_on = self.before_revision
            begun.set()
            await go_on.wait()
        source = request.source or self.planner
        if source is None:
            return RevisedPlan(problem="this worker has no planner; send the text of the plan")
        assert request.scope.plan is not None
        try:
            new = read_plan(source).plan
        except PlanError as error:
            return RevisedPlan(problem=error.message)
        found = diff_plans(self._plans[request.scope.plan.sha256], self._takes_time(new))
        running = [name for name, status in request.statuses.items() if status == "running"]
        if refused := find_refusals(found, fixed=request.fixed, running=running):
            return RevisedPlan(problem="; ".join(refused))
        ref = self._keep(source, request.scope.revision + 1)
        return RevisedPlan(plan=ref, graph=compile_graph(new).pack(), diff=found.words(), changed=found.redone)

    def _keep(self, source: str, revision: int) -> ArtifactRef:
        plan = self._takes_time(read_plan(source).plan)
        digest = f"{revision:064d}"
        self._plans[digest] = plan
        return ArtifactRef(sha256=digest, size_bytes=len(source), media_type="application/json", name="plan")

    def _takes_time(self, plan: Plan) -> Plan:
        """Make commands of the milestones that the script gives something to do: a plain one takes no time."""
        commands = {
            step.id: step.evolve(shell=ShellAction(run="the script"), access=step.access or Access.NONE)
            for step in plan.steps
            if step.capability is Capability.NONE and callable(self.script.get(step.id))
        }
        return plan.evolve(steps=tuple(commands.get(step.id, step) for step in plan.steps))

    def _opened(self, ref: ArtifactRef, tree: str) -> OpenedPlan:
        graph = compile_graph(self._plans[ref.sha256]).pack()
        return OpenedPlan(plan=ref, graph=graph, tree=tree, planner=self.planner is not None)

    @activity.defn
    async def prepare_children(self, request: RunStepRequest) -> StepRun:
        """Say which child workflows are to be started."""
        self.ran.append(request)
        return self.children.get(request.step, StepRun(result=done()))

    @activity.defn
    async def settle_children(self, request: SettleRequest) -> StepResult:
        """Judge what came of them."""
        self.settled.append(request)
        if all(outcome in ("COMPLETED", "SUCCEEDED") for outcome in request.outcomes):
            return done(tree=f"{request.run.expected_tree},{request.run.step}")
        return fails("; ".join(request.reasons))

    @activity.defn
    async def compensate_step(self, request: RunStepRequest) -> CompensationResult:
        """Take the step's name out of the tree."""
        self.order.append(f"~{request.step}")
        await self.before_compensation()
        if request.step in self.cannot_take_back:
            return CompensationResult(
                tree=request.expected_tree, failure="a later step changed the same lines of app.py"
            )
        self.taken_back.append(request.step)
        names = [name for name in request.expected_tree.split(",") if name != request.step]
        return CompensationResult(tree=",".join(names), files_changed=1, summary="1 file restored")

    @activity.defn
    async def verify_plan(self, request: VerifyPlanRequest) -> PlanVerification:
        """Answer as the script says, then with yes."""
        await self.before_verification()
        if self.hang_when_verifying:
            await asyncio.Event().wait()
        if self.verifications:
            return self.verifications.pop(0)
        return PlanVerification(passed=True, total=1, tree=request.expected_tree)

    @activity.defn
    async def begin(self, request: BeginRequest) -> BeginResult:
        """Keep nothing. The check fails at the start."""
        self.begun.append(request)
        verification = Verification(tree=request.expected_tree, total=1, failed_count=1, report=PROOF)
        return BeginResult(verification=verification, beginning=PROOF)

    @activity.defn
    async def prove(self, request: ProveRequest) -> ProveResult:
        """Answer as the script says, then with yes."""
        self.proven.append(request)
        await self.before_proof()
        return (
            self.proofs.pop(0)
            if self.proofs
            else ProveResult(proof=PROOF, verdict=ProofVerdict.PROVEN, files_changed=1)
        )

    @activity.defn
    async def accept_proof(self, request: AcceptRequest) -> AcceptResult:
        """Remember it."""
        self.accepted.append(request)
        facts = Evidence(files_changed=1)
        if request.asked_for is None:
            facts = facts.evolve(accepted_by=request.by, finding="1 original test did not run")
        else:
            facts = facts.evolve(asked=(request.asked_for.sentence,))
        return AcceptResult(proof=request.proof.evolve(name="accepted"), facts=facts)

    @activity.defn
    async def close_plan(self, request: ClosePlanRequest) -> PlanClosed:
        """Remember it."""
        self.closed.append(request)
        return PlanClosed()

    @activity.defn
    async def adopt_workspace(self, request: AdoptRequest) -> AdoptResult:
        """Find what a person made of the tree."""
        tree, self.edited = self.edited or request.expected_tree, None
        return AdoptResult(tree=tree, files_changed=int(tree != request.expected_tree))

    @activity.defn
    async def record(self, request: RecordRequest) -> Recorded:
        """Keep what the ledger would be told."""
        self.recorded.append(request)
        return Recorded()

    @activity.defn
    async def send_alerts(self, request: SendAlertsRequest) -> AlertsSent:
        """Remember it."""
        self.alerts.append(request)
        return AlertsSent()


def impatient_staffing(client: Client, task_queue: str) -> list[Callable[..., Any]]:
    """Return the activities that ask Temporal; a person is asked after 5 s without a worker."""
    staff = WorkerQueries(client, task_queue)
    return WorkerCheckActivities(staff, timedelta(seconds=5), timedelta(minutes=5)).definitions


@asynccontextmanager
async def plan_worker(
    client: Client,
    task_queue: str,
    activities: list[Callable[..., Any]],
    workflows: Sequence[type] = (PlanWorkflow, EpisodeWorkflow),
    *,
    cached: int = 1_000,
) -> AsyncIterator[None]:
    """Run a worker with these workflows and activities."""
    async with Worker(
        client,
        task_queue=task_queue,
        workflows=workflows,
        activities=[*activities, *impatient_staffing(client, task_queue)],
        workflow_runner=workflow_runner(),
        interceptors=[ActivityInterceptor()],
        max_cached_workflows=cached,
        max_concurrent_activities=100,
        max_heartbeat_throttle_interval=timedelta(milliseconds=500),
        default_heartbeat_throttle_interval=timedelta(milliseconds=500),
    ):
        yield


class PlanStage:
    """One plan under way: its client, its id, and the activities that act for it."""

    def __init__(self, plans: TightloopClient, scripted: ScriptedPlanActivities, temporal: Client) -> None:
        self.plans, self.scripted, self.temporal = plans, scripted, temporal
        self.id = ""

    async def start(self, source: str, **changes: Any) -> str:
        """Start the plan."""
        fields: dict[str, Any] = {"workspace": "/sample/project", "source": source}
        request = PlanRequest.model_validate({**fields, **changes})
        self.id = await self.plans.start(request, new_id=self.id or None, replace=bool(self.id))
        return self.id

    async def result(self, seconds: float = 60.0) -> PlanResult:
        """Wait for the end; say where the plan stands if it does not come."""
        try:
            async with asyncio.timeout(seconds):
                return await self.plans.result(self.id)
        except TimeoutError:
            status, told = await self.plans.status(self.id), await self.told()
            raise AssertionError(f"the plan does not end: {status!r}\n" + "\n".join(told[-20:])) from None

    async def status(self) -> PlanStatus:
        """Ask the workflow."""
        return await self.plans.status(self.id)

    async def told(self) -> list[str]:
        """Return the timeline as lines."""
        return [f"{event.kind} {event.text}".strip() for event in await self.plans.timeline(self.id)]

    async def steps(self) -> dict[str, str]:
        """Return where each step stands."""
        return {line.id: line.status.value for line in await self.plans.steps(self.id)}

    async def until(self, holds: Callable[[PlanStatus], Any], seconds: float = 120.0) -> PlanStatus:
        """Wait until the status is as wanted."""
        async with asyncio.timeout(seconds):
            while True:
                status = await self.status()
                if holds(status):
                    return status
                await asyncio.sleep(0.03)

    async def waits(self, count: int = 1) -> PlanStatus:
        """Wait until so many questions wait for a person."""
        return await self.until(lambda status: len(status.questions) == count)

    async def paused(self) -> PlanStatus:
        """Wait until the plan is paused and nothing runs."""
        return await self.until(lambda status: status.status == "paused" and not status.running)

    async def alerted(self, count: int = 1) -> None:
        """Wait until so many alerts were sent."""
        async with asyncio.timeout(20):
            while len(self.scripted.alerts) < count:
                await asyncio.sleep(0.02)


Playing = Callable[..., AbstractAsyncContextManager[PlanStage]]
"""Starts a plan with activities that follow a script, and a worker for it."""
