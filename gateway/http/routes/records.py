"""What stands behind episodes and plans: their requests, runs, histories and proofs, and the workers."""

from typing import Annotated, Any

from fastapi import APIRouter, Path
from starlette.responses import Response

from gateway.access.scope import EPISODES, require_all_projects
from gateway.http.bodies import Asked, Runs, WaitingSteps, WorkerLine, Workers, WorkflowId
from gateway.http.camel import shown
from gateway.http.routes.steering import Steered
from gateway.http.services import InScope
from tightloop.client.proof.finding import find_proof
from tightloop.client.proof.statement import statement_of
from tightloop.episode.share import Urgency

IN_TOTO = "application/vnd.in-toto+json"
RunId = Annotated[
    str,
    Path(
        alias="runId",
        pattern=r"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$",
        examples=["01979c1e-7a31-7b52-8f3e-5a4d3c2b1a09"],
    ),
]

router = APIRouter()


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
