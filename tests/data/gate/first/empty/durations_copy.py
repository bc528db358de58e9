import re

from durations import parse

UNITS = {"d": 86400, "h": 3600, "m": 60, "s": 1}


def expected(text):
    total = 0
    for number, unit in re.findall(r"(\d+)([dhms])", text):
        total += int(number) * UNITS[unit]
    return total


def test_parse():
    assert parse("1h30m") == expected("1h30m")
