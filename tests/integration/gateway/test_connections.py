"""Connections that never send a whole request, on a real server."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from gateway.access.site import http_server, listening
from tightloop.host.identity import BODY_SECONDS, HEAD_SECONDS
from worker.server import free_port

SEATS = 12
Connect = Callable[[], AbstractAsyncContextManager[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]
GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] != "http":
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await send({"type": "lifespan.shutdown.complete"})
        return
    body = b"" if scope["path"] == "/early" else await Request(scope, receive).body()
    await JSONResponse({"bytes": len(body)})(scope, receive, send)


@pytest.fixture
async def connect() -> AsyncIterator[Connect]:
    address = f"127.0.0.1:{free_port()}"
    server = http_server(echo, SEATS)
    with listening(address, "it") as listener:
        serving = asyncio.create_task(server._serve([listener]))

        @asynccontextmanager
        async def open_one() -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
            reader, writer = await asyncio.open_connection(*address.split(":"))
            try:
                yield reader, writer
            finally:
                writer.close()

        try:
            yield open_one
        finally:
            server.should_exit = True
            await asyncio.wait({serving}, timeout=30)


async def answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60)
    length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
    return int(head.split(b" ")[1]), await reader.readexactly(int(length.split(b":")[1]))


async def seconds_until_closed(reader: asyncio.StreamReader, *, most: float) -> float:
    clock = asyncio.get_running_loop().time
    began = clock()
    async with asyncio.timeout(most):
        try:
            while await reader.read(1_000):
                pass
        except ConnectionError:
            pass
    return clock() - began


async def test_a_head_that_does_not_come_in_time_closes_its_connection(connect: Connect) -> None:
    async def slow(first: bytes, *, behind: bool = False) -> float:
        async with connect() as (reader, writer):
            if behind:
                writer.write(GET)
                assert (await answer(reader))[0] == 200
            writer.write(first)
            await asyncio.sleep(HEAD_SECONDS / 2)
            # A byte is not a head: it gives no more time.
            writer.write(first[:1])
            return HEAD_SECONDS / 2 + await seconds_until_closed(reader, most=3 * HEAD_SECONDS)

    half = b"GET / HTTP/1.1\r\nHost: x\r\nX: "
    taken = await asyncio.gather(slow(half), slow(b""), slow(half, behind=True))
    assert min(taken) > HEAD_SECONDS - 1
    assert max(taken) < 3 * HEAD_SECONDS


async def test_a_body_that_does_not_come_in_time_is_answered_with_408(connect: Connect) -> None:
    async def slow(path: bytes) -> tuple[float, bytes]:
        async with connect() as (reader, writer):
            writer.write(b"POST " + path + b" HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nabc")
            began = asyncio.get_running_loop().time()
            said = b""
            async with asyncio.timeout(3 * BODY_SECONDS):
                while part := await reader.read(1_000):
                    said += part
                    writer.write(b"d")
            return asyncio.get_running_loop().time() - began, said

    (late, said), (early, at_once) = await asyncio.gather(slow(b"/"), slow(b"/early"))
    assert said.startswith(b"HTTP/1.1 408 ")
    assert said.endswith(b"the request body did not arrive within 30 s")
    assert at_once.startswith(b"HTTP/1.1 200 ")
    assert max(late, early) < 2 * BODY_SECONDS


async def test_idle_connections_make_room_for_one_that_asks(connect: Connect) -> None:
    opened = [connect() for _ in range(3 * SEATS)]
    idle = [await one.__aenter__() for one in opened]
    for _ in range(3):
        async with connect() as (reader, writer):
            for piece in (GET[:5], GET[5:]):
                writer.write(piece)
                await asyncio.sleep(0.05)
            status, body = await answer(reader)
            assert (status, json.loads(body)) == (200, {"bytes": 0})
    still = [reader for reader, _ in idle if not reader.at_eof()]
    assert len(still) < SEATS
    for one in opened:
        await one.__aexit__(None, None, None)


async def test_a_whole_request_in_pieces_and_two_at_once_are_answered(connect: Connect) -> None:
    async with connect() as (reader, writer):
        for piece in (b"POST / HTTP/1.1\r\nHost: x\r\nContent-", b"Length: 6\r\n\r\nab", b"cd", b"ef"):
            writer.write(piece)
            await asyncio.sleep(0.1)
        assert json.loads((await answer(reader))[1]) == {"bytes": 6}
        writer.write(GET + GET)
        assert [(await answer(reader))[0] for _ in range(2)] == [200, 200]
