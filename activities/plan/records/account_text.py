"""The two texts that a plan leaves for people: the hand-off note and the postmortem."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from tightloop.host import diff_command
from tightloop.plan.document.plan import Plan
from tightloop.plan.request import PlanOutcome
from tightloop.plan.result import StepRecord, StepStatus
from tightloop.plan.stored import PlanArchive
from tightloop.question import Answer
from tightloop.value import abridge, shorten
from tightloop.value.scrub import scrub

LINES_SHOWN = 200
LINE_CHARACTERS = 800
_SETTLED = frozenset({StepStatus.SKIPPED.value, StepStatus.COMPENSATED.value, StepStatus.RECOVERED.value})
"""Statuses of steps that are not completed and that nobody has to look after."""


def render_hand_off(archive: PlanArchive, plan: Plan, records: Sequence[StepRecord], workspace: Path) -> str:
    """Return Markdown: how it ended, what was done, what is open, who decided what, where everything is."""
    titles = {step.id: step.title or step.id for step in plan.steps}
    done = [record for record in records if record.result.status is StepStatus.COMPLETED and not record.undone]
    places = ["records of all attempts: the folder `steps` beside this note"]
    if archive.base_tree and archive.tree:
        places.append(f"the whole change: {diff_command(workspace, archive.base_tree, archive.tree)}")
    parts = [
        f"# {archive.title}: {archive.outcome.value.lower()}",
        archive.reason,
        section("Steps", [f"{status}: {count}" for status, count in sorted(archive.counts.items())]),
        section("Done", [_line(record, titles) for record in done]),
        section("Open", _steps(archive, titles, settled=False)),
        section("Left out, taken back or done otherwise", _steps(archive, titles, settled=True)),
        section(
            "Decisions", [describe_answer(step, answer) for step, given in archive.answers.items() for answer in given]
        ),
        section("Outputs", [f"{name}: {shorten(str(value), 200)}" for name, value in archive.artifacts.items()]),
        section("Assumptions", plan.assumptions),
        section("Risks", plan.risks),
        section("Where to look", places),
    ]
    return scrub("\n\n".join(part for part in parts if part) + "\n")


def render_postmortem(archive: PlanArchive, plan: Plan, records: Sequence[StepRecord]) -> str | None:
    """Return Markdown on what failed and what followed; None where nothing failed."""
    failed = [record for record in records if record.result.status is StepStatus.FAILED]
    taken_back = [record for record in records if record.undone]
    if not failed and archive.outcome is PlanOutcome.COMPLETED:
        return None
    titles = {step.id: step.title or step.id for step in plan.steps}
    evidence = [
        f"{note.hypothesis}: {note.verdict} ({note.strength}), by {record.step}. {note.note}"
        for record in records
        for note in record.result.evidence
    ]
    parts = [
        f"# Postmortem: {archive.title}",
        f"The plan ended as {archive.outcome.value.lower()}" + (f": {archive.reason}" if archive.reason else "."),
        section("What failed", [_failure(record, titles) for record in failed]),
        section("What was taken back", [_line(record, titles) for record in taken_back]),
        section("Evidence", evidence),
        section("Revisions", [f"{len(archive.revisions)} in all"] if len(archive.revisions) > 1 else []),
        section("Left open", _steps(archive, titles, settled=False)),
    ]
    return scrub("\n\n".join(part for part in parts if part) + "\n")


def _steps(archive: PlanArchive, titles: dict[str, str], *, settled: bool) -> list[str]:
    rows = ((step, at) for step, at in sorted(archive.statuses.items()) if (at in _SETTLED) is settled)
    return [f"{titles.get(step, step)} ({step}): {at}" for step, at in rows]


def section(title: str, lines: Iterable[str], limit: int = LINES_SHOWN) -> str:
    """Return a heading with a list below it, or "" for an empty list; of a long one the beginning is shown."""
    items = list(lines)
    if not items:
        return ""
    shown = [f"- {abridge(' '.join(line.split()), LINE_CHARACTERS)}" for line in items[:limit]]
    more = [f"- and {len(items) - limit} more"] if len(items) > limit else []
    return "\n".join([f"## {title}", "", *shown, *more])


def _line(record: StepRecord, titles: dict[str, str]) -> str:
    title = titles.get(record.step, record.step)
    name = title if title == record.step else f"{title} ({record.step})"
    return f"{name}: {record.result.summary}" if record.result.summary else name


def _failure(record: StepRecord, titles: dict[str, str]) -> str:
    failure = record.result.failure
    why = f"{failure.failure_class.value}: {failure.reason}" if failure is not None else "no reason is known"
    at = f", {record.ended:%Y-%m-%d %H:%M:%S} UTC" if record.ended is not None else ""
    return f"{titles.get(record.step, record.step)} ({record.step}), attempt {record.attempt}{at}: {why}"


def describe_answer(step: str, answer: Answer) -> str:
    """Return who decided what at a step."""
    return f"{step}: {answer.option} by {answer.by}. {answer.text}".rstrip()
