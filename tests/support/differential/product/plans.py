"""The activities of a plan over a list of names: each step that writes adds its own, taking it back removes it."""

import json
from typing import Any

from temporalio import activity

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
from activities.proof.port import BeginResult, ProveResult
from activities.workspace.port import AdoptRequest, AdoptResult
from tests.support.differential.product.episodes import usage_of
from tests.support.differential.product.world import Step, World, reference
from tests.support.differential.schedule import Act
from tightloop.episode.check import Verification
from tightloop.episode.proof import ProofVerdict
from tightloop.errors import PlanError
from tightloop.loop.model import CONFLICT
from tightloop.plan.action import Option
from tightloop.plan.child import StepFailure, StepResult, StepStatus
from tightloop.plan.document import Plan
from tightloop.plan.engine.graph import compile_graph
from tightloop.plan.engine.revision import diff_plans, find_refusals
from tightloop.plan.engine.state import choices
from tightloop.plan.failing import FailureClass, Recovery
from tightloop.plan.request import PlanOutcome, PlanRequest
from tightloop.plan.step import Access, Capability
from tightloop.plan.text.reading import read_plan
from tightloop.run.question import Question, QuestionKind
from tightloop.safety.drift import Drift, DriftError
from tightloop.value import ArtifactRef

BASE = "tree"
SUCCEEDED = ("COMPLETED", "SUCCEEDED")


class PlanFolder:
    """The workspace of a plan and of those within it."""

    def __init__(self, world: World) -> None:
        self.world, self.disk = world, BASE
        self.plans: dict[str, Plan] = {}
        self.has_planner = "revise" in world.schedule.script
        self.proven_tree = ""
        self.done: set[str] = set()
        self.results: dict[str, StepResult] = {}

    def edit(self, act: Act) -> None:
        """Change a file as a person does."""
        self.disk += f",{act.name or 'mine'}"

    def expect(self, tree: str) -> None:
        """Refuse to work on files that the work has not left.

        Raises:
            DriftError: somebody else has changed some.
        """
        if tree and self.disk != tree:
            raise DriftError(Drift(tree=self.disk, expected=tree, paths=("mine",), count=1, lines=("mine",)))

    def keep(self, source: str, revision: int) -> ArtifactRef:
        """Store a revision of a plan."""
        ref = reference(f"{revision} {source}", "plan")
        self.plans[ref.sha256] = read_plan(source).plan
        return ref

    def opened(self, ref: ArtifactRef, tree: str, attempt: int) -> OpenedPlan:
        """Return a plan that may run."""
        graph = compile_graph(self.plans[ref.sha256]).pack()
        return OpenedPlan(plan=ref, graph=graph, tree=tree, planner=self.has_planner, attempt=attempt)

    def revise(self, step: Step, request: RevisePlanRequest) -> RevisedPlan:
        """Take a new text, or refuse what it changes."""
        source = request.source or (json.dumps(step["source"]) if "source" in step else "")
        usage = usage_of(step)
        if not source:
            return RevisedPlan(problem="there is no planner", usage=usage)
        assert request.scope.plan is not None
        try:
            new = read_plan(source).plan
        except PlanError as error:
            return RevisedPlan(problem=error.message, usage=usage)
        found = diff_plans(self.plans[request.scope.plan.sha256], new)
        running = [name for name, status in request.statuses.items() if status == "running"]
        if refused := find_refusals(found, fixed=request.fixed, running=running):
            return RevisedPlan(problem="; ".join(refused), usage=usage)
        ref = self.keep(source, request.scope.revision + 1)
        return RevisedPlan(
            plan=ref, graph=compile_graph(new).pack(), diff=found.words(), changed=found.redone, usage=usage
        )

    def run(self, step: Step, request: RunStepRequest, attempt: int) -> StepResult:
        """Run an attempt of a step, once: what a worker did before it died is found done."""
        key = f"{request.scope.episode_id}/{request.scope.revision}/{request.step}.{request.attempt}"
        if attempt > 1 and key in self.results:
            return self.results[key]
        self.expect(request.expected_tree)
        result = self._result(step, request)
        if result.status is StepStatus.COMPLETED:
            self._deliver(request, attempt)
            if request.expected_tree and self._writes(request):
                self.disk = f"{request.expected_tree},{request.step}"
                result = result.evolve(tree=self.disk)
        self.results[key] = result
        return result

    def _writes(self, request: RunStepRequest) -> bool:
        assert request.scope.plan is not None
        name = request.template or request.step
        written = next(step for step in self.plans[request.scope.plan.sha256].steps if step.id == name)
        return written.access in (None, Access.WRITES) and written.capability is Capability.SHELL

    def _deliver(self, request: RunStepRequest, attempt: int) -> None:
        place = self.world.place(request.scope.episode_id)
        order = f"{request.step}.{request.attempt}"
        key = f"{request.scope.episode_id}/{request.scope.revision}/{order}"
        if key in self.done and attempt > 1:
            return  # the worker died after the work, which is found done
        if key in self.done:
            self.world.broken.append(f"delivered twice: {order}")
        self.done.add(key)
        self.world.deliveries.append(order if place in ("", "round") else f"{place}:{order}")

    def _result(self, step: Step, request: RunStepRequest) -> StepResult:
        used = usage_of(step)
        calls = 1 if used else 0
        if "ask" in step and not request.answers:
            return StepResult(status=StepStatus.WAITING, question=_question(step["ask"]))
        if any(answer.option == "reject" for answer in request.answers):
            return failed("refused", "policy")
        if request.answers:
            to = {option["name"]: tuple(option["to"]) for option in step.get("ask", {}).get("options", ())}
            return StepResult(status=StepStatus.COMPLETED, chosen=to.get(request.answers[-1].option))
        if step.get("s") == "fail":
            recover = step.get("recover")
            mode = {"mode": "known", "recover": Recovery(recover)} if recover else {}
            return failed("it is broken", step.get("class", "logic"), **mode).evolve(usage=used, api_calls=calls)
        if step.get("s") == "skip":
            return StepResult(status=StepStatus.SKIPPED)
        fields: dict[str, Any] = {"usage": used, "api_calls": calls}
        if "chosen" in step:
            fields["chosen"] = tuple(step["chosen"])
        if "counts" in step:
            fields["counts"] = step["counts"]
        return StepResult(status=StepStatus.COMPLETED, **fields)

    def prepare(self, step: Step, request: RunStepRequest) -> StepRun:
        """Say which child workflows are to be started."""
        self.expect(request.expected_tree)
        if "episode" in step:
            return StepRun(episode={"workspace": request.scope.workspace, "worktree": True, **step["episode"]})
        assert request.scope.plan is not None
        plan = next(s for s in self.plans[request.scope.plan.sha256].steps if s.id == request.step)
        if plan.episode is not None:
            checks = [check.model_dump() for check in plan.episode.definition_of_done]
            return StepRun(
                episode={
                    "workspace": request.scope.workspace, "worktree": True, "goal": plan.episode.goal,
                    "definition_of_done": checks,
                    "budget": None if plan.episode.budget is None else plan.episode.budget.model_dump(mode="json"),
                }
            )  # fmt: skip
        sources = step.get("plans", ())
        plans = tuple(
            PlanRequest(workspace=request.scope.workspace, source=json.dumps(source), base_tree=request.expected_tree)
            for source in sources
        )
        if not plans:
            return StepRun(result=StepResult(status=StepStatus.COMPLETED))
        return StepRun(plans=plans, names=tuple(f"way{n}" for n in range(len(plans))) if len(plans) > 1 else ())

    def settle(self, step: Step, request: SettleRequest, attempt: int) -> StepResult:
        """Judge what became of the child workflows."""
        if step.get("conflict"):
            return failed("conflict", mode=CONFLICT)
        if step.get("s") == "fail" or not all(outcome in SUCCEEDED for outcome in request.outcomes):
            return failed("; ".join(request.reasons) or step.get("reason", "conflict"), step.get("class", "logic"))
        self._deliver(request.run, attempt)
        self.disk = f"{self.disk},{request.run.step}"
        return StepResult(status=StepStatus.COMPLETED, tree=self.disk)

    def compensate(self, step: Step, request: RunStepRequest, attempt: int) -> CompensationResult:
        """Take the name of a step out of the tree."""
        if step.get("cannot"):
            return CompensationResult(tree=request.expected_tree, failure="a later step changed the same lines")
        left = ",".join(name for name in request.expected_tree.split(",") if name != request.step)
        if attempt == 1 or self.disk != left:
            self.expect(request.expected_tree)
            self.world.undone.append(request.step)
            self.disk = left
        return CompensationResult(tree=self.disk, files_changed=1)

    def verify(self, step: Step, request: VerifyPlanRequest) -> PlanVerification:
        """Run the definition of done."""
        self.expect(request.expected_tree)
        failing = tuple(step.get("failing", ()))
        return PlanVerification(passed=not failing, total=1, failed=failing, tree=request.expected_tree)

    def adopt(self, request: AdoptRequest, attempt: int) -> AdoptResult:
        """Keep what a person edited, or undo it where that was decided."""
        if request.drift is not None and not request.drift.keep:
            self.disk = request.expected_tree or self.disk
        changed = int(self.disk != request.expected_tree)
        return AdoptResult(tree=self.disk, files_changed=changed, attempt=attempt)

    def begin(self, tree: str, attempt: int) -> BeginResult:
        """Keep nothing."""
        report = reference("report", "report")
        verification = Verification(tree=tree, total=0, signature="", report=report, attempt=attempt)
        return BeginResult(verification=verification, beginning=report)

    def prove(self, step: Step, tree: str, attempt: int) -> ProveResult:
        """Prove the tree, or doubt it."""
        self.expect(tree)
        proof = reference(f"proof {tree}", "proof")
        if step.get("doubted"):
            return ProveResult(proof=proof, verdict=ProofVerdict.DOUBTED, title="a test is gone", attempt=attempt)
        self.proven_tree = tree
        return ProveResult(proof=proof, verdict=ProofVerdict.PROVEN, attempt=attempt)

    def close(self, request: ClosePlanRequest, *, needs_proof: bool) -> PlanClosed:
        """Give the workspace back."""
        if request.outcome is PlanOutcome.COMPLETED and needs_proof and self.proven_tree != request.expected_tree:
            self.world.broken.append("success without a proof of the tree")
        return PlanClosed()


def failed(reason: str, failure_class: str = "logic", **fields: Any) -> StepResult:
    """Return a step that failed."""
    failure = StepFailure(failure_class=FailureClass(failure_class), reason=reason, **fields)
    return StepResult(status=StepStatus.FAILED, failure=failure)


def _question(ask: dict[str, Any]) -> Question:
    options = tuple(Option(name=option["name"], to=tuple(option["to"])) for option in ask.get("options", ()))
    return Question(
        id="",
        kind=QuestionKind(ask.get("kind", "gate")),
        title="may it go on?",
        options=choices(options),
        count=ask.get("count", 1),
        window=ask.get("window", ""),
    )


class ScriptedPlans:
    """What a worker registers for plans. Those that episodes have, too, are in `side`."""

    world: World
    tree: PlanFolder

    def all(self) -> list[Any]:
        """Return the definitions."""
        steps = [method for capability, method in STEP_ACTIVITIES.items() if capability is not Capability.PROJECT]
        names = [method.__name__ for method in (PlanActivities.pass_milestone, *steps)]
        return [
            *map(self._run, names), self.open_plan, self.load_plan, self.revise_plan, self.prepare_children,
            self.settle_children, self.compensate_step, self.verify_plan, self.close_plan,
        ]  # fmt: skip

    def _run(self, name: str) -> Any:
        @activity.defn(name=name)
        async def run(request: RunStepRequest) -> StepResult:
            step = request.template or request.step
            return await self.world.call(f"step {step}", lambda found, n: self.tree.run(found, request, n))

        return run

    @activity.defn
    async def open_plan(self, request: OpenPlanRequest) -> OpenedPlan:
        tree = self.tree

        def effect(_step: Step, attempt: int) -> OpenedPlan:
            return tree.opened(tree.keep(request.request.source, 1), request.request.base_tree or tree.disk, attempt)

        return await self.world.call("open", effect)

    @activity.defn
    async def load_plan(self, request: LoadPlanRequest) -> OpenedPlan:
        tree = self.tree
        assert request.scope.plan is not None
        ref = request.scope.plan
        return await self.world.call("load", lambda _step, attempt: tree.opened(ref, "", attempt))

    def grow(self, request: RevisePlanRequest) -> RevisedPlan:
        """Return the revision that a plan makes of itself."""
        raise NotImplementedError

    @activity.defn
    async def revise_plan(self, request: RevisePlanRequest) -> RevisedPlan:
        if request.after:
            return await self.world.call("grow", lambda _step, _attempt: self.grow(request))
        return await self.world.call("revise", lambda step, _attempt: self.tree.revise(step, request))

    @activity.defn
    async def prepare_children(self, request: RunStepRequest) -> StepRun:
        return await self.world.call(f"prepare {request.step}", lambda step, _n: self.tree.prepare(step, request))

    @activity.defn
    async def settle_children(self, request: SettleRequest) -> StepResult:
        return await self.world.call(f"settle {request.run.step}", lambda step, n: self.tree.settle(step, request, n))

    @activity.defn
    async def compensate_step(self, request: RunStepRequest) -> CompensationResult:
        return await self.world.call(f"undo {request.step}", lambda step, n: self.tree.compensate(step, request, n))

    @activity.defn
    async def verify_plan(self, request: VerifyPlanRequest) -> PlanVerification:
        return await self.world.call("verify", lambda step, _attempt: self.tree.verify(step, request))

    @activity.defn
    async def close_plan(self, request: ClosePlanRequest) -> PlanClosed:
        plan = self.tree.plans.get(request.scope.plan.sha256) if request.scope.plan else None
        needs_proof = plan is not None and bool(plan.definition_of_done)
        return await self.world.call("close", lambda _step, _attempt: self.tree.close(request, needs_proof=needs_proof))
