"""Detection of failed tests that use the code named in a goal, and of files without any tests."""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from tightloop.checks.choice import singular, words_of
from tightloop.episode.proof import FileChange, FileKind
from tightloop.episode.proof.files import Guards, is_program

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
    """Definition of a function or class in a source file."""

    name: str
    path: str
    text: str


def is_test(path: str) -> bool:
    """Return whether a file is a test or test data, judging by its name."""
    return Guards().kind_of(path, FileChange.MODIFIED) in (FileKind.TEST, FileKind.TEST_DATA)


def blocks_of(path: str, text: str) -> Iterator[Block]:
    """Yield the definitions in a file, each with all lines indented below it."""
    starts = [
        (match.start(), len(match["indent"].expandtabs(4)), next(filter(None, match.groups()[1:]), ""))
        for match in _DEFINITION.finditer(text)
    ]
    for number, (start, indent, name) in enumerate(starts):
        end = next((later for later, other, _ in starts[number + 1 :] if other <= indent), len(text))
        if name:
            yield Block(name.rpartition(".")[2], path, text[start:end])


class Sources:
    """Definitions in a project's code and tests, and the names that each of them uses."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self.texts = {path: text for path, text in texts.items() if is_program(path)}
        self.blocks = [block for path, text in sorted(self.texts.items()) for block in blocks_of(path, text)]
        self._names = [frozenset(_NAME.findall(block.text)) for block in self.blocks]
        self._tests = frozenset(path for path in self.texts if is_test(path))
        self.definitions = Counter(block.name for block in self.blocks if block.path not in self._tests)

    def named_in(self, goal: str) -> frozenset[str]:
        """Return the functions, classes and modules outside the tests that a goal names or, failing that, describes."""
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
        """Return the given names together with all definitions that use them, directly or indirectly."""
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
        """Return the definitions whose names contain a name, such as `chunked_iter` for `chunked`."""
        return frozenset(name for name in self.definitions if any(whole in name.split("_") for whole in names))

    def text_of(self, test: str) -> str:
        """Return the source of a test, given its name as printed by a runner, or "" if it is not found."""
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
        """Count the words that a test's name has in common with the path of a definition or the classes around it."""
        around = {other.name for other in self.blocks if other.path == block.path and block.text in other.text}
        return len(parts & {*around, *re.findall(r"\w+", block.path)})


def find_reaching_tests(goal: str, failed: Iterable[str], read: Callable[[], Mapping[str, str]]) -> tuple[str, ...]:
    """Return the failed tests that use the code named in a goal.

    The result is empty if that cannot be determined.

    Args:
        goal: goal in plain words.
        failed: names of the tests, as printed by their runner.
        read: returns the contents of the project's sources by path.
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

    Repairing the imports would not help, because the runner would then find no tests.

    Args:
        output: output of the check.
        failed: names of the tests, as printed by their runner.
        read: returns the contents of the project's sources by path.
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
