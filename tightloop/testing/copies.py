"""Tests that repeat the code that they test: they find no fault in it, because they have the same one."""

import ast
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from typing import NamedTuple

from tightloop.testing.lines import FunctionNode, functions_of

BODY_TOKENS, BODY_COMPUTATIONS, BODY_SHARE, BLOCK_TOKENS = 12, 3, 0.8, 5
"""A body of that size and more is copied where blocks of five tokens and more make up four fifths of it."""
RESULT_TOKENS, RESULT_COMPUTATIONS = 6, 3
"""A returned expression of that size and more is copied where it stands in the test as a whole."""
_COMPUTING = frozenset({
    "BinOp", "Compare", "BoolOp", "UnaryOp", "IfExp", "Subscript", "FormattedValue", "For", "While", "comprehension",
    "AugAssign",
})  # fmt: skip
_UNSAID = (ast.expr_context, ast.arguments, ast.Return, ast.Expr)


class Pattern(NamedTuple):
    """The code of a function without its names and constants."""

    name: str
    body: tuple[str, ...]
    results: tuple[tuple[str, ...], ...]
    """The expressions that it returns."""


def patterns_of(tree: ast.Module, touched: frozenset[int]) -> tuple[Pattern, ...]:
    """Return the patterns of the functions that have touched lines and are long enough to be known again."""
    found = []
    for function in functions_of(tree):
        if touched.isdisjoint(range(function.body[0].lineno, (function.end_lineno or 0) + 1)):
            continue
        body = tuple(_body(function))
        returned = [node.value for node in ast.walk(function) if isinstance(node, ast.Return) and node.value]
        results = tuple(tuple(_tokens(value)) for value in returned)
        results = tuple(one for one in results if len(one) >= RESULT_TOKENS and _computes(one, RESULT_COMPUTATIONS))
        is_long = len(body) >= BODY_TOKENS and _computes(body, BODY_COMPUTATIONS)
        if is_long or results:
            found.append(Pattern(function.name, body if is_long else (), results))
    return tuple(found)


def copied(parts: Sequence[FunctionNode], patterns: Sequence[Pattern]) -> str:
    """Return the name of a function whose code stands in a test or in its helpers; "" for none."""
    for part in parts:
        tokens = list(_body(part))
        for pattern in patterns:
            if any(_contains(tokens, result) for result in pattern.results) or _repeats(tokens, pattern.body):
                return pattern.name
    return ""


def _body(function: FunctionNode) -> Iterator[str]:
    for node in function.body:
        if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
            yield from _tokens(node)


def _tokens(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Name() | ast.Constant() | ast.arg():
            yield "leaf"
            return
        case ast.Call(func=ast.Name(id=name)):
            yield f"call {name}"
            children = [*node.args, *node.keywords]
        case ast.Call(func=ast.Attribute(attr=name, value=receiver)):
            yield f"call .{name}"
            children = [receiver, *node.args, *node.keywords]
        case ast.Attribute(attr=name, value=receiver):
            yield f".{name}"
            children = [receiver]
        case ast.AnnAssign():
            yield "Assign"
            children = [node.target, *([node.value] if node.value else [])]
        case _:
            if not isinstance(node, _UNSAID):
                yield type(node).__name__
            children = list(ast.iter_child_nodes(node))
    for child in children:
        yield from _tokens(child)


def _computes(tokens: Sequence[str], least: int) -> bool:
    return sum(token in _COMPUTING or token.startswith("call ") for token in tokens) >= least


def _contains(tokens: list[str], wanted: Sequence[str]) -> bool:
    size = len(wanted)
    return any(tuple(tokens[at : at + size]) == tuple(wanted) for at in range(len(tokens) - size + 1))


def _repeats(tokens: list[str], body: Sequence[str]) -> bool:
    if not body:
        return False
    blocks = SequenceMatcher(None, tokens, body, autojunk=False).get_matching_blocks()
    return sum(block.size for block in blocks if block.size >= BLOCK_TOKENS) >= BODY_SHARE * len(body)
