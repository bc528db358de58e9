"""Streamable HTTP, behind the guard of the gateway: every message is judged by its own token, there are no sessions."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import cast

from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway.access import scope
from gateway.access.scope import Services
from gateway.mcp.caller import Caller
from gateway.mcp.server import Context, mcp_server

PATH = "/mcp"
LARGEST_BYTES = 256 * 1024
EPISODE = "episode"
"""Of the query: the episode that a connection is about."""


class Endpoint:
    """ASGI application."""

    def __init__(self, services: Services) -> None:
        async def caller_of(context: Context) -> Caller:
            request = cast("Request", context.request)
            return Caller(scope.Scope(request.state.person, services), request.query_params.get(EPISODE, ""))

        # It notes at INFO when it starts, and each request.
        logging.getLogger("mcp").setLevel(logging.WARNING)
        self._manager = StreamableHTTPSessionManager(
            mcp_server(caller_of), json_response=True, stateless=True, max_request_body_size=LARGEST_BYTES
        )

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Answer while the context is open."""
        async with self._manager.run():
            yield

    async def __call__(self, asked: Scope, receive: Receive, send: Send) -> None:
        """Answer a message. No stream is offered: nothing is sent that was not asked for."""
        if asked["method"] != "POST":
            await Response(status_code=HTTPStatus.METHOD_NOT_ALLOWED, headers={"Allow": "POST"})(asked, receive, send)
            return
        await self._manager.handle_request(asked, receive, send)
