"""Gate steps: checks and approvals."""

import json
from dataclasses import dataclass, replace
from typing import Any

from activities.checks.activity import CheckRunner
from activities.plan.attempts.runner import fail_step, make_failure
from activities.plan.files import shell_command
from activities.plan.outputs import find_base_tree
from activities.plan.port import RunnerResult, Work
from activities.plan.runners.model import problems_with
from activities.workspace.folders import store_folder_of
from activities.workspace.scope import Differ, TreeDiff
from tightloop.episode.check import Check
from tightloop.errors import InvalidRequestError
from tightloop.plan.action import Approval, DiffReview, GateAction, GateCheck, ShellAction
from tightloop.plan.commands import independent_hosts
from tightloop.plan.engine.state import Tally, choices, tally
from tightloop.plan.expression import parse_expression
from tightloop.plan.failing import FailureClass
from tightloop.plan.guard import acts_of, judge
from tightloop.plan.step import Step, StepKind
from tightloop.run.question import Question, QuestionKind
from tightloop.safety.rubric import Verdict
from tightloop.safety.scope import ALTERNATIVES, outside
from tightloop.value import ArtifactRef, clip, counted, shorten
from tightloop.value.scrub import scrub

TAIL_CHARACTERS = 300
SHOWN = 3


@dataclass(frozen=True)
class Outcome:
    """Result of one gate check."""

    name: str
    passed: bool | None
    """None: a person decides."""
    detail: str = ""
    timed_out: bool = False
    artifact: ArtifactRef | None = None
    command: str = ""
    """The resolved command, if the check has a separate name."""

    def line(self) -> str:
        word = {True: "passed", False: "FAILED", None: "open"}[self.passed]
        name = f"{self.name} ({self.command})" if self.command else self.name
        return f"{word}: {shorten(name, 120)}" + (f" - {self.detail}" if self.detail else "")


def judge_command(work: Work, title: str, command: str, runner: CheckRunner) -> Outcome:
    """Run a command in the sandbox if the policy allows it; it passes with exit code 0."""
    made = shell_command(command, work.lookup)
    step = Step(id=work.step.id, kind=StepKind.TOOL, shell=ShellAction(run=made.shown), timeout_s=work.step.timeout_s)
    ruling = judge(work.plan.policy, step, acts_of(step, {"run": made.shown}))
    if ruling.verdict is Verdict.DENY:
        return Outcome(title, False, ruling.reason)
    if ruling.verdict is Verdict.ASK:
        approval = work.action(GateAction).approval
        # The gate's full number of approvers must have agreed, whichever option they chose, and nobody rejected.
        if not tally(work.request.answers, approval.count if approval is not None else 1, ()).approved:
            return Outcome(title, None, ruling.reason)
    check = Check(run=made.script, name=title, timeout_s=work.step.timeout_s)
    result = runner.run(check, work.root, cancelled=work.cancelled, started=work.started)
    # Evidence is shown to people and leaves the record store.
    output = scrub(result.output.decode("utf-8", "replace"))
    kept = work.store.put(output.encode(), name=shorten(title, 100), media_type="text/plain", as_file=True)
    if result.exit_code == 0:
        return Outcome(title, True, artifact=kept)
    if result.timed_out:
        return Outcome(title, False, f"it took longer than {work.step.timeout_s:g} s", timed_out=True, artifact=kept)
    return Outcome(title, False, f"exit code {result.exit_code}: {_tail(output)}", artifact=kept)


def _tail(output: str) -> str:
    return clip(" ".join(output.split()), TAIL_CHARACTERS)


def judge_invariant(work: Work, title: str, text: str) -> Outcome:
    """Evaluate an expression.

    Raises:
        InvalidRequestError: it cannot be evaluated.
    """
    expression = parse_expression(text)
    if expression.holds(work.lookup):
        return Outcome(title, True)
    values = ", ".join(f"{name} is {_shown(work.lookup(name))}" for name in expression.references[:SHOWN])
    return Outcome(title, False, values)


def _shown(value: Any) -> str:
    return shorten(scrub(str(value)), 60)


def judge_value(work: Work, title: str, check: GateCheck) -> Outcome:
    """Validate an output against a schema, or count the confirmations of its claims."""
    value = work.resolve(check.artifact)
    if check.schema_ is not None and (problems := problems_with(value, check.schema_)):
        return Outcome(title, False, shorten("; ".join(problems), TAIL_CHARACTERS))
    if check.confirmations:
        return _confirmed(work, title, value, check.confirmations)
    empty = value in (None, "", [], {})
    return Outcome(title, not empty, "it is empty" if empty else "")


def _confirmed(work: Work, title: str, value: Any, wanted: int) -> Outcome:
    claims = value.get("claims") if isinstance(value, dict) else value
    if not isinstance(claims, list | tuple) or not claims:
        problem = 'no claims: a list such as [{"claim": "...", "sources": ["https://..."]}] is needed'
        return Outcome(title, False, problem)
    known = work.records
    weak: list[str] = []
    for number, claim in enumerate(claims, 1):
        if not isinstance(claim, dict):
            weak.append(f"claim {number} is not a mapping")
            continue
        tests = {str(test) for test in _listed(claim.get("tests"))}
        # A test is a completed step of this plan, whose record allows repeating it.
        done = sorted(test for test in tests if known.latest(work.scope.episode_id, test) is not None)
        hosts = sorted(independent_hosts(_listed(claim.get("sources"))))
        if len(hosts) + len(done) < wanted:
            said = shorten(str(claim.get("claim") or f"claim {number}"), 80)
            weak.append(f"'{said}' has {len(hosts) + len(done)} of {wanted} ({', '.join([*hosts, *done]) or 'none'})")
    if not weak:
        return Outcome(title, True, f"{counted(len(claims), 'claim')}, each with {wanted} or more")
    return Outcome(title, False, shorten(f"{len(weak)} of {len(claims)} claims: {'; '.join(weak)}", TAIL_CHARACTERS))


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [] if value is None else [value]


def judge_diff(work: Work, title: str, review: DiffReview, differ: Differ) -> Outcome:
    """Check the change since a step ended, or since the plan began, against the review's bounds."""
    base = find_base_tree(work.scope, review.since, work.records)
    if not base:
        problem = f"step '{review.since}' has no tree: it has not completed, or does not read it"
        return Outcome(title, False, problem)
    tree = work.request.expected_tree or (work.tree.snapshot() if work.tree else "")
    if not tree:
        return Outcome(title, False, "the gate does not see the tree: set its access to reads")
    diff = differ.compare(store_folder_of(work.scope), base, tree)
    patch = work.store.put(diff.patch, name="change", media_type="text/x-diff", as_file=True)
    problems = _beyond(diff, review)
    size = f"{counted(diff.files_changed, 'file')}, {counted(diff.lines_added + diff.lines_removed, 'line')}"
    return Outcome(title, not problems, shorten("; ".join(problems) or size, TAIL_CHARACTERS), artifact=patch)


def _beyond(diff: TreeDiff, review: DiffReview) -> list[str]:
    lines = diff.lines_added + diff.lines_removed
    paths = [path for change in diff.files for path in (change.path, change.renamed_from) if path]
    found: list[str] = []
    if review.max_files is not None and diff.files_changed > review.max_files:
        found.append(f"{counted(diff.files_changed, 'file')}, at most {review.max_files} may change")
    if review.max_lines is not None and lines > review.max_lines:
        found.append(f"{counted(lines, 'line')}, at most {review.max_lines} may change")
    for patterns in (review.only, review.never):
        if patterns and (len(patterns) > ALTERNATIVES or diff.files_changed > len(diff.files)):
            found.append(
                f"more than {ALTERNATIVES} patterns or {len(diff.files)} files cannot be compared: split the step"
            )
            return found
    if review.only and (strange := outside(review.only, paths)):
        found.append(f"outside of {', '.join(review.only)}: {', '.join(strange[:SHOWN])}")
    if review.never:
        fine = set(outside(review.never, paths))
        if touched := [path for path in paths if path not in fine]:
            found.append(f"never to be changed: {', '.join(touched[:SHOWN])}")
    return found


LINES_LIMIT = 20
LINE_CHARACTERS = 200


class GateRunner:
    """Runs gate steps: passes, fails with the reason, or asks for approval."""

    def __init__(self, runner: CheckRunner, differ: Differ) -> None:
        self._runner = runner
        self._differ = differ

    def preview(self, work: Work) -> str:
        """List the checks and the required approval."""
        action = work.action(GateAction)
        lines = [f"check {_title(work, check)}" for check in action.checks]
        if action.approval is not None or any(check.prose for check in action.checks):
            approval = action.approval or Approval()
            lines.append(f"ask {approval.count} of {approval.role or 'anybody'}: {_question(work, action)}")
        return "\n".join(lines) or "an open gate: it has neither checks nor an approval"

    def run(self, work: Work) -> RunnerResult:
        """Run all checks, then evaluate the approvals.

        Checks run again after each answer, because an approval applies to the current tree.
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
            # Only a timeout may pass on a retry.
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
        said = tally(work.request.answers, approval.count, approval.options)
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
    """Return the command as it will run, or as written if it cannot be resolved."""
    try:
        return shell_command(command, work.lookup).shown if command else ""
    except InvalidRequestError:
        return command  # the check reports the missing value


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
