"""Recording an iteration's lessons in the memory."""

import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from activities.artifacts.port import ArtifactStore, find_model
from activities.memory.port import BestEffortMemory
from activities.workspace.scope import TreeDiff
from tightloop.episode.check import CheckReport, CheckResult
from tightloop.episode.checkpoint import CheckpointRecord
from tightloop.episode.model import CheckpointFile
from tightloop.episode.planning import (
    PlanRecord,
    PlanVerdict,
    failure_signature,
    list_outcomes,
    pattern_of,
    problem_type,
    seen_failures,
    turned_green,
)
from tightloop.episode.progress.tracking import is_test
from tightloop.executor.message import PlanMessage
from tightloop.ledger.model import TrailEvent
from tightloop.memory import STEPS_LIMIT, TITLE_CHARACTERS, Outcome, Pattern
from tightloop.safety.rubric import Finding
from tightloop.value import shorten

if TYPE_CHECKING:
    from tightloop.database.project import ProjectLedger

KIND = "memory"
"""Kind of the timeline entry about an unusable memory."""
_FILE = re.compile(r"^diff --git .*(?:\n(?!diff --git ).*)*", re.MULTILINE)
_PATH = re.compile(r"^\+\+\+ (?:b/)?(.+)$|^--- (?:a/)?(.+)$", re.MULTILINE)


class Moment(NamedTuple):
    """The identity of an iteration within an episode."""

    episode_id: str
    iteration: int
    run: str
    at: datetime

    @property
    def key(self) -> str:
        """Key of the iteration's checkpoint. It is the same for all attempts."""
        return f"{self.run}/{self.iteration}"


class EarlierPlan(NamedTuple):
    """An earlier iteration that led to the current files."""

    plan: PlanMessage
    before: CheckReport
    """Checks on which the plan was based."""


class Lesson(NamedTuple):
    """An iteration's results."""

    plan: PlanRecord | None
    """The delivered plan. None if nothing was delivered."""
    before: CheckReport | None
    """Checks on which the plan was based."""
    after: CheckReport | None
    """Check results of the delivered tree."""
    diff: TreeDiff
    findings: Sequence[Finding]
    """Findings that a person must see."""
    earlier: Iterable[EarlierPlan] = ()
    """Earlier iterations that changed files, newest first."""


def record_lesson(memory: BestEffortMemory, lesson: Lesson, moment: Moment) -> None:
    """Store an iteration's failures and solutions, and whether recalled patterns helped.

    Idempotent and blocking.
    """
    plan, before, after = lesson.plan, lesson.before, lesson.after
    episode, iteration, at = moment.episode_id, moment.iteration, moment.at
    if failures := seen_failures((before, after), workflow_id=episode, iteration=iteration, at=at):
        memory.record_failures(failures)
    if plan is None or plan.message is None or plan.verdict is not PlanVerdict.PLANNED or not before or not after:
        return
    key = f"{episode}/{moment.key}"
    memory.record_outcomes(list_outcomes(plan.followed, after, key=key, at=at))
    solved = turned_green(before, after)
    parts: dict[bool, list[str]] = {False: [], True: []}
    for part in _FILE.findall(lesson.diff.patch.decode("utf-8", "replace")):
        parts[any(is_test(new or old) for new, old in _PATH.findall(part))].append(part)
    code, tests = "\n".join(parts[False]), "\n".join(parts[True])
    # A check is not solved if it passes by itself, if only its tests changed, or if a person must review the change
    # first.
    if not solved or not code or lesson.findings:
        return
    pattern = pattern_of(plan.message, solved[0], code=code, tests=tests, workflow_id=episode, iteration=iteration)
    marks = dict.fromkeys(map(failure_signature, solved))
    memory.record_solution(pattern, [_successful_outcome(signature, key, at) for signature in marks])
    before_that = [*islice(lesson.earlier, STEPS_LIMIT)]
    for result in solved:
        for signature, longer in _longer(pattern, result, before_that):
            memory.record_solution(longer, [_successful_outcome(signature, key, at)])


def _successful_outcome(signature: str, key: str, at: datetime) -> Outcome:
    return Outcome(signature=signature, pattern="", worked=True, key=key, at=at)


def _longer(pattern: Pattern, solved: CheckResult, before: Iterable[EarlierPlan]) -> Iterator[tuple[str, Pattern]]:
    """Yield earlier failures of the same check, each with a longer pattern.

    A pattern contains all commands that were run from the failure until the check passed.
    """
    for attempt in before:
        failed = next((result for result in attempt.before.failed if result.run == solved.run), None)
        steps = attempt.plan.steps
        # Steps without commands cannot be repeated, so a longer pattern would have a gap.
        if failed is None or not pattern.commands or not all(step.run for step in steps):
            return
        if len(pattern.commands) + len(steps) > STEPS_LIMIT:
            return
        pattern = pattern.evolve(
            problem_type=problem_type(failed),
            title=shorten(f"{steps[0].title}, then: {pattern.title}", TITLE_CHARACTERS),
            steps=(*(step.title for step in steps), *pattern.steps),
            commands=(*(step.run for step in steps), *pattern.commands),
        )
        yield failure_signature(failed), pattern


def earlier(store: ArtifactStore, records: Iterable[CheckpointRecord], parent: str | None) -> Iterator[EarlierPlan]:
    """Yield the file-changing iterations before a checkpoint, newest first.

    Iterations are loaded one at a time.
    """
    by_id = {record.id: record for record in records}
    record = by_id.get(parent or "")
    while record is not None:
        before = by_id.get(record.parent or "")
        file = find_model(store, record.state, CheckpointFile)
        plan = find_model(store, file.state.plan, PlanRecord) if file else None
        checks = find_model(store, plan.checks, CheckReport) if plan else None
        if plan is None or plan.message is None or checks is None:
            return
        # An iteration that changed nothing did not contribute to the solution.
        if before is None or before.tree != record.tree:
            yield EarlierPlan(plan.message, checks)
        record = before


def report_problem_once(ledger: "ProjectLedger", problem: str, moment: Moment) -> str:
    """Record a problem with the memory and return it.

    Return "" if a problem was already reported in this episode.
    """
    if not problem:
        return ""
    events = (event for event in ledger.events(moment.episode_id) if event.kind == KIND)
    if any(event.key != _event_key(moment) for event in events):
        return ""
    note_problem(ledger, problem, moment)
    return problem


def note_problem(ledger: "ProjectLedger", problem: str, moment: Moment) -> None:
    """Record a problem with the memory in the timeline."""
    event = TrailEvent(episode_id=moment.episode_id, kind=KIND, key=_event_key(moment), text=problem, at=moment.at)
    ledger.add_event(event)


def _event_key(moment: Moment) -> str:
    return f"{KIND}/{moment.key}"
