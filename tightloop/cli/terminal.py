"""Prints for people, with Rich, and for programs, as JSON."""

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
"""Width of tables where the output is not a terminal."""
_COLOURS = {
    word: colour
    for colour, words in {
        "cyan": ("running",),
        "yellow": ("paused", "overdue", "asked", "MEDIUM"),
        "bold yellow": ("NEEDS RESPONSE", "waits", "waiting"),
        "green": ("succeeded", "completed", "recovered", "approved", "HIGH", "ok"),
        "red": ("failed", "rejected", "refused", "blocked", "stuck", "not taken back", "LOW", "missing"),
        "magenta": ("cancelled", "compensated"),
        "dim": ("skipped", "abandoned"),
    }.items()
    for word in words
}
# Text of agents and tools may hold escape sequences that would control the reader's terminal.
_CONTROL = {code: None for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"}


def on_terminal() -> bool:
    """Return whether a person looks at the output."""
    return sys.stdout.isatty()


def console(*, stderr: bool = False) -> Console:
    """Return a console that cuts nothing when the output is piped."""
    stream = sys.stderr if stderr else sys.stdout
    # Rich takes 80 columns for a pipe.
    return Console(width=None if stream.isatty() else PIPE_WIDTH, highlight=False, stderr=stderr)


def show(*parts: RenderableType) -> None:
    """Print for a person; text is taken literally, never as markup."""
    out = console()
    for part in parts:
        if isinstance(part, str):
            # Not wrapped, so that a command in it can be copied in one piece.
            out.print(Text(plain(part)), soft_wrap=True)
        else:
            out.print(part)


def show_json(document: Any) -> None:
    """Print one JSON document, and nothing else."""
    sys.stdout.write(json.dumps(as_plain_values(document), indent=2, ensure_ascii=False) + "\n")


def show_either(document: Any, shown: RenderableType, *, as_json: bool) -> None:
    """Print for a program, or for a person."""
    if as_json:
        show_json(document)
    else:
        show(shown)


def as_plain_values(value: Any) -> Any:
    """Return models as plain values, also inside lists and mappings."""
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    if isinstance(value, dict):
        return {name: as_plain_values(item) for name, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [as_plain_values(item) for item in value]
    return value


def complain(sentence: str) -> None:
    """Print an error for a person, in red on a terminal."""
    # Not wrapped, so that a command in the sentence can be copied in one piece.
    console(stderr=True).print(Text(plain(sentence), style="red"), soft_wrap=True)


def remark(sentence: str) -> None:
    """Print a remark that is not part of the result."""
    console(stderr=True).print(Text(plain(sentence), style="dim"), soft_wrap=True)


def plain(text: str) -> str:
    """Return text without control characters."""
    return text.translate(_CONTROL)


def coloured(word: str) -> Text:
    """Return a status, an event, a class or a state in its colour."""
    return Text(plain(word), style=_COLOURS.get(word, ""))


def table(*headers: str) -> Table:
    """Return an empty table; the first column is never broken."""
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for number, header in enumerate(headers):
        made.add_column(header, no_wrap=number == 0, overflow="fold")
    return made


def panel(title: str, rows: Iterable[tuple[str, str | Text]], todo: Sequence[str]) -> Panel:
    """Return names with their values, without the empty ones, and below them what a person can do."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim")
    grid.add_column(overflow="fold")
    for name, value in rows:
        if str(value):
            grid.add_row(name, value if isinstance(value, Text) else Text(plain(value)))
    parts: list[RenderableType] = [grid]
    if todo:
        parts += [Text(), Text(plain("\n".join(todo)), style="yellow")]
    return Panel(Group(*parts), title=Text(title), title_align="left", expand=False)
