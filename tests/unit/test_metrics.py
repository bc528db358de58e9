"""What figures of episodes say, and what they do not: ranges, medians, rates, and values that nobody knows."""

import statistics
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tightloop.errors import InvalidRequestError
from tightloop.ledger.metrics import (
    MEANINGS,
    PERIODS_LIMIT,
    Division,
    EndedEpisode,
    Figures,
    Metric,
    MetricKind,
    MetricsFilter,
    figure_of,
    figures_of,
    rate_of,
    read_moment,
    read_range,
    report_of,
)

NOW = datetime(2026, 3, 8, 12, tzinfo=UTC)
AMOUNTS = st.floats(min_value=0, max_value=1e9)
KNOWN_OR_NOT = st.lists(st.one_of(st.none(), AMOUNTS), max_size=60)


def ended(**fields: object) -> EndedEpisode:
    known = {
        "project": "orders-1",
        "executor": "codex",
        "model": "gpt",
        "closed": NOW - timedelta(hours=1),
        "succeeded": True,
        "iterations": 2,
    }
    return EndedEpisode(**(known | fields))  # type: ignore[arg-type]


EPISODES = st.lists(
    st.builds(
        EndedEpisode,
        project=st.sampled_from(("a", "b")),
        executor=st.sampled_from(("codex", "claude", "")),
        model=st.sampled_from(("small", "")),
        closed=st.datetimes(datetime(2026, 3, 1), datetime(2026, 3, 8, 11)).map(lambda at: at.replace(tzinfo=UTC)),
        succeeded=st.sampled_from((True, False, None)),
        iterations=st.integers(0, 50),
        cost_usd=st.one_of(st.none(), AMOUNTS),
        **dict.fromkeys(
            ("tokens", "worked_s", "interventions", "safety_findings", "bandit_findings", "changed_line_coverage"),
            st.none(),
        ),
        memory_searches=st.just(0),
        memory_hits=st.just(0),
        answers_s=st.just(()),
    ),
    max_size=12,
)


def test_nothing_known_is_not_zero() -> None:
    figure = figure_of([None, None])
    assert (figure.n, figure.unknown) == (0, 2)
    assert (figure.median, figure.p90, figure.total) == (None, None, None)


def test_an_unknown_cost_is_left_out_of_the_sum_and_counted_beside_it() -> None:
    figures = figures_of([ended(cost_usd=2.0), ended(cost_usd=None), ended(cost_usd=0.0)])
    assert (figures.cost_usd.total, figures.cost_usd.n, figures.cost_usd.unknown) == (2.0, 2, 1)
    assert figures.cost_usd.median == 1.0


@given(KNOWN_OR_NOT)
def test_what_is_not_known_changes_no_figure(values: list[float | None]) -> None:
    known = [value for value in values if value is not None]
    figure = figure_of(values)
    assert figure.evolve(unknown=0) == figure_of(known)
    assert figure.n + figure.unknown == len(values)


@given(st.lists(AMOUNTS, min_size=1, max_size=60))
def test_median_and_p90_are_where_they_should_be(values: list[float]) -> None:
    figure = figure_of(values)
    assert figure.median is not None
    assert figure.p90 is not None
    assert figure.median == pytest.approx(statistics.median(values))
    assert figure.p90 in values
    below, share = sum(value <= figure.p90 for value in values), Fraction(9, 10)
    assert Fraction(below, len(values)) >= share
    assert Fraction(sum(value < figure.p90 for value in values), len(values)) < share


@given(st.lists(st.sampled_from((True, False, None))))
def test_a_rate_is_of_the_cases_of_which_it_is_known(cases: list[bool | None]) -> None:
    rate = rate_of(cases)
    assert rate.n == sum(case is not None for case in cases)
    assert rate.count == sum(case is True for case in cases)
    assert (rate.share is None) == (rate.n == 0)
    assert rate.share is None or 0 <= rate.share <= 1


def test_only_episodes_that_succeeded_count_for_iterations_to_success() -> None:
    figures = figures_of(
        [ended(iterations=3), ended(iterations=50, succeeded=False), ended(iterations=9, succeeded=None)]
    )
    assert (figures.iterations_to_success.median, figures.iterations_to_success.n) == (3.0, 1)
    assert (figures.success.share, figures.success.n, figures.success.unknown) == (0.5, 2, 1)


def test_time_to_answer_is_of_questions_not_of_episodes() -> None:
    figures = figures_of([ended(answers_s=(10.0, 20.0, 300.0)), ended()])
    assert (figures.answer_s.n, figures.answer_s.median, figures.answer_s.unknown) == (3, 20.0, 0)


def test_hits_of_the_memory_are_of_searches() -> None:
    figures = figures_of([ended(memory_searches=9, memory_hits=2), ended(memory_searches=1, memory_hits=1), ended()])
    assert (figures.memory_hits.n, figures.memory_hits.count, figures.memory_hits.share) == (10, 3, 0.3)
    assert figures_of([ended()]).memory_hits.share is None


@given(EPISODES, st.sampled_from((None, *Division)), st.integers(1, 20_000))
def test_every_episode_is_in_one_group_and_one_period(
    episodes: list[EndedEpisode], by: Division | None, hours: int
) -> None:
    wanted = MetricsFilter(since=NOW - timedelta(hours=hours), until=NOW, by=by)
    inside = [one for one in episodes if wanted.since <= one.closed < wanted.until]
    report = report_of(wanted, inside)
    assert report.figures.episodes == len(inside)
    assert sum(group.figures.episodes for group in report.groups) == (len(inside) if by else 0)
    assert sum(period.figures.episodes for period in report.periods) == len(inside)
    sizes = [group.figures.episodes for group in report.groups]
    assert sizes == sorted(sizes, reverse=True)


@given(st.integers(1, 200_000), st.integers(0, 10**6))
def test_periods_fill_the_range_without_gaps(hours: int, shift_s: int) -> None:
    until = NOW + timedelta(seconds=shift_s)
    wanted = MetricsFilter(since=until - timedelta(hours=hours), until=until)
    periods = report_of(wanted, []).periods
    assert 1 <= len(periods) <= PERIODS_LIMIT
    assert (periods[0].start, periods[-1].end) == (wanted.since, wanted.until)
    assert all(one.end == following.start for one, following in pairwise(periods))
    assert all(one.start < one.end for one in periods)


def test_a_week_is_shown_in_days_of_utc() -> None:
    periods = report_of(MetricsFilter(since=NOW - timedelta(days=7), until=NOW), []).periods
    assert [period.start.hour for period in periods] == [12, *[0] * 7]


def test_every_figure_is_defined_once() -> None:
    assert list(MEANINGS) == [name for name in Figures.model_fields if name != "episodes"]
    assert len({meaning.definition for meaning in MEANINGS.values()}) == len(MEANINGS)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("7d", NOW - timedelta(days=7)),
        ("12h", NOW - timedelta(hours=12)),
        ("2026-03-01", datetime(2026, 3, 1, tzinfo=UTC)),
        ("2026-03-01T08:30", datetime(2026, 3, 1, 8, 30, tzinfo=UTC)),
        ("2026-03-01T08:30+02:00", datetime(2026, 3, 1, 6, 30, tzinfo=UTC)),
    ],
)
def test_a_time_is_read_as_people_write_it(text: str, meant: datetime) -> None:
    assert read_moment(text, NOW, what="--since") == meant


@pytest.mark.parametrize("text", ["", "yesterday", "7 weeks", "2026-02-30", "9999999999999d", "-7d"])
def test_another_time_is_refused_with_the_right_form(text: str) -> None:
    with pytest.raises(InvalidRequestError, match=r"since .* is not a valid time\. Use a format like 7d"):
        read_moment(text, NOW, what="since")


def test_a_range_ends_after_it_begins() -> None:
    assert read_range("7d", "", NOW) == (NOW - timedelta(days=7), NOW)
    with pytest.raises(InvalidRequestError, match="is empty"):
        read_range("1d", "2d", NOW)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0])
def test_a_metric_is_a_number_from_0(value: float) -> None:
    with pytest.raises(ValueError, match="must be a finite number greater than or equal to 0"):
        Metric(workflow_id="e", kind=MetricKind.MEMORY_HIT, value=value, at=NOW)


def test_the_metadata_of_a_metric_is_bounded() -> None:
    with pytest.raises(ValueError, match="must not exceed 2000 characters"):
        Metric(workflow_id="e", kind=MetricKind.MEMORY_HIT, value=1, at=NOW, metadata={"text": "x" * 2_000})
