"""Ways in which a source can weaken checks: suppressions, swallowed errors, overloaded operators, broken files."""

import ast
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from tightloop.episode.proof.assertions import Claim, read_module
from tightloop.episode.proof.files import DATA
from tightloop.episode.proof.same_code import CHARACTERS, parse_python

_SUPPRESSIONS = {name: re.compile(text) for name, text in DATA["suppressions"].items()}
_COMPARISONS = frozenset({"__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__"})
_BUILTINS = frozenset(
    ["int", "float", "complex", "str", "bytes", "bytearray", "list", "tuple", "dict", "set", "frozenset", "bool"]
)
_RUBY_CLASS = re.compile(
    r"(?m)^(?P<indent>[ \t]*)(?:class[ \t]+(?:\w+[ \t]*<[ \t]*(?:::)?)?|refine[ \t]+)"
    r"(?:String|Array|Hash|Integer|Float|Numeric|Symbol|Set|Range|NilClass|TrueClass|FalseClass|Object|BasicObject)\b"
    r"(?![ \t]*<)"
)
_RUBY_COMPARISON = re.compile(r"^\s*(?:def\s+|alias(?:_method)?\s+:?)(?:===?|!=|eql\?|equal\?|<=>|=~)(?:\W|$)")
_BROAD = frozenset({"", "Exception", "BaseException"})
_SOURCE = re.compile(r"\.(?:[cm]?[jt]sx?|go|rs|c|cc|cpp|h|java|rb|php|sh)$")
_COMMENT = re.compile(r"^\s*(?:#|//|/\*|\*|--|<!--)")
_NEWER_SYNTAX = re.compile(
    r"^\s*type\s+\w+|^\s*(?:async\s+)?(?:def|class)\s+\w+\[|\bexcept\s+\w[\w.]*,|(?<!\w)t[\"']|\bf[\"']", re.MULTILINE
)
"""Syntax that this process's Python may not support. Files that contain it are not considered broken."""
_Function = ast.FunctionDef | ast.AsyncFunctionDef


class Weakening(NamedTuple):
    """Lines that weaken the checks, grouped by kind. Each line has the form `path:line: text`."""

    operators: tuple[str, ...] = ()
    """Comparisons that a new subclass of a builtin type overloads, and values that equal anything."""
    swallowed: tuple[str, ...] = ()
    broken: tuple[str, ...] = ()


def find_weakening(before: Mapping[str, str], after: Mapping[str, str]) -> Weakening:
    """Find the lines in changed sources that weaken the checks.

    Both arguments contain the text of changed files that are not tests.
    """
    operators, swallowed, broken = list[str](), list[str](), list[str]()
    defined = {name for text in after.values() for name in re.findall(r"(?:def|class)\s+(\w+)", text)}
    for path, text in after.items():
        old = before.get(path)
        if old is not None and (reason := _broken(path, old, text, defined)):
            broken.append(f"{path}: {reason}")
        if path.endswith(".rb"):
            operators += (f"{path}:{line}" for line in _ruby_overloads(old or "", text))
        if not path.endswith(".py") or (tree := parse_python(text)) is None:
            continue
        old_tree = parse_python(old or "") or ast.Module([], [])
        lines = text.splitlines()

        def quote(number: int, path: str = path, lines: list[str] = lines) -> str:
            return f"{path}:{number}: {lines[number - 1].strip()}"

        operators += map(quote, _overloads(old_tree, tree))
        swallowed += map(quote, _swallows(old_tree, tree))
    return Weakening(tuple(operators), tuple(swallowed), tuple(broken))


def _broken(path: str, old: str, new: str, defined: Collection[str]) -> str:
    """Describe how a source file lost its content, or return "" if nothing was lost.

    `defined` contains the names that the changed files now define.
    """
    if path.endswith((".py", ".pyi")):
        tree = parse_python(old)
        if tree is None:
            return ""
        if parse_python(new) is None and len(new) <= CHARACTERS:
            return "" if _NEWER_SYNTAX.search(new) else "can no longer be parsed"
        names = {node.name for node in tree.body if isinstance(node, _Function | ast.ClassDef)}
        # What moved to another file is not lost.
        is_empty = not _code(new) and bool(names - set(defined))
    else:
        is_empty = not _code(new) and len(_code(old)) > 2 and _SOURCE.search(path) is not None
    return "was emptied" if is_empty else ""


def _code(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip() and not _COMMENT.match(line) and line.strip() != "pass"]


def _classes(tree: ast.Module) -> dict[str, ast.ClassDef]:
    return {node.name: node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}


def _overloads(old: ast.Module, new: ast.Module) -> Iterator[int]:
    """Yield the line numbers of code that makes comparisons unreliable.

    Such code overloads a comparison of a builtin type, or adds a value that is equal to everything, such
    as `unittest.mock.ANY`.
    """
    before = _classes(old)
    for name, node in _classes(new).items():
        bases = {ast.unparse(base).rpartition(".")[2] for base in node.bases}
        for method in node.body if name not in before and bases & _BUILTINS else ():
            names = [method.name] if isinstance(method, _Function) else _targets(method)
            if not _COMPARISONS.isdisjoint(names):
                yield method.lineno
    known = {ast.unparse(node) for node in ast.walk(old) if _equals_anything(node)}
    for part in ast.walk(new):
        if isinstance(part, ast.stmt | ast.expr) and _equals_anything(part) and ast.unparse(part) not in known:
            yield part.lineno


def _ruby_overloads(old: str, new: str) -> Iterator[str]:
    """Yield the added Ruby lines that overload comparisons of builtin types or their subclasses.

    Each line has the form `line: text`.
    """
    old_lines = set(old.splitlines())
    for head in _RUBY_CLASS.finditer(new):
        body = new[head.start() :].partition(f"\n{head['indent']}end")[0]
        first = new.count("\n", 0, head.start()) + 1
        for number, line in enumerate(body.splitlines(), start=first):
            if _RUBY_COMPARISON.match(line) and line not in old_lines:
                yield f"{number}: {line.strip()}"


def _equals_anything(node: ast.AST) -> bool:
    match node:
        case ast.ImportFrom(module="unittest.mock", names=aliases):
            return any(alias.name == "ANY" for alias in aliases)
        case ast.Attribute(attr="ANY", value=ast.Name(id="mock") | ast.Attribute(attr="mock")):
            return True
        case ast.Call(func=ast.Name(id="type"), args=[_, _, ast.Dict(keys=keys)]):
            return any(isinstance(key, ast.Constant) and key.value in _COMPARISONS for key in keys)
    return False


def _targets(statement: ast.stmt) -> list[str]:
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _swallows(old: ast.Module, new: ast.Module) -> Iterator[int]:
    """Yield the line numbers of new exception handlers that hide errors in existing code."""
    before = Counter(ast.unparse(node) for node in ast.walk(old) if isinstance(node, ast.stmt))
    # `except:` that becomes `except Exception:` ignores no more than it did.
    ignored = {_text(block) for block in _blocks(old) if _ignoring_lines(block)}
    for node in _blocks(new):
        handlers = _ignoring_lines(node)
        if not handlers or _text(node) in ignored:
            continue
        wrapped = [ast.unparse(part) for part in node.body if not isinstance(part, ast.Return | ast.Pass)]
        # Imports of optional modules are wrapped all the time.
        is_import = all(isinstance(part, ast.Import | ast.ImportFrom) for part in node.body)
        if wrapped and not is_import and ast.unparse(node) not in before and all(map(before.get, wrapped)):
            yield from handlers


def _blocks(tree: ast.Module) -> Iterator[ast.Try | ast.With]:
    yield from (node for node in ast.walk(tree) if isinstance(node, ast.Try | ast.With))


def _ignoring_lines(block: ast.Try | ast.With) -> list[int]:
    """Return the line numbers of handlers and context managers that ignore any error."""
    if isinstance(block, ast.Try):
        return [handler.lineno for handler in block.handlers if _ignores(handler)]
    return [block.lineno] if any(map(_suppresses, block.items)) else []


def _text(block: ast.Try | ast.With) -> str:
    return "\n".join(map(ast.unparse, block.body))


def _ignores(handler: ast.ExceptHandler) -> bool:
    kind = ast.unparse(handler.type) if handler.type else ""
    return kind in _BROAD and all(
        isinstance(part, ast.Pass | ast.Continue)
        or (isinstance(part, ast.Return | ast.Expr) and isinstance(part.value, ast.Constant | None))
        for part in handler.body
    )


def _suppresses(item: ast.withitem) -> bool:
    call = item.context_expr
    return (
        isinstance(call, ast.Call)
        and ast.unparse(call.func).rpartition(".")[2] == "suppress"
        and any(ast.unparse(argument) in _BROAD for argument in call.args)
    )


# -- suppressions ---------------------------------------------------------------------------------------------


class Suppressions(NamedTuple):
    """The suppressions that a change added, and the changed files without these suppressions."""

    files: Mapping[str, str | None] = {}
    """Texts of the changed files without the new suppressions. None stands for a file that did not exist before."""
    lines: tuple[str, ...] = ()
    """All new suppressions, as `path:line: text`."""
    blanket: tuple[str, ...] = ()
    """New suppressions that do not name a single rule."""
    of_tests: bool = False
    """True if at least one of them affects test runs, such as one that excludes lines from coverage."""


def find_suppressions(before: Mapping[str, str], after: Mapping[str, str], paths: Collection[str]) -> Suppressions:
    """Find the suppressions that were added to changed files. `paths` contains all delivered files."""
    files: dict[str, str | None] = {}
    lines, blanket = list[str](), list[str]()
    for path, text in after.items():
        old = before.get(path)
        if _SUPPRESSIONS["ignore_files"].search(path):
            files[path], found = old, [f"{path}: the list of excluded files changed"]
            blanket += found
        elif path.endswith(".pyi") and old is None and path[:-1] in paths:
            files[path], found = None, [f"{path}: hides {path[:-1]} from type checkers"]
            blanket += found
        else:
            bare, marked = _without_suppressions(path, old or "", text)
            found = [line for line, _ in marked]
            blanket += [line for line, is_narrow in marked if not is_narrow]
            if found:
                files[path] = bare
        lines += found
    of_tests = any(_SUPPRESSIONS["of_tests"].search(line) for line in lines)
    return Suppressions(files, tuple(lines), tuple(blanket), of_tests)


def _without_suppressions(path: str, old: str, new: str) -> tuple[str, list[tuple[str, bool]]]:
    """Remove the new suppressions from a text.

    Return the text and the removed lines. The flag of each line is True if the suppression names a single
    rule.
    """
    comments, branches = _SUPPRESSIONS["comments"], _SUPPRESSIONS["type_checking"]
    before = Counter(match[0].strip() for line in old.splitlines() for match in comments.finditer(line))
    guards = Counter(line.strip() for line in old.splitlines() if branches.match(line))
    kept, found = list[str](), list[tuple[str, bool]]()
    lines = new.splitlines(keepends=True)
    for number, line in enumerate(lines, start=1):
        end = line[len(line.rstrip("\r\n")) :]
        bare = line.removesuffix(end) if end else line
        quoted = f"{path}:{number}: {bare.strip()}"
        for match in list(comments.finditer(bare)):
            if before[match[0].strip()] > 0:
                before[match[0].strip()] -= 1
                continue
            found.append((quoted, _SUPPRESSIONS["of_one_rule"].search(match[0]) is not None))
            bare = bare.replace(match[0], "", 1)
        guard = branches.match(bare)
        if guard and path.endswith(".py") and _hides_code(lines[number:], guard["before"]):
            if guards[bare.strip()] > 0:
                guards[bare.strip()] -= 1
            else:
                found.append((quoted, False))
                # A value that type checkers do not evaluate, so they look at both branches.
                bare = f"{guard['before']}{guard['kind']} bool({int(bool(guard['not']))}):"
        kept.append(bare + end)
    return "".join(kept), found


def _hides_code(lines: Iterable[str], indent: str) -> bool:
    """Return whether a block contains any code other than imports."""
    for line in lines:
        if line.strip() and not line.startswith(f"{indent} ") and not line.startswith(f"{indent}\t"):
            return False
        if re.match(r"\s*(?:async\s+def|def|class)\s|\s*\w+(?::\s*[\w.\[\], ]+)?\s*=\s*\S", line):
            return True
    return False


# -- tests that assert nothing --------------------------------------------------------------------------------


def find_empty_tests(tests: Mapping[str, str], survivors: Iterable[str], modules: Collection[str]) -> tuple[str, ...]:
    """Return the new tests that make no assertions about the product, sorted.

    Args:
        tests: contents of the delivered Python tests, by path.
        survivors: names of the tests that passed even when the product's functions did nothing.
        modules: names of the modules at the root of the tree.
    """
    claims = {
        test.key: test.claims
        for path, text in tests.items()
        if (module := read_module(path, text)) is not None
        for test in module.tests
    }
    called = re.compile(rf"(?<![\w.])(?:{'|'.join(map(re.escape, sorted(modules))) or '(?!)'})(?:\.\w+)*\s*\(")
    empty = []
    for name in survivors:
        dotted = re.sub(r"\[.*\]$", "", name, flags=re.DOTALL)
        dotted = dotted.replace(".py::", ".").replace("::", ".").replace("/", ".")
        found = next((value for key, value in claims.items() if key == dotted or key.endswith(f".{dotted}")), None)
        # A claim about data, a file or another program needs no function of the product.
        if found is not None and not any(_is_about_data(claim, called) for claim in found):
            empty.append(name)
    return tuple(sorted(empty))


def _is_about_data(claim: Claim, called: re.Pattern[str]) -> bool:
    if claim.outcome in ("runs", "holds", "is true", "is false") and not re.search(r"[\w)\]]\s*\(", claim.subject):
        return False
    if claim.outcome == "runs" or re.search(r"\b\w*Mock\b|\bcreate_autospec\b", claim.subject):
        return False
    is_constant = re.fullmatch(r"[\d\s.'\"]*|True|False|None", claim.subject) is not None
    return not is_constant and called.search(claim.subject) is None
