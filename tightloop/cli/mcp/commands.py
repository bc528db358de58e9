"""The commands: serve MCP, and install it for a client."""

import os
import sys
from pathlib import Path
from string import Template
from typing import Annotated, Any

import typer

from tightloop.cli.host.server_part import become_server_part
from tightloop.cli.mcp.bridge import bridge
from tightloop.cli.mcp.clients import CLIENTS, SERVER, TOKEN, Client, ClientName, block_with
from tightloop.cli.mcp.writing import change, write
from tightloop.cli.render.terminal import show
from tightloop.cli.session import Session, session_of
from tightloop.errors import InvalidRequestError
from tightloop.executor.messages.message import REQUEST_EXAMPLE
from tightloop.safety.person import Role

RoleOption = Annotated[
    Role, typer.Option(help="What the connection may do. An agent that does the work is an agent, and decides nothing.")
]
EpisodeOption = Annotated[str, typer.Option(help="Id of the episode that it is about. Default: the only open one.")]


def serve(
    context: typer.Context,
    role: RoleOption = Role.AGENT,
    episode: EpisodeOption = "",
    workspace: Annotated[
        Path | None, typer.Option(help="Only this project is seen. Default: of an agent the current folder, else all.")
    ] = None,
    socket: Annotated[
        Path | None, typer.Option(help="Serve at this Unix socket, for this user alone, until Ctrl-C.")
    ] = None,
    connect: Annotated[
        Path | None, typer.Option(help="Pass standard input and output on to the server at this Unix socket.")
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
    context: typer.Context,
    client: Annotated[ClientName, typer.Argument(help="Which program.")],
    workspace: Annotated[Path, typer.Option(help="Folder of the project.")] = Path(),
    role: RoleOption = Role.AGENT,
    episode: EpisodeOption = "",
    http: Annotated[
        bool, typer.Option("--http", help=f"Use the gateway; the client reads the token from the variable {TOKEN}.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would change.")] = False,
) -> None:
    session, found, folder = session_of(context), CLIENTS[client], workspace.absolute()
    if not folder.is_dir():
        raise InvalidRequestError(f"--workspace {str(workspace)!r} is not a folder. Name the folder of the project")
    if http and role is not Role.AGENT:
        raise InvalidRequestError("with --http the token decides the role: tightloop token create NAME --role ROLE")
    entry = _over_http(session, found, episode) if http else _command(session, client, folder, role, episode)
    config = found.config(folder)
    within = folder if config.is_relative_to(folder) else None
    template = Template((Path(__file__).parent / "rules.md").read_text(encoding="utf-8"))
    rules = template.substitute(example=REQUEST_EXAMPLE)
    changes = [change(config, lambda path, text: found.merged(path, text, entry), within=within)]
    if role is Role.AGENT:
        changes.append(change(folder / found.rules, lambda path, text: _ruled(found, path, text, rules), within=folder))
    # All is read, and refused where it is wrong, before anything is written.
    for one in changes:
        if not one.is_needed:
            show(f"{one.path}: nothing to change")
        elif dry_run:
            show(*one.lines())
        else:
            backup = write(one)
            show(f"{one.path}: written" + (f"; what was there: {backup}" if backup else ""))


def _ruled(client: Client, path: Path, text: str, rules: str) -> str:
    return block_with(path, text, rules) if client.heading is None else f"{client.heading}\n{rules}"


def _over_http(session: Session, client: Client, episode: str) -> Any:
    settings = session.settings
    base = settings.gateway.url or f"http://{settings.gateway.address(settings.temporal)}"
    return client.over_http(f"{base}/mcp{f'?episode={episode}' if episode else ''}")


def _command(session: Session, client: ClientName, folder: Path, role: Role, episode: str) -> dict[str, Any]:
    # Programs with windows have another PATH, and start it in a workspace, which may have a `tightloop` of its own: -P.
    script = Path(sys.executable).with_name(SERVER)
    command, first = (str(script), []) if script.is_file() else (sys.executable, ["-P", "-m", "tightloop.cli.main"])
    if session.settings_file is not None:
        first += ["--settings", str(session.settings_file.absolute())]
    # One configuration of Codex serves all projects; it starts servers in the folder of the session.
    where = [] if client is ClientName.CODEX or role is not Role.AGENT else ["--workspace", str(folder)]
    bound = ["--episode", episode] if episode else []
    home = os.environ.get("TIGHTLOOP_HOME", "")
    environment = {"env": {"TIGHTLOOP_HOME": str(Path(home).absolute())}} if home else {}
    return {"command": command, "args": [*first, "mcp", "serve", "--role", role.value, *where, *bound], **environment}
