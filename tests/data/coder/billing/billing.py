from datetime import date, timedelta


def next_month(day):
    """Return the same day of the next month, or that month's last day."""
    return day + timedelta(days=30)


def due_dates(start, count):
    """Return the first due dates of a monthly bill, counted from the day it began."""
    dates = [start]
    while len(dates) < count:
        dates.append(next_month(dates[-1]))
    return dates
