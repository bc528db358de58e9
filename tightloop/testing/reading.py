"""Reads tests without running them: what they assert, and whether they can reach who watches them."""

import ast
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tightloop.testing.copies import Pattern, copied
from tightloop.testing.lines import FunctionNode, functions_of

_MACHINERY = frozenset({
    "_exit", "settrace", "gettrace", "setprofile", "meta_path", "path_hooks", "_getframe", "__code__", "co_code",
    "getsource", "getsourcelines", "getsourcefile", "get_objects", "get_referrers", "_pytest", "tightloop_gate",
    "tightloop_session", "tightloop_watching", "tightloop_mutating", "PYTEST_CURRENT_TEST", "call_stack",
})  # fmt: skip
"""What a test would need to see that it is watched, or to tell apart what it tests from what stands in the file."""
_TYPE_CHECKS = frozenset({"isinstance", "issubclass"})
_NAME_CHECKS = frozenset({"hasattr", "callable", "isfunction", "isclass", "ismethod", "ismodule"})
_NAME_LISTS = frozenset({"dir", "vars", "__all__"})
_VALUES = frozenset(
    {"str", "repr", "list", "tuple", "dict", "set", "int", "float", "len", "sum", "sorted", "min", "max"}
)
"""Built-in functions that return something else than True or False."""
_METHODS = {"assertIsNotNone": "there", "assertIsInstance": "there", "assertHasAttr": "named"}
_BOOLEAN = frozenset({"any", "all", "bool", "isinstance", "callable", "hasattr", "startswith", "endswith"})
_RAISING = frozenset({"raises", "warns", "deprecated_call", "fail"})
_EXPECTING, _ANYTHING = (
    frozenset({"raises", "assertRaises", "assertRaisesRegex"}),
    frozenset({"Exception", "BaseException"}),
)
NAMED, SAME, SURE, THERE = "named", "same", "sure", "there"
_SAID = {
    NAMED: "It asserts only that a name is there: call it, and assert what it returns or does.",
    THERE: "It asserts only that there is a result, or of which type: assert what the result is.",
    SAME: "It compares a call with itself: assert what the result is.",
    SURE: "It asserts only constants, which holds whatever the code does: assert what the code returns or does.",
}


class Reading(NamedTuple):
    """What can be seen of a test without running it."""

    asserts: bool
    """There is an assertion in the test itself."""
    weak: str = ""
    """Why none of its assertions says what the code does; then a mutant that it kills proves nothing."""
    names_only: bool = False
    """It says only that names are there: then that it fails before the change proves nothing either."""
    expecting: frozenset[int] = frozenset()
    """Lines on which it expects a certain exception."""
    refused: str = ""
    """Why it does not count whatever it does."""


class Known(NamedTuple):
    """What is known of the code under test."""

    patterns: tuple[Pattern, ...] = ()
    """Of the functions that changed."""
    plain: frozenset[str] = frozenset()
    """Names of functions that return something else than True or False, and of classes."""
    names: frozenset[str] = frozenset()
    """Names of all functions and classes of the changed files."""


def functions_with_values(tree: ast.Module) -> frozenset[str]:
    """Return the names of the functions of a module that return something else than True or False, and of classes."""
    values = {function.name for function in functions_of(tree) if not _is_boolean(function)}
    return frozenset(values | {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)})


def names_of(tree: ast.Module) -> frozenset[str]:
    """Return the names of all functions and classes of a module."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, kinds))


def read_tests(path: str, source: str, known: Known) -> dict[str, Reading]:
    """Return what is seen of each test of a file, by node id without parameters; a helper counts as its callers' part.

    Raises:
        SyntaxError: this Python cannot read the file.
    """
    tree = ast.parse(source)
    tests = dict(_tests(path, tree.body))
    helpers = {node.name: node for node in functions_of(tree) if node not in tests.values()}
    rest = [node for node in tree.body if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)]
    everywhere = _machinery([*rest, *helpers.values()])
    return {name: _read(test, helpers, everywhere, known) for name, test in tests.items()}


def _read(test: FunctionNode, helpers: dict[str, FunctionNode], everywhere: str, known: Known) -> Reading:
    used = _used(test, helpers)
    assertions = [one for part in (test, *used) for one in _assertions(part, known)]
    kinds = set(assertions)
    weak = _SAID[min(kinds)] if kinds and "" not in kinds else ""
    reading = Reading(bool(assertions), weak, names_only=bool(kinds) and kinds <= {NAMED, SURE})
    reading = reading._replace(expecting=frozenset(_expecting(test)))
    if name := everywhere or _machinery([test]):
        return reading._replace(refused=f"It names `{name}`: a test that can see how it is run does not count.")
    if repeated := copied(test, used, known.patterns, known.names | helpers.keys()):
        said = f"It repeats the code of `{repeated}` and compares that with itself: write down the expected result."
        return reading._replace(refused=said)
    return reading


def _tests(path: str, body: Sequence[ast.stmt]) -> Iterator[tuple[str, FunctionNode]]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test"):
            yield f"{path}::{node.name}", node
        elif isinstance(node, ast.ClassDef):
            yield from _tests(f"{path}::{node.name}", node.body)


def _used(test: FunctionNode, helpers: dict[str, FunctionNode]) -> list[FunctionNode]:
    """Return the helpers that a test names, and those that they name."""
    found: dict[str, FunctionNode] = {}
    waiting: list[FunctionNode] = [test]
    while waiting:
        for node in ast.walk(waiting.pop()):
            name = node.id if isinstance(node, ast.Name) else getattr(node, "attr", getattr(node, "arg", ""))
            if isinstance(name, str) and name in helpers and name not in found:
                found[name] = helpers[name]
                waiting.append(helpers[name])
    return list(found.values())


def _machinery(nodes: Sequence[ast.AST]) -> str:
    for top in nodes:
        for node in ast.walk(top):
            words = [getattr(node, name, "") for name in ("id", "attr", "name", "module", "value")]
            for word in words:
                if isinstance(word, str) and (not _MACHINERY.isdisjoint(word.split(".")) or word.startswith("/proc")):
                    return word
    return ""


# -- what an assertion says ------------------------------------------------------------------------------


def _assertions(test: FunctionNode, known: Known) -> Iterator[str]:
    """Yield for each assertion why it is weak; "" where it is not."""
    made = _assigned(test)
    for node in ast.walk(test):
        match node:
            case ast.Assert(test=claim):
                yield _weakness(claim, made, known)
            case ast.Call(func=ast.Attribute(attr=name), args=args) if name.startswith("assert"):
                yield _weakness_of_method(name, args, made, known)
            case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name)) if name in _RAISING:
                yield ""


def _expecting(test: FunctionNode) -> Iterator[int]:
    for node in ast.walk(test):
        if not isinstance(node, ast.With | ast.AsyncWith):
            continue
        for item in node.items:
            match item.context_expr:
                case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=[expected, *_]):
                    is_certain = not (isinstance(expected, ast.Name) and expected.id in _ANYTHING)
                    if name in _EXPECTING and is_certain:
                        yield from range(node.body[0].lineno, (node.body[-1].end_lineno or 0) + 1)


def _weakness_of_method(name: str, args: list[ast.expr], made: dict[str, ast.expr], known: Known) -> str:
    if name in _METHODS:
        return _METHODS[name]
    if name in {"assertTrue", "assertFalse"} and args:
        return _weakness(args[0], made, known)
    if name == "assertIn" and len(args) > 1:
        return _weakness_of_comparison(args[0], ast.In(), args[1], made)
    if name in {"assertEqual", "assertIs", "assertListEqual", "assertDictEqual"} and len(args) > 1:
        return _comparison(args[0], args[1], made)
    return ""


def _weakness(claim: ast.expr, made: dict[str, ast.expr], known: Known) -> str:
    match claim:
        case ast.BoolOp(values=values):
            kinds = {_weakness(value, made, known) for value in values}
            return "" if "" in kinds else min(kinds)
        case ast.UnaryOp(op=ast.Not(), operand=ast.Compare() as inner):
            return _weakness(inner, made, known)
        case ast.UnaryOp(op=ast.Not(), operand=ast.Constant()):
            return SURE
        case ast.Constant(value=value):
            # `assert False` says that its line must not be reached.
            return SURE if value else ""
        case ast.Call(func=ast.Name(id=name)) if name in _TYPE_CHECKS:
            return THERE
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name in _NAME_CHECKS:
            return NAMED
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            return _weakness_of_comparison(left, op, right, made)
        case ast.Call() | ast.Name() | ast.Await():
            return THERE if _called(claim, made) in known.plain | _VALUES else ""
    return ""


def _weakness_of_comparison(left: ast.expr, op: ast.cmpop, right: ast.expr, made: dict[str, ast.expr]) -> str:
    match (left, op, right):
        case (_, ast.IsNot() | ast.NotEq(), ast.Constant(value=None)):
            return THERE
        case (_, ast.In(), ast.Call(func=ast.Name(id=name)) | ast.Attribute(attr=name)) if name in _NAME_LISTS:
            return NAMED
        case (ast.Call(func=ast.Name(id="type")), ast.Is() | ast.Eq(), _):
            return THERE
        case (_, ast.Gt() | ast.GtE() | ast.NotEq(), ast.Constant(value=0 | "" | b"")):
            return THERE
        case (ast.Call(func=ast.Name(id="len")), ast.GtE(), ast.Constant(value=1)):
            return THERE
    # Two calls may differ on purpose.
    return "" if isinstance(op, ast.NotEq | ast.IsNot | ast.Lt | ast.Gt) else _comparison(left, right, made)


def _comparison(left: ast.expr, right: ast.expr, made: dict[str, ast.expr]) -> str:
    one, other = _resolved(left, made), _resolved(right, made)
    if not any(isinstance(node, ast.Name | ast.Attribute | ast.Call) for top in (one, other) for node in ast.walk(top)):
        return SURE
    return SAME if ast.dump(one) == ast.dump(other) else ""


def _assigned(test: FunctionNode) -> dict[str, ast.expr]:
    """Return the values of names that are assigned once, where nothing is done after it: that may be what is tested."""
    done = max((node.lineno for node in ast.walk(test) if isinstance(node, ast.Expr) and _acts(node)), default=0)
    found: dict[str, list[ast.expr]] = {}
    for node in ast.walk(test):
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            found.setdefault(node.targets[0].id, []).append(node.value)
        elif isinstance(node, ast.AugAssign | ast.For) and isinstance(node.target, ast.Name):
            found.setdefault(node.target.id, []).extend((node.target, node.target))
    once = {name: values[0] for name, values in found.items() if len(values) == 1}
    return {name: value for name, value in once.items() if value.lineno >= done or _makes(value)}


def _acts(node: ast.Expr) -> bool:
    return isinstance(node.value, ast.Call | ast.Await)


def _makes(value: ast.expr) -> bool:
    """Return whether a value is an object that is just made: what is done to it does not change what it is."""
    return isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id[:1].isupper()


def _resolved(value: ast.expr, made: dict[str, ast.expr]) -> ast.expr:
    for _ in range(4):
        if not isinstance(value, ast.Name) or value.id not in made:
            break
        value = made[value.id]
    return value


def _called(claim: ast.expr, made: dict[str, ast.expr]) -> str:
    value = _resolved(claim, made)
    value = value.value if isinstance(value, ast.Await) else value
    match value:
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
            return name
    return ""


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
