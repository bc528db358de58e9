"""What the fake model says and does, step by step, with whatever tools an agent offers."""

import json
import posixpath
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

SHELL_TOOLS = ("exec_command", "shell_command", "shell", "local_shell", "bash", "run_shell_command", "execute", "run")
WRITE_TOOLS = ("write", "write_file", "create_file", "create")
COMMAND_FIELDS = ("command", "cmd", "script")
PATH_FIELDS = ("file_path", "filePath", "path", "absolute_path")
TEXT_FIELDS = ("content", "contents", "text", "file_text")
TEXT_AT_THE_END = "done"


@dataclass(frozen=True)
class Tool:
    """A tool that an agent offers."""

    name: str
    schema: Mapping[str, Any] = field(default_factory=dict)
    freeform: bool = False
    """Takes a text instead of arguments."""
    hosted: bool = False
    """The provider's own kind of tool (`local_shell`), with an item type of its own."""


@dataclass(frozen=True)
class Call:
    """The model wants a tool to run."""

    tool: Tool
    arguments: Mapping[str, Any] = field(default_factory=dict)
    text: str = ""
    """Input of a freeform tool."""
    raw: str | None = None
    """Arguments as they stand in the answer, where they are malformed on purpose."""

    @property
    def written(self) -> str:
        """The arguments as the answer has them."""
        return json.dumps(dict(self.arguments)) if self.raw is None else self.raw


@dataclass(frozen=True)
class Several:
    """Calls that are made at once; OpenAI's formats only."""

    calls: tuple[Call, ...] = ()
    text: str = ""
    """Said beside them."""
    cut: bool = False
    """The answer ends at the output limit."""


Act = str | Call | Several
"""What one answer holds: a text, which ends the turn, or calls."""

Step = Callable[[Sequence[Tool]], Act]
"""One step of a script: looks at the offered tools and acts."""


def say(text: str) -> Step:
    """Answer with this text; the agent's turn ends."""
    return lambda _tools: text


def shell(command: str) -> Step:
    """Run a command in the agent's shell tool; without one (a call for a title, say) just end the turn."""
    return lambda tools: _shell(command, tools)


def write(path: str, text: str) -> Step:
    """Write a file with the agent's write tool, else with its shell."""
    return lambda tools: _write(path, text, tools)


def use(*calls: tuple[str, Mapping[str, Any] | str], text: str = "", cut: bool = False) -> Step:
    """Call tools by their names, whether they are offered or not; arguments that are a text are sent as they are."""
    made = tuple(
        Call(Tool(name), raw=given) if isinstance(given, str) else Call(Tool(name), given) for name, given in calls
    )
    return lambda _tools: Several(made, text, cut)


def act(steps: Sequence[Step], number: int, tools: Sequence[Tool]) -> Act:
    """Return what the model does at step `number` (from 0)."""
    return steps[number](tools) if number < len(steps) else TEXT_AT_THE_END


def _shell(command: str, tools: Sequence[Tool]) -> Act:
    tool = _named(SHELL_TOOLS, tools)
    if tool is None:
        return TEXT_AT_THE_END
    if tool.freeform:
        return Call(tool, text=command)
    if tool.hosted:
        return Call(tool, {"command": ["bash", "-lc", command]})
    wanted = _field(COMMAND_FIELDS, tool)
    as_list = tool.schema.get("properties", {}).get(wanted, {}).get("type") == "array"
    return _filled(tool, {wanted: ["bash", "-lc", command] if as_list else command})


def _write(path: str, text: str, tools: Sequence[Tool]) -> Act:
    tool = _named(WRITE_TOOLS, tools)
    if tool is not None and not tool.freeform:
        return _filled(tool, {_field(PATH_FIELDS, tool): path, _field(TEXT_FIELDS, tool): text})
    patcher = _named(("apply_patch",), tools)
    if patcher is not None and text.endswith("\n"):
        return _patch(path, text, patcher)
    folder = posixpath.dirname(path) or "."
    made = f"mkdir -p {shlex.quote(folder)} && printf %s {shlex.quote(text)} > {shlex.quote(path)}"
    return _shell(made, tools)


def _patch(path: str, text: str, tool: Tool) -> Call:
    added = "".join(f"+{line}\n" for line in text.splitlines())
    patch = f"*** Begin Patch\n*** Add File: {path}\n{added}*** End Patch\n"
    return Call(tool, text=patch) if tool.freeform else _filled(tool, {_field(("input", "patch"), tool): patch})


def _named(names: Sequence[str], tools: Sequence[Tool]) -> Tool | None:
    """Return the first tool of these names; `mcp__acp__Bash` counts as `bash`."""
    offered = {tool.name.rpartition("__")[2].lower(): tool for tool in reversed(tools)}
    return next((offered[name] for name in names if name in offered), None)


def _field(names: Sequence[str], tool: Tool) -> str:
    """Return which of these names the tool's schema has."""
    properties = tool.schema.get("properties", {})
    return next((name for name in names if name in properties), names[0])


def _filled(tool: Tool, known: Mapping[str, Any]) -> Call:
    """Return a call with every required argument; those not known get a harmless value of their type."""
    properties = tool.schema.get("properties", {})
    missing = [name for name in tool.schema.get("required", ()) if name not in known]
    return Call(tool, {**{name: _harmless(properties.get(name, {})) for name in missing}, **known})


def _harmless(schema: Mapping[str, Any]) -> Any:
    if schema.get("enum"):
        return schema["enum"][0]
    kind = str(schema.get("type", "string")).lower()
    return {"integer": 1, "number": 1, "boolean": False, "array": [], "object": {}}.get(kind, "as planned")
