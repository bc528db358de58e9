"""Semantic comparison of Python files, and token-based comparison of JavaScript files.

Formatters and linters change the text of tests, but not their meaning.
"""

import ast
import io
import re
import tokenize
import warnings
from collections import Counter
from collections.abc import Iterator
from typing import Any

from tightloop.episode.proof.files import DATA

CHARACTERS = 200_000
"""Maximum length of files to compare. Longer files count as changed, because parsing them takes too long."""
_TEXT_COUNTS = re.compile(rb">>>|__doc__|PYTEST_DONT_REWRITE|getsource|getcomments|getdoc|co_firstlineno|f_lineno")
"""Text whose presence means that docstrings, comments or line numbers affect the tests."""
_DIRECTIVE = re.compile(
    r"#+\s*(?:[a-z][\w.-]*\s*:|!)|(?i:\b(?:noqa|nosec|pragma|ignore|disable|enable|skip|nosonar|noinspection)\b)"
)
# Without `# pylint: enable=x`, the `disable` above it silences more lines.
_UNDONE = re.compile(r"(?i)\b(?:enable|on)\b")
_LOADED = frozenset(DATA["loaded_modules"])
_FIXTURES = frozenset({"pytest.fixture", "pytest_asyncio.fixture", "fixture"})
_OF_UNITTEST = frozenset({"setUp", "tearDown", "setUpClass", "tearDownClass", "setUpModule", "tearDownModule"})
_PLAIN = (ast.Name, ast.Attribute, ast.Subscript, ast.Tuple, ast.List, ast.Constant, ast.BinOp, ast.BitOr, ast.Load)
_Function = ast.FunctionDef | ast.AsyncFunctionDef
_Import = ast.Import | ast.ImportFrom


def parse_python(text: str) -> ast.Module | None:
    """Parse Python source code. Return None if the source is too long or invalid."""
    if len(text) > CHARACTERS:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


_SCRIPTS = (".js", ".mjs", ".cjs", ".ts", ".mts", ".cts")
_TOKEN = re.compile(
    r"(?s)(?P<comment>//[^\n]*|/\*.*?\*/)|(?P<text>\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)*')"
    r"|(?P<template>`(?:[^`\\]|\\.)*`)|(?P<other>[\w$]+|\S)"
)
_COUNTS = re.compile(r"[@#]|(?i:disable|enable|ignore|eslint|jshint|global|skip)")
"""Comments that a checker may read."""
_JOINED = re.compile(
    r"(?m)\b(?:return|throw|yield|break|continue|async)[ \t]*(?://.*)?$|[\w$)\]\"'`}][ \t]*\n\s*[(\[`/+-]"
)
"""Line ends that may also end a statement, so that a different line break changes the meaning of the code."""


def can_compare(path: str) -> bool:
    """Return whether `is_same_code` knows the language of a file."""
    return path.endswith((".py", *_SCRIPTS))


def is_same_code(path: str, old: bytes, new: bytes) -> bool:
    """Return whether the two versions of a file differ only in their formatting."""
    if path.endswith(_SCRIPTS):
        return old == new or _is_same_script(old, new)
    return path.endswith(".py") and _is_same_python(old, new)


def _is_same_script(old: bytes, new: bytes) -> bool:
    """Return True if both files have the same tokens.

    Quotes, semicolons, trailing commas and comments are ignored.
    """
    if max(len(old), len(new)) > CHARACTERS:
        return False
    before, now = (content.decode("utf-8", "replace") for content in (old, new))
    if _JOINED.search(before) or _JOINED.search(now):
        return False
    tokens = _script_tokens(before)
    # A lone quote belongs to a regular expression, after which strings cannot be told from code.
    return tokens == _script_tokens(now) and not {'"', "'", "`"} & {*tokens}


def _script_tokens(text: str) -> list[str]:
    tokens: list[str] = []
    for match in _TOKEN.finditer(text):
        part = match[0]
        if match["comment"] and not _COUNTS.search(part):
            continue
        if match["text"] and not re.search(r"[\\\"']", part[1:-1]):
            part = f'"{part[1:-1]}"'
        if part in (")", "]", "}") and tokens and tokens[-1] == ",":
            tokens.pop()
        if part != ";":
            tokens.append(part)
    return tokens


def _is_same_python(old: bytes, new: bytes) -> bool:
    """Return True if both files have the same syntax tree.

    Formatting, comments, docstrings and the order of adjacent imports are ignored. Annotations of tests
    and fixtures are ignored, and so are unused imports of modules that the test runner always loads.
    Comments that silence a checker are compared.
    """
    if old == new:
        return True
    if max(len(old), len(new)) > CHARACTERS or _TEXT_COUNTS.search(old) or _TEXT_COUNTS.search(new):
        return False
    try:
        return not _is_silenced(old, new) and _meaning(old) == _meaning(new)
    # The parser raises MemoryError for code that is nested too deeply.
    except (SyntaxError, ValueError, RecursionError, MemoryError, tokenize.TokenError):
        return False


def _is_silenced(old: bytes, new: bytes) -> bool:
    """Return whether the new version adds or extends comments that silence a checker."""
    before, after = _directives(old), _directives(new)
    return bool(after - before) or any(_UNDONE.search(text) for _, text in before - after)


def _directives(content: bytes) -> Counter[tuple[bool, str]]:
    """Return the comments that may be directives, with the number of occurrences.

    The flag in each key is True if the comment is on a line by itself.
    """
    tokens = tokenize.tokenize(io.BytesIO(content).readline)
    comments = (token for token in tokens if token.type == tokenize.COMMENT)
    return Counter(
        (token.line.lstrip().startswith("#"), " ".join(token.string.split()))
        for token in comments
        if _DIRECTIVE.search(token.string)
    )


def _meaning(content: bytes) -> str:
    with warnings.catch_warnings():
        # The parser warns of invalid escapes in the source, on the stderr of this process.
        warnings.simplefilter("ignore")
        tree = ast.parse(content)
    tree = _Normal().visit(tree)
    tree.body = _drop_unused_imports(tree.body)
    tree.body = list(_in_order(tree.body))
    return ast.dump(tree)


class _Normal(ast.NodeTransformer):
    """Removes docstrings and unused annotations, and normalises string literals."""

    def __init__(self) -> None:
        self._in_function = False

    def visit(self, node: ast.AST) -> Any:
        outside = self._in_function
        # The annotations of a class body are evaluated, even if the class is inside a function.
        if isinstance(node, _Function | ast.ClassDef):
            self._in_function = isinstance(node, _Function)
        if isinstance(node, _Function):
            _drop_annotations(node)
        if isinstance(node, _Function | ast.ClassDef | ast.Module) and ast.get_docstring(node, clean=False) is not None:
            del node.body[0]
        result = super().visit(node)
        self._in_function = outside
        return result

    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        # `u"x"` and `"x"` are the same string.
        node.kind = None
        return node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.expr:
        self.generic_visit(node)
        # An f-string without placeholders is a plain string.
        parts = [part.value for part in node.values if isinstance(part, ast.Constant) and isinstance(part.value, str)]
        return node if len(parts) < len(node.values) else ast.Constant("".join(parts))

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.stmt:
        self.generic_visit(node)
        # Python never evaluates the annotations of local variables.
        if self._in_function and node.value is not None and node.simple:
            return ast.Assign(targets=[node.target], value=node.value)
        return node


def _drop_annotations(function: _Function) -> None:
    if not _is_read_by_name(function):
        return
    parameters = function.args
    every = [*parameters.posonlyargs, *parameters.args, *parameters.kwonlyargs, parameters.vararg, parameters.kwarg]
    arguments = [argument for argument in every if argument is not None]
    # Anything else, such as a call, may have an effect when it is evaluated.
    if all(map(_is_plain, (function.returns, *(argument.annotation for argument in arguments)))):
        function.returns = None
        for argument in arguments:
            argument.annotation = None


def _is_read_by_name(function: _Function) -> bool:
    """Return True if a function is a test or a fixture.

    A test runner only reads the argument names of these functions.
    """
    names = [
        ast.unparse(decorator.func if isinstance(decorator, ast.Call) else decorator)
        for decorator in function.decorator_list
    ]
    if not all(name in _FIXTURES or name.startswith("pytest.mark.") for name in names):
        return False
    return bool(_FIXTURES & {*names}) or function.name.startswith("test") or function.name in _OF_UNITTEST


def _is_plain(annotation: ast.expr | None) -> bool:
    return annotation is None or all(isinstance(node, _PLAIN) for node in ast.walk(annotation))


def _drop_unused_imports(body: list[ast.stmt]) -> list[ast.stmt]:
    """Remove unused imports of modules that have no side effects when they are imported."""
    single = [part for statement in body for part in _split(statement)]
    other_nodes = [node for part in single if not isinstance(part, _Import) for node in ast.walk(part)]
    # Strings count: names may occur in `__all__`, forward references and paths of mocks.
    values = (value for node in other_nodes for _, value in ast.iter_fields(node) if isinstance(value, str))
    used = frozenset(re.findall(r"\w+", " ".join(values)))
    bound = Counter(_name(part) for part in single if isinstance(part, _Import))
    loaded = _LOADED if any(map(_is_annotation, other_nodes)) else _LOADED | {"__future__"}
    return [
        part
        for part in single
        if not isinstance(part, _Import)
        or _name(part) in used
        # Imported twice, the later import may be a fallback.
        or bound[_name(part)] > 1
        or _module(part) not in loaded
        or part.names[0].name == "*"
    ]


def _is_annotation(node: ast.AST) -> bool:
    return isinstance(node, ast.AnnAssign) or any(getattr(node, name, None) for name in ("annotation", "returns"))


def _module(statement: _Import) -> str:
    return (
        statement.names[0].name
        if isinstance(statement, ast.Import)
        else "." * statement.level + (statement.module or "")
    )


def _split(statement: ast.stmt) -> list[ast.stmt]:
    if isinstance(statement, ast.Import):
        return [ast.Import(names=[alias]) for alias in statement.names]
    if isinstance(statement, ast.ImportFrom):
        return [ast.ImportFrom(statement.module, [alias], statement.level) for alias in statement.names]
    return [statement]


def _name(statement: _Import) -> str:
    alias = statement.names[0]
    return alias.asname or (alias.name if isinstance(statement, ast.ImportFrom) else alias.name.partition(".")[0])


def _in_order(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements with adjacent imports sorted.

    Imports are not sorted if a name is imported twice.
    """
    together: list[_Import] = []
    for statement in body:
        if isinstance(statement, _Import):
            together.append(statement)
        else:
            yield from _sort_imports(together)
            together = []
            yield statement
    yield from _sort_imports(together)


def _sort_imports(imports: list[_Import]) -> list[_Import]:
    sources = {(_name(statement), _source(statement)) for statement in imports}
    is_ambiguous = len({name for name, _ in sources}) < len(sources) or "*" in {name for name, _ in sources}
    return imports if is_ambiguous else sorted(imports, key=ast.dump)


def _source(statement: _Import) -> str:
    alias = statement.names[0]
    return (
        alias.name.partition(".")[0] if isinstance(statement, ast.Import) and not alias.asname else ast.dump(statement)
    )
