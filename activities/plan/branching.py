"""Branches: each alternative is tried in a worktree of its own, and the best one that passes is taken over."""

import json
import math
import re
import shlex
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from pathlib import Path

from activities.plan.child_plan import (
    evidence_of_child,
    inner_plan,
    newest,
    outputs_of_child,
    plan_inputs,
    request_for,
)
from activities.plan.contract import failure
from activities.plan.port import Done, ProjectRecords, Trees, Work
from activities.plan.requests import SettleRequest, StepRun
from activities.plan.runners.quoting import shell_command
from activities.plan.worktrees import Worktrees, child_scope
from activities.verification.port import CheckRunner, CommandResult
from activities.workspace.port import WorkingTree
from tightloop.artifact import ArtifactRef
from tightloop.check import Check
from tightloop.plan.action import Alternative, BranchAction
from tightloop.plan.request import PlanOutcome, PlanRequest
from tightloop.plan.rules.bounds import bounded
from tightloop.scrub import scrub
from tightloop.value import clip, shorten

TAIL_CHARACTERS = 200
SCORE_TIMEOUT_S = 600.0
LONGEST_PAUSE = timedelta(hours=1)
"""An alternative that waits longer for a person is out."""
_NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")


@dataclass(frozen=True, kw_only=True)
class Tried:
    """One alternative and what came of it."""

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


class Branching:
    """Prepares and judges the alternatives of `branch` steps."""

    def __init__(self, worktrees: Worktrees, records: ProjectRecords, trees: Trees, checks: CheckRunner) -> None:
        """Take what makes worktrees, reads results, compares trees and runs checks."""
        self._worktrees = worktrees
        self._records = records
        self._trees = trees
        self._checks = checks

    def prepare(self, work: Work) -> StepRun:
        """Return the plans to start, each in a worktree of its own that begins with the files of now.

        Raises:
            InvalidRequestError: an alternative cannot be started; the message says why.
        """
        action = _action(work)
        plans = tuple(self._plan(work, action, alternative) for alternative in action.alternatives)
        return StepRun(plans=plans, names=tuple(one.name for one in action.alternatives))

    def settle(self, work: Work, request: SettleRequest) -> Done:
        """Run checks and score in each worktree, take the best over into `work.tree`, and remove the worktrees."""
        action, children = _action(work), request.children
        tried = [self._tried(work, request, number) for number in range(len(children))]
        artifacts = dict(self._patches(work, tried))
        passed = [one for one in tried if one.passed]
        best = min(passed, key=lambda one: one.rank) if passed and not work.cancelled() else None
        listed = [asdict(one) for one in tried]
        content = json.dumps(listed, indent=1, ensure_ascii=False).encode()
        artifacts["alternatives"] = work.store.put(content, name="alternatives", media_type="application/json")
        outputs = {"winner": best.name if best else "", "alternatives": listed}
        done = Done(outputs=outputs, artifacts=artifacts, command=_told(action))
        if best is None:
            why = "; ".join(f"{one.name}: {one.why}" for one in tried)
            done = replace(done, failure=failure(f"no alternative passes: {why}"))
        else:
            done = self._taken_over(work, done, best, children[best.order])
        for child in children:
            self._worktrees.remove(child_scope(work.scope, child))
        return done

    def _plan(self, work: Work, action: BranchAction, alternative: Alternative) -> PlanRequest:
        inputs = plan_inputs(work)
        plan = inner_plan(work, alternative.steps, name=f"{work.step.id}.{alternative.name}", inputs=inputs)
        costs = [cost for cost in (action.max_cost_usd, plan.budget.max_cost_usd) if cost is not None]
        # All of them together keep the bound.
        count = len(action.alternatives)
        share = min(costs) / count if costs else None
        tokens = plan.budget.max_tokens
        plan = plan.model_copy(
            update={"budget": bounded(plan.budget, share, None if tokens is None else tokens // count)}
        )
        limit = timedelta(seconds=min(max(work.step.timeout_s, 1.0), LONGEST_PAUSE.total_seconds()))
        return request_for(work, plan, inputs, worktree=True).model_copy(update={"pause_timeout": limit})

    def _tried(self, work: Work, request: SettleRequest, number: int) -> Tried:
        action = _action(work)
        one = Tried(name=action.alternatives[number].name, order=number)
        outcome, reason, tree = request.outcomes[number], request.reasons[number], request.trees[number]
        if not tree:
            return replace(one, why=reason or f"it ended {outcome}")
        changed = self._trees.changed(work.root, work.expected_tree, tree)
        patch = self._trees.patch(work.root, work.expected_tree, tree)
        one = replace(one, tree=tree, files=len(changed), lines=_lines(patch))
        if outcome != PlanOutcome.COMPLETED:
            return replace(one, why=reason or f"it ended {outcome}")
        with self._worktrees.at(child_scope(work.scope, request.children[number]), tree) as held:
            return self._judged(work, action, held, one)

    def _judged(self, work: Work, action: BranchAction, held: WorkingTree, one: Tried) -> Tried:
        for check in action.checks:
            result = self._run(work, check, held, one.tree)
            if result.exit_code != 0:
                return replace(one, why=f"check {check.title!r} failed: {_tail(result)}")
        if not action.score:
            return replace(one, passed=True)
        limit = min(work.step.timeout_s, SCORE_TIMEOUT_S)
        result = self._run(work, Check(run=action.score, name="score", timeout_s=limit), held, one.tree)
        numbers = _NUMBER.findall(result.output.decode("utf-8", "replace"))
        score = float(numbers[-1]) if numbers and result.exit_code == 0 else math.nan
        if not math.isfinite(score):
            return replace(one, why=f"the score command printed no number: {_tail(result)}")
        return replace(one, passed=True, score=score)

    def _run(self, work: Work, check: Check, held: WorkingTree, tree: str) -> CommandResult:
        made = shell_command(check.run, work.lookup)
        values = "".join(f"{name}={shlex.quote(value)}\n" for name, value in made.variables.items())
        command = check.model_copy(update={"run": values + made.text})
        result = self._checks.run(command, held.root, cancelled=work.cancelled, started=held.own_process)
        # What a check leaves behind is not part of the alternative.
        held.ensure(tree)
        return result

    def _taken_over(self, work: Work, done: Done, best: Tried, child: str) -> Done:
        assert work.tree is not None
        work.tree.restore(best.tree)
        found = newest(self._records(Path(work.scope.workspace)), child)
        outputs = {**outputs_of_child(work, found), **done.outputs}
        score = "" if best.score is None else f" with score {best.score:g}"
        said = f"{best.name} is taken over{score}: {best.files} files, {best.lines} lines changed"
        return replace(done, outputs=outputs, evidence=evidence_of_child(found), summary=said)

    def _patches(self, work: Work, tried: list[Tried]) -> Iterator[tuple[str, ArtifactRef]]:
        for one in tried:
            if one.tree and one.tree != work.expected_tree:
                patch = self._trees.patch(work.root, work.expected_tree, one.tree)
                yield f"patch-{one.name}", work.store.put(patch, name=f"patch of {one.name}", media_type="text/x-diff")


def _action(work: Work) -> BranchAction:
    assert work.step.branch is not None
    return work.step.branch


def _lines(patch: bytes) -> int:
    lines = patch.splitlines()
    return sum(line[:1] in (b"+", b"-") and not line.startswith((b"+++ ", b"--- ")) for line in lines)


def _tail(result: CommandResult) -> str:
    if result.timed_out:
        return "it took too long"
    said = clip(" ".join(scrub(result.output.decode("utf-8", "replace")).split()), TAIL_CHARACTERS)
    return f"exit code {result.exit_code}" + (f": {said}" if said else "")


def _told(action: BranchAction) -> str:
    return shorten("try " + ", ".join(one.name for one in action.alternatives), 1_000)
