"""The commands that read the ledger: what waits for a person, and what happened on a day."""

from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from tightloop.cli.render.question import question_lines
from tightloop.cli.render.terminal import plain, show, show_json
from tightloop.cli.session import AsJson, session_of
from tightloop.errors import InvalidRequestError, ServiceUnavailableError
from tightloop.ledger.digest import digest_lines, is_worth_telling
from tightloop.ledger.model import InboxItem
from tightloop.settings import Settings
from tightloop.value import counted

if TYPE_CHECKING:
    from tightloop.database.ledger import Ledger

Project = Annotated[str, typer.Option(help="Id of a project, or its unambiguous beginning. Default: all.")]


def inbox(context: typer.Context, project: Project = "", as_json: AsJson = False) -> None:
    ledger = require_ledger(session_of(context).settings)
    items = ledger.inbox(project_named(ledger, project) if project else "")
    if as_json:
        show_json([item.model_dump(mode="json") for item in items])
    elif items:
        show(*(line for item in items for line in (*_item_lines(item), "")))
    else:
        open_ones = sum(line.running for line in ledger.projects())
        show(f"nothing waits for you; {open_ones} of episodes and plans {'is' if open_ones == 1 else 'are'} open")


def _item_lines(item: InboxItem) -> list[str]:
    blocks = f"; blocks {counted(item.blocks, 'step')}" if item.blocks > 1 and not item.tasks else ""
    if item.loop:
        waits = f"; {', '.join(item.tasks[1:])} wait for {item.tasks[0]}" if len(item.tasks) > 1 else ""
        blocks += f"; within {item.loop}{waits}"
    goal = f": {plain(item.goal.partition(chr(10))[0])}" if item.goal else ""
    first, *others = question_lines(item.workflow_id, item.question, alone=False)
    return [f"{item.workflow_id}{goal}  ({item.project}{blocks})", plain(first), *map(plain, others)]


def digest(
    context: typer.Context,
    project: Project = "",
    day: Annotated[str, typer.Option(metavar="YYYY-MM-DD", help="In UTC. Default: today.")] = "",
    as_json: AsJson = False,
) -> None:
    ledger = require_ledger(session_of(context).settings)
    wanted = _day(day)
    names = [project_named(ledger, project)] if project else [line.id for line in ledger.projects()]
    found = [ledger.digest(name, wanted) for name in names]
    if as_json:
        show_json([one.model_dump(mode="json") for one in found])
    elif shown := [
        line for one in found if project or is_worth_telling(one) for line in (*map(plain, digest_lines(one)), "")
    ]:
        show(*shown)
    else:
        show(f"nothing happened on {wanted}, and nothing waits")


def _day(text: str) -> date:
    if not text:
        return datetime.now(UTC).date()
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise InvalidRequestError(f"--day {text!r} is not a date. Write it like 2026-01-31") from None


def project_named(ledger: "Ledger", reference: str) -> str:
    """Return the id of the project that a person means.

    Raises:
        InvalidRequestError: none, or more than one, is meant.
    """
    known = [line.id for line in ledger.projects()]
    fitting = [one for one in known if one == reference] or [one for one in known if one.startswith(reference)]
    if len(fitting) != 1:
        named = f"fits {len(fitting)} projects: {', '.join(fitting[:5])}" if fitting else "is no project here"
        raise InvalidRequestError(f"{reference!r} {named}. Known: {', '.join(known[:8]) or 'none yet'}")
    return fitting[0]


def require_ledger(settings: Settings) -> "Ledger":
    """Return the ledger that the settings name.

    Raises:
        ServiceUnavailableError: only the client is installed here.
    """
    try:
        from tightloop.database.opening import open_ledger
    except ImportError:
        raise ServiceUnavailableError(
            "the ledger cannot be read here: only the client is installed, without the server part. Build and install "
            "tightloop-server: docs/operate/install.md; or ask the gateway: GET /api/inbox"
        ) from None
    return open_ledger(settings)
