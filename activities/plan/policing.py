"""The policy of a plan at work: before a step acts, and over what it changed."""

from typing import Any

from activities.plan.contract import failure
from activities.plan.port import Done, Guard, Judgement, Work
from activities.plan.runners.quoting import shell_command
from tightloop.plan.action import ShellAction
from tightloop.plan.language.reference import is_one_reference, resolve
from tightloop.plan.model import Capability, FailureClass, Plan, Step
from tightloop.plan.result import GateQuestion, PersonDecision


class Policing:
    """Asks the guard, and turns its rulings into what becomes of a step."""

    def __init__(self, guard: Guard) -> None:
        """Take the guard."""
        self._guard = guard

    def stopped(self, work: Work) -> Done | None:
        """Return what becomes of a step that the policy does not let start: refused, or a person is asked.

        Raises:
            ReferenceMissingError: the action refers to a value that is not there.
        """
        ruling = self._guard.before(work.plan, work.step, _action(work))
        if ruling.judgement is Judgement.ALLOW:
            return None
        if ruling.judgement is Judgement.DENY:
            return Done(failure=failure(ruling.reason, FailureClass.POLICY))
        if (rejection := _rejection(work.decisions)) is not None:
            return Done(failure=failure(_words(rejection), FailureClass.POLICY))
        if any(decision.approved for decision in work.decisions):
            return None
        return Done(question=GateQuestion(text=ruling.reason), summary=f"waits for approval: {ruling.reason}")

    def forbidden(self, work: Work, command: str) -> str:
        """Return why a command that takes a step back must not be run, or ""; nobody is asked again about it."""
        shown = shell_command(command, work.lookup).shown
        step = Step(id=work.step.id, shell=ShellAction(run=shown))
        ruling = self._guard.before(work.plan, step, {"run": shown})
        return ruling.reason if ruling.judgement is Judgement.DENY else ""

    def refused(self, plan: Plan, paths: tuple[str, ...]) -> str:
        """Return why a change of these paths is not allowed, or ""."""
        ruling = self._guard.changed(plan, paths)
        return "" if ruling.judgement is Judgement.ALLOW else ruling.reason


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


def _rejection(decisions: tuple[PersonDecision, ...]) -> PersonDecision | None:
    return next((decision for decision in decisions if not decision.approved), None)


def _words(decision: PersonDecision) -> str:
    why = f": {decision.rationale}" if decision.rationale else ""
    return f"{decision.by or 'somebody'} refused it{why}"
