"""Comparison of the tests before and after the work, based on their assertions.

A test that was moved, renamed, split, merged, parametrised or ported to another framework is still present if its
claims are.
"""

import ast
import difflib
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from tightloop.episode.proof import ChangedFile, FileChange, FileKind
from tightloop.episode.proof.assertions import AssertedModule, AssertedTest, Claim, read_module
from tightloop.episode.proof.report import FAILED, PASSED, SKIPPED, InitialState
from tightloop.safety.announcement import RequestedChanges
from tightloop.value import shorten

CLAIM_CHARACTERS = 160
_IMPORT_ROOTS = ("src.", "lib.", "python.")
_PARAMETERS = re.compile(r"\[.*\]$", re.DOTALL)
_WORD = re.compile(r"\w+(?:[.%-]\w+)*|[^\w\s]")
_LITERAL = re.compile(r"\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)*'|`[^`\n]*`|\b\d[\w.]*")
_COMMENT = re.compile(r"^\s*(?:#|//|\*|/\*)")
_TITLE = re.compile(
    r"^\s*(?:(?:describe|it|test|context|suite)\s*\(\s*(?P<title>[\"'`].*?[\"'`])|func\s+(?P<go>Test\w+)\s*\(|fn\s+(?P<rust>\w+)\s*\("
    r"|(?:public\s+)?void\s+(?P<java>\w+)\s*\()"
)
_RELATIVE = re.compile(r"(?P<quote>[\"'])(?P<path>\.{1,2}/[^\"'\n]*)(?P=quote)")
_CONSTANTS = (
    ast.Expression, ast.Constant, ast.List, ast.Tuple, ast.Dict, ast.Set, ast.BinOp, ast.operator, ast.UnaryOp,
    ast.USub, ast.Load,
)  # fmt: skip
_BUILT_IN = frozenset(
    ["request", "tmp_path", "tmpdir", "monkeypatch", "capsys", "capfd", "caplog", "recwarn", "cache", "pytestconfig"]
)


class KeptTests(NamedTuple):
    """Result of comparing the original tests with the delivered tests."""

    kept: frozenset[str] = frozenset()
    """Paths of changed files that lost none of the original tests' claims and cannot influence them."""
    announced: frozenset[str] = frozenset()
    """Paths of changed files in which only announced tests and values changed."""
    holders: Mapping[str, tuple[str, ...]] = {}
    """For each original test in a changed file, the tests that make its claims now."""
    released: frozenset[str] = frozenset()
    """Original tests whose change or removal is announced in the goal."""
    contested: frozenset[str] = frozenset()
    """Paths of tests that failed at the start and lost a claim. A general request to change tests does not cover them.
    """
    same_lines: bool = False
    """True if tests in other languages changed only in their titles, order and location."""
    form: bool = False
    """True if the goal asks to restructure the tests. This explains missing tests if the original ones still pass."""
    lost: tuple[str, ...] = ()
    """Claims that no test makes any more, one line each."""
    requested: RequestedChanges = RequestedChanges()

    def explain(
        self, missing: Iterable[str], before: Mapping[str, str], now: Mapping[str, str]
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Divide the missing tests into unexplained tests and tests whose removal was announced.

        A test is not returned if other passing tests make the same claims.

        Args:
            missing: names of the missing tests, as reported by a checker.
            before: results of the original tests by name.
            now: results of the delivered tests by name.
        """
        passing = [name for name, result in now.items() if result == PASSED]
        if self.same_lines and len(passing) >= sum(result != SKIPPED for result in before.values()):
            return (), ()
        passed = _Names(passing)
        unexplained, announced = [], []
        for name in missing:
            key = next((key for key in (*self.holders, *self.released) if _Names([name]).covers(key)), "")
            held = bool(key) and all(map(passed.covers, self.holders.get(key, ("",))))
            # The claims of tests in other languages are not read, so their names in the report decide.
            is_named = self.requested.covers_test(name)
            if is_named or key in self.released or (self.form and key not in self.holders):
                announced.append(name)
            elif not held:
                unexplained.append(name)
        return tuple(unexplained), tuple(announced)

    def find_new(self, before: Mapping[str, str], now: Mapping[str, str], texts: Mapping[str, str]) -> frozenset[str]:
        """Return the names of the passing tests that are new. Moved tests are not new.

        Args:
            before: results of the original tests by name.
            now: results of the delivered tests by name.
            texts: texts of the changed Python tests by path.
        """
        old = {_PARAMETERS.sub("", name) for name in before}
        holders = {key for keys in self.holders.values() for key in keys}
        keys = [test.key for module in _modules(texts).values() for test in module.tests if test.key not in holders]
        names = {name for name, result in now.items() if result == PASSED and _PARAMETERS.sub("", name) not in old}
        own = [_Names([name]) for name in names]
        return frozenset(name for name, single in zip(names, own, strict=True) if any(map(single.covers, keys)))


class _Names:
    """The names of tests, as reported by pytest and unittest."""

    def __init__(self, names: Iterable[str]) -> None:
        self._by_end: dict[str, list[str]] = {}
        for name in names:
            dotted = _PARAMETERS.sub("", name).replace(".py::", ".").replace("::", ".").replace("/", ".")
            self._by_end.setdefault(dotted.rpartition(".")[2], []).append(dotted)

    def covers(self, key: str) -> bool:
        """Return True if one of the names refers to the test `key`.

        A name may be relative to the subfolder in which the runner was started.
        """
        names = self._by_end.get(key.rpartition(".")[2], ())
        return any(key == name or key.endswith(f".{name}") or name.endswith(f".{key}") for name in names)


class Sources(NamedTuple):
    """Contents of the files before or after a change, by path."""

    tests: Mapping[str, str]
    """Changed tests, test data and configuration."""
    product: Mapping[str, str]
    """Changed Python files that are not tests."""
    others: Callable[[], Mapping[str, str]]
    """Returns the texts of the unchanged Python tests."""
    paths: Collection[str]
    """All paths of the tree."""


def compare_tests(
    before: Sources,
    after: Sources,
    changed: Sequence[ChangedFile],
    requested: RequestedChanges,
    beginning: InitialState,
) -> KeptTests:
    """Compare the tests in two trees.

    `changed` contains the files that can affect the checks. A changed configuration value counts as
    announced if the goal names the new value.
    """
    kinds = (FileKind.TEST, FileKind.TEST_DATA, FileKind.CONFIGURATION)
    files = [file for file in changed if file.kind in kinds]
    if not files:
        return KeptTests(requested=requested)
    return _Comparison(before, after, files, requested, beginning).compare()


class _Comparison:
    def __init__(
        self,
        before: Sources,
        after: Sources,
        files: list[ChangedFile],
        requested: RequestedChanges,
        beginning: InitialState,
    ) -> None:
        self._before, self._after, self._files, self._requested = before, after, files, requested
        self._old = _modules(before.tests)
        self._new = _modules(after.tests)
        helpers = find_renames(_python(before.tests), _python(after.tests), same_text=True)
        self._renames = Renames((*find_renames(before.product, after.product).pairs, *helpers.pairs))
        self._gone = _gone_names(before.product, after.product)
        results = [names for check in beginning.checks for names in check.observation.results.values()]
        self._failed = _Names(name for names in results for name, result in names.items() if result == FAILED)
        self._reported = _Names(name for names in results for name in names)
        self._was_green = not any(FAILED in names.values() for names in results)
        self._changed = _changed_names(before.product, after.product)
        self._other_reports = any(
            checker not in ("pytest", "unittest")
            for check in beginning.checks
            for checker in check.observation.checkers
        )
        self._contested: set[str] = set()
        self._holders: dict[str, tuple[str, ...]] = {}
        self._released: set[str] = set()
        self._lost: list[str] = []

    def compare(self) -> KeptTests:
        self._compare_claims()
        same_lines, adds_lines = self._compare_lines()
        # Additions to tests and helpers may also weaken the old tests, so the old tests run without them.
        kept = {file.path for file in self._files if same_lines and not adds_lines and _is_other_test(file)}
        announced = set[str]()
        for file in self._files:
            path = file.path
            if not path.endswith(".py") or file.kind is FileKind.CONFIGURATION:
                if file.change is FileChange.MODIFIED and self._is_announced_text(path):
                    announced.add(path)
                continue
            old, new = self._old.get(path), self._new.get(path)
            if (path in self._before.tests and old is None) or (path in self._after.tests and new is None):
                continue
            keys = {test.key for test in old.tests} if old else set()
            # If no report tells which tests ran, nobody knows whether a test still runs in its new place.
            if not all(map(self._reported.covers, keys)) or not self._is_inert(path, old, new):
                continue
            if keys <= self._holders.keys():
                kept.add(path)
            elif keys <= self._holders.keys() | self._released:
                announced.add(path)
        settled = kept | announced
        kept |= {file.path for file in self._files if file.path not in kept and self._is_kept_data(file, settled)}
        return KeptTests(
            frozenset(kept),
            frozenset(announced),
            self._holders,
            frozenset(self._released),
            frozenset(self._contested),
            same_lines,
            self._requested.form,
            tuple(self._lost),
            self._requested,
        )

    # -- Python tests ------------------------------------------------------------------------------------

    def _compare_claims(self) -> None:
        old_tests = [test for module in self._old.values() for test in module.tests]
        pool = _pool(test for module in self._new.values() for test in module.tests)
        others: dict[tuple[str, str, str], list[str]] | None = None
        for test in old_tests:
            claims = [self._renames.apply(claim) for claim in test.claims]
            lost = [claim for claim in claims if _key(claim) not in pool]
            if lost and others is None:
                modules = _modules(self._after.others())
                others = _pool(test for module in modules.values() for test in module.tests)
            lost = [claim for claim in lost if _key(claim) not in (others or {})]
            if not lost:
                both = [pool.get(_key(claim)) or (others or {})[_key(claim)] for claim in claims]
                # Claims that every test makes are held by the first test that makes them.
                self._holders[test.key] = tuple(dict.fromkeys(_best(keys, test.key) for keys in both))
            elif self._is_announced(test, lost):
                self._released.add(test.key)
            else:
                if self._failed.covers(test.key):
                    self._contested.add(test.path)
                texts = (f"{claim.subject} {claim.outcome}" for claim in lost)
                self._lost += [
                    shorten(f"{test.path}: {test.name} no longer asserts {text}", CLAIM_CHARACTERS) for text in texts
                ]

    def _is_announced(self, test: AssertedTest, lost: Sequence[Claim]) -> bool:
        wanted = self._requested
        if wanted.covers_test(test.name) or _is_named_file(wanted, test.path):
            return True
        has_failed = self._failed.covers(test.key)
        # A test that failed from the start defines the requested work, so no general permission covers losing it.
        if not has_failed and (wanted.everything or self._differs_in_space(lost)):
            return True
        gone = [name for name in self._gone if any(_mentions(claim, name) for claim in test.claims)]
        uses_gone = bool(gone) and all(any(_mentions(claim, name) for name in gone) for claim in lost)
        if uses_gone and (any(map(wanted.removes, gone)) or (wanted.removes_something and not has_failed)):
            return True
        if has_failed and not (wanted.names(test.name.rpartition(".")[2]) or self._is_named(lost)):
            return False
        by_subject: dict[tuple[str, str], list[Claim]] = {}
        for module in self._new.values():
            for new in module.tests:
                for claim in new.claims:
                    by_subject.setdefault((claim.context, claim.subject), []).append(claim)
        others = [(claim, by_subject.get((claim.context, claim.subject), ())) for claim in lost]
        if all(any(self._is_wanted(claim.values, new.values) for new in news) for claim, news in others):
            return True
        # Without a failing test, new results of a function that the goal names are the work itself.
        return self._was_green and all(
            self._is_about_changed(claim) and any(map(_names_result, news)) for claim, news in others
        )

    def _differs_in_space(self, lost: Iterable[Claim]) -> bool:
        """Return True if the lost claims differ only in white space, as the goal requested."""
        new = (claim for module in self._new.values() for test in module.tests for claim in test.claims)
        return self._requested.is_about_space and {*map(_without_space, lost)} <= {*map(_without_space, new)}

    def _is_about_changed(self, claim: Claim) -> bool:
        """Return True if a claim concerns a changed function that the goal names."""
        names = self._changed.intersection(re.findall(r"\w+", claim.subject))
        return any(map(self._requested.changes, names))

    def _is_named(self, lost: Sequence[Claim]) -> bool:
        names = {name for claim in lost for name in re.findall(r"[A-Za-z_]\w{2,}", claim.subject)}
        return any(map(self._requested.names, names))

    def _is_wanted(self, old: Sequence[str], new: Sequence[str]) -> bool:
        fresh = [value for value in new if value not in old]
        if self._requested.wants_more_of(" ".join(old), " ".join(new)):
            return False
        return bool(fresh) and all(map(self._requested.wants, fresh))

    def _is_inert(self, path: str, old: AssertedModule | None, new: AssertedModule | None) -> bool:
        """Return True if a change to a Python file can only affect the tests in that file."""
        is_conftest = path.rpartition("/")[2] == "conftest.py"
        everything_new = frozenset[str]().union(*(module.effects for module in self._new.values()))
        if old is not None and not old.effects <= everything_new:
            return False
        if new is None:
            # What helpers of a deleted file did is compared where tests use them.
            return not is_conftest
        if not new.effects <= frozenset[str]().union(*(module.effects for module in self._old.values())):
            return False
        old_definitions = _definitions(self._before.tests[path]) if old else {}
        new_definitions = _definitions(self._after.tests[path])
        moved = {fixture.definition for module in self._old.values() for fixture in module.fixtures}
        fresh = [fixture for fixture in new.fixtures if fixture.definition not in moved]
        if is_conftest:
            hooks = {name for name in new.helpers if name.startswith("pytest_")} - old_definitions.keys()
            used = _BUILT_IN | (old_definitions.keys() & {fixture.name for fixture in fresh})
            if hooks or any(item.is_automatic or item.name in used or self._is_in_old(item.name) for item in fresh):
                return False
        elif old is None:
            return bool(new.tests) or self._shadows_nothing(path)
        changed = [name for name, text in old_definitions.items() if new_definitions.get(name) != text]
        own = {test.name.partition(".")[0] for test in old.tests} if old else set()
        # Other tests may use what this file defines.
        return not any((is_conftest or not new.tests or self._is_in_old(name)) for name in changed if name not in own)

    def _is_in_old(self, name: str) -> bool:
        return any(re.search(rf"\b{re.escape(name)}\b", text) for text in self._before.others().values())

    def _shadows_nothing(self, path: str) -> bool:
        """Return whether a new module in a test folder cannot shadow another module."""
        folder, _, name = path.rpartition("/")
        # pytest and unittest add the folder of a test to the path unless it is a package.
        return name == "__init__.py" or f"{folder}/__init__.py" in self._before.paths

    # -- other files -------------------------------------------------------------------------------------

    def _compare_lines(self) -> tuple[bool, bool]:
        """Compare the tests in other languages line by line.

        Return whether all lines except titles were kept, and whether lines were added.
        """
        files = [file for file in self._files if _is_other_test(file)]
        before: Counter[str] = Counter()
        after: Counter[str] = Counter()
        for file in files:
            before.update(_lines(file.path, self._before.tests.get(file.path, "")))
            after.update(_lines(file.path, self._after.tests.get(file.path, "")))
        is_same = not before - after and not any(map(_is_disabled, after - before))
        return bool(files) and self._other_reports and is_same, bool(after - before)

    def _is_announced_text(self, path: str) -> bool:
        """Return True if only values changed in a file and the goal names each new value."""
        old, new = self._before.tests.get(path), self._after.tests.get(path)
        if old is None or new is None:
            return False
        before, after = old.splitlines(), new.splitlines()
        is_code = any(file.path == path and file.kind is FileKind.TEST for file in self._files)
        fresh: list[str] = []
        for kind, start, end, first, last in difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
            if kind == "equal":
                continue
            old_text, new_text = "\n".join(before[start:end]), "\n".join(after[first:last])
            # In code, only literals may differ.
            if is_code and _LITERAL.sub("?", old_text) != _LITERAL.sub("?", new_text):
                return False
            old_words, new_words = _WORD.findall(old_text), _WORD.findall(new_text)
            words = difflib.SequenceMatcher(None, old_words, new_words, autojunk=False)
            added = [new_words[a:b] for tag, _, _, a, b in words.get_opcodes() if tag in ("insert", "replace")]
            fresh_words = [word for part in added for word in part if word[0].isalnum() or word[0] == "_"]
            if not fresh_words or self._requested.wants_more_of(old_text, new_text):
                return False
            fresh += fresh_words
        return bool(fresh) and all(map(self._requested.wants, fresh))

    def _is_kept_data(self, file: ChangedFile, settled: set[str]) -> bool:
        if file.kind is not FileKind.TEST_DATA:
            return False
        old, new = self._before.tests.get(file.path), self._after.tests.get(file.path)
        name = file.path.rpartition("/")[2]
        if file.change is FileChange.ADDED:
            # Data that comes with a new test, such as its snapshot, or that moved with its test.
            tests = [path for path in settled if path in self._after.tests]
            return any(name.startswith(path.rpartition("/")[2].partition(".")[0] + ".") for path in tests) or any(
                self._moved(path, file.path) for path in self._before.tests
            )
        if file.change is FileChange.DELETED:
            return any(self._moved(file.path, path) for path in self._after.tests)
        if old is None or new is None or not name.endswith((".snap", ".ambr")):
            return False
        codes = difflib.SequenceMatcher(None, old.splitlines(), new.splitlines(), autojunk=False).get_opcodes()
        return all(code[0] in ("equal", "insert") for code in codes)

    def _moved(self, old: str, new: str) -> bool:
        """Return whether a file was moved unchanged, together with a test."""
        if old == new or self._before.tests.get(old) != self._after.tests.get(new) or old in self._after.tests:
            return False
        shared = _common_end(old, new)
        source, target = old[: len(old) - len(shared)], new[: len(new) - len(shared)]
        return any(
            test.startswith(source) and f"{target}{test[len(source) :]}" in self._after.tests
            for test in self._old
            if test not in self._after.tests
        )


def _common_end(one: str, other: str) -> str:
    parts, others = one.split("/"), other.split("/")
    count = 0
    while count < min(len(parts), len(others)) and parts[-1 - count] == others[-1 - count]:
        count += 1
    return "/".join(parts[len(parts) - count :])


def _without_space(claim: Claim) -> tuple[str, ...]:
    return tuple(re.sub(r"\s|\\[nrt]", "", text) for text in (claim.context, claim.subject, claim.outcome))


def _is_other_test(file: ChangedFile) -> bool:
    return file.kind is FileKind.TEST and not file.path.endswith(".py")


def _python(texts: Mapping[str, str]) -> dict[str, str]:
    return {path: text for path, text in texts.items() if path.endswith(".py")}


def _modules(texts: Mapping[str, str]) -> dict[str, AssertedModule]:
    read = {path: read_module(path, text) for path, text in _python(texts).items()}
    return {path: module for path, module in read.items() if module is not None}


def _key(claim: Claim) -> tuple[str, str, str]:
    return claim.context, claim.subject, claim.outcome


def _pool(tests: Iterable[AssertedTest]) -> dict[tuple[str, str, str], list[str]]:
    keys: dict[tuple[str, str, str], list[str]] = {}
    for test in tests:
        for claim in test.claims:
            keys.setdefault(_key(claim), []).append(test.key)
    return keys


def _best(keys: Sequence[str], key: str) -> str:
    return key if key in keys else keys[0]


def _names_result(claim: Claim) -> bool:
    """Return True if a claim expects a specific constant or exception.

    Other claims may be true for any result.
    """
    kind, _, expected = claim.outcome.partition(" ")
    if kind == "raises":
        return expected.partition(",")[0] not in ("", "Exception", "BaseException")
    try:
        nodes = ast.walk(ast.parse(expected, mode="eval"))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return kind in ("==", "is") and all(isinstance(node, _CONSTANTS) for node in nodes)


def _is_named_file(requested: RequestedChanges, path: str) -> bool:
    return requested._replace(everything=False).covers(path)


def _mentions(claim: Claim, name: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(name)}(?!\w)", f"{claim.context} {claim.subject}") is not None


def _lines(path: str, text: str) -> list[str]:
    """Return the lines of a test, without titles, comments and indentation.

    Relative paths are resolved.
    """
    folder = path.rpartition("/")[0].split("/")

    def resolve(match: re.Match[str]) -> str:
        parts = list(folder)
        for part in match["path"].split("/"):
            if part == "..":
                parts = parts[:-1]
            elif part != ".":
                parts.append(part)
        return f"'/{'/'.join(filter(None, parts))}'"

    lines = []
    for line in text.splitlines():
        bare = _RELATIVE.sub(resolve, line).strip()
        if not bare or _COMMENT.match(bare):
            continue
        title = _TITLE.match(bare)
        for name in filter(None, title.groups()) if title else ():
            bare = bare.replace(name, "?", 1)
        lines.append(bare)
    return lines


def _is_disabled(line: str) -> bool:
    """Return True if an added line can disable or change other assertions."""
    return (
        re.search(r"\b(?:skip|only|todo|xit|xtest|xdescribe|mock|spyOn|stub\w*|return|exit|if|catch|override)\b", line)
        is not None
    )


# -- what became of the code under test ---------------------------------------------------------------------


class Renames(NamedTuple):
    """Old and new dotted names of renamed product symbols."""

    pairs: tuple[tuple[str, str], ...] = ()

    def apply(self, claim: Claim) -> Claim:
        """Replace the renamed symbols in a claim with their new names."""
        context, subject, outcome = claim.context, claim.subject, claim.outcome
        for old, new in self.pairs:
            pattern = re.compile(rf"(?<![\w.]){re.escape(old)}(?!\w)" if old[0] != "." else rf"{re.escape(old)}(?!\w)")
            context, subject, outcome = (pattern.sub(new, text) for text in (context, subject, outcome))
        return Claim(context, subject, outcome, claim.values)


def find_renames(before: Mapping[str, str], after: Mapping[str, str], *, same_text: bool = False) -> Renames:
    """Find the symbols that were moved to another module or renamed.

    A moved symbol has the same name as before. A renamed symbol has the same content as before.

    Args:
        before: contents of the changed Python files, by path.
        after: current texts of the same files.
        same_text: True if a moved symbol must also have the same content.
    """
    old, new, modules_now = _symbols(before), _symbols(after), {_module_name(path) for path in after}
    gone = {name: text for name, text in old.items() if name not in new}
    fresh = {name: text for name, text in new.items() if name not in old}
    pairs = []
    for name, text in gone.items():
        end = name.rpartition(".")[2]
        same_name = [other for other in fresh if other.rpartition(".")[2] == end]
        equal = [other for other, content in fresh.items() if content == text]
        targets = (
            same_name
            if len(same_name) == 1 and not same_text
            else [name for name in same_name if name in equal] or equal
        )
        if len(targets) == 1:
            pairs.append((name, targets[0]))
            if name.startswith("."):
                continue
            modules = (name.rpartition(".")[0], targets[0].rpartition(".")[0])
            if end == targets[0].rpartition(".")[2] and modules[0] not in modules_now:
                pairs.append(modules)
    # Keywords of functions whose parameters were renamed.
    for name in () if same_text else old.keys() & new.keys():
        for one, other in zip(_parameters(old[name]), _parameters(new[name]), strict=False):
            if one != other and len(_parameters(old[name])) == len(_parameters(new[name])):
                pairs.append((f"{one}=", f"{other}="))
    return Renames(tuple(sorted(dict.fromkeys(pairs), key=lambda pair: -len(pair[0]))))


def _parameters(text: str) -> list[str]:
    match = re.match(r"(?:async )?def _\((.*?)\)(?: ->|:)", text)
    names = [re.split(r"[:=]", part)[0].strip("* ") for part in match[1].split(",")] if match else []
    return [name for name in names if name]


def _module_name(path: str) -> str:
    dotted = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    for root in _IMPORT_ROOTS:
        dotted = dotted.removeprefix(root)
    return dotted


def _parse(text: str) -> ast.Module | None:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _definitions(text: str) -> dict[str, str]:
    """Return the content of module-level functions, classes and assigned values, by name."""
    tree = _parse(text)
    content: dict[str, str] = {}
    for node in tree.body if tree else ():
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name, node.name = node.name, "_"
            if ast.get_docstring(node, clean=False) is not None:
                del node.body[0]
            content[name] = ast.unparse(node) if node.body else ""
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            content[node.targets[0].id] = ast.unparse(node.value)
    return content


def _symbols(texts: Mapping[str, str]) -> dict[str, str]:
    """Return the content of all symbols by dotted name. Methods are listed as `.name`."""
    symbols: dict[str, str] = {}
    for path, text in texts.items():
        module = _module_name(path)
        for name, content in _definitions(text).items():
            symbols[f"{module}.{name}"] = content
        for node in ast.walk(tree) if (tree := _parse(text)) else ():
            if isinstance(node, ast.ClassDef):
                for method in node.body:
                    if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef):
                        name, method.name = method.name, "_"
                        symbols.setdefault(f".{name}", ast.unparse(method))
                        method.name = name
    return symbols


def _changed_names(before: Mapping[str, str], after: Mapping[str, str]) -> frozenset[str]:
    """Return the unqualified names of the product functions and classes that changed."""
    old, new = _symbols(_python(before)), _symbols(_python(after))
    return frozenset(name.rpartition(".")[2] for name, text in old.items() if new.get(name, text) != text)


def _gone_names(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[str, ...]:
    """Return the dotted names of the symbols that were removed from the product.

    Methods are listed as `.name`.
    """
    old, new = _symbols(_python(before)), _symbols(_python(after))
    ends = {name.rpartition(".")[2] for name in new}
    gone = [name for name in old if name not in new and name.rpartition(".")[2] not in ends]
    modules = [_module_name(path) for path in before if path not in after and path.endswith(".py")]
    return (*gone, *modules)
