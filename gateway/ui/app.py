"""The application: codec routes, and where there is a Web UI the rest of the paths for it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import cast

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp
from temporalio.converter import PayloadCodec

from gateway.access.body import RefusedError, body_of
from gateway.access.guard import Guard, sign_in_page
from gateway.access.rules import Access
from gateway.ui.access import CODEC_PATH, refusal
from gateway.ui.payloads import ROUTES, transformed
from gateway.ui.proxy import Proxy
from tightloop.errors import TightloopError

_JSON = "application/json"
_METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"]


def application(access: Access, codec: PayloadCodec | None, upstream: str | None = None) -> ASGIApp:
    """Return the whole of it, guarded.

    Args:
        access: who may use it.
        codec: encodes and decodes payloads; None: they stay as they are.
        upstream: `host:port` of the server's own Web UI; None: codec routes only.
    """

    async def transform(request: Request) -> Response:
        route = request.path_params["route"]
        if route not in ROUTES or request.method != "POST":
            raise RefusedError(HTTPStatus.NOT_FOUND, f"not found. POST to {CODEC_PATH}{{{','.join(ROUTES)}}}")
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != _JSON:
            raise RefusedError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"send Content-Type: {_JSON}")
        return Response(await run_in_threadpool(transformed, codec, route, await body_of(request)), media_type=_JSON)

    async def signed_in(request: Request) -> Response:  # noqa: ARG001 - Starlette's signature
        return sign_in_page(access.sign_in, "This browser is signed in.", HTTPStatus.OK)

    routes = [Route(f"{CODEC_PATH}{{route}}", transform, methods=_METHODS)]
    proxy = None if upstream is None else Proxy(upstream)
    if proxy is None:
        routes.append(Route("/", signed_in))
    else:
        routes.append(Route("/{path:path}", proxy.answer, methods=_METHODS))

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        if proxy is not None:
            await proxy.close()

    handlers = {RefusedError: _refused, TightloopError: _failed}
    return Guard(Starlette(routes=routes, exception_handlers=handlers, lifespan=lifespan), access)


def _refused(_: Request, error: Exception) -> Response:
    return refusal(cast(RefusedError, error))


def _failed(_: Request, error: Exception) -> Response:
    return refusal(RefusedError(HTTPStatus.UNPROCESSABLE_ENTITY, cast(TightloopError, error).message))
