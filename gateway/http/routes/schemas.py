"""JSON Schemas of the inputs of workflows, for services that start them through Temporal in other languages."""

from typing import Annotated, Any

from fastapi import APIRouter, Path
from pydantic import BaseModel

from gateway.http.camel import Shown
from tightloop.client import EpisodeRequest, PlanRequest
from tightloop.episode.model import WORKFLOW_TYPE
from tightloop.errors import ProjectNotFoundError
from tightloop.loop.model import LOOP_WORKFLOW_TYPE, LoopRequest
from tightloop.plan.request import PLAN_WORKFLOW_TYPE

MODELS: dict[str, type[BaseModel]] = {
    WORKFLOW_TYPE: EpisodeRequest,
    PLAN_WORKFLOW_TYPE: PlanRequest,
    LOOP_WORKFLOW_TYPE: LoopRequest,
}

router = APIRouter(tags=["schemas"])


class Schemas(Shown):
    """Where the schemas are, by the type of the workflow."""

    items: dict[str, str]


@router.get("/schemas", response_model=Schemas)
def schemas() -> Any:
    """List the schemas."""
    return {"items": {name: f"/api/schemas/{name}" for name in MODELS}}


@router.get("/schemas/{workflowType}", response_model=dict[str, Any])
def schema(workflow_type: Annotated[str, Path(alias="workflowType", max_length=80, examples=[WORKFLOW_TYPE])]) -> Any:
    """Return the JSON Schema (2020-12) of the input of a type of workflow; its names are Python's, as in Temporal."""
    model = MODELS.get(workflow_type)
    if model is None:
        raise ProjectNotFoundError(f"{workflow_type!r} is not a type of workflow. Types: {', '.join(MODELS)}")
    found = model.model_json_schema(mode="validation")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **found}
