"""The tool `remember`."""

from collections.abc import Mapping
from typing import Any

from activities.coder.calls.arguments import schema
from activities.coder.calls.equipment import Equipment
from activities.coder.port import ToolContext, ToolResult, ToolSpec

KEY_CHARACTERS = 120
TEXT_CHARACTERS = 2_000


class Remember:
    """Keeps a fact about the project."""

    spec = ToolSpec(
        "remember",
        "Keep a fact about this project for later work, such as how its tests are run.",
        schema(
            key={"type": "string", "description": "A short name", "minLength": 1, "maxLength": KEY_CHARACTERS},
            text={"type": "string", "description": "The fact", "minLength": 1, "maxLength": TEXT_CHARACTERS},
        ),
    )
    reads = False
    runs = False

    def use(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """Keep it; see the port. To keep it twice changes nothing."""
        if context.memory is None:
            return ToolResult("nothing was kept: this project has no memory. Go on without it")
        context.memory.remember(arguments["key"], arguments["text"])
        return ToolResult(f"kept as {arguments['key']!r}")


def make(_equipment: Equipment) -> Remember:
    """Return the tool."""
    return Remember()
