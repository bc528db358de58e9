"""References in shell commands: values travel as environment variables, so that no value is ever read as a command.

Quoting the text of a value is not enough: within double quotes a quoted `$(...)` is executed.
"""

import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tightloop.errors import InvalidRequestError
from tightloop.plan.language.command import find_place_faults, operand, place_references
from tightloop.plan.language.reference import as_text
from tightloop.safety.commands.places import Place

VARIABLE = "TIGHTLOOP_VALUE_"
VALUE_BYTES = 100_000
"""Linux takes no longer variable than 128 KiB (`MAX_ARG_STRLEN` in execve(2))."""
# Linux takes a quarter of the stack limit for arguments and environment together: 2 MiB of the usual 8 (execve(2)).
ALL_BYTES = 1_000_000
_SPECIAL = re.compile(r'[\\"$`]')


@dataclass(frozen=True)
class Command:
    """A command without references, and the variables that hold their values."""

    text: str
    shown: str
    """As a person would write it: a shell would read the same words. The policy judges this."""
    variables: dict[str, str] = field(default_factory=dict)

    @property
    def script(self) -> str:
        """The command after assignments of its variables, for what runs it with a fixed environment."""
        return "".join(f"{name}={shlex.quote(value)}\n" for name, value in self.variables.items()) + self.text


def shell_command(text: str, lookup: Callable[[str], Any]) -> Command:
    """Return a command whose references are replaced by variables.

    A value is one word; a list of plain values is several, where it stands outside of quotes. In arithmetic it is a
    number, which is written out.

    Raises:
        ReferenceMissingError: a reference has no value.
        ExpressionError: one is malformed.
        InvalidRequestError: a value is too large for a command, holds a zero byte, or is not a number where the shell
            calculates; or a reference stands where the shell expands nothing.
    """
    placed = place_references(text)
    for _, said, hint in find_place_faults(placed):
        raise InvalidRequestError(f"{said}. {hint}")
    variables, parts, shown = dict[str, str](), list[str](), list[str]()
    for piece, (place, _), _ in placed:
        if not piece.is_reference:
            parts.append(piece.text)
            shown.append(piece.text)
            continue
        value = lookup(piece.text)
        if place is Place.ARITHMETIC:
            parts.append(operand(piece.text, value))
            shown.append(parts[-1])
            continue
        plain = isinstance(value, list | tuple) and all(not isinstance(item, dict | list | tuple) for item in value)
        words = list(value) if plain and place is Place.UNQUOTED else [value]
        names = [_stored(as_text(word), piece.text, variables) for word in words]
        parts.append(" ".join(_expansion(name, place) for name in names))
        shown.append(" ".join(_written(as_text(word), place) for word in words))
    if sum(map(len, variables.values())) > ALL_BYTES:
        raise InvalidRequestError(f"the values in the command have more than {ALL_BYTES} bytes. Pass them by a file")
    return Command("".join(parts), "".join(shown), variables)


def variable(name: str, value: Any) -> str:
    """Return a value as the text of an environment variable.

    Raises:
        InvalidRequestError: it is too large for one, or holds a zero byte; the message names it.
    """
    text = as_text(value)
    if len(text.encode("utf-8", "surrogatepass")) > VALUE_BYTES or "\0" in text:
        raise InvalidRequestError(
            f"{name} does not fit into a command: it has more than {VALUE_BYTES} bytes, or a zero byte. "
            "Write it to a file with an edit step, and read it there"
        )
    return text


def _stored(text: str, reference: str, variables: dict[str, str]) -> str:
    name = f"{VARIABLE}{len(variables) + 1}"
    variables[name] = variable(f"${{{reference}}}", text)
    return name


def _expansion(name: str, place: Place) -> str:
    """Return how a variable is written at a place, so that it is expanded there to exactly one word."""
    if place is Place.SINGLE_QUOTED:
        # Ends the quotes, inserts the variable in double quotes, and begins them again.
        return f"'\"${{{name}}}\"'"
    return f'"${{{name}}}"' if place is Place.UNQUOTED else f"${{{name}}}"


def _written(text: str, place: Place) -> str:
    """Return how a person would write the value at a place."""
    match place:
        case Place.UNQUOTED:
            return shlex.quote(text)
        case Place.SINGLE_QUOTED:
            return text.replace("'", "'\\''")
        case Place.COMMENT:
            return " ".join(text.splitlines())
        case Place.DOUBLE_QUOTED | Place.HERE_DOCUMENT:
            return _SPECIAL.sub(r"\\\g<0>", text)
        case Place.LITERAL | Place.ARITHMETIC:
            return text
