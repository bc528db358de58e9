"""The metrics page."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from starlette.requests import Request

from gateway.web.pages import Screen, View
from tightloop.errors import InvalidRequestError
from tightloop.ledger.metrics import MEANINGS, Division, Figure, MetricsFilter, Period, Rate, Unit, read_range
from tightloop.ledger.model import amount

WIDTH, HEIGHT = 560, 220
LEFT, RIGHT, TOP, BOTTOM = 72, 12, 12, 28
RADIUS = 4
SIZES = {"WIDTH": WIDTH, "HEIGHT": HEIGHT, "LEFT": LEFT, "RIGHT": RIGHT, "BOTTOM": BOTTOM, "RADIUS": RADIUS}
"""Dimensions for the template."""
TICKS = 4
NICE = (1.0, 2.0, 2.5, 5.0, 10.0)
"""Tick distances on an axis, to be multiplied by a power of ten."""
NICE_SECONDS = (1.0, 5.0, 15.0, 30.0, 60.0, 300.0, 900.0, 1_800.0, 3_600.0, 7_200.0, 14_400.0, 43_200.0, 86_400.0)
SHARE_STEP = 0.25
LINES = (("median", "median"), ("p90", "p90"))
"""Fields of a figure that are drawn as lines, each with the name of its line."""


@dataclass(frozen=True)
class Tick:
    """Tick on the value axis."""

    y: float
    label: str


@dataclass(frozen=True)
class Mark:
    """A column or point in a plot, with its label."""

    x: float
    y: float
    height: float
    label: str


@dataclass(frozen=True)
class Line:
    """A data series with its marks, and the polylines that connect consecutive marks."""

    name: str
    marks: tuple[Mark, ...]
    pieces: tuple[str, ...] = ()
    """The `points` attribute of each SVG polyline. A missing value interrupts the line."""


@dataclass(frozen=True)
class Plot:
    """A plot of one value over the periods in a time range."""

    name: str
    title: str
    definition: str
    ticks: tuple[Tick, ...]
    lines: tuple[Line, ...]
    step: float
    """Distance between two periods. A column takes up three quarters of it."""
    first: str
    last: str
    """Labels at the ends of the time axis."""
    columns: bool = False

    @property
    def empty(self) -> bool:
        """True if no period has a value."""
        return not any(line.marks for line in self.lines)


def plot_of(name: str, periods: Sequence[Period]) -> Plot:
    """Plot one of the fields of `Figures`. There must be at least one period."""
    meaning = MEANINGS[name]
    columns = meaning.unit is Unit.SHARE
    top, ticks = _axis(1.0 if columns else _largest(name, periods), meaning.unit)
    step = (WIDTH - LEFT - RIGHT) / len(periods)
    fields = (("share", meaning.title),) if columns else LINES
    lines = tuple(_line(name, field, title, periods, step, top) for field, title in fields)
    return Plot(
        name,
        meaning.title,
        meaning.definition,
        ticks,
        lines,
        step,
        first=when(periods[0], periods),
        last=when(periods[-1], periods),
        columns=columns,
    )


def when(period: Period, periods: Sequence[Period]) -> str:
    """Format the start of a period as a date, with the time if the chart covers less than two days."""
    is_short = (periods[-1].end - periods[0].start).days < 2
    return f"{period.start:%m-%d %H:%M}" if is_short else f"{period.start:%Y-%m-%d}"


def _line(name: str, field: str, title: str, periods: Sequence[Period], step: float, top: float) -> Line:
    marks: list[Mark | None] = []
    for number, period in enumerate(periods):
        figure = getattr(period.figures, name)
        value = getattr(figure, field)
        if value is None:
            marks.append(None)
            continue
        y = _y(value, top)
        label = f"{when(period, periods)}: {title} {amount(value, MEANINGS[name].unit)}, n {figure.n}"
        marks.append(Mark(_round(LEFT + (number + 0.5) * step), y, _round(HEIGHT - BOTTOM - y), label))
    return Line(title, tuple(point for point in marks if point), tuple(_pieces(marks)))


def _pieces(marks: Iterable[Mark | None]) -> Iterable[str]:
    piece: list[str] = []
    for point in (*marks, None):
        if point is not None:
            piece.append(f"{point.x:g},{point.y:g}")
            continue
        # A polyline through a single point draws nothing; its mark shows it anyway.
        if len(piece) > 1:
            yield " ".join(piece)
        piece = []


def _largest(name: str, periods: Iterable[Period]) -> float:
    figures: Iterable[Figure] = (getattr(period.figures, name) for period in periods)
    return max((value for figure in figures for value in (figure.median, figure.p90) if value is not None), default=0.0)


def _axis(largest: float, unit: Unit) -> tuple[float, tuple[Tick, ...]]:
    """Choose the top value and the ticks of an axis. All ticks are at round values."""
    step = SHARE_STEP if unit is Unit.SHARE else _nice_step(largest, unit)
    # A rounding error must not add an empty step above the largest value.
    top = step * max(math.ceil(largest / step - 1e-9), 1)
    count = round(top / step)
    return top, tuple(Tick(_y(step * number, top), amount(step * number, unit)) for number in range(count + 1))


def _nice_step(largest: float, unit: Unit) -> float:
    ideal_step = largest / TICKS
    if unit is Unit.SECONDS:
        days = 86_400.0 * _nice_step(largest / 86_400.0, Unit.COUNT)
        return next((step for step in NICE_SECONDS if step >= ideal_step), days)
    if ideal_step <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(ideal_step))
    step = power * next(factor for factor in NICE if factor * power >= ideal_step * (1 - 1e-9))
    # Counts are whole numbers, so there are no ticks in between.
    return max(step, 1.0) if unit is Unit.COUNT else step


def _y(value: float, top: float) -> float:
    return _round(HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * min(value / top, 1.0))


def _round(value: float) -> float:
    return round(value, 1)


RANGES = {"24h": "24 hours", "7d": "7 days", "30d": "30 days", "90d": "90 days", "365d": "a year"}
USUAL = "7d"
PLOTTED = ("success", "iterations_to_success", "cost_usd", "answer_s")
GROUPED = ("success", "iterations_to_success", "cost_usd", "worked_s", "interventions", "answer_s")


def metrics(view: View, request: Request) -> Screen:
    """Show metrics for the episodes that ended in a time range."""
    query = request.query_params
    filters = {name: query.get(name, "") for name in ("project", "executor", "model")}
    since, until, by = query.get("since") or USUAL, query.get("until", ""), query.get("by", "")
    if by and by not in set(Division):
        raise InvalidRequestError(f"by must be one of {', '.join(Division)}, got {by[:40]!r}")
    begin, end = read_range(since, until, datetime.now(UTC))
    metrics_filter = MetricsFilter(since=begin, until=end, by=Division(by) if by else None, **filters)
    report = view.ledger.metrics(metrics_filter)
    content = {
        "report": report,
        "wanted": metrics_filter,
        "since": since,
        "until": until,
        # A range from a link stays selected, even if the list does not offer it.
        "ranges": RANGES | ({} if since in RANGES else {since: since}),
        "divisions": [division.value for division in Division],
        "projects": view.shared.names,
        "meanings": MEANINGS,
        "plots": [plot_of(name, report.periods) for name in PLOTTED],
        "plotted": PLOTTED,
        "grouped": GROUPED,
        "periods": [(when(period, report.periods), period.figures) for period in report.periods],
        "cells": cells,
        "shown": figure_text,
        "sizes": SIZES,
    }
    return Screen("metrics.html", content, section="/metrics")


def cells(figure: Figure | Rate, unit: Unit) -> tuple[str, str, str]:
    """Format a figure's rate or median, its 90th percentile and its sum. A value that does not apply is left empty."""
    if isinstance(figure, Rate):
        return amount(figure.share, unit), "", f"{figure.count} of {figure.n}" if figure.n else ""
    # A sum of shares has no meaning.
    total = "" if unit is Unit.SHARE else amount(figure.total, unit)
    return amount(figure.median, unit), amount(figure.p90, unit), total


def figure_text(figure: Figure | Rate, unit: Unit) -> str:
    """Format a figure's rate or median together with the number of known values."""
    return f"{cells(figure, unit)[0]} (n {figure.n})"
