"""Routes that read across workflows."""

from datetime import UTC, date, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Header, Path, Query, Request
from pydantic import BaseModel
from starlette.responses import Response, StreamingResponse

from gateway.access.scope import EPISODES, require_all_projects
from gateway.http.hub import Wanted
from gateway.http.once import InScope
from gateway.http.parameters import ProjectFilter, ProjectId, WorkflowId
from gateway.http.routes.steering import Steered
from tightloop.client import EpisodeRequest, PlanRequest
from tightloop.client.proof.statement import statement_of
from tightloop.client.proof.verify import find_proof
from tightloop.episode.budget import Urgency
from tightloop.episode.model import WORKFLOW_TYPE
from tightloop.errors import InvalidRequestError, ProjectNotFoundError
from tightloop.ledger.metrics import Division, MetricsFilter, read_range
from tightloop.loop.model import LOOP_WORKFLOW_TYPE, LoopRequest
from tightloop.operations.results import (
    Asked,
    Digest,
    Inbox,
    Metrics,
    Project,
    Projects,
    Runs,
    Schemas,
    WaitingSteps,
    WorkerLine,
    Workers,
)
from tightloop.operations.wire import shown
from tightloop.plan.request import PLAN_WORKFLOW_TYPE

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


@router.get("/projects", response_model=Projects, tags=["projects"])
def projects(scope: InScope) -> Any:
    """List the projects that exist for this token."""
    return {"items": scope.ledger.projects()}


@router.get("/projects/{projectId}", response_model=Project, tags=["projects"])
def project(scope: InScope, project_id: ProjectId) -> Any:
    """Return a project and what goes on in it."""
    return scope.ledger.project(project_id)


@router.get("/projects/{projectId}/digest", response_model=Digest, tags=["projects"])
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


@router.get("/metrics", response_model=Metrics, tags=["metrics"])
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


IN_TOTO = "application/vnd.in-toto+json"
RunId = Annotated[
    str,
    Path(
        alias="runId",
        pattern=r"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$",
        examples=["01979c1e-7a31-7b52-8f3e-5a4d3c2b1a09"],
    ),
]


@router.get("/workers", response_model=Workers, tags=["workers"])
async def workers(scope: InScope) -> Any:
    """Return which workers are there, and what an episode would wait for. Needs a token for all projects."""
    require_all_projects(scope, "sees the workers")
    seen = await scope.client.topology()
    lines = [
        WorkerLine(
            process=one.process,
            last_seen=one.last_seen,
            free_slots=one.free_slots,
            runs_workflows=one.runs_workflows,
        )
        for one in seen.main
    ]
    waiting = [
        WaitingSteps(
            queue=queue,
            steps=backlog.count,
            oldest_s=backlog.oldest.total_seconds(),
            person_waits=backlog.of(Urgency.PERSON_WAITS),
            running=backlog.of(Urgency.RUNNING),
            new=backlog.of(Urgency.NEW),
        )
        for queue, backlog in seen.backlogs.items()
    ]
    return Workers(
        queue=seen.main_queue, items=lines, hosts=list(seen.homes), missing=list(seen.missing), waiting=waiting
    )


@router.get(
    "/episodes/{workflowId}/proof",
    response_class=Response,
    tags=["episodes"],
    responses={
        200: {
            "description": "An in-toto Statement v1, not signed.",
            "content": {IN_TOTO: {"schema": {"type": "object"}}},
        }
    },
)
async def proof(scope: InScope, workflow_id: WorkflowId) -> Response:
    """Return how the success of an episode was proven; only where the workspace is on the host of the gateway."""
    found = await scope.find(workflow_id, EPISODES, now=True)
    statement = statement_of(await find_proof(scope.client, found.id))
    return Response(statement.content, media_type=IN_TOTO)


async def asked(scope: InScope, found: Steered) -> Any:
    """Return the request; asks the worker while it is open."""
    request = await scope.client.request(found.id)
    document = shown(type(request)).model_validate(request).model_dump(mode="json", by_alias=True)
    return Asked.model_validate({"kind": found.kind, "request": document})


async def runs(scope: InScope, found: Steered) -> Any:
    """Return the runs that Temporal still has, oldest first. Needs a token for all projects."""
    # An id may be used again: an earlier run may be of another project.
    require_all_projects(scope, "sees runs")
    return {"items": await scope.client.runs(found.id)}


async def history(scope: InScope, found: Steered, run_id: RunId) -> Response:
    """Return the history of a run as Temporal's own tools write it. Needs a token for all projects."""
    require_all_projects(scope, "sees histories")
    return Response(await scope.client.history(found.id, run_id=run_id), media_type="application/json")


def records(noun: str) -> APIRouter:
    """Return the paths below `/episodes` or `/plans`."""
    made = APIRouter(prefix=f"/{noun}/{{workflowId}}", tags=[noun])
    document = {200: {"content": {"application/json": {"schema": {"type": "object"}}}}}
    made.add_api_route("/request", asked, response_model=Asked)
    made.add_api_route("/runs", runs, response_model=Runs)
    made.add_api_route("/runs/{runId}/history", history, response_class=Response, responses=document)  # type: ignore[arg-type]
    return made


MODELS: dict[str, type[BaseModel]] = {
    WORKFLOW_TYPE: EpisodeRequest,
    PLAN_WORKFLOW_TYPE: PlanRequest,
    LOOP_WORKFLOW_TYPE: LoopRequest,
}


@router.get("/schemas", response_model=Schemas, tags=["schemas"])
def schemas() -> Any:
    """List the schemas."""
    return {"items": {name: f"/api/schemas/{name}" for name in MODELS}}


@router.get("/schemas/{workflowType}", response_model=dict[str, Any], tags=["schemas"])
def schema(workflow_type: Annotated[str, Path(alias="workflowType", max_length=80, examples=[WORKFLOW_TYPE])]) -> Any:
    """Return the JSON Schema (2020-12) of the input of a type of workflow; its names are Python's, as in Temporal."""
    model = MODELS.get(workflow_type)
    if model is None:
        raise ProjectNotFoundError(f"{workflow_type!r} is not a type of workflow. Types: {', '.join(MODELS)}")
    found = model.model_json_schema(mode="validation")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **found}
