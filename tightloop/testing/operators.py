"""What a mutant changes: for a node of a syntax tree, other code that is likely to be wrong in its place.

The operators are the usual ones of mutation testing (Offutt et al., "An Experimental Determination of Sufficient Mutant
Operators", 1996) with those on calls and loops that PIT and mutmut have. None makes a function return None: a test that
only needs a result to be there would kill it.
"""

import ast
import copy
from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple, TypeVar

N = TypeVar("N", bound=ast.AST)

_COMPARES: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
}
_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.BitXor: ast.BitAnd,
}
_METHODS = {
    "lower": "upper", "upper": "lower", "lstrip": "rstrip", "rstrip": "lstrip", "startswith": "endswith",
    "endswith": "startswith", "find": "rfind", "rfind": "find", "index": "rindex", "split": "rsplit",
    "rsplit": "split", "partition": "rpartition", "rpartition": "partition", "ljust": "rjust", "rjust": "ljust",
    "union": "intersection", "intersection": "union", "keys": "values", "values": "keys",
}  # fmt: skip
_FUNCTIONS = {"min": "max", "max": "min", "any": "all", "all": "any", "sorted": "list", "reversed": "list"}
_UNWRAPPED = frozenset({"abs", "round", "str", "int", "float"})
_MESSAGES = frozenset({"debug", "info", "warning", "error", "exception", "critical", "log", "warn", "print"})


class Weight(IntEnum):
    """What is tried first where there is not time for all."""

    LOGIC = 0
    VALUE = 1
    TEXT = 2
    MESSAGE = 3


class Other(NamedTuple):
    """Other code for a node."""

    node: ast.AST
    code: str
    weight: Weight = Weight.LOGIC


def others(node: ast.AST) -> Iterator[Other]:
    """Yield what may stand in place of a node, or of a part of it."""
    match node:
        case ast.Compare() | ast.BinOp() | ast.BoolOp() | ast.UnaryOp():
            yield from _operators(node)
        case ast.Constant():
            yield from _constants(node)
        case ast.JoinedStr():
            yield Other(node, repr("mutated"), Weight.TEXT)
        case ast.Call():
            yield from _calls(node)
        case ast.If() | ast.While() | ast.IfExp():
            yield from _negated(node.test)
        case ast.For() | ast.AsyncFor():
            yield Other(node.iter, "()")
        case ast.comprehension():
            yield Other(node.iter, "()")
            for condition in node.ifs:
                yield from _negated(condition)
        case ast.stmt():
            yield from _statements(node)


def _operators(node: ast.Compare | ast.BinOp | ast.BoolOp | ast.UnaryOp) -> Iterator[Other]:
    match node:
        case ast.Compare():
            for at, op in enumerate(node.ops):
                for other in _COMPARES[type(op)]:
                    yield _rewritten(node, ops=[*node.ops[:at], other(), *node.ops[at + 1 :]])
        case ast.BinOp(op=ast.Mod(), left=ast.Constant(value=str()) | ast.JoinedStr()):
            yield Other(node, ast.unparse(node.left), Weight.TEXT)
        case ast.BinOp(op=op) if type(op) in _ARITHMETIC:
            yield _rewritten(node, op=_ARITHMETIC[type(op)]())
        case ast.BoolOp(op=op):
            yield _rewritten(node, op=ast.Or() if isinstance(op, ast.And) else ast.And())
        case ast.UnaryOp(op=ast.Not() | ast.USub() | ast.Invert()):
            yield Other(node, ast.unparse(node.operand))


def _constants(node: ast.Constant) -> Iterator[Other]:
    match node.value:
        case bool():
            yield Other(node, str(not node.value), Weight.VALUE)
        case int() | float():
            yield Other(node, repr(node.value + 1), Weight.VALUE)
        case str():
            yield Other(node, repr(f"XX{node.value}"), Weight.TEXT)
        case bytes():
            yield Other(node, repr(b"XX" + node.value), Weight.TEXT)


def _negated(test: ast.expr) -> Iterator[Other]:
    # A comparison and a `not` have an opposite of their own.
    if not isinstance(test, ast.Compare | ast.UnaryOp | ast.Constant):
        yield Other(test, f"not ({ast.unparse(test)})")


def _calls(node: ast.Call) -> Iterator[Other]:
    match node.func:
        case ast.Name(id=name) if name in _FUNCTIONS and len(node.args) > 0:
            kept = [word for word in node.keywords if _FUNCTIONS[name] in _FUNCTIONS]
            yield _rewritten(node, func=ast.Name(_FUNCTIONS[name]), args=_args(node, name), keywords=kept)
        case ast.Name(id=name) if name in _UNWRAPPED and node.args and not isinstance(node.args[0], ast.Starred):
            yield Other(node, ast.unparse(node.args[0]))
        case ast.Attribute(attr=name) if name in _METHODS:
            yield _rewritten(node, func=_rewrite(node.func, attr=_METHODS[name]))
        case ast.Attribute(value=receiver, attr=name) if name not in _MESSAGES and not _is_new(receiver):
            yield Other(node, ast.unparse(receiver))
    for word in node.keywords:
        if word.arg is not None:
            yield _rewritten(node, keywords=[each for each in node.keywords if each is not word])._replace(
                weight=Weight.VALUE
            )
    first, second = [*node.args, None, None][:2]
    if first and second and ast.dump(first) != ast.dump(second) and not {type(first), type(second)} & {ast.Starred}:
        yield _rewritten(node, args=[second, first, *node.args[2:]])._replace(weight=Weight.VALUE)


def _args(node: ast.Call, name: str) -> list[ast.expr]:
    return node.args[:1] if _FUNCTIONS[name] == "list" else node.args


def _is_new(receiver: ast.expr) -> bool:
    """Return whether a receiver may be an object that equals only itself: then `f(1) == f(1)` would notice it."""
    return isinstance(receiver, ast.Call) or (
        isinstance(receiver, ast.Name) and receiver.id in {"self", "cls", "super"}
    )


def _statements(node: ast.stmt) -> Iterator[Other]:
    match node:
        case ast.AugAssign(op=op):
            if type(op) in _ARITHMETIC:
                yield _rewritten(node, op=_ARITHMETIC[type(op)]())
            yield Other(node, "pass")
        case ast.Raise() | ast.Delete() | ast.Expr(value=ast.Call() | ast.Await()):
            yield Other(node, "pass", Weight.MESSAGE if is_message(node) else Weight.LOGIC)
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield Other(node, "pass")
        case ast.Break():
            yield Other(node, "continue")
        case ast.Continue():
            yield Other(node, "break")


def is_message(node: ast.AST) -> bool:
    """Return whether a statement only tells something: what it says rarely has a test."""
    match node:
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name))):
            return name in _MESSAGES
    return False


def _rewritten(node: ast.AST, **fields: object) -> Other:
    return Other(node, ast.unparse(_rewrite(node, **fields)))


def _rewrite(node: N, **fields: object) -> N:
    other = copy.copy(node)
    for name, value in fields.items():
        setattr(other, name, value)
    return other
