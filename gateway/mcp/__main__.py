"""`python -m gateway.mcp`: serve MCP on standard input and output, or on a Unix socket, as the user who starts it."""

import argparse
import asyncio
import contextlib
import logging
import os
import signal
import sys
from pathlib import Path

from gateway.access.scope import Scope, Services
from gateway.mcp.report import Caller, serve_socket, serve_stdio
from gateway.mcp.server import Context, mcp_server
from tightloop.client import TightloopClient
from tightloop.database.ledger import open_ledger
from tightloop.errors import TightloopError
from tightloop.executor.model import EPISODE_VARIABLE
from tightloop.host import load_settings, open_state_home
from tightloop.host.log import set_up
from tightloop.safety.seal import Person, Role
from tightloop.settings import Settings


def main() -> int:
    """Run the MCP server and return its exit code.

    If there is a tightloop error, it is printed as one sentence and the exit code is 1.
    """
    set_up(logging.WARNING, content=False)
    parser = argparse.ArgumentParser(prog="tightloop mcp serve", description=__doc__)
    parser.add_argument("--settings", type=Path)
    parser.add_argument("--role", type=Role, choices=list(Role), default=Role.AGENT)
    parser.add_argument("--episode", default="")
    parser.add_argument("--workspace", type=Path)
    parser.add_argument("--socket", type=Path)
    arguments = parser.parse_args()
    try:
        settings = load_settings(arguments.settings)
        open_state_home()
        person = person_of(arguments.role, arguments.episode, os.environ.get(EPISODE_VARIABLE, ""))
        asyncio.run(
            _serve(settings, person, episode=arguments.episode, workspace=arguments.workspace, path=arguments.socket)
        )
    except TightloopError as error:
        print(f"error: {error.message}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def person_of(role: Role, episode: str, working_for: str) -> Person:
    """Return the person on whose behalf a connection acts.

    Args:
        role: the requested role.
        episode: the named episode. An agent works on this episode.
        working_for: the episode that the parent process works on. If it is set, the caller is an agent,
            regardless of `role`.
    """
    user = os.environ.get("USER") or "operator"
    # An agent must not extend its rights by starting this server with another --role.
    if working_for:
        role, episode = Role.AGENT, working_for
    if role is Role.AGENT:
        return Person(name=f"agent of {user}", role=role, episode=episode)
    return Person(name=user, role=role)


async def _serve(
    settings: Settings, person: Person, *, episode: str, workspace: Path | None, path: Path | None
) -> None:
    opened: list[Scope] = []
    opening = asyncio.Lock()
    # An agent sees one project only; otherwise it could take the only open episode of another one for its own.
    if workspace is None and person.role is Role.AGENT and not person.episode:
        workspace = Path.cwd()

    async def caller_of(_: Context) -> Caller:
        # Opened by the first call, because an editor may start this process before Temporal runs.
        async with opening:
            if not opened:
                client = await TightloopClient.connect(settings=settings)
                scope = Scope(person, Services(open_ledger(settings), client, settings))
                if workspace is not None:
                    project = await scope.project_of(str(workspace.absolute()))
                    scope = Scope(person.evolve(projects=(project,)), scope.services)
                opened.append(scope)
        return Caller(opened[0], "" if person.episode else episode)

    server = mcp_server(caller_of)
    if path is None:
        await serve_stdio(server)
        return
    ending = asyncio.current_task()
    assert ending is not None
    # Cancelled instead of killed, so that the file of the socket is removed.
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ending.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await serve_socket(server, path.absolute())


if __name__ == "__main__":
    sys.exit(main())
