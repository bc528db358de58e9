"""Matches code rules against names, attributes, strings and paths."""

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from typing import NamedTuple

from tightloop.safety.code.names import GLOBALS, IMPORTING, Module, ScopedNode, is_module_table
from tightloop.safety.code.rules import CodeRule, CodeRules, Layer, default_rules
from tightloop.safety.rubric import Violation
from tightloop.safety.scope import fits

TEXT_CHARACTERS = 400
"""Maximum length of the text that identifies a use."""
_BY_NAME = frozenset({"operator.attrgetter", "operator.methodcaller"})
_OWN = (".", "__package__", "__name__")


class Use(NamedTuple):
    """A piece of code that violates a rule, with its location."""

    violation: Violation
    layer: Layer
    position: tuple[int, int]
    """Line and column. 0 means the whole file."""
    text: str
    """Text that identifies the use even if it is moved."""
    excerpt: str = ""
    """Evidence to show if the line itself does not contain it."""

    @property
    def line(self) -> int:
        return self.position[0]

    @property
    def key(self) -> tuple[Violation, str]:
        """Identity of the violation, regardless of its location."""
        return self.violation, self.text


class _Rule(NamedTuple):
    name: str
    rule: CodeRule
    violation: Violation


class Patterns:
    """Compiled patterns of the code rules."""

    def __init__(self, rules: CodeRules, own_modules: frozenset[str] = frozenset()) -> None:
        """Compile all rules except those with the verdict `allow`.

        `own_modules` are the importable modules of the project.
        """
        self.rules = rules
        # A custom rule for a module of the project is intentional.
        added = (rule for name, rule in rules.rules.items() if name not in default_rules().rules)
        custom_modules = frozenset(pattern.partition(".")[0] for rule in added for pattern in (*rule.uses, *rule.calls))
        self._own = own_modules - sys.stdlib_module_names - custom_modules
        on = [_Rule(name, rule, rules.violation(name)) for name, rule in rules.rules.items() if rules.is_on(name)]
        self._uses: dict[str, list[tuple[_Rule, str]]] = {}
        for entry in on:
            for pattern in (*entry.rule.uses, *entry.rule.calls):
                self._uses.setdefault(pattern.partition(".")[0], []).append((entry, pattern))
        self._computed = [(entry, pattern) for entry in on for pattern in entry.rule.computed]
        self._values = [(entry, pattern) for entry in on for pattern in entry.rule.values]
        self._watched = {pattern for _, pattern in self._values}
        self._attributes = {name: entry for entry in on for name in entry.rule.attributes}
        self._stored = {name: entry for entry in on for name in entry.rule.stored}
        self._strings = [(entry, re.compile(pattern)) for entry in on for pattern in entry.rule.strings]
        self._source = [(entry, re.compile(pattern)) for entry in on for pattern in entry.rule.source]
        self._paths = [entry for entry in on if entry.rule.paths]

    def in_path(self, path: str) -> Iterator[Use]:
        """Yield the violations caused by a file's path."""
        for entry in self._paths:
            if fits(entry.rule.paths, path):
                yield Use(entry.violation, entry.rule.layer, (0, 0), path, path)

    def in_source(self, text: str) -> Iterator[Use]:
        """Yield the violations in a file's text that can be found without parsing."""
        for entry, pattern in self._source:
            if match := pattern.search(text):
                line = text.count("\n", 0, match.end()) + 1
                yield Use(entry.violation, entry.rule.layer, (line, 0), match[0][-TEXT_CHARACTERS:])

    def in_node(self, placed: ScopedNode, module: Module) -> Iterator[Use]:
        """Yield the violations in a node of the syntax tree."""
        node = placed.node
        match node:
            case ast.Import() | ast.ImportFrom():
                yield from self._find_import_uses(node, placed)
            case ast.Name(id=name) if name in self._attributes:
                yield self._use(self._attributes[name], node, name, name)
            case ast.Name(ctx=ast.Load()) | ast.Attribute():
                yield from self._find_name_uses(node, placed, module)
            case ast.Subscript(ctx=ast.Load()):
                yield from self._find_name_uses(node, placed, module)
                yield from self._text_of_key(node.slice, placed, module)
                if module.fold(node.slice) is None and not (
                    (isinstance(node.slice, ast.Name) and node.slice.id in _OWN)
                    or (isinstance(node.slice, ast.Attribute) and node.slice.attr == "__module__")
                ):
                    paths = module.paths(node.value)
                    functions = {"sys.modules" for path in paths if is_module_table(path)}
                    functions |= {"builtins.globals" for path in paths if path == GLOBALS}
                    is_watched = any(
                        path.removesuffix(".__dict__") in self._watched for path in paths if path.endswith(".__dict__")
                    )
                    yield from self._computing(
                        frozenset(functions | ({"builtins.vars"} if is_watched else set())), placed
                    )
            case ast.Dict():
                yield from self._factories(node, module)
            case ast.Call():
                yield from self._find_call_uses(node, placed, module)
            # A string that is a statement of its own is a docstring.
            case ast.Constant(value=str() as text) if not isinstance(placed.parents[0], ast.Expr):
                yield from self._texts(text, placed)

    def _find_import_uses(self, node: ast.Import | ast.ImportFrom, placed: ScopedNode) -> Iterator[Use]:
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            # Relative imports lead to the project itself.
            names = [] if node.level else [f"{node.module}.{alias.name}" for alias in node.names]
        if placed.scope.is_class:
            # As a class attribute it is reachable through names that are not tracked.
            entries = ((entry, pattern) for entry, pattern in self._values if pattern in names)
            yield from (self._use(entry, node, ast.unparse(node), pattern) for entry, pattern in entries)
        for entry, pattern in self._matching(names):
            # For text that becomes code, report the use instead of the import, which runs nothing by itself.
            if entry.rule.layer is Layer.ACCESS and pattern in entry.rule.uses:
                yield self._use(entry, node, ast.unparse(node), pattern)

    def _find_name_uses(self, node: ast.expr, placed: ScopedNode, module: Module) -> Iterator[Use]:
        parent = placed.parents[0]
        is_inner = isinstance(parent, ast.Attribute) and parent.value is node
        if isinstance(node, ast.Attribute):
            yield from self._attribute(node, placed, module)
        paths = module.paths(node)
        if not paths:
            return
        call = parent if isinstance(parent, ast.Call) and parent.func is node else None
        for entry, pattern in self._matching(paths):
            if entry.rule.through and not (call and self._goes_through(call, entry.rule, module)):
                continue
            if call is None and pattern not in entry.rule.uses:
                continue
            # In `os.system.x`, the longer name is the same use as `os.system`.
            if (
                not is_inner
                or not isinstance(parent, ast.Attribute)
                or all(rule is not entry for rule, _ in self._matching(module.paths(parent)))
            ):
                yield self._use(entry, node, ast.unparse(call or node), pattern)
        if not is_inner and not self._watched.isdisjoint(paths):
            yield from self._passed_on(node, paths, placed, module)

    def _attribute(self, node: ast.Attribute, placed: ScopedNode, module: Module) -> Iterator[Use]:
        entry = self._attributes.get(node.attr)
        if entry and entry.rule.layer is Layer.ACCESS and module.paths(node):
            entry = None  # judged by its full name
        if entry and not (node.attr == "__subclasses__" and module.is_plain_class(node.value)):
            yield self._use(entry, node, ast.unparse(node), node.attr)
        stored = self._stored.get(node.attr)
        parent = placed.parents[0]
        is_replaced = isinstance(parent, ast.Attribute) and parent.attr == "replace"
        if stored and (is_replaced or not isinstance(node.ctx, ast.Load)):
            yield self._use(stored, node, ast.unparse(parent if is_replaced else node), node.attr)

    def _find_call_uses(self, node: ast.Call, placed: ScopedNode, module: Module) -> Iterator[Use]:
        functions = module.paths(node.func)
        # `getattr(os, "system")(...)` and the like: the called expression is a use itself.
        yield from self._find_name_uses(node, placed, module)
        texts = [module.fold(argument) for argument in node.args]
        for argument, text in zip(node.args, texts, strict=True):
            yield from self._text_of_key(argument, placed, module)
            if functions & _BY_NAME and isinstance(text, str):
                entries = (self._attributes.get(part) or self._stored.get(part) for part in text.split("."))
                yield from (self._use(entry, node, ast.unparse(node), text) for entry in entries if entry)
        if self._is_computed(node, functions, texts, module):
            yield from self._computing(functions, placed)

    def _is_computed(self, node: ast.Call, functions: frozenset[str], texts: list[object], module: Module) -> bool:
        """Return whether a call looks up a name that is computed at run time."""
        if {"builtins.getattr", "builtins.setattr"} & functions:
            owners = module.paths(node.args[0]) if node.args else frozenset[str]()
            return len(node.args) > 1 and texts[1] is None and not owners.isdisjoint(self._watched)
        is_import = not functions.isdisjoint(IMPORTING)
        return is_import and bool(node.args) and texts[0] is None and not _begins_with_own(node.args[0])

    def _factories(self, node: ast.Dict, module: Module) -> Iterator[Use]:
        """Yield violations in the functions that a logging configuration calls by name."""
        for key, value in zip(node.keys, node.values, strict=True):
            name = module.fold(value) if key is not None and module.fold(key) == "()" else None
            if isinstance(name, str):
                for entry, pattern in self._matching([name.removeprefix("ext://")]):
                    yield self._use(entry, value, name, pattern)

    def _computing(self, functions: frozenset[str], placed: ScopedNode) -> Iterator[Use]:
        for entry, pattern in self._computed:
            if any(_covers(pattern, function) for function in functions):
                yield self._use(entry, placed.node, ast.unparse(placed.node), pattern)

    def _text_of_key(self, node: ast.expr, placed: ScopedNode, module: Module) -> Iterator[Use]:
        text = module.fold(node)
        entry = self._attributes.get(text) if isinstance(text, str) else None
        if entry and isinstance(text, str):
            yield self._use(entry, placed.node, ast.unparse(placed.node), text)

    def _texts(self, text: str, placed: ScopedNode) -> Iterator[Use]:
        for entry, pattern in self._strings:
            if pattern.search(text) and not self._is_taken(placed):
                yield self._use(entry, placed.node, text, text)

    def _passed_on(self, node: ast.expr, paths: Iterable[str], placed: ScopedNode, module: Module) -> Iterator[Use]:
        parent = placed.parents[0]
        is_alias = isinstance(parent, ast.Assign | ast.AnnAssign | ast.NamedExpr) and not isinstance(node, ast.Call)
        is_alias = is_alias and not placed.scope.is_class
        is_alias = is_alias and all(
            isinstance(target, ast.Name) for target in getattr(parent, "targets", [getattr(parent, "target", None)])
        )
        looked_up = isinstance(parent, ast.Subscript) and parent.value is node
        if is_alias or looked_up or isinstance(parent, ast.Expr) or self._is_taken(placed):
            return
        if isinstance(parent, ast.Call) and {"builtins.getattr", "builtins.vars"} & module.paths(parent.func):
            return  # judged by the name that is looked up
        for entry, pattern in self._values:
            if any(pattern == path for path in paths):
                yield self._use(entry, node, ast.unparse(parent), pattern)

    def _is_taken(self, placed: ScopedNode) -> bool:
        """Return whether a value is an argument of a call that patches, reloads or inspects it."""
        for parent in placed.parents:
            if isinstance(parent, ast.Call):
                name = ast.unparse(parent.func).rpartition(".")[2]
                return name in self.rules.may_take
        return False

    def _matching(self, paths: Iterable[str]) -> Iterator[tuple[_Rule, str]]:
        for end in frozenset(end for path in paths for end in self._ends(path)):
            for entry, pattern in self._uses.get(end.partition(".")[0], ()):
                if _covers(pattern, end):
                    yield entry, pattern

    def _ends(self, path: str) -> Iterator[str]:
        """Yield a full name, and each suffix of it that starts with a standard library module.

        The standard library module may have been imported by another module.
        """
        if path.partition(".")[0] not in self._own:
            yield path
        parts = path.lstrip(".").split(".")
        for at, part in enumerate(parts):
            # Libraries import modules under private names, such as `_os`.
            bare = part if part.startswith("__") else part.lstrip("_")
            if at and bare in self._uses and bare in sys.stdlib_module_names:
                yield ".".join((bare, *parts[at + 1 :]))

    def _goes_through(self, call: ast.Call, rule: CodeRule, module: Module) -> bool:
        inner = (node for argument in call.args for node in ast.walk(argument) if isinstance(node, ast.Call))
        paths = frozenset(path for node in inner for path in module.paths(node.func))
        return any(_covers(pattern, path) for pattern in rule.through for path in paths)

    def _use(self, entry: _Rule, node: ast.AST, text: str, pattern: str) -> Use:
        position = (getattr(node, "lineno", 0), getattr(node, "col_offset", 0))
        # Access is reported once per file, so its identity must not depend on the code around it.
        known_by = pattern if entry.rule.layer is Layer.ACCESS else text[:TEXT_CHARACTERS]
        return Use(entry.violation, entry.rule.layer, position, known_by)


def _covers(pattern: str, path: str) -> bool:
    """Return whether a pattern matches a full name or one of its parents."""
    if path == pattern or path.startswith(f"{pattern}."):
        return True
    if "*" not in pattern and "?" not in pattern and "[" not in pattern:
        return False
    count = pattern.count(".") + 1
    parts = path.split(".")
    return len(parts) >= count and fnmatchcase(".".join(parts[:count]), pattern)


def _begins_with_own(node: ast.expr) -> bool:
    """Return whether a computed module name starts with the name of the current package."""
    match node:
        case ast.JoinedStr(values=[ast.Constant(value=str() as text), *_]):
            return text.startswith(".")
        case ast.JoinedStr(values=[ast.FormattedValue(value=ast.Name(id=name)), *_]):
            return name in _OWN
        case ast.BinOp(left=ast.Constant(value=str() as text)):
            return text.startswith(".")
        case ast.BinOp(left=ast.Name(id=name)):
            return name in _OWN
        case ast.BinOp(left=left):
            return _begins_with_own(left)
    return False
