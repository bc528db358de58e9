"""The API's routes, built from the table of operations.

Routes that only send a message to a run are generated here. The other routes are functions in this package's modules.
Each function is named after its operation's path in the table.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from gateway.access.scope import Scope, perform
from gateway.http.requests import IN_PATH, IdempotentRequest, InOnce, InScope, Wait, WorkflowId
from gateway.http.routes import loops, overview, reading, starting
from tightloop import errors
from tightloop.operations import BY_NAME, OPERATIONS, READS, Http, Operation
from tightloop.operations.models import Replan
from tightloop.operations.results import Done

REPLAN_WAIT_SECONDS = 20
MEDIA_TYPE = "application/problem+json"
PROBLEMS: dict[int | str, str] = {
    401: "No valid token or session.",
    403: "The role does not allow this, or the request comes from a page of another site.",
    404: "The resource does not exist, or this token has no access to it.",
    409: "The operation is not possible in the current state, or the id or Idempotency-Key belongs to another request.",
    415: "The body is not JSON.",
    422: "A field is invalid. The response names the field and the allowed values.",
    503: "Temporal, a worker or the database is not responding. Try again.",
    "default": "An error.",
}
"""Descriptions of error responses, by status."""


def router() -> APIRouter:
    """Return the router for all paths under `/api`."""
    api_router = APIRouter(prefix="/api")
    for operation in OPERATIONS:
        for row in operation.http:
            for path in row.paths:
                _add(api_router, operation, row, path)
    return api_router


def _add(router: APIRouter, operation: Operation, row: Http, path: str) -> None:
    name, model = row.name or operation.name, row.result or operation.result
    written = HANDLERS.get(name)
    more = inspect.getdoc(written) if written is not None else None
    shape: dict[str, Any] = {"response_model": operation.load(model)} if model else {"response_class": Response}
    router.add_api_route(
        path,
        written or _message(operation, row, path),
        methods=[row.method],
        name=name,
        status_code=row.status,
        description=f"{operation.text}\n\n{more}" if more else operation.text,
        tags=list(row.tags) or [path.split("/")[1]],
        responses=_problems(operation, row) | RAW.get(name, {}),
        **shape,
    )


def _problems(operation: Operation, row: Http) -> dict[int | str, dict[str, Any]]:
    """Return a path's error responses for the OpenAPI document."""
    statuses = {401, 403, 422, 503} | {getattr(errors, name).status for name in operation.errors}
    if "{" in row.path:
        statuses.add(404)
    if operation.effect != READS:
        statuses.add(409)
    if operation.request:
        statuses.add(415)
    content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {status: {"description": PROBLEMS[status], "content": content} for status in (*sorted(statuses), "default")}


def _message(operation: Operation, row: Http, path: str) -> Callable[..., Awaitable[Response]]:
    """Return an endpoint that sends a message to a run."""
    is_episode = path.startswith("/episodes/")
    kinds = tuple(kind for kind in operation.kinds if (kind == "episode") == is_episode)
    model = operation.request if is_episode or not operation.plan_request else operation.plan_request

    async def endpoint(
        scope: Scope, once: IdempotentRequest, workflow_id: str, sent: Any = None, **fields: str
    ) -> Response:
        async def work() -> Response:
            arguments = fields if sent is None else {**sent.arguments(), **fields}
            message = await perform(scope, operation, workflow_id, arguments, kinds=kinds, message_id=once.message_id)
            return _done(workflow_id, message, row.status)

        return await once.answer(work)

    parameters: dict[str, Any] = {"scope": InScope, "once": InOnce, "workflow_id": WorkflowId}
    parameters |= {field: IN_PATH[name] for field, name in row.fields}
    # FastAPI derives parameters and body from the signature.
    only = inspect.Parameter.KEYWORD_ONLY
    arguments = [inspect.Parameter(name, only, annotation=kind) for name, kind in parameters.items()]
    if model:
        sent = operation.load(model)
        needs_body = any(field.is_required() for field in sent.model_fields.values())
        default = inspect.Parameter.empty if needs_body else sent()
        arguments.append(inspect.Parameter("sent", only, annotation=sent, default=default))
    vars(endpoint)["__signature__"] = inspect.Signature(arguments)
    return endpoint


async def replan(
    scope: InScope, once: InOnce, workflow_id: WorkflowId, body: Replan, wait: Wait = REPLAN_WAIT_SECONDS
) -> Response:

    async def work() -> Response:
        pending_reply = perform(scope, BY_NAME["replan"], workflow_id, body.arguments(), message_id=once.message_id)
        try:
            # At least a second: with 0 the request would be cancelled before Temporal has it.
            async with asyncio.timeout(max(wait, 1)):
                message = await pending_reply
        except TimeoutError:
            # It is not known either whether a worker has received the request.
            message = "no reply yet. The plan's `revision` increases when the new plan takes effect"
        return _done(workflow_id, message, HTTPStatus.OK)

    return await once.answer(work)


def _done(workflow_id: str, message: str, status: int) -> Response:
    content = Done(id=workflow_id, message=message).model_dump_json(by_alias=True)
    return Response(content, status, media_type="application/json")


HANDLERS: dict[str, Callable[..., Any]] = {
    handler.__name__: handler
    for handler in (*starting.HANDLERS, *loops.HANDLERS, *reading.HANDLERS, *overview.HANDLERS, replan)
}
RAW = reading.RAW | overview.RAW
