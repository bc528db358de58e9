"""Mutants of the changed lines: single edits of a source, as text, so that any Python can make them."""

import ast
from collections.abc import Iterable, Iterator
from itertools import zip_longest
from typing import NamedTuple

from tightloop.testing.operators import Weight, is_message, others
from tightloop.value import shorten

SHOWN_CHARACTERS = 60


class Mutant(NamedTuple):
    """One edit of a file that keeps the numbers of its lines."""

    path: str
    line: int
    lines: tuple[int, ...]
    """The lines of the statement, or of its head: a test that executes none of them cannot notice the mutant."""
    start: int
    """Where the edit begins, in bytes of the file; the file is UTF-8."""
    end: int
    text: str
    what: str
    """Such as "`a < b` became `a <= b`"."""
    weight: Weight = Weight.LOGIC

    @property
    def told(self) -> str:
        """What was changed and where, for whoever wrote the tests."""
        return f"{self.path}:{self.line}: {self.what}"


class _Place(NamedTuple):
    """Where a node stands."""

    lines: tuple[int, ...] = ()
    weight: Weight = Weight.LOGIC


def mutants_of(path: str, source: str, changed: frozenset[int]) -> tuple[Mutant, ...]:
    """Return the mutants whose code lies on changed lines, in the order of the source.

    Left alone are docstrings, annotations, decorators, `__all__`, and what only a type checker or a script runs.

    Raises:
        SyntaxError: this Python cannot read the source.
    """
    content = source.encode()
    offsets = _offsets(content)
    tree = ast.parse(source)
    modules = {
        name.asname or name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names
    }
    found: dict[tuple[int, int, str], Mutant] = {}
    for node, place in _visited(tree, _Place()):
        for other in others(node):
            start, end, text = _edit(offsets, other.node, other.code)
            first, last = _span(other.node)
            if not changed.intersection(range(first, last + 1)):
                continue
            old = content[start:end].decode()
            weight = max(other.weight, place.weight)
            mutant = Mutant(path, first, place.lines, start, end, text, _what(old, other.code), weight)
            # A module in place of a result is noticed by every line that follows.
            if text.strip("()\n") != old and other.code not in modules:
                found.setdefault((start, end, text), mutant)
    return tuple(sorted(found.values(), key=lambda one: one.start))


def choose(mutants: Iterable[Mutant], limit: int) -> tuple[Mutant, ...]:
    """Return at most `limit` mutants: first one of each line, of the weightiest kinds first."""
    by_line: dict[tuple[str, int], list[Mutant]] = {}
    for mutant in mutants:
        by_line.setdefault((mutant.path, mutant.line), []).append(mutant)
    for found in by_line.values():
        found.sort(key=lambda one: (one.weight, one.start))
    rounds = zip_longest(*by_line.values())
    ordered = [one for each in rounds for one in sorted(filter(None, each), key=lambda one: one.weight)]
    return tuple(ordered[:limit])


def _visited(node: ast.AST, place: _Place) -> Iterator[tuple[ast.AST, _Place]]:
    """Yield the nodes that may be mutated, each with the place of its statement."""
    if _is_left_alone(node):
        return
    if isinstance(node, ast.stmt | ast.excepthandler):
        weight = Weight.MESSAGE if is_message(node) else Weight.LOGIC
        place = _Place(_head(node), weight)
    if isinstance(node, ast.Raise):
        # Whether it is raised matters; what it says, little.
        yield node, place
        place = place._replace(weight=Weight.MESSAGE)
    elif not isinstance(node, ast.Module):
        yield node, place
    for child in _children(node):
        yield from _visited(child, place)


def _children(node: ast.AST) -> Iterator[ast.AST]:
    # Positions within f-strings are wrong before Python 3.12.
    if isinstance(node, ast.JoinedStr):
        return
    skipped: list[object] = [getattr(node, "annotation", None), getattr(node, "returns", None)]
    skipped += getattr(node, "decorator_list", [])
    skipped += getattr(node, "type_params", [])
    body = getattr(node, "body", None)
    if isinstance(body, list) and body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
        skipped.append(body[0])
    for child in ast.iter_child_nodes(node):
        # Not every expression may stand in a pattern.
        if not isinstance(child, ast.pattern) and not any(child is one for one in skipped):
            yield child


def _is_left_alone(node: ast.AST) -> bool:
    match node:
        case ast.Import() | ast.ImportFrom() | ast.Global() | ast.Nonlocal() | ast.Assert():
            return True
        case ast.Assign(targets=[ast.Name(id="__all__")]):
            return True
        case ast.If(test=ast.Name(id="TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING")):
            return True
        case ast.If(test=ast.Compare(left=ast.Name(id="__name__"))):
            return True
    return False


def _head(node: ast.AST) -> tuple[int, ...]:
    first, last = _span(node)
    body = getattr(node, "body", None)
    if isinstance(body, list) and body:
        last = max(first, body[0].lineno - (body[0].lineno > first))
    return tuple(range(first, last + 1))


def _span(node: ast.AST) -> tuple[int, int]:
    first = int(getattr(node, "lineno", 0))
    return first, int(getattr(node, "end_lineno", None) or first)


def _offsets(content: bytes) -> list[int]:
    # Not `splitlines`: a form feed ends a line there, and not for Python.
    found = [0]
    for line in content.split(b"\n"):
        found.append(found[-1] + len(line) + 1)
    return found


def _edit(offsets: list[int], node: ast.AST, code: str) -> tuple[int, int, str]:
    first, last = _span(node)
    start = offsets[first - 1] + int(getattr(node, "col_offset", 0))
    end = offsets[last - 1] + int(getattr(node, "end_col_offset", 0))
    padding = "\n" * max(last - first - code.count("\n"), 0)
    text = f"({code}{padding})" if isinstance(node, ast.expr) else f"{code}{padding}"
    return start, end, text


def _what(old: str, new: str) -> str:
    before, after = (shorten(" ".join(code.split()), SHOWN_CHARACTERS) for code in (old, new))
    return f"`{before}` was removed" if after == "pass" else f"`{before}` became `{after}`"
