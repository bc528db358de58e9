"""Which lines of a file changed, and which functions they belong to."""

import ast
from collections.abc import Iterator
from difflib import SequenceMatcher
from typing import NamedTuple

COMPARED_LINES = 3_000
"""Where more lines than that lie between the first and the last change, all of them count as changed: comparing takes
quadratic time."""

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


class Changed(NamedTuple):
    """The change of one file."""

    lines: frozenset[int]
    """Lines of the new text that are new or changed, counted from 1."""
    gaps: frozenset[int] = frozenset()
    """Lines of the new text before which lines were removed."""


def changed_lines(old: str, new: str) -> Changed:
    """Compare two texts line by line."""
    before, after = old.splitlines(), new.splitlines()
    start = 0
    while start < min(len(before), len(after)) and before[start] == after[start]:
        start += 1
    end = 0
    while end < min(len(before), len(after)) - start and before[-1 - end] == after[-1 - end]:
        end += 1
    before, after = before[start : len(before) - end], after[start : len(after) - end]
    if max(len(before), len(after)) > COMPARED_LINES:
        return Changed(frozenset(range(start + 1, start + len(after) + 1)))
    lines: set[int] = set()
    gaps: set[int] = set()
    for kind, _, _, first, last in SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if kind == "delete":
            gaps.add(start + first + 1)
        elif kind != "equal":
            lines.update(range(start + first + 1, start + last + 1))
    return Changed(frozenset(lines), frozenset(gaps))


def touched_bodies(tree: ast.Module, changed: Changed) -> frozenset[int]:
    """Return the lines of the bodies of the innermost functions in which lines changed or were removed."""
    found: set[int] = set()
    for function in functions_of(tree):
        body = frozenset(range(function.body[0].lineno, (function.end_lineno or 0) + 1))
        whole = frozenset(range(function.lineno, (function.end_lineno or 0) + 1))
        if whole & changed.lines or body & changed.gaps:
            found |= body
    return frozenset(found)


def functions_of(tree: ast.AST) -> Iterator[FunctionNode]:
    """Yield all functions, inner ones too."""
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
