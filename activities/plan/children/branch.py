"""Branches: each alternative is tried in a worktree of its own, and the best one that passes is taken over."""

import json
import math
import re
from dataclasses import asdict, dataclass, replace
from datetime import timedelta

from activities.checks.port import CheckRunner, CommandResult
from activities.plan.attempts.beside import move
from activities.plan.attempts.contract import make_failure
from activities.plan.attempts.git_trees import GitTrees
from activities.plan.children.child_plan import build_inner_plan, build_request, read_child_results, read_plan_inputs
from activities.plan.children.worktrees import Worktrees, child_scope
from activities.plan.port import RunnerResult, Work
from activities.plan.quoting import shell_command
from activities.plan.requests import SettleRequest, StepRun
from activities.workspace.folders import store_folder_of
from activities.workspace.port import WorkingTree
from tightloop.episode.check import Check
from tightloop.plan.document.step import Alternative, BranchAction
from tightloop.plan.request import PlanOutcome, PlanRequest
from tightloop.plan.rules.budgeting import bounded
from tightloop.value import clip, counted, shorten
from tightloop.value.artifact import ArtifactRef
from tightloop.value.scrub import scrub

TAIL_CHARACTERS = 200
SCORE_TIMEOUT_S = 600.0
LONGEST_PAUSE = timedelta(hours=1)
"""An alternative that waits longer for a person is out."""
_NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")


@dataclass(frozen=True, kw_only=True)
class AlternativeResult:
    """One alternative and its result."""

    name: str
    order: int
    passed: bool = False
    why: str = ""
    """Why it is out."""
    score: float | None = None
    files: int = 0
    lines: int = 0
    tree: str = ""

    @property
    def rank(self) -> tuple[float, int, int, int]:
        """Smaller is better: highest score, then the smaller change, then the order in the plan."""
        return (-(self.score or 0.0), self.lines, self.files, self.order)


class BranchRunner:
    """Prepares and judges the alternatives of `branch` steps."""

    def __init__(self, worktrees: Worktrees, checks: CheckRunner) -> None:
        """Take what makes worktrees and runs checks."""
        self._worktrees = worktrees
        self._trees = GitTrees()
        self._checks = checks

    def prepare(self, work: Work) -> StepRun:
        """Return the plans to start, each in a worktree of its own that begins with the files of now.

        Raises:
            InvalidRequestError: an alternative cannot be started; the message says why.
        """
        action = work.action(BranchAction)
        plans = tuple(self._plan(work, action, alternative) for alternative in action.alternatives)
        return StepRun(plans=plans, names=tuple(one.name for one in action.alternatives))

    def settle(self, work: Work, request: SettleRequest) -> RunnerResult:
        """Run checks and score in each worktree, take the best over into `work.tree`, and remove the worktrees."""
        action, children = work.action(BranchAction), request.children
        artifacts: dict[str, ArtifactRef] = {}
        tried = [self._tried(work, request, number, artifacts) for number in range(len(children))]
        passed = [one for one in tried if one.passed]
        best = min(passed, key=lambda one: one.rank) if passed and not work.cancelled() else None
        listed = [asdict(one) for one in tried]
        content = json.dumps(listed, indent=1, ensure_ascii=False).encode()
        artifacts["alternatives"] = work.store.put(content, name="alternatives", media_type="application/json")
        command = shorten("try " + ", ".join(one.name for one in action.alternatives), 1_000)
        outputs = {"winner": best.name if best else "", "alternatives": listed}
        done = RunnerResult(outputs=outputs, artifacts=artifacts, command=command)
        if best is None:
            why = "; ".join(f"{one.name}: {one.why}" for one in tried)
            done = replace(done, failure=make_failure(f"no alternative passes: {why}"))
        else:
            assert work.tree is not None
            move(work.tree, self._trees, store_folder_of(work.scope), work.expected_tree, best.tree)
            left, evidence = read_child_results(work, children[best.order])
            score = "" if best.score is None else f" with score {best.score:g}"
            size = f"{counted(best.files, 'file')}, {counted(best.lines, 'line')}"
            summary = f"{best.name} is taken over{score}: {size} changed"
            done = replace(done, outputs={**left, **outputs}, evidence=evidence, summary=summary, tree=best.tree)
        # Last: an activity that is tried again judges the alternatives in them again.
        for child in children:
            self._worktrees.remove(child_scope(work.scope, child))
        return done

    def _plan(self, work: Work, action: BranchAction, alternative: Alternative) -> PlanRequest:
        inputs = read_plan_inputs(work)
        plan = build_inner_plan(work, alternative.steps, name=f"{work.step.id}.{alternative.name}", inputs=inputs)
        costs = [cost for cost in (action.max_cost_usd, plan.budget.max_cost_usd) if cost is not None]
        # All of them together keep the bound.
        count = len(action.alternatives)
        share = min(costs) / count if costs else None
        tokens = plan.budget.max_tokens
        plan = plan.evolve(budget=bounded(plan.budget, share, None if tokens is None else tokens // count))
        limit = timedelta(seconds=min(max(work.step.timeout_s, 1.0), LONGEST_PAUSE.total_seconds()))
        return build_request(work, plan, inputs, worktree=True).evolve(pause_timeout=limit)

    def _tried(
        self, work: Work, request: SettleRequest, number: int, patches: dict[str, ArtifactRef]
    ) -> AlternativeResult:
        action = work.action(BranchAction)
        one = AlternativeResult(name=action.alternatives[number].name, order=number)
        outcome, reason, tree = request.outcomes[number], request.reasons[number], request.trees[number]
        if not tree:
            return replace(one, why=reason or f"it ended {outcome}")
        changed = self._trees.changed(store_folder_of(work.scope), work.expected_tree, tree)
        patch = self._trees.patch(store_folder_of(work.scope), work.expected_tree, tree)
        one = replace(one, tree=tree, files=len(changed), lines=_lines(patch))
        if tree != work.expected_tree:
            ref = work.store.put(patch, name=f"patch of {one.name}", media_type="text/x-diff")
            patches[f"patch-{one.name}"] = ref
        if outcome != PlanOutcome.COMPLETED:
            return replace(one, why=reason or f"it ended {outcome}")
        with self._worktrees.at(child_scope(work.scope, request.children[number]), tree) as held:
            for check in action.checks:
                result = self._run(work, check, held, one.tree)
                if result.exit_code != 0:
                    return replace(one, why=f"check {check.title!r} failed: {_tail(result)}")
            if not action.score:
                return replace(one, passed=True)
            limit = min(work.step.timeout_s, SCORE_TIMEOUT_S)
            result = self._run(work, Check(run=action.score, name="score", timeout_s=limit), held, one.tree)
            numbers = _NUMBER.findall(result.output.decode("utf-8", "replace"))
            # The last number: a command that measures often prints its progress before.
            score = float(numbers[-1]) if numbers and result.exit_code == 0 else math.nan
            if not math.isfinite(score):
                return replace(one, why=f"the score command printed no number: {_tail(result)}")
            return replace(one, passed=True, score=score)

    def _run(self, work: Work, check: Check, held: WorkingTree, tree: str) -> CommandResult:
        command = check.evolve(run=shell_command(check.run, work.lookup).script)
        result = self._checks.run(command, held.root, cancelled=work.cancelled, started=held.own_process)
        # What a check leaves behind is not part of the alternative.
        held.ensure(tree)
        return result


def _lines(patch: bytes) -> int:
    lines = patch.splitlines()
    return sum(line[:1] in (b"+", b"-") and not line.startswith((b"+++ ", b"--- ")) for line in lines)


def _tail(result: CommandResult) -> str:
    if result.timed_out:
        return "it took too long"
    said = clip(" ".join(scrub(result.output.decode("utf-8", "replace")).split()), TAIL_CHARACTERS)
    return f"exit code {result.exit_code}" + (f": {said}" if said else "")
