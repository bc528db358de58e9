"""The two texts that a plan leaves for people: the hand-off note and the postmortem."""

from collections.abc import Iterable, Sequence

from activities.plan.records import file_name
from tightloop.plan.model import Plan
from tightloop.plan.request import PlanOutcome
from tightloop.plan.result import StepRecord, StepStatus
from tightloop.plan.stored import PlanArchive
from tightloop.scrub import scrub
from tightloop.value import shorten

LINES_SHOWN = 200
LINE_CHARACTERS = 400
_SETTLED = frozenset({StepStatus.SKIPPED.value, StepStatus.COMPENSATED.value, StepStatus.RECOVERED.value})
"""Statuses of steps that are not completed and that nobody has to look after."""


def hand_off_text(archive: PlanArchive, plan: Plan, records: Sequence[StepRecord]) -> str:
    """Return Markdown: how it ended, what was done, what is open, who decided what, where everything is."""
    titles = {step.id: step.title or step.id for step in plan.steps}
    done = [record for record in records if record.result.status is StepStatus.COMPLETED and not record.undone]
    parts = [
        f"# {archive.title}: {archive.outcome.value.lower()}",
        archive.reason,
        _section("Steps", [f"{status}: {count}" for status, count in sorted(archive.counts.items())]),
        _section("Done", [_line(record, titles) for record in done]),
        _section("Open", _steps(archive, titles, settled=False)),
        _section("Left out, taken back or done otherwise", _steps(archive, titles, settled=True)),
        _section("Decisions", [_decision(archive, number) for number in range(len(archive.decisions))]),
        _section("Outputs", [f"{name}: {shorten(str(value), 200)}" for name, value in archive.artifacts.items()]),
        _section("Assumptions", plan.assumptions),
        _section("Risks", plan.risks),
        _section("Where to look", _places(archive)),
    ]
    return scrub("\n\n".join(part for part in parts if part) + "\n")


def postmortem_text(archive: PlanArchive, plan: Plan, records: Sequence[StepRecord]) -> str | None:
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
        f"The plan ended as {archive.outcome.value.lower()}. {archive.reason}".strip(),
        _section("What failed", [_failure(record, titles) for record in failed]),
        _section("What was taken back", [_line(record, titles) for record in taken_back]),
        _section("Evidence", evidence),
        _section("Revisions", [f"{len(archive.revisions)} in all"] if len(archive.revisions) > 1 else []),
        _section("Left open", _steps(archive, titles, settled=False)),
    ]
    return scrub("\n\n".join(part for part in parts if part) + "\n")


def _steps(archive: PlanArchive, titles: dict[str, str], *, settled: bool) -> list[str]:
    rows = ((step, at) for step, at in sorted(archive.statuses.items()) if (at in _SETTLED) is settled)
    return [f"{titles.get(step, step)} ({step}): {at}" for step, at in rows]


def _section(title: str, lines: Iterable[str]) -> str:
    items = list(lines)
    if not items:
        return ""
    shown = [f"- {shorten(' '.join(line.split()), LINE_CHARACTERS)}" for line in items[:LINES_SHOWN]]
    more = [f"- and {len(items) - LINES_SHOWN} more"] if len(items) > LINES_SHOWN else []
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


def _decision(archive: PlanArchive, number: int) -> str:
    decision = archive.decisions[number]
    said = "approved" if decision.approved else "refused"
    option = f" ({decision.option})" if decision.option else ""
    return f"{decision.step}: {said}{option} by {decision.by or 'somebody'}. {decision.rationale}"


def _places(archive: PlanArchive) -> list[str]:
    places = [f"records of all attempts: .tightloop/plans/{file_name(archive.plan_id)}/steps"]
    if archive.base_tree and archive.tree:
        places.append(f"the whole change: git diff {archive.base_tree} {archive.tree}")
    return places
