"""Finds code that starts a program outside of a sandbox without having resolved it to an absolute path."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
PRODUCT = ("tightloop", "activities", "workflows", "worker", "gateway")
INSIDE = (
    # Run in a sandbox, in the Python of a project.
    "activities/sandbox/forward.py",
    "activities/proof/observers/",
    "activities/testing/runner/",
)
SHIM = "activities/process/shim.py"
"""Executes what the worker orders, whose type is checked where the order is made."""
RESOLVER = "tightloop/host/programs.py"
FOR_PROJECTS = ("activities/process/start.py", "activities/sandbox/choose.py", "activities/executor/scripted.py")
"""Start commands of a project with the worker's rights, because a person asked for that."""
STARTS = re.compile(
    r"subprocess\.(run|Popen|call|check_call|check_output|getoutput|getstatusoutput)"
    r"|asyncio\.(create_subprocess_(exec|shell)|subprocess\.create_subprocess_(exec|shell))"
    r"|os\.(exec\w+|spawn\w+|posix_spawnp?|system|popen|startfile)|pty\.spawn|webbrowser\.\w+"
)
_WORDS = re.compile(r"subprocess|exec|spawn|system|popen|startfile|webbrowser|TrustedProgram|ProjectProgram|ProcessReq")
LOOPS = ("subprocess_exec", "subprocess_shell")
"""Methods of an event loop."""


def findings() -> list[str]:
    """Return `file:line: what` for all product code."""
    found = []
    for part in PRODUCT:
        for file in sorted((REPOSITORY / part).rglob("*.py")):
            name = str(file.relative_to(REPOSITORY))
            source = file.read_text(encoding="utf-8")
            if not name.startswith(INSIDE) and _WORDS.search(source):
                found += findings_in(source, name)
    return found


def findings_in(source: str, name: str) -> Iterator[str]:
    """Yield what is wrong in one file."""
    tree = ast.parse(source)
    imported = dict(_imports(tree))
    for node, resolved in _calls(tree):
        called = _full_name(node.func, imported)
        first = node.args[0] if node.args else None
        problem = ""
        if STARTS.fullmatch(called) or called.rpartition(".")[2] in LOOPS:
            if any(word.arg == "shell" for word in node.keywords):
                problem = f"{called} with a shell"
            elif not _is_resolved(first, resolved) and not (name == SHIM and _is_order(called, first)):
                problem = f"{called} starts what was not resolved: use TrustedProgram.command"
        elif called.endswith("TrustedProgram") and name != RESOLVER and not _is_absolute(node):
            problem = "a TrustedProgram that the resolver did not make"
        elif called.endswith("ProjectProgram") and name not in FOR_PROJECTS:
            problem = "a program of a project outside of a sandbox"
        elif called.endswith("ProcessRequest") and any(
            word.arg == "program" and isinstance(word.value, ast.Constant) for word in node.keywords
        ):
            problem = "a ProcessRequest for a bare name"
        if problem:
            yield f"{name}:{node.lineno}: {problem}"
    yield from _handed_on(tree, imported, name)


def _calls(tree: ast.Module) -> Iterator[tuple[ast.Call, set[str]]]:
    """Yield every call, with the variables of its function that hold a resolved command."""
    scopes: list[ast.AST] = [tree]
    while scopes:
        nodes: list[ast.AST] = []
        queue = list(ast.iter_child_nodes(scopes.pop()))
        while queue:
            node = queue.pop()
            nodes.append(node)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                scopes.append(node)
            else:
                queue += ast.iter_child_nodes(node)
        resolved = _resolved_names(nodes)
        yield from ((node, resolved) for node in nodes if isinstance(node, ast.Call))


def _handed_on(tree: ast.AST, imported: dict[str, str], name: str) -> Iterator[str]:
    """Yield functions that start programs and are passed as a value, as to `asyncio.to_thread`."""
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute | ast.Name) and id(node) not in called:
            full = _full_name(node, imported)
            # A type, as in `Popen[bytes]`, starts nothing.
            if STARTS.fullmatch(full) and not full.endswith("Popen"):
                yield f"{name}:{node.lineno}: {full} is handed on: call it here"


def _imports(tree: ast.AST) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                first = alias.name.partition(".")[0]
                yield alias.asname or first, alias.name if alias.asname else first
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"


def _full_name(node: ast.AST, imported: dict[str, str]) -> str:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if isinstance(node, ast.Name):
        parts.append(imported.get(node.id, node.id))
    return ".".join(reversed(parts))


def _resolved_names(nodes: list[ast.AST]) -> set[str]:
    """Return the variables that only ever hold the result of `TrustedProgram.command`."""
    given: dict[str, list[bool]] = {}
    for node in nodes:
        pairs: list[tuple[ast.expr, ast.expr | None]] = []
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                    pairs += zip(target.elts, node.value.elts, strict=False)
                else:
                    pairs.append((target, node.value))
        elif isinstance(node, ast.AnnAssign | ast.NamedExpr | ast.AugAssign):
            pairs.append((node.target, node.value))
        elif isinstance(node, ast.arg):
            given.setdefault(node.arg, []).append(False)
        for target, value in pairs:
            if isinstance(target, ast.Name):
                given.setdefault(target.id, []).append(_is_command(value))
    return {name for name, made in given.items() if all(made)}


def _is_command(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "command"


def _is_resolved(node: ast.AST | None, resolved: set[str]) -> bool:
    if isinstance(node, ast.Starred):
        return _is_resolved(node.value, resolved)
    if isinstance(node, ast.Name):
        return node.id in resolved
    # `os.execve` takes the path of a program.
    return _is_command(node) or (isinstance(node, ast.Attribute) and node.attr == "path")


def _is_order(called: str, first: ast.AST | None) -> bool:
    if isinstance(first, ast.Constant):
        return isinstance(first.value, str) and first.value.startswith("/")
    return called == "os.execve"


def _is_absolute(node: ast.Call) -> bool:
    """Return whether it is made with an absolute path as it stands there, of a program that the system always has."""
    path = node.args[1] if len(node.args) > 1 else None
    given = path.args[0] if isinstance(path, ast.Call) and path.args else None
    text = given.value if isinstance(given, ast.Constant) else ""
    return isinstance(text, str) and text.startswith(("/usr/", "/bin/"))
