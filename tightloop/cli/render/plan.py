"""Shows plans: their state, steps, attempts and end."""

from collections.abc import Iterable
from pathlib import Path

from rich.table import Table
from rich.text import Text

from tightloop.cli.render.question import drift_lines
from tightloop.cli.render.terminal import coloured, plain, table
from tightloop.host import diff_command
from tightloop.plan.display import counts_line
from tightloop.plan.request import PlanSpent, PlanStatus, StepLine
from tightloop.plan.result import StepRecord

LINES_SHOWN = 12
RUNNING_SHOWN = 3
VALUE_CHARACTERS = 1_000


def steps_table(lines: Iterable[StepLine]) -> Table:
    """Return the steps of a plan with their states and failures."""
    made = table("STEP", "STATUS", "ATTEMPTS", "TITLE", "WHY")
    for line in lines:
        why = line.failure.reason if line.failure is not None else ""
        attempts = str(line.attempt) if line.attempt else ""
        made.add_row(line.id, coloured(line.status.value), attempts, Text(plain(line.summary)), Text(plain(why)))
    return made


def spent_line(spent: PlanSpent) -> str:
    """Return what is spent, such as `attempts 12, cost USD 0.5, minutes 3`."""
    parts = [f"attempts {spent.attempts}"]
    if spent.tokens:
        parts.append(f"tokens {spent.tokens}")
    if spent.cost_usd or spent.unpriced_calls:
        parts.append(f"cost USD {'at least ' if spent.unpriced_calls else ''}{round(spent.cost_usd, 4):g}")
    if spent.api_calls:
        parts.append(f"calls {spent.api_calls}")
    return ", ".join([*parts, f"minutes {spent.wall_time.total_seconds() / 60:.1f}"])


def plan_rows(status: PlanStatus) -> list[tuple[str, str | Text]]:
    """Return the names and values of a panel."""
    failed = ((line.id, line.failure.reason if line.failure else "no reason is known") for line in status.failed)
    return [
        ("status", coloured(status.status)),
        ("plan", status.title + (f", revision {status.revision}" if status.revision > 1 else "")),
        ("workspace", status.workspace),
        ("phase", status.phase.value),
        ("waits for", status.waits_for),
        ("steps", counts_line(status.counts) if status.counts else ""),
        *(("running", f"{line.id} (attempt {line.attempt})") for line in status.running[:LINES_SHOWN]),
        *(("failed", f"{name}: {why}") for name, why in list(failed)[:LINES_SHOWN]),
        *(
            ("hypothesis", f"{belief.hypothesis}: {belief.confidence:.2f} ({belief.evidence} pieces of evidence)")
            for belief in status.beliefs[:LINES_SHOWN]
        ),
        *(("changed", drift.sentence) for drift in status.drifts),
        ("spent", spent_line(status.spent)),
        ("reason", status.reason),
    ]


def plan_line(status: PlanStatus) -> str:
    """Return the state on one line, for the last line of `watch`."""
    running = ", ".join(line.id for line in status.running[:RUNNING_SHOWN])
    more = f" and {len(status.running) - RUNNING_SHOWN} more" if len(status.running) > RUNNING_SHOWN else ""
    waits = f"waits for {status.waits_for}" if status.waits_for else ""
    parts = [counts_line(status.counts), f"now: {running}{more}" if running else "", status.phase.value, waits]
    return "  ".join(part for part in parts if part)


def plan_end_lines(status: PlanStatus) -> list[str]:
    """Return how a plan ended, and where to look."""
    word = status.outcome.value if status.outcome is not None else status.status.upper()
    lines = [
        f"{word}: {status.reason or 'no reason was given'}",
        f"Steps: {counts_line(status.counts)}. Spent: {spent_line(status.spent)}.",
        *drift_lines(status.drifts),
        f"Report: tightloop export {status.plan_id} --report",
    ]
    if status.status == "completed":
        return lines
    return [*lines, f"Run it again, with what is done taken over: tightloop plan run --again {status.plan_id}"]


def record_lines(record: StepRecord, workspace: Path) -> list[str]:
    """Return one attempt of a step in a workspace with its inputs, outputs and decisions."""
    result = record.result
    took = f", {(record.ended - record.started).total_seconds():.1f} s" if record.started and record.ended else ""
    when = f" at {record.ended.astimezone():%Y-%m-%d %H:%M:%S}" if record.ended else ""
    marks = [word for word, holds in (("taken over", result.reused), ("taken back", record.undone)) if holds]
    marked = f" ({', '.join(marks)})" if marks else ""
    rows = [("command", record.command), ("summary", result.summary)]
    if result.failure is not None:
        rows.append(("failure", f"{result.failure.failure_class.value}: {result.failure.reason}"))
    rows += [(f"input {name}", str(value)) for name, value in record.inputs.items()]
    rows += [(f"output {name}", str(value)) for name, value in record.outputs.items()]
    rows += [
        (f"artifact {name}", f"{ref.size_bytes} bytes, {ref.sha256} (tightloop export ID --out FOLDER)")
        for name, ref in record.artifacts.items()
    ]
    rows += [
        (f"evidence on {note.hypothesis}", f"{note.verdict} ({note.strength}) {note.note}") for note in result.evidence
    ]
    rows += [("answer", f"{answer.option} by {answer.by} {answer.text}".rstrip()) for answer in record.answers]
    if record.tree_before != record.tree_after:
        rows.append(("changed", diff_command(workspace, record.tree_before, record.tree_after)))
    return [
        f"attempt {record.attempt}: {result.status.value}{marked}{when}{took}, revision {record.revision}",
        *(f"   {name}: {_cut(text)}" for name, text in rows if text),
    ]


def _cut(text: str) -> str:
    line = text.strip().replace("\n", "\n     ")
    return line if len(line) <= VALUE_CHARACTERS else f"{line[:VALUE_CHARACTERS]} ... ({len(line)} characters)"
