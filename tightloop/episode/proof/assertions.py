"""Assertions of Python tests, in a form that does not depend on where or how they are written."""

import ast
import copy
import re
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from tightloop.episode.proof.same_code import CHARACTERS

CASES_LIMIT = 400
"""Maximum number of test cases that become separate claims. A larger table is treated as one value."""
_DEPTH = 4
_Function = ast.FunctionDef | ast.AsyncFunctionDef
_COMPARED = {
    "Equal": ast.Eq, "Equals": ast.Eq, "ListEqual": ast.Eq, "DictEqual": ast.Eq, "SetEqual": ast.Eq,
    "TupleEqual": ast.Eq, "SequenceEqual": ast.Eq, "MultiLineEqual": ast.Eq, "NotEqual": ast.NotEq, "Is": ast.Is,
    "IsNot": ast.IsNot, "In": ast.In, "NotIn": ast.NotIn, "Greater": ast.Gt, "GreaterEqual": ast.GtE, "Less": ast.Lt,
    "LessEqual": ast.LtE,
}  # fmt: skip
_OPPOSITE = {
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_MIRRORED = (ast.Eq, ast.NotEq, ast.Is, ast.IsNot)
_ASSERTING = re.compile(r"(?:^|[._])(?:assert|expect|check|verify|should)(?:$|[._A-Z])", re.IGNORECASE)
_SET_UP = ("setUpClass", "setUp", "setup_class", "setup_method", "asyncSetUp")
_TEAR_DOWN = frozenset({"tearDown", "teardown_method"})
_RAISES = ("pytest.raises", "self.assertRaises", "self.assertRaisesRegex", "pytest.warns", "self.assertWarns")


class Claim(NamedTuple):
    """Assertion of a test. Two tests with the same claims test the same behaviour."""

    context: str
    """Statements before and around the assertion that can change its result."""
    subject: str
    """Expression under test, with local names replaced by their values and imported names by their origin."""
    outcome: str
    """Expected result, such as `== 4` or `raises TypeError`."""
    values: tuple[str, ...] = ()
    """Literals and exceptions of the expected result."""


class AssertedTest(NamedTuple):
    """Test function and its claims."""

    path: str
    name: str
    """Name within the file, such as `TestCalc.test_add`."""
    claims: frozenset[Claim]

    @property
    def key(self) -> str:
        """Dotted path and name of the test.

        The IDs that pytest and unittest report are suffixes of this key.
        """
        return f"{self.path.removesuffix('.py').replace('/', '.')}.{self.name}"


class Fixture(NamedTuple):
    """A pytest fixture."""

    name: str
    is_automatic: bool
    definition: str


class AssertedModule(NamedTuple):
    """A Python file with tests or fixtures."""

    tests: tuple[AssertedTest, ...]
    fixtures: tuple[Fixture, ...]
    effects: frozenset[str]
    """Statements that can affect other tests: those that run on import, and changes to imported modules."""
    helpers: frozenset[str]
    """Names of the other functions and classes at module level."""


def read_module(path: str, text: str) -> AssertedModule | None:
    """Parse the tests and fixtures of a Python file. Return None if the file cannot be parsed."""
    if len(text) > CHARACTERS:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _Reader(path, ast.parse(text)).read()
    # The parser raises MemoryError for code that is nested too deeply.
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


class _Setup(NamedTuple):
    text: str
    locals: frozenset[str]


class _Scope:
    """The values of the local names for one parameter set of a test."""

    def __init__(self, local: frozenset[str]) -> None:
        self.local = local
        self.values: dict[str, ast.expr] = {}
        self.own: dict[str, ast.expr] = {}
        """Attributes of `self`."""
        self.reach: dict[str, frozenset[str]] = {}
        """Local names that the value of each local name depends on."""
        self.cases = 1
        """Number of cases in the table that this case belongs to."""

    def child(self) -> "_Scope":
        scope = _Scope(self.local)
        scope.values, scope.own, scope.reach = dict(self.values), dict(self.own), dict(self.reach)
        scope.cases = self.cases
        return scope

    def locals_in(self, node: ast.AST) -> frozenset[str]:
        names = {name.id for name in ast.walk(node) if isinstance(name, ast.Name) and name.id in self.local}
        return frozenset(names.union(*(self.reach.get(name, frozenset()) for name in names)))


class _Reader:
    def __init__(self, path: str, tree: ast.Module) -> None:
        self._path = path
        self._imports: dict[str, str] = {}
        self._defined: dict[str, ast.stmt] = {}
        self._effects: list[ast.stmt] = []
        self._texts: dict[str, str] = {}
        self._open: set[str] = set()
        for statement in tree.body:
            self._take(statement)
        self._body = tree.body

    def _take(self, statement: ast.stmt) -> None:
        match statement:
            case ast.Import() | ast.ImportFrom():
                self._imports |= self.imported(statement)
                if any(alias.name == "*" for alias in statement.names):
                    self._effects.append(statement)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                self._defined[statement.name] = statement
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                self._defined[name] = statement
                if name == "pytestmark" or name in self._imports:
                    self._effects.append(statement)
            case ast.Expr(value=ast.Constant()) | ast.Pass():
                pass
            case ast.If(
                test=ast.Compare(left=ast.Name(id="__name__")), body=[ast.Expr(value=ast.Call(func=called))]
            ) if ast.unparse(called) in ("unittest.main", "pytest.main", "main"):
                pass
            case _:
                self._effects.append(statement)

    def imported(self, statement: ast.Import | ast.ImportFrom) -> dict[str, str]:
        """Return the origin of each name that an import binds."""
        if isinstance(statement, ast.Import):
            return {
                alias.asname or alias.name.partition(".")[0]: alias.name
                if alias.asname
                else alias.name.partition(".")[0]
                for alias in statement.names
            }
        base = statement.module or ""
        if statement.level:
            folders = self._path.split("/")[: -statement.level]
            base = ".".join(filter(None, (*folders, base)))
        return {alias.asname or alias.name: f"{base}.{alias.name}" for alias in statement.names}

    def read(self) -> AssertedModule:
        around = [f"module: {self._dump(effect, _Scope(frozenset()))}" for effect in self._effects]
        around += [f"automatic: {fixture.definition}" for fixture in self._fixtures(self._body) if fixture.is_automatic]
        tests = tuple(self._tests(self._body, "", around, None))
        helpers = {
            name
            for name, node in self._defined.items()
            if isinstance(node, _Function | ast.ClassDef)
            and not name.lower().startswith("test")
            and not (isinstance(node, _Function) and self._is_fixture(node))
        }
        effects = {self._dump(node, _Scope(frozenset())) for node in (*self._effects, *self._intrusions())}
        return AssertedModule(tests, tuple(self._fixtures(self._body)), frozenset(effects), frozenset(helpers))

    def _intrusions(self) -> Iterator[ast.AST]:
        """Yield the statements that modify state outside their function, such as an imported module."""
        for function in (node for statement in self._body for node in ast.walk(statement)):
            if not isinstance(function, _Function):
                continue
            made = {
                target.id
                for node in ast.walk(function)
                if isinstance(node, ast.Assign) and not isinstance(node.value, ast.Name | ast.Attribute | ast.Subscript)
                for target in node.targets
                if isinstance(target, ast.Name)
            }
            arguments = {argument.arg for argument in ast.walk(function.args) if isinstance(argument, ast.arg)}
            for node in ast.walk(function):
                if isinstance(node, ast.Attribute | ast.Subscript) and not isinstance(node.ctx, ast.Load):
                    root: ast.expr = node
                    while isinstance(root, ast.Attribute | ast.Subscript | ast.Call):
                        root = root.func if isinstance(root, ast.Call) else root.value
                    if not isinstance(root, ast.Name) or root.id not in made | arguments:
                        yield node
                elif isinstance(node, ast.Global) or (isinstance(node, ast.Call) and _is_intrusive(node)):
                    yield node

    # -- what a file consists of -------------------------------------------------------------------------

    def _decorators(self, function: _Function | ast.ClassDef) -> list[tuple[str, ast.expr]]:
        scope = _Scope(frozenset())
        return [
            (self._dump(node.func if isinstance(node, ast.Call) else node, scope), node)
            for node in function.decorator_list
        ]

    def _is_fixture(self, function: _Function) -> bool:
        return any(name.rpartition(".")[2] == "fixture" for name, _ in self._decorators(function))

    def _fixtures(self, body: Sequence[ast.stmt]) -> Iterator[Fixture]:
        for function in body:
            if not isinstance(function, _Function) or not self._is_fixture(function):
                continue
            texts = [ast.unparse(node) for node in function.decorator_list]
            given = re.search(r"\bname=['\"](\w+)", " ".join(texts))
            automatic = any("autouse" in text for text in texts)
            yield Fixture(given[1] if given else function.name, automatic, self._definition(function))

    def _tests(
        self, body: Sequence[ast.stmt], above: str, around: list[str], inside: ast.ClassDef | None
    ) -> Iterator[AssertedTest]:
        # A later definition replaces an earlier one of the same name.
        named = {node.name: node for node in body if isinstance(node, _Function | ast.ClassDef)}
        for name, node in named.items():
            qualified = f"{above}{name}"
            if isinstance(node, ast.ClassDef):
                scope = _Scope(frozenset())
                bases = [self._dump(base, scope) for base in node.bases]
                # The code of a base class is not visible here, and unittest's base class does nothing.
                own = [f"base: {base}" for base in bases if not base.endswith("TestCase") and base != "object"]
                own += [f"decorated: {text}" for text in map(ast.unparse, node.decorator_list)]
                own += [f"automatic: {item.definition}" for item in self._fixtures(node.body) if item.is_automatic]
                yield from self._tests(node.body, f"{qualified}.", [*around, *own], node)
            elif name.startswith("test") and not self._is_fixture(node):
                yield self._test(node, qualified, around, inside)

    def _test(self, function: _Function, name: str, around: list[str], inside: ast.ClassDef | None) -> AssertedTest:
        walker = _Walker(self, _Scope(_local_names(function)))
        scope = walker.scope
        context = list(around)
        if inside is not None:
            self._enter_class(inside, scope, context)
        tables: list[tuple[list[str], ast.expr]] = []
        for text, decorator in self._decorators(function):
            if text.endswith("mark.parametrize") and isinstance(decorator, ast.Call) and len(decorator.args) >= 2:
                tables.append((_parameter_names(decorator.args[0]), decorator.args[1]))
            elif text.rpartition(".")[2] not in ("staticmethod", "asyncio", "anyio"):
                context.append(f"decorated: {self._dump(decorator, scope)}")
        parameters = {name for names, _ in tables for name in names}
        for argument in (*function.args.args, *function.args.kwonlyargs):
            if argument.arg not in parameters and argument.arg != "self":
                self._bind_fixture(argument.arg, scope)
        for bound in _rows(self, tables, scope):
            walker.walk(function.body, context, bound)
        claims = walker.claims or [Claim("\n".join(context), walker.whole(function, scope), "runs")]
        return AssertedTest(self._path, name, frozenset(claims))

    def _enter_class(self, inside: ast.ClassDef, scope: _Scope, context: list[str]) -> None:
        methods = {node.name: node for node in inside.body if isinstance(node, _Function)}
        for statement in inside.body:
            if isinstance(statement, _Function) and not statement.name.startswith("test"):
                scope.own[statement.name] = ast.Name(f"<{self._definition(statement)}>")
            elif isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
                scope.own[statement.targets[0].id] = self.resolve(statement.value, scope)
        for statement in [part for name in _SET_UP if name in methods for part in methods[name].body]:
            match statement:
                case ast.Assign(targets=[ast.Attribute(value=ast.Name(id="self"), attr=attribute)], value=value):
                    scope.own[attribute] = self.resolve(value, scope)
                case _ if not _is_plain_text(statement):
                    context.append(f"set up: {self._dump(statement, scope)}")
        for name in _TEAR_DOWN & methods.keys():
            if "assert" in ast.unparse(methods[name]):
                context.append(f"tear down: {self._definition(methods[name])}")

    def _bind_fixture(self, name: str, scope: _Scope) -> None:
        defined = self._defined.get(name)
        if not isinstance(defined, _Function) or not self._is_fixture(defined):
            scope.values[name] = ast.Name(f"fixture:{name}")
            return
        body = [statement for statement in defined.body if not _is_plain_text(statement)]
        last = body[-1] if body else None
        value = last.value if isinstance(last, ast.Return | ast.Expr) else None
        value = value.value if isinstance(value, ast.Yield) else value if isinstance(last, ast.Return) else None
        if value is None or len(body) > 1 or len(defined.decorator_list) > 1 or defined.args.args:
            scope.values[name] = ast.Name(f"<{self._definition(defined)}>")
        else:
            scope.values[name] = self.resolve(value, scope)

    # -- text of nodes -----------------------------------------------------------------------------------

    def _dump(self, node: ast.AST, scope: _Scope) -> str:
        return ast.unparse(_Resolver(self, scope).visit(copy.deepcopy(node)))

    def resolve(self, node: ast.expr, scope: _Scope) -> ast.expr:
        """Return an expression with all names replaced by their values or origins."""
        resolved: ast.expr = _Resolver(self, scope).visit(copy.deepcopy(node))
        return resolved

    def named(self, name: str) -> ast.expr | None:
        """Return the value or origin of a module-level name, or None for a builtin."""
        statement = self._defined.get(name)
        if statement is not None and name not in self._open:
            if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
                self._open.add(name)
                try:
                    return self.resolve(statement.value, _Scope(frozenset()))
                finally:
                    self._open.discard(name)
            return ast.Name(f"<{self._definition(statement)}>")
        return ast.Name(self._imports[name]) if name in self._imports else None

    def _definition(self, statement: ast.stmt) -> str:
        name = getattr(statement, "name", "")
        if name in self._open or len(self._open) > _DEPTH:
            return f"def {name}"
        self._open.add(name)
        try:
            bare = copy.deepcopy(statement)
            if isinstance(bare, _Function | ast.ClassDef):
                # Two helpers with the same body are the same helper.
                bare.name = "_"
                bare.body = [part for part in bare.body if not _is_plain_text(part)] or [ast.Pass()]
            local = _local_names(bare) if isinstance(bare, _Function) else frozenset[str]()
            return self._dump(bare, _Scope(local))
        finally:
            self._open.discard(name)


def _is_intrusive(call: ast.Call) -> bool:
    name = ast.unparse(call.func)
    return name in ("setattr", "exec", "eval", "delattr", "globals", "vars") or name.endswith(
        (".start", ".__setattr__")
    )


def _is_plain_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Pass) or (
        isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    )


def _local_names(function: _Function) -> frozenset[str]:
    arguments = function.args
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
    stored = {node.id for node in ast.walk(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    stored |= {
        node.name for node in ast.walk(function) if isinstance(node, _Function | ast.ClassDef) and node is not function
    }
    stored |= {node.name for node in ast.walk(function) if isinstance(node, ast.ExceptHandler) and node.name}
    return frozenset(stored | {argument.arg for argument in every if argument is not None})


def _parameter_names(node: ast.expr) -> list[str]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return [name.strip() for name in node.value.split(",") if name.strip()]
    if isinstance(node, ast.Tuple | ast.List):
        return [str(item.value) for item in node.elts if isinstance(item, ast.Constant)]
    return []


def _rows(reader: _Reader, tables: list[tuple[list[str], ast.expr]], scope: _Scope) -> Iterator[_Scope]:
    """Yield the local names and their values for each combination of a test's parameters."""
    if not tables:
        yield scope
        return
    (names, values), *others = tables
    for bound in _bindings(reader, names, values, scope):
        yield from _rows(reader, others, bound)


def _bindings(reader: _Reader, names: list[str], values: ast.expr, scope: _Scope) -> Iterator[_Scope]:
    """Yield the local names and their values for each row of a parameter table.

    If the rows are not known until run time, yield a single scope.
    """
    resolved = reader.resolve(values, scope)
    rows = resolved.elts if isinstance(resolved, ast.List | ast.Tuple | ast.Set) else None
    cases = scope.cases * len(rows or ())
    if rows is None or cases > CASES_LIMIT or any(isinstance(row, ast.Starred) for row in rows):
        bound = scope.child()
        text = ast.unparse(resolved)
        for position, name in enumerate(names):
            at = f"[{position}]" if len(names) > 1 else ""
            bound.values[name] = ast.Name(f"each({text}){at}")
        yield bound
        return
    for row in rows:
        bound, marks = scope.child(), ""
        bound.cases = cases
        if isinstance(row, ast.Call) and ast.unparse(row.func).endswith("pytest.param"):
            marks = " ".join(ast.unparse(keyword) for keyword in row.keywords if keyword.arg == "marks")
            items: list[ast.expr] = list(row.args)
        else:
            items = list(row.elts) if len(names) > 1 and isinstance(row, ast.Tuple | ast.List) else [row]
        if len(items) != len(names):
            items = [ast.Subscript(row, ast.Constant(position)) for position in range(len(names))]
        for name, item in zip(names, items, strict=True):
            bound.values[name] = ast.Name(f"{ast.unparse(item)} {marks}") if marks else item
        yield bound


def _part(value: ast.expr) -> ast.expr:
    if not isinstance(value, ast.FormattedValue):
        return value
    spec = [value.format_spec] if value.format_spec else []
    parts = [value.value, ast.Constant(value.conversion), *spec]
    return ast.Tuple([_part(part) for part in parts], ast.Load())


class _Resolver(ast.NodeTransformer):
    """Replaces local names with their values, and module-level names with their origin or definition."""

    def __init__(self, reader: _Reader, scope: _Scope) -> None:
        self._reader, self._scope = reader, scope

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id in self._scope.values:
            return self._scope.values[node.id]
        if node.id in self._scope.local or isinstance(node.ctx, ast.Store):
            return node
        return self._reader.named(node.id) or node

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        if isinstance(node.value, ast.Name) and node.value.id == "self" and node.attr in self._scope.own:
            return self._scope.own[node.attr]
        value = self.visit(node.value)
        # `calc.add` is the same as `add` imported from `calc`.
        if isinstance(value, ast.Name) and re.fullmatch(r"[\w.]+", value.id) and value.id not in self._scope.local:
            return ast.Name(f"{value.id}.{node.attr}")
        return ast.Attribute(value, node.attr, node.ctx)

    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        return ast.Constant(node.value)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        resolved = self.generic_visit(node)
        try:
            ast.unparse(resolved)
        # A value that took the place of a name may contain quotes and backslashes that an f-string cannot.
        except ValueError:
            return ast.Call(ast.Name("f"), [_part(value) for value in node.values], [])
        return resolved

    def visit_arg(self, node: ast.arg) -> ast.arg:
        return ast.arg(node.arg)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        if node.value is None:
            return self.generic_visit(node)
        return self.generic_visit(ast.Assign([node.target], node.value, lineno=node.lineno))


class _Walker:
    """Visits the statements of a test in order and collects its claims."""

    def __init__(self, reader: _Reader, scope: _Scope) -> None:
        self._reader, self.scope = reader, scope
        self.claims: list[Claim] = []

    def whole(self, function: _Function, scope: _Scope) -> str:
        return "\n".join(self._text(part, scope) for part in function.body if not _is_plain_text(part))

    def _text(self, node: ast.AST, scope: _Scope) -> str:
        return ast.unparse(_Resolver(self._reader, scope).visit(copy.deepcopy(node)))

    def walk(self, body: Sequence[ast.stmt], around: Sequence[str], scope: _Scope) -> None:
        """Collect the claims in a block. `around` contains the enclosing statements."""
        before = [_Setup(text, frozenset()) for text in around]
        self._block(body, before, scope)

    def _block(self, body: Sequence[ast.stmt], before: list[_Setup], scope: _Scope) -> None:
        for statement in body:
            self._statement(statement, before, scope)

    def _statement(self, statement: ast.stmt, before: list[_Setup], scope: _Scope) -> None:
        match statement:
            case ast.Assert(test=test):
                self._claim(test, before, scope)
            case ast.Expr(value=value):
                self._expression(statement, value, before, scope)
            case ast.With() | ast.AsyncWith():
                self._with(statement, before, scope)
            case ast.For(target=target, iter=values, body=body, orelse=[]):
                names = [target.id] if isinstance(target, ast.Name) else _target_names(target)
                for bound in _bindings(self._reader, names, values, scope):
                    self._block(body, before, bound)
            case _ if not self._bind(statement, before, scope):
                self._compound(statement, before, scope)

    def _bind(self, statement: ast.stmt, before: list[_Setup], scope: _Scope) -> bool:
        """Process a statement that only binds a local name.

        Return False if the statement does anything else.
        """
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                self._assign(name, value, scope)
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                self._assign(name, value, scope)
            case ast.Import() | ast.ImportFrom():
                for name, origin in self._reader.imported(statement).items():
                    scope.values[name] = ast.Name(origin)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                before.append(_Setup(self._text(statement, scope), frozenset({statement.name})))
            case _:
                return isinstance(statement, ast.Pass)
        return True

    def _compound(self, statement: ast.stmt, before: list[_Setup], scope: _Scope) -> None:
        """Collect the claims in a compound statement, such as `if` or `try`.

        The condition of the statement becomes part of the context of each claim.
        """
        blocks = [
            (name, part)
            for name, part in ast.iter_fields(statement)
            if isinstance(part, list) and part and isinstance(part[0], ast.stmt | ast.ExceptHandler)
        ]
        if not blocks or not any(isinstance(node, ast.Assert) or _is_assertion(node) for node in ast.walk(statement)):
            # Anything that leaves the test early, or changes what follows.
            before.append(_Setup(self._text(statement, scope), scope.locals_in(statement)))
            return
        bare = copy.deepcopy(statement)
        for name, _ in blocks:
            setattr(bare, name, [ast.Pass()] if name == "body" else [])
        head = type(statement).__name__
        handlers = [self._text(part, scope) for part in getattr(statement, "handlers", [])]
        test = (
            getattr(statement, "test", None) or getattr(statement, "iter", None) or getattr(statement, "subject", None)
        )
        head = " ".join((head, self._text(test, scope) if test is not None else "", *handlers))
        for name, part in blocks:
            inner = [*before, _Setup(f"{head} {name}", frozenset())]
            for block in [handler.body for handler in part] if name == "handlers" else [part]:
                if all(isinstance(item, ast.stmt) for item in block):
                    self._block(block, inner, scope)
        before.append(_Setup(f"{head} ended", frozenset()))

    def _assign(self, name: str, value: ast.expr, scope: _Scope) -> None:
        scope.reach[name] = scope.locals_in(value)
        scope.values[name] = self._reader.resolve(value, scope)

    def _with(self, statement: ast.With | ast.AsyncWith, before: list[_Setup], scope: _Scope) -> None:
        inner = list(before)
        for item in statement.items:
            call = item.context_expr
            text = self._text(call, scope)
            is_raises = isinstance(call, ast.Call) and text.startswith(_RAISES)
            if is_raises and isinstance(call, ast.Call):
                body = "; ".join(self._text(part, scope) for part in statement.body)
                self._add(before, body, f"raises {_raised(call, self._text, scope)}", call, scope, statement)
                continue
            if not text.startswith(("self.subTest(", "subtests.test(")):
                inner.append(_Setup(f"with {text}", frozenset()))
        self._block(statement.body, inner, scope)
        before += [setup for setup in inner[len(before) :] if setup not in before]

    def _expression(self, statement: ast.Expr, value: ast.expr, before: list[_Setup], scope: _Scope) -> None:
        value = value.value if isinstance(value, ast.Await) else value
        if not isinstance(value, ast.Call):
            return
        name = self._text(value.func, scope)
        if name.startswith("self.assert"):
            self._unittest(name.removeprefix("self.assert"), value, before, scope)
        elif _ASSERTING.search(name.rpartition(">")[2]) or _is_assertion(value):
            self._add(before, self._text(value, scope), "holds", None, scope, value)
        else:
            text = self._text(value, scope)
            self._add(before, text, "runs", None, scope, value)
            before.append(_Setup(text, scope.locals_in(statement)))

    def _unittest(self, kind: str, call: ast.Call, before: list[_Setup], scope: _Scope) -> None:
        arguments = [*call.args, *(word.value for word in call.keywords if word.arg in ("first", "second", "expr"))]
        if kind in _COMPARED and len(arguments) >= 2:
            self._claim(ast.Compare(arguments[0], [_COMPARED[kind]()], [arguments[1]]), before, scope)
        elif kind in ("True", "_") and arguments:
            self._claim(arguments[0], before, scope)
        elif kind == "False" and arguments:
            self._claim(ast.UnaryOp(ast.Not(), arguments[0]), before, scope)
        elif kind in ("IsNone", "IsNotNone") and arguments:
            operator = ast.Is() if kind == "IsNone" else ast.IsNot()
            self._claim(ast.Compare(arguments[0], [operator], [ast.Constant(None)]), before, scope)
        elif kind in ("IsInstance", "NotIsInstance") and len(arguments) >= 2:
            test: ast.expr = ast.Call(ast.Name("isinstance", ast.Load()), arguments[:2], [])
            self._claim(test if kind == "IsInstance" else ast.UnaryOp(ast.Not(), test), before, scope)
        elif kind in ("AlmostEqual", "AlmostEquals") and len(arguments) == 2 and not call.keywords:
            self._add_text(
                before, arguments[0], f"== pytest.approx({self._text(arguments[1], scope)})", arguments, scope
            )
        elif kind == "CountEqual" and len(arguments) == 2:
            both = [ast.Call(ast.Name("sorted", ast.Load()), [argument], []) for argument in arguments]
            self._claim(ast.Compare(both[0], [ast.Eq()], [both[1]]), before, scope)
        elif kind in ("Regex", "Regexp") and len(arguments) >= 2:
            self._claim(ast.Call(ast.Name("re.search", ast.Load()), [arguments[1], arguments[0]], []), before, scope)
        elif kind in ("Raises", "RaisesRegex") and len(arguments) >= 2:
            skipped = 2 if kind == "RaisesRegex" else 1
            body = (
                ast.Call(arguments[skipped], arguments[skipped + 1 :], call.keywords)
                if len(arguments) > skipped
                else None
            )
            text = self._text(body, scope) if body else ""
            raised = ", ".join(self._text(argument, scope) for argument in arguments[:skipped])
            self._add(before, text, f"raises {raised}", arguments[0], scope, call)
        else:
            self._add(before, self._text(call, scope), "holds", None, scope, call)

    def _claim(self, test: ast.expr, before: list[_Setup], scope: _Scope) -> None:
        match test:
            case ast.BoolOp(op=ast.And(), values=values):
                for value in values:
                    self._claim(value, before, scope)
            case ast.UnaryOp(op=ast.Not(), operand=ast.Compare(left=left, ops=[operator], comparators=[right])) if (
                type(operator) in _OPPOSITE
            ):
                self._claim(ast.Compare(left, [_OPPOSITE[type(operator)]()], [right]), before, scope)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                self._add(before, self._text(operand, scope), "is false", None, scope, operand)
            case ast.Compare(left=left, ops=[operator], comparators=[right]):
                if isinstance(operator, _MIRRORED) and _is_literal(left) and not _is_literal(right):
                    left, right = right, left
                sign = ast.unparse(ast.Compare(ast.Name("x"), [operator], [ast.Name("y")]))[2:-2]
                self._add_text(before, left, f"{sign} {self._text(right, scope)}", [left, right], scope)
            case _:
                self._add(before, self._text(test, scope), "is true", None, scope, test)

    def _add_text(
        self, before: list[_Setup], subject: ast.expr, outcome: str, nodes: list[ast.expr], scope: _Scope
    ) -> None:
        self._add(before, self._text(subject, scope), outcome, nodes[1], scope, *nodes)

    def _add(
        self,
        before: list[_Setup],
        subject: str,
        outcome: str,
        expected: ast.expr | None,
        scope: _Scope,
        *nodes: ast.AST,
    ) -> None:
        local = frozenset[str]().union(*(scope.locals_in(node) for node in nodes))
        # A call that only concerns other objects has no effect on this claim.
        relevant = [setup.text for setup in before if not setup.locals or setup.locals & local]
        values = _values(self._reader.resolve(expected, scope)) if expected is not None else ()
        self.claims.append(Claim("\n".join(relevant), subject, outcome, values))


def _raised(call: ast.Call, text: Any, scope: _Scope) -> str:
    words = [word.value for word in call.keywords if word.arg in ("match", "expected_exception")]
    return ", ".join(text(argument, scope) for argument in (*call.args, *words))


def _target_names(target: ast.expr) -> list[str]:
    if isinstance(target, ast.Tuple | ast.List):
        return [node.id if isinstance(node, ast.Name) else ast.unparse(node) for node in target.elts]
    return [ast.unparse(target)]


def _is_assertion(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    name = ast.unparse(node.func)
    return bool(_ASSERTING.search(name)) or name.startswith(_RAISES)


def _is_literal(node: ast.expr) -> bool:
    return all(
        isinstance(part, ast.Constant | ast.List | ast.Tuple | ast.Dict | ast.Set | ast.UnaryOp | ast.USub | ast.Load)
        for part in ast.walk(node)
    )


def _values(node: ast.expr) -> tuple[str, ...]:
    """Return the literals and exception names in the expected result of an assertion."""
    values = [
        str(part.value) if isinstance(part, ast.Constant) else part.id
        for part in ast.walk(node)
        if isinstance(part, ast.Constant)
        or (isinstance(part, ast.Name) and re.search(r"(?:Error|Exception|Warning|Exit)$", part.id))
    ]
    return tuple(values)
