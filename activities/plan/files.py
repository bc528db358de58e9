"""File access of steps, and shell quoting."""

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
from tightloop.safety.commands.effects import QuotingContext

CLOSED = frozenset({".git"})
"""Folders that no step may touch, at any depth."""
READ_BYTES = 8 * 1024 * 1024
NAME_BYTES = 240
"""Maximum length of a path component in bytes. File systems allow 255, and files being written have longer temporary
names.
"""
# PATH_MAX is 4 096 on Linux, and includes the workspace's path.
PATH_BYTES = 3_000


def resolve_path(root: Path, path: str) -> Path:
    """Return the absolute form of a relative path.

    Raises:
        InvalidRequestError: the path is absolute, leaves the tree, crosses a symlink or enters `.git`.
    """
    parts = PurePosixPath(path).parts
    if not path or "\0" in path or path.startswith("/") or ".." in parts or not parts:
        raise InvalidRequestError(f"{path!r} is not a relative path inside the tree. Use a path such as src/module.py")
    # Casefolded: on case-insensitive file systems such as macOS, `.GIT` is `.git`.
    if any(part.casefold() in CLOSED for part in parts):
        raise InvalidRequestError(f"{path!r} is in a folder that steps must not access ({', '.join(sorted(CLOSED))})")
    if any(len(os.fsencode(part)) > NAME_BYTES for part in parts) or len(os.fsencode(path)) > PATH_BYTES:
        raise InvalidRequestError(f"path {path[:80]!r}... is too long. Shorten the path")
    location = root
    # Not the last part: it may be missing, and readers open it with O_NOFOLLOW.
    for part in parts[:-1]:
        location = location / part
        if location.is_symlink():
            raise InvalidRequestError(
                f"{path!r} goes through the symbolic link {location.relative_to(root)}. Use the real path"
            )
        if location.exists() and not location.is_dir():
            raise InvalidRequestError(f"{path!r} cannot exist: {location.relative_to(root)} is a file")
    return location / parts[-1]


def read_text(root: Path, path: str) -> str | None:
    """Read a regular file as text.

    Raises the same errors as `read_file`, and an error for invalid UTF-8.
    """
    content = read_file(root, path)
    try:
        return None if content is None else content.decode()
    except UnicodeDecodeError as error:
        raise InvalidRequestError(f"{path!r} is not valid UTF-8 text (byte {error.start})") from error


def read_file(root: Path, path: str) -> bytes | None:
    """Read a regular file. Return None if it does not exist.

    Raises:
        InvalidRequestError: the path is rejected, not a regular file, or larger than `READ_BYTES`.
    """
    location = resolve_path(root, path)
    try:
        # O_NONBLOCK: opening a named pipe would block. O_NOFOLLOW: the file may be a symlink, or become one now.
        descriptor = os.open(location, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InvalidRequestError(f"cannot open the file {path!r}: {error.strerror}") from error
    try:
        state = os.fstat(descriptor)
        if not stat.S_ISREG(state.st_mode):
            raise InvalidRequestError(f"{path!r} is not a regular file")
        if state.st_size > READ_BYTES:
            raise InvalidRequestError(
                f"{path!r} is {state.st_size} bytes long, but the limit is {READ_BYTES} bytes. Use "
                "a smaller file, such as an excerpt"
            )
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            # Bounded again, as the file may grow after fstat.
            return file.read(READ_BYTES)
    finally:
        os.close(descriptor)


VARIABLE = "TIGHTLOOP_VALUE_"
VALUE_BYTES = 100_000
"""Maximum size of a variable in bytes. Linux allows 128 KiB (`MAX_ARG_STRLEN` in execve(2))."""
# Linux limits arguments and environment together to a quarter of the stack limit: 2 MiB of the usual 8 (execve(2)).
ALL_BYTES = 1_000_000
# The characters that keep their meaning within double quotes (POSIX, Shell Command Language, 2.2.3).
_SPECIAL = re.compile(r'[\\"$`]')


@dataclass(frozen=True)
class Command:
    """A shell command whose references have been replaced with variables."""

    text: str
    inlined_text: str
    """Command with inlined, quoted values. A shell reads the same words from it. The policy is applied to this text."""
    variables: dict[str, str] = field(default_factory=dict)

    @property
    def script(self) -> str:
        """A script that sets the variables and then runs the command.

        It is used by runners with a fixed environment.
        """
        return "".join(f"{name}={shlex.quote(value)}\n" for name, value in self.variables.items()) + self.text


def shell_command(text: str, lookup: Callable[[str], Any]) -> Command:
    """Build a shell command whose references are replaced with variables.

    Each value becomes one word, but an unquoted list of plain values becomes several words. In
    arithmetic, a value must be a number and is inlined.

    Raises:
        ReferenceMissingError: a reference has no value.
        ExpressionError: a reference is malformed.
        InvalidRequestError: a value is too large, contains a zero byte, or is not a number in arithmetic.
            Also raised if a reference is in a place that the shell does not expand.
    """
    placed = place_references(text)
    for _, fault, hint in find_place_faults(placed):
        raise InvalidRequestError(f"{fault}. {hint}")
    variables, parts, inlined = dict[str, str](), list[str](), list[str]()
    for piece, (quoting, _), _ in placed:
        if not piece.is_reference:
            parts.append(piece.text)
            inlined.append(piece.text)
            continue
        value = lookup(piece.text)
        if quoting is QuotingContext.ARITHMETIC:
            parts.append(operand(piece.text, value))
            inlined.append(parts[-1])
            continue
        plain = isinstance(value, list | tuple) and all(not isinstance(item, dict | list | tuple) for item in value)
        values = list(value) if plain and quoting is QuotingContext.UNQUOTED else [value]
        names = [_store_variable(as_text(element), piece.text, variables) for element in values]
        parts.append(" ".join(_expansion(name, quoting) for name in names))
        inlined.append(" ".join(_written(as_text(element), quoting) for element in values))
    if sum(map(len, variables.values())) > ALL_BYTES:
        raise InvalidRequestError(
            f"the values in the command take up more than {ALL_BYTES} bytes in total. Pass the values in a file"
        )
    return Command("".join(parts), "".join(inlined), variables)


def variable(name: str, value: Any) -> str:
    """Format a value as text for an environment variable.

    Raises:
        InvalidRequestError: the value is too large or contains a zero byte. The message names the variable.
    """
    text = as_text(value)
    # A zero byte ends a C string, so the kernel cannot pass it in a variable.
    if len(text.encode("utf-8", "surrogatepass")) > VALUE_BYTES or "\0" in text:
        raise InvalidRequestError(
            f"{name} cannot be passed in a command: its value is larger than {VALUE_BYTES} bytes or contains a "
            "null byte. Write the value to a file with an edit step, and read the file in the command"
        )
    return text


def _store_variable(text: str, reference: str, variables: dict[str, str]) -> str:
    name = f"{VARIABLE}{len(variables) + 1}"
    variables[name] = variable(f"${{{reference}}}", text)
    return name


def _expansion(name: str, quoting: QuotingContext) -> str:
    """Return the shell expansion that yields exactly one word at this position."""
    if quoting is QuotingContext.SINGLE_QUOTED:
        # Closes the quotes, inserts the variable in double quotes and opens them again.
        return f"'\"${{{name}}}\"'"
    return f'"${{{name}}}"' if quoting is QuotingContext.UNQUOTED else f"${{{name}}}"


def _written(text: str, quoting: QuotingContext) -> str:
    """Return a value as literal text that is quoted for this position in the command."""
    match quoting:
        case QuotingContext.UNQUOTED:
            return shlex.quote(text)
        case QuotingContext.SINGLE_QUOTED:
            return text.replace("'", "'\\''")
        case QuotingContext.COMMENT:
            # A line break would end the comment, and the rest of the value would run as a command.
            return " ".join(text.splitlines())
        case QuotingContext.DOUBLE_QUOTED | QuotingContext.HERE_DOCUMENT:
            return _SPECIAL.sub(r"\\\g<0>", text)
        case QuotingContext.LITERAL | QuotingContext.ARITHMETIC:
            return text
