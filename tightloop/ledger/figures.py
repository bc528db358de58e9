"""Computes the figures of episodes; `metrics.py` says what each means."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta

from tightloop.ledger.metrics import (
    Division,
    EndedEpisode,
    Figure,
    Figures,
    Group,
    MetricsFilter,
    MetricsReport,
    Period,
    Rate,
)

PERIODS_LIMIT = 32
_DAY = timedelta(days=1)
_STEPS = (timedelta(hours=1), _DAY, 7 * _DAY, 28 * _DAY)
_MONDAY = datetime(1970, 1, 5, tzinfo=UTC)
"""Weeks begin on Mondays; hours and days are those of UTC."""
_NAMES: dict[Division, Callable[[EndedEpisode], str]] = {
    Division.PROJECT: lambda one: one.project,
    Division.EXECUTOR: lambda one: one.executor,
    Division.MODEL: lambda one: one.model,
}


def report_of(wanted: MetricsFilter, episodes: Sequence[EndedEpisode]) -> MetricsReport:
    """Return the report of the episodes that a filter let through."""
    return MetricsReport(
        wanted=wanted,
        figures=figures_of(episodes),
        groups=_groups(episodes, _NAMES[wanted.by]) if wanted.by is not None else (),
        periods=_periods(wanted, episodes),
    )


def figures_of(episodes: Sequence[EndedEpisode]) -> Figures:
    """Return all figures of some episodes."""
    searches, hits = sum(one.memory_searches for one in episodes), sum(one.memory_hits for one in episodes)
    return Figures(
        episodes=len(episodes),
        success=rate_of(one.succeeded for one in episodes),
        iterations_to_success=figure_of(one.iterations for one in episodes if one.succeeded),
        tokens=figure_of(one.tokens for one in episodes),
        cost_usd=figure_of(one.cost_usd for one in episodes),
        worked_s=figure_of(one.worked_s for one in episodes),
        interventions=figure_of(one.interventions for one in episodes),
        answer_s=figure_of(seconds for one in episodes for seconds in one.answers_s),
        safety_findings=figure_of(one.safety_findings for one in episodes),
        bandit_findings=figure_of(one.bandit_findings for one in episodes),
        # A sum of shares says nothing.
        changed_line_coverage=figure_of(one.changed_line_coverage for one in episodes).evolve(total=None),
        memory_hits=Rate(n=searches, count=hits, share=hits / searches if searches else None),
    )


def figure_of(values: Iterable[float | None]) -> Figure:
    """Return the distribution of the known values."""
    given = list(values)
    known = sorted(value for value in given if value is not None)
    if not known:
        return Figure(unknown=len(given))
    middle = len(known) // 2
    return Figure(
        n=len(known),
        unknown=len(given) - len(known),
        median=float(known[middle]) if len(known) % 2 else (known[middle - 1] + known[middle]) / 2,
        # In whole numbers: 0.9 * 10 is above 9 in floating point.
        p90=float(known[-(-9 * len(known) // 10) - 1]),
        total=math.fsum(known),
    )


def rate_of(cases: Iterable[bool | None]) -> Rate:
    """Return the share of the known cases in which it was so."""
    given = list(cases)
    known = [case for case in given if case is not None]
    count = sum(known)
    share = count / len(known) if known else None
    return Rate(n=len(known), unknown=len(given) - len(known), count=count, share=share)


def _groups(episodes: Iterable[EndedEpisode], name_of: Callable[[EndedEpisode], str]) -> tuple[Group, ...]:
    found: dict[str, list[EndedEpisode]] = defaultdict(list)
    for one in episodes:
        found[name_of(one)].append(one)
    ordered = sorted(found.items(), key=lambda item: (-len(item[1]), item[0]))
    return tuple(Group(name=name, figures=figures_of(ones)) for name, ones in ordered)


def _periods(wanted: MetricsFilter, episodes: Iterable[EndedEpisode]) -> tuple[Period, ...]:
    first, step, count = _division(wanted.since, wanted.until)
    parts: list[list[EndedEpisode]] = [[] for _ in range(count)]
    for one in episodes:
        parts[min(max((one.closed - first) // step, 0), count - 1)].append(one)
    return tuple(
        Period(start=max(first + number * step, wanted.since), end=min(first + (number + 1) * step, wanted.until),
               figures=figures_of(part))
        for number, part in enumerate(parts)
    )  # fmt: skip


def _division(since: datetime, until: datetime) -> tuple[datetime, timedelta, int]:
    """Return where the first period begins, how long periods are, and how many; at most `PERIODS_LIMIT`."""
    longest = _STEPS[-1] * max(-(-(until - since) // (_STEPS[-1] * (PERIODS_LIMIT - 1))), 1)
    for step in (*_STEPS, longest):
        first = _MONDAY + (since - _MONDAY) // step * step
        count = -(-(until - first) // step)
        if count <= PERIODS_LIMIT:
            return first, step, count
    raise AssertionError("the longest step is made to fit")
