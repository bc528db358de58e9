"""The tool `search`."""

from collections.abc import Mapping
from typing import Any

from activities.coder.calls.arguments import optional, schema, text
from activities.coder.calls.equipment import Equipment
from activities.coder.files.listed import listed_files
from activities.coder.port import ToolContext, ToolResult, ToolSpec
from activities.coder.searching.search import Query, search_files


class Search:
    """Searches files that git does not ignore, for a regular expression."""

    spec = ToolSpec(
        "search",
        "Search the text files of the project, line by line, for a regular expression.",
        schema(
            pattern=text("Regular expression, as ripgrep takes it"),
            path=optional("string", "Folder or file, such as src; null: all"),
            glob=optional("string", "Pattern for paths, such as **/*.py; null: all"),
            literal=optional("boolean", "true: the pattern is plain text"),
            ignore_case=optional("boolean", "true: upper and lower case are alike"),
            context=optional("integer", "Lines shown around each match; null: 0", minimum=0, maximum=10),
        ),
    )
    reads = True
    runs = False

    def use(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """Search; see the port."""
        query = Query(
            pattern=arguments["pattern"],
            literal=bool(arguments["literal"]),
            ignore_case=bool(arguments["ignore_case"]),
            context=arguments["context"] or 0,
        )
        names = listed_files(context.root, arguments["path"], arguments["glob"])
        return ToolResult(search_files(context.root, names, query, cancelled=context.cancelled))


def make(_equipment: Equipment) -> Search:
    """Return the tool."""
    return Search()
