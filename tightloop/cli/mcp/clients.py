"""The programs that MCP is installed for: where their configuration is, and how a server is written in it."""

import json
import os
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from tightloop.errors import SettingsError

SERVER = "tightloop"
TOKEN = "TIGHTLOOP_TOKEN"  # noqa: S105 - the name of a variable
_TABLE = f"mcp_servers.{SERVER}"
BEGIN, END = "<!-- tightloop: begin -->", "<!-- tightloop: end -->"

Entry = Mapping[str, Any]


class ClientName(StrEnum):
    """A program with MCP."""

    CURSOR = "cursor"
    CLAUDE = "claude"
    CODEX = "codex"


@dataclass(frozen=True)
class Client:
    """Where one program reads servers and rules, and how."""

    config: Callable[[Path], Path]
    """From the workspace."""
    rules: str
    """Below the workspace."""
    over_http: Callable[[str], Entry]
    merged: Callable[[Path, str, Entry], str]
    """Makes the new text of the configuration from its path, the old text and the entry of our server."""
    heading: str | None = None
    """What a rules file of its own begins with; None: the rules are a part of the user's own file."""


def json_with(path: Path, text: str, entry: Entry) -> str:
    """Return a JSON configuration with our server; all other content stays.

    Raises:
        SettingsError: it cannot be read.
    """
    try:
        document = json.loads(text) if text.strip() else {}
    except (ValueError, RecursionError) as error:
        raise SettingsError(f"{path} is not valid JSON ({error}). Correct it, then install again") from None
    servers = document.setdefault("mcpServers", {}) if isinstance(document, dict) else None
    if not isinstance(servers, dict):
        raise SettingsError(f"{path} has no object 'mcpServers' where it should. Correct it, then install again")
    if servers.get(SERVER) == entry:
        return text
    servers[SERVER] = dict(entry)
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def toml_with(path: Path, text: str, entry: Entry) -> str:
    """Return a TOML configuration with our server; all other lines stay as they are.

    Raises:
        SettingsError: it cannot be read, or has our server in a form that cannot be replaced.
    """
    before = _read_toml(path, text)
    known = before.get("mcp_servers", {})
    if isinstance(known, dict) and known.get(SERVER) == entry:
        return text
    kept = _without_table(text).rstrip("\n")
    lines = [f"[{_TABLE}]"]
    for key, value in entry.items():
        if isinstance(value, dict):
            pairs = ", ".join(f"{name} = {json.dumps(text)}" for name, text in value.items())
            lines.append(f"{key} = {{ {pairs} }}")
        else:
            # A text or a list of texts is the same in JSON and in TOML.
            lines.append(f"{key} = {json.dumps(value)}")
    made = (f"{kept}\n\n" if kept else "") + "\n".join(lines) + "\n"
    by_hand = f"the server {SERVER} of {path} cannot be replaced. Remove it there by hand, then install again"
    try:
        after = tomllib.loads(made)
    except tomllib.TOMLDecodeError:
        raise SettingsError(by_hand) from None
    if _others(before) != _others(after) or after["mcp_servers"][SERVER] != entry:
        raise SettingsError(by_hand)
    return made


def block_with(path: Path, text: str, rules: str) -> str:
    """Return a user's own file of rules with ours as a marked part of it.

    Raises:
        SettingsError: one of the marks is missing.
    """
    block = f"{BEGIN}\n{rules.rstrip()}\n{END}\n"
    first, last = text.find(BEGIN), text.find(END)
    if (first < 0) != (last < 0) or last < first:
        raise SettingsError(f"{path} has only one of the marks {BEGIN!r} and {END!r}. Remove it, then install again")
    if first < 0:
        return f"{text.rstrip()}\n\n{block}" if text.strip() else block
    return text[:first] + block + text[last + len(END) :].removeprefix("\n")


def _read_toml(path: Path, text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{path} is not valid TOML ({error}). Correct it, then install again") from None


def _without_table(text: str) -> str:
    """Return a TOML text without the tables of our server."""
    kept, ours = [], False
    for line in text.split("\n"):
        if header := re.match(r"\s*\[+([^\]]+)\]", line):
            name = header[1].replace('"', "").replace(" ", "")
            ours = name == _TABLE or name.startswith(f"{_TABLE}.")
        if not ours:
            kept.append(line)
    return "\n".join(kept)


def _others(document: dict[str, Any]) -> dict[str, Any]:
    servers = {name: value for name, value in document.get("mcp_servers", {}).items() if name != SERVER}
    return {name: value for name, value in document.items() if name != "mcp_servers"} | {"mcp_servers": servers}


CLIENTS = {
    ClientName.CURSOR: Client(
        config=lambda workspace: workspace / ".cursor" / "mcp.json",
        rules=".cursor/rules/tightloop.mdc",
        over_http=lambda url: {"url": url, "headers": {"Authorization": f"Bearer ${{env:{TOKEN}}}"}},
        merged=json_with,
        heading="---\ndescription: How to report on a plan of tightloop\nalwaysApply: true\n---\n",
    ),
    ClientName.CLAUDE: Client(
        config=lambda workspace: workspace / ".mcp.json",
        rules="CLAUDE.md",
        over_http=lambda url: {"type": "http", "url": url, "headers": {"Authorization": f"Bearer ${{{TOKEN}}}"}},
        merged=json_with,
    ),
    ClientName.CODEX: Client(
        config=lambda _: Path(os.environ.get("CODEX_HOME", "") or Path.home() / ".codex") / "config.toml",
        rules="AGENTS.md",
        over_http=lambda url: {"url": url, "bearer_token_env_var": TOKEN},
        merged=toml_with,
    ),
}
