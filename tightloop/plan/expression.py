"""The expression language of plans: parsing, validation and evaluation."""

import ast
import math
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from tightloop.errors import ExpressionError, ReferenceMissingError
from tightloop.plan.reference import (
    FUNCTIONS,
    FunctionError,
    Lookup,
    Segment,
    as_text,
    find_references,
    is_number,
    kind,
    pattern_of,
    resolve,
    split_segments,
)

MARKS_LIMIT = 200
"""Maximum number of references and strings in an expression."""
# A letter, so that `ast` accepts marks as names, and one that no one types. `ast` counts columns in bytes; it has two.
MARK = "\u01c3"

_TEXT = re.compile(r"'((?:[^'\\]|\\.)*)'|\"((?:[^\"\\]|\\.)*)\"", re.DOTALL)
_ESCAPE = re.compile(r"\\(['\"\\nt])")
_ESCAPED = {"n": "\n", "t": "\t"}


class Mark(NamedTuple):
    """A reference or string that a `MARK` name represents in `Source.text`."""

    value: str
    """Reference as `${name}`, or the value of a string literal, which may contain references."""
    is_reference: bool
    """True for a reference, false for a string literal."""
    size: int
    """Number of characters in the original text."""


class Source(NamedTuple):
    """An expression whose references and strings are replaced by marks.

    Each `MARK` has the same length as the text that it replaces.
    """

    text: str
    """Expression on a single line, without leading and trailing blanks."""
    marks: Mapping[int, Mark]
    """Marks by their column in the original text, counted from 1."""
    indent: int
    """Number of leading blanks in the original text."""

    def column(self, node: ast.AST) -> int:
        """Return the column of a node in the original text, counted from 1."""
        at = getattr(node, "col_offset", 0)
        return self.indent + len(self.text.encode()[:at].decode(errors="ignore")) + 1

    def mark(self, node: ast.AST) -> Mark | None:
        """Return the mark that a node stands for.

        Return None for any other node, and for adjacent marks without an operator between them.
        """
        candidate = self.marks.get(self.column(node)) if isinstance(node, ast.Name) and MARK in node.id else None
        return candidate if candidate and isinstance(node, ast.Name) and candidate.size == len(node.id) else None


def insert_marks(text: str) -> Source:
    """Replace the references and strings in an expression with marks.

    Raises:
        ExpressionError: a reference or string is not terminated or is malformed.
    """
    # A null byte would make `ast.parse` raise a ValueError without a position.
    if MARK in text or "\0" in text:
        raise ExpressionError("the expression contains an invalid character", 1, "remove it")
    whole = ""
    marks: dict[int, Mark] = {}
    while (at := len(whole)) < len(text):
        if text.startswith("${", at):
            end = text.find("}", at) + 1 or len(text)
            ((value, _),) = _pieces(text[at:end], at)
            token = Mark(f"${{{value}}}", is_reference=True, size=end - at)
        elif text[at] in "'\"":
            match = _TEXT.match(text, at)
            if match is None:
                raise ExpressionError("a closing quote is missing", at + 1, f"add {text[at]}")
            plain = _ESCAPE.sub(lambda one: _ESCAPED.get(one[1], one[1]), match[1] or match[2] or "")
            # Only for its errors: references inside a text are resolved when the expression is evaluated.
            _pieces(plain, at + 1)
            token = Mark(plain, is_reference=False, size=len(match[0]))
        else:
            # A line break would end the expression; a blank of the same length keeps the columns.
            whole += " " if text[at].isspace() else text[at]
            continue
        marks[at + 1] = token
        whole += MARK * token.size
    if len(marks) > MARKS_LIMIT:
        raise ExpressionError(
            f"the expression has more than {MARKS_LIMIT} references and strings", 1, "compute the value in a step"
        )
    return Source(whole.strip(), marks, len(whole) - len(whole.lstrip()))


def _pieces(text: str, before: int) -> tuple[Segment, ...]:
    """Split part of an expression. The columns in errors are offset by `before` characters."""
    try:
        return split_segments(text)
    except ExpressionError as error:
        raise ExpressionError(error.problem, before + error.column, error.suggestion) from None


def tree_of(source: Source) -> ast.expr:
    """Parse an expression with marks into a Python syntax tree.

    Raises:
        ExpressionError: the syntax is invalid.
    """
    if not source.text:
        raise ExpressionError("the expression is empty", 1, "write an expression such as ${exit_code} == 0")
    try:
        return ast.parse(source.text, mode="eval").body
    except SyntaxError as error:
        # For a premature end, the offset is missing or lies beyond the text.
        at = min(error.offset or len(source.text), len(source.text))
        raise ExpressionError(
            "this is not a valid expression",
            source.indent + at,
            "write an expression such as len(${collect.sources}) >= 5",
        ) from None
    except (RecursionError, MemoryError, ValueError):
        # CPython's parser rejects deep nesting with MemoryError, its compiler with RecursionError.
        raise ExpressionError("the expression is nested too deeply", 1, "compute the value in a step") from None


# Python integers are unbounded: `9 ** 9 ** 9` alone would exhaust the memory.
NUMBER_LIMIT = 10**100
RESULT_ITEMS = 100_000
"""Maximum number of characters or items in an operator's result."""
POWER_LIMIT = 64
NAMES: Mapping[str, Any] = {"true": True, "false": False, "null": None}
LAZY = {"exists": 1, "default": 2}
"""Functions that take a reference without evaluating it, with their number of arguments."""
_AS_NUMBER = "use number(...) to convert a string to a number"

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
    """Evaluates expressions, with a method for each node type that `parse_expression` accepts."""

    def __init__(self, lookup: Lookup, source: Source) -> None:
        self._lookup = lookup
        self._source = source

    def of(self, node: ast.AST) -> Any:
        """Evaluate a node and return its value.

        Raises:
            ExpressionError: the types of the operands do not match.
            ReferenceMissingError: raised by the lookup.
        """
        # Safe, because `parse_expression` accepts only the node types in `_ALLOWED`.
        return getattr(self, f"_{type(node).__name__.lower()}")(node)

    def _fail(self, problem: str, node: ast.AST, suggestion: str = "") -> ExpressionError:
        return ExpressionError(problem, self._source.column(node), suggestion)

    def _name(self, node: ast.Name) -> Any:
        token = self._source.mark(node)
        if token is None:
            return NAMES[node.id]
        value = resolve(token.value, self._lookup)
        return value if token.is_reference else as_text(value)

    def _constant(self, node: ast.Constant) -> Any:
        return self._check_result(node.value, node)

    def _list(self, node: ast.List | ast.Tuple) -> list[Any]:
        return [self.of(item) for item in node.elts]

    _tuple = _list

    def _dict(self, node: ast.Dict) -> dict[str, Any]:
        # `ast` represents `**x` by a key of None.
        if None in node.keys:
            raise self._fail("** is not allowed in a mapping", node)
        return {str(self.of(key)): self.of(value) for key, value in zip(node.keys, node.values, strict=True) if key}

    def _boolop(self, node: ast.BoolOp) -> Any:
        value: Any = None
        for item in node.values:
            value = self.of(item)
            # As in Python, the operand that decides is the result, not a boolean.
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
            raise self._fail(f"a sign must precede a number, not {kind(value)}", node, _AS_NUMBER)
        return -value if isinstance(node.op, ast.USub) else value

    def _compare(self, node: ast.Compare) -> bool:
        left = self.of(node.left)
        for op, item in zip(node.ops, node.comparators, strict=True):
            right = self.of(item)
            try:
                plain = [side for side in (left, right) if isinstance(side, bool | int | float)]
                # Command output is text: `"12" == 12` would silently be false, so it is refused.
                mixed = len(plain) == 1 and (isinstance(left, str) or isinstance(right, str))
                if mixed and isinstance(op, ast.Eq | ast.NotEq):
                    raise TypeError
                holds = COMPARE[type(op)](left, right)
            except TypeError:
                problem = f"cannot compare {kind(left)} with {kind(right)}"
                raise self._fail(problem, node, _AS_NUMBER) from None
            if not holds:
                return False
            left = right
        return True

    def _binop(self, node: ast.BinOp) -> Any:
        left, right = self.of(node.left), self.of(node.right)
        numbers = is_number(left) and is_number(right)
        # Only `+`: `'x' * 10**9` would be a text of any size.
        joined = isinstance(node.op, ast.Add) and type(left) is type(right) and isinstance(left, str | list)
        if not numbers and not joined:
            sign = _SIGNS[type(node.op).__name__]
            raise self._fail(f"'{sign}' is not supported for {kind(left)} and {kind(right)}", node, _AS_NUMBER)
        # Before it is computed: Python calculates large powers exactly, which takes minutes and much memory.
        if isinstance(node.op, ast.Pow) and is_number(right) and abs(right) > POWER_LIMIT:
            raise self._fail(f"the exponent must be at most {POWER_LIMIT}", node)
        try:
            return self._check_result(ARITHMETIC[type(node.op)](left, right), node)
        except ZeroDivisionError:
            raise self._fail("division by zero", node) from None
        except OverflowError:
            raise self._fail("the number is too large", node) from None

    def _check_result(self, value: Any, node: ast.AST) -> Any:
        if isinstance(value, str | list) and len(value) > RESULT_ITEMS:
            raise self._fail(f"the result has more than {RESULT_ITEMS} characters or items", node)
        # A negative number to a fractional power is complex in Python.
        if isinstance(value, complex) or (isinstance(value, float) and not math.isfinite(value)):
            raise self._fail("the result is not a number", node)
        if is_number(value) and abs(value) > NUMBER_LIMIT:
            raise self._fail("the number is too large", node)
        return value

    def _subscript(self, node: ast.Subscript) -> Any:
        value = self.of(node.value)
        index = self.of(node.slice)
        try:
            return value[index]
        except (LookupError, TypeError, ValueError):
            label = index if isinstance(index, str | int) else "slice"
            raise self._fail(f"{kind(value)} has no [{label!r}]", node) from None

    def _slice(self, node: ast.Slice) -> slice:
        return slice(*(self.of(part) if part else None for part in (node.lower, node.upper, node.step)))

    def _call(self, node: ast.Call) -> Any:
        assert isinstance(node.func, ast.Name)
        name = node.func.id
        # Evaluated here and not with the other arguments, so that a missing reference is no error.
        if name in LAZY:
            try:
                value = self.of(node.args[0])
            except ReferenceMissingError:
                return False if name == "exists" else self.of(node.args[1])
            return True if name == "exists" else value
        try:
            return self._check_result(FUNCTIONS[name][2](*(self.of(item) for item in node.args)), node)
        except FunctionError as error:
            raise self._fail(str(error), node) from None


# Expressions run on the worker at every attempt; real work belongs in a step with its own time limit.
EXPRESSION_CHARACTERS = 2_000
# Far below Python's recursion limit: `Evaluation` needs a few frames per level.
DEPTH_LIMIT = 40

_HINTS = {
    "Attribute": "write value['field'], or ${step.output.field}",
    "GeneratorExp": "write ${step.output.field} for the fields of all items",
    "ListComp": "write ${step.output.field} for the fields of all items",
}
_REFUSED = {
    "Attribute": "fields cannot be read with a dot",
    "GeneratorExp": "loops are not supported in expressions",
    "ListComp": "loops are not supported in expressions",
    "JoinedStr": "f-strings are not supported",
}
_SIGNS = {
    "Add": "+", "Sub": "-", "Mult": "*", "Div": "/", "FloorDiv": "//", "Mod": "%", "Pow": "**",
    "BitAnd": "&", "BitOr": "|", "BitXor": "^", "LShift": "<<", "RShift": ">>", "MatMult": "@",
}  # fmt: skip
_ALLOWED = (
    ast.BoolOp, ast.BinOp, ast.UnaryOp, ast.Compare, ast.IfExp, ast.Call, ast.Constant, ast.Name, ast.List, ast.Tuple,
    ast.Dict, ast.Subscript, ast.Slice, ast.boolop, ast.unaryop, ast.cmpop, ast.operator, ast.expr_context,
)  # fmt: skip


@dataclass(frozen=True)
class Expression:
    """Parsed and validated expression. It can be evaluated repeatedly."""

    text: str
    references: tuple[str, ...]
    """Distinct references without `${` and `}`."""
    _tree: ast.expr
    _source: Source

    def evaluate(self, lookup: Lookup) -> Any:
        """Evaluate the expression and return its value as JSON.

        Raises:
            ExpressionError: types do not match, for example if a string is compared with a number.
            ReferenceMissingError: `lookup` raised it for a reference in the evaluated part of the expression.
        """
        try:
            return Evaluation(lookup, self._source).of(self._tree)
        except RecursionError:
            # The expression itself is bounded; values come from commands and models, and are not.
            raise ExpressionError(
                "a value is nested too deeply", 1, "use one field or item instead of the whole value"
            ) from None

    def holds(self, lookup: Lookup) -> bool:
        """Return whether the expression is true. It raises the same errors as `evaluate`."""
        return bool(self.evaluate(lookup))


def parse_expression(text: str) -> Expression:
    """Parse and validate an expression.

    Raises:
        ExpressionError: the expression is invalid. The error contains the column and a suggestion.
    """
    if len(text) > EXPRESSION_CHARACTERS:
        raise ExpressionError(
            f"an expression must have at most {EXPRESSION_CHARACTERS} characters, got {len(text)}",
            EXPRESSION_CHARACTERS,
            "compute the value in a step",
        )
    source = insert_marks(text)
    tree = tree_of(source)
    # Iterative, because an unvalidated tree may exceed Python's stack.
    waiting: list[tuple[ast.AST, int]] = [(tree, 1)]
    while waiting:
        node, depth = waiting.pop()
        problem = "the expression is nested too deeply" if depth > DEPTH_LIMIT else _refusal(node, source)
        if problem:
            default_hint = "" if ":" in problem else "see 'Expressions' in docs/plans.md"
            hint = _HINTS.get(type(node).__name__, default_hint)
            raise ExpressionError(problem, source.column(node), hint)
        children = list(ast.iter_child_nodes(node))
        if isinstance(node, ast.Call):
            # The function name is validated with its call.
            children = children[1:]
        if isinstance(node, ast.BinOp | ast.UnaryOp | ast.BoolOp | ast.Compare):
            # Operator nodes have no position; they are validated with their parent.
            children = [child for child in children if isinstance(child, ast.expr)]
        waiting.extend((child, depth + 1) for child in children)
    return Expression(text, find_references([token.value for token in source.marks.values()]), tree, source)


def _refusal(node: ast.AST, source: Source) -> str:
    if not isinstance(node, _ALLOWED):
        return _REFUSED.get(type(node).__name__, "this syntax is not supported in expressions")
    if isinstance(node, ast.BinOp) and type(node.op) not in ARITHMETIC:
        return f"the operator {_SIGNS[type(node.op).__name__]} is not allowed"
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Invert):
        return "the operator ~ is not allowed"
    if isinstance(node, ast.Compare) and any(type(op) not in COMPARE for op in node.ops):
        return "'is' is not allowed: write == or !="
    if isinstance(node, ast.Constant):
        return "" if isinstance(node.value, bool | int | float | None) else "this literal is not allowed"
    if isinstance(node, ast.Name) and MARK not in node.id and node.id not in NAMES:
        return f"the name '{node.id}' is unknown: write ${{{node.id}}} for a value or '{node.id}' for a string"
    if isinstance(node, ast.Name) and MARK in node.id:
        return "" if source.mark(node) else "an operator is missing here"
    return _call_refusal(node, source) if isinstance(node, ast.Call) else ""


def _call_refusal(node: ast.Call, source: Source) -> str:
    name = node.func.id if isinstance(node.func, ast.Name) else ""
    count = len(node.args)
    if name in LAZY:
        first = source.mark(node.args[0]) if node.args else None
        if first and first.is_reference and count == LAZY[name]:
            return ""
        return f"{name} requires a reference" + (" and a value" if name == "default" else "")
    if name not in FUNCTIONS or name.startswith(MARK):
        function_name = ast.unparse(node.func) if isinstance(node.func, ast.Name | ast.Attribute) else "?"
        if MARK in function_name:
            function_name = function_name.rpartition(".")[2]
        return f"unknown function '{function_name}': use one of {', '.join((*FUNCTIONS, *LAZY))}"
    least, most, _ = FUNCTIONS[name]
    if node.keywords or not least <= count <= most:
        return f"{name} takes {least if least == most else f'{least} to {most}'} values, not {count}"
    pattern = source.mark(node.args[1]) if name == "matches" else None
    if pattern and not pattern.is_reference and not find_references(pattern.value):
        try:
            pattern_of(pattern.value)
        except FunctionError as error:
            return str(error)
    return ""
