"""Which tool a check's shell command calls, and how: launcher, program, arguments, folder."""

import re
import shlex
from collections.abc import Iterator
from itertools import pairwise

from tightloop.value import Value

_RUNNERS: dict[str, tuple[str, ...]] = {
    "uv": ("run",),
    "poetry": ("run",),
    "pdm": ("run",),
    "pipenv": ("run",),
    "hatch": ("run",),
    "rye": ("run",),
    "pixi": ("run",),
    "pnpm": ("exec",),
    "npm": ("exec",),
    "uvx": (),
    "npx": (),
    "bunx": (),
    "yarn": (),
}
"""Programs that start another one, with the word that makes them do so."""
_PREFIXES = frozenset({"env", "time", "exec", "command", "nice"})
_SHELLS = frozenset({"sh", "bash", "dash", "zsh"})
_RUNNER_VALUES = frozenset({"--with", "--group", "--extra", "--package", "--python", "-p", "-e", "--project"})
_PYTHON = re.compile(r"^python(?:\d+(?:\.\d+)?)?$")
_ASSIGNMENT = re.compile(r"^[A-Za-z_]\w*=")
_SUBSTITUTION = re.compile(r"\$\(([^()]*)\)")
_ECHOED = re.compile(r"^\s*(?:[>$+]\s+)?(\S.*)$")
_OPERATORS = frozenset("();<>|&")
_DEPTH = 3


class ToolCall(Value):
    """One program started by a shell command."""

    launcher: tuple[str, ...] = ()
    """What stands before the program, such as `uv run` or `python -m`."""
    program: str
    """As it is written, such as `.venv/bin/ruff`."""
    args: tuple[str, ...] = ()
    folder: str = ""
    """Where the command changed to before (`cd web && ...`); empty: the top of the tree."""

    @property
    def name(self) -> str:
        """The program without its folder."""
        return _basename(self.program)

    @property
    def starts(self) -> str:
        """The word that is really executed: the launcher where there is one."""
        return self.launcher[0] if self.launcher else self.program


def tool_calls(command: str) -> tuple[ToolCall, ...]:
    """Return the programs that a shell command starts, in their order.

    Understands `&&`, `;`, pipes, redirections, `VAR=x`, `cd folder &&`, `$(...)`, `sh -c '...'`, `uv run`, `npx`,
    `python -m` and the like. A command that cannot be read starts nothing.
    """
    return tuple(_calls(command, _DEPTH))


def echoed_calls(output: str, names: frozenset[str]) -> tuple[ToolCall, ...]:
    """Return the calls of known tools that a task runner (make, npm) wrote above their output."""
    found: list[ToolCall] = []
    for line in output.splitlines():
        if match := _ECHOED.match(line):
            found.extend(call for call in tool_calls(match.group(1)) if call.name in names)
    return tuple(found)


def _calls(command: str, depth: int) -> Iterator[ToolCall]:
    if depth == 0:
        return
    folder = ""
    for words in _simple_commands(command):
        for inner in _SUBSTITUTION.findall(" ".join(words)):
            yield from _calls(inner, depth - 1)
        call = _unwrapped(words)
        if call is None:
            continue
        if call.name in _SHELLS and (script := _script(call.args)):
            yield from _calls(script, depth - 1)
        elif call.name == "cd" and call.args:
            folder = _joined(folder, call.args[0])
        else:
            yield call.model_copy(update={"folder": folder})


def _simple_commands(command: str) -> list[list[str]]:
    lexer = shlex.shlex(command, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    lexer.commenters = ""
    try:
        tokens = list(lexer)
    except ValueError:
        return []
    commands: list[list[str]] = [[]]
    redirected = False
    for token in tokens:
        if token and set(token) <= _OPERATORS:
            redirected = set(token) <= {"<", ">", "&"} and bool(set(token) & {"<", ">"})
            if redirected and commands[-1] and commands[-1][-1] in ("1", "2"):
                commands[-1].pop()
            elif not redirected:
                commands.append([])
        elif redirected:
            redirected = False
        else:
            commands[-1].append(token)
    return [words for words in commands if words]


def _unwrapped(words: list[str]) -> ToolCall | None:
    """Split what starts the tool from the tool."""
    launcher: list[str] = []
    rest = list(words)
    while rest:
        length = _launcher_length(rest)
        if length == 0:
            return ToolCall(launcher=tuple(launcher), program=rest[0], args=tuple(rest[1:]))
        if _is_runner(rest[0]):
            launcher.extend(rest[:length])
        rest = rest[length:]
    return None


def _is_runner(word: str) -> bool:
    name = _basename(word)
    return name in _RUNNERS or _PYTHON.match(name) is not None


def _launcher_length(words: list[str]) -> int:
    """Return how many words only lead to the program; 0 if the first one is it."""
    name = _basename(words[0])
    if name in _PREFIXES or _ASSIGNMENT.match(words[0]):
        return 1
    if name == "timeout":
        return min(2, len(words))
    if _PYTHON.match(name):
        return words.index("-m") + 1 if "-m" in words[:-1] else 0
    if name in _RUNNERS:
        return _runner_length(words, _RUNNERS[name])
    return 0


def _runner_length(words: list[str], verb: tuple[str, ...]) -> int:
    if tuple(words[1 : 1 + len(verb)]) != verb:
        return 0
    end = 1 + len(verb)
    while end < len(words) and words[end].startswith("-"):
        end += 2 if words[end] in _RUNNER_VALUES else 1
    return end if end < len(words) else 0


def _script(args: tuple[str, ...]) -> str:
    for option, value in pairwise(args):
        if option.startswith("-") and option.endswith("c"):
            return value
    return ""


def _basename(word: str) -> str:
    return word.replace("\\", "/").rsplit("/", 1)[-1].removesuffix(".exe")


def _joined(folder: str, further: str) -> str:
    if further.startswith("/") or not folder:
        return further.rstrip("/") if further not in (".", "./") else ""
    return f"{folder}/{further.rstrip('/')}"
