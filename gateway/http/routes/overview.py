"""What goes on everywhere: projects, the inbox, the digest of a day, metrics, live events."""

from datetime import UTC, date, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request
from starlette.responses import Response, StreamingResponse

from gateway.http.bodies import Inbox, ProjectFilter, ProjectId
from gateway.http.camel import Shown, shown
from gateway.http.hub import Wanted
from gateway.http.services import InScope
from tightloop.errors import InvalidRequestError
from tightloop.ledger.metrics import Division, MetricsFilter, MetricsReport, read_range
from tightloop.ledger.model import Digest, ProjectLine

STREAM = "text/event-stream"
_SEGMENTS = {"episode": "episodes", "plan": "plans", "loop": "plans"}

TimeOf = Annotated[
    str,
    Query(
        max_length=25,
        pattern=r"^([0-9]{1,4}[hd]|[0-9]{4}-[0-9]{2}-[0-9]{2}(T[0-9]{2}:[0-9]{2}(:[0-9]{2})?Z?)?)?$",
        description="A time before now, a day or a time, in UTC; an empty `until` means now.",
        examples=["7d", "2026-01-31T08:00Z"],
    ),
]
NameFilter = Annotated[str, Query(max_length=200, pattern=r"^[^\x00]*$", description="Its name; empty: all.")]

router = APIRouter()


class Projects(Shown):
    """Projects, those with the latest events first."""

    items: list[shown(ProjectLine)]  # type: ignore[valid-type]


@router.get("/projects", response_model=Projects, tags=["projects"])
def projects(scope: InScope) -> Any:
    """List the projects that exist for this token."""
    return {"items": scope.ledger.projects()}


@router.get("/projects/{projectId}", response_model=shown(ProjectLine), tags=["projects"])
def project(scope: InScope, project_id: ProjectId) -> Any:
    """Return a project and what goes on in it."""
    return scope.ledger.project(project_id)


@router.get("/projects/{projectId}/digest", response_model=shown(Digest), tags=["projects"])
def digest(
    scope: InScope,
    project_id: ProjectId,
    day: Annotated[
        str,
        Query(
            pattern=r"^([0-9]{4}-[0-9]{2}-[0-9]{2})?$",
            description="In UTC; today where it is left out.",
            examples=["2026-01-31"],
        ),
    ] = "",
) -> Any:
    """Return what happened in a project on one day: done, blocked and by what, spent, what waits."""
    return scope.ledger.digest(project_id, _read_day(day) if day else datetime.now(UTC).date())


def _read_day(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise InvalidRequestError(f"day {text!r} is not in the calendar. Write it like 2026-01-31") from None


@router.get("/inbox", response_model=Inbox, tags=["inbox"])
def inbox(scope: InScope, project: ProjectFilter = "") -> Any:
    """Return every question that waits for a person, oldest first, with its options."""
    items = scope.ledger.inbox(project)
    where = (f"/api/{_SEGMENTS.get(item.kind, 'plans')}/{item.workflow_id}/answer" for item in items)
    return {"items": [{**dict(item), "answer_href": href} for item, href in zip(items, where, strict=True)]}


@router.get("/metrics", response_model=shown(MetricsReport), tags=["metrics"])
def metrics(
    scope: InScope,
    since: TimeOf = "7d",
    until: TimeOf = "",
    project: ProjectFilter = "",
    executor: NameFilter = "",
    model: NameFilter = "",
    by: Annotated[Division | None, Query(description="Return the figures for each of these, too.")] = None,
) -> Any:
    """Return what the episodes that ended in a time range show: success, cost, time, interventions, findings.

    A figure has its number of known values (`n`), median, 90th percentile and sum; what nobody reported counts as
    `unknown` and in nothing else.
    """
    begin, end = read_range(since, until, datetime.now(UTC))
    wanted = MetricsFilter(since=begin, until=end, project=project, executor=executor, model=model, by=by)
    return scope.ledger.metrics(wanted)


@router.get(
    "/events",
    tags=["events"],
    response_class=Response,
    responses={200: {"description": "A stream of events.", "content": {STREAM: {"schema": {"type": "string"}}}}},
)
async def events(
    request: Request,
    scope: InScope,
    project: ProjectFilter = "",
    workflow: Annotated[str, Query(max_length=200, description="Only of this episode or plan.")] = "",
    header: Annotated[str, Header(alias="Last-Event-ID", max_length=40)] = "",
    query: Annotated[str, Query(alias="lastEventId", max_length=40, description="As the header Last-Event-ID.")] = "",
) -> StreamingResponse:
    """Stream what happens (Server-Sent Events): `trail` with a line of the evidence trail, `reset` to read again.

    The id of an event is where to go on: send it as Last-Event-ID. A stream ends after five minutes.
    """
    seen = frozenset(scope.person.projects) if scope.person.projects else None
    wanted = Wanted(seen, project, workflow)
    stream = request.app.state.hub.stream(wanted, header or query or None)
    return StreamingResponse(stream, media_type=STREAM, headers={"X-Accel-Buffering": "no"})
