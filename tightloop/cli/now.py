"""`list`, `status` and `inbox`: answered by this host's gateway if possible, otherwise (more slowly) by Temporal."""

import http.client
import json
import re
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Annotated, Any, Literal, NamedTuple
from urllib.parse import quote, urlencode

import click

from tightloop.cli.parameters import AsJson, Id, Option, Project
from tightloop.cli.terminal import as_plain_values, plain, show, show_json
from tightloop.cli.views import (
    drift_lines,
    is_episode,
    is_loop,
    list_table,
    question_lines,
    status_panel,
    steps_table,
    todo_lines,
)
from tightloop.errors import TightloopError
from tightloop.host import settings_mark
from tightloop.host.access import check_listener, cookie_name, page_key, read_note, session_of
from tightloop.wording import CLOSED_STATUSES, OPEN_STATUSES, START_HINT, format_count

SECONDS = 10.0
"""Timeout in seconds. If a request takes longer, the command falls back to Temporal, which reports the reason."""
_SESSION_MS = 60_000
_TIMES = frozenset({"at", "as_of", "closed", "next_attempt", "since", "started", "waiting_since"})
_LENGTHS = frozenset({"wall_time", "max_wall_time"})
_MAPPINGS = frozenset({"counts"})


class Document:
    """An object from an API response. Its fields have the names and types of tightloop's models."""

    def __init__(self, fields: dict[str, Any]) -> None:
        self.fields = fields

    def __getattr__(self, name: str) -> Any:
        """Return the field with this name in tightloop's models.

        Raises:
            AttributeError: the field does not exist.
        """
        parts = name.split("_")
        try:
            # The API uses camelCase, the models snake_case.
            value = self.fields[parts[0] + "".join(map(str.title, parts[1:]))]
        except KeyError:
            raise AttributeError(name) from None
        if value is None:
            return None
        if name in _TIMES:
            return datetime.fromisoformat(value)
        if name in _MAPPINGS:
            return value
        return timedelta(seconds=value) if name in _LENGTHS else _documents(value)


def _documents(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_documents, value))
    return Document(value) if isinstance(value, dict) else value


def plain_names(value: Any) -> Any:
    """Rename the fields of an API value to the models' field names."""
    if isinstance(value, list):
        return [plain_names(item) for item in value]
    if isinstance(value, dict):
        return {re.sub("([A-Z])", r"_\1", name).lower(): plain_names(item) for name, item in value.items()}
    return value


class Gateway(NamedTuple):
    """Connection details for this host's gateway, including a session for the gateway's owner."""

    address: str
    host: str
    cookie: str

    def get(self, *path: str, **query: object) -> dict[str, Any] | None:
        """Send a GET request and return the JSON object in the response, or None if the request failed."""
        # The standard library's client: importing another one would take longer than the request.
        connection = http.client.HTTPConnection(self.address, timeout=SECONDS)
        target = "/".join(("/api", *(quote(part, safe="") for part in path)))
        try:
            # The gateway refuses unknown host names, against DNS rebinding.
            headers = {"Host": self.host, "Cookie": self.cookie}
            connection.request("GET", f"{target}?{urlencode(query)}", headers=headers)
            answer = connection.getresponse()
            content = answer.read()
            document: Any = json.loads(content) if answer.status == http.client.OK else None
        # Every failure falls back to Temporal, whose error explains the problem.
        except (OSError, http.client.HTTPException, ValueError):
            return None
        finally:
            connection.close()
        return document if isinstance(document, dict) else None


def gateway_here(options: dict[str, Any] | None) -> Gateway | None:
    """Return this host's gateway if it uses the same settings as this command.

    Args:
        options: global options, which are unknown to the gateway.
    """
    # These options may select a different installation than the gateway's.
    if any((options or {}).values()):
        return None
    try:
        note = read_note()
        if note is None or note["settings"] != settings_mark():
            return None
        # The port in the note may have been taken by another user since; a session must not be sent there.
        check_listener(int(note["address"].rpartition(":")[2]))
        # Signed here with the page's key, which only this user can read. The session expires after a short time.
        expires = time.time_ns() // 1_000_000 + _SESSION_MS
        session = session_of(page_key(), note["host"], "owner", expires)
        return Gateway(note["address"], note["host"], f"{cookie_name(note['host'])}={session}")
    except (TightloopError, OSError, KeyError, ValueError):
        return None


QUESTIONS_OF = 5
"""Maximum number of workflows in a list for which questions are shown."""
Kind = Literal["episode", "plan", "loop"]


def list_workflows(
    context: click.Context,
    status: Annotated[
        str | None, Option(help=f"Show only runs with this status: {', '.join(OPEN_STATUSES + CLOSED_STATUSES)}.")
    ] = None,
    kind: Annotated[Kind | None, Option(help="Show only episodes or only plans.")] = None,
    limit: Annotated[int, Option(min=1, help="Maximum number of entries.")] = 50,
    as_json: AsJson = False,
) -> None:
    # Programs get Temporal's documents whether or not a gateway runs; an unknown status gets the client's error.
    gateway = None if as_json or status not in (None, *OPEN_STATUSES, *CLOSED_STATUSES) else gateway_here(context.obj)
    listing: Any = _list_rows(gateway, status, kind, limit) if gateway is not None else None
    if listing is None:
        # Lazy import: loading Temporal's SDK and the models takes longer than asking the gateway.
        from tightloop.cli.look import rows_of_temporal
        from tightloop.cli.session import session_of

        listing = rows_of_temporal(
            session_of(context), status, kind, limit, questions_of=0 if as_json else QUESTIONS_OF
        )
    rows, waiting = listing
    if as_json:
        show_json(rows)
    elif rows:
        show(list_table(rows), *(line for run_status in waiting for line in _named_todo(run_status)))
    else:
        what = kind or "episode or plan"
        show(f"no {what} with status {status}" if status else f"no {what} yet. {START_HINT}")


def _list_rows(
    gateway: Gateway, status: str | None, kind: str | None, limit: int
) -> tuple[list[Document], list[Document]] | None:
    """Return the rows of `list` and the statuses of waiting workflows.

    Return None if the gateway does not respond.
    """
    projects = gateway.get("projects")
    if projects is None:
        return None
    workspaces = {project["id"]: project["workspace"] for project in projects["items"]}
    rows: list[Document] = []
    for row_kind in (kind,) if kind else ("episode", "plan", "loop"):
        page = _page(gateway, row_kind, status, limit)
        # While Temporal is unreachable, each further request would wait as long.
        if page is None:
            return None
        rows += [_row(line, workspaces) for line in page]
    rows.sort(key=lambda row: row.started.timestamp() if row.started else 0.0, reverse=True)
    # `_status` has no documents of project plans.
    waiting_rows = [row for row in rows[:limit] if row.pause_kind and row.kind != "loop"][:QUESTIONS_OF]
    waiting = [_status(gateway, row.id) for row in waiting_rows]
    return rows[:limit], [run_status for run_status in waiting if run_status is not None]


def _page(gateway: Gateway, kind: str, status: str | None, limit: int) -> list[dict[str, Any]] | None:
    query = {} if status is None else {"status": status}
    query |= {} if kind == "episode" else {"kind": kind}
    # The ledger does not know workflows that no worker has opened.
    # 500 is the API's maximum page size.
    page = gateway.get("episodes" if kind == "episode" else "plans", limit=min(limit, 500), fresh="true", **query)
    return None if page is None else page["items"]


def _row(line: dict[str, Any], workspaces: dict[str, str]) -> Document:
    """Convert a ledger row to a row of Temporal's list."""
    # A running episode may have an optional question, which is not a pause.
    waits = line["questions"] and (line["status"] == "paused" or line["kind"] != "episode")
    pause = line["questions"][0]["kind"] if waits else ""
    return Document({**line, "pauseKind": pause, "workspace": workspaces.get(line["project"], "")})


def _named_todo(status: Any) -> list[str]:
    todo = todo_lines(status)
    name = status.episode_id if is_episode(status) else status.plan_id
    return [f"{name}: {todo[0]}", *todo[1:], ""] if todo else []


def status(
    context: click.Context,
    workflow: Id,
    steps: Annotated[bool, Option("--steps", help="Also list all steps of a plan.")] = False,
    as_json: AsJson = False,
) -> None:
    # The gateway's documents do not contain the steps.
    gateway = None if as_json or steps else gateway_here(context.obj)
    run_status: Any = _status(gateway, workflow, fresh="true") if gateway is not None else None
    lines: Sequence[Any] = ()
    if run_status is None:
        from tightloop.cli.look import status_of_temporal
        from tightloop.cli.session import session_of

        run_status, lines = status_of_temporal(session_of(context), workflow, steps=steps)
    if as_json:
        document = run_status.model_dump(mode="json")
        show_json({**document, "steps": as_plain_values(lines)} if steps else document)
        return
    drifts = () if is_loop(run_status) else run_status.drifts
    show(status_panel(run_status), *([steps_table(lines)] if steps else []), *drift_lines(drifts))


def _status(gateway: Gateway, workflow: str, **query: str) -> Document | None:
    """Return the status of the run with this full id.

    Return None if the run is unknown or is a project plan.
    """
    # An id does not tell its kind; the prefix of generated plan ids avoids a second request in most cases.
    for noun in ("plans", "episodes") if workflow.startswith("plan") else ("episodes", "plans"):
        reply = gateway.get(noun, workflow, **query)
        if reply is not None:
            return Document(reply["details"]) if "details" in reply else None
    return None


def inbox(context: click.Context, project: Project = "", as_json: AsJson = False) -> None:
    # The API takes complete project ids; a prefix is resolved with the ledger.
    gateway = None if project else gateway_here(context.obj)
    entries: Sequence[Any]
    items = gateway.get("inbox") if gateway is not None else None
    if items is None:
        from tightloop.cli.look import ledger_inbox
        from tightloop.cli.session import session_of

        entries = ledger_inbox(session_of(context).settings, project)
    else:
        # Links exist only in the API; the ledger's items have none.
        entries = [Document({name: it for name, it in item.items() if name != "answerHref"}) for item in items["items"]]
    if as_json:
        show_json([plain_names(item.fields) if isinstance(item, Document) else item for item in entries])
    elif entries:
        counts = Counter(item.workflow_id for item in entries)
        show(*(line for item in entries for line in (*_item_lines(item, alone=counts[item.workflow_id] == 1), "")))
    else:
        show("Nothing needs your attention.")


def _item_lines(item: Any, *, alone: bool) -> Iterable[str]:
    # The question's own step counts as blocked, too.
    blocks = f"; {format_count(item.blocks - 1, 'more step')} blocked" if item.blocks > 1 and not item.tasks else ""
    if item.loop:
        waits = f"; {', '.join(item.tasks[1:])} wait for {item.tasks[0]}" if len(item.tasks) > 1 else ""
        blocks += f"; part of {item.loop}{waits}"
    goal = f": {plain(item.goal.partition(chr(10))[0])}" if item.goal else ""
    first, *rest = question_lines(item.workflow_id, item.question, alone=alone)
    return [f"{item.workflow_id}{goal}  ({item.project}{blocks})", plain(first), *map(plain, rest)]
