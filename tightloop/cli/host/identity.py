"""The commands about this host's identity: its name, and the hosts whose work it has adopted."""

from typing import Annotated

import typer

from tightloop.cli.render.terminal import show_either
from tightloop.cli.session import AsJson, session_of
from tightloop.client import Poller, TightloopClient
from tightloop.errors import InvalidRequestError
from tightloop.host.identity import HostIdentity, adopt_host, queue_of, read_identity


def show(context: typer.Context, as_json: AsJson = False) -> None:
    settings = session_of(context).settings
    identity = read_identity(settings)
    if identity is None:
        raise InvalidRequestError("this host has no name yet: the first worker makes it. Start one: tightloop up")
    told = {"name": identity.name, "adopted": identity.adopted, "queues": identity.queues(settings)}
    show_either(told, _line(identity), as_json=as_json)


def adopt(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="HOST", help="Name of the other host, or its task queue.")],
    release: Annotated[bool, typer.Option("--release", help="Leave its work to it again.")] = False,
) -> None:
    session = session_of(context)
    queue = queue_of(session.settings, name.removeprefix(queue_of(session.settings, "")))
    known = read_identity(session.settings)
    if not release and (known is None or queue not in known.queues(session.settings)):

        async def ask(client: TightloopClient) -> tuple[Poller, ...]:
            return await client.pollers(queue)

        if pollers := session.run(ask):
            raise InvalidRequestError(
                f"worker {pollers[0].process} works as {name!r}: two hosts would do its work. Stop it first; Temporal "
                "may list it for a minute after it was killed"
            )
    identity = adopt_host(session.settings, name, release=release)
    typer.echo(f"{_line(identity)}. It counts once the workers of this host were started again")


def _line(identity: HostIdentity) -> str:
    adopted = f", and works for {', '.join(identity.adopted)}" if identity.adopted else ""
    return f"this host is {identity.name}{adopted}"
