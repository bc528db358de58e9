"""Classification of files that affect the checks."""

import ast
import configparser
import json
import re
import sys
import tomllib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from tightloop.episode.proof import FileChange, FileKind
from tightloop.value.toml import read_toml

DATA = read_toml("tightloop.episode.proof", "files.toml")
ENVIRONMENTS, _CACHES = frozenset(DATA["environment"]), frozenset(DATA["caches"])
_PACKAGE = DATA["package_parts"]
_MODULES = sys.stdlib_module_names | frozenset(DATA["checker_modules"])
_DATA_ENDINGS, _EXPECTED = frozenset(DATA["data_endings"]), re.compile(DATA["expected_data"])
_MAKE_RULE = re.compile(r"([\w./ -]+):(?![:=])")
_CHECKING = re.compile(r"(?i)check|test|verif|valid|assert|lint|\bci\b|spec|accept|smoke|gate|eval|grade|judge")
_PROGRAM = re.compile(
    r"\.(?:pyw?|[mc]?js|[mc]?ts|jsx|tsx|rb|p[lm]|php|go|rs|java|kts?|scala|swift|cs|exs?|lua|c|h|cc|cpp|cxx|hh|hpp|bats)$"
)
_WORD_ENDS = re.compile(r"[\s=;&|()<>'\"`,:]+")
_SUBJECTS = re.compile(
    # `. ./lib.sh`, `"$(bin/price 2)"`, `bin/price 2 | grep 4`, but not `sh check.sh | tee log`
    r"(?m)(?:(?:^|[\s;&|(])(?:\.|source)\s+\S+|\$\([^()]*\)|`[^`\n]*`|[^\n;&|]*\|(?![|&])(?!\s*(?:tee|cat)\b))"
)


class _Patterns:
    """Set of glob patterns with a fast lookup.

    Patterns are looked up by path components, because a tree may contain 50 000 paths.
    """

    def __init__(self, patterns: Iterable[str]) -> None:
        bare = [pattern.removeprefix("**/") for pattern in patterns]
        plain = [name for name in bare if "*" not in name]
        # `**/tests` covers a folder anywhere, `tests` only at the root.
        self._parts = frozenset(
            name for name, pattern in zip(bare, patterns, strict=True) if name in plain and pattern != name
        )
        self._chains = tuple(f"/{name}/" for name in self._parts if "/" in name)
        self._roots = frozenset(name for name in plain if name not in self._parts)
        self._below_roots = tuple(f"{root}/" for root in self._roots)
        wild = [
            "".join("[^/]*" if part == "*" else re.escape(part) for part in re.split(r"(\*)", name))
            for name in bare
            if "*" in name
        ]
        self._names = re.compile("|".join(wild) or r"(?!)")

    def cover(self, path: str) -> bool:
        """Return True if a pattern matches the path."""
        parts = path.split("/")
        if not self._parts.isdisjoint(parts) or self._names.fullmatch(parts[-1]):
            return True
        if path in self._roots or path.startswith(self._below_roots):
            return True
        return bool(self._chains) and any(chain in f"/{path}/" for chain in self._chains)


_KINDS = ("tests", "test_data", "configuration", "start_up")
_TESTS, _TEST_DATA, _CONFIGURATION, _START_UP = (_Patterns(DATA[name]) for name in _KINDS)
# Searched first, because most paths are covered by none of them.
_ALL = _Patterns([pattern for name in _KINDS for pattern in DATA[name]])


class Guards(NamedTuple):
    """Context for recognizing the files that belong to the checks.

    The context supplements the rules for file names.
    """

    programs: frozenset[str] = frozenset()
    """Files named in the definition of done that perform the checks, as opposed to being checked."""
    named_data: frozenset[str] = frozenset()
    """Data files named by tests or by those programs."""
    goal_files: frozenset[str] = frozenset()
    """Files that the goal names. They may be created even if they have the same name as a checker's module."""

    def kind_of(self, path: str, change: FileChange = FileChange.MODIFIED) -> FileKind | None:
        """Return a file's role in the checks, or None for other files, such as source files."""
        folder, _, name = path.rpartition("/")
        # The most dangerous role decides: `tests/.env` is a start-up file, not a test.
        if is_environment(path):
            return FileKind.ENVIRONMENT
        is_named = _ALL.cover(path)
        if is_named and _START_UP.cover(path):
            return FileKind.START_UP
        if path in self.programs or (is_named and _CONFIGURATION.cover(path)):
            return FileKind.CONFIGURATION
        if path in self.named_data or (is_named and _TEST_DATA.cover(path)):
            return FileKind.TEST_DATA
        if is_named and _TESTS.cover(path):
            is_code = bool(_PROGRAM.search(name)) or "." not in name or name.startswith(".")
            return FileKind.TEST if is_code else FileKind.TEST_DATA
        # A file that was there from the start shadowed the module in the baseline too.
        shadows = change is FileChange.ADDED and path not in self.goal_files and name not in self.goal_files
        return FileKind.START_UP if shadows and _shadows_module(folder, name) else None


def _shadows_module(folder: str, name: str) -> bool:
    """Return True if a file shadows a module of Python or of a checker."""
    parts = (*folder.split("/"), name) if folder else (name,)
    ending = name.rpartition(".")[2]
    # An import root, followed by a module, or by a package and its first file.
    for depth in range(min(2, len(parts))):
        root, module = "/".join(parts[:depth]), parts[depth].partition(".")[0]
        is_last = depth == len(parts) - 1
        is_root = root in DATA["import_roots"] or (bool(root) and _is_test_folder(root))
        is_imported = ending in ("py", "pyc", "so", "pyd") if is_last else name.startswith("__init__.")
        if is_root and is_imported and module in _MODULES:
            return True
    return False


def _is_test_folder(path: str) -> bool:
    return _TESTS.cover(f"{path}/x")


def is_cache(path: str) -> bool:
    """Return whether a file, such as a cache, is generated from the sources. Such a file is never part of a proof."""
    return not _CACHES.isdisjoint(path.split("/"))


def is_environment(path: str) -> bool:
    """Return whether a path belongs to installed programs and libraries."""
    return not ENVIRONMENTS.isdisjoint(path.split("/"))


def programs_of(commands: Iterable[str], paths: Iterable[str]) -> frozenset[str]:
    """Return the files that perform checks, among the files that the commands or scripts name.

    `python main.py` runs the program under test, while `python check_main.py` and `sh run.sh` perform a
    check. `make` implies its Makefile. A script that is sourced, or whose output is read, is also
    considered part of the program under test.
    """
    commands = [_SUBJECTS.sub(" ", command) for command in commands]
    tokens = {token.removeprefix("./") for command in commands for token in _WORD_ENDS.split(command)}
    tokens |= {name for tool, names in DATA["entry_files"].items() if tool in tokens for name in names}
    return frozenset(path for path in paths if path in tokens and _checks(path))


def is_program(path: str) -> bool:
    """Return True if a file is source code in a language that products are written in."""
    return _PROGRAM.search(path) is not None


def _checks(path: str) -> bool:
    name = path.rpartition("/")[2]
    # Other files, such as `log.txt`, may be the subject: a command may test that they were written.
    is_script = "." not in name or name.endswith((".sh", ".bash", ".mk"))
    return is_script or (_PROGRAM.search(name) is not None and _CHECKING.search(path) is not None)


def data_named_in(texts: Iterable[str], candidates: Iterable[str]) -> frozenset[str]:
    """Return the data files that at least one of the texts mentions by name."""
    data_names = {path: path.rpartition("/")[2] for path in candidates if _is_data(path)}
    named_paths: set[str] = set()
    for text in texts if data_names else ():
        named_paths |= {path for path, name in data_names.items() if name in text}
    return frozenset(named_paths)


def _is_data(path: str) -> bool:
    name = path.rpartition("/")[2]
    return not _PROGRAM.search(name) and (
        name.rpartition(".")[2].lower() in _DATA_ENDINGS or bool(_EXPECTED.search(name))
    )


# -- manifests with several purposes ----------------------------------------------------------------


def is_same_setup(path: str, old: bytes | None, new: bytes | None) -> bool:
    """Return True if a changed manifest does not weaken the checks.

    Higher thresholds and additional targets, scripts or crate packages do not weaken the checks. A new
    file (`old` is None) is accepted only if it is the manifest of a crate without a build script. The
    result is False for any other changed file.
    """
    if old == new:
        return True
    name = path.rpartition("/")[2]
    if old is None and name != "Cargo.toml":
        return False
    try:
        return name in _SETUPS and _SETUPS[name](old, new)
    # A manifest that cannot be parsed counts as changed: the checker may read it differently.
    except (ValueError, configparser.Error, AttributeError, RecursionError):
        return False


def _pyproject(content: bytes | None) -> dict[str, Any]:
    tools = tomllib.loads((content or b"").decode()).get("tool", {})
    return {name: value for name, value in tools.items() if name not in _PACKAGE["pyproject"]}


def _package_json(content: bytes | None) -> dict[str, Any]:
    document = json.loads(content or b"{}")
    return {name: document[name] for name in _PACKAGE["package_json"] if name in document}


def _is_as_strict(old: Any, new: Any, key: str = "") -> bool:
    if isinstance(old, dict) and isinstance(new, dict):
        return old.keys() == new.keys() and all(_is_as_strict(old[name], new[name], name) for name in old)
    return old == new or (key in DATA["thresholds"] and float(str(new)) >= float(str(old)))


def _keeps_scripts(old: dict[str, Any], new: dict[str, Any]) -> bool:
    """Return True if all existing scripts are kept.

    This function removes the added scripts from `new`.
    """
    before, now = old.get("scripts", {}), new.get("scripts", {})
    added = now.keys() - before.keys()
    # npm runs `pretest` and `posttest` with `test`.
    if any(name.removeprefix("pre").removeprefix("post") in before for name in added):
        return False
    if added:
        new["scripts"] = {name: text for name, text in now.items() if name in before}
        old["scripts"] = before
    return True


def _keeps_package_json(old: bytes | None, new: bytes | None) -> bool:
    before, now = _package_json(old), _package_json(new)
    return _keeps_scripts(before, now) and _is_as_strict(before, now)


def _keeps_targets(old: bytes | None, new: bytes | None) -> bool:
    before, now = _make_rules(old), _make_rules(new)
    return all(now.get(target) == rules for target, rules in before.items())


def _keeps_crate(old: bytes | None, new: bytes | None) -> bool:
    """Return True if a crate's manifest is new or only has additions.

    The additions may be packages, members and descriptions.
    """
    now = tomllib.loads((new or b"").decode())
    if old is None:
        return "build" not in now.get("package", {}) and not now.get("lib", {}).get("proc-macro")
    before = tomllib.loads(old.decode())
    tables = ("dependencies", "dev-dependencies", "build-dependencies")
    # Also in another table, such a package would take the place of the one that tests use.
    taken = {*_PACKAGE["cargo_crates"]}.union(*(before.get(table, {}) for table in tables))
    for table in tables:
        added = now.setdefault(table, {}).items()
        kept = before.setdefault(table, {}).keys()
        # With `package`, a second name could switch on features of a package that tests use.
        now[table] = {
            name: it
            for name, it in added
            if name in kept or name in taken or (isinstance(it, dict) and "package" in it)
        }
    # A workspace may gain members, or be new, but not choose which of them are tested.
    workspace, members = now.get("workspace", {}), before.get("workspace", {}).get("members", [])
    if set(members) <= set(workspace.get("members", [])):
        before.setdefault("workspace", {"members": []})
        now["workspace"] = {**workspace, "members": members}
    for document in (before, now):
        package = document.get("package", {})
        document["package"] = {name: value for name, value in package.items() if name not in _PACKAGE["cargo_notes"]}
    return before == now


def _make_rules(content: bytes | None) -> dict[str, list[str]]:
    """Return the lines of a Makefile by target.

    Variables and all other lines are listed under "".
    """
    rules: dict[str, list[str]] = {"": []}
    targets: list[str] = [""]
    for line in (content or b"").decode().splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        if not line.startswith("\t"):
            head = _MAKE_RULE.match(line)
            targets = head[1].split() if head else [""]
        for target in targets:
            # `.PHONY` is not a target. Adding names to it does not change the rules of the other targets.
            if target != ".PHONY":
                rules.setdefault(target, []).append(line)
    return rules


def _keeps_environments(old: dict[str, dict[str, str]], new: dict[str, dict[str, str]]) -> bool:
    """Return True if the only changes to a tox configuration are added environments."""
    lists = [section.get("tox", {}) for section in (old, new)]
    before, now = ({*re.split(r"[\s,]+", one.pop("envlist", one.pop("env_list", "")))} for one in lists)
    added = {name.removeprefix("testenv:") for name in new.keys() - old.keys()}
    return before <= now <= before | added and all(new.get(name) == section for name, section in old.items())


def _keeps_sessions(old: ast.Module, new: ast.Module) -> bool:
    """Return whether the only changes to a noxfile are added sessions."""
    before, now = ([ast.dump(node) for node in module.body] for module in (old, new))
    added = [node for node, text in zip(new.body, now, strict=True) if text not in before]
    is_new = all(isinstance(node, ast.FunctionDef) for node in added)
    names = {node.name for node in old.body if isinstance(node, ast.FunctionDef)}
    is_other = not any(isinstance(node, ast.FunctionDef) and node.name in names for node in added)
    return is_new and is_other and [text for text in now if text in before] == before


def _setup_cfg(content: bytes | None) -> dict[str, dict[str, str]]:
    parser = configparser.RawConfigParser(strict=False)
    parser.read_string((content or b"").decode())
    sections = (name for name in parser.sections() if name.partition(".")[0] not in _PACKAGE["setup_sections"])
    return {name: dict(parser[name]) for name in sections}


_SETUPS: Mapping[str, Callable[[bytes | None, bytes | None], bool]] = {
    "pyproject.toml": lambda old, new: _is_as_strict(_pyproject(old), _pyproject(new)),
    "package.json": _keeps_package_json,
    "tox.ini": lambda old, new: _keeps_environments(_setup_cfg(old), _setup_cfg(new)),
    "noxfile.py": lambda old, new: _keeps_sessions(ast.parse(old or b""), ast.parse(new or b"")),
    **dict.fromkeys(("setup.cfg", ".coveragerc"), lambda old, new: _is_as_strict(_setup_cfg(old), _setup_cfg(new))),
    "Cargo.toml": _keeps_crate,
    **dict.fromkeys(("Makefile", "makefile", "GNUmakefile"), _keeps_targets),
}


# -- lines that can make any check pass -------------------------------------------------------------

_SUSPICIOUS = DATA["suspicious"]
_LINES = {
    ending: tuple(map(re.compile, _SUSPICIOUS[tool]))
    for tool, endings in _SUSPICIOUS["endings"].items()
    for ending in endings
}
_HEAD, _VALUE = re.compile(_SUSPICIOUS["equal_head"]), re.compile(_SUSPICIOUS["equal_value"])
# `#` begins an instruction for the preprocessor of C.
_COMMENTS = dict.fromkeys((*_SUSPICIOUS["endings"]["c"], *_SUSPICIOUS["endings"]["rust"]), ("//",))
_LINE_CHARACTERS = 400


def suspicious_lines(path: str, old: str, new: str) -> tuple[str, ...]:
    """Return the added lines of a source file that could make any check pass.

    Each line has the form `path:line: text`.
    """
    ending = path.rpartition(".")[2].lower()
    patterns = _LINES.get(ending)
    if patterns is None:
        return ()
    if ending == "rs" and (changing := "|".join(_CHANGING.findall(new))):
        # A release does not evaluate it, so only tests would see the change.
        patterns = (*patterns, re.compile(rf"\bdebug_assert\w*!.*\.(?:{changing})\s*\("))
    old_lines, suspicious = frozenset(old.splitlines()), []
    head: str | None = None
    for number, line in enumerate(new.splitlines(), start=1):
        text = line[:_LINE_CHARACTERS]
        code = text.strip()
        if not code or code.startswith(_COMMENTS.get(ending, ("#", "//"))):
            continue
        head = line if _HEAD.search(text) else head
        # One new line of the two is enough to change what the method returns.
        equal = head is not None and _VALUE.search(text) is not None and not {head, line} <= old_lines
        if equal or (line not in old_lines and any(pattern.search(text) for pattern in patterns)):
            suspicious.append(f"{path}:{number}: {code}")
        # These may stand between the head of a method and its value without changing it.
        is_before = head is line or code.startswith(('"""', "'''", "del ", "_ ="))
        head = head if is_before else None
    return tuple(suspicious)


_CHANGING = re.compile(r"\bfn\s+(\w+)\s*(?:<[^>]*>)?\(\s*&mut\s+self")
"""A method of Rust that changes its object."""

# In these languages, a later definition takes the place of an earlier one of the same name.
_DEFINITION = {
    ending: re.compile(pattern)
    for endings, pattern in (
        (("sh", "bash", "bats"), r"(?m)^[ \t]*(?:function[ \t]+(?P<a>[\w-]+)|(?P<b>[\w-]+)[ \t]*\(\))"),
        (_SUSPICIOUS["endings"]["c"], r"(?m)^[ \t]*#[ \t]*define[ \t]+(?P<a>\w+)"),
    )
    for ending in endings
}


def redefinitions(path: str, old: str, new: str, tests: Mapping[str, str]) -> tuple[str, ...]:
    """Return the functions and macros of the tests that a source file now redefines, one line each.

    Args:
        path: path of the source file.
        old: initial text of the file.
        new: current text of the file.
        tests: initial texts of the tests and their helpers, by path.
    """
    definition = _DEFINITION.get(path.rpartition(".")[2].lower())
    if definition is None:
        return ()
    added = _defined(definition, new) - _defined(definition, old)
    lines = []
    for other, text in tests.items() if added else ():
        for name in sorted(added & _defined(definition, text)) if other != path else ():
            word = re.compile(rf"(?<![\w-]){re.escape(name)}(?![\w-])")
            # It must also be used outside its own definition.
            if sum(len(word.findall(used)) for used in tests.values()) > 1:
                lines.append(f"{path}: {name} replaces the {name} in {other}")
    return tuple(lines)


def can_redefine(path: str) -> bool:
    """Return True if a file in this language can redefine functions or macros of other files."""
    return path.rpartition(".")[2].lower() in _DEFINITION


def _defined(pattern: re.Pattern[str], text: str) -> frozenset[str]:
    return frozenset(next(filter(None, match.groups())) for match in pattern.finditer(text))
