"""Many connections that send a byte a minute, at every listener of ours: all are closed, and others are answered."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
import pytest

from activities.sandbox.proxy import open_loopback_proxy
from gateway.ui import application as codec_application
from gateway.ui import codec_access
from tests.support.extent import part
from tests.support.fake_model import FakeModel
from tests.support.gateway import gateway
from tests.support.model_gateway_client import open_gateway, spec_of
from tests.support.ui_server import Served, serving
from tightloop.client import TightloopClient
from tightloop.client.keys import new_ring
from tightloop.client.sealing import Keys, OperatorCodec, SealingCodec
from tightloop.settings import Settings, WorkerSettings, parse_settings
from worker.health import serving_health
from worker.server import free_port

CONNECTIONS = part(40, of=500)
CLOSED_SECONDS = 30
PIECES = (b"G", b"GET / HTTP/1.1\r\n", b"POST / HTTP/1.1\r\nHost: ", b"")


async def hold(address: str, number: int, connecting: asyncio.Semaphore) -> float:
    """Return after how long the server closed a connection that sends nearly nothing."""
    host, port = address.rsplit(":", 1)
    # More at once than the kernel queues for a listener would wait for the kernel's own retries.
    async with connecting:
        reader, writer = await asyncio.open_connection(host, int(port))
        began = time.monotonic()
        await asyncio.sleep(0.05)
    with suppress(ConnectionError):
        writer.write(PIECES[number % len(PIECES)])
        while True:
            try:
                if not await asyncio.wait_for(reader.read(1_000), 60):
                    break
            except TimeoutError:
                writer.write(b"x")
    writer.close()
    return time.monotonic() - began


async def slowest(address: str) -> float:
    connecting = asyncio.Semaphore(40)
    async with asyncio.timeout(4 * CLOSED_SECONDS):
        return max(await asyncio.gather(*(hold(address, number, connecting) for number in range(CONNECTIONS))))


@asynccontextmanager
async def asked(url: str, waits: list[float]) -> AsyncIterator[None]:
    """Ask for a page again and again; each answer must come."""

    async def ask() -> None:
        async with httpx2.AsyncClient(trust_env=False, timeout=30) as http:
            while True:
                began = time.monotonic()
                assert (await http.get(url, headers={"Connection": "close"})).status_code == 200
                waits.append(time.monotonic() - began)
                await asyncio.sleep(0.2)

    asking = asyncio.create_task(ask())
    try:
        yield
        if asking.done():
            await asking
    finally:
        asking.cancel()
        with suppress(asyncio.CancelledError):
            await asking


@contextmanager
def codec_server() -> Iterator[Served]:
    address = f"127.0.0.1:{free_port()}"
    settings = parse_settings(f"codec: {{listen: '{address}'}}", {})
    app = codec_application(codec_access(settings, "t0ken-of-the-trial"), OperatorCodec(SealingCodec(Keys(new_ring()))))
    with serving(app, address) as served:
        yield served


@pytest.mark.timeout(300)
async def test_connections_that_send_a_byte_a_minute_are_closed_within_30_s(
    tmp_path: Path, client: TightloopClient, settings: Settings
) -> None:
    watched = settings.evolve(worker=WorkerSettings(health_bind=f"127.0.0.1:{free_port()}", graceful_shutdown_s=1))
    health, waits = watched.worker.health_bind, list[float]()
    with ExitStack() as stack:
        models = stack.enter_context(open_gateway(spec_of(stack.enter_context(FakeModel()))))
        proxy, codec = stack.enter_context(open_loopback_proxy(("*",))), stack.enter_context(codec_server())
        async with gateway(tmp_path, client, settings) as served, serving_health(watched):
            addresses = {
                "gateway": served.address,
                "health": health,
                "model gateway": urlsplit(models.base_url).netloc,
                "codec": codec.address,
                "egress proxy": urlsplit(proxy.environment["HTTP_PROXY"]).netloc.rpartition("@")[2],
            }
            async with asked(f"{served.url}/live", waits), asked(f"http://{health}/healthz", waits):
                seconds = dict(zip(addresses, await asyncio.gather(*map(slowest, addresses.values())), strict=True))
    print(
        f"{CONNECTIONS} connections each, closed after {seconds}; {len(waits)} others, the slowest {max(waits):.2f} s"
    )
    assert max(seconds.values()) < CLOSED_SECONDS, seconds
