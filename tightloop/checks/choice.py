"""Selects the checks that decide whether work is done, based on trial runs, the goal and the code it names."""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from tightloop.checks.commands import CheckKind, FoundCheck
from tightloop.episode.check import Check
from tightloop.episode.failure import explain_output
from tightloop.episode.proof import FileChange, FileKind
from tightloop.episode.proof.files import Guards, is_program
from tightloop.value import Value, shorten
from tightloop.value.toml import read_toml
from tightloop.wording import format_count, span

FOUND_TIMEOUT_S = 1_800.0
"""Time limit in seconds for a check that was found in the project's files."""
SENTENCES_LIMIT = 12
NOT_USED_SHOWN = 8
CAUSE_CHARACTERS = 120
_NO_NETWORK = re.compile(
    r"Network is unreachable|Temporary failure in name resolution|Could not resolve host|ENOTFOUND|EAI_AGAIN|"
    r"ENETUNREACH|NameResolutionError|Name or service not known|no such host|dns error|"
    r"Failed to establish a new connection"
)
_NO_MODULE = re.compile(r"^\S*python\S*: No module named ['\"]?([\w.]+)", re.MULTILINE)
_NO_COMMAND = re.compile(
    r"^(?:\S+: )*(?:line )?(?:\d+: )*(?P<shell>[\w./@-]+): (?:command )?not found|"
    r"^make(?:\[\d+\])?: (?P<make>\S+): No such file or directory",
    re.MULTILINE,
)
_NO_TESTS = re.compile(r"^Ran 0 tests in ", re.MULTILINE)
_PYTEST_ENDS = {
    3: "pytest had an internal error",
    4: "pytest does not accept the options of the command",
    5: "there are no tests",
}
_WORD = re.compile(r"[A-Z]?[a-z]{2,}|[A-Z]{2,}(?![a-z])|\d{2,}")
_DATA = read_toml("tightloop.checks", "commands.toml")["goal"]
_COMMON, _ABOUT_CHECKS = frozenset(_DATA["common"]), frozenset(_DATA["about_checks"])


class TriedCheck(Value):
    """The result of running a check once in a temporary checkout of the original tree."""

    check: FoundCheck
    passed: bool = False
    exit_code: int | None = None
    duration_s: float = 0.0
    failed_tests: tuple[str, ...] = ()
    """Tests that failed. Empty if the runner does not name them."""
    reached: tuple[str, ...] = ()
    """Failed tests that use the code named in the goal. Empty if they cannot be determined."""
    tail: str = ""
    """Last part of the check's output."""
    not_used: str = ""
    """Reason why the check cannot be used to decide whether work is done."""


class ChosenChecks(Value):
    """The checks chosen as the definition of done, with an explanation of the choice."""

    checks: tuple[Check, ...] = ()
    sentences: tuple[str, ...] = ()
    """Explanation for people: the chosen checks with their source files, and the unused ones with the reasons."""


def unusable(command: str, exit_code: int | None, output: str, changed: Iterable[str], failed: tuple[str, ...]) -> str:
    """Return the reason why a check cannot be part of the definition of done.

    Return "" if the check is usable.

    Args:
        command: command of the check.
        exit_code: exit code, or None if the check was stopped at its time limit.
        output: output of the check.
        changed: tracked files that the check changed.
        failed: tests that failed.
    """
    if exit_code is None:
        return "it did not finish in time"
    if files := sorted(changed):
        return f"it changes tracked files: {shorten(', '.join(files), 100)}"
    # Before Python 3.12, unittest exits with 0 if it finds no tests.
    if "unittest" in command and _NO_TESTS.search(output):
        return _PYTEST_ENDS[5]
    if exit_code == 0:
        return ""
    if match := _NO_MODULE.search(output):
        return f"{match[1]} is not installed"
    if exit_code in (126, 127):
        match = _NO_COMMAND.search(output)
        return f"{_missing(match) if match else command.split()[0]} is not installed"
    if not failed and "pytest" in command and exit_code in _PYTEST_ENDS:
        lines = [line for line in output.splitlines() if "error: " in line or line.startswith("E  ")]
        return f"{_PYTEST_ENDS[exit_code]}{f': {shorten(lines[-1].strip(), 100)}' if lines else ''}"
    if not failed and _NO_NETWORK.search(output):
        return "it needs the network"
    # Make and npm report a missing program with an exit status of their own.
    if not failed and (match := _NO_COMMAND.search(output)):
        return f"{_missing(match)} is not installed"
    return ""


def _missing(match: re.Match[str]) -> str:
    return match["shell"] or match["make"]


def tests_of_goal(goal: str, tried: TriedCheck) -> tuple[str, ...] | None:
    """Return the failed tests that the goal refers to, or None if it refers to the whole check.

    If the goal names code, return the tests that use this code. If there are none, return the tests whose
    name or file shares a word with the goal. Tests in the same file are selected together.

    The goal refers to the whole check if it mentions nothing but the check, by its command, its program or
    a name such as `tests` or `lint`, or if it names nothing specific ("fix the bug").
    """
    words = words_of(goal)
    if not words:
        return None
    name = tried.check.name.lower()
    # `ruff` for `ruff check`.
    own = {name, name.partition(" ")[0], tried.check.run.lower(), tried.check.kind.value}
    plain = {word.rstrip("s") for word in re.findall(r"[a-z][\w-]{3,}", goal.lower())} - {"make", "python", "with"}
    # "Get the tests green" and "fix the lint errors", but not "fix the test of dates", which names a test.
    if tried.check.run.lower() in goal.lower():
        return None
    if plain & {name.rstrip("s") for name in own} and not (
        words - words_of(" ".join(own)) - words_of(" ".join(_ABOUT_CHECKS))
    ):
        return None
    if tried.reached:
        return tried.reached
    named = {test for test in tried.failed_tests if words & words_of(test) or _shares_stem(words, words_of(test))}
    files = {test.partition("::")[0] for test in named if "::" in test}
    return tuple(test for test in tried.failed_tests if test in named or test.partition("::")[0] in files)


def words_of(text: str) -> frozenset[str]:
    """Return the words in a text that can identify a subject. Generic words such as `fix` are dropped."""
    return frozenset(singular(word) for word in {word.lower() for word in _WORD.findall(text)} - _COMMON)


def singular(word: str) -> str:
    """Strip the plural "s" from a word, so that "fee" and "fees" are treated as the same word."""
    return word[:-1] if word.endswith("s") and not word.endswith("ss") else word


def _shares_stem(left: frozenset[str], right: frozenset[str]) -> bool:
    stems = {word[:5] for word in left if len(word) >= 5}
    return bool(stems & {word[:5] for word in right if len(word) >= 5})


def is_decisive(trial: TriedCheck) -> bool:
    """Return whether a check can detect a regression.

    This is possible if the check passes, or if it reports the names of its failing tests.
    """
    return not trial.not_used and (trial.passed or bool(trial.failed_tests))


def choose_checks(tried: Iterable[TriedCheck], goal: str) -> ChosenChecks:
    """Choose the checks that define when a goal is done.

    A check that passes now must keep passing. A failing check must pass in the end if the goal refers
    to it. Any other failing check must not get worse: tests that pass now must not fail later.

    A failing check that does not name its failed tests is left out, because its exit status cannot show a
    regression. If the check runs the project's only tests, it is kept and must pass in the end.
    """
    tried = tuple(tried)
    has_tests = any(is_decisive(trial) and trial.check.kind is CheckKind.TESTS for trial in tried)
    checks: list[Check] = []
    used: dict[str, list[str]] = {}
    left_out: list[str] = []
    for trial in tried:
        if trial.not_used:
            left_out.append(f"Not used: {shorten(trial.check.run, 100)} ({trial.check.source}): {trial.not_used}.")
            continue
        state, known = _state_of(trial, goal)
        if known is None and not has_tests and trial.check.kind is CheckKind.TESTS:
            has_tests, state, known = True, f"fails with exit code {trial.exit_code}, to be fixed", ()
        if known is None:
            left_out.append(f"Not used: {shorten(trial.check.run, 100)} ({trial.check.source}): {state}.")
            continue
        name = trial.check.name if trial.check.name.startswith("gate:") else ""
        checks.append(Check(run=trial.check.run, name=name, timeout_s=FOUND_TIMEOUT_S, known_failures=known))
        took = span(trial.duration_s) if trial.duration_s >= 1 else "under 1 s"
        used.setdefault(trial.check.source, []).append(f"{shorten(trial.check.run, 120)} ({took}, {state})")
    sentences = [f"Checks from {source}: {', '.join(texts)}." for source, texts in used.items()]
    if sentences:
        sentences[-1] += " To use other checks, pass --done."
    more = len(left_out) - NOT_USED_SHOWN
    left_out = [*left_out[:NOT_USED_SHOWN], *([f"{format_count(more, 'more check')} not used."] if more > 0 else [])]
    return ChosenChecks(checks=tuple(checks), sentences=(*sentences[: SENTENCES_LIMIT - len(left_out)], *left_out))


def _state_of(trial: TriedCheck, goal: str) -> tuple[str, tuple[str, ...] | None]:
    """Describe a check's state, and return the failures that are allowed to remain.

    The failures are None if the check is left out.
    """
    if trial.passed:
        return "passes", ()
    wanted = tests_of_goal(goal, trial)
    count = format_count(len(trial.failed_tests), "test")
    if wanted is None:
        return f"fails: {count} to fix" if trial.failed_tests else "fails, to be fixed", ()
    if not is_decisive(trial):
        cause = explain_output(trial.tail, CAUSE_CHARACTERS).partition("\n")[0]
        names = f"without naming any tests{cause and f': {cause}'}"
        return f"it already fails with exit code {trial.exit_code}, {names}", None
    rest = tuple(test for test in trial.failed_tests if test not in wanted)
    if not rest:
        return f"fails: {count} to fix", ()
    if not wanted:
        return f"fails: {count} that may keep failing", rest
    return f"fails: {format_count(len(wanted), 'test')} to fix, {len(rest)} may keep failing", rest


def no_checks_message(sentences: Iterable[str]) -> str:
    """Return the error message for a project without usable checks.

    `sentences` explain why the checks that were found cannot be used.
    """
    return " ".join(("none of the project's checks can run here. Specify one: --done 'pytest -q'.", *sentences))


CALLS = 12
"""Maximum number of calls between a test and the code named in the goal."""
NAMED_LIMIT = 8
"""Maximum number of functions that a goal can describe without naming them."""
_AMBIGUOUS = 6
"""Number of definitions from which on a name is ambiguous, because a use of it does not show which one is meant."""
_DEFINITION = re.compile(
    r"^(?P<indent>[ \t]*)(?:(?:export|default|async|pub(?:\(\w+\))?|static|public|private|abstract)[ \t]+)*"
    r"(?:(?:def|class|function\*?|fn|struct|interface)[ \t]+(?P<plain>\w+)|"
    r"func[ \t]+(?:\([^)\n]*\)[ \t]*)?(?P<go>\w+)|"
    r"(?:const|let|var)[ \t]+(?P<bound>\w+)[ \t]*=[ \t]*(?:async[ \t]+)?(?:function|\(|\w+[ \t]*=>)|"
    r"(?:module\.)?exports(?:\.(?P<exported>\w+))?[ \t]*=[ \t]*(?:async[ \t]+)?function[ \t]*(?P<inner>\w*)|"
    r"(?P<alias>\w+(?:\.\w+)+)[ \t]*=[ \t]*(?:async[ \t]+)?function)",
    re.MULTILINE,
)
_NOT_IMPORTED = re.compile(r"Interrupted: \d+ errors? during collection|\(unittest\.loader\._FailedTest\b")
_PYTHON_TEST = re.compile(
    r"^[ \t]*(?:(?:async[ \t]+)?def[ \t]+test|class[ \t]+(?:\w*Test|\w+\([^)]*Test)|test\w*[ \t]*=|>>> )|"
    r"\bimport[ \t]+(?:\*|\(?.*\b[tT]est)|\bscenarios\(",
    re.MULTILINE,
)
_NAME = re.compile(r"[A-Za-z_]\w*")
_MODULE_WORDS = re.compile(r"[\w.]+")


class Block(NamedTuple):
    """A function or class definition in a source file."""

    name: str
    path: str
    text: str


def is_test(path: str) -> bool:
    """Return whether a file is a test or test data, based on its name."""
    return Guards().kind_of(path, FileChange.MODIFIED) in (FileKind.TEST, FileKind.TEST_DATA)


def blocks_of(path: str, text: str) -> Iterator[Block]:
    """Yield the definitions in a file, including all lines indented below them."""
    starts = [
        (match.start(), len(match["indent"].expandtabs(4)), next(filter(None, match.groups()[1:]), ""))
        for match in _DEFINITION.finditer(text)
    ]
    for number, (start, indent, name) in enumerate(starts):
        end = next((later for later, other, _ in starts[number + 1 :] if other <= indent), len(text))
        if name:
            yield Block(name.rpartition(".")[2], path, text[start:end])


class Sources:
    """The definitions in a project's code and tests, with the names that each definition uses."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self.texts = {path: text for path, text in texts.items() if is_program(path)}
        self.blocks = [block for path, text in sorted(self.texts.items()) for block in blocks_of(path, text)]
        self._names = [frozenset(_NAME.findall(block.text)) for block in self.blocks]
        self._tests = frozenset(path for path in self.texts if is_test(path))
        self.definitions = Counter(block.name for block in self.blocks if block.path not in self._tests)

    def named_in(self, goal: str) -> frozenset[str]:
        """Return the functions, classes and modules that a goal names, excluding tests.

        If the goal names none, return the definitions that it describes.
        """
        modules = defaultdict[str, set[str]](set)
        for block in self.blocks:
            if block.path not in self._tests:
                modules[block.path.rpartition("/")[2].partition(".")[0].lower()].add(block.name)
        named = set[str]()
        wanted = words_of(goal)
        for word in _MODULE_WORDS.findall(goal):
            for part in word.split("."):
                # A plain word, such as `next`, may mean something other than the function with this name.
                if part in self.definitions and (part.lower() in wanted or not part.isalpha() or not part.islower()):
                    named.add(part)
                for stem in {part.lower(), singular(part.lower())} & modules.keys():
                    if part.lower() in wanted or singular(part.lower()) in wanted:
                        named |= modules[stem]
        return frozenset(named) or self._described_in(wanted)

    def _described_in(self, words: frozenset[str]) -> frozenset[str]:
        scores = Counter[str]()
        for block, names in zip(self.blocks, self._names, strict=True):
            if block.path not in self._tests:
                used = {singular(part) for name in names for part in re.findall(r"[a-z]+|[A-Z][a-z]*", name)}
                stems = {part[:5].lower() for part in used if len(part) >= 4}
                if score := sum(word[:5] in stems for word in words):
                    scores[block.name] = max(scores[block.name], score)
        best = max(scores.values(), default=0)
        described = frozenset(name for name, score in scores.items() if score == best)
        return described if len(described) <= NAMED_LIMIT else frozenset()

    def callers_of(self, names: frozenset[str]) -> frozenset[str]:
        """Return the given names together with the names of their direct and indirect callers."""
        reached, new = set(names), set(names)
        for _ in range(CALLS):
            new = {
                block.name
                for block, used in zip(self.blocks, self._names, strict=True)
                if block.name not in reached and block.path not in self._tests and not used.isdisjoint(new)
            }
            new = {name for name in new if not name.startswith("__") and self.definitions[name] < _AMBIGUOUS}
            if not new:
                break
            reached |= new
        return frozenset(reached)

    def parts_of(self, names: frozenset[str]) -> frozenset[str]:
        """Return the definitions whose names contain one of the given names as a word.

        For example, `chunked` matches `chunked_iter`.
        """
        return frozenset(name for name in self.definitions if any(whole in name.split("_") for whole in names))

    def text_of(self, test: str) -> str:
        """Return the source of a test, or "" if it is not found.

        `test` is the name that the test runner prints.
        """
        # In mocha, jest and TAP, the title of a test is a string in a file.
        if " " in test and "(" not in test and "::" not in test:
            return next((text for path, text in self.texts.items() if path in self._tests and test in text), "")
        parts = re.findall(r"\w+", re.sub(r"\[.*\]\s*$", "", test, flags=re.DOTALL))
        path = test.partition("::")[0]
        for name in reversed(parts):
            if blocks := [block for block in self.blocks if block.name == name and self._may_hold(block, path)]:
                return max(blocks, key=lambda block: self._shared(block, set(parts))).text
        return self.texts.get(path, "")

    def _may_hold(self, block: Block, path: str) -> bool:
        return block.path == path if path in self.texts else block.path in self._tests

    def _shared(self, block: Block, parts: set[str]) -> int:
        """Count the words of a test name that occur in a definition's path or its enclosing classes."""
        around = {other.name for other in self.blocks if other.path == block.path and block.text in other.text}
        return len(parts & {*around, *re.findall(r"\w+", block.path)})


def find_reaching_tests(goal: str, failed: Iterable[str], read: Callable[[], Mapping[str, str]]) -> tuple[str, ...]:
    """Return the failed tests that use the code named in a goal.

    Return an empty tuple if this cannot be determined.

    Args:
        goal: goal in plain words.
        failed: names of the tests, as printed by the test runner.
        read: function that returns the contents of the project's sources by path.
    """
    failed = tuple(failed)
    if not failed or not words_of(goal):
        return ()
    sources = Sources(read())
    names = sources.named_in(goal)
    if not names:
        return ()
    users = sources.callers_of(names) | sources.parts_of(names)
    reached = {test: users.intersection(_NAME.findall(sources.text_of(test))) for test in failed}
    if not any(reached.values()):
        return ()
    # A test that a loop generates has no source of its own, so its name decides.
    words = words_of(goal)
    return tuple(test for test in failed if reached[test] or (not sources.text_of(test) and words & words_of(test)))


def finds_no_tests(output: str, failed: Iterable[str], read: Callable[[], Mapping[str, str]]) -> bool:
    """Return whether pytest or unittest failed to import scripts that contain no tests.

    Fixing the imports would not help, because the runner would then find no tests.

    Args:
        output: output of the check.
        failed: names of the tests, as printed by the test runner.
        read: function that returns the contents of the project's sources by path.
    """
    failed = tuple(failed)
    if not _NOT_IMPORTED.search(output) or not all(
        "_FailedTest" in name or not re.search(r"::|\(", name) for name in failed
    ):
        return False
    texts = {
        path: text
        for path, text in read().items()
        if path.endswith(".py") and (is_test(path) or f"/{path}".endswith(tuple(f"/{name}" for name in failed)))
    }
    return not any(map(_PYTHON_TEST.search, texts.values()))
