"""The commands about bearer tokens of the gateway. The token itself is shown once."""

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from tightloop.cli.host.commands import read_days
from tightloop.cli.look.stored import project_named, require_ledger
from tightloop.cli.render.terminal import coloured, show, show_either, show_json, table
from tightloop.cli.session import AsJson, Session, session_of
from tightloop.safety.person import Role

if TYPE_CHECKING:
    from tightloop.database.access.tokens import Token, Tokens


def create(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="Who has it; stands in answers and approvals, such as anna.")],
    role: Annotated[Role, typer.Option(help="What it may do; each role includes those before it.")] = Role.VIEWER,
    project: Annotated[
        list[str] | None,
        typer.Option(help="Id of a project that it sees, or how the id begins; several: repeat it. Default: all."),
    ] = None,
    episode: Annotated[str, typer.Option(help="Of an agent: the id of the episode that it works for.")] = "",
    expires: Annotated[str, typer.Option(help="Time until it expires, such as 90d or 12h; 'never'.")] = "90d",
    as_json: AsJson = False,
) -> None:
    lasts = None if expires == "never" else timedelta(days=read_days(expires, "--expires"))
    ledger = require_ledger(session_of(context).settings)
    wanted = [project_named(ledger, one) for one in project or ()]
    if episode and not wanted:
        wanted = [ledger.workflow(episode).project]
    token, text = _tokens(session_of(context)).create(name, role, wanted, episode=episode, lasts=lasts)
    show_either({**token.model_dump(mode="json"), "token": text}, text, as_json=as_json)


def list_tokens(context: typer.Context, as_json: AsJson = False) -> None:
    found = _tokens(session_of(context)).all()
    if as_json:
        show_json([token.model_dump(mode="json") for token in found])
        return
    made = table("NAME", "ROLE", "STATE", "EXPIRES", "PROJECTS", "EPISODE")
    for token in found:
        expires = f"{token.expires.astimezone():%Y-%m-%d %H:%M}" if token.expires else "never"
        made.add_row(
            token.name,
            token.role.value,
            coloured(_state(token)),
            expires,
            ", ".join(token.projects) or "all",
            token.episode,
        )
    show(made if found else "no token yet. Make one: tightloop token create NAME --role operator")


def revoke(context: typer.Context, name: Annotated[str, typer.Argument(help="Name of a valid token.")]) -> None:
    _tokens(session_of(context)).revoke(name)
    show(f"{name} opens nothing any more")


def _tokens(session: Session) -> "Tokens":
    ledger = require_ledger(session.settings)
    from tightloop.database.access.tokens import Tokens

    return Tokens(ledger.database)


def _state(token: "Token") -> str:
    if token.revoked is not None:
        return "revoked"
    return "valid" if token.is_valid(datetime.now(UTC)) else "expired"
