"""The automatic checks of a gate, one function for each kind."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from activities.checks.port import CheckRunner
from activities.plan.attempts.references import find_base_tree
from activities.plan.port import Work
from activities.plan.quoting import shell_command
from activities.plan.records.file_records import open_file_records
from activities.plan.runners.model.schema import problems_with
from activities.workspace.folders import store_folder_of
from activities.workspace.trail import Differ, TreeDiff
from tightloop.episode.check import Check
from tightloop.plan.document.action import DiffReview, GateAction, GateCheck, ShellAction
from tightloop.plan.document.step import Step, StepKind
from tightloop.plan.engine.approval import tally
from tightloop.plan.language.expression import parse_expression
from tightloop.plan.rules.guard import acts_of, judge
from tightloop.plan.rules.network import independent_hosts
from tightloop.safety.scope import ALTERNATIVES, outside
from tightloop.safety.verdict import Verdict
from tightloop.value import clip, counted, shorten
from tightloop.value.artifact import ArtifactRef
from tightloop.value.scrub import scrub

TAIL_CHARACTERS = 300
SHOWN = 3


@dataclass(frozen=True)
class Outcome:
    """What a check showed."""

    name: str
    passed: bool | None
    """None: a person judges it."""
    detail: str = ""
    timed_out: bool = False
    artifact: ArtifactRef | None = None
    command: str = ""
    """As it was run, where the name does not say it."""

    def line(self) -> str:
        """Return it as a line for a person."""
        word = {True: "passed", False: "FAILED", None: "open"}[self.passed]
        name = f"{self.name} ({self.command})" if self.command else self.name
        return f"{word}: {shorten(name, 120)}" + (f" - {self.detail}" if self.detail else "")


def judge_command(work: Work, title: str, command: str, runner: CheckRunner) -> Outcome:
    """Run a command in the sandbox, if the policy lets it; it passes with exit code 0."""
    made = shell_command(command, work.lookup)
    step = Step(id=work.step.id, kind=StepKind.TOOL, shell=ShellAction(run=made.shown), timeout_s=work.step.timeout_s)
    ruling = judge(work.plan.policy, step, acts_of(step, {"run": made.shown}))
    if ruling.verdict is Verdict.DENY:
        return Outcome(title, False, ruling.reason)
    if ruling.verdict is Verdict.ASK:
        approval = work.action(GateAction).approval
        # As many as the gate asks for have to have said yes, whatever they chose, and nobody no.
        if not tally(work.answers, approval.count if approval is not None else 1, ()).approved:
            return Outcome(title, None, ruling.reason)
    check = Check(run=made.script, name=title, timeout_s=work.step.timeout_s)
    result = runner.run(check, work.root, cancelled=work.cancelled, started=work.started)
    # Evidence is shown to people, and travels further than the records.
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
    """Check an output by a schema, or count the confirmations of its claims."""
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
    known = open_file_records(Path(work.scope.workspace))
    weak: list[str] = []
    for number, claim in enumerate(claims, 1):
        if not isinstance(claim, dict):
            weak.append(f"claim {number} is not a mapping")
            continue
        tests = {str(test) for test in _listed(claim.get("tests"))}
        # A test is a step of this plan that completed: its record says how it is done again.
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
    """Compare the change since a step ended, or since the plan began, with its bounds."""
    base = find_base_tree(work.scope, review.since, open_file_records(Path(work.scope.workspace)))
    if not base:
        problem = f"step '{review.since}' has no tree: it has not completed, or does not read it"
        return Outcome(title, False, problem)
    tree = work.expected_tree or (work.tree.snapshot() if work.tree else "")
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
