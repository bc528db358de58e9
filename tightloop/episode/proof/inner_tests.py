"""Tests inside product files: doctests and assertions in Python, and test modules in Rust."""

import ast
import doctest
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from tightloop.episode.proof.same_code import parse_python
from tightloop.value import shorten

LINE_CHARACTERS = 160
_Function = ast.FunctionDef | ast.AsyncFunctionDef


def lost_inner_tests(path: str, old: str, new: str, others: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """Return the assertions that were removed from the tests in a product file.

    Args:
        path: path of the file.
        old: initial text.
        new: current text, or "" if the file was deleted.
        others: current texts of all changed files. Tests may have moved to these files.
    """
    if path.endswith(".rs"):
        return tuple(_lost_rust_tests(old, new, others or {}))
    return tuple((_inner_tests(path, old) - _inner_tests(path, new)).elements())


# -- Python ------------------------------------------------------------------------------------------------


def _inner_tests(path: str, text: str) -> Counter[str]:
    tree = parse_python(text) if path.endswith(".py") else None
    texts = _docstrings(tree) if tree is not None else [text]
    parser, tests = doctest.DocTestParser(), Counter[str]()
    for documentation in texts if ">>>" in text else ():
        try:
            examples = parser.get_examples(documentation)
        except ValueError:  # inconsistent indentation
            continue
        tests.update(f">>> {' '.join(example.source.split())} gives {example.want.strip()}" for example in examples)
    if tree is not None:
        tests.update(ast.unparse(node) for node in outside_functions(tree) if isinstance(node, ast.Assert))
    return tests


def _docstrings(tree: ast.Module) -> list[str]:
    documented = (node for node in ast.walk(tree) if isinstance(node, _Function | ast.ClassDef | ast.Module))
    return [text for node in documented if (text := ast.get_docstring(node))]


def outside_functions(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a module that are outside functions and classes."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, _Function | ast.ClassDef | ast.Lambda):
            yield child
            yield from outside_functions(child)


# -- Rust --------------------------------------------------------------------------------------------------

_RUST_NOISE = re.compile(r'//[^\n]*|/\*.*?\*/|b?r(#*)".*?"\1|b?"(?:[^"\\]|\\.)*"|\'(?:[^\'\\]|\\.[^\']*)\'', re.DOTALL)
_RUST_MODULE = re.compile(r"#\[cfg\(test\)\]\s*(?:#\[[^\]]*\]\s*)*(?:pub\s+)?mod\s+\w+\s*\{")
_RUST_FUNCTION = re.compile(
    r"(?P<marks>(?:#\[(?:[^\[\]]|\[[^\]]*\])*\]\s*)*)(?:pub\s+)?(?:async\s+)?fn\s+(?P<name>\w+)\s*[^{;]*\{"
)
_RUST_TEST = re.compile(r"#\[(?:\w+::)*(?:test|rstest)\b")
_RUST_DOC_TEST = re.compile(r"(?m)^\s*//[/!] ?(.*)$")
_RUST_ASSERTION = re.compile(r"\b\w*(?:assert|panic|unreachable)\w*!\s*(?=[(\[{])")
_RUST_WAY_OUT = re.compile(r"\b(?:return|if|match|loop|while|macro_rules|catch_unwind|cfg|exit|forget|shadow)\b")
_RUST_DISABLED = re.compile(r"#\[(?:ignore|cfg|cfg_attr|should_panic)\b")
_TOKEN = re.compile(r"[A-Za-z_]\w*|\d[\w.]*|\"(?:[^\"\\]|\\.)*\"|[=!<>&|:+*/-]{2}|\S")


class _RustTest(NamedTuple):
    name: str
    marks: str
    """Rust attributes of the function, such as `#[ignore]`."""
    body: tuple[str, ...]
    """Tokens of the function's body."""
    assertions: tuple[tuple[str, ...], ...]


def _lost_rust_tests(old: str, new: str, others: Mapping[str, str]) -> Iterator[str]:
    before = list(_rust_tests(old))
    if not before:
        return
    texts = {new, *(text for path, text in others.items() if path.endswith(".rs"))}
    now = [test for text in texts for test in _rust_tests(text, everywhere=True)]
    old_names, new_names = _names(old), frozenset[str]().union(*map(_names, texts))
    gone, fresh = old_names - new_names, new_names - old_names
    available = Counter(assertion for test in now for assertion in test.assertions)
    for test in before:
        same = next((other for other in now if other.body == test.body), None)
        same = same or next((other for other in now if other.name == test.name), None)
        if same is not None and _RUST_DISABLED.findall(same.marks) != _RUST_DISABLED.findall(test.marks):
            yield shorten(f"{test.name}: {' '.join((same.marks or test.marks).split())}", LINE_CHARACTERS)
            continue
        if same is not None and same.body == test.body:
            available.subtract(test.assertions)
            continue
        for assertion in test.assertions:
            match = next((other for other in available if _is_same(assertion, other, gone, fresh)), None)
            if match is None or available[match] <= 0:
                yield shorten(f"{test.name}: {' '.join(assertion)}", LINE_CHARACTERS)
            else:
                available[match] -= 1
        if same is not None and (ways := set(_RUST_WAY_OUT.findall(" ".join(same.body))) - {*test.body}):
            yield shorten(f"{test.name}: has a new {', '.join(sorted(ways))}", LINE_CHARACTERS)


def _rust_tests(text: str, *, everywhere: bool = False) -> Iterator[_RustTest]:
    """Yield the test functions in a Rust file, and the helper functions in its test modules.

    If `everywhere` is set and the file has no test module, all functions are included. This is used for
    files in the folder `tests`.
    """
    # Braces in comments and strings do not count.
    plain = _RUST_NOISE.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)
    modules = [(match.end(), _end_of_block(plain, match.end())) for match in _RUST_MODULE.finditer(plain)]
    for match in _RUST_FUNCTION.finditer(plain):
        marks = text[match.start("marks") : match.end("marks")]
        is_inside = any(start <= match.start() < end for start, end in modules)
        if not (is_inside or _RUST_TEST.search(marks) or (everywhere and not modules)):
            continue
        start, end = match.end(), _end_of_block(plain, match.end())
        assertions = []
        for found in _RUST_ASSERTION.finditer(plain, start, end):
            stop = _end_of_block(plain, found.end() + 1)
            assertions.append(_tokens(text[found.start() : stop]))
        yield _RustTest(match["name"], marks, _tokens(text[start:end]), tuple(assertions))
    examples = [line[1] for line in _RUST_DOC_TEST.finditer(text) if _RUST_ASSERTION.search(line[1])]
    for example in examples:
        yield _RustTest(f"documentation, {example}", "", _tokens(example), (_tokens(example),))


def _end_of_block(plain: str, start: int) -> int:
    depth = 1
    for match in re.finditer(r"[(\[{]|[)\]}]", plain[start:]):
        depth += 1 if match[0] in "([{" else -1
        if depth == 0:
            return start + match.end()
    return len(plain)


def _tokens(text: str) -> tuple[str, ...]:
    bare = _RUST_NOISE.sub(lambda match: match[0] if match[0][0] != "/" else " ", text)
    tokens = _TOKEN.findall(bare)
    # A formatter adds commas at the ends of lines.
    pairs = zip(tokens, [*tokens[1:], ""], strict=True)
    return tuple(one for one, following in pairs if one != "," or following not in (")", "]", "}"))


def _names(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"[A-Za-z_]\w*", _RUST_NOISE.sub(" ", text)))


def _is_same(old: tuple[str, ...], new: tuple[str, ...], gone: frozenset[str], fresh: frozenset[str]) -> bool:
    """Return whether two assertions are the same apart from renamed symbols."""
    if len(old) != len(new):
        return False
    return all(one == other or (one in gone and other in fresh) for one, other in zip(old, new, strict=True))
