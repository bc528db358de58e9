"""Finds the tools that a check's shell command calls: launcher, program, arguments, folder."""

import re
from collections.abc import Iterator
from itertools import pairwise

from tightloop.safety.commands.shell import read_script
from tightloop.value import Value

_RUNNERS: dict[str, str] = {
    **dict.fromkeys(("uv", "poetry", "pdm", "pipenv", "hatch", "rye", "pixi"), "run"),
    **dict.fromkeys(("pnpm", "npm"), "exec"),
    **dict.fromkeys(("uvx", "npx", "bunx", "yarn"), ""),
}
"""Programs that start another one, with the word that makes them do so."""
_PREFIXES = frozenset({"env", "time", "exec", "command", "nice"})
_SHELLS = frozenset({"sh", "bash", "dash", "zsh"})
# Options of runners that take the next word as their value.
_RUNNER_VALUES = frozenset({"--with", "--group", "--extra", "--package", "--python", "-p", "-e", "--project"})
_PYTHON = re.compile(r"^python(?:\d+(?:\.\d+)?)?$")
_ASSIGNMENT = re.compile(r"^[A-Za-z_]\w*=")
_ECHOED = re.compile(r"^\s*(?:[>$+]\s+)?(\S.*)$")
_DEPTH = 3
"""Shells within shells that are read: `sh -c "bash -c '...'"`."""


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
    script = read_script(command)
    if depth == 0 or not script.is_complete:
        return
    folder = ""
    for simple in script.commands:
        call = _unwrap(list(simple.words))
        if call is None:
            continue
        scripts = (value for option, value in pairwise(call.args) if option.startswith("-") and option.endswith("c"))
        if call.name in _SHELLS and (inner := next(scripts, "")):
            yield from _calls(inner, depth - 1)
        elif call.name == "cd" and call.args:
            folder = _joined(folder, call.args[0])
        else:
            yield call.evolve(folder=folder)


def _unwrap(words: list[str]) -> ToolCall | None:
    """Split what starts the tool from the tool."""
    launcher: list[str] = []
    rest = list(words)
    while rest:
        length = _launcher_length(rest)
        if length == 0:
            return ToolCall(launcher=tuple(launcher), program=rest[0], args=tuple(rest[1:]))
        name = _basename(rest[0])
        if name in _RUNNERS or _PYTHON.match(name):
            launcher.extend(rest[:length])
        rest = rest[length:]
    return None


def _launcher_length(words: list[str]) -> int:
    """Return how many words only lead to the program; 0 if the first one is it."""
    name = _basename(words[0])
    if name in _PREFIXES or _ASSIGNMENT.match(words[0]):
        return 1
    if name == "timeout":  # its first argument is the duration
        return min(2, len(words))
    if _PYTHON.match(name):
        return words.index("-m") + 1 if "-m" in words[:-1] else 0
    verb = _RUNNERS.get(name)
    if verb is None or (verb and words[1:2] != [verb]):
        return 0
    end = 2 if verb else 1
    while end < len(words) and words[end].startswith("-"):
        end += 2 if words[end] in _RUNNER_VALUES else 1
    return end if end < len(words) else 0


def _basename(word: str) -> str:
    return word.replace("\\", "/").rsplit("/", 1)[-1].removesuffix(".exe")


def _joined(folder: str, further: str) -> str:
    if further.startswith("/") or not folder:
        return further.rstrip("/") if further not in (".", "./") else ""
    return f"{folder}/{further.rstrip('/')}"
