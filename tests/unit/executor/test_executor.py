"""The contract with executors: back-off grows to its bound, the provider's word wins."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tightloop.executor.model import BACKOFF_LONGEST, ExecutorReport, ExecutorStatus, LimitHit, backoff


def test_waits_double_from_800_ms_to_a_minute() -> None:
    waits = [backoff(strike).total_seconds() for strike in range(1, 9)]
    assert waits == [0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 51.2, 60.0]


@given(st.integers(min_value=-5, max_value=10**9))
def test_wait_is_bounded_and_never_shrinks(strike: int) -> None:
    assert timedelta() < backoff(strike) <= backoff(strike + 1) <= BACKOFF_LONGEST


@given(st.integers(min_value=1, max_value=9), st.timedeltas(min_value=timedelta(), max_value=timedelta(days=1)))
def test_wait_that_the_provider_asks_for_wins(strike: int, asked: timedelta) -> None:
    assert backoff(strike, LimitHit(retry_after=asked)) == asked


def test_limit_that_lies_in_the_past_needs_no_wait() -> None:
    assert backoff(2, LimitHit(retry_after=timedelta(seconds=-5))) == timedelta()
    assert backoff(2, LimitHit()) == backoff(2)


@pytest.mark.parametrize("status", list(ExecutorStatus))
def test_only_finished_work_counts_as_success(status: ExecutorStatus) -> None:
    report = ExecutorReport(key="k", status=status)
    assert report.succeeded == (status.value in ("completed", "no_change"))
