"""Reads tests without running them: what they assert, and whether they can reach who watches them."""

import ast
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tightloop.testing.claims import Claim, claims_of, lines_expecting, weakest
from tightloop.testing.copies import Pattern, copied
from tightloop.testing.lines import FunctionNode, functions_of

_MACHINERY = frozenset({
    "_exit", "settrace", "gettrace", "setprofile", "meta_path", "path_hooks", "_getframe", "__code__", "co_code",
    "getsource", "getsourcelines", "getsourcefile", "get_objects", "get_referrers", "_pytest", "tightloop_gate",
    "tightloop_session", "tightloop_watching", "tightloop_mutating", "tightloop_recording",
    "PYTEST_CURRENT_TEST",
})  # fmt: skip
"""What a test would need to see that it is watched, or to tell apart what it tests from what stands in the file."""


class Reading(NamedTuple):
    """What can be seen of a test without running it."""

    asserts: bool
    """There is an assertion in the test itself."""
    weak: str = ""
    """Why none of its assertions says what the code does; then a mutant that it kills proves nothing."""
    names_only: bool = False
    """It says only that names are there: then that it fails before the change proves nothing either."""
    expecting: frozenset[int] = frozenset()
    """Lines on which it expects a certain exception."""
    refused: str = ""
    """Why it does not count whatever it does."""


class Known(NamedTuple):
    """What is known of the code under test."""

    patterns: tuple[Pattern, ...] = ()
    """Of the functions that changed."""
    plain: frozenset[str] = frozenset()
    """Names of functions that return something else than True or False, and of classes."""
    names: frozenset[str] = frozenset()
    """Names of all functions and classes of the changed files."""


def names_of(tree: ast.Module) -> frozenset[str]:
    """Return the names of all functions and classes of a module."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, kinds))


def read_tests(path: str, source: str, known: Known) -> dict[str, Reading]:
    """Return what is seen of each test of a file, by node id without parameters; a helper counts as its callers' part.

    Raises:
        SyntaxError: this Python cannot read the file.
    """
    tree = ast.parse(source)
    tests = dict(_tests(path, tree.body))
    helpers = {node.name: node for node in functions_of(tree) if node not in tests.values()}
    rest = [node for node in tree.body if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)]
    everywhere = _machinery([*rest, *helpers.values()])
    return {name: _read(test, helpers, everywhere, known) for name, test in tests.items()}


def _read(test: FunctionNode, helpers: dict[str, FunctionNode], everywhere: str, known: Known) -> Reading:
    used = _used(test, helpers)
    claims = [claim for part in (test, *used) for claim in claims_of(part, known.plain)]
    reading = Reading(
        bool(claims),
        weak=str(weakest(set(claims))),
        names_only=bool(claims) and set(claims) <= {Claim.NAMED, Claim.SURE},
        expecting=frozenset(lines_expecting(test)),
    )
    if name := everywhere or _machinery([test]):
        return reading._replace(refused=f"It names `{name}`: a test that can see how it is run does not count.")
    if repeated := copied(test, used, known.patterns, known.names | helpers.keys()):
        said = f"It repeats the code of `{repeated}` and compares that with itself: write down the expected result."
        return reading._replace(refused=said)
    return reading


def _tests(path: str, body: Sequence[ast.stmt]) -> Iterator[tuple[str, FunctionNode]]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test"):
            yield f"{path}::{node.name}", node
        elif isinstance(node, ast.ClassDef):
            yield from _tests(f"{path}::{node.name}", node.body)


def _used(test: FunctionNode, helpers: dict[str, FunctionNode]) -> list[FunctionNode]:
    """Return the helpers that a test names, and those that they name."""
    found: dict[str, FunctionNode] = {}
    waiting: list[FunctionNode] = [test]
    while waiting:
        for node in ast.walk(waiting.pop()):
            name = node.id if isinstance(node, ast.Name) else getattr(node, "attr", getattr(node, "arg", ""))
            if isinstance(name, str) and name in helpers and name not in found:
                found[name] = helpers[name]
                waiting.append(helpers[name])
    return list(found.values())


def _machinery(nodes: Sequence[ast.AST]) -> str:
    for top in nodes:
        for node in ast.walk(top):
            words = [getattr(node, name, "") for name in ("id", "attr", "name", "module", "value")]
            for word in words:
                if isinstance(word, str) and (not _MACHINERY.isdisjoint(word.split(".")) or word.startswith("/proc")):
                    return word
    return ""
