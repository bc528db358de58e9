"""Official MCP clients over every transport of the server."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx2
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

from tests.support.episodes import eventually
from tests.support.gateway import Gateway
from tests.support.stack.stack import ROOT
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
async def socket_server(path: Path, settings: Settings, *options: str) -> AsyncIterator[None]:
    """`tightloop mcp serve --socket`, until the end."""
    command = (*SERVE, "--socket", str(path), *options)
    process = await asyncio.create_subprocess_exec(*command, env=environment(settings), cwd=ROOT)

    async def listens() -> bool:
        assert process.returncode is None, "the server ended"
        return path.exists()

    try:
        await eventually(listens, seconds=60)
        yield
    finally:
        with suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


@asynccontextmanager
async def connected(transport: str, folder: Path, served: Gateway, token: str, *options: str) -> AsyncIterator[Client]:
    """A client over one of `TRANSPORTS`; `options` are those of `serve`, a token is for HTTP."""
    async with AsyncExitStack() as stack:
        if transport == "http":
            made = over_http(served, token)
        elif transport == "stdio":
            made = over_stdio(served.settings, *options)
        else:
            path = folder / f"{options[1]}.sock"
            await stack.enter_async_context(socket_server(path, served.settings, *options))
            made = over_stdio(served.settings, "--connect", str(path))
        yield await stack.enter_async_context(made)


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
