"""Static resolution of names and values in Python code."""

import ast
import base64
import binascii
import builtins
import codecs
import math
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)


class Binding(NamedTuple):
    """The binding of a name in a scope."""

    line: int
    path: str = ""
    """Full name of an imported object."""
    value: ast.expr | None = None
    """The assigned expression."""
    defined: bool = False
    """True if the name is bound by `def`, `class` or an import at the top level of the module."""


class Scope:
    """A module, class or function, with the names that it binds."""

    def __init__(self, node: ast.AST, parent: "Scope | None" = None) -> None:
        self.node = node
        self.parent = parent
        self.names: dict[str, list[Binding]] = {}
        self.stars: list[str] = []
        """Modules imported with `*`."""
        self.elsewhere: set[str] = set()
        """Names that belong to other scopes (`global`, `nonlocal`) or are deleted."""
        self.defined: dict[str, int] = {}
        """First line on which each name is guaranteed to be bound."""
        for name, binding in _bindings(self, node):
            self.names.setdefault(name, []).append(binding)
            if binding.defined:
                self.defined[name] = min(binding.line, self.defined.get(name, binding.line))

    @property
    def is_function(self) -> bool:
        """True if the scope is a function. Local names never fall back to built-ins."""
        return isinstance(self.node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)

    @property
    def is_class(self) -> bool:
        """True if the scope is a class. Its names are not visible in nested functions."""
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
            yield from _bind_imports(scope, node, at_top=at_top)
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            yield node.name, Binding(node.lineno, defined=at_top)
        case ast.Assign(targets=targets, value=value):
            for target in targets:
                yield from _bind_targets(target, value)
        case ast.AnnAssign(target=target, value=assigned) | ast.NamedExpr(target=target, value=assigned):
            yield from _bind_targets(target, assigned)
        case ast.Global(names=names) | ast.Nonlocal(names=names):
            scope.elsewhere.update(names)
        case ast.Delete(targets=targets):
            scope.elsewhere.update(target.id for target in targets if isinstance(target, ast.Name))
        case _:
            yield from _bound_without_value(node)


def _bind_imports(scope: Scope, node: ast.Import | ast.ImportFrom, *, at_top: bool) -> Iterator[tuple[str, Binding]]:
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
            yield from _bind_targets(target, None)
        case (
            ast.ExceptHandler(name=str() as name) | ast.MatchAs(name=str() as name) | ast.MatchStar(name=str() as name)
        ):
            yield name, Binding(node.lineno)


def _bind_targets(target: ast.expr, value: ast.expr | None) -> Iterator[tuple[str, Binding]]:
    match target, value:
        case ast.Name(id=name), _:
            yield name, Binding(target.lineno, value=value)
        case ((ast.Tuple(elts=targets) | ast.List(elts=targets)), _):
            same = isinstance(value, ast.Tuple | ast.List) and len(value.elts) == len(targets)
            values = value.elts if same and isinstance(value, ast.Tuple | ast.List) else [None] * len(targets)
            for element, part in zip(targets, values, strict=True):
                yield from _bind_targets(element, part)
        case ast.Starred(value=inner), _:
            yield from _bind_targets(inner, None)


SIZE_LIMIT = 10_000
"""Maximum number of characters, bytes or items in a value. Longer values are not evaluated."""
FOLDING_DEPTH = 60
GROWTH_LIMIT = 1_000_000
"""Maximum product of the sizes of a value and its method's arguments."""


class UnknownValueError(Exception):
    """Raised if a value is only known at run time. Caught by `fold`."""


_METHODS: Mapping[type, frozenset[str]] = {
    str: frozenset({
        "lower", "upper", "title", "swapcase", "capitalize", "casefold", "strip", "lstrip", "rstrip", "replace",
        "encode", "join", "format", "removeprefix", "removesuffix", "translate", "split", "partition",
    }),
    bytes: frozenset({"decode", "hex", "lower", "upper", "strip", "replace", "join", "split"}),
}  # fmt: skip
_ALPHABETS = frozenset(
    {"rot13", "rot_13", "hex", "hex_codec", "base64", "base_64", "utf-8", "utf8", "ascii", "latin-1"}
)


def _decode(value: Any, codec: str = "utf-8") -> Any:
    # No compression codecs: a few bytes could become a gigabyte.
    if codec.lower() not in _ALPHABETS:
        raise UnknownValueError
    return codecs.decode(value, codec)


_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "builtins.chr": chr,
    "builtins.ord": ord,
    "builtins.str": str,
    # `bytes(10**9)` would allocate a gigabyte; list() rejects a number.
    "builtins.bytes": lambda value, *encoding: bytes(value, *encoding) if encoding else bytes(list(value)),
    "builtins.bytearray": lambda value: bytes(list(value)),
    "builtins.list": list,
    "builtins.tuple": list,
    "builtins.reversed": lambda value: list(value)[::-1],
    "builtins.bytes.fromhex": bytes.fromhex,
    "builtins.str.join": lambda separator, parts: separator.join(parts),
    "base64.b64decode": base64.b64decode,
    "base64.urlsafe_b64decode": base64.urlsafe_b64decode,
    "base64.b32decode": base64.b32decode,
    "base64.b16decode": base64.b16decode,
    "binascii.unhexlify": binascii.unhexlify,
    "binascii.a2b_hex": binascii.a2b_hex,
    "binascii.a2b_base64": binascii.a2b_base64,
    "codecs.decode": _decode,
}
MAPPED = frozenset({"builtins.map"})


class ConstantFolder:
    """Evaluates constant expressions. Callbacks resolve the names."""

    def __init__(
        self, paths: Callable[[ast.expr], frozenset[str]], value_of: Callable[[ast.Name], ast.expr | None]
    ) -> None:
        """Store the callbacks that resolve names.

        Args:
            paths: returns the possible full names of an expression.
            value_of: returns the value of a name that is assigned only once.
        """
        self._paths = paths
        self._value_of = value_of
        self._assigned: dict[int, Any] = {}

    def fold(self, node: ast.expr) -> Any:
        """Return the value of an expression, or None if it is unknown.

        The value is a string, bytes, a number or a list.
        """
        try:
            return self._value(node, {}, 0)
        except (UnknownValueError, ArithmeticError, LookupError, TypeError, ValueError):
            return None

    def _value(self, node: ast.expr, names: Mapping[str, Any], depth: int) -> Any:
        if depth > FOLDING_DEPTH:
            raise UnknownValueError
        value = self._inner(node, names, depth + 1)
        if isinstance(value, str | bytes | list) and len(value) > SIZE_LIMIT:
            raise UnknownValueError
        return value

    def _inner(self, node: ast.expr, names: Mapping[str, Any], depth: int) -> Any:
        match node:
            case ast.Constant(value=str() | bytes() | int() as value):
                return value
            case ast.Name(id=name):
                return names[name] if name in names else self._fold_name(node, depth)
            case ast.Call(keywords=[]):
                return self._fold_call(node, names, depth)
            case ast.ListComp() | ast.GeneratorExp():
                return list(self._items(node, names, depth))
            case ast.Subscript(value=owner, slice=index):
                return self._item(self._value(owner, names, depth), index, names, depth)
        return self._fold_compound(node, names, depth)

    def _fold_compound(self, node: ast.expr, names: Mapping[str, Any], depth: int) -> Any:
        match node:
            case ast.BinOp(left=left, op=operator, right=right):
                return _apply_operator(operator, self._value(left, names, depth), self._value(right, names, depth))
            case ast.JoinedStr(values=values):
                return "".join(str(self._value(value, names, depth)) for value in values)
            case ast.FormattedValue(value=value, conversion=-1, format_spec=None):
                return self._value(value, names, depth)
            case ast.List(elts=elements) | ast.Tuple(elts=elements):
                return [self._value(element, names, depth) for element in elements]
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -self._value(operand, names, depth)
        raise UnknownValueError

    def _fold_name(self, node: ast.Name, depth: int) -> Any:
        assigned = self._value_of(node)
        if assigned is None:
            raise UnknownValueError
        # Set before the evaluation: a name that is assigned to itself has no value.
        if id(assigned) not in self._assigned:
            self._assigned[id(assigned)] = None
            self._assigned[id(assigned)] = self._value(assigned, {}, depth)
        if self._assigned[id(assigned)] is None:
            raise UnknownValueError
        return self._assigned[id(assigned)]

    def _item(self, value: Any, index: ast.expr, names: Mapping[str, Any], depth: int) -> Any:
        if isinstance(index, ast.Slice):
            ends = (index.lower, index.upper, index.step)
            return value[slice(*(None if end is None else self._value(end, names, depth) for end in ends))]
        return value[self._value(index, names, depth)]

    def _items(self, node: ast.ListComp | ast.GeneratorExp, names: Mapping[str, Any], depth: int) -> Iterator[Any]:
        if len(node.generators) != 1 or node.generators[0].ifs:
            raise UnknownValueError
        target, sequence = node.generators[0].target, self._value(node.generators[0].iter, names, depth)
        if not isinstance(target, ast.Name) or not isinstance(sequence, str | bytes | list):
            raise UnknownValueError
        for item in sequence:
            yield self._value(node.elt, {**names, target.id: item}, depth)

    def _fold_call(self, node: ast.Call, names: Mapping[str, Any], depth: int) -> Any:
        paths = self._paths(node.func)
        if MAPPED & paths and len(node.args) == 2:
            function = next((_FUNCTIONS[path] for path in self._paths(node.args[0]) if path in _FUNCTIONS), None)
            if function is None:
                raise UnknownValueError
            return [function(item) for item in self._value(node.args[1], names, depth)]
        callee = next((_FUNCTIONS[path] for path in paths if path in _FUNCTIONS), None)
        if callee is None and not isinstance(node.func, ast.Attribute):
            raise UnknownValueError
        arguments = [self._value(argument, names, depth) for argument in node.args]
        if callee is not None:
            return callee(*arguments)
        assert isinstance(node.func, ast.Attribute)
        value = self._value(node.func.value, names, depth)
        if node.func.attr not in _METHODS.get(type(value), ()) or _grows(value, node.func.attr, arguments):
            raise UnknownValueError
        return getattr(value, node.func.attr)(*arguments)


def _grows(value: str | bytes, method: str, arguments: list[Any]) -> bool:
    """Return whether a method call could create a huge value from small ones."""
    if method == "format" and isinstance(value, str):
        # A width such as `{:>999999}` makes a string of any size.
        return ":" in value
    sizes = [len(argument) for argument in arguments if isinstance(argument, str | bytes | list)]
    return math.prod((len(value) or 1, *sizes)) > GROWTH_LIMIT


def _apply_operator(operator: ast.operator, left: Any, right: Any) -> Any:
    # Without `**` and `<<`, which make a huge number from two small ones.
    match operator:
        case ast.Add():
            return left + right
        case ast.Sub() | ast.BitXor() if isinstance(left, int) and isinstance(right, int):
            return left - right if isinstance(operator, ast.Sub) else left ^ right
        # Only `%s`: a width such as `%999999s` makes a string of any size.
        case ast.Mod() if isinstance(left, str) and left.count("%") == left.count("%s"):
            return left % (tuple(right) if isinstance(right, list) else right)
        case ast.Mult() if isinstance(left, str | bytes) and isinstance(right, int) and len(left) * right <= SIZE_LIMIT:
            return left * right
    raise UnknownValueError


DEPTH_LIMIT = 40
BUILTINS = "builtins"
GLOBALS = "builtins.globals()"
_BUILTIN_NAMES = frozenset(dir(builtins)) | {"__loader__", "__spec__", "__builtins__"}
IMPORTING = frozenset({"builtins.__import__", "importlib.import_module", "importlib.__import__"})
_LOOKING_UP = frozenset({"get", "pop", "__getitem__", "setdefault"})
_SAME = {"posix": "os", "nt": "os", "_io": "io", "__builtin__": BUILTINS, "_ctypes": "ctypes", "_socket": "socket"}
"""Aliases of modules."""


class ScopedNode(NamedTuple):
    """A node of a syntax tree, with its scope and its parents."""

    node: ast.AST
    scope: Scope
    parents: tuple[ast.AST, ...]
    """The two nearest parents, innermost first."""


class Module:
    """A parsed module whose names can be resolved."""

    def __init__(self, tree: ast.Module) -> None:
        self._top = Scope(tree)
        self.nodes = tuple(_walk(tree, self._top))
        self._scopes = {id(placed.node): placed.scope for placed in self.nodes}
        self._known: dict[int, frozenset[str]] = {}
        self._found: dict[tuple[int, str], frozenset[str]] = {}
        self._folding = ConstantFolder(self.paths, self._assigned_once)

    def scope_of(self, node: ast.AST) -> Scope:
        """Return the scope in which a node's names are looked up."""
        return self._scopes.get(id(node), self._top)

    def paths(self, node: ast.expr, depth: int = 0) -> frozenset[str]:
        """Return the possible full names of an expression, such as `os.system`.

        The result is empty if the names are unknown.
        """
        # Nodes made by `_item` are temporary: another node may get the same id later.
        if id(node) not in self._scopes:
            return self._paths(node, depth)
        if id(node) not in self._known:
            # Set during the evaluation too, so that a self-reference resolves to nothing.
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
                return frozenset(_join_path(path, name) for path in self.paths(value, depth + 1))
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
        """Return whether an expression may refer to one of the project's classes.

        This is assumed for unresolved names that are not built-ins.
        """
        if isinstance(node, ast.Attribute):
            return not node.attr.startswith("__") and self.is_plain_class(node.value)
        if not isinstance(node, ast.Name) or any(path.startswith(BUILTINS) for path in self.paths(node)):
            return False
        return all(binding.value is None for binding in self._bound(node.id, self.scope_of(node)))

    def _assigned_once(self, node: ast.Name) -> ast.expr | None:
        bindings = self._bound(node.id, self.scope_of(node))
        return bindings[0].value if len(bindings) == 1 else None

    def _bound(self, name: str, scope: Scope | None) -> list[Binding]:
        inner = scope
        while scope is not None:
            if name in scope.names and not (scope.is_class and scope is not inner) and name not in scope.elsewhere:
                return scope.names[name]
            scope = scope.parent
        return []

    def _lookup(self, node: ast.Name, depth: int) -> frozenset[str]:
        paths: set[str] = set()
        scope: Scope | None = self.scope_of(node)
        inner = scope
        while scope is not None:
            bindings = [] if scope.is_class and scope is not inner else scope.names.get(node.id, [])
            if bindings:
                key = (id(scope), node.id)
                if key not in self._found:
                    # Set first, so that names assigned to each other resolve to nothing.
                    self._found[key] = frozenset()
                    values = [self.paths(binding.value, depth + 8) for binding in bindings if binding.value is not None]
                    imported = [_canonical(binding.path) for binding in bindings if binding.path]
                    self._found[key] = frozenset().union(imported, *values)
                paths |= self._found[key]
            if bindings and node.id not in scope.elsewhere:
                certain = scope.defined.get(node.id, node.lineno) < node.lineno
                # In a module or a class, a built-in is meant until the name is bound.
                if scope.is_function or certain:
                    return frozenset(paths)
            if scope.parent is None:
                paths |= {_canonical(f"{module}.{node.id}") for module in scope.stars}
            scope = scope.parent
        if node.id in _BUILTIN_NAMES:
            paths.add(BUILTINS if node.id == "__builtins__" else f"{BUILTINS}.{node.id}")
        return frozenset(paths)

    def _result(self, node: ast.Call, depth: int) -> frozenset[str]:
        """Return the possible full names of the result of a lookup call.

        Lookup calls are calls to functions such as `getattr` and `import_module`.
        """
        functions = self.paths(node.func, depth)
        folded = [self.fold(argument) for argument in node.args[:2]]
        if functions & IMPORTING and folded and isinstance(folded[0], str):
            # `__import__("a.b")` returns a, `import_module` returns a.b.
            is_top = "importlib.import_module" not in functions
            return frozenset({_canonical(folded[0].partition(".")[0] if is_top else folded[0])})
        if "builtins.getattr" in functions and len(folded) == 2 and isinstance(folded[1], str):
            return frozenset(_join_path(path, folded[1]) for path in self.paths(node.args[0], depth))
        if "builtins.vars" in functions and len(node.args) == 1:
            return frozenset(f"{path}.__dict__" for path in self.paths(node.args[0], depth))
        if functions & {"builtins.globals", "builtins.locals", "builtins.vars"} and not node.args:
            return frozenset({GLOBALS})
        if isinstance(node.func, ast.Attribute) and folded:
            owners = self.paths(node.func.value, depth)
            if node.func.attr in _LOOKING_UP:
                return self._item(owners, folded[0], node, depth)
            if node.func.attr == "__getattribute__" and isinstance(folded[-1], str):
                return frozenset(_join_path(owner, folded[-1]) for owner in owners)
        return frozenset()

    def _item(self, owners: frozenset[str], key: Any, node: ast.expr, depth: int) -> frozenset[str]:
        if not isinstance(key, str):
            return frozenset()
        paths: set[str] = set()
        for owner in owners:
            if is_module_table(owner):
                paths.add(_canonical(key))
            elif owner.endswith(".__dict__") or owner == BUILTINS:
                paths.add(_join_path(owner.removesuffix(".__dict__"), key))
            elif owner == GLOBALS:
                name = ast.copy_location(ast.Name(key, ast.Load()), node)
                paths |= self._lookup(name, depth)
        return frozenset(paths)


def is_module_table(path: str) -> bool:
    """Return whether a full name refers to `sys.modules`, possibly through another module."""
    return path == "sys.modules" or path.endswith((".sys.modules", "._sys.modules"))


def _outside(arguments: ast.arguments) -> Iterator[ast.AST]:
    yield from arguments.defaults
    yield from (default for default in arguments.kw_defaults if default is not None)
    every = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg)
    yield from (
        parameter.annotation for parameter in every if parameter is not None and parameter.annotation is not None
    )


def _join_path(path: str, name: str) -> str:
    if name == "__self__" and path.startswith(f"{BUILTINS}."):
        return BUILTINS  # `print.__self__` is the module
    return _canonical(f"{path}.{name}")


def _canonical(path: str) -> str:
    head, _, rest = path.partition(".")
    module = _SAME.get(head)
    return path if module is None else f"{module}.{rest}" if rest else module


def _walk(tree: ast.Module, top: Scope) -> Iterator[ScopedNode]:
    waiting = [ScopedNode(tree, top, ())]
    while waiting:
        placed = waiting.pop()
        yield placed
        node, outer, parents = placed
        scope = Scope(node, outer) if isinstance(node, SCOPES) else outer
        for field, value in ast.iter_fields(node):
            # Decorators, defaults, bases and annotations are evaluated in the outer scope.
            child_scope = outer if field in ("decorator_list", "bases", "keywords", "returns") else scope
            for child in value if isinstance(value, list) else (value,):
                if isinstance(child, ast.arguments):
                    waiting += [ScopedNode(inner, outer, (node, *parents[:1])) for inner in _outside(child)]
                elif isinstance(child, ast.AST):
                    waiting.append(ScopedNode(child, child_scope, (node, *parents[:1])))


CODE_CHARACTERS = 500_000
"""Maximum length of a file. Longer files are not read."""
_SHEBANG = re.compile(r"#!.*\bpython[\d.]*\b")


class Unread(NamedTuple):
    """The reason why a text cannot be parsed."""

    why: str
    line: int = 0
    """Line of the syntax error, or 0 if the text is too long or too deeply nested."""


def is_python(path: str, text: str) -> bool:
    """Return whether a file is Python code."""
    return path.endswith((".py", ".pyw", ".pyi")) or _SHEBANG.match(text) is not None


def parse_tree(text: str) -> ast.Module | Unread:
    """Return the syntax tree of a text, or the reason why the text cannot be parsed."""
    if len(text) > CODE_CHARACTERS:
        return Unread(f"longer than {CODE_CHARACTERS} characters")
    try:
        with warnings.catch_warnings():
            # The parser warns of invalid escapes in the source, on the stderr of this process.
            warnings.simplefilter("ignore")
            return ast.parse(text)
    except SyntaxError as error:
        return Unread(str(error.msg), error.lineno or 1)
    except (ValueError, RecursionError, MemoryError) as error:
        return Unread(str(error) or type(error).__name__)
