"""The scopes of a module, and the names that each of them binds."""

import ast
from collections.abc import Iterator
from typing import NamedTuple

SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)


class Binding(NamedTuple):
    """One way in which a scope binds a name."""

    line: int
    path: str = ""
    """Of what is imported."""
    value: ast.expr | None = None
    """What is assigned."""
    defined: bool = False
    """By `def`, `class` or an import in the body of the module itself."""


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
        self.defined: dict[str, int] = {}
        """The first line on which a name is certainly bound."""
        for name, binding in _bindings(self, node):
            self.names.setdefault(name, []).append(binding)
            if binding.defined:
                self.defined[name] = min(binding.line, self.defined.get(name, binding.line))

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
    inner_nodes = getattr(node, "body", [])
    body: list[ast.AST] = list(inner_nodes) if isinstance(inner_nodes, list) else [inner_nodes]
    top = frozenset(map(id, body)) if isinstance(node, ast.Module) else frozenset()
    waiting = list(body)
    while waiting:
        inner = waiting.pop()
        yield from _bound_by(scope, inner, at_top=id(inner) in top)
        if not isinstance(inner, SCOPES):
            waiting.extend(ast.iter_child_nodes(inner))


def _bound_by(scope: Scope, node: ast.AST, *, at_top: bool) -> Iterator[tuple[str, Binding]]:
    match node:
        case ast.Import() | ast.ImportFrom():
            yield from _imported(scope, node, at_top=at_top)
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            yield node.name, Binding(node.lineno, defined=at_top)
        case ast.Assign(targets=targets, value=value):
            for target in targets:
                yield from _assigned(target, value)
        case ast.AnnAssign(target=target, value=assigned) | ast.NamedExpr(target=target, value=assigned):
            yield from _assigned(target, assigned)
        case ast.Global(names=names) | ast.Nonlocal(names=names):
            scope.elsewhere.update(names)
        case ast.Delete(targets=targets):
            scope.elsewhere.update(target.id for target in targets if isinstance(target, ast.Name))
        case _:
            yield from _bound_without_value(node)


def _imported(scope: Scope, node: ast.Import | ast.ImportFrom, *, at_top: bool) -> Iterator[tuple[str, Binding]]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            path = alias.name if alias.asname else alias.name.partition(".")[0]
            yield alias.asname or path, Binding(node.lineno, path, defined=at_top)
        return
    module = "." * node.level + (node.module or "")
    joint = "" if module.endswith(".") else "."
    for alias in node.names:
        if alias.name == "*":
            scope.stars.append(module)
        else:
            yield alias.asname or alias.name, Binding(node.lineno, f"{module}{joint}{alias.name}", defined=at_top)


def _bound_without_value(node: ast.AST) -> Iterator[tuple[str, Binding]]:
    match node:
        case ast.AugAssign(target=ast.Name(id=name)):
            yield name, Binding(node.lineno)
        case ast.For(target=target) | ast.AsyncFor(target=target) | ast.withitem(optional_vars=ast.expr() as target):
            yield from _assigned(target, None)
        case (
            ast.ExceptHandler(name=str() as name) | ast.MatchAs(name=str() as name) | ast.MatchStar(name=str() as name)
        ):
            yield name, Binding(node.lineno)


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
