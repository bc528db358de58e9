"""The text of an expression as `ast` can read it: references and texts replaced by marks in the same columns."""

import ast
import re
from collections.abc import Mapping
from typing import NamedTuple

from tightloop.errors import ExpressionError
from tightloop.plan.language.reference import Piece, pieces

MARKS_LIMIT = 200
"""References and texts in one expression."""
# A letter, so that marks are names to `ast`; nobody types it. `ast` counts columns in bytes, of which it has two.
MARK = "\u01c3"

_TEXT = re.compile(r"'((?:[^'\\]|\\.)*)'|\"((?:[^\"\\]|\\.)*)\"", re.DOTALL)
_ESCAPE = re.compile(r"\\(['\"\\nt])")
_ESCAPED = {"n": "\n", "t": "\t"}


class Mark(NamedTuple):
    """What stands in the original where `Source.text` has a name of `MARK`s."""

    value: str
    """A reference as `${name}`, a text as its value, which may hold references."""
    is_reference: bool
    """A reference itself, not a text."""
    size: int
    """Characters in the original."""


class Source(NamedTuple):
    """An expression in which each reference and text was replaced by as many `MARK`s as it has characters."""

    text: str
    """Without blanks around it, and in one line."""
    marks: Mapping[int, Mark]
    """By the column in the original, from 1."""
    indent: int
    """Blanks before it in the original."""

    def column(self, node: ast.AST) -> int:
        """Return where a node stands in the original, from 1."""
        at = getattr(node, "col_offset", 0)
        return self.indent + len(self.text.encode()[:at].decode(errors="ignore")) + 1

    def mark(self, node: ast.AST) -> Mark | None:
        """Return what a name stands for; None for another name, or for marks without an operator between."""
        found = self.marks.get(self.column(node)) if isinstance(node, ast.Name) and MARK in node.id else None
        return found if found and isinstance(node, ast.Name) and found.size == len(node.id) else None


def marked(text: str) -> Source:
    """Replace references and texts by marks.

    Raises:
        ExpressionError: one has no end, or is malformed.
    """
    if MARK in text or "\0" in text:
        raise ExpressionError("the text holds a character that no expression has", 1, "remove it")
    whole = ""
    marks: dict[int, Mark] = {}
    while (at := len(whole)) < len(text):
        if text.startswith("${", at):
            end = text.find("}", at) + 1 or len(text)
            ((value, _),) = _pieces(text[at:end], at)
            mark = Mark(f"${{{value}}}", is_reference=True, size=end - at)
        elif text[at] in "'\"":
            found = _TEXT.match(text, at)
            if found is None:
                raise ExpressionError("a text has no closing quote", at + 1, f"add {text[at]}")
            plain = _ESCAPE.sub(lambda one: _ESCAPED.get(one[1], one[1]), found[1] or found[2] or "")
            _pieces(plain, at + 1)
            mark = Mark(plain, is_reference=False, size=len(found[0]))
        else:
            whole += " " if text[at].isspace() else text[at]
            continue
        marks[at + 1] = mark
        whole += MARK * mark.size
    if len(marks) > MARKS_LIMIT:
        raise ExpressionError(f"more than {MARKS_LIMIT} references and texts", 1, "let a step compute it")
    return Source(whole.strip(), marks, len(whole) - len(whole.lstrip()))


def _pieces(text: str, before: int) -> tuple[Piece, ...]:
    """Split a part of an expression that begins behind `before` characters."""
    try:
        return pieces(text)
    except ExpressionError as error:
        raise ExpressionError(error.problem, before + error.column, error.suggestion) from None


def tree_of(source: Source) -> ast.expr:
    """Read the marked text.

    Raises:
        ExpressionError: it is not of the form of an expression.
    """
    if not source.text:
        raise ExpressionError("the expression is empty", 1, "a right one is ${exit_code} == 0")
    try:
        return ast.parse(source.text, mode="eval").body
    except SyntaxError as error:
        # Where the end came too early the offset is missing, or behind the text.
        at = min(error.offset or len(source.text), len(source.text))
        raise ExpressionError(
            "this is not an expression", source.indent + at, "a right one is len(${collect.sources}) >= 5"
        ) from None
    except (RecursionError, MemoryError, ValueError):
        # CPython's parser refuses deep brackets with MemoryError, its compiler with RecursionError.
        raise ExpressionError("the expression is nested too deeply", 1, "let a step compute it") from None
