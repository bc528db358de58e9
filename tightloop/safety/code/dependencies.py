"""Rules for the dependencies of a project."""

import ast
import configparser
import json
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tightloop.safety.change.patch import NOTHING, Change, FilePatch, Lines
from tightloop.safety.change.reading import Reading, Watch, scripts
from tightloop.safety.change.rules import ecosystem_of
from tightloop.safety.code.names import Module, Placed, is_python, parse_tree
from tightloop.safety.code.patterns import TEXT_CHARACTERS, Use
from tightloop.safety.code.rules import CodeFile, CodeRules, Layer, ProjectFacts, normal_name
from tightloop.safety.commands.rules import find_violations, find_violations_in_words
from tightloop.safety.rubric import Finding, make_finding

_NAME = re.compile(r"\s*([A-Za-z0-9][\w.-]*)\s*(?:\[[^\]]*\])?\s*(@)?")
_OPTION = re.compile(r"--?(?:index-url|extra-index-url|find-links|i|f)\b[\s=]*(.*)")
_EDITABLE = re.compile(r"(?:-e|--editable)[\s=]+")
_ADDRESS = re.compile(r"(?:[a-z]+\+)?(?:https?|ssh|git|file|ftp)://|^git@")
_AT_ADDRESS = ("git", "url", "hg", "svn")
_SETUP = ("install_requires", "setup_requires", "tests_require", "extras_require", "requires")


class Requirement(NamedTuple):
    """Package named in a manifest."""

    name: str
    """Normalised name; empty for an index or a bare URL."""
    line: int
    text: str
    """Original text."""
    source: str = ""
    """Source, if it is not the package index."""


def is_manifest(path: str, manifests: Mapping[str, Sequence[str]]) -> bool:
    """Return whether a file declares packages."""
    name = path.rpartition("/")[2]
    return name in manifests or name in ("setup.py", "setup.cfg") or _is_list(path)


def own_name(path: str, text: str) -> str:
    """Return the name of the distribution that a pyproject.toml describes, or ""."""
    if path.rpartition("/")[2] != "pyproject.toml":
        return ""
    try:
        content = tomllib.loads(text)
    except (ValueError, RecursionError):
        return ""
    return normal_name(str(_first(content, "project.name") or _first(content, "tool.poetry.name") or ""))


def requirements_in(path: str, text: str, manifests: Mapping[str, Sequence[str]]) -> tuple[Requirement, ...]:
    """Return the packages declared in a manifest; empty if it is unreadable."""
    name = path.rpartition("/")[2]
    try:
        found = tuple(_read(name, path, text, manifests.get(name, ())))
    except (ValueError, configparser.Error, RecursionError):
        return ()
    lines = list(enumerate(text.splitlines(), start=1))
    return tuple(
        one._replace(line=one.line or next((number for number, line in lines if one.text in line), 0)) for one in found
    )


def _read(name: str, path: str, text: str, places: Iterable[str]) -> Iterator[Requirement]:
    if _is_list(path):
        for number, listed in enumerate(text.splitlines(), start=1):
            bare = listed.split(" #")[0].strip().rstrip("\\").strip()
            bare = "" if bare.startswith("#") else bare
            option = _OPTION.match(bare)
            if option:
                yield Requirement("", number, bare, option[1] or bare)
            editable = _EDITABLE.match(bare)
            bare = bare[editable.end() :] if editable else bare
            if bare and not bare.startswith(("-", ".", "/")) and (requirement := _requirement(bare, number)):
                yield requirement
    elif name == "setup.py":
        yield from _in_setup(text)
    elif name == "setup.cfg":
        parser = configparser.RawConfigParser()
        parser.read_string(text)
        parts = [parser["options"].get(key, "") for key in _SETUP] if parser.has_section("options") else []
        extras = "options.extras_require"
        parts += list(parser[extras].values()) if parser.has_section(extras) else []
        yield from (one for part in parts for line in part.splitlines() if (one := _requirement(line, 0)))
    else:
        content = json.loads(text) if name.endswith(".json") else tomllib.loads(text)
        python = not name.endswith(".json") and name != "Cargo.toml"
        for place in places:
            for value in _at(content, place.split(".")):
                yield from _in_table(value, python=python)


def _is_list(path: str) -> bool:
    # Constraints install nothing by themselves.
    is_pins = path.rpartition("/")[2].startswith("constraints")
    return path.endswith((".txt", ".in")) and not is_pins and ecosystem_of(path) == "pypi"


def _requirement(text: str, line: int) -> Requirement | None:
    if _ADDRESS.match(text.strip()):
        return Requirement("", line, text.strip(), text.strip())
    found = _NAME.match(text)
    if found is None:
        return None
    source = text[found.end() :].strip() if found[2] else ""
    return Requirement(normal_name(found[1]), line, text.strip(), source)


def _in_table(value: Any, *, python: bool) -> Iterator[Requirement]:
    if isinstance(value, list):
        yield from (one for text in value if isinstance(text, str) and (one := _requirement(text, 0)))
    elif isinstance(value, dict):
        for name, wanted in value.items():
            if python and name == "python":
                continue
            at = wanted if isinstance(wanted, dict) else {}
            source = next((str(at[key]) for key in _AT_ADDRESS if key in at), "")
            source = wanted if isinstance(wanted, str) and _ADDRESS.match(wanted) else source
            yield Requirement(normal_name(name) if python else name, 0, str(name), source)


def _at(content: Any, keys: Sequence[str]) -> Iterator[Any]:
    """Yield the values at a path in which `*` matches any key."""
    if not keys:
        yield content
    elif isinstance(content, dict):
        for key in content if keys[0] == "*" else keys[:1]:
            if key in content:
                yield from _at(content[key], keys[1:])


def _first(content: Any, place: str) -> Any:
    return next(_at(content, place.split(".")), None)


def _in_setup(text: str) -> Iterator[Requirement]:
    tree = parse_tree(text)
    for node in ast.walk(tree) if isinstance(tree, ast.Module) else ():
        if isinstance(node, ast.keyword) and node.arg in _SETUP:
            keys = node.value.keys if isinstance(node.value, ast.Dict) else []
            for part in ast.walk(node.value):
                if isinstance(part, ast.Constant) and isinstance(part.value, str) and part not in keys:
                    one = _requirement(part.value, part.lineno)
                    if one:
                        yield one


_AFFIXES = re.compile(r"^(?:python-?|py-)|(?:-?python\d?|-py\d?|-?\d)$")
SHORT = 6
"""Maximum length of a known name for which one typo makes a lookalike; longer names allow two."""


def looks_like(name: str, known: Iterable[str]) -> str:
    """Return the known name that a name may imitate, or "".

    Args:
        name: normalised as by package indexes.
        known: normalised names; a member of this set imitates none.
    """
    names = sorted(known)
    if name in names:
        return ""
    bare = _bare(name)
    for other in names:
        limit = 1 if len(other) <= SHORT else 2
        # Most names of two or three letters are one typo apart.
        if len(other) > 3 and (_bare(other) == bare or distance(name, other, limit) <= limit):
            return other
    return ""


def _bare(name: str) -> str:
    return _AFFIXES.sub("", name).replace("-", "") or name


def distance(one: str, other: str, limit: int) -> int:
    """Return the number of typos between two names, or a number above `limit`.

    A typo is an inserted, deleted, replaced or transposed letter (Damerau-Levenshtein, optimal string alignment).
    """
    if abs(len(one) - len(other)) > limit:
        return limit + 1
    above: list[int] = []
    row = list(range(len(other) + 1))
    for at, letter in enumerate(one, start=1):
        before, above, row = above, row, [at]
        for place, wanted in enumerate(other, start=1):
            cost = min(above[place] + 1, row[-1] + 1, above[place - 1] + (letter != wanted))
            swapped = at > 1 and place > 1 and letter == other[place - 2] and one[at - 2] == wanted
            row.append(min(cost, before[place - 2] + 1) if swapped else cost)
        if min(row) > limit:
            return limit + 1
    return row[-1]


_MISSING = frozenset({"ImportError", "ModuleNotFoundError", "Exception"})


class Imported(NamedTuple):
    """Imported module."""

    name: str
    """Top-level name."""
    line: int
    optional: bool = False
    """True if the file works without it: guarded by `try`, for type checkers only, or for another Python version."""


def review_dependencies(files: Sequence[CodeFile], facts: ProjectFacts, rules: CodeRules) -> tuple[Finding, ...]:
    """Return findings for added packages that neither the project nor the rules allow."""
    if not rules.enabled:
        return ()
    review = _Review(files, facts, rules)
    return tuple(dict.fromkeys((*review.in_manifests(), *review.in_code())))


def own_modules(paths: Sequence[str]) -> frozenset[str]:
    """Return the importable names of Python files and their folders."""
    parts = (
        path.removesuffix(".py").removesuffix(".pyi").split("/") for path in paths if path.endswith((".py", ".pyi"))
    )
    return frozenset(part for each in parts for part in each if part.isidentifier())


def imports_in(tree: ast.AST) -> Iterator[Imported]:
    """Yield the modules that a syntax tree imports, except relative ones."""
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
                # A substitute for a standard library module is meant for an older Python.
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
    """Review of one change."""

    def __init__(self, files: Sequence[CodeFile], facts: ProjectFacts, rules: CodeRules) -> None:
        self._files = files
        self._facts = facts
        self._rules = rules
        own = frozenset(own_name(file.path, file.after) for file in files)
        self._allowed = frozenset(map(normal_name, facts.distributions)) | rules.dependencies | own
        self._modules = facts.modules | facts.imports | own_modules([file.path for file in files])
        self._declared: set[str] = set()

    def in_manifests(self) -> Iterator[Finding]:
        """Yield findings for packages added to manifests."""
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
        # A package that moved from one manifest to another is not new.
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
        """Yield findings for added imports."""
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
        """Yield a finding with the same fingerprint for any file that names the package."""
        if self._rules.is_on(rule):
            where = f"{file.path}:{line}" if line else file.path
            found = make_finding(self._rules.violation(rule), at=("", known_by), evidence=text, where=where)
            yield found.evolve(layer=Layer.DEPENDENCIES.value)


_SCRIPTS = frozenset({
    "os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput", "asyncio.create_subprocess_shell",
})  # fmt: skip
_EITHER = frozenset({
    "subprocess.run", "subprocess.call", "subprocess.check_call", "subprocess.check_output", "subprocess.Popen",
})  # fmt: skip
_WORDS = frozenset({"asyncio.create_subprocess_exec", "os.execlp", "os.execl", "os.spawnlp"})


def review_scripts(files: Sequence[CodeFile], watch: Watch | None = None) -> tuple[Finding, ...]:
    """Return the command findings in the new lines of scripts and of code that calls programs.

    Raises:
        OutOfTimeError: the time of the watch is over.
    """
    change = Change(files=tuple(map(_patch_of, files)))
    reading = Reading(change, watch or Watch())
    found = (finding for file in change.files for finding in scripts(reading.seen(file)))
    return tuple(finding.evolve(layer=Layer.COMMANDS.value) for finding in found)


def _patch_of(file: CodeFile) -> FilePatch:
    # Lines on both sides are not fresh regardless of position, so no diff is needed.
    return FilePatch(file.path, "", _lines(file.after), _lines(file.before or ""), new=file.before is None)


def _lines(text: str) -> Lines:
    lines = text.splitlines()
    return Lines(lines, lambda: range(1, len(lines) + 1)) if lines else NOTHING


def commands_in(placed: Placed, module: Module) -> Iterator[Use]:
    """Yield the violations of constant commands that a call starts, even across several lines."""
    node = placed.node
    if not isinstance(node, ast.Call) or not node.args:
        return
    functions = module.paths(node.func)
    if not functions & (_SCRIPTS | _EITHER | _WORDS):
        return
    first = module.fold(node.args[0])
    if functions & _WORDS:
        words = [module.fold(argument) for argument in node.args]
        first = [word for word in words if isinstance(word, str)]
    if isinstance(first, str):
        found = find_violations(first)
    elif isinstance(first, list) and all(isinstance(word, str) for word in first):
        found = find_violations_in_words(first)
    else:
        return
    for violation in found:
        yield Use(violation, Layer.COMMANDS, (node.lineno, node.col_offset), ast.unparse(node)[:TEXT_CHARACTERS])
