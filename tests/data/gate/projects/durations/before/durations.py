"""Durations as people write them."""

import re

UNITS = {"h": 3600, "m": 60, "s": 1}
_PART = re.compile(r"(\d+)([hms])")


def parse(text):
    """Return the seconds of a text such as `2h`."""
    total = 0
    for number, unit in _PART.findall(text):
        total = int(number) * UNITS[unit]
    return total
