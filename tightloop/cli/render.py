"""Shows episodes to a person, with Rich, and to a program, as JSON."""

import json
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from pydantic import BaseModel
from rich import box
from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from tightloop.checkpoint import CheckpointRecord
from tightloop.client import EpisodeSummary
from tightloop.display import NEEDS_RESPONSE, budget_line, status_label
from tightloop.episode import EpisodeStatus, Pause, PauseKind, TimelineEntry
from tightloop.executor import PERMISSION_ANSWERS, WORK_ANSWERS, Question, QuestionKind

PIPE_WIDTH = 200
"""Width of tables that no terminal bounds."""
_TREE_DIGITS = 12
_COLOURS = {
    "running": "cyan",
    "paused": "yellow",
    NEEDS_RESPONSE: "bold yellow",
    "succeeded": "green",
    "failed": "red",
    "aborted": "magenta",
    "HIGH": "green",
    "MEDIUM": "yellow",
    "LOW": "red",
    "ok": "green",
    "missing": "red",
}
# Text of agents and tools may hold escape sequences that would steer the reader's terminal.
_CONTROL = {code: None for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"}


def console(*, stderr: bool = False) -> Console:
    """Return a console that cuts nothing when the output is piped."""
    stream = sys.stderr if stderr else sys.stdout
    return Console(width=None if stream.isatty() else PIPE_WIDTH, highlight=False, stderr=stderr)


def show(*parts: RenderableType) -> None:
    """Print for a person; text is taken literally, never as markup."""
    out = console()
    for part in parts:
        out.print(Text(plain(part)) if isinstance(part, str) else part)


def show_json(document: Any) -> None:
    """Print one JSON document, and nothing else."""
    sys.stdout.write(json.dumps(as_plain_values(document), indent=2, ensure_ascii=False) + "\n")


def answer(document: Any, shown: RenderableType, *, as_json: bool) -> None:
    """Print for a program, or for a person."""
    if as_json:
        show_json(document)
    else:
        show(shown)


def as_plain_values(value: Any) -> Any:
    """Return models as plain values, also inside lists and mappings."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, dict):
        return {name: as_plain_values(item) for name, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [as_plain_values(item) for item in value]
    return value


def complain(sentence: str) -> None:
    """Print an error for a person, in red on a terminal."""
    console(stderr=True).print(Text(plain(sentence), style="red"), soft_wrap=True)


def remark(sentence: str) -> None:
    """Print a remark that is no part of the result."""
    console(stderr=True).print(Text(plain(sentence), style="dim"), soft_wrap=True)


def plain(text: str) -> str:
    """Return text without control characters."""
    return text.translate(_CONTROL)


def coloured(word: str) -> Text:
    """Return a status, a class or a state in its colour."""
    return Text(plain(word), style=_COLOURS.get(word, ""))


def _age(moment: datetime | None) -> str:
    if moment is None:
        return ""
    minutes = int((datetime.now(UTC) - moment).total_seconds() // 60)
    if minutes < 60:
        return f"{max(minutes, 0)} min ago"
    return f"{minutes // 60} h ago" if minutes < 48 * 60 else f"{minutes // 1440} d ago"


def table(*headers: str) -> Table:
    """Return an empty table; the first column is never broken."""
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for number, header in enumerate(headers):
        made.add_column(header, no_wrap=number == 0, overflow="fold")
    return made


def episodes_table(rows: Iterable[EpisodeSummary]) -> Table:
    """Return the list of episodes."""
    made = table("EPISODE", "STATUS", "ITERATION", "STARTED", "GOAL")
    for row in rows:
        label = status_label(row.status, row.pause_kind)
        status = coloured(label)
        if row.pause_kind and label == row.status:
            status.append(f" ({plain(row.pause_kind)})")
        goal = Text(plain(row.goal.partition("\n")[0]), overflow="ellipsis", no_wrap=True)
        made.add_row(row.id, status, str(row.iteration), _age(row.started), goal)
    return made


def checkpoints_table(records: Iterable[CheckpointRecord]) -> Table:
    """Return the list of checkpoints; discarded ones are dim."""
    made = table("CHECKPOINT", "ITERATION", "BRANCH", "CLASS", "CHECKS", "FILES' TREE", "RESET EVENT", "PLAN")
    for record in records:
        made.add_row(
            record.id + (" (discarded)" if record.discarded else ""),
            str(record.iteration),
            str(record.branch),
            coloured(record.probability_class.value if record.probability_class else ""),
            record.checks,
            record.tree[:_TREE_DIGITS],
            f"{record.event_id} of run {record.run_id[:8]}" if record.event_id else "",
            Text(plain(record.title)),
            style="dim" if record.discarded else None,
        )
    return made


def timeline_table(entries: Iterable[TimelineEntry]) -> Table:
    """Return what happened, newest last."""
    made = table("WHEN", "WHAT", "")
    for entry in entries:
        made.add_row(f"{entry.at.astimezone():%Y-%m-%d %H:%M:%S}", Text(plain(entry.kind)), Text(plain(entry.text)))
    return made


def status_panel(status: EpisodeStatus) -> Panel:
    """Return one episode on a panel."""
    todo = [] if status.pause is None else what_to_do(status.episode_id, status.pause)
    return panel(status.episode_id, _status_rows(status), todo)


def panel(title: str, rows: Iterable[tuple[str, str | Text]], todo: Sequence[str]) -> Panel:
    """Return names with their values, without the empty ones, and below them what a person can do."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim")
    grid.add_column(overflow="fold")
    for name, value in rows:
        if str(value):
            grid.add_row(name, value if isinstance(value, Text) else Text(plain(value)))
    parts: list[RenderableType] = [grid]
    if todo:
        parts += [Text(), Text(plain("\n".join(todo)), style="yellow")]
    return Panel(Group(*parts), title=Text(title), title_align="left", expand=False)


def _label(status: EpisodeStatus) -> str:
    return status_label(status.status, status.pause.kind.value if status.pause else None)


def _status_rows(status: EpisodeStatus) -> list[tuple[str, str | Text]]:
    passes = f"{status.iteration} on branch {status.branch}"
    return [
        ("status", coloured(_label(status) + (", pause requested" if status.pause_requested else ""))),
        ("goal", status.goal),
        ("workspace", status.workspace),
        ("phase", status.phase.value),
        ("iteration", passes + (f", run {status.runs}" if status.runs > 1 else "")),
        ("plan", status.plan),
        ("executor", status.executor + (f": {status.executor_error}" if status.executor_error else "")),
        ("class", coloured(status.probability_class.value) if status.probability_class else ""),
        ("checks", status.checks),
        *(("", f"{check.status.value}: {check.name}") for check in status.failed_checks),
        ("diagnosis", status.diagnosis),
        ("checkpoint", status.checkpoint_id),
        ("budget", budget_line(status.spent, status.budget)),
        ("reason", status.reason),
    ]


def what_to_do(episode_id: str, pause: Pause) -> list[str]:
    """Return why an episode waits, and the commands that end the wait."""
    since = f" since {pause.since.astimezone():%Y-%m-%d %H:%M:%S}" if pause.since else ""
    lines = [f"It waits for a person{since} ({pause.kind.value}, by {pause.by}): {pause.reason}"]
    if pause.advice:
        lines.append(f"What to do: {pause.advice}.")
    if pause.by == "temporal":
        return lines
    commands = [f"tightloop resume {episode_id}", f'tightloop respond {episode_id} "what the planner shall know"']
    if pause.question is not None:
        commands = [*_answer_commands(episode_id, pause.question), commands[0]]
    if pause.kind is PauseKind.BUDGET:
        commands[0] = f"tightloop top-up {episode_id} --iterations 5"
    if pause.kind is PauseKind.ALIGNMENT:
        commands.append(f'tightloop amend {episode_id} --goal "..."')
    commands += [f"tightloop restore {episode_id} CKPT", f"tightloop abort {episode_id}"]
    return [*lines, *(f"  {command}" for command in commands)]


def _answer_commands(episode_id: str, question: Question) -> list[str]:
    asked = question.kind is QuestionKind.PERMISSION
    texts = {"done": ' --text "what I did"', "failed": ' --text "why"', "refused": ' --text "why"'}
    words = [answer.value for answer in (PERMISSION_ANSWERS if asked else WORK_ANSWERS)]
    return [f"tightloop answer {episode_id} {word}{texts.get(word, '')}" for word in words]


def status_line(status: EpisodeStatus) -> str:
    """Return one episode on one line, for logs."""
    parts = [
        f"iteration {status.iteration}",
        status.phase.value,
        _label(status),
        f"class {status.probability_class.value}" if status.probability_class else "",
        f"checks {status.checks}" if status.checks else "",
        budget_line(status.spent, status.budget),
        status.plan,
        status.reason,
    ]
    return plain("  ".join(part for part in parts if part).replace("\n", " "))
