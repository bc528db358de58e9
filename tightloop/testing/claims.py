"""Static analysis of tests, which determines the strength of their assertions."""

import ast
from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import NamedTuple

from tightloop.testing import FunctionNode, functions_of
from tightloop.testing.copies import Pattern, find_copied_function

_TYPE_CHECKS = frozenset({"isinstance", "issubclass"})
_NAME_CHECKS = frozenset({"hasattr", "callable", "isfunction", "isclass", "ismethod", "ismodule"})
_NAME_LISTS = frozenset({"dir", "vars", "__all__"})
_VALUES = frozenset(
    {"str", "repr", "list", "tuple", "dict", "set", "int", "float", "len", "sum", "sorted", "min", "max"}
)
"""Built-in functions whose result is not a boolean."""
_BOOLEAN = frozenset({"any", "all", "bool", "isinstance", "callable", "hasattr", "startswith", "endswith"})
_RAISING = frozenset({"raises", "warns", "deprecated_call", "fail"})
_EXPECTING = frozenset({"raises", "assertRaises", "assertRaisesRegex"})
_ANYTHING = frozenset({"Exception", "BaseException"})
_EQUAL = frozenset({"assertEqual", "assertIs", "assertListEqual", "assertDictEqual"})


class Claim(StrEnum):
    """The strength of an assertion.

    If all assertions of a test are weak, the first value in this order is reported as the reason.
    """

    NAMED = "The test only asserts that a name exists. Call it, and assert what it returns or does."
    SAME = "The test compares a call with itself. Assert the expected result."
    SURE = "The test only asserts constants, so it passes whatever the code does. Assert what the code returns or does."
    THERE = "The test only asserts that there is a result, or its type. Assert the expected result."
    STRONG = ""
    """The test asserts something about the result."""


_METHODS = {"assertIsNotNone": Claim.THERE, "assertIsInstance": Claim.THERE, "assertHasAttr": Claim.NAMED}


def functions_with_values(tree: ast.Module) -> frozenset[str]:
    """Return the names of classes and of functions that do not return a boolean."""
    values = {function.name for function in functions_of(tree) if not _is_boolean(function)}
    return frozenset(values | {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)})


def claims_of(test: FunctionNode, values: frozenset[str]) -> Iterator[Claim]:
    """Yield the claim of each assertion in a test or a helper.

    `values` are the names from `functions_with_values`.
    """
    claims = _Claims(test, values)
    for node in ast.walk(test):
        match node:
            case ast.Assert(test=claim):
                yield claims.of(claim)
            case ast.Call(func=ast.Attribute(attr=name), args=args) if name.startswith("assert"):
                yield claims.of_method(name, args)
            case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name)) if name in _RAISING:
                yield Claim.STRONG


def lines_expecting(test: FunctionNode) -> Iterator[int]:
    """Yield the lines on which a test expects a specific exception."""
    for node in ast.walk(test):
        if not isinstance(node, ast.With | ast.AsyncWith):
            continue
        for item in node.items:
            match item.context_expr:
                case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=[expected, *_]):
                    is_certain = not (isinstance(expected, ast.Name) and expected.id in _ANYTHING)
                    if name in _EXPECTING and is_certain:
                        yield from range(node.body[0].lineno, (node.body[-1].end_lineno or 0) + 1)


class _Claims:
    """Classifies the assertions of one function."""

    def __init__(self, test: FunctionNode, values: frozenset[str]) -> None:
        self._assignments, self._values = _find_assignments(test), values | _VALUES

    def of_method(self, name: str, args: list[ast.expr]) -> Claim:
        """Return the claim of a unittest method. Unknown methods, such as those of mocks, count as strong."""
        if name in _METHODS:
            return _METHODS[name]
        if name in {"assertTrue", "assertFalse"} and args:
            return self.of(args[0])
        if name == "assertIn" and len(args) > 1:
            return self._of_comparison(args[0], ast.In(), args[1])
        return self._of_equality(args[0], args[1]) if name in _EQUAL and len(args) > 1 else Claim.STRONG

    def of(self, claim: ast.expr) -> Claim:
        """Return the strength of an asserted expression."""
        match claim:
            case ast.BoolOp(values=values):
                return weakest({self.of(value) for value in values})
            case ast.UnaryOp(op=ast.Not(), operand=ast.Compare() as inner):
                return self.of(inner)
            case ast.UnaryOp(op=ast.Not(), operand=ast.Constant()):
                return Claim.SURE
            case ast.Constant(value=value):
                # `assert False` means that its line must not be reached.
                return Claim.SURE if value else Claim.STRONG
            case ast.Call(func=ast.Name(id=name)) if name in _TYPE_CHECKS:
                return Claim.THERE
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name in _NAME_CHECKS:
                return Claim.NAMED
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                return self._of_comparison(left, op, right)
            case ast.Call() | ast.Name() | ast.Await():
                return Claim.THERE if self._find_callee(claim) in self._values else Claim.STRONG
        return Claim.STRONG

    def _of_comparison(self, left: ast.expr, op: ast.cmpop, right: ast.expr) -> Claim:
        match (left, op, right):
            case (_, ast.IsNot() | ast.NotEq(), ast.Constant(value=None)):
                return Claim.THERE
            case (_, ast.In(), ast.Call(func=ast.Name(id=name)) | ast.Attribute(attr=name)) if name in _NAME_LISTS:
                return Claim.NAMED
            case (ast.Call(func=ast.Name(id="type")), ast.Is() | ast.Eq(), _):
                return Claim.THERE
            case (_, ast.Gt() | ast.GtE() | ast.NotEq(), ast.Constant(value=0 | "" | b"")):
                return Claim.THERE
            case (ast.Call(func=ast.Name(id="len")), ast.GtE(), ast.Constant(value=1)):
                return Claim.THERE
            # Two calls may differ on purpose.
            case (_, ast.NotEq() | ast.IsNot() | ast.Lt() | ast.Gt(), _):
                return Claim.STRONG
        return self._of_equality(left, right)

    def _of_equality(self, left: ast.expr, right: ast.expr) -> Claim:
        first, other = self._resolve_name(left), self._resolve_name(right)
        nodes = (node for top in (first, other) for node in ast.walk(top))
        # Without a name, no part of it depends on the code under test.
        if not any(isinstance(node, ast.Name | ast.Attribute | ast.Call) for node in nodes):
            return Claim.SURE
        return Claim.SAME if ast.dump(first) == ast.dump(other) else Claim.STRONG

    def _resolve_name(self, value: ast.expr) -> ast.expr:
        # Bounded, because names may refer to each other.
        for _ in range(4):
            if not isinstance(value, ast.Name) or value.id not in self._assignments:
                break
            value = self._assignments[value.id]
        return value

    def _find_callee(self, claim: ast.expr) -> str:
        value = self._resolve_name(claim)
        match value.value if isinstance(value, ast.Await) else value:
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
                return name
        return ""


def weakest(claims: set[Claim]) -> Claim:
    """Combine the claims of a test's assertions. The result is strong if any claim is strong."""
    if Claim.STRONG in claims:
        return Claim.STRONG
    return next((claim for claim in Claim if claim in claims), Claim.STRONG)


def _find_assignments(test: FunctionNode) -> dict[str, ast.expr]:
    """Return the values of names that are assigned once.

    A name is omitted if the test may check a later side effect on its value.
    """
    nodes = [node for node in ast.walk(test) if isinstance(node, ast.Expr)]
    last_call_line = max((node.lineno for node in nodes if isinstance(node.value, ast.Call | ast.Await)), default=0)
    values_by_name: dict[str, list[ast.expr]] = {}
    for node in ast.walk(test):
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            values_by_name.setdefault(node.targets[0].id, []).append(node.value)
        elif isinstance(node, ast.AugAssign | ast.For) and isinstance(node.target, ast.Name):
            # Twice, so that the name never counts as assigned once.
            values_by_name.setdefault(node.target.id, []).extend((node.target, node.target))
    once = {name: values[0] for name, values in values_by_name.items() if len(values) == 1}
    return {
        name: value
        for name, value in once.items()
        # Later calls do not change the type of a newly created object.
        if value.lineno >= last_call_line
        or (isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id[:1].isupper())
    }


def _is_boolean(function: FunctionNode) -> bool:
    match function.returns:
        case ast.Name(id="bool") | ast.Constant(value="bool"):
            return True
    values = [node.value for node in ast.walk(function) if isinstance(node, ast.Return) and node.value is not None]
    return bool(values) and all(map(_is_truth, values))


def _is_truth(value: ast.expr) -> bool:
    match value:
        case ast.Compare() | ast.UnaryOp(op=ast.Not()) | ast.Constant(value=True | False):
            return True
        case ast.BoolOp(values=values):
            return all(map(_is_truth, values))
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
            return name in _BOOLEAN or name.startswith(("is", "has"))
    return False


_MACHINERY = frozenset({
    "_exit", "settrace", "gettrace", "setprofile", "meta_path", "path_hooks", "_getframe", "__code__", "co_code",
    "getsource", "getsourcelines", "getsourcefile", "get_objects", "get_referrers", "_pytest", "tightloop_gate",
    "tightloop_session", "tightloop_mutating", "tightloop_recording",
    "PYTEST_CURRENT_TEST",
})  # fmt: skip
"""Names that a test only needs to detect that it is being observed, or to bypass the mutated code."""


class JudgedTests(NamedTuple):
    """Static findings about a test."""

    asserts: bool
    """True if the test itself contains an assertion."""
    weak: str = ""
    """Reason why none of the test's assertions checks behaviour.

    In that case, a killed mutant does not prove anything.
    """
    names_only: bool = False
    """True if the test only asserts that names exist.

    In that case, its failure before the change does not prove anything either.
    """
    expecting: frozenset[int] = frozenset()
    """Lines on which the test expects a specific exception."""
    refused: str = ""
    """Reason why the test never counts."""


class Known(NamedTuple):
    """Facts about the code under test."""

    patterns: tuple[Pattern, ...] = ()
    """Patterns of the changed functions."""
    plain: frozenset[str] = frozenset()
    """Names of classes, and of functions whose results are not booleans."""
    names: frozenset[str] = frozenset()
    """Names of all functions and classes in the changed files."""


def names_of(tree: ast.Module) -> frozenset[str]:
    """Return the names of all functions and classes in a module."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, kinds))


def read_tests(path: str, source: str, known_code: Known) -> dict[str, JudgedTests]:
    """Return the static findings for each test, by node ID without parameters.

    Helpers count as part of the tests that call them.

    Raises:
        SyntaxError: this version of Python cannot parse the file.
    """
    tree = ast.parse(source)
    tests = dict(_tests(path, tree.body))
    helpers = {node.name: node for node in functions_of(tree) if node not in tests.values()}
    rest = [node for node in tree.body if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)]
    # Module level and helpers run for every test, so what they do counts for all.
    everywhere = _machinery([*rest, *helpers.values()])
    return {name: _read(test, helpers, everywhere, known_code) for name, test in tests.items()}


def _read(test: FunctionNode, helpers: dict[str, FunctionNode], everywhere: str, known_code: Known) -> JudgedTests:
    used = _find_used_helpers(test, helpers)
    claims = [claim for part in (test, *used) for claim in claims_of(part, known_code.plain)]
    reading = JudgedTests(
        bool(claims),
        weak=str(weakest(set(claims))),
        names_only=bool(claims) and set(claims) <= {Claim.NAMED, Claim.SURE},
        expecting=frozenset(lines_expecting(test)),
    )
    if name := everywhere or _machinery([test]):
        return reading._replace(refused=f"The test uses `{name}`. A test that can see how it is run does not count.")
    if repeated := find_copied_function(test, used, known_code.patterns, known_code.names | helpers.keys()):
        refusal = (
            f"The test repeats the code of `{repeated}` and compares the code with itself. Write the expected "
            "result as a literal."
        )
        return reading._replace(refused=refusal)
    return reading


def _tests(path: str, body: Sequence[ast.stmt]) -> Iterator[tuple[str, FunctionNode]]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test"):
            yield f"{path}::{node.name}", node
        elif isinstance(node, ast.ClassDef):
            yield from _tests(f"{path}::{node.name}", node.body)


def _find_used_helpers(test: FunctionNode, helpers: dict[str, FunctionNode]) -> list[FunctionNode]:
    """Return the helpers that a test uses directly or indirectly."""
    used_helpers: dict[str, FunctionNode] = {}
    waiting: list[FunctionNode] = [test]
    while waiting:
        for node in ast.walk(waiting.pop()):
            name = node.id if isinstance(node, ast.Name) else getattr(node, "attr", getattr(node, "arg", ""))
            if isinstance(name, str) and name in helpers and name not in used_helpers:
                used_helpers[name] = helpers[name]
                waiting.append(helpers[name])
    return list(used_helpers.values())


def _machinery(nodes: Sequence[ast.AST]) -> str:
    for top in nodes:
        for node in ast.walk(top):
            texts = [getattr(node, name, "") for name in ("id", "attr", "name", "module", "value")]
            for text in texts:
                # /proc shows the command line and the open files of the runner.
                if isinstance(text, str) and (not _MACHINERY.isdisjoint(text.split(".")) or text.startswith("/proc")):
                    return text
    return ""
