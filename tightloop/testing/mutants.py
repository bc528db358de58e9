"""Generation of mutants, which are small faults in changed lines."""

import ast
import copy
import itertools
from collections.abc import Iterable, Iterator
from enum import IntEnum
from itertools import zip_longest
from typing import NamedTuple, TypeVar

from tightloop.value import shorten

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
    """The priority of a mutant, used if there is not enough time to run all mutants."""

    LOGIC = 0
    VALUE = 1
    TEXT = 2
    MESSAGE = 3


class Replacement(NamedTuple):
    """The code that replaces a node in a mutant."""

    node: ast.AST
    code: str
    weight: Weight = Weight.LOGIC


def find_replacements(node: ast.AST) -> Iterator[Replacement]:
    """Yield the possible replacements for a node or a part of the node."""
    match node:
        case ast.Compare() | ast.BinOp() | ast.BoolOp() | ast.UnaryOp():
            yield from _operators(node)
        case ast.Constant():
            yield from _constants(node)
        case ast.JoinedStr():
            yield Replacement(node, repr("mutated"), Weight.TEXT)
        case ast.Call():
            yield from _calls(node)
        # Before `ast.stmt`, which also matches statements with a condition.
        case ast.If() | ast.While() | ast.IfExp():
            yield from _negate(node.test)
        case ast.For() | ast.AsyncFor():
            yield Replacement(node.iter, "()")
        case ast.comprehension():
            yield Replacement(node.iter, "()")
            for condition in node.ifs:
                yield from _negate(condition)
        case ast.stmt():
            yield from _statements(node)


def _operators(node: ast.Compare | ast.BinOp | ast.BoolOp | ast.UnaryOp) -> Iterator[Replacement]:
    match node:
        case ast.Compare():
            for at, op in enumerate(node.ops):
                for other in _COMPARES[type(op)]:
                    yield _rewritten(node, ops=[*node.ops[:at], other(), *node.ops[at + 1 :]])
        case ast.BinOp(op=ast.Mod(), left=ast.Constant(value=str()) | ast.JoinedStr()):
            yield Replacement(node, ast.unparse(node.left), Weight.TEXT)
        case ast.BinOp(op=op) if type(op) in _ARITHMETIC:
            yield _rewritten(node, op=_ARITHMETIC[type(op)]())
        case ast.BoolOp(op=op):
            yield _rewritten(node, op=ast.Or() if isinstance(op, ast.And) else ast.And())
        case ast.UnaryOp(op=ast.Not() | ast.USub() | ast.Invert()):
            yield Replacement(node, ast.unparse(node.operand))


def _constants(node: ast.Constant) -> Iterator[Replacement]:
    match node.value:
        case bool():
            yield Replacement(node, str(not node.value), Weight.VALUE)
        case int() | float():
            yield Replacement(node, repr(node.value + 1), Weight.VALUE)
        case str():
            yield Replacement(node, repr(f"XX{node.value}"), Weight.TEXT)
        case bytes():
            yield Replacement(node, repr(b"XX" + node.value), Weight.TEXT)


def _negate(test: ast.expr) -> Iterator[Replacement]:
    # Comparisons and `not` have their own inversions.
    if not isinstance(test, ast.Compare | ast.UnaryOp | ast.Constant):
        yield Replacement(test, f"not ({ast.unparse(test)})")


def _calls(node: ast.Call) -> Iterator[Replacement]:
    match node.func:
        case ast.Name(id=name) if name in _FUNCTIONS and len(node.args) > 0:
            # `list` takes neither `key` nor `reverse`.
            keywords = [keyword for keyword in node.keywords if _FUNCTIONS[name] in _FUNCTIONS]
            args = node.args[:1] if _FUNCTIONS[name] == "list" else node.args
            yield _rewritten(node, func=ast.Name(_FUNCTIONS[name]), args=args, keywords=keywords)
        case ast.Name(id=name) if name in _UNWRAPPED and node.args and not isinstance(node.args[0], ast.Starred):
            yield Replacement(node, ast.unparse(node.args[0]))
        case ast.Attribute(attr=name) if name in _METHODS:
            yield _rewritten(node, func=_rewrite(node.func, attr=_METHODS[name]))
        case ast.Attribute(value=receiver, attr=name) if name not in _MESSAGES and not _is_new(receiver):
            yield Replacement(node, ast.unparse(receiver))
    for keyword in node.keywords:
        if keyword.arg is not None:
            yield _rewritten(node, keywords=[entry for entry in node.keywords if entry is not keyword])._replace(
                weight=Weight.VALUE
            )
    first, second = [*node.args, None, None][:2]
    if first and second and ast.dump(first) != ast.dump(second) and not {type(first), type(second)} & {ast.Starred}:
        yield _rewritten(node, args=[second, first, *node.args[2:]])._replace(weight=Weight.VALUE)


def _is_new(receiver: ast.expr) -> bool:
    """Return whether a receiver may be an object that is only equal to itself.

    In that case, even the assertion `f(1) == f(1)` would detect the mutant.
    """
    return isinstance(receiver, ast.Call) or (
        isinstance(receiver, ast.Name) and receiver.id in {"self", "cls", "super"}
    )


def _statements(node: ast.stmt) -> Iterator[Replacement]:
    match node:
        case ast.AugAssign(op=op):
            if type(op) in _ARITHMETIC:
                yield _rewritten(node, op=_ARITHMETIC[type(op)]())
            yield Replacement(node, "pass")
        case ast.Raise() | ast.Delete() | ast.Expr(value=ast.Call() | ast.Await()):
            yield Replacement(node, "pass", Weight.MESSAGE if is_message(node) else Weight.LOGIC)
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield Replacement(node, "pass")
        case ast.Break():
            yield Replacement(node, "continue")
        case ast.Continue():
            yield Replacement(node, "break")


def is_message(node: ast.AST) -> bool:
    """Return whether a statement only prints or logs. Such statements are rarely tested."""
    match node:
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name))):
            return name in _MESSAGES
    return False


def _rewritten(node: ast.AST, **fields: object) -> Replacement:
    return Replacement(node, ast.unparse(_rewrite(node, **fields)))


def _rewrite(node: N, **fields: object) -> N:
    # Shallow copy: all mutants share the tree, which must not change.
    other = copy.copy(node)
    for name, value in fields.items():
        setattr(other, name, value)
    return other


SHOWN_CHARACTERS = 60


class Mutant(NamedTuple):
    """A single edit to a file that does not change any line numbers."""

    path: str
    line: int
    lines: tuple[int, ...]
    """Lines of the statement or of its head. A test that executes none of them cannot detect the mutant."""
    start: int
    """Byte offset of the edit in the UTF-8 encoded file."""
    end: int
    text: str
    what: str
    """Description of the edit, such as "`a < b` became `a <= b`"."""
    weight: Weight = Weight.LOGIC

    @property
    def label(self) -> str:
        """Location and description of the mutant, for the author of the tests."""
        return f"{self.path}:{self.line}: {self.what}"


class _StatementContext(NamedTuple):
    """The lines and the weight of the statement that contains a node."""

    lines: tuple[int, ...] = ()
    weight: Weight = Weight.LOGIC


def mutants_of(path: str, source: str, changed: frozenset[int]) -> tuple[Mutant, ...]:
    """Return the mutants of the changed lines, in source order.

    Docstrings, annotations, decorators and `__all__` are not mutated. Code that is only meant for type
    checkers or scripts is not mutated either.

    Raises:
        SyntaxError: this version of Python cannot parse the source.
    """
    content = source.encode()
    # Not `splitlines`: it also splits at form feeds, which do not end a line in Python.
    offsets = [0, *itertools.accumulate(len(line) + 1 for line in content.split(b"\n"))]
    tree = ast.parse(source)
    modules = {
        name.asname or name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names
    }
    mutants: dict[tuple[int, int, str], Mutant] = {}
    for node, position in _visit_nodes(tree, _StatementContext()):
        for other in find_replacements(node):
            start, end, text = _edit(offsets, other.node, other.code)
            first, last = _span(other.node)
            if not changed.intersection(range(first, last + 1)):
                continue
            old = content[start:end].decode()
            was, code = (shorten(" ".join(part.split()), SHOWN_CHARACTERS) for part in (old, other.code))
            what = f"`{was}` was removed" if code == "pass" else f"`{was}` became `{code}`"
            weight = max(other.weight, position.weight)
            mutant = Mutant(path, first, position.lines, start, end, text, what, weight)
            # A module instead of a result would fail on every following line.
            if text.strip("()\n") != old and other.code not in modules:
                # Two rules can give the same edit, which counts once.
                mutants.setdefault((start, end, text), mutant)
    return tuple(sorted(mutants.values(), key=lambda one: one.start))


def choose(mutants: Iterable[Mutant], limit: int) -> tuple[Mutant, ...]:
    """Choose at most `limit` mutants in the order of `Weight`. Every line gets one before any gets a second."""
    by_line: dict[tuple[str, int], list[Mutant]] = {}
    for mutant in mutants:
        by_line.setdefault((mutant.path, mutant.line), []).append(mutant)
    for line_mutants in by_line.values():
        line_mutants.sort(key=lambda one: (one.weight, one.start))
    rounds = zip_longest(*by_line.values())
    ordered = [candidate for group in rounds for candidate in sorted(filter(None, group), key=lambda one: one.weight)]
    return tuple(ordered[:limit])


def _visit_nodes(node: ast.AST, position: _StatementContext) -> Iterator[tuple[ast.AST, _StatementContext]]:
    """Yield the nodes that may be mutated, each with the context of its statement."""
    if _is_left_alone(node):
        return
    if isinstance(node, ast.stmt | ast.excepthandler):
        first, last = _span(node)
        body = getattr(node, "body", None)
        if isinstance(body, list) and body:
            last = max(first, body[0].lineno - (body[0].lineno > first))
        position = _StatementContext(
            tuple(range(first, last + 1)), Weight.MESSAGE if is_message(node) else Weight.LOGIC
        )
    if isinstance(node, ast.Raise):
        # The fact that it is raised matters, its message hardly.
        yield node, position
        position = position._replace(weight=Weight.MESSAGE)
    elif not isinstance(node, ast.Module):
        yield node, position
    for child in _children(node):
        yield from _visit_nodes(child, position)


def _children(node: ast.AST) -> Iterator[ast.AST]:
    # Positions inside f-strings are wrong before Python 3.12.
    if isinstance(node, ast.JoinedStr):
        return
    skipped: list[object] = [getattr(node, "annotation", None), getattr(node, "returns", None)]
    skipped += getattr(node, "decorator_list", [])
    skipped += getattr(node, "type_params", [])
    body = getattr(node, "body", None)
    if isinstance(body, list) and body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
        skipped.append(body[0])
    for child in ast.iter_child_nodes(node):
        # A pattern does not accept every expression.
        if not isinstance(child, ast.pattern) and not any(child is skipped_node for skipped_node in skipped):
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


def _span(node: ast.AST) -> tuple[int, int]:
    first = int(getattr(node, "lineno", 0))
    return first, int(getattr(node, "end_lineno", None) or first)


def _edit(offsets: list[int], node: ast.AST, code: str) -> tuple[int, int, str]:
    first, last = _span(node)
    start = offsets[first - 1] + int(getattr(node, "col_offset", 0))
    end = offsets[last - 1] + int(getattr(node, "end_col_offset", 0))
    # Keep the number of lines, so that coverage and errors of the rest of the file still fit.
    padding = "\n" * max(last - first - code.count("\n"), 0)
    # Brackets keep the precedence, and allow line breaks in an expression.
    text = f"({code}{padding})" if isinstance(node, ast.expr) else f"{code}{padding}"
    return start, end, text
