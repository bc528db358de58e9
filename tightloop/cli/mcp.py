"""`tightloop mcp`: an MCP server for AI assistants, and the code that adds it to their configuration."""

import difflib
import json
import os
import re
import secrets
import socket
import stat
import sys
import threading
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from string import Template
from typing import Annotated, Any, NamedTuple

import click

from tightloop.cli.host.server_part import become_server_part
from tightloop.cli.parameters import Argument, DryRun, Option
from tightloop.cli.session import Session, session_of
from tightloop.cli.terminal import show
from tightloop.errors import InvalidRequestError, ServiceUnavailableError, SettingsError
from tightloop.executor.message import REQUEST_EXAMPLE
from tightloop.host import private_folder, state_home
from tightloop.safety.seal import Role

_BYTES = 65_536


def bridge(path: Path) -> None:
    """Forward standard input and output until the server stops or standard input ends.

    Raises:
        ServiceUnavailableError: nothing is listening on the socket, or another user owns the socket.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        try:
            # Not `stat`: another user's link may lead to a socket of this user. A foreign server could read and
            # answer all requests.
            file_status = path.lstat()
            if not stat.S_ISSOCK(file_status.st_mode) or file_status.st_uid not in (0, os.geteuid()):
                raise ServiceUnavailableError(
                    f"{path} is not a socket owned by the current user. Use the path passed to `mcp serve --socket`"
                )
            connection.connect(str(path))
        except OSError as error:
            raise ServiceUnavailableError(
                f"no MCP server is listening on {path}: {error.strerror or error}. "
                f"Start one: tightloop mcp serve --socket {path}"
            ) from None
        # A daemon: it blocks while reading stdin, and must not keep the process alive once the server has ended.
        threading.Thread(target=_send, args=(connection,), daemon=True).start()
        while content := connection.recv(_BYTES):
            sys.stdout.buffer.write(content)
            # The client waits for each message.
            sys.stdout.buffer.flush()


def _send(connection: socket.socket) -> None:
    # `os.read` returns what is available; a buffered read would hold requests back until the buffer is full.
    while content := os.read(sys.stdin.fileno(), _BYTES):
        connection.sendall(content)
    # Pending requests are still answered.
    connection.shutdown(socket.SHUT_WR)


SERVER = "tightloop"
TOKEN = "TIGHTLOOP_TOKEN"  # noqa: S105 - the name of a variable
_TABLE = f"mcp_servers.{SERVER}"
BEGIN, END = "<!-- tightloop: begin -->", "<!-- tightloop: end -->"

Entry = Mapping[str, Any]


class ClientName(StrEnum):
    """Supported MCP client."""

    CURSOR = "cursor"
    CLAUDE = "claude"
    CODEX = "codex"


@dataclass(frozen=True)
class Client:
    """The configuration format and the rules file of an MCP client."""

    config: Callable[[Path], Path]
    """Returns the path of the configuration for a workspace."""
    rules: str
    """Path of the rules file, relative to the workspace."""
    over_http: Callable[[str], Entry]
    merged: Callable[[Path, str, Entry], str]
    """Returns the new text of the configuration, given its path, its old text and the entry for tightloop's server."""
    heading: str | None = None
    """Header of a separate rules file, or None if the rules are a section in the user's own file."""


def json_with(path: Path, text: str, entry: Entry) -> str:
    """Add the tightloop server to a JSON configuration, keeping all other content.

    Raises:
        SettingsError: the configuration cannot be parsed.
    """
    try:
        document = json.loads(text) if text.strip() else {}
    except (ValueError, RecursionError) as error:
        raise SettingsError(f"{path} is not valid JSON ({error}). Fix the file and install again") from None
    servers = document.setdefault("mcpServers", {}) if isinstance(document, dict) else None
    if not isinstance(servers, dict):
        raise SettingsError(f"{path} must be a JSON object with an 'mcpServers' object. Fix the file and install again")
    # The same text, so that a repeated installation does not reformat the user's file.
    if servers.get(SERVER) == entry:
        return text
    servers[SERVER] = dict(entry)
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def toml_with(path: Path, text: str, entry: Entry) -> str:
    """Add the tightloop server to a TOML configuration, keeping all other lines.

    Raises:
        SettingsError: the configuration cannot be parsed, or the existing tightloop entry cannot be replaced.
    """
    before = _read_toml(path, text)
    servers = before.get("mcp_servers", {})
    if isinstance(servers, dict) and servers.get(SERVER) == entry:
        return text
    # Edited as text: the standard library cannot write TOML, and the user's comments must survive.
    remaining = _without_table(text).rstrip("\n")
    lines = [f"[{_TABLE}]"]
    for key, value in entry.items():
        if isinstance(value, dict):
            pairs = ", ".join(f"{name} = {json.dumps(text)}" for name, text in value.items())
            lines.append(f"{key} = {{ {pairs} }}")
        else:
            # Strings and lists of strings have the same syntax in JSON and TOML.
            lines.append(f"{key} = {json.dumps(value)}")
    new_text = (f"{remaining}\n\n" if remaining else "") + "\n".join(lines) + "\n"
    by_hand = f"cannot replace the server {SERVER} in {path}. Remove the server manually and install again"
    try:
        after = tomllib.loads(new_text)
    except tomllib.TOMLDecodeError:
        raise SettingsError(by_hand) from None
    # The edit only knows tables. Inline tables and dotted keys of our server are noticed here.
    if _without_our_server(before) != _without_our_server(after) or after["mcp_servers"][SERVER] != entry:
        raise SettingsError(by_hand)
    return new_text


def block_with(path: Path, text: str, rules: str) -> str:
    """Insert the tightloop rules into a user's rules file as a marked section.

    Raises:
        SettingsError: one of the section markers is missing.
    """
    block = f"{BEGIN}\n{rules.rstrip()}\n{END}\n"
    first, last = text.find(BEGIN), text.find(END)
    if (first < 0) != (last < 0) or last < first:
        raise SettingsError(
            f"{path} contains only one of the markers {BEGIN!r} and {END!r}. Remove that marker and install again"
        )
    if first < 0:
        return f"{text.rstrip()}\n\n{block}" if text.strip() else block
    return text[:first] + block + text[last + len(END) :].removeprefix("\n")


def _read_toml(path: Path, text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{path} is not valid TOML ({error}). Fix the file and install again") from None


def _without_table(text: str) -> str:
    """Remove the tables of the tightloop server from TOML text."""
    lines, ours = [], False
    for line in text.split("\n"):
        if header := re.match(r"\s*\[+([^\]]+)\]", line):
            name = header[1].replace('"', "").replace(" ", "")
            ours = name == _TABLE or name.startswith(f"{_TABLE}.")
        if not ours:
            lines.append(line)
    return "\n".join(lines)


def _without_our_server(document: dict[str, Any]) -> dict[str, Any]:
    servers = {name: value for name, value in document.get("mcp_servers", {}).items() if name != SERVER}
    return {name: value for name, value in document.items() if name != "mcp_servers"} | {"mcp_servers": servers}


CLIENTS = {
    ClientName.CURSOR: Client(
        config=lambda workspace: workspace / ".cursor" / "mcp.json",
        rules=".cursor/rules/tightloop.mdc",
        over_http=lambda url: {"url": url, "headers": {"Authorization": f"Bearer ${{env:{TOKEN}}}"}},
        merged=json_with,
        heading="---\ndescription: How to report on a tightloop plan\nalwaysApply: true\n---\n",
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


LARGEST_BYTES = 4 * 2**20


class Change(NamedTuple):
    """Planned change to a file."""

    path: Path
    old: str | None
    """Old text of the file, or None for a new file."""
    new: str

    @property
    def is_needed(self) -> bool:
        """True if the old and the new text differ."""
        return self.old != self.new

    def lines(self) -> Iterator[str]:
        """Yield the lines of the change as a unified diff."""
        old, new = (self.old or "").splitlines(), self.new.splitlines()
        return difflib.unified_diff(old, new, str(self.path), str(self.path), lineterm="")


def change(path: Path, make: Callable[[Path, str], str], *, root: Path | None = None) -> Change:
    """Plan a change to a file without writing it.

    Args:
        path: path of the file. Symbolic links are followed.
        make: function that takes the path and the old text and returns the new text. The old text of a
            new file is empty.
        root: folder that must contain the file, because links in a repository may point elsewhere.

    Raises:
        SettingsError: the file cannot be read or is outside the folder.
    """
    # Configuration files are often links into a repository of dotfiles, which must stay links.
    real = Path(os.path.realpath(path))
    if root is not None and not real.is_relative_to(os.path.realpath(root)):
        raise SettingsError(f"{path} links to {real}, which is outside {root}. Remove the link and install again")
    try:
        if real.exists() and (not real.is_file() or real.stat().st_size > LARGEST_BYTES):
            raise SettingsError(f"{path} is not a file or is too large. Move it out of the way and install again")
        old = None
        if real.exists():
            # Keep Windows line endings.
            with real.open(encoding="utf-8", newline="") as file:
                old = file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"cannot read {path}: {error}. Fix the file and install again") from None
    return Change(real, old, make(path, old or ""))


def write(edit: Change) -> Path | None:
    """Write a file atomically. Return the path of the backup, or None for a new file.

    Raises:
        SettingsError: the file cannot be written. The old file is kept.
    """
    path, backup = edit.path, None
    # In the same folder, because a rename across file systems is not atomic.
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        if edit.old is not None:
            folder = private_folder(state_home() / "backups")
            backup = folder / f"{path.parent.name}-{path.name}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
            _write_new(backup, edit.old, 0o600)
        path.parent.mkdir(parents=True, exist_ok=True)
        # The configuration may contain keys of other servers, so a private file stays private.
        mode = stat.S_IMODE(path.stat().st_mode) if edit.old is not None else 0o644
        _write_new(temporary, edit.new, mode)
        # Atomic, because the client may read the file at any time.
        temporary.replace(path)
    except OSError as error:
        raise SettingsError(f"cannot write {path}: {error.strerror or error}. Make its folder writable") from None
    finally:
        temporary.unlink(missing_ok=True)
    return backup


def _write_new(path: Path, text: str, mode: int) -> None:
    # O_EXCL: never write through a link that somebody else has put there.
    with os.fdopen(
        os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w", encoding="utf-8", newline=""
    ) as file:
        # The umask may have cleared bits of the mode.
        os.fchmod(file.fileno(), mode)
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


RoleOption = Annotated[
    Role, Option(help="Role of the connection. Use agent for coding agents: that role cannot make decisions.")
]
EpisodeOption = Annotated[str, Option(help="Id of the episode. Default: the only open episode.")]


def serve(
    context: click.Context,
    role: RoleOption = Role.AGENT,
    episode: EpisodeOption = "",
    workspace: Annotated[
        Path | None,
        Option(
            help=(
                "Show only this project. Default: the project in the current folder for an agent, and all projects for "
                "other roles."
            )
        ),
    ] = None,
    socket: Annotated[
        Path | None, Option(help="Serve only the current user, on a Unix socket at this path, until Ctrl-C.")
    ] = None,
    connect: Annotated[
        Path | None, Option(help="Forward standard input and output to the server on this Unix socket.")
    ] = None,
) -> None:
    if connect is not None:
        bridge(connect.absolute())
        return
    options = ["--role", role.value, *(["--episode", episode] if episode else [])]
    for name, path in (("--workspace", workspace), ("--socket", socket)):
        options += [name, str(path.absolute())] if path is not None else []
    become_server_part(session_of(context), "gateway.mcp", *options)


def install(
    context: click.Context,
    client: Annotated[ClientName, Argument(metavar="CLIENT", help="Program to configure: cursor, claude or codex.")],
    workspace: Annotated[Path, Option(help="Project folder.")] = Path(),
    role: RoleOption = Role.AGENT,
    episode: EpisodeOption = "",
    http: Annotated[
        bool,
        Option(
            "--http",
            help=f"Connect through the gateway. The client reads its token from the environment variable {TOKEN}.",
        ),
    ] = False,
    dry_run: DryRun = False,
) -> None:
    session, target, folder = session_of(context), CLIENTS[client], workspace.absolute()
    if not folder.is_dir():
        raise InvalidRequestError(f"--workspace {str(workspace)!r} is not a folder. Specify the project folder")
    if http and role is not Role.AGENT:
        raise InvalidRequestError(
            "with --http, the token determines the role. Create one: tightloop token create NAME --role ROLE"
        )
    entry = _over_http(session, target, episode) if http else _command(session, client, folder, role, episode)
    config = target.config(folder)
    # Codex's configuration is in the home folder, where the user may link as they like.
    root = folder if config.is_relative_to(folder) else None
    template = Template((Path(__file__).parent / "mcp_rules.md").read_text(encoding="utf-8"))
    rules = template.substitute(example=REQUEST_EXAMPLE)
    changes = [change(config, lambda path, text: target.merged(path, text, entry), root=root)]
    if role is Role.AGENT:
        changes.append(
            change(folder / target.rules, lambda path, text: _apply_rules(target, path, text, rules), root=folder)
        )
    # Read and validate all files before writing any.
    for edit in changes:
        if not edit.is_needed:
            show(f"{edit.path} is already up to date")
        elif dry_run:
            show(*edit.lines())
        else:
            backup = write(edit)
            show(f"wrote {edit.path}" + (f" (backup: {backup})" if backup else ""))


def _apply_rules(client: Client, path: Path, text: str, rules: str) -> str:
    return block_with(path, text, rules) if client.heading is None else f"{client.heading}\n{rules}"


def _over_http(session: Session, client: Client, episode: str) -> Any:
    settings = session.settings
    base = settings.gateway.url or f"http://{settings.gateway.address(settings.temporal)}"
    return client.over_http(f"{base}/mcp{f'?episode={episode}' if episode else ''}")


def _command(session: Session, client: ClientName, folder: Path, role: Role, episode: str) -> dict[str, Any]:
    # GUI programs have another PATH, and start the server in a workspace that may contain its own `tightloop`: -P.
    script = Path(sys.executable).with_name(SERVER)
    command, first = (str(script), []) if script.is_file() else (sys.executable, ["-P", "-m", "tightloop.cli.main"])
    if session.settings_file is not None:
        first += ["--settings", str(session.settings_file.absolute())]
    # A single Codex configuration serves all projects; it starts servers in the folder of the session.
    where = [] if client is ClientName.CODEX or role is not Role.AGENT else ["--workspace", str(folder)]
    bound = ["--episode", episode] if episode else []
    # Clients pass few variables of their environment on to servers.
    home = os.environ.get("TIGHTLOOP_HOME", "")
    environment = {"env": {"TIGHTLOOP_HOME": str(Path(home).absolute())}} if home else {}
    return {"command": command, "args": [*first, "mcp", "serve", "--role", role.value, *where, *bound], **environment}
