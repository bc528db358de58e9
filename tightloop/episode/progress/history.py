"""One line of history per iteration: written by the tracker, read by the planner."""

import re
import shlex
from collections.abc import Iterable

from tightloop.value import Value

TITLE_CHARACTERS = 120
COMMAND_CHARACTERS = 300

_LINE = re.compile(
    r"^iteration (?P<iteration>\d+): (?P<title>.*?) -> checks (?P<before>\S+) -> (?P<after>\S+)"
    r"(?: \[(?P<command>.*)\])?(?P<same> \(no change\))?$"
)
_UNKNOWN = "-"


class HistoryEntry(Value):
    """What one iteration did and what came of it."""

    iteration: int
    title: str = ""
    command: str = ""
    """The plan's first command as `command_text` writes it; empty where there was none."""
    before: str = _UNKNOWN
    """Passed of all checks before the iteration, such as `1/3`."""
    after: str = _UNKNOWN
    changed: bool = True
    """The tree was changed."""


def one_line(text: str, limit: int) -> str:
    """Return the text on one line, at most `limit` characters: the start of a title or command tells it apart."""
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 3] + "..."


def command_text(command: Iterable[str]) -> str:
    """Return a command as one shell-quoted line, at most `COMMAND_CHARACTERS`."""
    return one_line(shlex.join(command), COMMAND_CHARACTERS)


def history_line(
    iteration: int, title: str, *, command: Iterable[str] = (), before: str = "", after: str = "", changed: bool
) -> str:
    """Return the line of an iteration, such as `iteration 3: Sort imports -> checks 1/3 -> 2/3 [isort .]`."""
    # The line is read back: a title must not contain the arrow that ends it.
    shown = one_line(title.replace("->", "→"), TITLE_CHARACTERS)
    text = command_text(command)
    return (
        f"iteration {iteration}: {shown} -> checks {_word(before)} -> {_word(after)}"
        + (f" [{text}]" if text else "")
        + ("" if changed else " (no change)")
    )


def parse_history_line(line: str) -> HistoryEntry | None:
    """Read a line that `history_line` wrote; None for any other line."""
    found = _LINE.match(line.strip())
    if found is None:
        return None
    return HistoryEntry(
        iteration=int(found["iteration"]),
        title=found["title"],
        command=found["command"] or "",
        before=found["before"],
        after=found["after"],
        changed=found["same"] is None,
    )


def parse_history(lines: Iterable[str]) -> tuple[HistoryEntry, ...]:
    """Read the lines that `history_line` wrote, in their order; other lines are left out."""
    return tuple(entry for line in lines if (entry := parse_history_line(line)) is not None)


def _word(text: str) -> str:
    return "".join(text.split()) or _UNKNOWN
