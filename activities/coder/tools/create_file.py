"""The tool `create_file`."""

from collections.abc import Mapping
from typing import Any

from activities.coder.calls.arguments import optional, schema, text
from activities.coder.calls.equipment import Equipment
from activities.coder.files.content import check_placeholders, line_ends_of
from activities.coder.files.tree_files import check_writable, read_file, relative, shown
from activities.coder.port import FileChange, ToolContext, ToolError, ToolSpec
from tightloop.value import counted


class CreateFile:
    """Writes a whole file."""

    spec = ToolSpec(
        "create_file",
        "Write a whole file. Folders that are missing are made.",
        schema(
            path=text("Path below the root of the project"),
            content=text("The whole content"),
            overwrite=optional("boolean", "true: replace the file that is there"),
        ),
    )
    reads = False
    runs = False

    def use(self, arguments: Mapping[str, Any], context: ToolContext) -> FileChange:
        """Prepare the new file; see the port."""
        path = relative(context.root, arguments["path"])
        check_writable(path)
        before = read_file(context.root, path)
        if before is not None and not arguments["overwrite"]:
            lines = counted(before.count(b"\n"), "line")
            raise ToolError(f"{shown(path)} is there already, with {lines}. Use edit_file, or overwrite: true")
        after = line_ends_of(before, arguments["content"]).encode()
        check_placeholders(before or b"", after)
        what = "written" if before is None else "replaced"
        said = f"{shown(path)} {what}, with {counted(len(after.splitlines()), 'line')}"
        is_script = before is None and after.startswith(b"#!")
        return FileChange(path=path, before=before, after=after, text=said, executable=is_script)


def make(_equipment: Equipment) -> CreateFile:
    """Return the tool."""
    return CreateFile()
