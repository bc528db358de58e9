"""The tool `delete_file`."""

from collections.abc import Mapping
from typing import Any

from activities.coder.calls.arguments import schema, text
from activities.coder.calls.equipment import Equipment
from activities.coder.files.tree_files import check_writable, read_file, relative, shown
from activities.coder.port import FileChange, ToolContext, ToolError, ToolSpec


class DeleteFile:
    """Removes a file."""

    spec = ToolSpec("delete_file", "Remove a file.", schema(path=text("Path below the root of the project")))
    reads = False
    runs = False

    def use(self, arguments: Mapping[str, Any], context: ToolContext) -> FileChange:
        """Prepare the removal; see the port."""
        path = relative(context.root, arguments["path"])
        check_writable(path)
        before = read_file(context.root, path)
        if before is None:
            raise ToolError(f"{shown(path)} is not there: nothing was removed")
        return FileChange(path=path, before=before, after=None, text=f"{shown(path)} removed")


def make(_equipment: Equipment) -> DeleteFile:
    """Return the tool."""
    return DeleteFile()
