"""The line of an output that says most about a failure."""

import re

from tightloop.episode.failure import without_noise

_ERROR_LINES = tuple(
    re.compile(pattern, re.MULTILINE)
    for pattern in (
        r"^E  +(?:assert\b|[\w.]*(?:Error|Exception|Warning)\b).*$",
        r"^E  +[^\s+].*$",
        r"^.*\b[A-Z]\w*(?:Error|Exception)\b.*$",
        r"^(?:\S*:\d+:\d+: )?[A-Z]{1,6}\d{3,4}\b.*$",
        r"^(?!Found ).*\berror\b.*$",
        r"^.*\S.*$",
    )
)
"""Lines that explain a failure, the best first: pytest's error, an exception, a finding, an error, anything."""

_MARK = re.compile(r"^E  +")
_TYPE = re.compile(r"\b([A-Z]\w*(?:Error|Exception|Warning|Exit|Interrupt))\b|(?:^|\s)([A-Z]{1,6}\d{3,4})\b")


def telling_line(text: str) -> str:
    """Return the line as it was printed; empty where nothing was."""
    for pattern in _ERROR_LINES:
        if lines := pattern.findall(text):
            return str(lines[-1])
    return ""


def said_line(text: str) -> str:
    """Return the line without what changes from run to run: equal failures say the same."""
    return without_noise(_MARK.sub("", telling_line(text).strip()))


def failure_type(text: str) -> str:
    """Return the exception or the rule that a line names; empty where it names none."""
    found = _TYPE.search(telling_line(text))
    return (found[1] or found[2]) if found else ""
