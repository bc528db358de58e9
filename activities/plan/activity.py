"""The plan activities: open, load, revise; one attempt of a step by its capability; take back, verify, close."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from temporalio import activity

from activities.artifacts.port import ArtifactStore, ArtifactStores
from activities.plan.account import account_of, write_hand_off
from activities.plan.attempt import Attempts
from activities.plan.compensating import Compensating, Runs
from activities.plan.entered import Call, Parts
from activities.plan.left import note_left
from activities.plan.opening import Opening
from activities.plan.port import (
    Children,
    Done,
    Guard,
    Judgement,
    PlanWriter,
    ProjectRecords,
    Records,
    Runner,
    Trees,
    Work,
)
from activities.plan.records import file_name
from activities.plan.requests import (
    ClosePlanRequest,
    Compensated,
    CompensateRequest,
    LoadPlanRequest,
    OpenedPlan,
    OpenPlanRequest,
    PlanClosed,
    PlanScope,
    PlanVerification,
    RevisedPlan,
    RevisePlanRequest,
    RunStepRequest,
    SettleRequest,
    StepRun,
    VerifyPlanRequest,
)
from activities.plan.stored import LoadedPlan, PlanMemory
from activities.plan.verifying import verified
from activities.tracking.port import Ledgers, TrailEvent
from activities.verification.port import CheckRunner
from activities.workspace.port import OpenEpisodes, Workspaces
from tightloop.errors import InvalidRequestError
from tightloop.plan.engine.graph import is_plain
from tightloop.plan.model import Capability
from tightloop.plan.result import StepResult, StepStatus
from tightloop.value import shorten

CHILD_CAPABILITIES = (Capability.EPISODE, Capability.SUBPLAN, Capability.BRANCH)
"""Those that start workflows."""


@dataclass(frozen=True, kw_only=True)
class PlanPorts:
    """What the plan activities work with."""

    workspaces: Workspaces
    stores: ArtifactStores
    records: ProjectRecords
    ledgers: Ledgers
    trees: Trees
    guard: Guard
    checks: CheckRunner
    runners: Mapping[Capability, Runner]
    children: Children
    writer: PlanWriter
    run_command: Runs
    """Runs a shell command for a step that is taken back."""
    has_ended: OpenEpisodes


class PlanActivities:
    """Does what plans need. All methods are idempotent; Temporal knows them by their names."""

    def __init__(self, ports: PlanPorts) -> None:
        """Take the ports."""
        self._ports = ports
        self._parts = Parts(
            workspaces=ports.workspaces,
            stores=ports.stores,
            records=ports.records,
            trees=ports.trees,
            guard=ports.guard,
            plans=PlanMemory(ports.stores),
        )
        self._attempts = Attempts(self._parts)
        self._opening = Opening(self._parts, ports.has_ended, ports.writer, _capabilities(ports))
        self._compensating = Compensating(self._parts, ports.run_command)

    @activity.defn(no_thread_cancel_exception=True)
    def open_plan(self, request: OpenPlanRequest) -> OpenedPlan:
        """Claim the workspace, read, check and store the plan, and keep the tree that it begins with.

        Raises:
            WorkspaceError: the workspace cannot be used; the message says what to do. Not retryable.
            PlanError: the plan is wrong; all problems with line and column. Not retryable.
        """
        opened = self._opening.open(request)
        self._trail(request.scope, "plan-opened", opened.plan.sha256[:12], key=f"opened/{request.opening}")
        return opened.model_copy(update={"attempt": activity.info().attempt})

    @activity.defn(no_thread_cancel_exception=True)
    def load_plan(self, request: LoadPlanRequest) -> OpenedPlan:
        """Return the graph of a stored revision."""
        return self._opening.load(request)

    @activity.defn(no_thread_cancel_exception=True)
    def revise_plan(self, request: RevisePlanRequest) -> RevisedPlan:
        """Return the next revision, or why the text is refused. A planner, where one is asked, is paid again."""
        revised = self._opening.revise(request)
        if revised.plan is not None:
            line = shorten(f"revision {request.scope.revision + 1}: {revised.diff}", 400)
            self._trail(request.scope, "plan-revised", line, key=f"revised/{revised.plan.sha256}")
        return revised

    @activity.defn(no_thread_cancel_exception=True)
    def run_shell(self, request: RunStepRequest) -> StepResult:
        """Run a command in the sandbox."""
        return self._run(Capability.SHELL, request)

    @activity.defn(no_thread_cancel_exception=True)
    def run_edit(self, request: RunStepRequest) -> StepResult:
        """Change files."""
        return self._run(Capability.EDIT, request)

    @activity.defn(no_thread_cancel_exception=True)
    def run_git(self, request: RunStepRequest) -> StepResult:
        """Make a branch, a commit, the text of a pull request."""
        return self._run(Capability.GIT, request)

    @activity.defn(no_thread_cancel_exception=True)
    def run_http(self, request: RunStepRequest) -> StepResult:
        """Make one HTTP request."""
        return self._run(Capability.HTTP, request)

    @activity.defn(no_thread_cancel_exception=True)
    def run_fetch(self, request: RunStepRequest) -> StepResult:
        """Bring documents into the cache."""
        return self._run(Capability.FETCH, request)

    @activity.defn(no_thread_cancel_exception=True)
    def run_search(self, request: RunStepRequest) -> StepResult:
        """Rank passages of the project and of documents."""
        return self._run(Capability.SEARCH, request)

    @activity.defn(no_thread_cancel_exception=True)
    def run_model(self, request: RunStepRequest) -> StepResult:
        """Ask a model once."""
        return self._run(Capability.MODEL, request)

    @activity.defn(no_thread_cancel_exception=True)
    def run_gate(self, request: RunStepRequest) -> StepResult:
        """Check, and ask a person where the gate wants one."""
        return self._run(Capability.GATE, request)

    @activity.defn(no_thread_cancel_exception=True)
    def run_decision(self, request: RunStepRequest) -> StepResult:
        """Choose one of several paths."""
        return self._run(Capability.DECISION, request)

    @activity.defn(no_thread_cancel_exception=True)
    def take_checkpoint(self, request: RunStepRequest) -> StepResult:
        """Keep the tree under a name."""
        return self._run(Capability.CHECKPOINT, request)

    @activity.defn
    async def pass_milestone(self, request: RunStepRequest) -> StepResult:
        """Judge the conditions of a milestone. A plain one is passed without looking at anything but the plan."""
        known = self._parts.plans.known(request.scope)
        if known is not None and self._passes(known, request):
            return StepResult(status=StepStatus.COMPLETED)
        return await asyncio.to_thread(self._judge_milestone, request)

    @activity.defn(no_thread_cancel_exception=True)
    def prepare_children(self, request: RunStepRequest) -> StepRun:
        """Return the child workflows that a step starts, or its result where there is nothing to start."""
        entered = self._attempts.enter(request, _call(), self._ports.children.preview)
        if isinstance(entered, StepResult):
            return StepRun(result=entered)
        try:
            return self._ports.children.prepare(entered.work)
        except InvalidRequestError as error:
            return StepRun(result=self._attempts.refuse(entered, error))

    @activity.defn(no_thread_cancel_exception=True)
    def settle_children(self, request: SettleRequest) -> StepResult:
        """Judge what the children of a step left, and record the attempt."""
        entered = self._attempts.enter(request.run, _call(), self._ports.children.preview)
        if isinstance(entered, StepResult):
            return entered
        left = request.trees[0] if request.trees and entered.step.capability is not Capability.BRANCH else ""

        def act(work: Work) -> Done:
            return self._ports.children.settle(work, request)

        return self._attempts.carry_out(entered, act, expected_tree=left or None)

    @activity.defn(no_thread_cancel_exception=True)
    def compensate_step(self, request: CompensateRequest) -> Compensated:
        """Take one attempt of a step back. Nothing is changed where that fails."""
        found = self._compensating.compensate(request, _call(), self._run_as_written)
        said = found.failure or f"{found.files_changed} files"
        key = f"compensated/{request.step}/{request.attempt}/{activity.info().workflow_run_id}"
        self._trail(request.scope, "plan-compensated", shorten(f"{request.step}: {said}", 400), key=key)
        return found

    @activity.defn(no_thread_cancel_exception=True)
    def verify_plan(self, request: VerifyPlanRequest) -> PlanVerification:
        """Run the definition of done on exactly the expected tree."""
        return verified(self._parts, self._ports.checks, request, _call())

    @activity.defn(no_thread_cancel_exception=True)
    def close_plan(self, request: ClosePlanRequest) -> PlanClosed:
        """Leave the expected tree behind, store the account of the plan, and give the claim back."""
        scope = request.scope
        if scope.plan is None:
            # It was never opened, so there may be no workspace at all.
            return PlanClosed()
        drift = None
        if request.expected_tree:
            with self._ports.workspaces.hold(scope) as tree:
                drift = tree.ensure(request.expected_tree)
        store, records = self._stored(scope)
        note_left(records, scope, request.expected_tree)
        archive, note = account_of(request, self._parts.plans.load(scope), records, store)
        write_hand_off(scope.state_folder / "plans" / file_name(scope.episode_id), note)
        self._ports.children.tidy(scope)
        self._ports.workspaces.release(scope)
        line = shorten(f"{request.outcome.value}: {request.reason}", 400)
        self._trail(scope, "plan-closed", line, key=f"closed/{activity.info().workflow_run_id}")
        return PlanClosed(archive=archive, drift=drift)

    def _judge_milestone(self, request: RunStepRequest) -> StepResult:
        if self._passes(self._parts.plans.load(request.scope), request):
            return StepResult(status=StepStatus.COMPLETED)
        return self._run(Capability.NONE, request)

    def _passes(self, loaded: LoadedPlan, request: RunStepRequest) -> bool:
        """Return whether the step is a plain milestone that the policy allows: a decision without a look outside."""
        step = loaded.step(request.step, request.template)
        return is_plain(step) and self._ports.guard.before(loaded.plan, step, {}).judgement is Judgement.ALLOW

    def _run(self, capability: Capability, request: RunStepRequest) -> StepResult:
        runner = self._ports.runners.get(capability)
        if runner is None:
            raise InvalidRequestError(f"this worker has no runner for steps that use {capability.value!r}")
        return self._attempts.run(request, _call(), runner.run, runner.preview)

    def _run_as_written(self, request: RunStepRequest) -> StepResult:
        step = self._parts.plans.load(request.scope).step(request.step, request.template)
        return self._run(step.capability, request)

    def _stored(self, scope: PlanScope) -> tuple[ArtifactStore, Records]:
        workspace = Path(scope.workspace)
        return self._ports.stores(workspace), self._ports.records(workspace)

    def _trail(self, scope: PlanScope, kind: str, text: str, *, key: str) -> None:
        self._ports.ledgers(Path(scope.workspace)).add_event(
            TrailEvent(episode_id=scope.episode_id, kind=kind, text=text, key=key)
        )


def _capabilities(ports: PlanPorts) -> frozenset[str]:
    """Return what steps may use on this worker."""
    return frozenset(capability.value for capability in (*ports.runners, *CHILD_CAPABILITIES))


def _call() -> Call:
    return Call(run=activity.info().workflow_run_id or "", cancelled=activity.is_cancelled)
