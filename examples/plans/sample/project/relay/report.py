"""What a person reads about a day."""

from relay.text import fmt


def report(counts: dict[int, int]) -> str:
    """Return one line for each status."""
    lines = [f"{fmt(status)}: {fmt(count)}" for status, count in sorted(counts.items())]
    return "\n".join(lines) if lines else fmt(None)
