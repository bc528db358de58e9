"""The tool `list_files`."""

from collections.abc import Mapping
from typing import Any

from activities.coder.calls.arguments import optional, schema
from activities.coder.calls.equipment import Equipment
from activities.coder.files.listed import listed_files
from activities.coder.files.tree_files import shown
from activities.coder.port import ToolContext, ToolResult, ToolSpec
from tightloop.value import counted

SHOWN_FILES = 400


class ListFiles:
    """Lists files that git does not ignore."""

    spec = ToolSpec(
        "list_files",
        "List the files of the project, without those that git ignores.",
        schema(
            path=optional("string", "Folder, such as src; null: all"),
            glob=optional("string", "Pattern for paths, such as **/test_*.py; null: all"),
        ),
    )
    reads = True
    runs = False

    def use(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """List them; see the port."""
        names = listed_files(context.root, arguments["path"], arguments["glob"])
        if not names:
            return ToolResult("no files")
        more = len(names) - SHOWN_FILES
        lines = [shown(name) for name in names[:SHOWN_FILES]]
        lines += [f"[... {counted(more, 'file')} more: give a path or a glob ...]"] if more > 0 else []
        return ToolResult("\n".join(lines))


def make(_equipment: Equipment) -> ListFiles:
    """Return the tool."""
    return ListFiles()
