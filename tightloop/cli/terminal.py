"""Output for people, using Rich, and for programs, as JSON."""

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from rich import box
from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

PIPE_WIDTH = 200
"""Table width if the output is not a terminal."""
_COLOURS = {
    label: colour
    for colour, labels in {
        "cyan": ("running",),
        "yellow": ("paused", "overdue", "asked", "MEDIUM"),
        "bold yellow": ("NEEDS RESPONSE", "waits", "waiting"),
        "green": ("succeeded", "completed", "recovered", "approved", "HIGH", "ok"),
        "red": ("failed", "rejected", "refused", "blocked", "stuck", "not undone", "LOW", "missing"),
        "magenta": ("cancelled", "compensated"),
        "dim": ("skipped", "abandoned"),
    }.items()
    for label in labels
}
# Text from agents and tools may contain escape sequences that control the reader's terminal.
_CONTROL = {code: None for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"}


def on_terminal() -> bool:
    """Return whether the output goes to a terminal."""
    return sys.stdout.isatty()


def is_attended() -> bool | None:
    """Return True if a person is typing in a terminal, otherwise None."""
    return True if sys.stdin is not None and sys.stdin.isatty() else None


def console(*, stderr: bool = False) -> Console:
    """Return a console that does not truncate piped output."""
    stream = sys.stderr if stderr else sys.stdout
    # Rich assumes 80 columns for a pipe.
    # Rich's highlighter would colour numbers and paths inside texts of agents.
    return Console(width=None if stream.isatty() else PIPE_WIDTH, highlight=False, stderr=stderr)


def show(*parts: RenderableType) -> None:
    """Print output for a person. Text is printed literally, without interpreting markup."""
    out = console()
    for part in parts:
        if isinstance(part, str):
            # No wrapping, so that commands can be copied in one piece.
            out.print(Text(plain(part)), soft_wrap=True)
        else:
            out.print(part)


def show_json(document: Any) -> None:
    """Print a value as a single JSON document."""
    sys.stdout.write(json.dumps(as_plain_values(document), indent=2, ensure_ascii=False) + "\n")


def show_either(document: Any, renderable: RenderableType, *, as_json: bool) -> None:
    """Print a result as JSON or in a human-readable form."""
    if as_json:
        show_json(document)
    else:
        show(renderable)


def as_plain_values(value: Any) -> Any:
    """Convert models to plain values, including those in lists and mappings."""
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    if isinstance(value, dict):
        return {name: as_plain_values(item) for name, item in value.items()}
    # A string is a sequence of strings: this would recurse without end.
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [as_plain_values(item) for item in value]
    return value


def print_error(sentence: str) -> None:
    """Print an error to stderr, red on a terminal."""
    # No wrapping, so that commands can be copied in one piece.
    console(stderr=True).print(Text(plain(sentence), style="red"), soft_wrap=True)


def print_note(sentence: str) -> None:
    """Print a note to stderr that is not part of the result."""
    console(stderr=True).print(Text(plain(sentence), style="dim"), soft_wrap=True)


def plain(text: str) -> str:
    """Remove control characters from text."""
    return text.translate(_CONTROL)


def apply_colour(label: str) -> Text:
    """Return a status, event, class or state as coloured text."""
    return Text(plain(label), style=_COLOURS.get(label, ""))


def table(*headers: str) -> Table:
    """Return an empty table whose first column is never wrapped."""
    result = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for number, header in enumerate(headers):
        # The ids in the first column are copied into commands, so they stay in one piece.
        result.add_column(header, no_wrap=number == 0, overflow="fold")
    return result


def panel(title: str, rows: Iterable[tuple[str, str | Text]], todo: Sequence[str]) -> Panel:
    """Return a panel with the non-empty rows, followed by the actions that a person can take next."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim")
    grid.add_column(overflow="fold")
    for name, value in rows:
        if str(value):
            # As `Text`, because brackets in a goal would be parsed as markup.
            grid.add_row(name, value if isinstance(value, Text) else Text(plain(value)))
    parts: list[RenderableType] = [grid]
    if todo:
        parts += [Text(), Text(plain("\n".join(todo)), style="yellow")]
    return Panel(Group(*parts), title=Text(title), title_align="left", expand=False)
