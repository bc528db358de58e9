"""Durations as people write them: `90s`, `5m`, `2h`, `1d`."""

import re
from datetime import timedelta
from typing import Annotated, Any

from pydantic import BeforeValidator

UNITS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400}
"""What may follow the number, in seconds."""
_FORM = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|min|h|d)")


def read_seconds(text: str) -> float | None:
    """Return the seconds of a number with a unit; None: it is written in another way."""
    found = _FORM.fullmatch(text.strip())
    return float(found[1]) * UNITS[found[2]] if found else None


def _in_seconds(value: Any) -> Any:
    seconds = read_seconds(value) if isinstance(value, str) else None
    return value if seconds is None else seconds


Duration = Annotated[timedelta, BeforeValidator(_in_seconds)]
"""A time span; read from seconds, `2h`, `2:00:00` or ISO 8601 (`PT2H`)."""
