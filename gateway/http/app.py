"""The HTTP API application and its error responses."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any, cast

from fastapi import Depends, FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from pydantic import Field
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from gateway.access.scope import Services
from gateway.access.site import BodyLimiter, RefusedError
from gateway.http.hub import Hub
from gateway.http.requests import check_request
from gateway.http.routes import MEDIA_TYPE, router
from tightloop.database.access import IdempotencyKeys
from tightloop.errors import PROBLEMS_SHOWN, TightloopError
from tightloop.operations.models import Shown
from tightloop.value import shorten

RETRY_SECONDS = 5


class Problem(Shown):
    """Error response (RFC 9457)."""

    type: str = Field(examples=["urn:tightloop:problem:wrong-state"])
    """Stable identifier of the problem type."""
    title: str = Field(examples=["Conflict"])
    status: int = Field(examples=[409])
    detail: str = Field(
        examples=[
            (
                "the operation 'pause' is not available while the status of nightly-1 is succeeded. "
                "Available operations: restore, fork"
            )
        ]
    )
    """Description of the failure and the value that caused it, followed by the next step."""
    state: str | None = None
    """The current state, for `wrong-state` problems."""
    possible: list[str] | None = None
    """The operations that are possible in the current state, for `wrong-state` problems."""
    errors: list[dict[str, Any]] | None = None
    """Invalid fields, or problems in a plan's text with their positions."""


def problem(status: HTTPStatus, kind: str, detail: str, **more: Any) -> Response:
    """Return a problem response. `more` contains additional members of its body."""
    content = {
        "type": f"urn:tightloop:problem:{kind}",
        "title": status.phrase,
        "status": int(status),
        "detail": shorten(detail, 4_000),
    }
    # Required with 401 (RFC 9110, 15.5.2).
    headers = {"WWW-Authenticate": "Bearer"} if status is HTTPStatus.UNAUTHORIZED else {}
    return JSONResponse(content | more, status, headers, MEDIA_TYPE)


def refusal(refused: RefusedError) -> Response:
    """Return the response to a request that the guard refused."""
    return problem(refused.status, "refused", refused.message)


def handle_problems(app: FastAPI) -> None:
    """Register handlers that turn all of an application's errors into `Problem` responses."""
    app.add_exception_handler(TightloopError, _problem_response)
    app.add_exception_handler(RefusedError, lambda _, error: refusal(cast(RefusedError, error)))
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _unknown)
    # Starlette raises the error again after this response, so that the guard can log it.
    app.add_exception_handler(Exception, _broken)


def _problem_response(_: Request, error: Exception) -> Response:
    assert isinstance(error, TightloopError)
    answer = problem(HTTPStatus(error.status), error.code, error.message, **error.details)
    if error.retryable:
        answer.headers["Retry-After"] = str(RETRY_SECONDS)
    return answer


def _invalid(_: Request, error: Exception) -> Response:
    problems = [_problem_of(entry) for entry in cast(RequestValidationError, error).errors()[:PROBLEMS_SHOWN]]
    summary = "; ".join(f"{entry['field']}: {entry['message']}" for entry in problems[:3])
    detail = f"{summary}. See the allowed fields and values in /api/openapi.json"
    return problem(HTTPStatus.UNPROCESSABLE_ENTITY, "invalid-request", detail, errors=problems)


def _problem_of(entry: Mapping[str, Any]) -> dict[str, str]:
    """Return the field and the message for an error of pydantic or FastAPI."""
    if entry["type"] == "json_invalid":
        problem_text = f"not valid JSON at character {entry['loc'][-1]}: {entry['ctx']['error']}"
        return {"field": "body", "message": shorten(problem_text, 300)}
    message = str(entry["msg"]).removeprefix("Value error, ")
    return {"field": ".".join(map(str, entry["loc"])), "message": shorten(message, 300)}


def _unknown(request: Request, error: Exception) -> Response:
    # FastAPI wraps any error raised while it reads a body.
    if isinstance(error.__cause__, RefusedError):
        return refusal(error.__cause__)
    status = HTTPStatus(cast(HTTPException, error).status_code)
    path = request.url.path[:200]
    detail = {
        HTTPStatus.NOT_FOUND: f"{path} does not exist. See paths in /api/openapi.json",
        HTTPStatus.METHOD_NOT_ALLOWED: f"{path} does not support {request.method}. See methods in /api/openapi.json",
    }.get(status, str(cast(HTTPException, error).detail))
    answer = problem(status, status.phrase.lower().replace(" ", "-"), detail)
    answer.headers.update(cast(HTTPException, error).headers or {})
    return answer


def _broken(_: Request, error: Exception) -> Response:
    return problem(
        HTTPStatus.INTERNAL_SERVER_ERROR,
        "failed",
        f"the gateway failed with {type(error).__name__}. Try again. If it fails again, report the error and "
        "include the gateway log",
    )


VERSION = "1"
_ABOUT = (
    "Start, watch and steer episodes, plans and loops. Names are camelCase, and times are UTC. Errors are "
    "application/problem+json and contain the next step. Create a token with: tightloop token create NAME --role "
    "operator"
)


def api(services: Services, hub: Hub, keys: IdempotencyKeys) -> ASGIApp:
    """Return the API application. It must be wrapped in the guard."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await hub.close()

    app = FastAPI(
        title="tightloop",
        version=VERSION,
        description=_ABOUT,
        lifespan=lifespan,
        openapi_url="/api/openapi.json",
        # These pages load scripts from another host, which the content policy forbids.
        docs_url=None,
        redoc_url=None,
        dependencies=[Depends(check_request)],
        generate_unique_id_function=_name,
        redirect_slashes=False,
    )
    app.state.services, app.state.hub, app.state.keys = services, hub, keys
    app.include_router(router())
    handle_problems(app)
    _describe(app)
    return BodyLimiter(app)


def _name(route: APIRoute) -> str:
    noun = next((part for part in route.path.split("/")[2:3] if part in ("episodes", "plans")), "")
    name = route.name
    return name if not noun or noun[:-1] in name or noun in name else f"{name}_{noun[:-1]}"


def _describe(app: FastAPI) -> None:
    """Add the `Problem` schema and the security scheme to the OpenAPI document."""
    document = app.openapi()
    components = document.setdefault("components", {})
    schemas_of = components.setdefault("schemas", {})
    schemas_of["Problem"] = Problem.model_json_schema(by_alias=True, ref_template="#/components/schemas/{model}")
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas_of.pop(unused, None)
    components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    document["security"] = [{"token": []}]
    app.openapi_schema = document
