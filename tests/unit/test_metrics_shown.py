"""Amounts of metrics as people read them."""

import pytest

from tightloop.ledger.metrics import Unit
from tightloop.ledger.model import amount


@pytest.mark.parametrize(
    ("value", "unit", "shown"),
    [
        (None, Unit.USD, "unknown"),
        (0, Unit.USD, "$0.00"),
        (0.0042, Unit.USD, "$0.0042"),
        (1234.5, Unit.USD, "$1,234.50"),
        (0.8, Unit.SHARE, "80 %"),
        (2, Unit.COUNT, "2"),
        (2.5, Unit.COUNT, "2.5"),
        (1_000_000, Unit.COUNT, "1,000,000"),
        (0, Unit.SECONDS, "0s"),
        (4.25, Unit.SECONDS, "4.2s"),
        (59.7, Unit.SECONDS, "1m"),
        (90, Unit.SECONDS, "1m 30s"),
        (3_900, Unit.SECONDS, "1h 5m"),
        (100_000, Unit.SECONDS, "1d 3h"),
    ],
)
def test_an_amount_has_its_unit_and_what_is_not_known_is_no_number(value: float | None, unit: Unit, shown: str) -> None:
    assert amount(value, unit) == shown
