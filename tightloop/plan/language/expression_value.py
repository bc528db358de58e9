"""Evaluates the tree of an expression that was checked."""

import ast
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

from tightloop.errors import ExpressionError, ReferenceMissingError
from tightloop.plan.language.expression_source import Source
from tightloop.plan.language.function import FUNCTIONS, FunctionError, is_number, kind
from tightloop.plan.language.reference import Lookup, as_text, resolve

# Python computes integers of any size: `9 ** 9 ** 9` alone would take all memory.
NUMBER_LIMIT = 10**100
RESULT_ITEMS = 100_000
"""Characters of a text, or items of a list, that an operator may make."""
POWER_LIMIT = 64
NAMES: Mapping[str, Any] = {"true": True, "false": False, "null": None}
LAZY = {"exists": 1, "default": 2}
"""Functions that are given a reference, not its value -> how many arguments."""
_AS_NUMBER = "write number(...) to read a text as one"

COMPARE: Mapping[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda left, right: left in right,
    ast.NotIn: lambda left, right: left not in right,
}
ARITHMETIC: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}


class Evaluation:
    """One evaluation: every node that `parse_expression` lets pass has a method."""

    def __init__(self, lookup: Lookup, source: Source) -> None:
        self._lookup = lookup
        self._source = source

    def of(self, node: ast.AST) -> Any:
        """Return the value of a node.

        Raises:
            ExpressionError: the values do not fit.
            ReferenceMissingError: by the lookup.
        """
        return getattr(self, f"_{type(node).__name__.lower()}")(node)

    def _fail(self, problem: str, node: ast.AST, suggestion: str = "") -> ExpressionError:
        return ExpressionError(problem, self._source.column(node), suggestion)

    def _name(self, node: ast.Name) -> Any:
        mark = self._source.mark(node)
        if mark is None:
            return NAMES[node.id]
        value = resolve(mark.value, self._lookup)
        return value if mark.is_reference else as_text(value)

    def _constant(self, node: ast.Constant) -> Any:
        return self._bounded(node.value, node)

    def _list(self, node: ast.List | ast.Tuple) -> list[Any]:
        return [self.of(item) for item in node.elts]

    _tuple = _list

    def _dict(self, node: ast.Dict) -> dict[str, Any]:
        if None in node.keys:
            raise self._fail("** is not allowed in a mapping", node)
        return {str(self.of(key)): self.of(value) for key, value in zip(node.keys, node.values, strict=True) if key}

    def _boolop(self, node: ast.BoolOp) -> Any:
        value: Any = None
        for item in node.values:
            value = self.of(item)
            if bool(value) is isinstance(node.op, ast.Or):
                return value
        return value

    def _ifexp(self, node: ast.IfExp) -> Any:
        return self.of(node.body if self.of(node.test) else node.orelse)

    def _unaryop(self, node: ast.UnaryOp) -> Any:
        value = self.of(node.operand)
        if isinstance(node.op, ast.Not):
            return not value
        if not is_number(value):
            raise self._fail(f"a sign needs a number, not {kind(value)}", node, _AS_NUMBER)
        return -value if isinstance(node.op, ast.USub) else value

    def _compare(self, node: ast.Compare) -> bool:
        left = self.of(node.left)
        for op, item in zip(node.ops, node.comparators, strict=True):
            right = self.of(item)
            try:
                plain = [side for side in (left, right) if isinstance(side, bool | int | float)]
                # A command prints text: `"12" == 12` would be false without a word, so it is refused.
                mixed = len(plain) == 1 and (isinstance(left, str) or isinstance(right, str))
                if mixed and isinstance(op, ast.Eq | ast.NotEq):
                    raise TypeError
                holds = COMPARE[type(op)](left, right)
            except TypeError:
                problem = f"{kind(left)} and {kind(right)} cannot be compared"
                raise self._fail(problem, node, _AS_NUMBER) from None
            if not holds:
                return False
            left = right
        return True

    def _binop(self, node: ast.BinOp) -> Any:
        left, right = self.of(node.left), self.of(node.right)
        numbers = is_number(left) and is_number(right)
        joined = isinstance(node.op, ast.Add) and type(left) is type(right) and isinstance(left, str | list)
        if not numbers and not joined:
            op = type(node.op).__name__
            raise self._fail(f"{op} does not work for {kind(left)} and {kind(right)}", node, _AS_NUMBER)
        if isinstance(node.op, ast.Pow) and is_number(right) and abs(right) > POWER_LIMIT:
            raise self._fail(f"the maximum of an exponent is {POWER_LIMIT}", node)
        try:
            return self._bounded(ARITHMETIC[type(node.op)](left, right), node)
        except ZeroDivisionError:
            raise self._fail("division by zero", node) from None
        except OverflowError:
            raise self._fail("a number is too big", node) from None

    def _bounded(self, value: Any, node: ast.AST) -> Any:
        if isinstance(value, str | list) and len(value) > RESULT_ITEMS:
            raise self._fail(f"the result has more than {RESULT_ITEMS} characters or items", node)
        # A negative number to a fractional power is complex in Python.
        if isinstance(value, complex) or (isinstance(value, float) and not math.isfinite(value)):
            raise self._fail("the result is not a number", node)
        if is_number(value) and abs(value) > NUMBER_LIMIT:
            raise self._fail("a number is too big", node)
        return value

    def _subscript(self, node: ast.Subscript) -> Any:
        value = self.of(node.value)
        place = self.of(node.slice)
        try:
            return value[place]
        except (LookupError, TypeError, ValueError):
            shown = place if isinstance(place, str | int) else "slice"
            raise self._fail(f"{kind(value)} has no [{shown!r}]", node) from None

    def _slice(self, node: ast.Slice) -> slice:
        return slice(*(self.of(part) if part else None for part in (node.lower, node.upper, node.step)))

    def _call(self, node: ast.Call) -> Any:
        assert isinstance(node.func, ast.Name)
        name = node.func.id
        if name in LAZY:
            try:
                value = self.of(node.args[0])
            except ReferenceMissingError:
                return False if name == "exists" else self.of(node.args[1])
            return True if name == "exists" else value
        try:
            return self._bounded(FUNCTIONS[name][2](*(self.of(item) for item in node.args)), node)
        except FunctionError as error:
            raise self._fail(str(error), node) from None
