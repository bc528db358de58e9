"""Shell commands as checks: splitting scripts, finding the programs they start, and classifying checks."""

import posixpath
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from tightloop.safety.commands.rules import PUBLISHES, find_violations
from tightloop.safety.commands.shell import parse
from tightloop.value import Value
from tightloop.value.toml import read_toml

if TYPE_CHECKING:
    from tree_sitter import Node

_DATA = read_toml("tightloop.checks", "commands.toml")
_STARTED_BY: Mapping[str, list[str]] = _DATA["started_by"]
_ENVIRONMENT_OF: Mapping[str, list[str]] = _DATA["environment_of"]
_SCRIPT_CHARACTERS = 20_000
_PYTHON = re.compile(r"(?:python|pypy)[\d.]*|py")
_FOLDER = re.compile(r"cd +([^-/$~`\s&|;][^$`&|;]*?) *&&")
_SHELL = re.compile(r"(?:ba|z|da|k)?sh")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=")
_WORDS_OF_KIND = {
    "tests": {
        "test",
        "tests",
        "runtest",
        "runtests",
        "unittest",
        "unittests",
        "unit",
        "pytest",
        "doctest",
        "doctests",
        "coverage",
        "cov",
        "e2e",
    },
    "types": {"types", "typing", "typecheck", "typescript", "tsc", "mypy", "pyright", "tsd"},
    "lint": {"lint", "linter", "linting", "flake8", "style", "pylint", "standard", "eslint", "ruff", "clippy"},
    "format": {"formatting"},
    "other": {"check", "checks", "verify", "validate", "ci", "gate"},
}
"""Words in the name of a script or target that indicate a kind of check."""


class CheckKind(StrEnum):
    """The kind of a check, such as tests or lint."""

    TESTS = "tests"
    LINT = "lint"
    TYPES = "types"
    FORMAT = "format"
    OTHER = "other"


class FoundCheck(Value):
    """A command in a project's files that can be used as a check."""

    run: str
    """Command line to run in the root of the working tree."""
    kind: CheckKind = CheckKind.OTHER
    source: str
    """File that names the command."""
    name: str = ""
    """Short name of the check, such as that of the script or program."""
    not_used: str = ""
    """Reason why the command must not be run. If empty, it may run."""
    otherwise: tuple["FoundCheck", ...] = ()
    """Commands that this command would run. They are used instead if this command cannot run here."""

    @property
    def title(self) -> str:
        """Command with its source file."""
        return f"{self.run} ({self.source})"


@dataclass(frozen=True)
class Project:
    """A project's files, and the versions of the installed interpreters."""

    paths: frozenset[str]
    texts: Mapping[str, str]
    """Contents of the configuration files by path."""
    python: str = ""
    """Python version, such as `3.11`. Empty if Python is not available."""
    node: str = ""
    """Major version of Node, such as `20`. Empty if Node is not available."""
    system: str = "linux"
    """`linux` or `macos`."""
    folder: str = ""
    """Folder of the project, relative to the root of the working tree. Empty for the root."""

    def text(self, name: str, folder: str | None = None) -> str:
        """Return the content of a file in the project folder, or "" if there is no such file."""
        return self.texts.get(posixpath.join(self.folder if folder is None else folder, name), "")

    def has_folder(self, folder: str) -> bool:
        """Return whether a folder contains any project files."""
        return not folder or any(path.startswith(f"{folder}/") for path in self.paths)

    def has(self, path: str, folder: str) -> bool:
        """Return whether the project contains the file `path`, which is relative to `folder`."""
        return posixpath.normpath(posixpath.join(folder, path)) in self.paths


@dataclass(frozen=True)
class Origin:
    """The place where a command was found: its file, folder and variables."""

    source: str
    folder: str = ""
    variables: tuple[tuple[str, str], ...] = ()
    inside: tuple[str, ...] = field(default=())
    """Commands that were expanded to reach this place. They are used to limit the recursion."""


class Line(NamedTuple):
    """A single command from a script, with its origin."""

    text: str
    words: tuple[str, ...]
    """Unquoted words of the command, without leading variable assignments."""
    origin: Origin

    def render(self, text: str = "") -> str:
        """Return the command line to run from the root of the working tree."""
        variables = " ".join(f"{name}={shlex.quote(value)}" for name, value in self.origin.variables)
        command = f"{variables} {text or self.text}".strip()
        return f"cd {shlex.quote(self.origin.folder)} && {command}" if self.origin.folder else command


def split_script(script: str, origin: Origin) -> Iterator[Line]:
    """Yield the commands of a script in order. Apply each `cd` and `export` to the commands that follow."""
    script = re.sub(r"\\\r?\n[ \t]*", " ", script[:_SCRIPT_CHARACTERS]).replace("\r\n", "\n")
    content, folder, variables = script.encode(), origin.folder, dict(origin.variables)
    for node in _statements(parse(script)):
        text = content[node.start_byte : node.end_byte].decode("utf-8", "replace").strip()
        words = _words(text)
        if node.type in ("declaration_command", "variable_assignment"):
            variables |= dict(_assignments(words[1:] if node.type == "declaration_command" else words))
            continue
        if words[:1] in (["cd"], ["pushd"]) and len(words) == 2 and not re.search(r"[$~`*]|^/", words[1]):
            folder = posixpath.normpath(posixpath.join(folder, words[1])).removeprefix(".").lstrip("/")
            continue
        own = dict(variables)
        while words and _ASSIGNMENT.match(words[0]):
            name, _, value = words[0].partition("=")
            # A value with an expansion stays in the text, where the shell expands it.
            if "$" in value or "`" in value:
                break
            own[name] = value
            words = words[1:]
            text = _without_first_word(text)
        if words:
            place = Origin(origin.source, folder, tuple(own.items()), origin.inside)
            yield Line(text, tuple(words), place)


def _without_first_word(text: str) -> str:
    """Remove a leading variable assignment from a command."""
    match = re.match(r"[A-Za-z_]\w*=(?:'[^']*'|\"[^\"]*\"|[^\s'\"])*\s+", text)
    return text[match.end() :] if match else text


def _assignments(words: list[str]) -> Iterator[tuple[str, str]]:
    for word in words:
        name, separator, value = word.partition("=")
        if separator and "$" not in value:
            yield name, value


def _statements(node: "Node") -> Iterator["Node"]:
    for child in node.named_children:
        if child.type == "list" and not any(part.type == "||" for part in child.children):
            yield from _statements(child)
        elif child.type != "comment":
            yield child


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text, comments=True)
    except ValueError:
        return text.split()


def started_command(words: tuple[str, ...]) -> tuple[int, bool]:
    """Return the position of the program in a command, after wrappers such as `timeout 60` or `uv run`.

    Returns:
        The position, and True if a wrapper selects its own environment. The command then uses the
            workspace's environment instead.
    """
    at, replaced = 0, False
    while at < len(words):
        name = posixpath.basename(words[at])
        two = f"{name} {words[at + 1]}" if at + 1 < len(words) else ""
        wrapper, length = (two, 2) if two in _ENVIRONMENT_OF else (name, 1)
        if wrapper in _ENVIRONMENT_OF:
            # `uv tool run`
            length += words[at + 1 : at + 3] == ("tool", "run")
            at, replaced = _past_options(words, at + length, _ENVIRONMENT_OF[wrapper]), True
        elif name in _STARTED_BY:
            at = _past_options(words, at + 1, _STARTED_BY[name])
            # The duration of `timeout`.
            at += name == "timeout"
        else:
            break
    return at, replaced


def _past_options(words: tuple[str, ...], at: int, with_value: list[str]) -> int:
    while at < len(words) and (words[at].startswith("-") or _ASSIGNMENT.match(words[at])):
        # `uv run -m pytest` starts a module.
        if words[at] == "-m":
            return at
        if words[at] == "--":
            return at + 1
        at += 2 if words[at] in with_value and "=" not in words[at] else 1
    return at


def folder_of(run: str) -> str:
    """Return the folder that a command line changes to, or "" if it stays in the root.

    The folder is relative to the root of the tree.
    """
    match = _FOLDER.match(run)
    return posixpath.normpath("".join(_words(match[1]))) if match else ""


def started_program(run: str) -> str:
    """Return the program that the last command of a command line starts, or "" if there is none."""
    words = _words(run.rpartition("&& ")[2])
    return next((word for word in words if not _ASSIGNMENT.match(word)), "")


def program_of(words: tuple[str, ...]) -> tuple[str, ...]:
    """Return the program and its arguments. Drop an interpreter that runs a module or script."""
    if not words:
        return ()
    name, rest = posixpath.basename(words[0]), words[1:]
    if name == "-m":
        return rest
    if _PYTHON.fullmatch(name):
        while rest and rest[0].startswith("-") and rest[0] != "-m":
            # `-c` is code, and `-W` and `-X` take a value.
            if rest[0] == "-c":
                return (name, *rest)
            rest = rest[2:] if rest[0] in ("-W", "-X") else rest[1:]
        if rest[:1] == ("-m",):
            return rest[1:]
        return (posixpath.basename(rest[0]), *rest[1:]) if rest else (name,)
    return (name, *rest)


def kind_of(argv: tuple[str, ...]) -> CheckKind | None:
    """Return the kind of check that a program performs, or None if the program is unknown."""
    if not argv:
        return None
    program, arguments = argv[0], argv[1:]
    first = next((argument for argument in arguments if not argument.startswith(("-", "+"))), "")
    heads = (*(f"{program} {argument}" for argument in (*arguments[:1], first)), program)
    for head in heads:
        for kind in CheckKind:
            if head in _DATA.get(kind.value, ()):
                return kind
    return None


def kind_of_name(name: str) -> CheckKind | None:
    """Return the kind of check suggested by the name of a script or target, or None."""
    words = [word for word in re.split(r"[^a-z0-9]+", name.lower()) if word]
    ends = {*words[:1], *words[-1:]}
    return next((CheckKind(kind) for kind, announced in _WORDS_OF_KIND.items() if ends & announced), None)


def script_kind(project: Project, words: tuple[str, ...], folder: str) -> CheckKind | None:
    """Return the kind of check that a project script performs, judging by its file name.

    Return None if the command does not start a script of the project.
    """
    name, rest = posixpath.basename(words[0]), words[1:]
    path = words[0]
    if _PYTHON.fullmatch(name) or _SHELL.fullmatch(name) or name in ("node", "ruby", "perl", "deno", "bun", "."):
        path = next((word for word in rest if not word.startswith("-")), "")
    if not path or not project.has(path, folder):
        return None
    return kind_of_name(posixpath.splitext(posixpath.basename(path))[0])


def refusal(project: Project, line: Line, argv: tuple[str, ...], kind: CheckKind | None) -> str:
    """Return the reason why a command must not be run, or "" if it may run."""
    if match := re.search(r"secrets\.(\w+)", line.text):
        return f"it needs the secret {match[1]}"
    if re.search(r"@@[\w.]+@@", line.text):
        return "it needs values that are only available in CI"
    if PUBLISHES in find_violations(line.text):
        return "it publishes"
    if argv[:1] and argv[0] in ("docker", "docker-compose", "podman"):
        return "it needs containers"
    if not project.has_folder(line.origin.folder):
        return f"the folder {line.origin.folder} is not in the repository"
    rewrites = any(word in _DATA["rewrites"] for word in argv[1:])
    if kind is CheckKind.FORMAT and not any(word.split("=")[0] in _DATA["checks_only"] for word in argv[1:]):
        rewrites = True
    if kind in (CheckKind.FORMAT, CheckKind.LINT) and rewrites:
        return "it rewrites files instead of checking them"
    return ""
