"""The template of a command that takes a whole plan: its options, its placeholders, the file with the plan."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from activities.executor.agent.record import SHORTEST_SECRET, looks_secret
from tightloop.errors import ExecutorError
from tightloop.executor.model import WorkOrder

_PLACEHOLDER = re.compile(r"\{([a-z_]+)\}")


def fill(template: Sequence[str], order: WorkOrder, plan_file: Path) -> tuple[str, ...]:
    """Replace the placeholders of a template.

    Raises:
        ExecutorError: a placeholder is not known.
    """
    values = {
        "plan_file": str(plan_file),
        "prompt_file": str(plan_file),
        "workspace": order.root,
        "iteration": str(order.iteration),
        "episode": order.episode_id,
    }

    def value(match: re.Match[str]) -> str:
        if match[1] not in values:
            known = ", ".join(f"{{{name}}}" for name in values)
            raise ExecutorError(f"placeholder {match[0]} in executor.argv is not known. Use one of {known}")
        return values[match[1]]

    return tuple(_PLACEHOLDER.sub(value, part) for part in template)


def mask_secrets(output: bytes, variables: Mapping[str, str]) -> bytes:
    """Return the output with the values of variables that look like secrets masked."""
    for name, value in variables.items():
        if looks_secret(name) and len(value) >= SHORTEST_SECRET:
            output = output.replace(value.encode(), b"**********")
    return output
