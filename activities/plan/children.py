"""Steps that start workflows: a coding agent's episode, a plan within the plan, alternatives of which one is kept."""

from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from activities.plan.branching import Branching
from activities.plan.child_plan import (
    evidence_of_child,
    inner_plan,
    newest,
    outputs_of_child,
    plan_from_file,
    plan_inputs,
    request_for,
)
from activities.plan.contract import failure
from activities.plan.port import Done, ProjectRecords, Trees, Work
from activities.plan.requests import PlanScope, SettleRequest, StepRun
from activities.plan.worktrees import Worktrees
from activities.verification.port import CheckRunner
from activities.workspace.port import Workspaces
from tightloop.budget import Budget, Usage
from tightloop.episode import EpisodeOutcome, EpisodeRequest
from tightloop.errors import InvalidRequestError
from tightloop.executor import ExecutorChoice
from tightloop.plan.model import Access, Capability, FailureClass, Step
from tightloop.plan.request import PlanOutcome, PlanRequest
from tightloop.plan.result import EvidenceNote
from tightloop.plan.rules.bounds import bounded, least
from tightloop.value import shorten

GOAL_SHOWN = 2_000
_REFUSED = frozenset({EpisodeOutcome.ABORTED.value, PlanOutcome.CANCELLED.value})
"""Outcomes that only a person's word brings about."""


@dataclass(frozen=True, kw_only=True)
class EpisodeDefaults:
    """What an episode has where its step does not say."""

    executor: ExecutorChoice = field(default_factory=ExecutorChoice)
    planner: str = "auto"
    budget: Budget = field(default_factory=Budget)


@dataclass(frozen=True, kw_only=True)
class ChildPorts:
    """What children are made with."""

    workspaces: Workspaces
    records: ProjectRecords
    trees: Trees
    checks: CheckRunner
    defaults: EpisodeDefaults = field(default_factory=EpisodeDefaults)


class StepChildren:
    """Prepares and settles `episode`, `subplan` and `branch` steps; see the port."""

    def __init__(self, ports: ChildPorts) -> None:
        """Take the ports."""
        self._ports = ports
        self._worktrees = Worktrees(ports.workspaces)
        self._branching = Branching(self._worktrees, ports.records, ports.trees, ports.checks)

    def prepare(self, work: Work) -> StepRun:
        """Return what is to be started; see the port. The tree on disk is the expected one then.

        Raises:
            InvalidRequestError: it cannot be started as it is written; the message says why.
        """
        if work.step.tree_access is not Access.WRITES and not _only_reads(work.step):
            raise InvalidRequestError(
                f"step {work.step.id!r} starts a workflow in the tree: leave out 'access', or set it to 'writes'"
            )
        if work.expected_tree:
            with self._ports.workspaces.hold(work.scope) as tree:
                tree.ensure(work.expected_tree)
        if work.step.capability is Capability.BRANCH:
            return self._branching.prepare(work)
        if work.step.capability is Capability.EPISODE:
            return StepRun(episode=_episode(work, self._ports.defaults))
        return StepRun(plans=(_subplan(work),))

    def preview(self, work: Work) -> str:
        """Return what would be started, in words."""
        step = work.step
        if step.episode is not None:
            who = step.episode.executor or self._ports.defaults.executor.name
            return f"have {who} work on: {shorten(str(work.resolve(step.episode.goal)), GOAL_SHOWN)}"
        if step.branch is not None:
            names = ", ".join(one.name for one in step.branch.alternatives)
            return f"try {names}, each in a worktree of its own, and take over the best that passes"
        steps = step.subplan.steps if step.subplan is not None else ()
        if step.subplan is not None and step.subplan.file:
            return f"run the plan in {work.resolve(step.subplan.file)}"
        return f"run {len(steps)} steps as a plan of their own: " + ", ".join(one.id for one in steps[:20])

    def settle(self, work: Work, request: SettleRequest) -> Done:
        """Read the results of the children; see the port."""
        used = Usage(input_tokens=request.tokens, output_tokens=0, cost_usd=request.cost_usd)
        if work.step.capability is Capability.BRANCH:
            done = self._branching.settle(work, request)
        else:
            done = self._of_one(work, request)
        return replace(done, usage=used, api_calls=request.api_calls)

    def tidy(self, scope: PlanScope) -> None:
        """Remove the worktrees that children of a plan left. Idempotent."""
        self._worktrees.remove_all(scope)

    def _of_one(self, work: Work, request: SettleRequest) -> Done:
        """Return the result of an episode, or of a subplan with the outputs of its steps by their ids."""
        child, outcome, reason = request.children[0], request.outcomes[0], request.reasons[0]
        outputs: dict[str, Any] = {"outcome": outcome, "reason": reason, "tree": request.trees[0]}
        evidence: tuple[EvidenceNote, ...] = ()
        if work.step.capability is Capability.SUBPLAN:
            found = newest(self._ports.records(Path(work.scope.workspace)), child)
            outputs, evidence = {**outputs_of_child(work, found), **outputs}, evidence_of_child(found)
        right = (EpisodeOutcome.SUCCEEDED.value, PlanOutcome.COMPLETED.value)
        problem = None
        if outcome not in right:
            kind = FailureClass.POLICY if outcome in _REFUSED else FailureClass.LOGIC
            problem = failure(f"{child} ended {outcome}: {reason}", kind)
        return Done(
            outputs=outputs,
            command=f"start {child}",
            failure=problem,
            evidence=evidence,
            summary=shorten(f"{child} ended {outcome}" + (f": {reason}" if reason else ""), 200),
        )


def _subplan(work: Work) -> PlanRequest:
    action, scope = work.step.subplan, work.scope
    assert action is not None
    given = {name: work.resolve(value) for name, value in action.inputs.items()}
    if action.file:
        plan = plan_from_file(work, str(work.resolve(action.file)), given)
        inputs = given
    else:
        inputs = {**plan_inputs(work), **given}
        plan = inner_plan(work, action.steps, name=f"{work.plan.id}.{work.step.id}", inputs=inputs)
    plan = plan.model_copy(update={"max_parallel": min(action.max_parallel, plan.max_parallel)})
    if _only_reads(work.step):
        _refuse_writers(work.step, plan.steps)
    # It works in the tree of this plan, under its claim.
    request = request_for(work, plan, inputs, worktree=scope.worktree)
    return request.model_copy(update={"within": scope.holder})


def _only_reads(step: Step) -> bool:
    """Return whether it is a plan within the plan that may run beside others that read the tree."""
    return step.capability is Capability.SUBPLAN and step.tree_access is Access.READS


def _refuse_writers(step: Step, within: tuple[Step, ...]) -> None:
    writer = next((one for one in within if one.tree_access is Access.WRITES), None)
    if writer is not None:
        raise InvalidRequestError(
            f"step {step.id!r} only reads the tree, but step {writer.id!r} within it writes. "
            f"Give {writer.id!r} 'access: reads', or leave out 'access' of {step.id!r}"
        )


def _episode(work: Work, defaults: EpisodeDefaults) -> dict[str, object]:
    action, scope, step = work.step.episode, work.scope, work.step
    assert action is not None
    most = bounded(work.plan.budget, step.budget.max_cost_usd, step.budget.max_tokens)
    budget = action.budget or defaults.budget
    executor = defaults.executor
    if action.executor and action.executor != executor.name:
        executor = ExecutorChoice(name=action.executor, fallback=executor.fallback)
    request = EpisodeRequest(
        goal=str(work.resolve(action.goal)),
        workspace=scope.workspace,
        definition_of_done=action.definition_of_done or work.plan.definition_of_done,
        planner=action.planner or defaults.planner,
        executor=executor,
        worktree=scope.worktree,
        within=scope.holder,
        budget=budget.model_copy(
            update={
                "max_cost_usd": least(budget.max_cost_usd, most.max_cost_usd),
                "max_tokens": least(budget.max_tokens, most.max_tokens),
                "max_wall_time": _wall_time(budget, step),
            }
        ),
    )
    request.check()
    fields: dict[str, object] = request.model_dump(mode="json", exclude_unset=True)
    return fields


def _wall_time(budget: Budget, step: Step) -> timedelta | None:
    """Return how long an episode may work: its budget, and the step's time limit where the author set one."""
    if step.timeout_s == Step.model_fields["timeout_s"].default:
        return budget.max_wall_time
    limit = timedelta(seconds=step.timeout_s)
    return limit if budget.max_wall_time is None else min(budget.max_wall_time, limit)
