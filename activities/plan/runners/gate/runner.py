"""The capability `gate`: automatic checks, then people where they are asked for."""

import json
from dataclasses import replace
from typing import Any

from activities.checks.port import CheckRunner
from activities.plan.attempts.contract import fail_step, make_failure
from activities.plan.port import RunnerResult, Work
from activities.plan.quoting import shell_command
from activities.plan.runners.gate.check import Outcome, judge_command, judge_diff, judge_invariant, judge_value
from activities.workspace.trail import Differ
from tightloop.errors import InvalidRequestError
from tightloop.plan.document.action import Approval, GateAction, GateCheck
from tightloop.plan.document.failing import FailureClass
from tightloop.plan.engine.approval import Tally, choices, tally
from tightloop.question import Question, QuestionKind
from tightloop.value import shorten
from tightloop.value.artifact import ArtifactRef

LINES_LIMIT = 20
LINE_CHARACTERS = 200


class GateRunner:
    """Opens a gate, or says why it stays shut."""

    def __init__(self, runner: CheckRunner, differ: Differ) -> None:
        """Take what runs commands and compares trees."""
        self._runner = runner
        self._differ = differ

    def preview(self, work: Work) -> str:
        """Return the checks, and who would be asked."""
        action = work.action(GateAction)
        lines = [f"check {_title(work, check)}" for check in action.checks]
        if action.approval is not None or any(check.prose for check in action.checks):
            approval = action.approval or Approval()
            lines.append(f"ask {approval.count} of {approval.role or 'anybody'}: {_question(work, action)}")
        return "\n".join(lines) or "an open gate: it has neither checks nor an approval"

    def run(self, work: Work) -> RunnerResult:
        """Judge all checks, then the answers of people; see the port.

        Checks are run again when an answer has come: it counts for the tree that is there then.
        """
        action = work.action(GateAction)
        outcomes: list[Outcome] = []
        for check in action.checks:
            command = _resolved(work, check.command) if check.name else ""
            outcomes.append(replace(self._judged(work, check), command=command))
            if work.cancelled():
                return fail_step("the gate was stopped", FailureClass.TRANSIENT, command=_told(work, action))
        artifacts = {f"check-{n}": one.artifact for n, one in enumerate(outcomes, 1) if one.artifact}
        done = RunnerResult(
            outputs={"checks": [{"name": one.name, "passed": one.passed, "detail": one.detail} for one in outcomes]},
            artifacts=artifacts,
            command=_told(work, action),
            summary=f"{sum(one.passed is True for one in outcomes)} of {len(outcomes)} checks passed",
        )
        failed = [one for one in outcomes if one.passed is False]
        if failed:
            # Only a time limit may hold when it is tried again.
            kind = FailureClass.TRANSIENT if all(one.timed_out for one in failed) else FailureClass.POLICY
            reasons = "; ".join(one.line() for one in failed[:5])
            return replace(done, failure=make_failure(f"the gate stays shut: {reasons}", kind))
        asks = action.approval is not None or any(one.passed is None for one in outcomes)
        return self._asked(work, action, outcomes, done) if asks else done

    def _judged(self, work: Work, check: GateCheck) -> Outcome:
        title = _title(work, check)
        try:
            if check.command:
                return judge_command(work, title, check.command, self._runner)
            if check.invariant:
                return judge_invariant(work, title, check.invariant)
            if check.artifact:
                return judge_value(work, title, check)
            if check.diff is not None:
                return judge_diff(work, title, check.diff, self._differ)
        except InvalidRequestError as error:
            return Outcome(title, False, error.message)
        return Outcome(title, None, "a person judges it") if check.prose else Outcome(title, False, "it checks nothing")

    def _asked(self, work: Work, action: GateAction, outcomes: list[Outcome], done: RunnerResult) -> RunnerResult:
        approval = action.approval or Approval()
        said = tally(work.answers, approval.count, approval.options)
        if said.rejection is not None:
            who = said.rejection.by
            reason = f"{who} said no: {said.rejection.text or 'no reason given'}"
            outputs = {**done.outputs, "approved": False, "rejected_by": who, "rationale": said.rejection.text}
            return replace(done, outputs=outputs, failure=make_failure(reason, FailureClass.POLICY))
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
    ) -> Question:
        lines = [*_question(work, action).split("\n"), *([f"({said.note})"] if said.note else [])]
        found = [_evidence(work, text) for text in action.evidence] + [one.artifact for one in outcomes if one.artifact]
        return Question(
            id="",
            kind=QuestionKind.GATE,
            title=lines[0],
            evidence=(
                *lines[1:],
                *(shorten(one.line(), LINE_CHARACTERS) for one in outcomes[:LINES_LIMIT]),
                *(f"{ref.name}: {work.store.path(ref)}" for ref in found),
            ),
            options=choices(approval.options),
            role=approval.role,
            count=approval.count,
            window=action.window,
            step=work.step.id,
        )


def _title(work: Work, check: GateCheck) -> str:
    diff = "size and place of the change" if check.diff is not None else ""
    return (
        check.name
        or _resolved(work, check.command)
        or check.invariant
        or check.prose
        or check.artifact
        or diff
        or "nothing"
    )


def _resolved(work: Work, command: str) -> str:
    """Return a command as it is run."""
    try:
        return shell_command(command, work.lookup).shown if command else ""
    except InvalidRequestError:
        return command  # the check says what is missing


def _told(work: Work, action: GateAction) -> str:
    return "gate: " + "; ".join(_title(work, check) for check in action.checks)


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
    kind = "text/plain" if plain else "application/json"
    return work.store.put(content.encode(), name=text, media_type=kind, as_file=True)
