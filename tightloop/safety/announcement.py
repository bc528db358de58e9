"""Changes to tests and configuration that a goal announces."""

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from tightloop.safety.scope import files_in, fits
from tightloop.value.toml import read_toml

_BETWEEN_CHARACTERS = 60
_NAME_CHARACTERS = 7
"""Minimum length of a lower-case word to be taken for the name of a function with that name."""
_SENTENCE = re.compile(r"[.!?;:](?:\s|$)|\n")
_CLAUSE = re.compile(r"[.!?;:,](?:\s|$)|\n")
_PATTERNS = {
    name: re.compile(text, re.IGNORECASE if name in ("verbs", "forms", "tests", "adding") else 0)
    for name, text in read_toml("tightloop.safety", "announcement.toml").items()
}
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)*(?!\w)")
_TOKEN = re.compile(r"\w+(?:[.%-]\w+)*")


class RequestedChanges(NamedTuple):
    """Changes to tests and configuration that a person asked for."""

    everything: bool = False
    """True if all tests and test data may change."""
    files: tuple[str, ...] = ()
    """Individual files, as named in the request."""
    added: tuple[str, ...] = ()
    """Files to create or extend."""
    described: tuple[str, ...] = ()
    """Configuration files to create, each given as the first part of its name in lower case."""
    tests: tuple[str, ...] = ()
    """Individual tests, as named in the request."""
    form: bool = False
    """True if all tests may be restructured, as long as they keep asserting the same things."""
    goal: str = ""

    def covers(self, path: str, *, is_test: bool = True, is_new: bool = False) -> bool:
        """Return whether a change to a file was requested.

        Args:
            path: path relative to the root of the tree.
            is_test: True for tests and test data, and False for configuration.
            is_new: True if the file was added.
        """
        named = _is_among(self.files, path) or ((is_new or not is_test) and _is_among(self.added, path))
        stem = path.rpartition("/")[2].lstrip(".").partition(".")[0]
        # Languages with a class in each file name the file after it.
        named |= is_test and stem in self.tests and stem[:1].isupper()
        named |= is_new and not is_test and stem.lower() in self.described
        # What tests in other languages assert is not read.
        everything = self.everything or (self.form and not path.endswith(".py"))
        # conftest.py can change the outcome of every test, so it has to be named itself.
        return named or (everything and is_test and path.rpartition("/")[2] != "conftest.py")

    def covers_test(self, name: str) -> bool:
        """Return whether a change to a test was requested. Parameters in the test name are ignored."""
        bare = re.sub(r"\[.*\]$", "", name, flags=re.DOTALL)
        parts = re.split(r"::|[./> ]+", bare)
        return any(test == bare or test in parts[-2:] or bare.endswith(f" {test}") for test in self.tests)

    @property
    def skips_tests(self) -> bool:
        """True if the request asks to skip or disable tests."""
        return _PATTERNS["skipping"].search(self.goal) is not None

    @property
    def is_about_space(self) -> bool:
        """True if the request asks for different whitespace in the results."""
        return _PATTERNS["space"].search(self.goal) is not None and _PATTERNS["passing"].search(self.goal) is None

    @property
    def removes_something(self) -> bool:
        """True if the request asks to remove something."""
        return any(True for _ in self._removals())

    def removes(self, name: str) -> bool:
        """Return whether the request asks to remove a symbol, either by name or by describing it in words."""
        bare = name.rpartition(".")[2]
        words = [word.lower() for word in _WORD.findall(bare) if len(word) > 2]
        for sentence in self._removals():
            if re.search(rf"(?<!\w){re.escape(bare)}(?!\w)", sentence):
                return True
            said = {word.lower()[:5] for word in _WORD.findall(sentence)}
            if words and all(word[:5] in said for word in words):
                return True
        return False

    def _removals(self) -> Iterator[str]:
        for sentence in _SENTENCE.split(self.goal):
            match = _PATTERNS["removing"].search(sentence)
            if match and not _PATTERNS["not_before"].search(sentence[: match.start()]):
                yield sentence

    def names(self, name: str) -> bool:
        """Return whether the request mentions a name, as a whole word."""
        return bool(name) and re.search(rf"(?<![\w.]){re.escape(name)}(?![\w])", self.goal) is not None

    def changes(self, name: str) -> bool:
        """Return whether the request names a function to change.

        The result is False if the request mentions tests that must pass. A short word such as `add` only
        counts if it is in backquotes or followed by a parenthesis.
        """
        is_word = name.isalpha() and name.islower() and len(name) < _NAME_CHARACTERS
        marked = rf"`{name}`|(?<!\w){name}\(" if is_word else rf"(?<!\w){re.escape(name)}(?!\w)"
        return re.search(marked, self.goal) is not None and _PATTERNS["passing"].search(self.goal) is None

    def wants(self, value: str) -> bool:
        """Return whether the request mentions a value only as a desired result.

        The result is False if the value is also mentioned as something to replace. Text of several words counts as
        wanted if each of its words does.
        """
        occurrences = list(re.finditer(rf"(?<![\w]){re.escape(value)}(?![\w])", self.goal)) if value.strip() else []
        if occurrences:
            return all(self._is_wanted(match.start()) for match in occurrences)
        words = _TOKEN.findall(value)
        return len(words) > 1 and all(self.wants(word) for word in words)

    def wants_more_of(self, old: str, new: str) -> bool:
        """Return whether a change replaces the requested result with another number.

        The number that the request mentions last is the requested result, as in "10, 11, 13 -> 11.33". Text without
        this number is not justified by the request, even if the request mentions all of its values.
        """
        before, now = {*_NUMBER.findall(old)}, {*_NUMBER.findall(new)}
        last = max(map(self._last_place, now - before), default=-1)
        return any(self.wants(number) and self._last_place(number) > last for number in before - now)

    def _last_place(self, number: str) -> int:
        places = re.finditer(rf"(?<![\w.]){re.escape(number)}(?!\w|\.\d)", self.goal)
        return max((match.start() for match in places), default=-1)

    def _is_wanted(self, position: int) -> bool:
        clause = _CLAUSE.split(self.goal[:position])[-1]
        return _PATTERNS["not_wanted"].search(clause) is None


def _is_among(names: Iterable[str], path: str) -> bool:
    listed = tuple(names)
    return any(path == name or path.endswith(f"/{name}") for name in listed) or fits(listed, path)


def find_requested_changes(goal: str) -> RequestedChanges:
    """Return the changes to tests and configuration that a goal asks for.

    A sentence must have a verb and an object, such as "rewrite the tests in tests/test_a.py", "skip
    test_clock" or "update the snapshots". A sentence that names files or tests covers only those files or
    tests. A general permission, such as "update tests as needed", covers nothing.
    """
    general, before = set[str](), list[str]()
    files, added, described, tests = list[str](), list[str](), list[str](), list[str]()
    for sentence in _SENTENCE.split(goal):
        named = [name for name in files_in(sentence) if "/" in name or "." in name or name[:1].isupper()]
        known = [match[0] for match in _PATTERNS["test_name"].finditer(sentence)]
        known = [test for test in known if not any(test in name for name in named)]
        known += [quoted for quoted in re.findall(r"[\"`']([^\"`']+)[\"`']", sentence) if "test" in sentence.lower()]
        is_vague = _PATTERNS["vague"].search(sentence) is not None
        for kind, rest in _after_verbs(("verbs", "forms"), sentence):
            objects = [name for name in named if _is_object(name, rest)]
            files += objects
            named_tests = [name for name in known if _is_object(name, rest)]
            if not named_tests and _PATTERNS["pronoun"].search(rest):
                named_tests = known or before
            tests += named_tests
            # A sentence that names a test or its file permits a change of that one only.
            guarded = any(
                _PATTERNS["test_path"].search(name) or _PATTERNS["config_path"].search(name) for name in objects
            )
            if not (guarded or named_tests or is_vague) and _is_about_tests(rest):
                general.add(kind)
        files += [
            name
            for name in named
            if not _PATTERNS["test_path"].search(name) and _PATTERNS["fixing"].search(sentence[: sentence.find(name)])
        ]
        for _, rest in _after_verbs(("adding",), sentence):
            added += [name for name in named if _is_object(name, rest)]
            kinds = [match["name"] for match in _PATTERNS["described"].finditer(rest)]
            described += [name.lower() for name in kinds if _is_object(name, rest)]
        before = known or before
    return RequestedChanges(
        everything="verbs" in general,
        files=_unique(files),
        added=_unique(added),
        described=_unique(described),
        tests=_unique(tests),
        form="forms" in general,
        goal=goal,
    )


def _unique(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))


def _after_verbs(kinds: Iterable[str], sentence: str) -> Iterator[tuple[str, str]]:
    """Yield the kind of each verb in a sentence, and the text after the verb."""
    for kind in kinds:
        for verb in _PATTERNS[kind].finditer(sentence):
            if _is_word(sentence, verb) and not _PATTERNS["not_before"].search(sentence[: verb.start()]):
                yield kind, sentence[verb.end() : verb.end() + 4 * _BETWEEN_CHARACTERS]


def _is_object(name: str, rest: str) -> bool:
    stop, position = _PATTERNS["not_between"].search(rest), rest.find(name)
    return position >= 0 and (not stop or position < stop.start())


def _is_word(sentence: str, match: re.Match[str]) -> bool:
    before, after = sentence[: match.start()][-1:], sentence[match.end() :][:1]
    return not (before.isalnum() or before in {"_", "-", "/", "."}) and not (
        after.isalnum() or after in {"_", "(", "/"}
    )


def _is_about_tests(rest: str) -> bool:
    for match in _PATTERNS["tests"].finditer(rest):
        if not _is_word(rest, match) or match.start() > _BETWEEN_CHARACTERS:
            continue
        between, after = rest[: match.start()], rest[match.end() :]
        return not _PATTERNS["not_between"].search(between) and not _PATTERNS["not_after"].search(after)
    return False
