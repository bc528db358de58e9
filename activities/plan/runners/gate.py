"""The capability `gate`: automatic checks, then people where they are asked for."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from activities.plan.port import Done, Guard, ProjectRecords, Work
from activities.plan.runners.gate_check import Outcome, judge_command, judge_diff, judge_invariant, judge_value
from activities.tracking.port import Differ
from activities.verification.port import CheckRunner
from tightloop.artifact import ArtifactRef
from tightloop.errors import InvalidRequestError
from tightloop.plan.action import Approval, GateAction, GateCheck
from tightloop.plan.approval import Tally, tally
from tightloop.plan.model import FailureClass
from tightloop.plan.result import REASON_CHARACTERS, GateQuestion, StepFailure
from tightloop.value import shorten

LINES_LIMIT = 20
LINE_CHARACTERS = 200
QUESTION_CHARACTERS = 1_500
EVIDENCE_LIMIT = 20


class GateRunner:
    """Opens a gate, or says why it stays shut."""

    def __init__(self, runner: CheckRunner, differ: Differ, records: ProjectRecords, guard: Guard) -> None:
        """Take what runs commands, compares trees, knows earlier steps, and judges commands by the policy."""
        self._guard = guard
        self._runner = runner
        self._differ = differ
        self._records = records

    def preview(self, work: Work) -> str:
        """Return the checks, and who would be asked."""
        action = _action(work)
        lines = [f"check {_title(check)}" for check in action.checks]
        if _asks(action):
            approval = action.approval or Approval()
            lines.append(f"ask {approval.count} of {approval.role or 'anybody'}: {_question(work, action)}")
        return "\n".join(lines) or "an open gate: it has neither checks nor an approval"

    def run(self, work: Work) -> Done:
        """Judge all checks, then the answers of people; see the port.

        Checks are made anew when an answer has come: it counts for the tree that is there then.
        """
        action = _action(work)
        outcomes: list[Outcome] = []
        for check in action.checks:
            outcomes.append(self._judged(work, check))
            if work.cancelled():
                stopped = StepFailure(failure_class=FailureClass.TRANSIENT, reason="the gate was stopped")
                return Done(failure=stopped, command=_told(action))
        artifacts = {f"check-{n}": one.artifact for n, one in enumerate(outcomes, 1) if one.artifact}
        done = Done(
            outputs={"checks": [one.as_json() for one in outcomes]},
            artifacts=artifacts,
            command=_told(action),
            summary=f"{sum(one.passed is True for one in outcomes)} of {len(outcomes)} checks passed",
        )
        failed = [one for one in outcomes if one.passed is False]
        if failed:
            return replace(done, failure=_shut(failed))
        asks = action.approval is not None or any(one.passed is None for one in outcomes)
        return self._asked(work, action, outcomes, done) if asks else done

    def _judged(self, work: Work, check: GateCheck) -> Outcome:
        title = _title(check)
        judge: Callable[[], Outcome]
        if check.command:
            judge = lambda: judge_command(work, title, check.command, self._runner, self._guard)  # noqa: E731
        elif check.invariant:
            judge = lambda: judge_invariant(work, title, check.invariant)  # noqa: E731
        elif check.artifact:
            judge = lambda: judge_value(work, title, check, self._records)  # noqa: E731
        elif check.diff is not None:
            review = check.diff
            judge = lambda: judge_diff(work, title, review, self._differ, self._records)  # noqa: E731
        else:
            return (
                Outcome(title, None, "a person judges it")
                if check.prose
                else Outcome(title, False, "it checks nothing")
            )
        try:
            return judge()
        except InvalidRequestError as error:
            return Outcome(title, False, error.message)

    def _asked(self, work: Work, action: GateAction, outcomes: list[Outcome], done: Done) -> Done:
        approval = action.approval or Approval()
        said = tally(work.decisions, approval.count, approval.options)
        if said.rejection is not None:
            who = said.rejection.by or "somebody"
            reason = shorten(f"{who} said no: {said.rejection.rationale or 'no reason given'}", REASON_CHARACTERS)
            outputs = {**done.outputs, "approved": False, "rejected_by": who, "rationale": said.rejection.rationale}
            return replace(done, outputs=outputs, failure=StepFailure(failure_class=FailureClass.POLICY, reason=reason))
        if not said.approved:
            return replace(done, question=self._put(work, action, approval, outcomes, said))
        return replace(
            done,
            outputs={
                **done.outputs,
                "approved": True,
                "approved_by": list(said.by),
                "rationale": said.rationale,
                "option": said.option.name if said.option else "",
            },
            chosen=said.option.to if said.option and any(option.to for option in approval.options) else None,
            summary=shorten(f"approved by {', '.join(said.by) or 'somebody'}", 200),
        )

    def _put(
        self, work: Work, action: GateAction, approval: Approval, outcomes: list[Outcome], said: Tally
    ) -> GateQuestion:
        text = _question(work, action) + (f"\n({said.note})" if said.note else "")
        return GateQuestion(
            text=shorten(text, QUESTION_CHARACTERS),
            role=approval.role,
            count=approval.count,
            window=action.window,
            options=approval.options,
            checks=tuple(shorten(one.line(), LINE_CHARACTERS) for one in outcomes[:LINES_LIMIT]),
            evidence=tuple(_evidence(work, text) for text in action.evidence[:EVIDENCE_LIMIT])
            + tuple(one.artifact for one in outcomes[:EVIDENCE_LIMIT] if one.artifact),
        )


def _action(work: Work) -> GateAction:
    assert work.step.gate is not None
    return work.step.gate


def _asks(action: GateAction) -> bool:
    return action.approval is not None or any(check.prose for check in action.checks)


def _title(check: GateCheck) -> str:
    diff = "size and place of the change" if check.diff is not None else ""
    return check.name or check.command or check.invariant or check.prose or check.artifact or diff or "nothing"


def _told(action: GateAction) -> str:
    return "gate: " + "; ".join(_title(check) for check in action.checks)


def _question(work: Work, action: GateAction) -> str:
    if action.approval is not None and action.approval.question:
        return str(work.resolve(action.approval.question))
    prose = [check.prose for check in action.checks if check.prose]
    what = work.step.title or work.step.id
    return f"May the plan go on after '{what}'?" + "".join(f"\n- {line}" for line in prose)


def _evidence(work: Work, text: str) -> ArtifactRef:
    value: Any = work.resolve(text)
    plain = isinstance(value, str)
    content = value if plain else json.dumps(value, ensure_ascii=False, indent=1)
    return work.store.put(content.encode(), name=text, media_type="text/plain" if plain else "application/json")


def _shut(failed: list[Outcome]) -> StepFailure:
    """Return why the gate stays shut. Time limits alone may pass when tried again."""
    waits = all(one.timed_out for one in failed)
    reasons = "; ".join(one.line() for one in failed[:5])
    return StepFailure(
        failure_class=FailureClass.TRANSIENT if waits else FailureClass.POLICY,
        reason=shorten(f"the gate stays shut: {reasons}", REASON_CHARACTERS),
    )
