"""What is sent when something is wrong."""

from relay import text


def notice(subject: str, detail: object = None) -> str:
    """Return the text of a notice."""
    return f"{subject}: {text.fmt(detail)}"
