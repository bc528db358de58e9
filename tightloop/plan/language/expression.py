"""Expressions over references: a small, safe subset of Python's, read with `ast` and never given to `eval`.

Comparisons, `and`, `or`, `not`, `in`, `x if c else y`, arithmetic, literals, `value[place]`, and the functions len,
min, max, sum, any, all, abs, round, number, lower, trim, matches(text, pattern), exists(reference) and
default(reference, value). No attributes, no other names. Length, depth, numbers and texts are bounded.
"""

import ast
from dataclasses import dataclass
from typing import Any

from tightloop.errors import ExpressionError
from tightloop.plan.language.expression_source import MARK, Source, marked, tree_of
from tightloop.plan.language.expression_value import ARITHMETIC, COMPARE, LAZY, NAMES, Evaluation
from tightloop.plan.language.function import FUNCTIONS, FunctionError, pattern_of
from tightloop.plan.language.reference import Lookup, find_references

# An expression is evaluated on the worker at every attempt; work belongs into a step with its own time limit.
EXPRESSION_CHARACTERS = 2_000
# Far below the recursion limit of `Evaluation`, which takes a few frames for each level.
DEPTH_LIMIT = 40

_HINTS = {
    "Attribute": "write value['field'], or ${step.output.field}",
    "GeneratorExp": "write ${step.output.field} for the fields of all items",
    "ListComp": "write ${step.output.field} for the fields of all items",
}
_REFUSED = {
    "Attribute": "a field is not read with a dot",
    "GeneratorExp": "there are no loops in expressions",
    "ListComp": "there are no loops in expressions",
    "JoinedStr": "there are no texts with an f in front",
}
_SIGNS = {"BitAnd": "&", "BitOr": "|", "BitXor": "^", "LShift": "<<", "RShift": ">>", "MatMult": "@"}
_ALLOWED = (
    ast.BoolOp, ast.BinOp, ast.UnaryOp, ast.Compare, ast.IfExp, ast.Call, ast.Constant, ast.Name, ast.List, ast.Tuple,
    ast.Dict, ast.Subscript, ast.Slice, ast.boolop, ast.unaryop, ast.cmpop, ast.operator, ast.expr_context,
)  # fmt: skip


@dataclass(frozen=True)
class Expression:
    """An expression that was read and checked; it can be evaluated any number of times."""

    text: str
    references: tuple[str, ...]
    """Without `${` and `}`, each once."""
    _tree: ast.expr
    _source: Source

    def evaluate(self, lookup: Lookup) -> Any:
        """Return the value: JSON.

        Raises:
            ExpressionError: the values do not fit, such as a comparison of a text with a number.
            ReferenceMissingError: by `lookup`, for a reference that is reached.
        """
        try:
            return Evaluation(lookup, self._source).of(self._tree)
        except RecursionError:
            raise ExpressionError("a value is nested too deeply", 1, "refer to a part of it") from None

    def holds(self, lookup: Lookup) -> bool:
        """Return whether the value counts as true. Raises as `evaluate` does."""
        return bool(self.evaluate(lookup))


def parse_expression(text: str) -> Expression:
    """Read an expression.

    Raises:
        ExpressionError: with column and suggestion.
    """
    if len(text) > EXPRESSION_CHARACTERS:
        raise ExpressionError(
            f"an expression may have {EXPRESSION_CHARACTERS} characters, this one has {len(text)}",
            EXPRESSION_CHARACTERS,
            "let a step compute it",
        )
    source = marked(text)
    tree = tree_of(source)
    # Without recursion: before it is refused, a tree may be deeper than Python's stack.
    waiting: list[tuple[ast.AST, int]] = [(tree, 1)]
    while waiting:
        node, depth = waiting.pop()
        problem = "it is nested too deeply" if depth > DEPTH_LIMIT else _refusal(node, source)
        if problem:
            known = "" if ":" in problem else "see 'Expressions' in docs/plans.md for what there is"
            hint = _HINTS.get(type(node).__name__, known)
            raise ExpressionError(problem, source.column(node), hint)
        children = list(ast.iter_child_nodes(node))
        if isinstance(node, ast.Call):
            # The name of the function is checked with its call.
            children = children[1:]
        if isinstance(node, ast.BinOp | ast.UnaryOp | ast.BoolOp | ast.Compare):
            # An operator has no place of its own: it is judged with its node.
            children = [child for child in children if isinstance(child, ast.expr)]
        waiting.extend((child, depth + 1) for child in children)
    return Expression(text, find_references([mark.value for mark in source.marks.values()]), tree, source)


def _refusal(node: ast.AST, source: Source) -> str:
    if not isinstance(node, _ALLOWED):
        return _REFUSED.get(type(node).__name__, "this is not a part of expressions")
    if isinstance(node, ast.BinOp) and type(node.op) not in ARITHMETIC:
        return f"the operator {_SIGNS.get(type(node.op).__name__, '@')} is not allowed"
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Invert):
        return "the operator ~ is not allowed"
    if isinstance(node, ast.Compare) and any(type(op) not in COMPARE for op in node.ops):
        return "'is' is not allowed: write == or !="
    if isinstance(node, ast.Constant):
        return "" if isinstance(node.value, bool | int | float | None) else "this literal is not allowed"
    if isinstance(node, ast.Name) and MARK not in node.id and node.id not in NAMES:
        return f"the name '{node.id}' is not known: write ${{{node.id}}} for a value, '{node.id}' for a text"
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
        return f"{name} needs a reference" + (" and a value" if name == "default" else "")
    if name not in FUNCTIONS or name.startswith(MARK):
        shown = ast.unparse(node.func) if isinstance(node.func, ast.Name | ast.Attribute) else "?"
        if MARK in shown:
            shown = shown.rpartition(".")[2]
        return f"the function '{shown}' is unknown: there are {', '.join((*FUNCTIONS, *LAZY))}"
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
