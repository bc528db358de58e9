"""Steps that start workflows: a coding agent's episode, a plan within the plan, alternatives of which one is kept."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

from activities.checks.port import CheckRunner
from activities.plan.attempts.contract import make_failure
from activities.plan.children.branch import BranchRunner
from activities.plan.children.child_plan import (
    build_inner_plan,
    build_request,
    read_child_results,
    read_plan_file,
    read_plan_inputs,
)
from activities.plan.children.own_worktree import OwnWorktree
from activities.plan.children.worktrees import Worktrees
from activities.plan.port import RunnerResult, Work
from activities.plan.quoting import shell_command
from activities.plan.requests import PlanScope, SettleRequest, StepRun
from activities.workspace.port import Workspaces
from tightloop.episode.budget import Budget
from tightloop.episode.check import Check
from tightloop.episode.model import EpisodeOutcome, EpisodeRequest
from tightloop.errors import InvalidRequestError
from tightloop.executor.model import ExecutorChoice
from tightloop.executor.usage import Usage
from tightloop.plan.document.action import EpisodeAction
from tightloop.plan.document.failing import FailureClass
from tightloop.plan.document.step import Access, Capability, Step, SubplanAction
from tightloop.plan.request import PlanOutcome, PlanRequest
from tightloop.plan.result import EvidenceNote
from tightloop.plan.rules.budgeting import bounded, least
from tightloop.settings import Settings
from tightloop.settings.defaults import with_defaults
from tightloop.value import counted, shorten

GOAL_SHOWN = 2_000
_REFUSED = frozenset({EpisodeOutcome.CANCELLED.value, PlanOutcome.CANCELLED.value})
"""Outcomes that only a person's word brings about."""


class StepChildren:
    """Prepares and settles `episode`, `subplan` and `branch` steps; see the port."""

    def __init__(self, workspaces: Workspaces, checks: CheckRunner, settings: Settings) -> None:
        """Take the working trees, what runs the checks of alternatives, and what gives episodes their defaults."""
        self._workspaces = workspaces
        self._settings = settings
        self._worktrees = Worktrees(workspaces)
        self._branches = BranchRunner(self._worktrees, checks)
        self._own = OwnWorktree(self._worktrees)

    def prepare(self, work: Work) -> StepRun:
        """Return what is to be started; see the port. The tree on disk is the expected one then.

        Raises:
            InvalidRequestError: it cannot be started as it is written; the message says why.
            DriftError: somebody else changed files. Not retryable.
        """
        merges = work.step.tree_access is Access.MERGES
        if work.step.tree_access is not Access.WRITES and not merges and not _only_reads(work.step):
            raise InvalidRequestError(
                f"step {work.step.id!r} starts a workflow in the tree: leave out 'access', or set it to 'writes'"
            )
        if work.expected_tree and not merges:
            with self._workspaces.hold(work.scope) as tree:
                tree.expect(work.expected_tree)
        if work.step.capability is Capability.BRANCH:
            return self._branches.prepare(work)
        if work.step.capability is Capability.EPISODE:
            action, scope, step = work.action(EpisodeAction), work.scope, work.step
            most = bounded(work.plan.budget, step.budget.max_cost_usd, step.budget.max_tokens)
            said: dict[str, Any] = {"planner": action.planner, "budget": action.budget}
            said["executor"] = ExecutorChoice(name=action.executor) if action.executor else None
            request = EpisodeRequest(
                goal=str(work.resolve(action.goal)),
                workspace=scope.workspace,
                definition_of_done=_checks(work, action) or work.plan.definition_of_done,
                worktree=scope.worktree or merges,
                within="" if merges else scope.holder,
                tells_parent=merges,
                **{name: value for name, value in said.items() if value},
            )
            request = with_defaults(request, self._settings)
            budget = request.budget
            request = request.evolve(
                budget=budget.evolve(
                    max_cost_usd=least(budget.max_cost_usd, most.max_cost_usd),
                    max_tokens=least(budget.max_tokens, most.max_tokens),
                    max_wall_time=_wall_time(budget, step),
                ),
            )
            request.check()
            if merges:
                self._own.prepare(work)
            # Of these the plan's own hold.
            fields: dict[str, object] = request.model_dump(mode="json", exclude={"queues", "pause_timeout", "allow"})
            return StepRun(episode=fields, names_executor=bool(action.executor))
        return StepRun(plans=(_subplan(work),))

    def preview(self, work: Work) -> str:
        """Return what would be started, in words."""
        step = work.step
        if step.episode is not None:
            who = step.episode.executor or self._settings.executor.default
            return f"have {who} work on: {shorten(str(work.resolve(step.episode.goal)), GOAL_SHOWN)}"
        if step.branch is not None:
            names = ", ".join(one.name for one in step.branch.alternatives)
            return f"try {names}, each in a worktree of its own, and take over the best that passes"
        steps = step.subplan.steps if step.subplan is not None else ()
        if step.subplan is not None and step.subplan.file:
            return f"run the plan in {work.resolve(step.subplan.file)}"
        return f"run {counted(len(steps), 'step')} as a plan of their own: " + ", ".join(one.id for one in steps[:20])

    def settle(self, work: Work, request: SettleRequest) -> RunnerResult:
        """Read the results of the children; see the port."""
        used = Usage(input_tokens=request.tokens, output_tokens=0, cost_usd=request.cost_usd)
        if work.step.capability is Capability.BRANCH:
            done = self._branches.settle(work, request)
        else:
            child, outcome, reason = request.children[0], request.outcomes[0], request.reasons[0]
            outputs: dict[str, Any] = {"outcome": outcome, "reason": reason, "tree": request.trees[0]}
            evidence: tuple[EvidenceNote, ...] = ()
            if work.step.capability is Capability.SUBPLAN:
                left, evidence = read_child_results(work, child)
                outputs = {**left, **outputs}
            right = (EpisodeOutcome.SUCCEEDED.value, PlanOutcome.COMPLETED.value)
            problem = None
            if outcome not in right:
                kind = FailureClass.POLICY if outcome in _REFUSED else FailureClass.LOGIC
                problem = make_failure(f"{child} ended {outcome}: {reason}", kind)
            done = RunnerResult(
                outputs=outputs,
                command=f"start {child}",
                failure=problem,
                evidence=evidence,
                summary=shorten(f"{child} ended {outcome}" + (f": {reason}" if reason else ""), 200),
            )
            if work.step.tree_access is Access.MERGES:
                done = self._own.settle(work, request, done)
        return replace(done, usage=used, api_calls=request.api_calls)

    def tidy(self, scope: PlanScope) -> None:
        """Remove the worktrees that children of a plan left. Idempotent."""
        self._worktrees.remove_all(scope)


def _checks(work: Work, action: EpisodeAction) -> tuple[Check, ...]:
    """Return the checks of an episode, with values in place of references."""
    return tuple(check.evolve(run=shell_command(check.run, work.lookup).script) for check in action.definition_of_done)


def _subplan(work: Work) -> PlanRequest:
    action, scope = work.action(SubplanAction), work.scope
    given = {name: work.resolve(value) for name, value in action.inputs.items()}
    if action.file:
        plan = read_plan_file(work, str(work.resolve(action.file)), given)
        inputs = given
    else:
        inputs = {**read_plan_inputs(work), **given}
        plan = build_inner_plan(work, action.steps, name=f"{work.plan.id}.{work.step.id}", inputs=inputs)
    plan = plan.evolve(max_parallel=min(action.max_parallel, plan.max_parallel))
    writer = next((one for one in plan.steps if one.tree_access.changes_tree), None)
    if writer is not None and _only_reads(work.step):
        raise InvalidRequestError(
            f"step {work.step.id!r} only reads the tree, but step {writer.id!r} within it writes. "
            f"Give {writer.id!r} 'access: reads', or leave out 'access' of {work.step.id!r}"
        )
    # It works in the tree of this plan, under its claim.
    request = build_request(work, plan, inputs, worktree=scope.worktree)
    return request.evolve(within=scope.holder)


def _only_reads(step: Step) -> bool:
    """Return whether it is a plan within the plan that may run beside others that read the tree."""
    return step.capability is Capability.SUBPLAN and step.tree_access is Access.READS


def _wall_time(budget: Budget, step: Step) -> timedelta | None:
    """Return how long an episode may work: its budget, and the step's time limit where the author set one."""
    if step.timeout_s == Step.model_fields["timeout_s"].default:
        return budget.max_wall_time
    limit = timedelta(seconds=step.timeout_s)
    return limit if budget.max_wall_time is None else min(budget.max_wall_time, limit)
