"""Reviews the packages that a change begins to use: imports, and what manifests name."""

import ast
import re
import sys
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tightloop.safety.code.lookalike import looks_like
from tightloop.safety.code.manifests import Requirement, is_manifest, own_name, requirements_in
from tightloop.safety.code.model import CodeFile, ProjectFacts
from tightloop.safety.code.rules import CodeRules, Layer, normal_name
from tightloop.safety.code.syntax import is_python, parse_tree
from tightloop.safety.rubric import Finding, make_finding

_MISSING = frozenset({"ImportError", "ModuleNotFoundError", "Exception"})


class Imported(NamedTuple):
    """A module that a file imports."""

    name: str
    """Of the top level."""
    line: int
    optional: bool = False
    """The file does without it: it is missed silently, read by type checkers only, or for another Python."""


def review_dependencies(files: Sequence[CodeFile], facts: ProjectFacts, rules: CodeRules) -> tuple[Finding, ...]:
    """Return the packages that the change begins to use and that neither the project nor the rules allow."""
    if not rules.enabled:
        return ()
    review = _Review(files, facts, rules)
    return tuple(dict.fromkeys((*review.in_manifests(), *review.in_code())))


def own_modules(paths: Sequence[str]) -> frozenset[str]:
    """Return the names that files of Python, and the folders around them, may be imported by."""
    parts = (
        path.removesuffix(".py").removesuffix(".pyi").split("/") for path in paths if path.endswith((".py", ".pyi"))
    )
    return frozenset(part for each in parts for part in each if part.isidentifier())


def imports_in(tree: ast.AST) -> Iterator[Imported]:
    """Return the modules that a syntax tree imports, those of its own package left out."""
    waiting: list[tuple[ast.AST, bool]] = [(tree, False)]
    while waiting:
        node, optional = waiting.pop()
        match node:
            case ast.Import(names=names):
                yield from (Imported(alias.name.partition(".")[0], node.lineno, optional) for alias in names)
            case ast.ImportFrom(module=str() as module, level=0):
                yield Imported(module.partition(".")[0], node.lineno, optional)
            case ast.Try():
                parts = [(each, optional or _misses_silently(node)) for each in node.body]
                # A substitute for a module of the standard library is for an older Python.
                backport = all(one.name in sys.stdlib_module_names for each in node.body for one in imports_in(each))
                others = (*node.handlers, *node.orelse, *node.finalbody)
                waiting += [*parts, *((each, optional or backport) for each in others)]
            case ast.If():
                for_some = optional or re.search(r"TYPE_CHECKING|sys\.version_info", ast.unparse(node.test)) is not None
                waiting += [(each, for_some) for each in (*node.body, *node.orelse)]
            case _:
                waiting += [(each, optional) for each in ast.iter_child_nodes(node)]


def _misses_silently(node: ast.Try) -> bool:
    caught = {
        part.id
        for handler in node.handlers
        if handler.type
        for part in ast.walk(handler.type)
        if isinstance(part, ast.Name)
    }
    bare = any(handler.type is None for handler in node.handlers)
    return bare or not caught.isdisjoint(_MISSING)


class _Review:
    """One change."""

    def __init__(self, files: Sequence[CodeFile], facts: ProjectFacts, rules: CodeRules) -> None:
        self._files = files
        self._facts = facts
        self._rules = rules
        own = frozenset(own_name(file.path, file.after) for file in files)
        self._allowed = frozenset(map(normal_name, facts.distributions)) | rules.dependencies | own
        self._modules = facts.modules | facts.imports | own_modules([file.path for file in files])
        self._declared: set[str] = set()

    def in_manifests(self) -> Iterator[Finding]:
        """Return what manifests name that they did not name before."""
        places = self._rules.manifests
        sides = [
            (
                file,
                requirements_in(file.path, file.before or "", places),
                requirements_in(file.path, file.after, places),
            )
            for file in self._files
            if is_manifest(file.path, places)
        ]
        # What moved from one manifest to another is not new.
        known = {one.name for _, before, _ in sides for one in before}
        sources = {(one.name, one.source) for _, before, _ in sides for one in before}
        for file, _, after in sides:
            for one in after:
                self._declared.add(one.name)
                if one.source and (one.name, one.source) not in sources:
                    yield from self._found("dependency_source", file, one.line, one.text, known_by=one.text)
                elif one.name and one.name not in known | self._allowed | self._facts.distributions:
                    yield from self._new(file, one)

    def in_code(self) -> Iterator[Finding]:
        """Return what code imports that it did not import before."""
        for file in self._files:
            tree = parse_tree(file.after) if is_python(file.path, file.after) else None
            if not isinstance(tree, ast.Module):
                continue
            old = parse_tree(file.before or "")
            known = {one.name for one in imports_in(old)} if isinstance(old, ast.Module) else set[str]()
            for one in sorted(imports_in(tree), key=lambda one: one.line):
                if one.name not in known | self._modules and one.name not in sys.stdlib_module_names:
                    yield from self._imported(file, one)

    def _imported(self, file: CodeFile, one: Imported) -> Iterator[Finding]:
        names = [*self._facts.installed.get(one.name, ()), *self._rules.distributions.get(one.name, ()), one.name]
        candidates = dict.fromkeys(map(normal_name, names))
        if not candidates.keys().isdisjoint(self._allowed | self._declared):
            return
        name = next(iter(candidates))
        if one.optional and not looks_like(name, self._rules.known | self._allowed):
            return
        line = file.after.splitlines()[one.line - 1].strip()
        yield from self._new(file, Requirement(name, one.line, line))

    def _new(self, file: CodeFile, one: Requirement) -> Iterator[Finding]:
        other = looks_like(one.name, self._rules.known | self._allowed)
        if other:
            text = f"{one.text}: {one.name} looks like {other}"
            yield from self._found("lookalike_dependency", file, one.line, text, known_by=one.name)
        else:
            yield from self._found("new_dependency", file, one.line, one.text, known_by=one.name)

    def _found(self, rule: str, file: CodeFile, line: int, text: str, *, known_by: str) -> Iterator[Finding]:
        """Return a finding that is the same in whatever file of the change the package is named."""
        if self._rules.is_on(rule):
            where = f"{file.path}:{line}" if line else file.path
            found = make_finding(self._rules.violation(rule), at=("", known_by), evidence=text, where=where)
            yield found.evolve(layer=Layer.DEPENDENCIES.value)
