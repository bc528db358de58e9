"""Durations as people write them: `90s`, `5m`, `1h30m`."""

UNITS = {"h": 3600, "m": 60, "s": 1}


def seconds(text: str) -> int:
    """Return the seconds of a duration."""
    total, digits = 0, ""
    for letter in text:
        if letter.isdigit():
            digits += letter
        elif letter in UNITS and digits:
            total, digits = total + int(digits) * UNITS[letter], ""
        else:
            raise ValueError(f"{text!r} is not a duration")
    if digits or not text:
        raise ValueError(f"{text!r} is not a duration")
    return total
