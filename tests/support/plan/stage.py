"""The real plan activities on a real repository, for tests: no workflow, everything else as a worker has it."""

import asyncio
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MethodType
from typing import Any

from temporalio.testing import ActivityEnvironment

from activities.artifacts.stores import open_local_store
from activities.checks.runner import CheckRunner
from activities.plan.activity import STEP_ACTIVITIES, PlanActivities
from activities.plan.port import Runner
from activities.plan.records import FileRecords, open_file_records
from activities.plan.requests import (
    ClosePlanRequest,
    CompensationResult,
    OpenedPlan,
    OpenPlanRequest,
    PlanScope,
    RunStepRequest,
)
from activities.sandbox.choose import choose_sandbox
from activities.workspace.differ import Differ
from activities.workspace.working_tree import Workspaces
from tightloop.database.ledger import open_project
from tightloop.plan.child import StepRecord, StepResult, StepStatus
from tightloop.plan.document import Plan
from tightloop.plan.request import PlanOutcome, PlanRequest
from tightloop.plan.step import Capability, Step
from tightloop.plan.text.writing import write_plan
from tightloop.settings import SandboxSettings
from tightloop.value import ArtifactRef
from worker.composition import PlanAdapters, plan_activities

PLAN_ID = "plan-0123456789ab"
SANDBOX = SandboxSettings(unsafe_local=True)
STEPS = {method.__name__: method for method in STEP_ACTIVITIES.values()}
METHODS = {Capability.NONE: "pass_milestone", Capability.CHECKPOINT: "take_checkpoint"}


def activities_for(runners: Mapping[Capability, Runner] | None = None, **parts: Any) -> PlanActivities:
    sandbox = choose_sandbox(SANDBOX)
    return plan_activities(
        PlanAdapters(
            **{
                "workspaces": Workspaces(),
                "stores": open_local_store,
                "ledgers": open_project,
                "checks": CheckRunner(sandbox, SANDBOX),
                "sandbox": sandbox,
                "sandbox_settings": SANDBOX,
                "differ": Differ(),
                "has_ended": lambda _: False,
                "plan_runners": runners or {},
                **parts,
            }
        )
    )


@dataclass
class Stage:
    """One open plan. `tree` is what its workflow would carry."""

    root: Path
    plan: Plan
    activities: PlanActivities = field(default_factory=activities_for)
    plan_id: str = PLAN_ID
    run_id: str = "run-1"
    inputs: dict[str, Any] = field(default_factory=dict)
    scope: PlanScope = field(init=False)
    opened: OpenedPlan = field(init=False)
    tree: str = ""

    def __post_init__(self) -> None:
        self.scope = PlanScope(episode_id=self.plan_id, workspace=str(self.root))
        request = PlanRequest(workspace=str(self.root), source=write_plan(self.plan, "json"), inputs=self.inputs)
        opening = OpenPlanRequest(scope=self.scope, request=request, opening=self.run_id)
        self.opened = self.call("open_plan", opening)
        self.tree = self.opened.tree
        self.scope = self.scope.evolve(plan=self.opened.plan, base_tree=self.tree)

    def call(self, name: str, request: Any) -> Any:
        """Run one activity in a thread-like environment with this run's id."""
        environment = ActivityEnvironment()
        environment.info = type(environment.info)(**{**environment.info.__dict__, "workflow_run_id": self.run_id})
        method = MethodType(STEPS[name], self.activities) if name in STEPS else getattr(self.activities, name)
        answer = environment.run(method, request)
        return asyncio.run(answer) if inspect.iscoroutine(answer) else answer

    def run(self, step: str, attempt: int = 1, **changes: Any) -> StepResult:
        """Run an attempt of a step and carry its tree on, as the workflow does."""
        written = self.step(changes.get("template") or step)
        fields = {"scope": self.scope, "step": step, "attempt": attempt, "expected_tree": self.tree, **changes}
        method = METHODS.get(written.capability, f"run_{written.capability.value}")
        result: StepResult = self.call(method, RunStepRequest(**fields))
        self.tree = result.tree or self.tree
        return result

    def check_done(self, step: str, attempt: int = 1, **changes: Any) -> StepResult:
        """Run an attempt that has to complete."""
        result = self.run(step, attempt, **changes)
        assert result.status is StepStatus.COMPLETED, result.failure
        return result

    def failed(self, step: str, attempt: int = 1, **changes: Any) -> str:
        """Run an attempt that has to fail, and return why."""
        result = self.run(step, attempt, **changes)
        assert result.status is StepStatus.FAILED
        assert result.failure is not None
        return result.failure.reason

    def undo(self, step: str, attempt: int = 1) -> CompensationResult:
        request = RunStepRequest(scope=self.scope, step=step, attempt=attempt, expected_tree=self.tree)
        found: CompensationResult = self.call("compensate_step", request)
        self.tree = found.tree
        return found

    def close(self, outcome: PlanOutcome = PlanOutcome.COMPLETED, **changes: Any) -> ArtifactRef:
        request = ClosePlanRequest(scope=self.scope, outcome=outcome, expected_tree=self.tree, **changes)
        archive = self.call("close_plan", request).archive
        assert isinstance(archive, ArtifactRef)
        return archive

    def step(self, name: str) -> Step:
        return next(step for step in self.plan.steps if step.id == name)

    @property
    def records(self) -> FileRecords:
        return open_file_records(self.root)

    def record(self, step: str, attempt: int = 1) -> StepRecord:
        found = self.records.find_attempt(self.plan_id, step, attempt)
        assert found is not None
        return found

    def artifact(self, ref: ArtifactRef) -> bytes:
        return open_local_store(self.root).get(ref)


def stage(root: Path, *steps: dict[str, Any], **fields: Any) -> Stage:
    """Open a plan of these steps; `plan` holds more fields of it."""
    plan = Plan.model_validate({"id": "p", "steps": steps, **fields.pop("plan", {})})
    return Stage(root, plan, **fields)
