"""The command that shows the metrics of a time range."""

from datetime import UTC, datetime
from typing import Annotated

import click
from rich.table import Table

from tightloop.cli.look.workflows import project_named, require_ledger
from tightloop.cli.parameters import AsJson, Option, Project
from tightloop.cli.session import session_of
from tightloop.cli.terminal import plain, show, show_json, table
from tightloop.ledger.metrics import (
    MEANINGS,
    Division,
    Figure,
    Group,
    MetricsFilter,
    MetricsReport,
    Rate,
    Unit,
    read_range,
)
from tightloop.ledger.model import amount
from tightloop.value import counted

Since = Annotated[
    str, Option(metavar="TIME", help="Episodes that ended from then on: 7d, 12h, 2026-01-31, 2026-01-31T08:00.")
]
Until = Annotated[str, Option(metavar="TIME", help="And before this time; as --since. Default: now.")]
Executor = Annotated[str, Option(help="Name of an executor. Default: all.")]
Model = Annotated[str, Option(help="Name of a model. Default: all.")]
By = Annotated[Division | None, Option(help="Show the figures for each of these, too.")]
GROUP_COLUMNS = ("success", "iterations_to_success", "tokens", "cost_usd", "worked_s", "interventions", "answer_s")


def metrics(
    context: click.Context,
    since: Since = "7d",
    until: Until = "",
    project: Project = "",
    executor: Executor = "",
    model: Model = "",
    by: By = None,
    as_json: AsJson = False,
) -> None:
    begin, end = read_range(since, until, datetime.now(UTC))
    ledger = require_ledger(session_of(context).settings)
    named = project_named(ledger, project) if project else ""
    wanted = MetricsFilter(since=begin, until=end, project=named, executor=executor, model=model, by=by)
    report = ledger.metrics(wanted)
    if as_json:
        show_json(report)
        return
    show(_heading(report))
    if report.figures.episodes:
        show(_table(report))
    if report.groups:
        show(_group_table(report.groups, wanted.by))


def _heading(report: MetricsReport) -> str:
    wanted = report.wanted
    chosen = [f"{name} {value}" for name in Division for value in (getattr(wanted, name.value),) if value]
    of = f" of {', '.join(chosen)}" if chosen else ""
    ended = counted(report.figures.episodes, "episode")
    return f"{ended}{of} ended from {wanted.since:%Y-%m-%d %H:%M} to {wanted.until:%Y-%m-%d %H:%M} (UTC)"


def _table(report: MetricsReport) -> Table:
    made = table("", "rate, median", "p90", "total", "n", "not known")
    for name, meaning in MEANINGS.items():
        figure: Figure | Rate = getattr(report.figures, name)
        if isinstance(figure, Rate):
            cells = [amount(figure.share, meaning.unit), "", f"{figure.count} of {figure.n}" if figure.n else ""]
        else:
            # A sum of shares says nothing.
            total = "" if meaning.unit is Unit.SHARE else amount(figure.total, meaning.unit)
            cells = [amount(figure.median, meaning.unit), amount(figure.p90, meaning.unit), total]
        made.add_row(meaning.title, *cells, str(figure.n), str(figure.unknown) if figure.unknown else "")
    return made


def _group_table(groups: tuple[Group, ...], by: Division | None) -> Table:
    made = table(by.value if by else "", "episodes", *(MEANINGS[name].title for name in GROUP_COLUMNS))
    for group in groups:
        cells = []
        for name in GROUP_COLUMNS:
            figure: Figure | Rate = getattr(group.figures, name)
            value = figure.share if isinstance(figure, Rate) else figure.median
            cells.append(f"{amount(value, MEANINGS[name].unit)} (n {figure.n})")
        made.add_row(plain(group.name) or "not named", str(group.figures.episodes), *cells)
    return made
