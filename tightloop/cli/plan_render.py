"""Shows plans to a person: lists, panels, what waits, and the exact command that answers it."""

import shlex
from collections.abc import Iterable
from datetime import datetime

from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from tightloop.cli import render
from tightloop.client import EpisodeSummary
from tightloop.plan.display import counts_line
from tightloop.plan.request import PlanSpent, PlanStatus, StepLine, WaitingGate
from tightloop.plan.result import StepRecord
from tightloop.plan.state import PlanEvent

LINES_SHOWN = 12
SUMMARY_SHOWN = 160
_TOP_UPS = {
    "max_steps": "--steps 100",
    "max_cost_usd": "--cost-usd 1",
    "max_tokens": "--tokens 100000",
    "max_api_calls": "--api-calls 100",
    "max_wall_s": "--wall-minutes 60",
    "max_fan_out": "--fan-out 100",
    "max_revisions": "--revisions 5",
}
_ANSWERS = ("retry", "skip", "abort")
_COLOURS = {
    "completed": "green",
    "recovered": "green",
    "approved": "green",
    "running": "cyan",
    "waits": "bold yellow",
    "waiting": "bold yellow",
    "paused": "yellow",
    "overdue": "yellow",
    "asked": "yellow",
    "skipped": "dim",
    "abandoned": "dim",
    "failed": "red",
    "rejected": "red",
    "refused": "red",
    "blocked": "red",
    "stuck": "red",
    "not taken back": "red",
    "cancelled": "magenta",
    "compensated": "magenta",
}


def coloured(word: str) -> Text:
    """Return a status or an event in its colour."""
    return Text(render.plain(word), style=_COLOURS.get(word, ""))


def plans_table(rows: Iterable[EpisodeSummary]) -> Table:
    """Return the list of plans."""
    made = render.table("PLAN", "STATUS", "STARTED", "TITLE", "WORKSPACE")
    for row in rows:
        status = coloured(row.status)
        if row.pause_kind:
            status.append(" (waits for approval)" if row.pause_kind == "approval" else f" ({row.pause_kind})")
        started = f"{row.started.astimezone():%Y-%m-%d %H:%M}" if row.started else ""
        title = Text(render.plain(row.goal.partition("\n")[0]), overflow="ellipsis", no_wrap=True)
        made.add_row(row.id, status, started, title, Text(render.plain(row.workspace)))
    return made


def steps_table(lines: Iterable[StepLine]) -> Table:
    """Return the steps of a plan, where each stands, and why."""
    made = render.table("STEP", "STATUS", "ATTEMPTS", "TITLE", "WHY")
    for line in lines:
        why = line.failure.reason if line.failure is not None else ""
        title = Text(render.plain(line.summary))
        attempts = str(line.attempt) if line.attempt else ""
        made.add_row(line.id, coloured(line.status.value), attempts, title, Text(render.plain(why)))
    return made


def timeline_table(events: Iterable[PlanEvent]) -> Table:
    """Return what happened, newest last."""
    made = render.table("WHEN", "WHAT", "STEP", "")
    for event in events:
        when = f"{event.at.astimezone():%Y-%m-%d %H:%M:%S}"
        made.add_row(when, coloured(event.event), Text(render.plain(event.step)), Text(render.plain(event.detail)))
    return made


def event_line(event: PlanEvent) -> Text:
    """Return one line of what happened, for logs and the follow mode."""
    line = Text(f"{event.at.astimezone():%H:%M:%S}  ")
    line.append_text(coloured(f"{event.event}"))
    line.append(" " * max(11 - len(event.event), 1))
    line.append(render.plain(event.text.replace("\n", " ")))
    return line


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


def status_panel(status: PlanStatus) -> Panel:
    """Return one plan on a panel."""
    return render.panel(status.plan_id, _status_rows(status), what_to_do(status))


def _status_rows(status: PlanStatus) -> list[tuple[str, str | Text]]:
    return [
        ("status", coloured(status.status)),
        ("plan", status.title + (f", revision {status.revision}" if status.revision > 1 else "")),
        ("workspace", status.workspace),
        ("phase", status.phase.value),
        ("steps", counts_line(status.counts) if status.counts else ""),
        *(("running", f"{line.id} (attempt {line.attempt})") for line in status.running[:LINES_SHOWN]),
        *(("failed", f"{line.id}: {_why(line)}") for line in status.failed[:LINES_SHOWN]),
        *(
            ("hypothesis", f"{belief.hypothesis}: {belief.confidence:.2f} ({belief.evidence} pieces of evidence)")
            for belief in status.beliefs[:LINES_SHOWN]
        ),
        ("spent", spent_line(status.spent)),
        ("reason", status.reason),
    ]


def what_to_do(status: PlanStatus) -> list[str]:
    """Return what waits for a person, each with the commands that answer it; empty where nothing waits."""
    lines = [line for gate in status.waiting[:LINES_SHOWN] for line in _gate_lines(status.plan_id, gate)]
    if len(status.waiting) > LINES_SHOWN:
        lines.append(f"... and {len(status.waiting) - LINES_SHOWN} more wait")
    for wait in status.children[:LINES_SHOWN]:
        lines += [f"{wait.step}: {wait.where} waits for a person: {wait.what}", f"  {wait.command}"]
    for name in status.asked[:LINES_SHOWN]:
        why = next((_why(line) for line in status.failed if line.id == name), "")
        lines.append(f"{name} failed: {why}")
        lines += [f"  {_command('answer', status.plan_id, word, name)}" for word in _ANSWERS]
    if status.pause_reason:
        lines += _pause_lines(status)
    return lines


def _pause_lines(status: PlanStatus) -> list[str]:
    lines = [] if status.asked else [f"It waits for a person: {status.pause_reason}"]
    if status.pause_advice:
        lines.append(f"What to do: {status.pause_advice}.")
    bound = next((option for name, option in _TOP_UPS.items() if name in status.pause_reason), "")
    if bound:
        lines.append(f"  tightloop plan top-up {status.plan_id} {bound}")
    if status.asked:
        lines.append(f"  {_command('replan', status.plan_id, 'FILE')}")
    else:
        lines.append(f"  {_command('resume', status.plan_id)}")
    return [*lines, f"  {_command('cancel', status.plan_id)}"]


def _gate_lines(plan_id: str, gate: WaitingGate) -> list[str]:
    question = gate.question
    who = f" of role {question.role}" if question.role else ""
    count = f"{question.count} different people{who}" if question.count > 1 else f"a person{who}"
    given = ", ".join(f"{one.by}: yes" for one in gate.decisions)
    lines = [f"{gate.step} waits for {count}{f' ({given})' if given else ''}: {question.text}"]
    lines += [f"  {check}" for check in question.checks[:LINES_SHOWN]]
    for option in question.options:
        said = [f"+ {one}" for one in option.pros] + [f"- {one}" for one in option.cons]
        said += [f"cost: {option.cost}"] if option.cost else []
        lines.append(f"  {option.name}: {', '.join(said) or 'nothing is said about it'}")
    shown = (ref for ref in question.evidence if ref.size_bytes)
    lines += [f"  evidence: {ref.name} (.tightloop/artifacts/{_place(ref.sha256)})" for ref in shown]
    by = ["--by", "NAME"] if question.count > 1 else []
    ways = [["--option", option.name] for option in question.options] or [[]]
    lines += [f"  {_command('approve', plan_id, gate.step, *way, *by)}" for way in ways]
    return [*lines, f"  {_command('reject', plan_id, gate.step, '--rationale', 'why')}"]


def _place(digest: str) -> str:
    return f"{digest[:2]}/{digest[2:]}"


def _command(*words: str) -> str:
    return f"tightloop plan {shlex.join(words)}"


def _why(line: StepLine) -> str:
    return line.failure.reason if line.failure is not None else "no reason is known"


def final_lines(status: PlanStatus) -> list[str]:
    """Return how a plan ended, and where to look."""
    word = status.outcome.value if status.outcome is not None else status.status.upper()
    lines = [
        f"{word}: {status.reason or 'no reason was given'}",
        f"Steps: {counts_line(status.counts)}. Spent: {spent_line(status.spent)}.",
    ]
    if status.status == "completed":
        return [*lines, f"What it leaves: tightloop plan archive {status.plan_id}"]
    return [
        *lines,
        f"Why: tightloop plan archive {status.plan_id}",
        f"Once more, with what is done taken over: tightloop plan run --again {status.plan_id}",
    ]


def record_lines(record: StepRecord) -> list[str]:
    """Return one attempt of a step with what it left."""
    result = record.result
    took = f", {(record.ended - record.started).total_seconds():.1f} s" if record.started and record.ended else ""
    when = f" at {record.ended.astimezone():%Y-%m-%d %H:%M:%S}" if record.ended else ""
    marks = [word for word, said in (("taken over", result.reused), ("taken back", record.undone)) if said]
    said = f" ({', '.join(marks)})" if marks else ""
    lines = [f"attempt {record.attempt}: {result.status.value}{said}{when}{took}, revision {record.revision}"]
    rows = [("command", record.command), ("said", result.summary)]
    if result.failure is not None:
        rows.append(("failure", f"{result.failure.failure_class.value}: {result.failure.reason}"))
    rows += [(f"input {name}", str(value)) for name, value in record.inputs.items()]
    rows += [(f"output {name}", str(value)) for name, value in record.outputs.items()]
    rows += [
        (f"artifact {name}", f"{ref.size_bytes} bytes, .tightloop/artifacts/{_place(ref.sha256)}")
        for name, ref in record.artifacts.items()
    ]
    rows += [
        (f"evidence on {note.hypothesis}", f"{note.verdict} ({note.strength}) {note.note}") for note in result.evidence
    ]
    rows += [
        ("decision", f"{'approved' if one.approved else 'refused'} by {one.by} {one.option} {one.rationale}".rstrip())
        for one in record.decisions
    ]
    if record.tree_before != record.tree_after:
        rows.append(("changed", f"git diff {record.tree_before[:12]} {record.tree_after[:12]}"))
    return [*lines, *(f"   {name}: {_cut(text)}" for name, text in rows if text)]


def _cut(text: str) -> str:
    line = text.strip().replace("\n", "\n     ")
    return line if len(line) <= 1_000 else f"{line[:1_000]} ... ({len(line)} characters)"


def clock() -> str:
    """Return the time of day, for lines that no event has."""
    return f"{datetime.now():%H:%M:%S}"
