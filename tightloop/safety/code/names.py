"""Finds out what names in a module mean: imports, aliases, built-ins, and attributes fetched by their name.

It errs on the side of more: of a name that may mean two things both are taken. Only a name that a function binds, or
that a definition at the top has taken before it is used, hides a built-in.
"""

import ast
import builtins
from collections.abc import Iterator
from typing import Any, NamedTuple

from tightloop.safety.code.folding import Folding
from tightloop.safety.code.scopes import SCOPES, Binding, Scope

DEPTH_LIMIT = 40
BUILTINS = "builtins"
GLOBALS = "builtins.globals()"
_BUILTIN_NAMES = frozenset(dir(builtins)) | {"__loader__", "__spec__", "__builtins__"}
IMPORTING = frozenset({"builtins.__import__", "importlib.import_module", "importlib.__import__"})
_LOOKING_UP = frozenset({"get", "pop", "__getitem__", "setdefault"})
_SAME = {"posix": "os", "nt": "os", "_io": "io", "__builtin__": BUILTINS, "_ctypes": "ctypes", "_socket": "socket"}
"""Modules by other names that they have."""


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
        self._known: dict[int, frozenset[str]] = {}
        self._found: dict[tuple[int, str], frozenset[str]] = {}
        self._folding = Folding(self.paths, self._assigned_once)

    def scope_of(self, node: ast.AST) -> Scope:
        """Return the scope that the names of a node are looked up in."""
        return self._scopes.get(id(node), self._top)

    def paths(self, node: ast.expr, depth: int = 0) -> frozenset[str]:
        """Return the full names that an expression may mean, such as `os.system`; empty where it is none."""
        if id(node) not in self._scopes:
            return self._paths(node, depth)
        if id(node) not in self._known:
            # Also while it is worked out: what refers to itself means nothing more.
            self._known[id(node)] = frozenset()
            self._known[id(node)] = self._paths(node, depth)
        return self._known[id(node)]

    def _paths(self, node: ast.expr, depth: int) -> frozenset[str]:
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

    def fold(self, node: ast.expr) -> Any:
        """Return the value of a constant expression, or None."""
        return self._folding.fold(node)

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
        found: set[str] = set()
        scope: Scope | None = self.scope_of(node)
        inner = scope
        while scope is not None:
            known = [] if scope.is_class and scope is not inner else scope.names.get(node.id, [])
            if known:
                found |= self._meanings(scope, node.id, known, depth)
            if known and node.id not in scope.elsewhere:
                certain = scope.defined.get(node.id, node.lineno) < node.lineno
                if scope.is_function or certain:
                    return frozenset(found)
            if scope.parent is None:
                found |= {_canonical(f"{module}.{node.id}") for module in scope.stars}
            scope = scope.parent
        if node.id in _BUILTIN_NAMES:
            found.add(BUILTINS if node.id == "__builtins__" else f"{BUILTINS}.{node.id}")
        return frozenset(found)

    def _meanings(self, scope: Scope, name: str, known: list[Binding], depth: int) -> frozenset[str]:
        """Return all that a scope may mean by a name, worked out once."""
        key = (id(scope), name)
        if key not in self._found:
            # Names that are assigned to each other mean nothing more.
            self._found[key] = frozenset()
            values = [self.paths(one.value, depth + 8) for one in known if one.value is not None]
            imported = [_canonical(one.path) for one in known if one.path]
            self._found[key] = frozenset().union(imported, *values)
        return self._found[key]

    def _result(self, node: ast.Call, depth: int) -> frozenset[str]:
        """Return what a call gives, where it only looks something up."""
        functions = self.paths(node.func, depth)
        folded = [self.fold(argument) for argument in node.args[:2]]
        if functions & IMPORTING and folded and isinstance(folded[0], str):
            # `__import__("a.b")` gives a, `import_module` gives a.b.
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
            if is_module_table(owner):
                found.add(_canonical(key))
            elif owner.endswith(".__dict__") or owner == BUILTINS:
                found.add(_joined(owner.removesuffix(".__dict__"), key))
            elif owner == GLOBALS:
                name = ast.copy_location(ast.Name(key, ast.Load()), node)
                found |= self._lookup(name, depth)
        return frozenset(found)


def is_module_table(path: str) -> bool:
    """Return whether a full name is `sys.modules`, also through a module that imported `sys`."""
    return path == "sys.modules" or path.endswith((".sys.modules", "._sys.modules"))


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
        scope = Scope(node, outer) if isinstance(node, SCOPES) else outer
        for field, value in ast.iter_fields(node):
            # Decorators, defaults, bases and annotations are evaluated outside.
            around = outer if field in ("decorator_list", "bases", "keywords", "returns") else scope
            for child in value if isinstance(value, list) else (value,):
                if isinstance(child, ast.arguments):
                    waiting += [Placed(inner, outer, (node, *parents[:1])) for inner in _outside(child)]
                elif isinstance(child, ast.AST):
                    waiting.append(Placed(child, around, (node, *parents[:1])))
