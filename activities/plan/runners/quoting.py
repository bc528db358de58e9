"""References in shell commands: values travel as environment variables, so that no value is ever read as a command.

Quoting the text of a value is not enough: within double quotes a quoted `$(...)` is executed.
"""

import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tightloop.errors import InvalidRequestError
from tightloop.plan.language.reference import as_text, pieces

VARIABLE = "TIGHTLOOP_VALUE_"
VALUE_BYTES = 100_000
"""Linux takes no longer variable than 128 KiB (`MAX_ARG_STRLEN` in execve(2))."""
ALL_BYTES = 1_000_000
_SPECIAL = re.compile(r'[\\"$`]')


@dataclass(frozen=True)
class Command:
    """A command without references, and the variables that hold their values."""

    text: str
    shown: str
    """As a person would write it: a shell would read the same words. The policy judges this."""
    variables: dict[str, str] = field(default_factory=dict)


def shell_command(text: str, lookup: Callable[[str], Any]) -> Command:
    """Return a command whose references are replaced by variables.

    A value is one word; a list of plain values is several, where it stands outside of quotes.

    Raises:
        ReferenceMissingError: a reference has no value.
        ExpressionError: one is malformed.
        InvalidRequestError: a value is too large for a command, or holds a zero byte.
    """
    quoting, variables, parts, shown = _Quoting(), dict[str, str](), list[str](), list[str]()
    for piece in pieces(text):
        if not piece.is_reference:
            quoting.read(piece.text)
            parts.append(piece.text)
            shown.append(piece.text)
            continue
        value = lookup(piece.text)
        plain = isinstance(value, list | tuple) and all(not isinstance(item, dict | list | tuple) for item in value)
        words = list(value) if plain and not quoting.within else [value]
        names = [_stored(as_text(word), piece.text, variables) for word in words]
        parts.append(" ".join(quoting.around(name) for name in names))
        shown.append(" ".join(quoting.written(as_text(word)) for word in words))
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


class _Quoting:
    """Follows quotes, comments and here-documents of a command, as far as it decides how a variable is written.

    Where it is wrong (a shift in an arithmetic expression looks like a here-document), a value may be split or stay
    away; it is executed in no case.
    """

    def __init__(self) -> None:
        self.within = ""
        """A quote, `#` in a comment, `<<` in a here-document; empty: none of them."""
        self._before = "\n"
        self._escaped = False
        self._delimiter: str | None = None
        """What was read of a delimiter, with its quotes."""
        self._waiting: list[str] = []
        """Delimiters of the here-documents that begin on the next line."""
        self._line = ""

    def read(self, text: str) -> None:
        """Take note of literal text."""
        for letter in text:
            if self.within == "<<":
                self._read_document(letter)
            elif self._delimiter is None or not self._read_delimiter(letter):
                self._read_command(letter)
            self._before = letter

    def around(self, name: str) -> str:
        """Return how the variable is written at this place.

        Raises:
            InvalidRequestError: nothing is replaced there by the shell.
        """
        self._before, self._line = "x", f"{self._line}x"
        if self.within == "'":
            return f"'\"${{{name}}}\"'"
        if self.within == "<<" and self._waiting[0].strip("'\"\\") != self._waiting[0]:
            raise InvalidRequestError(
                f"a reference stands in a here-document whose delimiter {self._waiting[0]} is quoted, where the shell "
                "replaces nothing. Remove the quotes of the delimiter"
            )
        return f"${{{name}}}" if self.within else f'"${{{name}}}"'

    def written(self, text: str) -> str:
        """Return how a person would write the value at this place."""
        if self.within == "'":
            return text.replace("'", "'\\''")
        if self.within == "#":
            return " ".join(text.splitlines())
        return _SPECIAL.sub(r"\\\g<0>", text) if self.within else shlex.quote(text)

    def _read_command(self, letter: str) -> None:
        if self._escaped:
            self._escaped = False
        elif letter == "\\" and self.within in ("", '"'):
            self._escaped = True
        elif letter == "\n" and self.within in ("", "#"):
            self.within = "<<" if self._waiting else ""
        elif letter == self.within and letter in "'\"":
            self.within = ""
        elif not self.within:
            self._read_unquoted(letter)

    def _read_unquoted(self, letter: str) -> None:
        if letter in "'\"":
            self.within = letter
        elif letter == "#" and self._before in " \t\n;|&()":
            self.within = "#"
        elif letter == "<" and self._before == "<":
            self._delimiter = ""

    def _read_delimiter(self, letter: str) -> bool:
        """Take a letter of a delimiter; return False for the first one behind it."""
        begun = self._delimiter or ""
        if not begun and letter in " \t-":
            return True
        if letter not in " \t\n;|&<>()":
            self._delimiter = begun + letter
            return True
        if begun:
            self._waiting.append(begun)
        self._delimiter = None
        return False

    def _read_document(self, letter: str) -> None:
        if letter != "\n":
            self._line += letter
            return
        if self._line.lstrip("\t") == self._waiting[0].strip("'\"\\"):
            del self._waiting[0]
            self.within = "<<" if self._waiting else ""
        self._line = ""
