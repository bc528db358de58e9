"""Steps that run child workflows, and the worktrees of these workflows."""

import contextlib
import json
import math
import re
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from activities.checks.activity import CommandResult
from activities.checks.runner import CheckRunner
from activities.plan.attempts.runner import make_failure, replace_files
from activities.plan.attempts.trees import Trees
from activities.plan.files import read_text, shell_command
from activities.plan.outputs import unpack
from activities.plan.port import RunnerResult, Work
from activities.plan.requests import PlanScope, SettleRequest, StepRun
from activities.workspace.folders import root_of, state_folder_of, store_folder_of
from activities.workspace.ownership import tree_key, tree_lock
from activities.workspace.store.entry import TreeMerge
from activities.workspace.user_repository import UserRepository
from activities.workspace.working_tree import WorkingTree, Workspaces
from activities.workspace.worktree import remove_worktree
from tightloop.episode.budget import Budget
from tightloop.episode.check import Check
from tightloop.episode.model import EpisodeOutcome, EpisodeRequest
from tightloop.errors import InvalidRequestError, NotARepositoryError, PlanError
from tightloop.executor.model import ExecutorChoice, Usage
from tightloop.host import diff_command
from tightloop.host.worktree import data_folder
from tightloop.loop.model import CONFLICT, Conflict
from tightloop.plan.action import EpisodeAction
from tightloop.plan.child import EvidenceNote, child_id
from tightloop.plan.document import OnPlanFailure, Plan, file_name
from tightloop.plan.failing import FailureClass
from tightloop.plan.guard import cap_budget, least, narrowest, tighten_policy
from tightloop.plan.request import INPUT_CHARACTERS, SOURCE_BYTES, PlanOutcome, PlanRequest
from tightloop.plan.step import Access, Alternative, BranchAction, Capability, Step, SubplanAction
from tightloop.plan.text.writing import write_plan
from tightloop.plan.validation import check_text
from tightloop.run.outcome import headline
from tightloop.settings import Settings
from tightloop.value import ArtifactRef, clip, format_count, shorten
from tightloop.value.scrub import scrub

ID_CHARACTERS = 60


def build_inner_plan(work: Work, steps: tuple[Step, ...], *, name: str, inputs: Mapping[str, Any]) -> Plan:
    """Build a plan from nested steps.

    The plan inherits the outer plan's policy, budget, seed and beliefs.
    """
    # By Bayes' rule no evidence changes a prior of 0 or 1.
    believed = {belief.hypothesis: min(max(belief.confidence, 0.01), 0.99) for belief in work.request.beliefs}
    return Plan(
        id=re.sub(r"[^A-Za-z0-9._-]", "-", name)[:ID_CHARACTERS],
        title=work.step.title or name,
        # Names only: values travel separately, so nothing in them is parsed as a reference.
        inputs=dict.fromkeys(inputs),
        steps=steps,
        hypotheses=tuple(
            hypothesis.evolve(prior=believed.get(hypothesis.id, hypothesis.prior))
            for hypothesis in work.plan.hypotheses
        ),
        # The outer plan decides what follows a failure.
        on_failure=OnPlanFailure.FAIL,
        max_parallel=work.plan.max_parallel,
        budget=cap_budget(work.plan.budget, work.step.budget.max_cost_usd, work.step.budget.max_tokens),
        policy=work.plan.policy,
        seed=work.plan.seed,
    )


def read_plan_file(work: Work, file: str, inputs: Mapping[str, Any]) -> Plan:
    """Parse a plan file in the tree. The policy and budget of the outer plan limit the parsed plan.

    Raises:
        InvalidRequestError: the file is missing or its plan is invalid. The message includes line and
            column.
    """
    text = read_text(work.root, file)
    if text is None:
        raise InvalidRequestError(f"plan file {file!r} not found in the tree. Check the file name")
    read, problems = check_text(text, name=file)
    wrong = tuple(problem for problem in problems if problem.is_error)
    if read is None or wrong:
        raise PlanError(wrong)
    plan = read.plan
    if unknown := sorted(set(inputs) - set(plan.inputs)):
        raise InvalidRequestError(
            f"{file} has no input {unknown[0]!r}. Available inputs: {', '.join(plan.inputs) or 'none'}"
        )
    budget = narrowest(plan.budget, work.plan.budget)
    return plan.evolve(
        # An earlier step may have edited this file, so it can narrow the outer plan's policy but not widen it.
        policy=tighten_policy(plan.policy, work.plan.policy),
        budget=cap_budget(budget, work.step.budget.max_cost_usd, work.step.budget.max_tokens),
    )


def build_request(work: Work, plan: Plan, inputs: Mapping[str, Any], *, worktree: bool) -> PlanRequest:
    """Build the request that starts a child plan.

    Raises:
        InvalidRequestError: the plan or its inputs exceed the maximum message size.
    """
    # A larger payload would fail the workflow task instead of this step: Temporal rejects more than 2 MiB.
    source = write_plan(plan, "json")
    if (size := len(source.encode())) > SOURCE_BYTES:
        raise InvalidRequestError(
            f"the steps of {work.step.id} take up {size} bytes, but the limit for a plan is {SOURCE_BYTES} bytes. "
            "Split the steps into several subplans"
        )
    if len(str(dict(inputs))) > INPUT_CHARACTERS:
        raise InvalidRequestError(
            f"the inputs of {work.step.id!r} are longer than {INPUT_CHARACTERS} characters. Store large values in files"
        )
    return PlanRequest(
        workspace=work.scope.workspace,
        source=source,
        inputs=dict(inputs),
        worktree=worktree,
        base_tree=work.request.expected_tree,
    )


def read_plan_inputs(work: Work) -> dict[str, Any]:
    """Return the resolved inputs of the outer plan."""
    return {name: work.lookup(f"plan.{name}") for name in work.plan.inputs}


def read_child_results(work: Work, child: str) -> tuple[dict[str, Any], tuple[EvidenceNote, ...]]:
    """Return the outputs of each completed step of a child plan, and the evidence notes of its steps."""
    records = work.records
    steps = dict.fromkeys(record.step for record in records.all(child))
    latest_records = {step: record for step in steps if (record := records.latest(child, step)) is not None}
    outputs = {
        step: {name: unpack(value, work.store) for name, value in record.outputs.items()}
        for step, record in latest_records.items()
    }
    return outputs, tuple(note for record in latest_records.values() for note in record.result.evidence)


class Worktrees:
    """Creates and removes worktrees alongside a plan's tree."""

    def __init__(self, workspaces: Workspaces) -> None:
        self._workspaces = workspaces

    @contextmanager
    def open_worktree(self, scope: PlanScope, tree: str) -> Iterator[WorkingTree]:
        """Lock a child's worktree and write the tree's files to it. Idempotent.

        The worktree is created if it is missing.

        Raises:
            WorkspaceError: the repository has no commit, or does not contain the tree. Not retryable.
            WorkspaceLockedError: another attempt has locked the worktree. Retryable.
        """
        # Nobody to take over from: only this step's child has this id.
        self._workspaces.prepare(scope, take_over=lambda _: False)
        with self._workspaces.hold(scope) as worktree:
            if worktree.snapshot() != tree:
                worktree.restore(tree)
            yield worktree

    def remove(self, scope: PlanScope) -> None:
        """Remove the worktree of a finished child. Its trees are preserved by refs. Idempotent."""
        self._workspaces.release(scope)
        root, state = root_of(scope), state_folder_of(scope)
        # First, so that a partially removed worktree is recreated when it is needed again.
        (data_folder(root) / "record.json").unlink(missing_ok=True)
        if root.exists():
            # Taking the lock kills leftover processes there; a repository that a step broke is removed anyway.
            with contextlib.suppress(NotARepositoryError), self._workspaces.hold(scope):
                pass
            with tree_lock(state, root):
                remove_worktree(UserRepository(Path(scope.workspace)), root)
        # A worktree created later at the same path must not start with the recorded state of this one.
        (store_folder_of(scope) / "states" / tree_key(root)).unlink(missing_ok=True)

    def remove_all(self, scope: PlanScope) -> None:
        """Remove the worktrees of children that were cancelled, or whose worker died before they were settled."""
        folder = state_folder_of(scope) / "worktrees"
        # By name, as nothing else remembers a child whose parent died before it was settled.
        names = [path.name for path in folder.iterdir() if path.is_dir()] if folder.is_dir() else []
        for name in sorted(names):
            if name.startswith(f"{scope.episode_id}."):
                self.remove(child_scope(scope, name))


def child_scope(scope: PlanScope, child: str) -> PlanScope:
    """Return the scope of a child plan that works in its own worktree."""
    return PlanScope(episode_id=child, workspace=scope.workspace, worktree=True)


TAIL_CHARACTERS = 200
SCORE_TIMEOUT_S = 600.0
LONGEST_PAUSE = timedelta(hours=1)
"""Longest wait for a person. An alternative that waits longer is rejected."""
_NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")


@dataclass(frozen=True, kw_only=True)
class AlternativeResult:
    """Result of one alternative."""

    name: str
    order: int
    passed: bool = False
    why: str = ""
    """Reason for the rejection."""
    score: float | None = None
    files: int = 0
    lines: int = 0
    tree: str = ""

    @property
    def rank(self) -> tuple[float, int, int, int]:
        """The key for sorting the alternatives. The best alternative comes first.

        Alternatives are sorted by highest score, then by smallest change, then by their order in the plan.
        """
        return (-(self.score or 0.0), self.lines, self.files, self.order)


class BranchRunner:
    """Prepares and evaluates the alternatives in `branch` steps."""

    def __init__(self, worktrees: Worktrees, checks: CheckRunner) -> None:
        self._worktrees = worktrees
        self._trees = Trees()
        self._checks = checks

    def prepare(self, work: Work) -> StepRun:
        """Return the plans to start. Each plan has its own worktree with the current files.

        Raises:
            InvalidRequestError: an alternative cannot be started. The message says why.
        """
        action = work.action(BranchAction)
        plans = tuple(self._plan(work, action, alternative) for alternative in action.alternatives)
        return StepRun(plans=plans, names=tuple(alternative.name for alternative in action.alternatives))

    def settle(self, work: Work, request: SettleRequest) -> RunnerResult:
        """Check and score each worktree, and apply the best alternative to `work.tree`.

        The worktrees are then removed.
        """
        action, children = work.action(BranchAction), request.children
        artifacts: dict[str, ArtifactRef] = {}
        tried = [self._evaluate(work, request, number, artifacts) for number in range(len(children))]
        passed = [result for result in tried if result.passed]
        # After a cancellation the tree stays as it is, though some alternatives passed.
        best = min(passed, key=lambda one: one.rank) if passed and not work.cancelled() else None
        listed = [asdict(result) for result in tried]
        content = json.dumps(listed, indent=1, ensure_ascii=False).encode()
        artifacts["alternatives"] = work.store.put(content, name="alternatives", media_type="application/json")
        command = shorten("try " + ", ".join(alternative.name for alternative in action.alternatives), 1_000)
        outputs = {"winner": best.name if best else "", "alternatives": listed}
        run_result = RunnerResult(outputs=outputs, artifacts=artifacts, command=command)
        if best is None:
            why = "; ".join(f"{result.name}: {result.why}" for result in tried)
            run_result = replace(run_result, failure=make_failure(f"no alternative passed: {why}"))
        else:
            assert work.tree is not None
            replace_files(work.tree, self._trees, store_folder_of(work.scope), work.request.expected_tree, best.tree)
            left, evidence = read_child_results(work, children[best.order])
            score = "" if best.score is None else f" with score {best.score:g}"
            size = f"{format_count(best.files, 'file')}, {format_count(best.lines, 'line')}"
            summary = f"{best.name} won{score}: {size} changed"
            run_result = replace(
                run_result,
                outputs={**left, **outputs},
                evidence=evidence,
                qualifier=request.qualifiers[best.order] if request.qualifiers else "",
                summary=summary,
                tree=best.tree,
            )
        # Last: a retried activity evaluates the alternatives in them again.
        for child in children:
            self._worktrees.remove(child_scope(work.scope, child))
        return run_result

    def _plan(self, work: Work, action: BranchAction, alternative: Alternative) -> PlanRequest:
        inputs = read_plan_inputs(work)
        plan = build_inner_plan(work, alternative.steps, name=f"{work.step.id}.{alternative.name}", inputs=inputs)
        costs = [cost for cost in (action.max_cost_usd, plan.budget.max_cost_usd) if cost is not None]
        # The bound applies to all alternatives together.
        count = len(action.alternatives)
        share = min(costs) / count if costs else None
        tokens = plan.budget.max_tokens
        plan = plan.evolve(budget=cap_budget(plan.budget, share, None if tokens is None else tokens // count))
        limit = timedelta(seconds=min(max(work.step.timeout_s, 1.0), LONGEST_PAUSE.total_seconds()))
        return build_request(work, plan, inputs, worktree=True).evolve(pause_timeout=limit)

    def _evaluate(
        self, work: Work, request: SettleRequest, number: int, patches: dict[str, ArtifactRef]
    ) -> AlternativeResult:
        action = work.action(BranchAction)
        alternative = AlternativeResult(name=action.alternatives[number].name, order=number)
        outcome, reason, tree = request.outcomes[number], request.reasons[number], request.trees[number]
        if not tree:
            return replace(alternative, why=reason or f"the alternative ended with status {outcome}")
        # Also for alternatives that failed: their patches show how far they came.
        changed = self._trees.changed_paths(store_folder_of(work.scope), work.request.expected_tree, tree)
        patch = self._trees.patch(store_folder_of(work.scope), work.request.expected_tree, tree)
        alternative = replace(alternative, tree=tree, files=len(changed), lines=_lines(patch))
        if tree != work.request.expected_tree:
            ref = work.store.put(patch, name=f"patch of {alternative.name}", media_type="text/x-diff")
            patches[f"patch-{alternative.name}"] = ref
        if outcome != PlanOutcome.COMPLETED:
            return replace(alternative, why=reason or f"the alternative ended with status {outcome}")
        with self._worktrees.open_worktree(child_scope(work.scope, request.children[number]), tree) as worktree:
            for check in action.checks:
                result = self._run(work, check, worktree, alternative.tree)
                if result.exit_code != 0:
                    return replace(alternative, why=f"check {check.title!r} failed: {_tail(result)}")
            if not action.score:
                return replace(alternative, passed=True)
            limit = min(work.step.timeout_s, SCORE_TIMEOUT_S)
            result = self._run(work, Check(run=action.score, name="score", timeout_s=limit), worktree, alternative.tree)
            numbers = _NUMBER.findall(result.output.decode("utf-8", "replace"))
            # The last number: benchmark commands often print progress before it.
            score = float(numbers[-1]) if numbers and result.exit_code == 0 else math.nan
            if not math.isfinite(score):
                return replace(alternative, why=f"the score command did not print a number: {_tail(result)}")
            return replace(alternative, passed=True, score=score)

    def _run(self, work: Work, check: Check, worktree: WorkingTree, tree: str) -> CommandResult:
        command = check.evolve(run=shell_command(check.run, work.lookup).script)
        result = self._checks.run(command, worktree.root, cancelled=work.cancelled, started=worktree.own_process)
        # Files that a check leaves behind are not part of the alternative.
        worktree.ensure(tree)
        return result


def _lines(patch: bytes) -> int:
    lines = patch.splitlines()
    # A changed line that begins with `++ ` or `-- ` looks like a header. The count only ranks, so that is good enough.
    return sum(line[:1] in (b"+", b"-") and not line.startswith((b"+++ ", b"--- ")) for line in lines)


def _tail(result: CommandResult) -> str:
    if result.timed_out:
        return "timed out"
    output = clip(" ".join(scrub(result.output.decode("utf-8", "replace")).split()), TAIL_CHARACTERS)
    return f"exit code {result.exit_code}" + (f": {output}" if output else "")


SHOWN = 10


class OwnWorktree:
    """Prepares the worktree of an episode and merges the episode's result."""

    def __init__(self, worktrees: Worktrees) -> None:
        self._worktrees = worktrees
        self._trees = Trees()

    def prepare(self, work: Work) -> None:
        """Create the worktree with the plan's current files.

        If the episode resolves a conflict, the conflicting change is also merged.

        Raises:
            WorkspaceError: the repository has no commit. Not retryable.
            WorkspaceLockedError: another attempt has locked the worktree. Retryable.
        """
        tree, start = work.request.expected_tree, work.action(EpisodeAction).merge
        if start is not None:
            # The conflict markers in the files are what the agent is asked to resolve.
            tree = self._trees.merge(store_folder_of(work.scope), start.base, tree, start.tree, markers=True).tree
        child = child_id(work.scope.episode_id, work.step.id, work.request.attempt)
        with self._worktrees.open_worktree(child_scope(work.scope, child), tree):
            pass

    def settle(self, work: Work, request: SettleRequest, run_result: RunnerResult) -> RunnerResult:
        """Merge a successful episode's result into `work.tree`.

        If the episode failed, its tree is kept and its location is reported. The worktree is removed, because
        its trees are in the store.
        """
        assert work.tree is not None
        left = request.trees[0]
        if run_result.failure is not None:
            run_result = self._keep(work, request, run_result, run_result.failure.reason) if left else run_result
        else:
            run_result = self._merge(work, request, run_result)
        # Last, so that a retried activity settles the same way.
        self._worktrees.remove(child_scope(work.scope, request.children[0]))
        return run_result

    def _merge(self, work: Work, request: SettleRequest, run_result: RunnerResult) -> RunnerResult:
        assert work.tree is not None
        store, left = store_folder_of(work.scope), request.trees[0]
        merged = self._trees.merge(store, request.base_tree, work.request.expected_tree, left)
        if merged.conflicts:
            return self._conflict(work, request, run_result, merged)
        replace_files(work.tree, self._trees, store, work.request.expected_tree, merged.tree)
        count = format_count(len(self._trees.changed_paths(store, work.request.expected_tree, merged.tree)), "file")
        return replace(run_result, tree=merged.tree, summary=f"{run_result.summary}, {count} changed")

    def _conflict(
        self, work: Work, request: SettleRequest, run_result: RunnerResult, merged: TreeMerge
    ) -> RunnerResult:
        store, left = store_folder_of(work.scope), request.trees[0]
        # Merged once more with markers: without them, a conflict yields no tree and no further paths.
        their_paths = self._trees.merge(
            store, request.base_tree, work.request.expected_tree, left, markers=True
        ).extra_paths
        paths = ", ".join(shlex.quote(path) for path in merged.conflicts[:SHOWN])
        more = len(merged.conflicts) - SHOWN
        reason = (
            "the changes of the step conflict with changes made by other steps in "
            f"{paths}{f' and {more} more' if more > 0 else ''}"
        )
        conflict = Conflict(
            base=request.base_tree, tree=left, paths=merged.conflicts[:SHOWN], beside=their_paths[:SHOWN]
        )
        outputs = {**run_result.outputs, CONFLICT: conflict.model_dump(mode="json")}
        failed_result = self._keep(work, request, replace(run_result, outputs=outputs), reason)
        assert failed_result.failure is not None
        return replace(failed_result, failure=failed_result.failure.evolve(mode=CONFLICT))

    def _keep(self, work: Work, request: SettleRequest, run_result: RunnerResult, reason: str) -> RunnerResult:
        assert work.tree is not None
        name = f"step.{file_name(work.step.id)}.{work.request.attempt}"
        work.tree.keep(f"{name}.left", request.trees[0])
        work.tree.keep(f"{name}.base", request.base_tree)
        command = diff_command(Path(work.scope.workspace), request.base_tree, request.trees[0])
        kind = run_result.failure.failure_class if run_result.failure is not None else None
        message = f"{reason}. The changes of the step were saved. To view the changes, run: {command}"
        return replace(run_result, failure=make_failure(message) if kind is None else make_failure(message, kind))


GOAL_SHOWN = 2_000
_REFUSED = frozenset({EpisodeOutcome.CANCELLED.value, PlanOutcome.CANCELLED.value})
"""Outcomes that only a person can cause, by cancelling the child."""


class StepChildren:
    """Prepares and evaluates the child workflows for `episode`, `subplan` and `branch` steps."""

    def __init__(self, workspaces: Workspaces, checks: CheckRunner, settings: Settings) -> None:
        self._workspaces = workspaces
        self._settings = settings
        self._worktrees = Worktrees(workspaces)
        self._branches = BranchRunner(self._worktrees, checks)
        self._own = OwnWorktree(self._worktrees)

    def prepare(self, work: Work) -> StepRun:
        """Restore the expected tree on disk and return the children to start.

        `work.tree` is None, because the children lock the tree themselves.

        Raises:
            InvalidRequestError: the step cannot be started as written. The message says why.
            DriftError: somebody else changed files. Not retryable.
        """
        merges = work.step.tree_access is Access.MERGES
        if work.step.tree_access is not Access.WRITES and not merges and not _only_reads(work.step):
            raise InvalidRequestError(
                f"step {work.step.id!r} starts a workflow that changes the tree. Remove 'access', or set 'access' to "
                "'writes'"
            )
        if work.request.expected_tree and not merges:
            with self._workspaces.hold(work.scope) as tree:
                tree.expect(work.request.expected_tree)
        if work.step.capability is Capability.BRANCH:
            return self._branches.prepare(work)
        if work.step.capability is Capability.EPISODE:
            action, scope, step = work.action(EpisodeAction), work.scope, work.step
            most = cap_budget(work.plan.budget, step.budget.max_cost_usd, step.budget.max_tokens)
            options: dict[str, Any] = {"planner": action.planner, "budget": action.budget}
            options["executor"] = ExecutorChoice(name=action.executor) if action.executor else None
            request = EpisodeRequest(
                goal=str(work.resolve(action.goal)),
                workspace=scope.workspace,
                definition_of_done=_checks(work, action) or work.plan.definition_of_done,
                folder=str(work.resolve(action.folder)),
                worktree=scope.worktree or merges,
                # In a worktree of its own it does not need the plan's claim.
                within="" if merges else scope.holder,
                tells_parent=merges,
                **{name: value for name, value in options.items() if value},
            )
            # Before the budget is capped: the defaults may exceed what this step may spend.
            request = self._settings.with_defaults(request)
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
            # The plan's own values apply to these fields.
            fields: dict[str, object] = request.model_dump(mode="json", exclude={"queues", "pause_timeout", "allow"})
            return StepRun(episode=fields, names_executor=bool(action.executor))
        return StepRun(plans=(_subplan(work),))

    def preview(self, work: Work) -> str:
        """Describe the children that the step would start."""
        step = work.step
        if step.episode is not None:
            who = step.episode.executor or self._settings.executor.default
            return f"ask {who} to work on: {shorten(str(work.resolve(step.episode.goal)), GOAL_SHOWN)}"
        if step.branch is not None:
            names = ", ".join(alternative.name for alternative in step.branch.alternatives)
            return f"try {names} in separate worktrees, and apply the best one that passes"
        steps = step.subplan.steps if step.subplan is not None else ()
        if step.subplan is not None and step.subplan.file:
            return f"run the plan file {work.resolve(step.subplan.file)}"
        return f"run {format_count(len(steps), 'step')} as a separate plan: " + ", ".join(
            inner_step.id for inner_step in steps[:20]
        )

    def settle(self, work: Work, request: SettleRequest) -> RunnerResult:
        """Evaluate the results of the children. For a branch, apply the best alternative to `work.tree`."""
        used = Usage(input_tokens=request.tokens, output_tokens=0, cost_usd=request.cost_usd)
        if work.step.capability is Capability.BRANCH:
            run_result = self._branches.settle(work, request)
        else:
            child, outcome, reason = request.children[0], request.outcomes[0], request.reasons[0]
            qualifier = request.qualifiers[0] if request.qualifiers else ""
            outputs: dict[str, Any] = {"outcome": outcome, "reason": reason, "tree": request.trees[0]}
            evidence: tuple[EvidenceNote, ...] = ()
            if work.step.capability is Capability.SUBPLAN:
                left, evidence = read_child_results(work, child)
                outputs = {**left, **outputs}
            right = (EpisodeOutcome.SUCCEEDED.value, PlanOutcome.COMPLETED.value)
            problem = None
            if outcome not in right:
                kind = FailureClass.POLICY if outcome in _REFUSED else FailureClass.LOGIC
                problem = make_failure(f"{child} ended with status {outcome}: {reason}", kind)
            run_result = RunnerResult(
                outputs=outputs,
                command=f"start {child}",
                failure=problem,
                evidence=evidence,
                qualifier=qualifier,
                summary=shorten(f"{child} ended as {headline(outcome, qualifier, reason)}", 200),
            )
            if work.step.tree_access is Access.MERGES:
                run_result = self._own.settle(work, request, run_result)
        return replace(run_result, usage=used, unpriced_calls=request.unpriced_calls, api_calls=request.api_calls)

    def remove_leftovers(self, scope: PlanScope) -> None:
        """Remove leftover worktrees of a plan's children. Idempotent."""
        self._worktrees.remove_all(scope)


def _checks(work: Work, action: EpisodeAction) -> tuple[Check, ...]:
    """Return the checks of an episode with their references resolved."""
    return tuple(check.evolve(run=shell_command(check.run, work.lookup).script) for check in action.definition_of_done)


def _subplan(work: Work) -> PlanRequest:
    action, scope = work.action(SubplanAction), work.scope
    action_inputs = {name: work.resolve(value) for name, value in action.inputs.items()}
    if action.file:
        plan = read_plan_file(work, str(work.resolve(action.file)), action_inputs)
        inputs = action_inputs
    else:
        inputs = {**read_plan_inputs(work), **action_inputs}
        plan = build_inner_plan(work, action.steps, name=f"{work.plan.id}.{work.step.id}", inputs=inputs)
    plan = plan.evolve(max_parallel=min(action.max_parallel, plan.max_parallel))
    writer = next((step for step in plan.steps if step.tree_access.changes_tree), None)
    if writer is not None and _only_reads(work.step):
        raise InvalidRequestError(
            f"step {work.step.id!r} only reads the tree, but its inner step {writer.id!r} writes to the tree. "
            f"Set 'access: reads' in {writer.id!r}, or remove 'access' from {work.step.id!r}"
        )
    # It works in this plan's tree, under its claim.
    request = build_request(work, plan, inputs, worktree=scope.worktree)
    return request.evolve(within=scope.holder)


def _only_reads(step: Step) -> bool:
    """Return whether the step is a read-only subplan.

    Such a step may run in parallel with other steps that read the tree.
    """
    return step.capability is Capability.SUBPLAN and step.tree_access is Access.READS


def _wall_time(budget: Budget, step: Step) -> timedelta | None:
    """Return the time limit for an episode: its budget or the author's `timeout_s`, whichever is shorter."""
    # The default suits commands; an agent that nobody limits may work much longer.
    if step.timeout_s == Step.model_fields["timeout_s"].default:
        return budget.max_wall_time
    limit = timedelta(seconds=step.timeout_s)
    return limit if budget.max_wall_time is None else min(budget.max_wall_time, limit)
