"""Detection of files that determine a check's result, based on what loaded them while it ran."""

import ast
import json
import posixpath
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from tightloop.episode.proof import FileChange, FileKind
from tightloop.episode.proof.files import DATA, is_program
from tightloop.episode.proof.inner_tests import outside_functions
from tightloop.episode.proof.report import Observation
from tightloop.episode.proof.same_code import parse_python

_ASSERTS = {ending: re.compile(pattern) for ending, pattern in DATA["asserts"].items()}
_DEPENDENCIES = ("dependencies", "build-dependencies", "dev-dependencies")
_OF_TESTS = (FileKind.TEST, FileKind.TEST_DATA)
_Function = ast.FunctionDef | ast.AsyncFunctionDef

USERS_LIMIT = 400
"""Maximum number of opened files to search for the name of another one."""
OPENS_ALL = 0.9
"""Share of a tree's files that a check must open to count as opening all of them."""
SEARCHED_LEAST = 50
"""Minimum number of opened files from which on a check that opens all files counts as a search, which does not run
them.
"""
_SETTINGS = re.compile(
    r"\.(?:json5?|jsonc|toml|ya?ml|xml|ini|cfg|conf(?:ig)?|neon|dist|properties|cmake|opts|options|env)$"
    r"|(?:^|/)\.[\w-]+$|rc$|(?:^|/)META-INF/services/"
)
_LOCK = re.compile(r"(?i)lock|shrinkwrap|\.sum$|(?:^|/)\.git")
_PARTS = re.compile(r"[;&\n]+|\|\|")
_INSPECTS = re.compile(r"^\s*(?:!\s*)?(?:[ef]?grep|rg|test|\[|wc|jq)\s[^;&|<>]*$")
_RUNNER_SETTINGS = re.compile(DATA["runner_settings"])

Read = Callable[[str], str]
"""Returns the initial text of a file, or "" if there was none."""


class LoadedFiles(NamedTuple):
    """The files that the checks loaded from the initial tree and from the delivered tree."""

    before: tuple[Observation, ...]
    now: tuple[Observation, ...]
    kind_of: Callable[[str], FileKind | None]
    """Returns a file's role, judging by its name."""
    read: Read
    paths: frozenset[str] = frozenset()
    """All files of the initial tree."""
    commands: tuple[str, ...] = ()
    """Commands of the definition of done."""
    installed: frozenset[str] = frozenset()
    """Names of changed files that are also names of installed programs."""
    executable: frozenset[str] = frozenset()
    """Changed files that can be found on PATH."""
    delivered: int = 0
    """Number of files in the delivered tree."""

    @property
    def is_complete(self) -> bool:
        """True if all files that the checks opened are known."""
        return bool(self.before) and all(seen.is_watched for seen in (*self.before, *self.now))

    def was_opened(self, path: str) -> bool:
        """Return True if a check opened the file in either tree."""
        return any(path in seen.opened or path in seen.loads for seen in (*self.before, *self.now))

    def loaders(self, path: str) -> tuple[str, ...]:
        """Return the files that loaded a file.

        The loaders on the initial tree take precedence, because the delivered code may load a file from
        anywhere. "" stands for programs outside the tree.
        """
        return _merge(self.before, path) or _merge(self.now, path)

    def find_deciding(self, changed: Mapping[str, FileChange]) -> dict[str, FileKind]:
        """Return the changed files that affect whether the checks pass, such as test helpers.

        Files that can be recognised by their names, such as tests, are left out.
        """
        deciding: dict[str, FileKind] = {}
        candidates = [path for path in changed if self.kind_of(path) is None]
        # A helper may load further helpers.
        while found := {
            path: kind
            for path in candidates
            if path not in deciding and (kind := self._kind(path, changed[path], deciding)) is not None
        }:
            deciding |= found
        return deciding

    def _kind(self, path: str, change: FileChange, deciding: Mapping[str, FileKind]) -> FileKind | None:
        observations = (*self.before, *self.now)
        if any(path in seen.plugins for seen in observations) and not self._is_plugin_project():
            return FileKind.START_UP
        if change is FileChange.ADDED and self._takes_place(path):
            return FileKind.START_UP
        if self._is_check(path):
            return FileKind.CONFIGURATION
        is_code, text = is_program(path), self.read(path)
        if not is_code and any(path in seen.read_first for seen in observations) and not self._subject_of(path):
            return FileKind.START_UP
        others = [loader for loader in self.loaders(path) if loader]
        if not others:
            return self._kind_of_unobserved(path, text)
        if not all(self._is_test(loader) or loader in deciding for loader in others):
            return None
        if is_code and all(self._is_configuration(loader, deciding) for loader in others):
            return FileKind.CONFIGURATION
        if not is_code:
            return None if self._subject_of(path) else FileKind.TEST_DATA
        is_beside = any(self._is_check(loader) and _is_below(path, loader) for loader in others)
        if path in self._published():
            return None
        return FileKind.TEST if is_beside or checks_values(path, text) else None

    def _published(self) -> frozenset[str]:
        """Return the modules that the project publishes.

        A published module may check its arguments with `assert`, but it is not a test helper.
        """
        try:
            manifest = json.loads(self.read("package.json") or "{}")
        except ValueError:
            return frozenset()
        if not isinstance(manifest, dict):
            return frozenset()
        entry = posixpath.normpath(str(manifest.get("main") or "index.js"))
        return frozenset({entry, f"{entry}.js", f"{entry}/index.js"})

    def _is_plugin_project(self) -> bool:
        """Return whether the project is a pytest plugin. The plugin is then the product under test."""
        return any("pytest11" in self.read(path) for path in ("pyproject.toml", "setup.cfg", "setup.py"))

    def _takes_place(self, path: str) -> bool:
        """Return True if a new file was used instead of an installed module or program."""
        if any(path in seen.shadows for seen in self.now):
            return True
        words = {word for command in self.commands for word in re.split(r"[\s;&|()]+", command)}
        name = path.rpartition("/")[2]
        # `test -f calc.py` names the new file itself, while `pytest` is found on PATH.
        is_named = (name in words or name in self.installed) and path not in words
        # Only a file that is executable can run under its name. A search opens these, too.
        return (
            is_named
            and path in self.executable
            and any(path in seen.opened and not self._searches_all(seen) for seen in self.now)
        )

    def _searches_all(self, seen: Observation) -> bool:
        """Return whether a check opened nearly every delivered file, as `git status` and `grep -r` do."""
        return self._opens_all(seen) and len(seen.opened) >= max(SEARCHED_LEAST, OPENS_ALL * self.delivered)

    def _kind_of_unobserved(self, path: str, text: str) -> FileKind | None:
        """Return the role of a file that was opened by a program that does not report its imports."""
        observations = [seen for seen in (*self.before, *self.now) if path in seen.opened]
        if not observations:
            return None
        if (
            _SETTINGS.search(path)
            and not _LOCK.search(path)
            and any(map(partial(self._opens_first, path), observations))
        ):
            return FileKind.START_UP
        if _is_of_framework(path, text) or self._is_for_tests_alone(path, observations):
            return FileKind.TEST
        # The contents of the files that were opened together with it show which of them uses it.
        opened = sorted({other for seen in observations for other in seen.opened if other != path})
        file = path.rpartition("/")[2]
        # Import maps and aliases give a file another name.
        alias = re.compile(rf"[\"']([^\"'\n]+)[\"']\s*:\s*[\"'][^\"'\n]*{re.escape(file)}[\"']")
        settings = [other for other in opened[:USERS_LIMIT] if _SETTINGS.search(other)]
        names = [file.partition(".")[0], *(name for other in settings for name in alias.findall(self.read(other)))]
        name = re.compile(rf"(?<![\w-])(?:{'|'.join(map(re.escape, names))})(?![\w-])")
        if any(_RUNNER_SETTINGS.search(other) and name.search(self.read(other)) for other in opened):
            return FileKind.START_UP
        if not asserts(path, text) and not compares_arguments(text):
            return None
        others = (other for other in opened[:USERS_LIMIT] if not _SETTINGS.search(other))
        users = [other for other in others if name.search(self.read(other))]
        return FileKind.TEST if users and all(map(self._is_of_tests, users)) else None

    def _is_of_tests(self, path: str) -> bool:
        is_named = self.kind_of(path) is FileKind.TEST
        return is_named or self._is_check(path) or _is_of_framework(path, self.read(path))

    def _is_for_tests_alone(self, path: str, observations: Iterable[Observation]) -> bool:
        """Return True if a file belongs to a crate that other crates use only in their tests."""
        opened = {other for seen in observations for other in seen.opened if other.endswith(".toml")}
        manifests = [other for other in opened if other.rpartition("/")[2] == "Cargo.toml" and path.endswith(".rs")]
        for_tests, for_all = set[str](), set[str]()
        for manifest in manifests:
            try:
                tables = tomllib.loads(self.read(manifest))
            except tomllib.TOMLDecodeError:
                continue
            folders = {kind: set(_folders(tables.get(kind), manifest)) for kind in _DEPENDENCIES}
            for_tests |= folders["dev-dependencies"]
            for_all |= folders["dependencies"] | folders["build-dependencies"]
        return any(path.startswith(f"{folder}/") for folder in for_tests - for_all)

    def _opens_all(self, seen: Observation) -> bool:
        """Return True if a check opened nearly every file, as linters and searches do.

        In this case, the check does not necessarily depend on a file that it opened. In a small tree, a test
        runner also opens all code and settings, but no other files.
        """
        is_search = any(not is_program(path) and not _SETTINGS.search(path) for path in seen.opened)
        return is_search and len(seen.opened) >= OPENS_ALL * len(self.paths)

    def _opens_first(self, path: str, seen: Observation) -> bool:
        """Return True if a file was opened before any test.

        Files that were loaded by a program that reports its imports do not count.
        """
        tests = [number for number, other in enumerate(seen.opened) if self.kind_of(other) is FileKind.TEST]
        if self._opens_all(seen):
            return False
        return bool(tests) and not any(seen.loads.get(path, ())) and seen.opened.index(path) < tests[0]

    def _is_configuration(self, path: str, deciding: Mapping[str, FileKind]) -> bool:
        """Return True if a file configures a test runner or another checker.

        Programs that perform checks, such as `test.py`, are not configuration.
        """
        is_program_of_check = any(path in self._named(command) for command in self.commands) or any(
            path in seen.programs for seen in (*self.before, *self.now)
        )
        return not is_program_of_check and FileKind.CONFIGURATION in (self.kind_of(path), deciding.get(path))

    def _is_test(self, path: str) -> bool:
        return self.kind_of(path) in (FileKind.TEST, FileKind.CONFIGURATION) or self._is_check(path)

    def _is_check(self, path: str) -> bool:
        """Return True if a file runs as a program and makes assertions about other code in the tree."""
        if not any(path in seen.programs for seen in self.before):
            return False
        is_script = not is_program(path)
        return asserts(path, self.read(path)) and (is_script or any(self._code_loaded_by(path)))

    def _code_loaded_by(self, program: str) -> Iterator[str]:
        for seen in self.before:
            for graph in (seen.loads, seen.started_by):
                yield from (
                    path for path, by in graph.items() if program in by and path != program and is_program(path)
                )

    def _subject_of(self, path: str) -> bool:
        """Return True if a check tests the content of this data file.

        This is the case if all programs that read the file load no code from the tree.
        """
        readers = [reader for reader in self.loaders(path) if reader]
        is_plain = all(any(reader in seen.programs for seen in self.before) for reader in readers)
        return bool(readers) and is_plain and not any(any(self._code_loaded_by(reader)) for reader in readers)

    def keeps(self, path: str, kind: FileKind) -> bool:
        """Return True if a file actually affects the check results, as its name suggests it does."""
        if kind not in (FileKind.CONFIGURATION, FileKind.TEST_DATA):
            return True
        is_subject = kind is FileKind.TEST_DATA and (self._subject_of(path) or self._is_inspected(path))
        return self.was_opened(path) and not is_subject

    def _is_inspected(self, path: str) -> bool:
        """Return True if a command inspects only this file.

        For example, `grep -q 2 spec/api.json` inspects a single file, but `diff out spec/out` compares two.
        """
        for part in _PARTS.split("\n".join(self.commands)):
            named = [word.removeprefix("./") for word in part.split() if word.removeprefix("./") in self.paths]
            if named == [path] and "<" not in part:
                return not any(self.loaders(path))
        return False

    def find_inspections(self, paths: Iterable[str]) -> frozenset[str]:
        """Return the commands that only inspect the text of one of these files."""
        names = {*paths}
        return frozenset(
            command for command in self.commands if _INSPECTS.match(command) and self._named(command) & names
        )

    def _named(self, command: str) -> set[str]:
        return {word.removeprefix("./") for word in command.split()} & self.paths

    def find_peeks(self, changed: Mapping[str, FileChange], deciding: Iterable[str]) -> tuple[str, ...]:
        """Return the tests and test data that product code now reads but did not read initially.

        Each line has the form `<reader> reads <path>`.
        """
        product = {path for path in changed if self.kind_of(path) is None} - {*deciding}
        return tuple(
            dict.fromkeys(
                f"{by} reads {path}"
                for seen in self.now
                for path, loaders in seen.loads.items()
                for by in loaders
                if by in product and not self._is_check(by)
                if by not in _merge(self.before, path) and self._belongs_to_tests(path)
            )
        )

    def _belongs_to_tests(self, path: str) -> bool:
        if self.kind_of(path) in _OF_TESTS:
            return True
        readers = [reader for reader in _merge(self.before, path) if reader]
        return bool(readers) and all(map(self._is_test, readers)) and not is_program(path)

    def has_tests(self, path: str) -> bool:
        """Return True if a runner initially reported tests from this file.

        Files that ran as programs do not count.
        """
        return not any(path in seen.programs for seen in self.before) and any(
            name.startswith((f"{path}::", f"{path} > ")) and not _is_doctest(path, name)
            for seen in self.before
            for results in seen.results.values()
            for name in results
        )

    def has_inner_tests(self, path: str) -> bool:
        """Return True if a check ran tests in a product file.

        The tests are the doctests in the file, or the file itself if it ran as a program.
        """
        if path.endswith(".rs"):
            return any(seen.results.get(checker) for seen in self.before for checker in ("cargo", "libtest", "doctest"))
        return any(
            path in seen.programs or any(_is_doctest(path, name) for names in seen.results.values() for name in names)
            for seen in self.before
        )


def _merge(observations: Sequence[Observation], path: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(by for seen in observations for by in seen.loads.get(path, ())))


def _is_doctest(path: str, name: str) -> bool:
    file, _, item = name.partition("::")
    stem = path.rpartition("/")[2].partition(".")[0]
    # `pkg/calc.py::pkg.calc.add`, unlike `pkg/test_calc.py::test_add` and `pkg/test_add.py::test_add`.
    is_function = item == stem and item.startswith("test")
    return file == path and stem in item.split(".") and not is_function


def _is_below(path: str, program: str) -> bool:
    folder = program.rpartition("/")[0]
    return folder not in DATA["import_roots"] and path.startswith(f"{folder}/")


def _folders(dependencies: Any, manifest: str) -> Iterator[str]:
    """Yield the folders of a crate's dependencies that are located in the tree."""
    for dependency in dependencies.values() if isinstance(dependencies, dict) else ():
        if isinstance(dependency, dict) and isinstance(dependency.get("path"), str):
            yield posixpath.normpath(posixpath.join(posixpath.dirname(manifest), dependency["path"]))


def _is_of_framework(path: str, text: str) -> bool:
    pattern = DATA["test_frameworks"].get(path.rpartition(".")[2].lower())
    return pattern is not None and re.search(pattern, text) is not None


# -- assertions ---------------------------------------------------------------------------------------


def asserts(path: str, text: str) -> bool:
    """Return True if a program makes assertions about other code.

    Checks of the program's own input do not count.
    """
    if path.endswith(".py") and (tree := parse_python(text)) is not None:
        return any(isinstance(node, ast.Assert) for node in ast.walk(tree)) or any(
            map(_is_failing_exit, outside_functions(tree))
        )
    pattern = _ASSERTS.get(path.rpartition(".")[2].lower(), _ASSERTS["other"])
    return pattern.search(text) is not None


def checks_values(path: str, text: str) -> bool:
    """Return True if a module provides assertion functions.

    An assertion function either raises an error or has no effect.
    """
    if not path.endswith(".py"):
        return asserts(path, text)
    tree = parse_python(text)
    functions = [node for node in ast.walk(tree) if isinstance(node, _Function)] if tree is not None else []
    return any(any(map(_fails, ast.walk(function))) and not _does_more(function) for function in functions)


def _fails(node: ast.AST) -> bool:
    return isinstance(node, ast.Assert) or (isinstance(node, ast.Raise) and "AssertionError" in ast.dump(node))


def _does_more(function: _Function) -> bool:
    """Return True if a function does more than check its arguments.

    For example, it returns or stores a result.
    """
    # `return self` is for chains such as `expect(x).to_be(y).and_so_on()`.
    return any(
        isinstance(node, ast.Yield | ast.YieldFrom | ast.Global)
        or (isinstance(node, ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Store))
        or (isinstance(node, ast.Return) and node.value is not None and ast.unparse(node.value) != "self")
        for node in ast.walk(function)
    )


def _is_failing_exit(node: ast.AST) -> bool:
    """Return True for `sys.exit("wrong")` and `sys.exit(not passed)`, but not for `sys.exit(main())`."""
    if not isinstance(node, ast.Call) or ast.unparse(node.func) not in ("sys.exit", "exit", "SystemExit"):
        return False
    return bool(node.args) and not isinstance(node.args[0], ast.Call) and ast.unparse(node.args[0]) not in ("0", "None")


_HEAD = re.compile(
    r"(?m)^[ \t]*(?:(?:export|public|static|private|default|async|function|fn|void|sub|func|pub|const|local)\s+)*"
    r"(?P<name>[\w.:]+)\s*(?:=\s*(?:function\s*)?)?\((?P<parameters>[^()]*)\)[^\n{;]*\{"
)
_RUBY_HEAD = re.compile(r"(?m)^(?P<indent>[ \t]*)def\s+(?:self\.)?\w+[?!]?[ (](?P<parameters>[^\n)]*)\)?$")
_FAILS = re.compile(r"\b(?:throw|panic!|raise|die|fail|abort)\b|\b(?:return|exit)\s*\(?\s*[1-9]|\bfalse\b\s*$")
_OF_SHELL = re.compile(r"\$\{?(\w+)\}?[\"']?\s*(?:!=|==?|-ne|-eq)\s*[\"']?\$\{?(\w+)")
_PRINTS = re.compile(r"(?m)^\s*(?:echo|printf|cat)\b(?!.*>&\s*2)")


def compares_arguments(text: str) -> bool:
    """Return True if a program defines a function that compares its two arguments.

    The function must either fail or return nothing. The language is unknown, so functions are recognized
    by their braces, or by the `end` keyword, as in Ruby.
    """
    return any(_is_comparison(parameters, body) for parameters, body in _functions(text))


def _functions(text: str) -> Iterator[tuple[str, str]]:
    for head in _HEAD.finditer(text):
        depth, end = 1, len(text)
        for brace in re.finditer(r"[{}]", text[head.end() :]):
            depth += 1 if brace[0] == "{" else -1
            if depth == 0:
                end = head.end() + brace.start()
                break
        yield head["parameters"], text[head.end() : end]
    for head in _RUBY_HEAD.finditer(text):
        yield head["parameters"], text[head.end() :].partition(f"\n{head['indent']}end")[0]


def _is_comparison(parameters: str, body: str) -> bool:
    if not _FAILS.search(body):
        return False
    names = [name for part in parameters.split(",") for name in re.findall(r"[A-Za-z_]\w*", part)]
    if not names:
        match = _OF_SHELL.search(body)
        return match is not None and match[1] != match[2] and not _PRINTS.search(body)
    if re.search(r"\breturn\s+(?!;)[^\s}]", body):
        return False
    compared = re.findall(r"(\w+)\s*(?:[!=]==?|\.equals?\(|\.eql\?\s*\(?|,)\s*\$?(\w+)", body)
    return any(one != other and one in names and other in names for one, other in compared)
