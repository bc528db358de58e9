"""The application below `/api`."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.types import ASGIApp

from gateway.access.body import Bounded
from gateway.access.scope import Services
from gateway.http.hub import Hub
from gateway.http.problems import RESPONSES, Problem, handle_problems
from gateway.http.routes import episodes, loops, overview, plans, records, schemas
from gateway.http.routes.steering import steering
from tightloop.database.access.idempotency import IdempotencyKeys

VERSION = "1"
SHARED = (steering, records.records)
"""Make the paths that episodes and plans have alike."""
_ABOUT = (
    "Start, watch and steer episodes, plans and loops. Names are camelCase; times are UTC; errors are "
    "application/problem+json and say what to do. Make a token: tightloop token create NAME --role operator"
)


def api(services: Services, hub: Hub, keys: IdempotencyKeys) -> ASGIApp:
    """Return the API; the guard must stand before it."""

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
        docs_url=None,
        redoc_url=None,
        responses=RESPONSES,
        generate_unique_id_function=_name,
        redirect_slashes=False,
    )
    app.state.services, app.state.hub, app.state.keys = services, hub, keys
    own = (overview, schemas, episodes, plans, loops, records)
    for router in (*(each.router for each in own), *(make(noun) for make in SHARED for noun in ("episodes", "plans"))):
        app.include_router(router, prefix="/api")
    handle_problems(app)
    _describe(app)
    return Bounded(app)


def _name(route: APIRoute) -> str:
    noun = next((part for part in route.path.split("/")[2:3] if part in ("episodes", "plans")), "")
    name = route.name
    return name if not noun or noun[:-1] in name or noun in name else f"{name}_{noun[:-1]}"


def _describe(app: FastAPI) -> None:
    """Add to the document what FastAPI does not know: the shape of problems, and the token."""
    document = app.openapi()
    components = document.setdefault("components", {})
    schemas_of = components.setdefault("schemas", {})
    schemas_of["Problem"] = Problem.model_json_schema(by_alias=True, ref_template="#/components/schemas/{model}")
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas_of.pop(unused, None)
    components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    document["security"] = [{"token": []}]
    app.openapi_schema = document
