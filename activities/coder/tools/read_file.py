"""The tool `read_file`."""

from collections.abc import Mapping
from typing import Any

from activities.coder.calls.arguments import optional, schema, text
from activities.coder.calls.equipment import Equipment
from activities.coder.files.tree_files import is_binary, read_file, relative, shown
from activities.coder.port import ToolContext, ToolError, ToolResult, ToolSpec
from tightloop.coder.lines import cut, numbered
from tightloop.coder.output import RESULT

SHOWN_LINES = 400
SHOWN_CHARACTERS = 9_000
"""Of one answer, so that its ends are never cut; what follows is read by another call."""


class ReadFile:
    """Shows lines of a file, or of an earlier result of the session."""

    spec = ToolSpec(
        "read_file",
        "Read a text file, with line numbers. An earlier result is read by the name that it was given, result:<id>.",
        schema(
            path=text("Path below the root of the project, or result:<id>"),
            start=optional("integer", "First line, from 1; null: the first", minimum=1),
            end=optional("integer", "Last line; null: as many as fit", minimum=1),
        ),
    )
    reads = True
    runs = False

    def use(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """Show the lines; see the port."""
        path = str(arguments["path"])
        if path.startswith(RESULT):
            return _show(path, _result(path, context), arguments)
        path = relative(context.root, path)
        content = read_file(context.root, path)
        if content is None:
            raise ToolError(f"{shown(path)} is not there. list_files and search show what is")
        if is_binary(content):
            raise ToolError(f"{shown(path)} is a binary file of {len(content):,} bytes: it cannot be shown as text")
        return _show(shown(path), content, arguments)


def _result(path: str, context: ToolContext) -> bytes:
    ref = context.find_result(path.removeprefix(RESULT).strip().lower())
    if ref is None:
        raise ToolError(f"{path[:80]!r} is not a result of this session. Copy its name from where it was shown")
    return context.store.get(ref)


def _show(name: str, content: bytes, arguments: Mapping[str, Any]) -> ToolResult:
    text = content.decode("utf-8", "replace")
    plain = text.replace("\r\n", "\n")
    if not plain:
        return ToolResult(f"{name} is empty")
    lines = plain.removesuffix("\n").split("\n")
    first, last = arguments["start"] or 1, arguments["end"] or len(lines)
    if first > len(lines) or last < first:
        raise ToolError(f"{name} has lines 1 to {len(lines)}, not {first} to {last}")
    chosen = _fitting(lines[first - 1 : min(last, first + SHOWN_LINES - 1)])
    end = first + len(chosen) - 1
    marks = [f"lines {first} to {end} of {len(lines)}"]
    marks += ["CRLF line ends"] if "\r\n" in text else []
    marks += ["no line end at the end of the file"] if not plain.endswith("\n") else []
    rest = f"\n[go on with start={end + 1}]" if end < min(last, len(lines)) else ""
    return ToolResult(f"{name}: {', '.join(marks)}\n{numbered(chosen, first)}{rest}")


def _fitting(lines: list[str]) -> list[str]:
    """Return the first lines, at least one, that fit into an answer."""
    room = SHOWN_CHARACTERS
    for number, line in enumerate(lines):
        room -= len(cut(line)) + 8
        if room < 0:
            return lines[: max(number, 1)]
    return lines


def make(_equipment: Equipment) -> ReadFile:
    """Return the tool."""
    return ReadFile()
