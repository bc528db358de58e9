from datetime import date

from billing import due_dates, next_month


def test_short_months_end_early():
    assert next_month(date(2023, 1, 31)) == date(2023, 2, 28)
    assert next_month(date(2024, 1, 31)) == date(2024, 2, 29)
    assert next_month(date(2023, 12, 15)) == date(2024, 1, 15)


def test_a_short_month_does_not_shorten_those_after_it():
    assert due_dates(date(2023, 12, 31), 4) == [
        date(2023, 12, 31), date(2024, 1, 31), date(2024, 2, 29), date(2024, 3, 31)
    ]
