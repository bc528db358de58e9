"""What changed between two trees as the gate sees it: sources and their changed lines, tests, and what tests need."""

import ast
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from activities.proof.port import Files, TreeFile
from activities.proof.trees import HeldTrees
from tightloop.episode.proof import FileChange, FileKind
from tightloop.episode.proof.files import Guards
from tightloop.testing.claims import functions_with_values
from tightloop.testing.copies import Pattern, patterns_of
from tightloop.testing.lines import changed_lines, touched_bodies
from tightloop.testing.mutants import Mutant, mutants_of
from tightloop.testing.reading import Known, Reading, names_of, read_tests

SOURCE_BYTES = 1_000_000
"""A larger file is not read: it was not written by hand."""
HEAVY = {
    "hypothesis": "hypothesis",
    "text(": "hypothesis.internal.charmap",
    "characters(": "hypothesis.internal.charmap",
}
"""What takes long to load, by words of the tests that use it."""
_LINK = 0o120000
_OF_TESTS = (FileKind.TEST, FileKind.TEST_DATA)


@dataclass
class Change:
    """The changed sources, and what was read of the tests."""

    before: Files
    """The tree before the change, with the tests of the tree after it and with what they need."""
    after: Files
    test_files: tuple[str, ...]
    """All Python files of tests."""
    lines: dict[str, frozenset[int]] = field(default_factory=dict)
    bodies: dict[str, frozenset[int]] = field(default_factory=dict)
    mutants: list[Mutant] = field(default_factory=list)
    readings: dict[str, Reading] = field(default_factory=dict)
    uses: list[str] = field(default_factory=list)
    """Modules of libraries that tests use and that take long to load."""
    unread: list[str] = field(default_factory=list)
    """Files that the Python of the worker cannot read."""


def change_of(trees: HeldTrees, before: str, after: str, tests: Sequence[str]) -> Change:
    """Compare two trees and read the tests."""
    old, new = trees.files(before), trees.files(after)
    of_tests = {path for path in new if _is_of_tests(path, tests)}
    earlier = {path: file for path, file in old.items() if not _is_of_tests(path, tests)}
    earlier |= {path: new[path] for path in of_tests}
    change = Change(earlier, new, tuple(sorted(path for path in of_tests if path.endswith(".py"))))
    patterns: list[Pattern] = []
    plain, names = frozenset[str](), frozenset[str]()
    for path in sorted(new):
        if not path.endswith(".py") or path in of_tests or new[path] == old.get(path):
            continue
        text, was = _text(trees, new[path]), _text(trees, old.get(path))
        try:
            assert text is not None
            tree = ast.parse(text)
        except (SyntaxError, ValueError, RecursionError, AssertionError):
            change.unread.append(path)
            continue
        found = changed_lines(was or "", text)
        bodies = touched_bodies(tree, found)
        change.lines[path], change.bodies[path] = found.lines, bodies
        change.mutants += mutants_of(path, text, found.lines)
        patterns += patterns_of(tree, bodies)
        plain |= functions_with_values(tree)
        names |= names_of(tree)
    change.readings = _readings(trees, change, tests, Known(tuple(patterns), plain, names))
    return change


def _readings(trees: HeldTrees, change: Change, tests: Iterable[str], known: Known) -> dict[str, Reading]:
    readings: dict[str, Reading] = {}
    for path in tests:
        text = _text(trees, change.after.get(path))
        change.uses += [module for word, module in HEAVY.items() if word in (text or "")]
        try:
            readings |= read_tests(path, text or "", known)
        except (SyntaxError, ValueError, RecursionError):
            # Whoever collects it will say so.
            continue
    return readings


def _is_of_tests(path: str, tests: Sequence[str]) -> bool:
    # Configuration stays as it was before the change, but for what pytest reads beside the tests.
    is_setup = path.rpartition("/")[2] == "conftest.py"
    return path in tests or is_setup or Guards().kind_of(path, FileChange.MODIFIED) in _OF_TESTS


def _text(trees: HeldTrees, file: TreeFile | None) -> str | None:
    if file is None or file.mode == _LINK:
        return None
    content = trees.read((file.blob,), SOURCE_BYTES).get(file.blob)
    try:
        # As Python counts lines and bytes; a mark of the byte order would move the first line.
        return None if content is None or content.startswith(b"\xef\xbb\xbf") else content.decode()
    except UnicodeDecodeError:
        return None


def shown_path(path: str) -> str:
    """Return a path as it can be written as text."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")
