"""The text of an expression as `ast` can read it: references and texts replaced by marks, and where they stood."""

import ast
import re
from typing import NamedTuple

from tightloop.errors import ExpressionError
from tightloop.plan.language.reference import pieces

MARKS_LIMIT = 200
"""References and texts in one expression."""
MARK = "\u01c3"
"""A letter, so that a mark is a name to `ast`; nobody types it."""

_TEXT = re.compile(r"'((?:[^'\\]|\\.)*)'|\"((?:[^\"\\]|\\.)*)\"", re.DOTALL)
_ESCAPE = re.compile(r"\\(['\"\\nt])")
_ESCAPED = {"n": "\n", "t": "\t"}


class Source(NamedTuple):
    """An expression whose references and texts were replaced by marks, which are names to `ast`."""

    text: str
    marks: tuple[str, ...]
    """A reference as `${name}`, a text as its value, which may hold references."""
    plain: frozenset[int]
    """Marks that stand for a reference itself, not for a text."""
    origin: tuple[int, ...]
    """Column in the original of each character of `text`."""


def marked(text: str) -> Source:
    """Replace references and texts by marks.

    Raises:
        ExpressionError: one has no end, or is malformed.
    """
    if MARK in text or "\0" in text:
        raise ExpressionError("the text holds a character that no expression has", 1, "remove it")
    parts: list[tuple[str, int, bool]] = []  # text, column, is a mark
    marks: list[str] = []
    plain: set[int] = set()
    at = 0

    def mark(value: str, start: int) -> None:
        parts.append((f"{MARK}{len(marks)}{MARK}", start, True))
        marks.append(value)

    while at < len(text):
        if text.startswith("${", at):
            end = text.find("}", at) + 1
            plain.add(len(marks))
            mark(_reference(text, at, end), at)
            at = end
        elif text[at] in "'\"":
            found = _TEXT.match(text, at)
            if found is None:
                raise ExpressionError("a text has no closing quote", at + 1, f"add {text[at]}")
            mark(_unescaped(found[1] if found[1] is not None else found[2], at + 2), at)
            at = found.end()
        else:
            parts.append((" " if text[at].isspace() else text[at], at, False))
            at += 1
    if len(marks) > MARKS_LIMIT:
        raise ExpressionError(f"more than {MARKS_LIMIT} references and texts", 1, "let a step compute it")
    whole = "".join(part for part, _, _ in parts)
    indent = len(whole) - len(whole.lstrip())
    origin = [column for part, column, _ in parts for _ in part]
    return Source(whole.strip(), tuple(marks), frozenset(plain), tuple(origin[indent:]))


def _reference(text: str, start: int, end: int) -> str:
    try:
        (piece,) = pieces(text[start : end or len(text)])
    except ExpressionError as error:
        raise ExpressionError(error.problem, start + error.column, error.suggestion) from None
    return f"${{{piece.text}}}"


def _unescaped(text: str, column: int) -> str:
    plain = _ESCAPE.sub(lambda found: _ESCAPED.get(found[1], found[1]), text)
    try:
        pieces(plain)
    except ExpressionError as error:
        raise ExpressionError(error.problem, column - 1 + error.column, error.suggestion) from None
    return plain


def column_of(source: Source, node: ast.AST) -> int:
    """Return where a node stands in the original, from 1."""
    at = getattr(node, "col_offset", 0)
    return _origin(source, len(source.text.encode()[:at].decode(errors="ignore")))


def _origin(source: Source, at: int) -> int:
    return source.origin[min(max(at, 0), len(source.origin) - 1)] + 1 if source.origin else 1


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
        # No offset: the end came too early.
        column = _origin(source, error.offset - 1 if error.offset else len(source.text) - 1)
        raise ExpressionError("this is no expression", column, "a right one is len(${collect.sources}) >= 5") from None
    except (RecursionError, MemoryError, ValueError):
        raise ExpressionError("the expression is nested too deeply", 1, "let a step compute it") from None


def place_of(node: ast.Name) -> int | None:
    """Return the number of a mark; None for another name, or for two marks without an operator between."""
    number = node.id.removeprefix(MARK).removesuffix(MARK)
    return int(number) if node.id.startswith(MARK) and number.isdecimal() else None
