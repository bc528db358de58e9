"""Lines of a file as a model sees them: each with its number."""

LINE_CHARACTERS = 500
"""Longer lines are cut: they are generated, not written."""


def numbered(lines: list[str], first: int = 1) -> str:
    """Return lines, which have no line ends, each behind its number and a tab."""
    width = len(str(first + len(lines)))
    return "\n".join(f"{number:>{width}}\t{cut(line)}" for number, line in enumerate(lines, start=first))


def cut(line: str) -> str:
    """Return a line, marked where it was cut."""
    surplus = len(line) - LINE_CHARACTERS
    return line if surplus <= 0 else f"{line[:LINE_CHARACTERS]} [... {surplus} more]"
