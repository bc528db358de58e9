"""The policy of a plan at work: before a step acts, and over what it changed."""

import os
from pathlib import Path
from typing import Any

from activities.plan.attempts.contract import fail_step
from activities.plan.port import RunnerResult, Work
from activities.plan.quoting import shell_command
from activities.workspace.folders import store_folder_of
from activities.workspace.trail import Differ, TreeDiff
from tightloop.plan.document.action import Option, ShellAction
from tightloop.plan.document.failing import FailureClass
from tightloop.plan.document.plan import Plan
from tightloop.plan.document.step import Capability, Step
from tightloop.plan.engine.approval import choices, tally
from tightloop.plan.language.reference import is_one_reference, resolve
from tightloop.plan.rules.guard import acts_of, enclosing_policies, judge, judge_changes, judge_deletions
from tightloop.question import Question, QuestionKind, evidence_of
from tightloop.safety.change.tables import GENERATED
from tightloop.safety.verdict import Ruling, Verdict
from tightloop.value.scrub import scrub

# An option of its own: who approved a command before it ran has not seen what it removed.
KEEP = Option(name="keep", pros=("the step runs again, and what it removes stays removed",))


def check_step(work: Work) -> RunnerResult | None:
    """Return the refusal of a step that the policy denies, or the question of one that a person has to allow.

    Raises:
        ReferenceMissingError: the action refers to a value that is not there.
    """
    acts = acts_of(work.step, _action(work))
    ruling = judge(work.plan.policy, work.step, acts)
    shown = evidence_of(scrub("\n".join((*acts.commands, *acts.urls, *acts.paths))))
    return _answered(work, ruling, f"may {work.step.title or work.step.id} act?", (), evidence=shown)


def _answered(
    work: Work, ruling: Ruling, question: str, options: tuple[Option, ...], *, evidence: tuple[str, ...] = ()
) -> RunnerResult | None:
    """Return a refusal, or the question of a ruling that a person has not said yes to; None: it may be."""
    if ruling.verdict is Verdict.ALLOW:
        return None
    if ruling.verdict is Verdict.DENY:
        return fail_step(ruling.reason, FailureClass.POLICY)
    said = tally(work.answers, 1, options)
    if said.rejection is not None:
        rejection = said.rejection
        why = f": {rejection.text}" if rejection.text else ""
        return fail_step(f"{rejection.by} refused it{why}", FailureClass.POLICY)
    if said.approved:
        return None
    title = f"{question} {ruling.reason}"
    asked = Question(
        id="", kind=QuestionKind.POLICY, title=title, evidence=evidence, options=choices(options), step=work.step.id
    )
    return RunnerResult(question=asked, summary=f"waits for approval: {ruling.reason}")


def check_command(work: Work, command: str) -> str:
    """Return why a command that takes a step back must not be run, or ""; nobody is asked again about it."""
    shown = shell_command(command, work.lookup).shown
    step = Step(id=work.step.id, shell=ShellAction(run=shown))
    ruling = judge(work.plan.policy, step, acts_of(step, {"run": shown}))
    return ruling.reason if ruling.verdict is Verdict.DENY else ""


def check_deletions(work: Work, differ: Differ, base: str, before: str, after: str) -> RunnerResult | None:
    """Return the refusal or the question of a step that removed too much; None: it did not.

    Args:
        work: of the step; the files on disk are those of the tree `after`.
        differ: compares the trees.
        base: the tree that the plan began with.
        before: the tree that the step began with.
        after: the tree that it left.
    """
    bounded = any(policy.deletions is not None for policy in enclosing_policies(work.plan.policy))
    store = store_folder_of(work.scope)
    if not bounded or _removed(work.root, differ.compare(store, before, after)) == ((), 0):
        return None
    gone, lines = _removed(work.root, differ.compare(store, base, after))
    ruling = judge_deletions(work.plan.policy, gone, lines, differ.lines(store, base))
    return _answered(work, ruling, "keep what it did?", (KEEP,))


def _removed(root: Path, diff: TreeDiff) -> tuple[tuple[str, ...], int]:
    """Return the files that are gone, and how many lines were lost in all files."""
    files = [file for file in diff.files if not GENERATED.search(file.path)]
    gone = tuple(file.path for file in files if not os.path.lexists(root / file.path))
    # In one file new lines stand for old ones; lines of other files do not.
    return gone, sum(max(file.removed - file.added, 0) for file in files)


def check_changes(plan: Plan, paths: tuple[str, ...]) -> str:
    """Return why a change of these paths is not allowed, or ""."""
    ruling = judge_changes(plan.policy, paths)
    return "" if ruling.verdict is Verdict.ALLOW else ruling.reason


def _action(work: Work) -> dict[str, Any]:
    capability = work.step.capability
    if capability in (Capability.NONE, Capability.SUBPLAN, Capability.BRANCH, Capability.GATE):
        # The steps and checks inside are judged when they start.
        return {}
    written = getattr(work.step, capability.value).model_dump(by_alias=True, exclude_defaults=True)
    action: dict[str, Any] = {
        name: resolve(value, work.lookup)
        for name, value in written.items()
        if name not in ("commit", "run") and not (name == "diff" and not is_one_reference(value))
    }
    if capability is Capability.SHELL:
        action["run"] = shell_command(str(written["run"]), work.lookup).shown
    # A commit message has placeholders of its own, and a diff is literal: neither says more when it is resolved.
    return {**written, **action}
