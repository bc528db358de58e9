"""Gate steps, which run checks and request approvals."""

import json
from dataclasses import dataclass, replace
from typing import Any

from activities.checks.runner import CheckRunner
from activities.plan.attempts.runner import fail_step, make_failure
from activities.plan.files import shell_command
from activities.plan.outputs import find_base_tree
from activities.plan.port import RunnerResult, Work
from activities.plan.runners.model import find_violations
from activities.workspace.differ import Differ
from activities.workspace.folders import store_folder_of
from activities.workspace.scope import TreeDiff
from tightloop.episode.check import Check
from tightloop.errors import InvalidRequestError
from tightloop.plan.action import Approval, DiffReview, GateAction, GateCheck, ShellAction
from tightloop.plan.commands import independent_hosts
from tightloop.plan.engine.state import VoteResult, choices, count_votes
from tightloop.plan.expression import parse_expression
from tightloop.plan.failing import FailureClass
from tightloop.plan.guard import find_effects, judge
from tightloop.plan.step import Step, StepKind
from tightloop.run.question import Question, QuestionKind
from tightloop.safety.rubric import Verdict
from tightloop.safety.scope import ALTERNATIVES, outside
from tightloop.value import ArtifactRef, clip, format_count, shorten
from tightloop.value.scrub import scrub

TAIL_CHARACTERS = 300
SHOWN = 3


@dataclass(frozen=True)
class Outcome:
    """The result of one gate check."""

    name: str
    passed: bool | None
    """True if the check passed. None if a person decides."""
    detail: str = ""
    timed_out: bool = False
    artifact: ArtifactRef | None = None
    command: str = ""
    """The resolved command if the check has a separate name."""

    def line(self) -> str:
        status = {True: "passed", False: "FAILED", None: "open"}[self.passed]
        name = f"{self.name} ({self.command})" if self.command else self.name
        return f"{status}: {shorten(name, 120)}" + (f" - {self.detail}" if self.detail else "")


def judge_command(work: Work, title: str, command: str, runner: CheckRunner) -> Outcome:
    """Run a command in the sandbox if the policy allows it. The check passes if the exit code is 0."""
    resolved = shell_command(command, work.lookup)
    # Judged as a shell step of its own, or commands in gates would escape the policy.
    step = Step(
        id=work.step.id, kind=StepKind.TOOL, shell=ShellAction(run=resolved.inlined_text), timeout_s=work.step.timeout_s
    )
    ruling = judge(work.plan.policy, step, find_effects(step, {"run": resolved.inlined_text}))
    if ruling.verdict is Verdict.DENY:
        return Outcome(title, False, ruling.reason)
    if ruling.verdict is Verdict.ASK:
        approval = work.action(GateAction).approval
        # The gate's full number of approvers must have agreed, whichever option they chose, and nobody rejected.
        if not count_votes(work.request.answers, approval.count if approval is not None else 1, ()).approved:
            return Outcome(title, None, ruling.reason)
    check = Check(run=resolved.script, name=title, timeout_s=work.step.timeout_s)
    result = runner.run(check, work.root, cancelled=work.cancelled, started=work.record_process)
    # Evidence is shown to people and leaves the record store.
    output = scrub(result.output.decode("utf-8", "replace"))
    artifact = work.store.put(output.encode(), name=shorten(title, 100), media_type="text/plain", as_file=True)
    if result.exit_code == 0:
        return Outcome(title, True, artifact=artifact)
    if result.timed_out:
        return Outcome(
            title, False, f"the check took longer than {work.step.timeout_s:g} s", timed_out=True, artifact=artifact
        )
    return Outcome(title, False, f"exit code {result.exit_code}: {_tail(output)}", artifact=artifact)


def _tail(output: str) -> str:
    return clip(" ".join(output.split()), TAIL_CHARACTERS)


def judge_invariant(work: Work, title: str, text: str) -> Outcome:
    """Evaluate an expression that must be true.

    Raises:
        InvalidRequestError: the expression cannot be evaluated.
    """
    expression = parse_expression(text)
    if expression.holds(work.lookup):
        return Outcome(title, True)
    values = ", ".join(f"{name} is {_shorten_value(work.lookup(name))}" for name in expression.references[:SHOWN])
    return Outcome(title, False, values)


def _shorten_value(value: Any) -> str:
    return shorten(scrub(str(value)), 60)


def judge_value(work: Work, title: str, check: GateCheck) -> Outcome:
    """Validate an output against a schema, or count the confirmations of its claims."""
    value = work.resolve(check.artifact)
    if check.schema_ is not None and (problems := find_violations(value, check.schema_)):
        return Outcome(title, False, shorten("; ".join(problems), TAIL_CHARACTERS))
    if check.confirmations:
        return _judge_claims(work, title, value, check.confirmations)
    empty = value in (None, "", [], {})
    return Outcome(title, not empty, "the value is empty" if empty else "")


def _judge_claims(work: Work, title: str, value: Any, minimum: int) -> Outcome:
    claims = value.get("claims") if isinstance(value, dict) else value
    if not isinstance(claims, list | tuple) or not claims:
        problem = 'no claims: expected a list like [{"claim": "...", "sources": ["https://..."]}]'
        return Outcome(title, False, problem)
    records = work.records
    weak: list[str] = []
    for number, claim in enumerate(claims, 1):
        if not isinstance(claim, dict):
            weak.append(f"claim {number} is not a mapping")
            continue
        tests = {str(test) for test in _as_list(claim.get("tests"))}
        # A test is a completed step of this plan, whose record allows repeating it.
        completed = sorted(test for test in tests if records.latest(work.scope.episode_id, test) is not None)
        hosts = sorted(independent_hosts(_as_list(claim.get("sources"))))
        if len(hosts) + len(completed) < minimum:
            text = shorten(str(claim.get("claim") or f"claim {number}"), 80)
            weak.append(
                f"'{text}' has {len(hosts) + len(completed)} of {minimum} confirmations "
                f"({', '.join([*hosts, *completed]) or 'none'})"
            )
    if not weak:
        return Outcome(title, True, f"{format_count(len(claims), 'claim')}, each with {minimum} or more confirmations")
    return Outcome(
        title,
        False,
        shorten(f"{len(weak)} of {len(claims)} claims are not confirmed: {'; '.join(weak)}", TAIL_CHARACTERS),
    )


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [] if value is None else [value]


def judge_diff(work: Work, title: str, review: DiffReview, differ: Differ) -> Outcome:
    """Check a change against the review's limits.

    The change covers everything since a step ended, or since the plan began.
    """
    base = find_base_tree(work.scope, review.since, work.records)
    if not base:
        problem = f"step '{review.since}' has no tree: the step has not completed, or does not read the tree"
        return Outcome(title, False, problem)
    tree = work.request.expected_tree or (work.tree.snapshot() if work.tree else "")
    if not tree:
        return Outcome(title, False, "the gate cannot read the tree. Set the gate's 'access' to 'reads'")
    diff = differ.compare(store_folder_of(work.scope), base, tree)
    patch = work.store.put(diff.patch, name="change", media_type="text/x-diff", as_file=True)
    problems = _beyond(diff, review)
    size = f"{format_count(diff.files_changed, 'file')}, {format_count(diff.lines_added + diff.lines_removed, 'line')}"
    return Outcome(title, not problems, shorten("; ".join(problems) or size, TAIL_CHARACTERS), artifact=patch)


def _beyond(diff: TreeDiff, review: DiffReview) -> list[str]:
    lines = diff.lines_added + diff.lines_removed
    # A rename changes both paths.
    paths = [path for change in diff.files for path in (change.path, change.renamed_from) if path]
    problems: list[str] = []
    if review.max_files is not None and diff.files_changed > review.max_files:
        problems.append(
            f"{format_count(diff.files_changed, 'file')} changed, but at most {review.max_files} may change"
        )
    if review.max_lines is not None and lines > review.max_lines:
        problems.append(f"{format_count(lines, 'line')} changed, but at most {review.max_lines} may change")
    for patterns in (review.only, review.never):
        # A long diff lists only some of its files, and one of the others might break the rule.
        if patterns and (len(patterns) > ALTERNATIVES or diff.files_changed > len(diff.files)):
            problems.append(
                f"the change cannot be compared with the patterns, because there are more than {ALTERNATIVES} "
                f"patterns or {len(diff.files)} files. Split the step"
            )
            return problems
    if review.only and (strange := outside(review.only, paths)):
        problems.append(f"changes outside {', '.join(review.only)}: {', '.join(strange[:SHOWN])}")
    if review.never:
        fine = set(outside(review.never, paths))
        if touched := [path for path in paths if path not in fine]:
            problems.append(f"these files must not be changed: {', '.join(touched[:SHOWN])}")
    return problems


LINES_LIMIT = 20
LINE_CHARACTERS = 200


class GateRunner:
    """Runs gate steps. A gate passes, fails with a reason, or asks for approval."""

    def __init__(self, runner: CheckRunner, differ: Differ) -> None:
        self._runner = runner
        self._differ = differ

    def preview(self, work: Work) -> str:
        """List the checks of the gate and the required approval."""
        action = work.action(GateAction)
        lines = [f"check {_title(work, check)}" for check in action.checks]
        if action.approval is not None or any(check.prose for check in action.checks):
            approval = action.approval or Approval()
            lines.append(
                f"ask {approval.role or 'anyone'} for approval ({approval.count} needed): {_question(work, action)}"
            )
        return "\n".join(lines) or "pass the gate, which has neither checks nor an approval"

    def run(self, work: Work) -> RunnerResult:
        """Run all checks, then evaluate the approvals.

        The checks run again after each answer, because an approval applies to the current tree.
        """
        action = work.action(GateAction)
        outcomes: list[Outcome] = []
        for check in action.checks:
            command = _resolve_command(work, check.command) if check.name else ""
            outcomes.append(replace(self._judge_check(work, check), command=command))
            if work.cancelled():
                return fail_step("the gate was stopped", FailureClass.TRANSIENT, command=_describe_gate(work, action))
        artifacts = {f"check-{n}": outcome.artifact for n, outcome in enumerate(outcomes, 1) if outcome.artifact}
        run_result = RunnerResult(
            outputs={
                "checks": [
                    {"name": outcome.name, "passed": outcome.passed, "detail": outcome.detail} for outcome in outcomes
                ]
            },
            artifacts=artifacts,
            command=_describe_gate(work, action),
            summary=f"{sum(outcome.passed is True for outcome in outcomes)} of {len(outcomes)} checks passed",
        )
        # Before any approval: people are asked only about changes that pass all checks.
        failed = [outcome for outcome in outcomes if outcome.passed is False]
        if failed:
            # Only a timeout may pass on a retry.
            kind = FailureClass.TRANSIENT if all(outcome.timed_out for outcome in failed) else FailureClass.POLICY
            reasons = "; ".join(outcome.line() for outcome in failed[:5])
            return replace(run_result, failure=make_failure(f"the gate did not pass: {reasons}", kind))
        asks = action.approval is not None or any(outcome.passed is None for outcome in outcomes)
        return self._apply_approval(work, action, outcomes, run_result) if asks else run_result

    def _judge_check(self, work: Work, check: GateCheck) -> Outcome:
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
        return (
            Outcome(title, None, "a person must judge this check")
            if check.prose
            else Outcome(title, False, "the check is empty")
        )

    def _apply_approval(
        self, work: Work, action: GateAction, outcomes: list[Outcome], run_result: RunnerResult
    ) -> RunnerResult:
        approval = action.approval or Approval()
        votes = count_votes(work.request.answers, approval.count, approval.options)
        if votes.rejection is not None:
            who = votes.rejection.by
            reason = f"rejected by {who}: {votes.rejection.text or 'no reason given'}"
            outputs = {**run_result.outputs, "approved": False, "rejected_by": who, "rationale": votes.rejection.text}
            return replace(run_result, outputs=outputs, failure=make_failure(reason, FailureClass.POLICY))
        if not votes.approved:
            return replace(run_result, question=self._put(work, action, approval, outcomes, votes))
        return replace(
            run_result,
            outputs={
                **run_result.outputs,
                "approved": True,
                "approved_by": list(votes.by),
                "rationale": votes.rationale,
                "option": votes.option.name if votes.option else "",
            },
            # None starts all following steps; a tuple skips those that the option does not name.
            chosen=votes.option.to if votes.option and any(option.to for option in approval.options) else None,
            summary=shorten(f"approved by {', '.join(votes.by) or 'someone'}", 200),
        )

    def _put(
        self, work: Work, action: GateAction, approval: Approval, outcomes: list[Outcome], votes: VoteResult
    ) -> Question:
        lines = [*_question(work, action).split("\n"), *([f"({votes.note})"] if votes.note else [])]
        refs = [_evidence(work, text) for text in action.evidence] + [
            outcome.artifact for outcome in outcomes if outcome.artifact
        ]
        return Question(
            id="",
            kind=QuestionKind.GATE,
            title=lines[0],
            evidence=(
                *lines[1:],
                *(shorten(outcome.line(), LINE_CHARACTERS) for outcome in outcomes[:LINES_LIMIT]),
                *(f"{ref.name}: {work.store.path(ref)}" for ref in refs),
            ),
            options=choices(approval.options),
            role=approval.role,
            count=approval.count,
            window=action.window,
            step=work.step.id,
        )


def _title(work: Work, check: GateCheck) -> str:
    diff = "size and location of the change" if check.diff is not None else ""
    return (
        check.name
        or _resolve_command(work, check.command)
        or check.invariant
        or check.prose
        or check.artifact
        or diff
        or "nothing"
    )


def _resolve_command(work: Work, command: str) -> str:
    """Return a command with its references resolved. If that fails, return the command as written."""
    try:
        return shell_command(command, work.lookup).inlined_text if command else ""
    except InvalidRequestError:
        return command  # the check reports the missing value


def _describe_gate(work: Work, action: GateAction) -> str:
    return "gate: " + "; ".join(_title(work, check) for check in action.checks)


def _question(work: Work, action: GateAction) -> str:
    if action.approval is not None and action.approval.question:
        return str(work.resolve(action.approval.question))
    prose = [check.prose for check in action.checks if check.prose]
    what = work.step.title or work.step.id
    return f"May the plan continue after '{what}'?" + "".join(f"\n- {line}" for line in prose)


def _evidence(work: Work, text: str) -> ArtifactRef:
    value: Any = work.resolve(text)
    plain = isinstance(value, str)
    content = value if plain else json.dumps(value, ensure_ascii=False, indent=1)
    kind = "text/plain" if plain else "application/json"
    return work.store.put(content.encode(), name=text, media_type=kind, as_file=True)
