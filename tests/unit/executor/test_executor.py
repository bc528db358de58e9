"""The contract with executors: back-off grows to its bound."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tightloop.executor.model import BACKOFF_LONGEST, ExecutorReport, ExecutorStatus, backoff


def test_waits_double_from_ten_seconds_to_a_quarter_of_an_hour() -> None:
    waits = [backoff(failures).total_seconds() for failures in range(1, 9)]
    assert waits == [10, 20, 40, 80, 160, 320, 640, 900]


@given(st.integers(min_value=-5, max_value=10**9))
def test_wait_is_bounded_and_never_shrinks(failures: int) -> None:
    assert timedelta() < backoff(failures) <= backoff(failures + 1) <= BACKOFF_LONGEST


@pytest.mark.parametrize("status", list(ExecutorStatus))
def test_only_finished_work_counts_as_success(status: ExecutorStatus) -> None:
    report = ExecutorReport(key="k", status=status)
    assert report.succeeded == (status.value in ("completed", "no_change"))
