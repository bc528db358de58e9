"""The automatic checks of a gate, one function for each kind."""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from activities.plan.port import Guard, Judgement, ProjectRecords, Work
from activities.plan.references import base_tree
from activities.plan.runners.quoting import shell_command
from activities.plan.runners.schema import problems_with
from activities.tracking.port import Differ, TreeDiff
from activities.verification.port import CheckRunner
from tightloop.artifact import ArtifactRef
from tightloop.check import Check
from tightloop.plan.action import DiffReview, GateCheck, ShellAction
from tightloop.plan.approval import tally
from tightloop.plan.language.expression import parse_expression
from tightloop.plan.model import Step, StepKind
from tightloop.plan.rules.network import independent_hosts
from tightloop.scope import ALTERNATIVES, outside
from tightloop.scrub import scrub
from tightloop.value import clip, shorten

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

    def line(self) -> str:
        """Return it as a line for a person."""
        word = {True: "passed", False: "FAILED", None: "open"}[self.passed]
        return f"{word}: {shorten(self.name, 120)}" + (f" - {self.detail}" if self.detail else "")

    def as_json(self) -> dict[str, Any]:
        """Return it as an output of the gate."""
        return {"name": self.name, "passed": self.passed, "detail": self.detail}


def judge_command(work: Work, title: str, command: str, runner: CheckRunner, guard: Guard) -> Outcome:
    """Run a command in the sandbox, if the policy lets it; it passes with exit code 0."""
    made = shell_command(command, work.lookup)
    ruling = guard.before(work.plan, _as_shell_step(work.step, made.shown), {"run": made.shown})
    if ruling.judgement is Judgement.DENY:
        return Outcome(title, False, ruling.reason)
    if ruling.judgement is Judgement.ASK and not _agreed(work):
        return Outcome(title, None, ruling.reason)
    values = "".join(f"{name}={shlex.quote(value)}\n" for name, value in made.variables.items())
    check = Check(run=values + made.text, name=title, timeout_s=work.step.timeout_s)
    result = runner.run(check, work.root, cancelled=work.cancelled, started=work.started)
    # Evidence is shown to people, and travels further than the records.
    output = scrub(result.output.decode("utf-8", "replace"))
    kept = work.store.put(output.encode(), name=shorten(title, 100), media_type="text/plain")
    if result.exit_code == 0:
        return Outcome(title, True, artifact=kept)
    if result.timed_out:
        return Outcome(title, False, f"it took longer than {work.step.timeout_s:g} s", timed_out=True, artifact=kept)
    return Outcome(title, False, f"exit code {result.exit_code}: {_tail(output)}", artifact=kept)


def _agreed(work: Work) -> bool:
    """Return whether as many people as the gate asks for have said yes, whatever they chose, and nobody no."""
    approval = work.step.gate.approval if work.step.gate is not None else None
    return tally(work.decisions, approval.count if approval is not None else 1, ()).approved


def _as_shell_step(step: Step, command: str) -> Step:
    """Return a step that does nothing but the command; approvals of the gate itself are another matter."""
    return Step(id=step.id, kind=StepKind.TOOL, shell=ShellAction(run=command), timeout_s=step.timeout_s)


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


def judge_value(work: Work, title: str, check: GateCheck, records: ProjectRecords) -> Outcome:
    """Hold an output against a schema, and count the confirmations of its claims."""
    value = work.resolve(check.artifact)
    if check.schema_ is not None and (problems := problems_with(value, check.schema_)):
        return Outcome(title, False, shorten("; ".join(problems), TAIL_CHARACTERS))
    if check.confirmations:
        return _confirmed(work, title, value, check.confirmations, records)
    empty = value in (None, "", [], {})
    return Outcome(title, not empty, "it is empty" if empty else "")


def _confirmed(work: Work, title: str, value: Any, wanted: int, records: ProjectRecords) -> Outcome:
    claims = value.get("claims") if isinstance(value, dict) else value
    if not isinstance(claims, list | tuple) or not claims:
        return Outcome(
            title, False, 'no claims: a list such as [{"claim": "...", "sources": ["https://..."]}] is needed'
        )
    known = records(Path(work.scope.workspace))
    weak: list[str] = []
    for number, claim in enumerate(claims, 1):
        if not isinstance(claim, dict):
            weak.append(f"claim {number} is no mapping")
            continue
        tests = {str(test) for test in _listed(claim.get("tests"))}
        # A test is a step of this plan that completed: its record says how it is done again.
        done = sorted(test for test in tests if known.latest(work.scope.episode_id, test) is not None)
        hosts = sorted(independent_hosts(_listed(claim.get("sources"))))
        if len(hosts) + len(done) < wanted:
            said = shorten(str(claim.get("claim") or f"claim {number}"), 80)
            weak.append(f"'{said}' has {len(hosts) + len(done)} of {wanted} ({', '.join([*hosts, *done]) or 'none'})")
    if not weak:
        return Outcome(title, True, f"{len(claims)} claims, each with {wanted} or more")
    return Outcome(title, False, shorten(f"{len(weak)} of {len(claims)} claims: {'; '.join(weak)}", TAIL_CHARACTERS))


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [] if value is None else [value]


def judge_diff(work: Work, title: str, review: DiffReview, differ: Differ, records: ProjectRecords) -> Outcome:
    """Hold the change since a step ended, or since the plan began, against its bounds."""
    base = base_tree(work.scope, review.since, records(Path(work.scope.workspace)))
    if not base:
        return Outcome(
            title, False, f"there is no tree of step '{review.since}': it has not completed, or does not read it"
        )
    tree = work.expected_tree or (work.tree.snapshot() if work.tree else "")
    if not tree:
        return Outcome(title, False, "the gate does not see the tree: set its access to reads")
    diff = differ.compare(work.root, base, tree)
    patch = work.store.put(diff.patch, name="change", media_type="text/x-diff")
    problems = _beyond(diff, review)
    size = f"{diff.files_changed} files, {diff.lines_added + diff.lines_removed} lines"
    return Outcome(title, not problems, shorten("; ".join(problems) or size, TAIL_CHARACTERS), artifact=patch)


def _beyond(diff: TreeDiff, review: DiffReview) -> list[str]:
    lines = diff.lines_added + diff.lines_removed
    paths = [path for change in diff.files for path in (change.path, change.renamed_from) if path]
    found: list[str] = []
    if review.max_files is not None and diff.files_changed > review.max_files:
        found.append(f"{diff.files_changed} files, at most {review.max_files} may change")
    if review.max_lines is not None and lines > review.max_lines:
        found.append(f"{lines} lines, at most {review.max_lines} may change")
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
