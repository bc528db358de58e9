"""Detection of tests that repeat the code under test. Such tests share its faults and so cannot detect them."""

import ast
from collections.abc import Iterable, Iterator, Sequence
from difflib import SequenceMatcher
from typing import NamedTuple

from tightloop.testing import FunctionNode, functions_of

BODY_TOKENS, BODY_SHARE, BLOCK_TOKENS = 12, 0.8, 5
"""Minimum size of a body or helper, minimum share of it that is copied, and minimum size of a copied block."""
SHARED_TOKENS, SHARED_SHARE = 3, 0.6
"""Number and share of common operations above which a test computes the expected value in the same way as the code."""
LONG_TOKENS, LONG_COMPUTATIONS = 16, 4
"""Minimum size of a copied block, and minimum number of computations in it, for longer code."""
PIECE_TOKENS = 6
"""Minimum size of an expression or statement that counts as copied if the test contains all of it."""
COMPUTATIONS = 3
"""Minimum number of computations. With fewer, independent authors write the same code."""
_COMPUTING = frozenset({
    "BinOp", "Compare", "BoolOp", "UnaryOp", "IfExp", "Subscript", "FormattedValue", "For", "While", "comprehension",
    "AugAssign",
})  # fmt: skip
_COMMON = frozenset({
    "len", "str", "range", "print", "isinstance", "list", "dict", "set", "tuple", "open", "append", "add", "items",
    "keys", "values", "get", "enumerate", "zip", "raises", "approx", "fail", "given", "ValueError", "TypeError",
    "KeyError", "Add",
})  # fmt: skip
"""Names that are used in any code and are therefore not evidence of copying."""
_UNSAID = (ast.expr_context, ast.arguments, ast.Return, ast.Expr)


class Pattern(NamedTuple):
    """The code of a function without its names and constants."""

    name: str
    body: tuple[str, ...]
    pieces: tuple[tuple[str, ...], ...]
    """Returned and assigned expressions, augmented assignments, and loops."""
    operations: frozenset[str]
    """Operations that the function computes with, except for common ones."""


def patterns_of(tree: ast.Module, touched: frozenset[int]) -> tuple[Pattern, ...]:
    """Return the patterns of the changed functions that are long enough to recognise."""
    patterns = []
    for function in functions_of(tree):
        if touched.isdisjoint(range(function.body[0].lineno, (function.end_lineno or 0) + 1)):
            continue
        body = tuple(_body(function))
        pieces = [tuple(_tokens(piece)) for node in ast.walk(function) if (piece := _piece(node)) is not None]
        long = tuple(tokens for tokens in pieces if len(tokens) >= PIECE_TOKENS and _computes(tokens))
        is_long = len(body) >= BODY_TOKENS and _computes(body)
        operations = _operations([function], frozenset())
        if is_long or long or len(operations) >= SHARED_TOKENS:
            patterns.append(Pattern(function.name, body if is_long else (), long, operations))
    return tuple(patterns)


def find_copied_function(
    test: FunctionNode, helpers: Sequence[FunctionNode], patterns: Sequence[Pattern], names: frozenset[str]
) -> str:
    """Return the name of a function whose code the test or its helpers repeat, or "".

    `names` are the functions under test. Calls to these functions do not count.
    """
    parts = [list(_body(part)) for part in (test, *helpers)]
    operations = _operations((test, *helpers), names)
    for pattern in patterns:
        shared = operations & pattern.operations
        if len(shared) >= SHARED_TOKENS and len(shared) >= SHARED_SHARE * len(operations):
            return pattern.name
        for tokens in parts:
            if any(_contains(tokens, piece) for piece in pattern.pieces) or _share(pattern.body, tokens) >= BODY_SHARE:
                return pattern.name
            # autojunk would ignore the frequent tokens of long code, and most tokens are frequent.
            blocks = SequenceMatcher(None, tokens, pattern.body, autojunk=False).get_matching_blocks()
            long = (tokens[block.a : block.a + block.size] for block in blocks if block.size >= LONG_TOKENS)
            if any(_computes(block, LONG_COMPUTATIONS) for block in long):
                return pattern.name
        # Also the other way round: a short helper may be a complete part of a long function.
        for tokens in parts[1:]:
            is_long = len(tokens) >= BODY_TOKENS and _computes(tokens)
            if is_long and _share(tokens, pattern.body) >= BODY_SHARE:
                return pattern.name
    return ""


def _piece(node: ast.AST) -> ast.AST | None:
    match node:
        case ast.Return(value=value) | ast.Assign(value=value):
            return value
        case ast.AugAssign() | ast.For() | ast.While():
            return node
    return None


def _body(function: FunctionNode) -> Iterator[str]:
    for node in function.body:
        if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
            yield from _tokens(node)


def _tokens(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Name() | ast.Constant() | ast.arg():
            # Names and constants are equal here: renaming does not hide a copy.
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


def _operations(parts: Iterable[FunctionNode], names: frozenset[str]) -> frozenset[str]:
    """Return the functions, methods and operators that the code uses for computations."""
    operations: set[str] = set()
    for node in (node for part in parts for node in ast.walk(part)):
        match node:
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
                operations.add(name)
            # Arithmetic on constants alone, such as 60 * 60, is not a computation.
            case ast.BinOp(op=op) if any(isinstance(operand, ast.Name) for operand in ast.walk(node)):
                operations.add(type(op).__name__)
            case ast.AugAssign(op=op):
                operations.add(type(op).__name__)
    return frozenset(operations - names - _COMMON)


def _computes(tokens: Sequence[str], least: int = COMPUTATIONS) -> bool:
    return sum(token in _COMPUTING or token.startswith("call ") for token in tokens) >= least


def _contains(tokens: Sequence[str], piece: Sequence[str]) -> bool:
    size = len(piece)
    return any(tuple(tokens[at : at + size]) == tuple(piece) for at in range(len(tokens) - size + 1))


def _share(code: Sequence[str], tokens: Sequence[str]) -> float:
    """Return the share of the code that also occurs in `tokens`, from 0 to 1."""
    if not code:
        return 0.0
    blocks = SequenceMatcher(None, tokens, code, autojunk=False).get_matching_blocks()
    return sum(block.size for block in blocks if block.size >= BLOCK_TOKENS) / len(code)
