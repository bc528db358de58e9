"""The policy of a plan at work: before a step acts, and over what it changed."""

from typing import Any

from activities.plan.attempts.contract import fail_step
from activities.plan.port import RunnerResult, Work
from activities.plan.quoting import shell_command
from tightloop.plan.document.action import ShellAction
from tightloop.plan.document.plan import Plan
from tightloop.plan.document.step import Capability, FailureClass, Step
from tightloop.plan.engine.approval import choices, tally
from tightloop.plan.language.reference import is_one_reference, resolve
from tightloop.plan.rules.guard import acts_of, judge, judge_changes
from tightloop.question import Question, QuestionKind
from tightloop.safety.verdict import Verdict


def check_step(work: Work) -> RunnerResult | None:
    """Return the refusal of a step that the policy denies, or the question of one that a person has to allow.

    Raises:
        ReferenceMissingError: the action refers to a value that is not there.
    """
    ruling = judge(work.plan.policy, work.step, acts_of(work.step, _action(work)))
    if ruling.verdict is Verdict.ALLOW:
        return None
    if ruling.verdict is Verdict.DENY:
        return fail_step(ruling.reason, FailureClass.POLICY)
    said = tally(work.answers, 1, ())
    if said.rejection is not None:
        rejection = said.rejection
        why = f": {rejection.text}" if rejection.text else ""
        return fail_step(f"{rejection.by} refused it{why}", FailureClass.POLICY)
    if said.approved:
        return None
    title = f"may {work.step.title or work.step.id} act? {ruling.reason}"
    question = Question(id="", kind=QuestionKind.POLICY, title=title, options=choices(), step=work.step.id)
    return RunnerResult(question=question, summary=f"waits for approval: {ruling.reason}")


def check_command(work: Work, command: str) -> str:
    """Return why a command that takes a step back must not be run, or ""; nobody is asked again about it."""
    shown = shell_command(command, work.lookup).shown
    step = Step(id=work.step.id, shell=ShellAction(run=shown))
    ruling = judge(work.plan.policy, step, acts_of(step, {"run": shown}))
    return ruling.reason if ruling.verdict is Verdict.DENY else ""


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
