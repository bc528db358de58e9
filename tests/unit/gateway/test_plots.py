"""Plots of metrics: everything lies within its axes, round values stand on them, and a gap is a gap."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.web.metrics import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Plot, plot_of
from tightloop.ledger.metrics import MEANINGS, Figures, Period, Unit, figure_of, rate_of

START = datetime(2026, 3, 1, tzinfo=UTC)
AMOUNTS = st.one_of(st.none(), st.floats(min_value=0, max_value=1e8))
FIGURES = [name for name, meaning in MEANINGS.items() if meaning.unit is not Unit.SHARE]


def plot(name: str, *values: list[float | None]) -> Plot:
    day = timedelta(days=1)
    periods = [
        Period(start=START + number * day, end=START + (number + 1) * day, figures=Figures(**{name: figure_of(each)}))
        for number, each in enumerate(values)
    ]
    return plot_of(name, periods)


@given(st.sampled_from(FIGURES), st.lists(st.lists(AMOUNTS, max_size=4), min_size=1, max_size=32))
def test_everything_lies_within_the_axes(name: str, values: list[list[float | None]]) -> None:
    made = plot(name, *values)
    heights = [tick.y for tick in made.ticks]
    assert heights == sorted(heights, reverse=True)
    assert (heights[0], heights[-1]) == (HEIGHT - BOTTOM, TOP)
    assert 2 <= len(heights) <= 6
    for line in made.lines:
        assert all(LEFT <= mark.x <= WIDTH - RIGHT and TOP <= mark.y <= HEIGHT - BOTTOM for mark in line.marks)
        assert len(line.marks) == sum(any(one is not None for one in each) for each in values)


def test_a_line_does_not_cross_what_is_not_known() -> None:
    made = plot("cost_usd", [1.0], [2.0], [None], [], [3.0], [4.0], [None], [5.0])
    assert [len(piece.split()) for piece in made.lines[0].pieces] == [2, 2]
    assert len(made.lines[0].marks) == 5, "a point stands alone where no line leads to it"


def test_a_value_of_zero_is_a_point_and_nothing_known_an_empty_plot() -> None:
    assert len(plot("cost_usd", [0.0]).lines[0].marks) == 1
    assert plot("cost_usd", [None], []).empty


@pytest.mark.parametrize(
    ("name", "largest", "labels"),
    [
        ("iterations_to_success", 3.0, ["0", "1", "2", "3"]),
        ("cost_usd", 0.9, ["$0.00", "$0.25", "$0.50", "$0.75", "$1.00"]),
        ("answer_s", 7_000.0, ["0s", "30m", "1h", "1h 30m", "2h"]),
        ("answer_s", 500_000.0, ["0s", "2d", "4d", "6d"]),
    ],
)
def test_an_axis_has_round_values(name: str, largest: float, labels: list[str]) -> None:
    assert [tick.label for tick in plot(name, [largest]).ticks] == labels


def test_columns_of_shares_stand_on_an_axis_up_to_all() -> None:
    periods = [
        Period(start=START, end=START + timedelta(days=1), figures=Figures(success=rate_of([True, False, None])))
    ]
    made = plot_of("success", periods)
    assert [tick.label for tick in made.ticks] == ["0 %", "25 %", "50 %", "75 %", "100 %"]
    [mark] = made.lines[0].marks
    assert mark.label == "03-01 00:00: success rate 50 %, n 2"
    assert mark.height == (HEIGHT - TOP - BOTTOM) / 2
