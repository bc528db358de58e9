"""Routes that are not specific to a run: projects, questions, metrics, events, workers, schemas and plan validation."""

from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import Body, Header, Path, Query, Request
from pydantic import BaseModel
from starlette.responses import StreamingResponse

from gateway.access.scope import require_all_projects
from gateway.http.hub import StreamFilter
from gateway.http.requests import InScope, ProjectFilter, ProjectId
from gateway.http.routes.starting import SOURCE
from tightloop.client import EpisodeRequest, PlanRequest
from tightloop.client.client import check_in_thread
from tightloop.errors import ProjectNotFoundError
from tightloop.ledger.metrics import Division, MetricsFilter, read_range
from tightloop.loop.model import LoopRequest
from tightloop.operations.models import PlanText
from tightloop.operations.results import Examined, TextProblem, WaitingSteps, WorkerLine, Workers
from tightloop.plan.validation import check_text
from tightloop.run.core import EPISODE_WORKFLOW_TYPE, LOOP_WORKFLOW_TYPE, PLAN_WORKFLOW_TYPE, Urgency

STREAM = "text/event-stream"
_SEGMENTS = {"episode": "episodes", "plan": "plans", "loop": "plans"}

TimeOf = Annotated[
    str,
    Query(
        max_length=25,
        pattern=r"^([0-9]{1,4}[hd]|[0-9]{4}-[0-9]{2}-[0-9]{2}(T[0-9]{2}:[0-9]{2}(:[0-9]{2})?Z?)?)?$",
        description="A duration such as 12h, or a date or time in UTC. An empty `until` means now.",
        examples=["7d", "2026-01-31T08:00Z"],
    ),
]
NameFilter = Annotated[
    str, Query(max_length=200, pattern=r"^[^\x00]*$", description="Name to filter by. Leave it empty for all.")
]

MODELS: dict[str, type[BaseModel]] = {
    EPISODE_WORKFLOW_TYPE: EpisodeRequest,
    PLAN_WORKFLOW_TYPE: PlanRequest,
    LOOP_WORKFLOW_TYPE: LoopRequest,
}


def projects(scope: InScope) -> Any:
    return {"items": scope.ledger.projects()}


def project(scope: InScope, project_id: ProjectId) -> Any:
    return scope.ledger.project(project_id)


def digest(
    scope: InScope,
    project_id: ProjectId,
    since: TimeOf = "24h",
    until: TimeOf = "",
) -> Any:
    now = datetime.now(UTC)
    begin, end = read_range(since, until, now)
    return scope.ledger.digest(project_id, begin, end, is_newest=end >= now)


def inbox(scope: InScope, project: ProjectFilter = "") -> Any:
    items = scope.ledger.inbox(project)
    where = (
        f"/api/{_SEGMENTS.get(item.kind, 'plans')}/{item.workflow_id}/{item.question.command or 'answer'}"
        for item in items
    )
    return {"items": [{**dict(item), "answer_href": href} for item, href in zip(items, where, strict=True)]}


def metrics(
    scope: InScope,
    since: TimeOf = "7d",
    until: TimeOf = "",
    project: ProjectFilter = "",
    executor: NameFilter = "",
    model: NameFilter = "",
    by: Annotated[
        Division | None, Query(description="Also break down the figures by the values of this field.")
    ] = None,
) -> Any:
    begin, end = read_range(since, until, datetime.now(UTC))
    metrics_filter = MetricsFilter(since=begin, until=end, project=project, executor=executor, model=model, by=by)
    return scope.ledger.metrics(metrics_filter)


async def events(
    request: Request,
    scope: InScope,
    project: ProjectFilter = "",
    workflow: Annotated[str, Query(max_length=200, description="Only events from this episode or plan.")] = "",
    header: Annotated[str, Header(alias="Last-Event-ID", max_length=40)] = "",
    query: Annotated[
        str, Query(alias="lastEventId", max_length=40, description="Same as the Last-Event-ID header.")
    ] = "",
) -> StreamingResponse:
    """Sends Server-Sent Events: `trail` contains one timeline event, and `reset` asks the reader to reload everything.

    To resume, send the last event's id in the Last-Event-ID header. A stream ends after five minutes.
    """
    visible_projects = frozenset(scope.person.projects) if scope.person.projects else None
    stream_filter = StreamFilter(visible_projects, project, workflow)
    stream = request.app.state.hub.stream(stream_filter, header or query or None)
    # Without the header nginx buffers the stream, and events arrive late.
    return StreamingResponse(stream, media_type=STREAM, headers={"X-Accel-Buffering": "no"})


async def workers(scope: InScope) -> Any:
    require_all_projects(scope, "listing the workers")
    topology = await scope.client.topology()
    lines = [
        WorkerLine(
            process=worker.process,
            last_seen=worker.last_seen,
            free_slots=worker.free_slots,
            runs_workflows=worker.runs_workflows,
        )
        for worker in topology.main
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
        for queue, backlog in topology.backlogs.items()
    ]
    return Workers(
        queue=topology.main_queue,
        items=lines,
        hosts=list(topology.homes),
        missing=list(topology.missing),
        waiting=waiting,
    )


def schemas() -> Any:
    return {"items": {name: f"/api/schemas/{name}" for name in MODELS}}


def schema(
    workflow_type: Annotated[str, Path(alias="workflowType", max_length=80, examples=[EPISODE_WORKFLOW_TYPE])],
) -> Any:
    model = MODELS.get(workflow_type)
    if model is None:
        raise ProjectNotFoundError(f"{workflow_type!r} is not a valid workflow type. Valid types: {', '.join(MODELS)}")
    document = model.model_json_schema(mode="validation")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **document}


async def validate(
    body: Annotated[PlanText, Body(openapi_examples={"one step": {"value": {"source": SOURCE}}})],
) -> Any:
    # Parsing a long text can take seconds of CPU time, which would delay all other requests.
    _, problems = await check_in_thread(check_text, body.source)
    text_problems = [
        TextProblem(
            severity=problem.severity.value,
            message=problem.message,
            suggestion=problem.suggestion,
            code=problem.code,
            line=problem.position.line,
            column=problem.position.column,
        )
        for problem in problems
    ]
    return Examined(ok=not any(problem.is_error for problem in problems), problems=text_problems)


HANDLERS = (projects, project, digest, inbox, metrics, events, workers, schemas, schema, validate)
RAW: dict[str, dict[int | str, dict[str, Any]]] = {
    "events": {200: {"description": "A stream of events.", "content": {STREAM: {"schema": {"type": "string"}}}}}
}
"""Descriptions of the responses without a model, for the OpenAPI document."""
