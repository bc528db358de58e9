"""The tool `finish`."""

from collections.abc import Mapping
from typing import Any

from activities.coder.calls.arguments import schema, text
from activities.coder.calls.equipment import Equipment
from activities.coder.port import ToolContext, ToolResult, ToolSpec


class Finish:
    """Ends the part of a role."""

    spec = ToolSpec(
        "finish",
        "Say that your part is done, and what was done. What you say is checked.",
        schema(summary=text("What was done, and what is left")),
    )
    reads = True
    runs = False

    def use(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """End it; see the port."""
        del context
        return ToolResult(arguments["summary"], finished=True)


def make(_equipment: Equipment) -> Finish:
    """Return the tool."""
    return Finish()
