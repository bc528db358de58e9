"""The tool `memory_search`."""

from collections.abc import Mapping
from typing import Any

from activities.coder.calls.arguments import optional, schema, text
from activities.coder.calls.equipment import Equipment
from activities.coder.port import ToolContext, ToolResult, ToolSpec

USUAL = 3
MOST = 10


class MemorySearch:
    """Looks for what earlier work on the project has taught."""

    spec = ToolSpec(
        "memory_search",
        "Search what is remembered of this project: failures, what solved them, facts.",
        schema(
            query=text("An error message, or what is wanted in a few words"),
            limit=optional("integer", f"Null: {USUAL}", minimum=1, maximum=MOST),
        ),
    )
    reads = True
    runs = False

    def use(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """Search; see the port."""
        if context.memory is None:
            return ToolResult("this project has no memory. Go on without it")
        found = context.memory.search(arguments["query"], arguments["limit"] or USUAL)
        return ToolResult("\n\n".join(found) or "nothing that fits is remembered")


def make(_equipment: Equipment) -> MemorySearch:
    """Return the tool."""
    return MemorySearch()
