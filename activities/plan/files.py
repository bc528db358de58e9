"""Files of a step, and quoting for its shell."""

import os
import re
import shlex
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from tightloop.errors import InvalidRequestError
from tightloop.plan.reference import as_text, find_place_faults, operand, place_references
from tightloop.safety.commands.effects import Place

CLOSED = frozenset({".git"})
"""Folders that no step touches, wherever they are."""
READ_BYTES = 8 * 1024 * 1024
NAME_BYTES = 240
"""Of one part of a path: file systems take 255, and a new file has a longer name for a moment."""
# PATH_MAX of Linux is 4 096, and counts the folder of the workspace too.
PATH_BYTES = 3_000


def resolve_path(root: Path, path: str) -> Path:
    """Return the place of a path below the root.

    Raises:
        InvalidRequestError: it is absolute, leaves the tree, leads through a link, or into `.git`.
    """
    parts = PurePosixPath(path).parts
    if not path or "\0" in path or path.startswith("/") or ".." in parts or not parts:
        raise InvalidRequestError(f"{path!r} is not a path below the root of the tree. Write it as src/module.py")
    # Folded: where the file system ignores case, as on macOS, `.GIT` is `.git`.
    if any(part.casefold() in CLOSED for part in parts):
        raise InvalidRequestError(f"{path!r} lies in a folder that no step may touch ({', '.join(sorted(CLOSED))})")
    if any(len(os.fsencode(part)) > NAME_BYTES for part in parts) or len(os.fsencode(path)) > PATH_BYTES:
        raise InvalidRequestError(f"{path[:80]!r}... is too long for a path. Shorten it")
    place = root
    for part in parts[:-1]:
        place = place / part
        if place.is_symlink():
            raise InvalidRequestError(f"{path!r} leads through the link {place.relative_to(root)}. Name the real path")
        if place.exists() and not place.is_dir():
            raise InvalidRequestError(f"{path!r} cannot be: {place.relative_to(root)} is a file")
    return place / parts[-1]


def read_text(root: Path, path: str) -> str | None:
    """Return a regular file as text; raises as `read_file` does, and where it is not UTF-8."""
    content = read_file(root, path)
    try:
        return None if content is None else content.decode()
    except UnicodeDecodeError as error:
        raise InvalidRequestError(f"{path!r} is not UTF-8 text (byte {error.start})") from error


def read_file(root: Path, path: str) -> bytes | None:
    """Return the bytes of a regular file; None for a missing one.

    Raises:
        InvalidRequestError: the path is refused, it is not a regular file, or larger than `READ_BYTES`.
    """
    place = resolve_path(root, path)
    try:
        # Without O_NONBLOCK a named pipe would be waited for. O_NOFOLLOW: the file may be a link, or become one now.
        descriptor = os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InvalidRequestError(f"{path!r} cannot be read as a file: {error.strerror}") from error
    try:
        state = os.fstat(descriptor)
        if not stat.S_ISREG(state.st_mode):
            raise InvalidRequestError(f"{path!r} is not a regular file")
        if state.st_size > READ_BYTES:
            raise InvalidRequestError(f"{path!r} has {state.st_size} bytes, more than {READ_BYTES}. Take a part of it")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return file.read(READ_BYTES)
    finally:
        os.close(descriptor)


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
