"""Metrics for ended episodes: samples, reports and their definitions."""

import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, NamedTuple

from pydantic import Field, field_validator, model_validator

from tightloop.errors import InvalidRequestError
from tightloop.value import Value, read_seconds

METADATA_CHARACTERS = 2_000
KEY_CHARACTERS = 200


class MetricKind(StrEnum):
    """The kind of a sample that is recorded while a workflow is running.

    Final values are in the workflow's ledger row.
    """

    ANSWER_S = "answer_s"
    """Seconds until a question was answered or otherwise closed; one row per question."""
    SAFETY_FINDINGS = "safety_findings"
    """Number of findings in a safety check, even if 0; one row per check."""
    BANDIT_FINDINGS = "bandit_findings"
    """Number of new Bandit findings at the end; one row with an empty key, replaced by each scan."""
    MEMORY_HIT = "memory_hit"
    """1 if a memory search had a result, otherwise 0; one row per search."""
    CHANGED_LINE_COVERAGE = "changed_line_coverage"
    """Share of changed lines that tests execute, 0 to 1; one row with an empty key, replaced by each measurement."""


class Metric(Value):
    """A value that was measured for a workflow."""

    workflow_id: str
    kind: MetricKind
    value: float
    at: datetime
    key: str = Field(default="", max_length=KEY_CHARACTERS)
    """Distinguishes values of the same kind. A newer value replaces an older one with the same key."""
    metadata: dict[str, Any] = Field(default_factory=dict)
    """Additional data, such as the layer that reported a finding; at most `METADATA_CHARACTERS` characters as JSON."""

    @field_validator("value")
    @classmethod
    def _finite(cls, value: float) -> float:
        # A single NaN would spoil every sum of the report.
        if not math.isfinite(value) or value < 0:
            raise ValueError(f"a metric must be a finite number greater than or equal to 0, got {value}")
        return value

    @model_validator(mode="after")
    def _check_metadata_size(self) -> "Metric":
        if len(json.dumps(self.metadata)) > METADATA_CHARACTERS:
            raise ValueError(
                f"the metadata of a metric must not exceed {METADATA_CHARACTERS} characters when encoded as JSON"
            )
        return self


class Division(StrEnum):
    """The field by which a report groups episodes."""

    PROJECT = "project"
    EXECUTOR = "executor"
    MODEL = "model"


class MetricsFilter(Value):
    """Filter for the episodes in a report. Empty fields match all episodes."""

    since: datetime
    until: datetime
    """End of the range (exclusive)."""
    project: str = ""
    executor: str = ""
    """Requested executor, or the fallback executor that did the work."""
    model: str = ""
    by: Division | None = None


class EndedEpisode(NamedTuple):
    """Data about a finished episode. None means unknown, not zero."""

    project: str
    executor: str
    model: str
    closed: datetime
    succeeded: bool | None
    iterations: int
    tokens: int | None = None
    cost_usd: float | None = None
    worked_s: float | None = None
    interventions: int | None = None
    safety_findings: float | None = None
    bandit_findings: float | None = None
    changed_line_coverage: float | None = None
    memory_searches: int = 0
    memory_hits: int = 0
    answers_s: tuple[float, ...] = ()


class Figure(Value):
    """The distribution of `n` known values, and the number of unknown ones."""

    n: int = 0
    unknown: int = 0
    median: float | None = None
    p90: float | None = None
    """90th percentile by nearest rank."""
    total: float | None = None


class Rate(Value):
    """Share of positive cases among `n` known cases."""

    n: int = 0
    unknown: int = 0
    count: int = 0
    """Number of positive cases."""
    share: float | None = None
    """Share from 0 to 1, or None if `n` is 0."""


class Figures(Value):
    """All figures for a set of episodes. `MEANINGS` defines each of them."""

    episodes: int = 0
    success: Rate = Rate.model_construct()
    iterations_to_success: Figure = Figure.model_construct()
    tokens: Figure = Figure.model_construct()
    cost_usd: Figure = Figure.model_construct()
    worked_s: Figure = Figure.model_construct()
    interventions: Figure = Figure.model_construct()
    answer_s: Figure = Figure.model_construct()
    safety_findings: Figure = Figure.model_construct()
    bandit_findings: Figure = Figure.model_construct()
    changed_line_coverage: Figure = Figure.model_construct()
    memory_hits: Rate = Rate.model_construct()


class Group(Value):
    """Figures for the episodes of one project, executor or model."""

    name: str
    """Name, or "" if unknown."""
    figures: Figures


class Period(Value):
    """Figures for the episodes in one period of the time range."""

    start: datetime
    end: datetime
    figures: Figures


class MetricsReport(Value):
    """A report on the episodes that ended in a time range."""

    wanted: MetricsFilter
    figures: Figures
    groups: tuple[Group, ...] = ()
    """Groups by the requested criterion, largest first, or an empty tuple if no grouping was requested."""
    periods: tuple[Period, ...] = ()
    """Equal parts of the range, oldest first, for plots."""


class Unit(StrEnum):
    """Unit of a figure."""

    COUNT = "count"
    SHARE = "share"
    SECONDS = "seconds"
    USD = "usd"


class Meaning(NamedTuple):
    """Title, unit and definition of a field of `Figures`."""

    title: str
    unit: Unit
    definition: str


MEANINGS = {
    "success": Meaning(
        "success rate",
        Unit.SHARE,
        "Share of episodes that ended in the range and succeeded: all checks passed, and the proof was accepted. "
        "Cancelled and terminated episodes count as unsuccessful.",
    ),
    "iterations_to_success": Meaning(
        "iterations to success", Unit.COUNT, "Iterations of a successful episode, including all its branches."
    ),
    "tokens": Meaning(
        "tokens",
        Unit.COUNT,
        "Input and output tokens for all model calls in an episode. Unknown if a call did not report its tokens.",
    ),
    "cost_usd": Meaning(
        "cost", Unit.USD, "Total price of all model calls in an episode. Unknown if any call has no known price."
    ),
    "worked_s": Meaning(
        "working time", Unit.SECONDS, "Time from start to end of an episode, excluding time spent waiting for people."
    ),
    "interventions": Meaning(
        "interventions",
        Unit.COUNT,
        "Human actions on a running episode: answers, pauses, resumes, messages, top-ups, amendments, restores "
        "and cancellations. Reports from agents do not count.",
    ),
    "answer_s": Meaning(
        "time to answer",
        Unit.SECONDS,
        "Time from a question to its answer, or to the message, top-up, restore or cancellation that settled it. "
        "Each question counts once. Pauses by an operator and unanswered questions do not count.",
    ),
    "safety_findings": Meaning(
        "safety findings",
        Unit.COUNT,
        "Findings from the safety checks in all iterations of an episode. Unknown if no check ran.",
    ),
    "bandit_findings": Meaning(
        "Bandit findings", Unit.COUNT, "New Bandit findings in the files that an episode changed, from the last scan."
    ),
    "changed_line_coverage": Meaning(
        "changed-line coverage",
        Unit.SHARE,
        "Share of an episode's changed lines that its tests cover, as of the last measurement.",
    ),
    "memory_hits": Meaning("memory hit rate", Unit.SHARE, "Share of memory searches that found something."),
}
"""Definitions by field of `Figures`, in display order."""


def read_moment(text: str, now: datetime, *, what: str) -> datetime:
    """Parse a point in time.

    The text is an age such as `7d`, or an ISO 8601 date or time. The default time zone is UTC.

    Raises:
        InvalidRequestError: the text is invalid. The message uses `what` to name the option or field.
    """
    seconds = read_seconds(text)
    try:
        if seconds is not None:
            return now - timedelta(seconds=seconds)
        moment = datetime.fromisoformat(text.strip())
        return moment if moment.tzinfo is not None else moment.replace(tzinfo=now.tzinfo)
    except (ValueError, OverflowError):
        raise InvalidRequestError(
            f"{what} {text[:40]!r} is not a valid time. Use a format like 7d, 12h, 2026-01-31 or 2026-01-31T08:00"
        ) from None


def read_range(since: str, until: str, now: datetime) -> tuple[datetime, datetime]:
    """Parse a time range. Return the start and the exclusive end.

    If `until` is empty, the range ends now.

    Raises:
        InvalidRequestError: the start or the end cannot be parsed, or the range is empty.
    """
    begin = read_moment(since, now, what="since")
    end = read_moment(until, now, what="until") if until else now
    if begin >= end:
        raise InvalidRequestError(
            f"the time range from {begin:%Y-%m-%d %H:%M} to {end:%Y-%m-%d %H:%M} is empty. The "
            "start must be before the end"
        )
    return begin, end


PERIODS_LIMIT = 32
_DAY = timedelta(days=1)
# 28 days instead of a month, so that all periods are equally long.
_STEPS = (timedelta(hours=1), _DAY, 7 * _DAY, 28 * _DAY)
_MONDAY = datetime(1970, 1, 5, tzinfo=UTC)
"""Weeks start on Monday. Hours and days are in UTC."""
_NAMES: dict[Division, Callable[[EndedEpisode], str]] = {
    Division.PROJECT: lambda one: one.project,
    Division.EXECUTOR: lambda one: one.executor,
    Division.MODEL: lambda one: one.model,
}


def report_of(metrics_filter: MetricsFilter, episodes: Sequence[EndedEpisode]) -> MetricsReport:
    """Build the report on the episodes that match a filter."""
    return MetricsReport(
        wanted=metrics_filter,
        figures=figures_of(episodes),
        groups=_groups(episodes, _NAMES[metrics_filter.by]) if metrics_filter.by is not None else (),
        periods=_periods(metrics_filter, episodes),
    )


def figures_of(episodes: Sequence[EndedEpisode]) -> Figures:
    searches, hits = (
        sum(episode.memory_searches for episode in episodes),
        sum(episode.memory_hits for episode in episodes),
    )
    return Figures(
        episodes=len(episodes),
        success=rate_of(episode.succeeded for episode in episodes),
        iterations_to_success=figure_of(episode.iterations for episode in episodes if episode.succeeded),
        tokens=figure_of(episode.tokens for episode in episodes),
        cost_usd=figure_of(episode.cost_usd for episode in episodes),
        worked_s=figure_of(episode.worked_s for episode in episodes),
        interventions=figure_of(episode.interventions for episode in episodes),
        answer_s=figure_of(seconds for episode in episodes for seconds in episode.answers_s),
        safety_findings=figure_of(episode.safety_findings for episode in episodes),
        bandit_findings=figure_of(episode.bandit_findings for episode in episodes),
        # A sum of shares is meaningless.
        changed_line_coverage=figure_of(episode.changed_line_coverage for episode in episodes).evolve(total=None),
        memory_hits=Rate(n=searches, count=hits, share=hits / searches if searches else None),
    )


def figure_of(values: Iterable[float | None]) -> Figure:
    """Return the distribution of the known values, and the number of unknown values."""
    all_values = list(values)
    known_values = sorted(value for value in all_values if value is not None)
    if not known_values:
        return Figure(unknown=len(all_values))
    middle = len(known_values) // 2
    return Figure(
        n=len(known_values),
        unknown=len(all_values) - len(known_values),
        median=float(known_values[middle])
        if len(known_values) % 2
        else (known_values[middle - 1] + known_values[middle]) / 2,
        # Integer arithmetic, because 0.9 * 10 exceeds 9 in floating point.
        p90=float(known_values[-(-9 * len(known_values) // 10) - 1]),
        # Exact, so that the sum of many small prices does not depend on their order.
        total=math.fsum(known_values),
    )


def rate_of(cases: Iterable[bool | None]) -> Rate:
    """Return the share of positive cases among the known cases, and the number of unknown cases."""
    all_cases = list(cases)
    known_cases = [case for case in all_cases if case is not None]
    count = sum(known_cases)
    share = count / len(known_cases) if known_cases else None
    return Rate(n=len(known_cases), unknown=len(all_cases) - len(known_cases), count=count, share=share)


def _groups(episodes: Iterable[EndedEpisode], name_of: Callable[[EndedEpisode], str]) -> tuple[Group, ...]:
    episodes_by_name: dict[str, list[EndedEpisode]] = defaultdict(list)
    for episode in episodes:
        episodes_by_name[name_of(episode)].append(episode)
    ordered = sorted(episodes_by_name.items(), key=lambda item: (-len(item[1]), item[0]))
    return tuple(Group(name=name, figures=figures_of(ones)) for name, ones in ordered)


def _periods(metrics_filter: MetricsFilter, episodes: Iterable[EndedEpisode]) -> tuple[Period, ...]:
    first, step, count = _division(metrics_filter.since, metrics_filter.until)
    parts: list[list[EndedEpisode]] = [[] for _ in range(count)]
    for episode in episodes:
        parts[min(max((episode.closed - first) // step, 0), count - 1)].append(episode)
    return tuple(
        Period(
            start=max(first + number * step, metrics_filter.since),
            end=min(first + (number + 1) * step, metrics_filter.until),
            figures=figures_of(part),
        )
        for number, part in enumerate(parts)
    )


def _division(since: datetime, until: datetime) -> tuple[datetime, timedelta, int]:
    """Divide a time range into at most `PERIODS_LIMIT` periods.

    Return the start of the first period, the period length and the number of periods.
    """
    # One period in reserve: aligned to Mondays, the first one may begin before the range.
    longest = _STEPS[-1] * max(-(-(until - since) // (_STEPS[-1] * (PERIODS_LIMIT - 1))), 1)
    for step in (*_STEPS, longest):
        first = _MONDAY + (since - _MONDAY) // step * step
        count = -(-(until - first) // step)
        if count <= PERIODS_LIMIT:
            return first, step, count
    raise AssertionError(f"every available period length results in more than {PERIODS_LIMIT} periods")
