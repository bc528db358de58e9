"""The tool `run_command`."""

from collections.abc import Mapping
from typing import Any

from activities.coder.calls.arguments import optional, schema, text
from activities.coder.calls.equipment import Equipment
from activities.coder.calls.running import judge_command, run_shell
from activities.coder.port import ProgramStart, ToolContext, ToolResult, ToolSpec

LONGEST_S = 600
USUAL_S = 120


class RunCommand:
    """Runs a shell command in the sandbox."""

    reads = False
    runs = True
    spec = ToolSpec(
        "run_command",
        "Run a command by /bin/sh at the root of the project, in a sandbox without network. What it leaves in the "
        "background is ended.",
        schema(
            command=text("Shell command"),
            timeout_s=optional("integer", f"Null: {USUAL_S}", minimum=1, maximum=LONGEST_S),
        ),
    )

    def __init__(self, equipment: Equipment) -> None:
        self._equipment = equipment

    def use(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult | ProgramStart:
        """Ask the rules about commands, then prepare the run; see the port."""
        command, timeout_s = arguments["command"], float(arguments["timeout_s"] or USUAL_S)
        refusal = judge_command(command, self._equipment.rubric, context.grants)
        if refusal is not None:
            return refusal
        return ProgramStart(run=lambda: run_shell(self._equipment.runner, command, timeout_s, context))


def make(equipment: Equipment) -> RunCommand:
    """Return the tool."""
    return RunCommand(equipment)
