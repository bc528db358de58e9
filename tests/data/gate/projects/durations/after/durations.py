"""Durations as people write them."""

import re

UNITS = {"d": 86400, "h": 3600, "m": 60, "s": 1}
_PART = re.compile(r"(\d+)([dhms])")
_WHOLE = re.compile(r"(?:\d+[dhms])+")


def parse(text):
    """Return the seconds of a text such as `1h30m`.

    Raises:
        ValueError: it is not a duration.
    """
    text = text.strip().lower()
    if not _WHOLE.fullmatch(text):
        raise ValueError(f"{text!r} is not a duration such as 1h30m")
    total = 0
    for number, unit in _PART.findall(text):
        total += int(number) * UNITS[unit]
    return total


def show(seconds):
    """Return seconds as people write them, largest unit first."""
    if seconds < 0:
        return "-" + show(-seconds)
    parts = []
    for unit, size in UNITS.items():
        count, seconds = divmod(seconds, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"
