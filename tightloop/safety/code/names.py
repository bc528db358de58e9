"""Finds out what names in a module mean: imports, aliases, built-ins, and attributes fetched by their name.

It errs on the side of more: of a name that may mean two things both are taken. Only a name that a function binds, or
that a definition at the top has taken before it is used, hides a built-in.
"""

import ast
import builtins
from collections.abc import Iterator
from typing import Any, NamedTuple

from tightloop.safety.code.folding import Folding

DEPTH_LIMIT = 40
BUILTINS = "builtins"
GLOBALS = "builtins.globals()"
_BUILTIN_NAMES = frozenset(dir(builtins)) | {"__loader__", "__spec__", "__builtins__"}
IMPORTING = frozenset({"builtins.__import__", "importlib.import_module", "importlib.__import__"})
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
_LOOKING_UP = frozenset({"get", "pop", "__getitem__", "setdefault"})
_SAME = {"posix": "os", "nt": "os", "_io": "io", "__builtin__": BUILTINS, "_ctypes": "ctypes", "_socket": "socket"}
"""Modules by other names that they have."""


class Binding(NamedTuple):
    """One way in which a scope binds a name."""

    line: int
    path: str = ""
    """Of what is imported."""
    value: ast.expr | None = None
    """What is assigned."""
    defined: bool = False
    """By `def`, `class` or an import in the body of the module itself."""
    is_class: bool = False


class Scope:
    """A module, a class or a function, with the names that it binds."""

    def __init__(self, node: ast.AST, parent: "Scope | None" = None) -> None:
        """Take the node and the scope around it."""
        self.node = node
        self.parent = parent
        self.names: dict[str, list[Binding]] = {}
        self.stars: list[str] = []
        """Modules from which everything is imported."""
        self.elsewhere: set[str] = set()
        """Names that belong to other scopes (`global`, `nonlocal`), or are deleted."""
        for binding in _bindings(self, node):
            self.names.setdefault(binding[0], []).append(binding[1])

    @property
    def is_function(self) -> bool:
        """Whether its names hide all others: a function never falls back to a built-in."""
        return isinstance(self.node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)

    @property
    def is_class(self) -> bool:
        """Whether its names are not seen by the functions in it."""
        return isinstance(self.node, ast.ClassDef)


def _bindings(scope: Scope, node: ast.AST) -> Iterator[tuple[str, Binding]]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        every = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs, node.args.vararg, node.args.kwarg)
        yield from ((argument.arg, Binding(argument.lineno)) for argument in every if argument is not None)
    body: list[ast.AST] = list(node.body) if isinstance(getattr(node, "body", None), list) else []
    is_module = isinstance(node, ast.Module)
    top = frozenset(map(id, body)) if is_module else frozenset()
    waiting = list(body)
    while waiting:
        inner = waiting.pop()
        yield from _bound_by(scope, inner, at_top=id(inner) in top)
        if not isinstance(inner, _SCOPES):
            waiting.extend(ast.iter_child_nodes(inner))


def _bound_by(scope: Scope, node: ast.AST, *, at_top: bool) -> Iterator[tuple[str, Binding]]:
    match node:
        case ast.Import(names=names):
            for alias in names:
                path = alias.name if alias.asname else alias.name.partition(".")[0]
                yield alias.asname or path, Binding(node.lineno, path, defined=at_top)
        case ast.ImportFrom(names=names):
            module = "." * node.level + (node.module or "")
            for alias in names:
                if alias.name == "*":
                    scope.stars.append(module)
                    continue
                joint = "" if module.endswith(".") else "."
                yield alias.asname or alias.name, Binding(node.lineno, f"{module}{joint}{alias.name}", defined=at_top)
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            yield node.name, Binding(node.lineno, defined=at_top, is_class=isinstance(node, ast.ClassDef))
        case ast.Assign(targets=targets, value=value):
            for target in targets:
                yield from _assigned(target, value)
        case ast.AnnAssign(target=target, value=value) | ast.NamedExpr(target=target, value=value):
            yield from _assigned(target, value)
        case ast.AugAssign(target=ast.Name(id=name)):
            yield name, Binding(node.lineno)
        case ast.For(target=target) | ast.AsyncFor(target=target):
            yield from _assigned(target, None)
        case ast.withitem(optional_vars=ast.expr() as target):
            yield from _assigned(target, None)
        case ast.ExceptHandler(name=str() as name):
            yield name, Binding(node.lineno)
        case ast.MatchAs(name=str() as name) | ast.MatchStar(name=str() as name):
            yield name, Binding(node.lineno)
        case ast.Global(names=names) | ast.Nonlocal(names=names):
            scope.elsewhere.update(names)
        case ast.Delete(targets=targets):
            scope.elsewhere.update(target.id for target in targets if isinstance(target, ast.Name))


def _assigned(target: ast.expr, value: ast.expr | None) -> Iterator[tuple[str, Binding]]:
    match target, value:
        case ast.Name(id=name), _:
            yield name, Binding(target.lineno, value=value)
        case ((ast.Tuple(elts=targets) | ast.List(elts=targets)), _):
            same = isinstance(value, ast.Tuple | ast.List) and len(value.elts) == len(targets)
            values = value.elts if same and isinstance(value, ast.Tuple | ast.List) else [None] * len(targets)
            for each, part in zip(targets, values, strict=True):
                yield from _assigned(each, part)
        case ast.Starred(value=inner), _:
            yield from _assigned(inner, None)


class Placed(NamedTuple):
    """A node with the scope that its names are looked up in, and the nodes around it."""

    node: ast.AST
    scope: Scope
    parents: tuple[ast.AST, ...]
    """The nearest two, the next one first."""


class Module:
    """A parsed module, and what its names mean."""

    def __init__(self, tree: ast.Module) -> None:
        """Take the syntax tree."""
        self._top = Scope(tree)
        self.nodes = tuple(_walk(tree, self._top))
        self._scopes = {id(placed.node): placed.scope for placed in self.nodes}
        self._found: dict[int, frozenset[str]] = {}

    def scope_of(self, node: ast.AST) -> Scope:
        """Return the scope that the names of a node are looked up in."""
        return self._scopes.get(id(node), self._top)

    def paths(self, node: ast.expr, depth: int = 0) -> frozenset[str]:
        """Return the full names that an expression may mean, such as `os.system`; empty where it is none."""
        if depth > DEPTH_LIMIT:
            return frozenset()
        match node:
            case ast.Name():
                return self._lookup(node, depth + 1)
            case ast.Attribute(value=value, attr=name):
                return frozenset(_joined(path, name) for path in self.paths(value, depth + 1))
            case ast.NamedExpr(value=value) | ast.Await(value=value) | ast.Starred(value=value):
                return self.paths(value, depth + 1)
            case ast.IfExp(body=one, orelse=other):
                return self.paths(one, depth + 1) | self.paths(other, depth + 1)
            case ast.BoolOp(values=values):
                return frozenset().union(*(self.paths(value, depth + 1) for value in values))
            case ast.Subscript(value=value, slice=index):
                return self._item(self.paths(value, depth + 1), self.fold(index), node, depth + 1)
            case ast.Call():
                return self._result(node, depth + 1)
        return frozenset()

    def fold(self, node: ast.expr, depth: int = 0) -> Any:
        """Return the value of a constant expression, or None."""
        folding = Folding(lambda inner: self.paths(inner, depth + 10), self._assigned_once)
        return folding.fold(node) if depth <= DEPTH_LIMIT else None

    def is_plain_class(self, node: ast.expr) -> bool:
        """Return whether an expression may be a class of the project: a name that was not worked out, no built-in."""
        if isinstance(node, ast.Attribute):
            return not node.attr.startswith("__") and self.is_plain_class(node.value)
        if not isinstance(node, ast.Name) or any(path.startswith(BUILTINS) for path in self.paths(node)):
            return False
        return all(one.value is None for one in self._bound(node.id, self.scope_of(node)))

    def _assigned_once(self, node: ast.Name) -> ast.expr | None:
        found = self._bound(node.id, self.scope_of(node))
        return found[0].value if len(found) == 1 else None

    def _bound(self, name: str, scope: Scope | None) -> list[Binding]:
        inner = scope
        while scope is not None:
            if name in scope.names and not (scope.is_class and scope is not inner) and name not in scope.elsewhere:
                return scope.names[name]
            scope = scope.parent
        return []

    def _lookup(self, node: ast.Name, depth: int) -> frozenset[str]:
        if id(node) not in self._scopes:
            return self._looked_up(node, depth)
        if id(node) not in self._found:
            # Names that are assigned to each other mean nothing more.
            self._found[id(node)] = frozenset()
            self._found[id(node)] = self._looked_up(node, depth)
        return self._found[id(node)]

    def _looked_up(self, node: ast.Name, depth: int) -> frozenset[str]:
        found: set[str] = set()
        scope: Scope | None = self.scope_of(node)
        inner = scope
        while scope is not None:
            known = () if scope.is_class and scope is not inner else scope.names.get(node.id, ())
            for binding in known:
                if binding.path:
                    found.add(binding.path)
                elif binding.value is not None and binding.value is not node:
                    found |= self.paths(binding.value, depth + 8)
            if known and node.id not in scope.elsewhere:
                certain = any(binding.defined and binding.line < node.lineno for binding in known)
                if scope.is_function or certain:
                    return frozenset(map(_canonical, found))
            if scope.parent is None:
                found |= {f"{module}.{node.id}" for module in scope.stars}
            scope = scope.parent
        if node.id in _BUILTIN_NAMES:
            found.add(BUILTINS if node.id == "__builtins__" else f"{BUILTINS}.{node.id}")
        return frozenset(map(_canonical, found))

    def _result(self, node: ast.Call, depth: int) -> frozenset[str]:
        """Return what a call gives, where it only looks something up."""
        functions = self.paths(node.func, depth)
        folded = [self.fold(argument, depth) for argument in node.args[:2]]
        if functions & IMPORTING and folded and isinstance(folded[0], str):
            # `__import__("a.b")` gives a, `import_module` gives a.b: a is enough, as what is in it is looked up by name.
            is_top = "importlib.import_module" not in functions
            return frozenset({_canonical(folded[0].partition(".")[0] if is_top else folded[0])})
        if "builtins.getattr" in functions and len(folded) == 2 and isinstance(folded[1], str):
            return frozenset(_joined(path, folded[1]) for path in self.paths(node.args[0], depth))
        if "builtins.vars" in functions and len(node.args) == 1:
            return frozenset(f"{path}.__dict__" for path in self.paths(node.args[0], depth))
        if functions & {"builtins.globals", "builtins.locals", "builtins.vars"} and not node.args:
            return frozenset({GLOBALS})
        if isinstance(node.func, ast.Attribute) and folded:
            owners = self.paths(node.func.value, depth)
            if node.func.attr in _LOOKING_UP:
                return self._item(owners, folded[0], node, depth)
            if node.func.attr == "__getattribute__" and isinstance(folded[-1], str):
                return frozenset(_joined(owner, folded[-1]) for owner in owners)
        return frozenset()

    def _item(self, owners: frozenset[str], key: Any, node: ast.expr, depth: int) -> frozenset[str]:
        if not isinstance(key, str):
            return frozenset()
        found: set[str] = set()
        for owner in owners:
            if owner == "sys.modules":
                found.add(_canonical(key))
            elif owner.endswith(".__dict__") or owner == BUILTINS:
                found.add(_joined(owner.removesuffix(".__dict__"), key))
            elif owner == GLOBALS:
                name = ast.copy_location(ast.Name(key, ast.Load()), node)
                found |= self._lookup(name, depth)
        return frozenset(found)


def _outside(arguments: ast.arguments) -> Iterator[ast.AST]:
    """Return defaults and annotations."""
    yield from arguments.defaults
    yield from (default for default in arguments.kw_defaults if default is not None)
    every = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg)
    yield from (one.annotation for one in every if one is not None and one.annotation is not None)


def _joined(path: str, name: str) -> str:
    if name == "__self__" and path.startswith(f"{BUILTINS}."):
        return BUILTINS  # `print.__self__` is the module
    return _canonical(f"{path}.{name}")


def _canonical(path: str) -> str:
    head, _, rest = path.partition(".")
    known = _SAME.get(head)
    return path if known is None else f"{known}.{rest}" if rest else known


def _walk(tree: ast.Module, top: Scope) -> Iterator[Placed]:
    waiting = [Placed(tree, top, ())]
    while waiting:
        placed = waiting.pop()
        yield placed
        node, outer, parents = placed
        scope = Scope(node, outer) if isinstance(node, _SCOPES) else outer
        for field, value in ast.iter_fields(node):
            # Decorators, defaults, bases and annotations are evaluated outside.
            around = outer if field in ("decorator_list", "bases", "keywords", "returns") else scope
            for child in value if isinstance(value, list) else (value,):
                if isinstance(child, ast.arguments):
                    waiting += [Placed(inner, outer, (node, *parents[:1])) for inner in _outside(child)]
                elif isinstance(child, ast.AST):
                    waiting.append(Placed(child, around, (node, *parents[:1])))
