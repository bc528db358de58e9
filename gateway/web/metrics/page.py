"""The page of metrics: figures of a time range, plots over it, and the same as a table."""

from datetime import UTC, datetime

from starlette.requests import Request

from gateway.web.look import Look, Screen
from gateway.web.metrics import plots
from tightloop.errors import InvalidRequestError
from tightloop.ledger.metrics import MEANINGS, Division, Figure, MetricsFilter, Rate, Unit, read_range
from tightloop.ledger.shown import amount

RANGES = {"24h": "24 hours", "7d": "7 days", "30d": "30 days", "90d": "90 days", "365d": "a year"}
USUAL = "7d"
PLOTTED = ("success", "iterations_to_success", "cost_usd", "answer_s")
GROUPED = ("success", "iterations_to_success", "cost_usd", "worked_s", "interventions", "answer_s")


def metrics(look: Look, request: Request) -> Screen:
    """Show what the episodes that ended in a time range show."""
    query = request.query_params
    asked = {name: query.get(name, "") for name in ("project", "executor", "model")}
    since, until, by = query.get("since") or USUAL, query.get("until", ""), query.get("by", "")
    if by and by not in set(Division):
        raise InvalidRequestError(f"by {by[:40]!r} is not one of {', '.join(Division)}")
    begin, end = read_range(since, until, datetime.now(UTC))
    wanted = MetricsFilter(since=begin, until=end, by=Division(by) if by else None, **asked)
    report = look.ledger.metrics(wanted)
    content = {
        "report": report,
        "wanted": wanted,
        "since": since,
        "until": until,
        "ranges": RANGES | ({} if since in RANGES else {since: since}),
        "divisions": [each.value for each in Division],
        "projects": look.around.names,
        "meanings": MEANINGS,
        "plots": [plots.plot_of(name, report.periods) for name in PLOTTED],
        "plotted": PLOTTED,
        "grouped": GROUPED,
        "periods": [(plots.when(period, report.periods), period.figures) for period in report.periods],
        "cells": cells,
        "shown": shown,
        "sizes": plots,
    }
    return Screen("metrics.html", content, section="/metrics")


def cells(figure: Figure | Rate, unit: Unit) -> tuple[str, str, str]:
    """Return rate or median, 90th percentile and sum, as people read them; empty where it does not apply."""
    if isinstance(figure, Rate):
        return amount(figure.share, unit), "", f"{figure.count} of {figure.n}" if figure.n else ""
    # A sum of shares says nothing.
    total = "" if unit is Unit.SHARE else amount(figure.total, unit)
    return amount(figure.median, unit), amount(figure.p90, unit), total


def shown(figure: Figure | Rate, unit: Unit) -> str:
    """Return rate or median with the number of known values."""
    return f"{cells(figure, unit)[0]} (n {figure.n})"
