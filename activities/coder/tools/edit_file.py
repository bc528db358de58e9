"""The tool `edit_file`."""

from collections.abc import Mapping
from typing import Any

from activities.coder.calls.arguments import schema, text
from activities.coder.calls.equipment import Equipment
from activities.coder.files.content import check_placeholders, has_placeholder
from activities.coder.files.tree_files import check_writable, is_binary, read_file, relative, shown
from activities.coder.port import FileChange, ToolContext, ToolError, ToolSpec
from tightloop.coder.lines import numbered
from tightloop.coder.patching import Miss, Patched, patch

AROUND_LINES = 2
SHOWN_LINES = 24


class EditFile:
    """Replaces one place of a file."""

    spec = ToolSpec(
        "edit_file",
        "Replace text that is in a file exactly once. Quote whole lines, enough of them to be found only once.",
        schema(
            path=text("Path below the root of the project"),
            old=text("Text that is replaced, without line numbers"),
            new=text("Text that takes its place; empty: it is removed"),
        ),
    )
    reads = False
    runs = False

    def use(self, arguments: Mapping[str, Any], context: ToolContext) -> FileChange:
        """Prepare the change; see the port."""
        path = relative(context.root, arguments["path"])
        check_writable(path)
        before = read_file(context.root, path)
        if before is None:
            raise ToolError(f"{shown(path)} is not there. Use create_file for a new file")
        if is_binary(before):
            raise ToolError(f"{shown(path)} is a binary file: it cannot be edited as text")
        # Bytes that are not UTF-8 come through unchanged.
        found = patch(before.decode("utf-8", "surrogateescape"), arguments["old"], arguments["new"])
        if isinstance(found, Miss):
            raise ToolError(f"{shown(path)} was not changed: {found.reason}{_advice(arguments['old'])}")
        after = found.text.encode("utf-8", "surrogateescape")
        check_placeholders(before, after)
        return FileChange(path=path, before=before, after=after, text=f"{shown(path)} changed{_show(found)}")


def _advice(old: str) -> str:
    if not has_placeholder(old):
        return ""
    return "\nWhat stands in brackets, such as [secret:...], is not in the file: leave those lines out of old"


def _show(found: Patched) -> str:
    lines = found.text.replace("\r\n", "\n").split("\n")
    first = max(found.line - AROUND_LINES, 1)
    end = min(found.line + found.lines - 1 + AROUND_LINES, first + SHOWN_LINES - 1)
    how = f" (found {found.how})" if found.how else ""
    part = "\n".join(lines[first - 1 : end]).encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return f"{how}. It is now:\n{numbered(part.split(chr(10)), first)}"


def make(_equipment: Equipment) -> EditFile:
    """Return the tool."""
    return EditFile()
