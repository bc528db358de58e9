"""Official MCP clients over every transport of the server."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp.server.stdio import stdio_server

from gateway.access.scope import Scope, Services
from gateway.mcp.report import Caller, Lines, serve_socket
from gateway.mcp.server import mcp_server
from tests.support.episodes import eventually
from tests.support.gateway import Gateway
from tests.support.stack.stack import ROOT
from tightloop.client import TightloopClient
from tightloop.safety.seal import Person
from tightloop.settings import Settings

SERVE = (sys.executable, "-m", "tightloop.cli.main", "mcp", "serve")
TRANSPORTS = ("http", "stdio", "socket")


def environment(settings: Settings) -> dict[str, str]:
    """The variables with which a server of its own process finds what the test uses."""
    return {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "TIGHTLOOP_TEMPORAL__ADDRESS": settings.temporal.address,
        "TIGHTLOOP_TEMPORAL__TASK_QUEUE": settings.temporal.task_queue,
    }


@asynccontextmanager
async def over_http(served: Gateway, token: str, query: str = "") -> AsyncIterator[Client]:
    """A client of `/mcp` with a token."""
    headers = {"Authorization": f"Bearer {token}"}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=60, trust_env=False) as http,
        Client(streamable_http_client(f"{served.url}/mcp{query}", http_client=http)) as client,
    ):
        yield client


@asynccontextmanager
async def over_stdio(settings: Settings, *options: str, **more: str) -> AsyncIterator[Client]:
    """A client of `tightloop mcp serve`, with variables more of the server's environment."""
    command, *arguments = SERVE
    server = StdioServerParameters(
        command=command, args=[*arguments, *options], env={**environment(settings), **more}, cwd=ROOT
    )
    async with Client(server) as client:
        yield client


@asynccontextmanager
async def socket_of(path: Path, served: Gateway, client: TightloopClient, person: Person) -> AsyncIterator[None]:
    """A Unix socket with a person's connections, in this process."""
    services = Services(served.ledger, client, served.settings)

    async def caller_of(_: Any) -> Caller:
        return Caller(Scope(person, services))

    serving = asyncio.create_task(serve_socket(mcp_server(caller_of), path))

    async def listens() -> bool:
        return serving.done() or path.exists()

    try:
        await eventually(listens)
        yield
    finally:
        serving.cancel()
        await asyncio.wait({serving})


@asynccontextmanager
async def over_socket(path: Path) -> AsyncIterator[Client]:
    """A client of a Unix socket."""
    reader, writer = await asyncio.open_unix_connection(str(path))
    lines: Any = Lines(reader, writer)
    try:
        # Both sides write one message a line.
        async with Client(stdio_server(lines, lines)) as client:
            yield client
            writer.close()
    finally:
        writer.close()


async def call(client: Client, name: str, **arguments: Any) -> dict[str, Any]:
    """Call a tool that has to succeed; returns what it answers."""
    result = await client.call_tool(name, arguments)
    assert not result.is_error, said(result)
    assert json.loads(said(result)) == result.structured_content
    answer: dict[str, Any] = result.structured_content
    return answer


async def refused(client: Client, name: str, **arguments: Any) -> str:
    """Call a tool that has to refuse; returns the sentence."""
    result = await client.call_tool(name, arguments)
    assert result.is_error, said(result)
    return said(result)


def said(result: Any) -> str:
    """The text of a result."""
    parts: Sequence[Any] = result.content
    return "".join(part.text for part in parts)
