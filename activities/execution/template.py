"""The template of a command that takes a whole plan: its options, its placeholders, the file with the plan."""

import hashlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from pydantic import ValidationError

from tightloop.errors import ExecutorError
from tightloop.executor import WorkOrder
from tightloop.value import Document

SECRET_CHARACTERS = 6
"""A shorter value would be found in innocent words."""

_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL", re.IGNORECASE)
_PLACEHOLDER = re.compile(r"\{([a-z_]+)\}")


class CommandOptions(Document):
    """What a request may set in `executor.options`; the person who starts the episode vouches for it."""

    argv: tuple[str, ...] = ()
    """Template of one command that takes the whole plan."""
    stdin: bool = False
    """Give it the plan on its standard input, too."""
    network: bool = False
    """Let it see the network, as an agent that asks a model needs."""
    read: tuple[str, ...] = ()
    """More absolute paths that it may read, such as the folder of its login."""
    write: tuple[str, ...] = ()
    environment: tuple[str, ...] = ()
    """Names of variables of the worker that it gets, such as that of its key."""

    def variables(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return the variables that it gets.

        Raises:
            ExecutorError: the worker does not have one of them.
        """
        missing = [name for name in self.environment if name not in environ]
        if missing:
            raise ExecutorError(
                f"option environment of the command executor names {missing[0]}, which the worker does not have. "
                "Set it where the worker is started"
            )
        return {name: environ[name] for name in self.environment}


def options_of(order: WorkOrder) -> CommandOptions:
    """Return the options of an order.

    Raises:
        ExecutorError: one is unknown or wrong.
    """
    try:
        return CommandOptions.model_validate(order.executor.options)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise ExecutorError(
            f"option {place!r} of the command executor is wrong: {first['msg']}. It knows "
            f"{', '.join(CommandOptions.model_fields)}; argv is a list such as "
            '["agent", "--file", "{plan_file}"]'
        ) from None


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


@contextmanager
def written_plan(order: WorkOrder, state_folder: Path) -> Iterator[Path]:
    """Hold the prompt of an order in a private file, outside of what the executor may write."""
    folder = state_folder / "plans"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / f"{hashlib.sha256(order.key.encode()).hexdigest()[:16]}.md"
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(order.prompt)
        yield path
    finally:
        path.unlink(missing_ok=True)


def without_secrets(output: bytes, variables: Mapping[str, str]) -> bytes:
    """Return the output with the values of variables that look like secrets masked."""
    for name, value in variables.items():
        if _SECRET.search(name) and len(value) >= SECRET_CHARACTERS:
            output = output.replace(value.encode(), b"**********")
    return output
