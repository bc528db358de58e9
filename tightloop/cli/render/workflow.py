"""Shows episodes and plans alike: lists, panels, timelines, the last line of `watch`."""

from collections.abc import Iterable
from datetime import UTC, datetime

from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from tightloop.cli.render.episode import episode_end_lines, episode_line, episode_rows
from tightloop.cli.render.loop import loop_end_lines, loop_line, loop_rows
from tightloop.cli.render.plan import plan_end_lines, plan_line, plan_rows
from tightloop.cli.render.question import todo_lines
from tightloop.cli.render.terminal import coloured, panel, plain, table
from tightloop.client import Event, Status, Summary
from tightloop.episode.display import status_label
from tightloop.episode.model import EpisodeStatus
from tightloop.loop.model import LoopStatus

_OF_WORKERS = frozenset({"phase", "spent", "budget"})
"""Rows that only a worker can tell."""


def list_table(rows: Iterable[Summary]) -> Table:
    """Return the list of episodes and plans."""
    made = table("ID", "STATUS", "ITERATION", "STARTED", "GOAL", "WORKSPACE")
    for row in rows:
        label = status_label(row.status, row.pause_kind)
        status = coloured(label)
        if row.pause_kind and label == row.status:
            status.append(f" ({plain(row.pause_kind)})")
        goal = Text(plain(row.goal.partition("\n")[0]), overflow="ellipsis", no_wrap=True)
        iteration = str(row.iteration) if row.kind == "episode" else ""
        made.add_row(row.id, status, iteration, _age(row.started), goal, Text(plain(row.workspace)))
    return made


def _age(moment: datetime | None) -> str:
    if moment is None:
        return ""
    minutes = int((datetime.now(UTC) - moment).total_seconds() // 60)
    if minutes < 60:
        return f"{max(minutes, 0)} min ago"
    return f"{minutes // 60} h ago" if minutes < 48 * 60 else f"{minutes // 1440} d ago"


def status_panel(status: Status) -> Panel:
    """Return one episode or plan on a panel, with everything that waits for a person."""
    if isinstance(status, EpisodeStatus):
        return panel(status.episode_id, _known(status, episode_rows(status)), todo_lines(status))
    if isinstance(status, LoopStatus):
        return panel(status.plan_id, _known(status, loop_rows(status)), todo_lines(status))
    return panel(status.plan_id, _known(status, plan_rows(status)), todo_lines(status))


def _known(status: Status, rows: list[tuple[str, str | Text]]) -> list[tuple[str, str | Text]]:
    """Return the rows; where no worker answered those that are stored, and how old they are."""
    if status.as_of is None:
        return rows
    as_of = f"{status.as_of.astimezone():%Y-%m-%d %H:%M:%S}; this is what is stored, because no worker answered"
    return [("as of", as_of), *(row for row in rows if row[0] not in _OF_WORKERS)]


def status_line(status: Status) -> str:
    """Return the state on one line."""
    if isinstance(status, LoopStatus):
        line = loop_line(status)
    else:
        line = episode_line(status) if isinstance(status, EpisodeStatus) else plan_line(status)
    return plain(line.replace("\n", " "))


def end_lines(status: Status) -> list[str]:
    """Return how an episode or a plan ended, and how to continue."""
    if isinstance(status, LoopStatus):
        return loop_end_lines(status)
    return episode_end_lines(status) if isinstance(status, EpisodeStatus) else plan_end_lines(status)


def timeline_table(events: Iterable[Event]) -> Table:
    """Return the events, newest last."""
    made = table("WHEN", "WHAT", "")
    for event in events:
        when = f"{event.at.astimezone():%Y-%m-%d %H:%M:%S}"
        made.add_row(when, coloured(event.kind), Text(plain(event.text)))
    return made


def event_line(event: Event) -> Text:
    """Return one event on one line."""
    line = Text(f"{event.at.astimezone():%H:%M:%S}  ")
    line.append_text(coloured(event.kind))
    line.append(" " * max(11 - len(event.kind), 1))
    line.append(plain(event.text.replace("\n", " ")))
    return line
