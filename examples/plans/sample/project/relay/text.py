"""Values as text."""


def fmt(value: object) -> str:
    """Return a value for a person."""
    return "none" if value is None else str(value)
