"""Durations as people write them: `90s`, `5m`, `1h30m`."""

import re

UNITS = {"h": 3600, "m": 60, "s": 1}
_PART = re.compile(r"(\d+)([hms])")


def seconds(text: str) -> int:
    """Return the seconds of a duration."""
    part = _PART.match(text)
    if part is None:
        raise ValueError(f"{text!r} is not a duration")
    return int(part[1]) * UNITS[part[2]]
