"""Rules for a project's dependencies."""

import ast
import configparser
import json
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from tightloop.safety.change.patch import NOTHING, Change, FilePatch, Lines
from tightloop.safety.change.reading import EXAMPLE, Deadline, ScanContext, scripts
from tightloop.safety.change.reading import VIOLATIONS as CHANGE_VIOLATIONS
from tightloop.safety.change.rules import ecosystem_of
from tightloop.safety.code.names import Module, ScopedNode, Unread, is_python, parse_tree
from tightloop.safety.code.patterns import TEXT_CHARACTERS, Patterns, Use
from tightloop.safety.code.rules import CodeFile, CodeRules, Layer, ProjectFacts, normal_name
from tightloop.safety.commands.rules import find_violations, find_violations_in_words
from tightloop.safety.rubric import Finding, Verdict, Violation, make_finding

_NAME = re.compile(r"\s*([A-Za-z0-9][\w.-]*)\s*(?:\[[^\]]*\])?\s*(@)?")
_OPTION = re.compile(r"--?(?:index-url|extra-index-url|find-links|i|f)\b[\s=]*(.*)")
_EDITABLE = re.compile(r"(?:-e|--editable)[\s=]+")
_ADDRESS = re.compile(r"(?:[a-z]+\+)?(?:https?|ssh|git|file|ftp)://|^git@")
_AT_ADDRESS = ("git", "url", "hg", "svn")
_SETUP = ("install_requires", "setup_requires", "tests_require", "extras_require", "requires")


class Requirement(NamedTuple):
    """Package named in a manifest."""

    name: str
    """Normalised name. Empty for an index or a bare URL."""
    line: int
    text: str
    """The original text."""
    source: str = ""
    """Source of the package, if it does not come from the package index."""


def is_manifest(path: str, manifests: Mapping[str, Sequence[str]]) -> bool:
    """Return whether a file is a manifest that declares packages."""
    name = path.rpartition("/")[2]
    return name in manifests or name in ("setup.py", "setup.cfg") or _is_list(path)


def own_name(path: str, text: str) -> str:
    """Return the distribution name in a pyproject.toml file, or ""."""
    if path.rpartition("/")[2] != "pyproject.toml":
        return ""
    try:
        content = tomllib.loads(text)
    except (ValueError, RecursionError):
        return ""
    return normal_name(str(_first(content, "project.name") or _first(content, "tool.poetry.name") or ""))


def requirements_in(path: str, text: str, manifests: Mapping[str, Sequence[str]]) -> tuple[Requirement, ...]:
    """Return the packages declared in a manifest. Empty if the manifest cannot be parsed."""
    name = path.rpartition("/")[2]
    try:
        requirements = tuple(_read(name, path, text, manifests.get(name, ())))
    except (ValueError, configparser.Error, RecursionError):
        return ()
    # The parsers of TOML and JSON give no positions, so the text is searched.
    lines = list(enumerate(text.splitlines(), start=1))
    return tuple(
        requirement._replace(
            line=requirement.line or next((number for number, line in lines if requirement.text in line), 0)
        )
        for requirement in requirements
    )


def _read(name: str, path: str, text: str, places: Iterable[str]) -> Iterator[Requirement]:
    if _is_list(path):
        for number, listed in enumerate(text.splitlines(), start=1):
            # For pip a comment needs white space before it: `#egg=` belongs to an address.
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
        yield from (entry for part in parts for line in part.splitlines() if (entry := _requirement(line, 0)))
    else:
        content = json.loads(text) if name.endswith(".json") else tomllib.loads(text)
        python = not name.endswith(".json") and name != "Cargo.toml"
        for key_path in places:
            for value in _at(content, key_path.split(".")):
                yield from _in_table(value, python=python)


def _is_list(path: str) -> bool:
    # Constraints install nothing by themselves.
    is_pins = path.rpartition("/")[2].startswith("constraints")
    return path.endswith((".txt", ".in")) and not is_pins and ecosystem_of(path) == "pypi"


def _requirement(text: str, line: int) -> Requirement | None:
    if _ADDRESS.match(text.strip()):
        return Requirement("", line, text.strip(), text.strip())
    match = _NAME.match(text)
    if match is None:
        return None
    source = text[match.end() :].strip() if match[2] else ""
    return Requirement(normal_name(match[1]), line, text.strip(), source)


def _in_table(value: Any, *, python: bool) -> Iterator[Requirement]:
    if isinstance(value, list):
        yield from (requirement for text in value if isinstance(text, str) and (requirement := _requirement(text, 0)))
    elif isinstance(value, dict):
        for name, spec in value.items():
            # Poetry lists the interpreter among the dependencies.
            if python and name == "python":
                continue
            at = spec if isinstance(spec, dict) else {}
            source = next((str(at[key]) for key in _AT_ADDRESS if key in at), "")
            source = spec if isinstance(spec, str) and _ADDRESS.match(spec) else source
            yield Requirement(normal_name(name) if python else name, 0, str(name), source)


def _at(content: Any, keys: Sequence[str]) -> Iterator[Any]:
    """Yield the values found by following the keys. The key `*` matches any key."""
    if not keys:
        yield content
    elif isinstance(content, dict):
        for key in content if keys[0] == "*" else keys[:1]:
            if key in content:
                yield from _at(content[key], keys[1:])


def _first(content: Any, key_path: str) -> Any:
    return next(_at(content, key_path.split(".")), None)


def _in_setup(text: str) -> Iterator[Requirement]:
    tree = parse_tree(text)
    for node in ast.walk(tree) if isinstance(tree, ast.Module) else ():
        if isinstance(node, ast.keyword) and node.arg in _SETUP:
            keys = node.value.keys if isinstance(node.value, ast.Dict) else []
            for part in ast.walk(node.value):
                if isinstance(part, ast.Constant) and isinstance(part.value, str) and part not in keys:
                    requirement = _requirement(part.value, part.lineno)
                    if requirement:
                        yield requirement


_AFFIXES = re.compile(r"^(?:python-?|py-)|(?:-?python\d?|-py\d?|-?\d)$")
SHORT = 6
"""Maximum length of known names for which a lookalike has at most one typo. Longer names allow two."""


def looks_like(name: str, known_names: Iterable[str]) -> str:
    """Return the known name that a name may imitate, or "".

    Args:
        name: the name, normalised as in package indexes.
        known_names: normalised names. A name in this set does not imitate any other name.
    """
    names = sorted(known_names)
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


def distance(name: str, other: str, limit: int) -> int:
    """Return the number of typos between two names.

    If there are more than `limit` typos, return any number above `limit`. A typo is an inserted, deleted,
    replaced or transposed letter (Damerau-Levenshtein distance, optimal string alignment).
    """
    if abs(len(name) - len(other)) > limit:
        return limit + 1
    above: list[int] = []
    row = list(range(len(other) + 1))
    for at, letter in enumerate(name, start=1):
        before, above, row = above, row, [at]
        for column, other_letter in enumerate(other, start=1):
            cost = min(above[column] + 1, row[-1] + 1, above[column - 1] + (letter != other_letter))
            swapped = at > 1 and column > 1 and letter == other[column - 2] and name[at - 2] == other_letter
            row.append(min(cost, before[column - 2] + 1) if swapped else cost)
        # Later rows cannot fall below the limit again.
        if min(row) > limit:
            return limit + 1
    return row[-1]


_MISSING = frozenset({"ImportError", "ModuleNotFoundError", "Exception"})


class Imported(NamedTuple):
    """Module that a file imports."""

    name: str
    """Top-level name."""
    line: int
    optional: bool = False
    """True if the file works without the module.

    The import is guarded by `try`, only meant for type checkers, or meant for another Python version.
    """


def review_dependencies(files: Sequence[CodeFile], facts: ProjectFacts, rules: CodeRules) -> tuple[Finding, ...]:
    """Return findings for added packages that neither the project nor the rules allow."""
    if not rules.enabled:
        return ()
    review = _Review(files, facts, rules)
    # Manifests first: they collect the packages that the code may import.
    return tuple(dict.fromkeys((*review.in_manifests(), *review.in_code())))


def own_modules(paths: Sequence[str]) -> frozenset[str]:
    """Return the names under which these Python files and their folders can be imported."""
    parts = (
        path.removesuffix(".py").removesuffix(".pyi").split("/") for path in paths if path.endswith((".py", ".pyi"))
    )
    return frozenset(part for path_parts in parts for part in path_parts if part.isidentifier())


def imports_in(tree: ast.AST) -> Iterator[Imported]:
    """Yield the modules that a syntax tree imports. Relative imports are skipped."""
    waiting: list[tuple[ast.AST, bool]] = [(tree, False)]
    while waiting:
        node, optional = waiting.pop()
        match node:
            case ast.Import(names=names):
                yield from (Imported(alias.name.partition(".")[0], node.lineno, optional) for alias in names)
            case ast.ImportFrom(module=str() as module, level=0):
                yield Imported(module.partition(".")[0], node.lineno, optional)
            case ast.Try():
                parts = [(child, optional or _misses_silently(node)) for child in node.body]
                # A substitute for a standard library module is meant for an older Python.
                backport = all(
                    entry.name in sys.stdlib_module_names for child in node.body for entry in imports_in(child)
                )
                rest = (*node.handlers, *node.orelse, *node.finalbody)
                waiting += [*parts, *((child, optional or backport) for child in rest)]
            case ast.If():
                for_some = optional or re.search(r"TYPE_CHECKING|sys\.version_info", ast.unparse(node.test)) is not None
                waiting += [(child, for_some) for child in (*node.body, *node.orelse)]
            case _:
                waiting += [(child, optional) for child in ast.iter_child_nodes(node)]


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
    """Reviews the dependencies that a change adds."""

    def __init__(self, files: Sequence[CodeFile], facts: ProjectFacts, rules: CodeRules) -> None:
        self._files = files
        self._facts = facts
        self._rules = rules
        own_distributions = frozenset(own_name(file.path, file.after) for file in files)
        self._allowed = frozenset(map(normal_name, facts.distributions)) | rules.dependencies | own_distributions
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
        known_names = {requirement.name for _, before, _ in sides for requirement in before}
        sources = {(requirement.name, requirement.source) for _, before, _ in sides for requirement in before}
        for file, _, after in sides:
            for requirement in after:
                self._declared.add(requirement.name)
                if requirement.source and (requirement.name, requirement.source) not in sources:
                    yield from self._report(
                        "dependency_source", file, requirement.line, requirement.text, known_by=requirement.text
                    )
                elif (
                    requirement.name and requirement.name not in known_names | self._allowed | self._facts.distributions
                ):
                    yield from self._new(file, requirement)

    def in_code(self) -> Iterator[Finding]:
        """Yield findings for added imports."""
        for file in self._files:
            tree = parse_tree(file.after) if is_python(file.path, file.after) else None
            if not isinstance(tree, ast.Module):
                continue
            old = parse_tree(file.before or "")
            known_names = {module.name for module in imports_in(old)} if isinstance(old, ast.Module) else set[str]()
            for module in sorted(imports_in(tree), key=lambda one: one.line):
                if module.name not in known_names | self._modules and module.name not in sys.stdlib_module_names:
                    yield from self._check_import(file, module)

    def _check_import(self, file: CodeFile, module: Imported) -> Iterator[Finding]:
        names = [
            *self._facts.installed.get(module.name, ()),
            *self._rules.distributions.get(module.name, ()),
            module.name,
        ]
        candidates = dict.fromkeys(map(normal_name, names))
        if not candidates.keys().isdisjoint(self._allowed | self._declared):
            return
        name = next(iter(candidates))
        # An optional import may stay unmet, but a lookalike may be installed by mistake.
        if module.optional and not looks_like(name, self._rules.known | self._allowed):
            return
        line = file.after.splitlines()[module.line - 1].strip()
        yield from self._new(file, Requirement(name, module.line, line))

    def _new(self, file: CodeFile, requirement: Requirement) -> Iterator[Finding]:
        other = looks_like(requirement.name, self._rules.known | self._allowed)
        if other:
            text = f"{requirement.text}: {requirement.name} looks like {other}"
            yield from self._report("lookalike_dependency", file, requirement.line, text, known_by=requirement.name)
        else:
            yield from self._report(
                "new_dependency", file, requirement.line, requirement.text, known_by=requirement.name
            )

    def _report(self, rule: str, file: CodeFile, line: int, text: str, *, known_by: str) -> Iterator[Finding]:
        """Yield a finding if the rule is enabled.

        All findings about the same package have the same fingerprint.
        """
        if self._rules.is_on(rule):
            where = f"{file.path}:{line}" if line else file.path
            finding = make_finding(self._rules.violation(rule), at=("", known_by), evidence=text, where=where)
            yield finding.evolve(layer=Layer.DEPENDENCIES.value)


_SCRIPTS = frozenset({
    "os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput", "asyncio.create_subprocess_shell",
})  # fmt: skip
_EITHER = frozenset({
    "subprocess.run", "subprocess.call", "subprocess.check_call", "subprocess.check_output", "subprocess.Popen",
})  # fmt: skip
_WORDS = frozenset({"asyncio.create_subprocess_exec", "os.execlp", "os.execl", "os.spawnlp"})


def review_scripts(files: Sequence[CodeFile], watch: Deadline | None = None) -> tuple[Finding, ...]:
    """Return findings for commands in scripts and in code that runs programs.

    Only new lines are reviewed.

    Raises:
        OutOfTimeError: the time limit has been reached.
    """
    change = Change(files=tuple(map(_patch_of, files)))
    reading = ScanContext(change, watch or Deadline())
    command_findings = (finding for file in change.files for finding in scripts(reading.view_file(file)))
    return tuple(finding.evolve(layer=Layer.COMMANDS.value) for finding in command_findings)


def _patch_of(file: CodeFile) -> FilePatch:
    # Lines on both sides are not fresh regardless of position, so no diff is needed.
    return FilePatch(file.path, "", _lines(file.after), _lines(file.before or ""), new=file.before is None)


def _lines(text: str) -> Lines:
    lines = text.splitlines()
    return Lines(lines, lambda: range(1, len(lines) + 1)) if lines else NOTHING


def commands_in(placed: ScopedNode, module: Module) -> Iterator[Use]:
    """Yield the violations in constant commands that a call runs.

    A command may span several lines.
    """
    node = placed.node
    if not isinstance(node, ast.Call) or not node.args:
        return
    functions = module.paths(node.func)
    if not functions & (_SCRIPTS | _EITHER | _WORDS):
        return
    first = module.fold(node.args[0])
    if functions & _WORDS:
        arguments = [module.fold(argument) for argument in node.args]
        first = [argument for argument in arguments if isinstance(argument, str)]
    if isinstance(first, str):
        violations = find_violations(first)
    elif isinstance(first, list) and all(isinstance(argument, str) for argument in first):
        violations = find_violations_in_words(first)
    else:
        return
    for violation in violations:
        yield Use(violation, Layer.COMMANDS, (node.lineno, node.col_offset), ast.unparse(node)[:TEXT_CHARACTERS])


NODES_PER_CHECK = 500
USES_OF_A_FILE = 2_000
FINDINGS_OF_A_FILE = 50
"""Maximum number of findings per file, because nobody would read more.

The rest is found once these have been fixed.
"""
UNREADABLE = "unreadable_code"


def review_code(
    files: Sequence[CodeFile],
    rules: CodeRules,
    *,
    own_modules: frozenset[str] = frozenset(),
    watch: Deadline | None = None,
) -> tuple[Finding, ...]:
    """Return the new findings in the syntax trees of a change, in file order.

    A use is not new if it was moved to another line or to another file of the change.

    Args:
        files: all changed files. Files without applicable rules are skipped.
        rules: the rule table.
        own_modules: names under which the project's modules can be imported.
        watch: time limit.

    Raises:
        OutOfTimeError: the time limit has been reached.
    """
    if not rules.enabled:
        return ()
    patterns = Patterns(rules, own_modules)
    watch = watch or Deadline()
    reviewed = [_FileReview(file, patterns, watch) for file in files]
    removed_uses = sum((review.gone for review in reviewed), Counter[tuple[Violation, str]]())
    return tuple(finding for review in reviewed for finding in review.findings(removed_uses))


class _FileReview:
    """The review of one file, with its violations before and after the change."""

    def __init__(self, file: CodeFile, patterns: Patterns, watch: Deadline) -> None:
        self._file = file
        self._patterns = patterns
        self._deadline = watch
        self._lines = file.after.splitlines()
        self._unread: list[Finding] = []
        before = Counter(use.key for use in self._uses(file.before or "", is_after=False))
        self._after = list(self._uses(file.after, is_after=True))
        self._before = before
        self.gone = before - Counter(use.key for use in self._after)

    def findings(self, removed_uses: Counter[tuple[Violation, str]]) -> Iterator[Finding]:
        """Yield a finding for each new use.

        A use in `removed_uses` is not new, because it may have been moved here from another file.
        """
        yield from self._unread
        previous_uses = self._before.copy()
        count = 0
        for use in self._after:
            if count == FINDINGS_OF_A_FILE:
                return
            # The file's own uses first: those removed elsewhere stay available for uses that really moved.
            for left in (previous_uses, removed_uses):
                if left[use.key] > 0:
                    left[use.key] -= 1
                    break
            else:
                count += 1
                path = self._file.path
                line = self._line(use.line)
                finding = make_finding(
                    use.violation,
                    at=(path, use.text),
                    evidence=use.excerpt or line or path,
                    where=f"{path}:{use.line}" if use.line else path,
                )
                yield finding.evolve(layer=use.layer.value)

    def _line(self, number: int) -> str:
        return self._lines[number - 1].strip() if 0 < number <= len(self._lines) else ""

    def _uses(self, text: str, *, is_after: bool) -> Iterator[Use]:
        path, patterns = self._file.path, self._patterns
        if not is_after and self._file.before is None:
            return
        if not text and is_after and self._file.before is not None:
            return
        # The path of an existing file is an old use; only that of a new file is reported.
        yield from (use for use in patterns.in_path(path) if is_after == (self._file.before is None))
        if not is_python(path, text):
            return
        yield from patterns.in_source(text)
        tree = parse_tree(text)
        if isinstance(tree, ast.Module):
            try:
                yield from _each_once(islice(self._in_module(Module(tree)), USES_OF_A_FILE))
            except RecursionError:
                self._unread += [self._not_read(Unread("nested too deeply"))] if is_after else []
        elif is_after and (not tree.line or patterns.rules.is_on(UNREADABLE)):
            self._unread.append(self._not_read(tree))

    def _in_module(self, module: Module) -> Iterator[Use]:
        for number, placed in enumerate(module.nodes):
            if number % NODES_PER_CHECK == 0:
                self._deadline.check_time()
            yield from self._patterns.in_node(placed, module)
            yield from commands_in(placed, module)

    def _not_read(self, unread: Unread) -> Finding:
        file, violation = self._file, self._patterns.rules.violation(UNREADABLE)
        was_unread = isinstance(parse_tree(file.before or ""), Unread)
        # The author can fix a syntax error; anything else, such as test data or a newer syntax, needs a person.
        if not unread.line:
            violation = CHANGE_VIOLATIONS["change_not_read"]
        elif was_unread or EXAMPLE.search(file.path):
            violation = violation._replace(verdict=Verdict.ASK)
        location = f"{file.path}:{unread.line}" if unread.line else file.path
        evidence = f"{unread.why}: {self._line(unread.line)}" if unread.line else unread.why
        finding = make_finding(violation, at=(file.path, file.after), evidence=evidence, where=location)
        return finding.evolve(layer=Layer.AST.value)


def _each_once(uses: Iterable[Use]) -> Iterator[Use]:
    """Yield the uses in line order, without duplicates.

    For each location, only the strictest use per layer is yielded.
    """
    by_place: dict[tuple[int, int, Layer, str], Use] = {}
    for use in uses:
        key = (*use.position, use.layer, use.violation.rule if use.layer is not Layer.AST else "")
        previous = by_place.get(key)
        if previous is None or (
            previous.violation.verdict is not Verdict.DENY and use.violation.verdict is Verdict.DENY
        ):
            by_place[key] = use
    keys: set[tuple[Violation, str]] = set()
    for use in sorted(by_place.values(), key=lambda use: use.position):
        # Access counts once per file, regardless of the number of uses.
        if use.layer is Layer.ACCESS and use.key in keys:
            continue
        keys.add(use.key)
        yield use
