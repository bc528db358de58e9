"""Live events: 200 streams of a gateway, against the same gateway with nobody there."""

import asyncio
import tempfile
import time
from pathlib import Path

import httpx2

from tests.benchmarks.figures import Report, Spread
from tests.benchmarks.served import Served, gateway_process
from tests.support.temporal_server import close_run, connect_to_server, open_run
from tightloop.database.access import Tokens
from tightloop.database.engine import sqlite_database
from tightloop.database.ledger import Ledger
from tightloop.ledger.model import ProjectLine, TrailEvent
from tightloop.safety.seal import Role

STREAMS, EPISODES = 200, 100
RATES = (20, 100)
"""Events a second, over all episodes."""
SECONDS = 20.0
TIMED = 20
"""Streams whose events are timed; the others are read only."""
AIM = "p95 <= 1 s"
PROJECT = "orders-1a2b3c4d5e6f7081"


async def measure() -> Report:
    """Measure the processor time of the gateway, and how long an event takes to each reader."""
    open_run()
    try:
        with tempfile.TemporaryDirectory() as folder:
            return await _measure(Path(folder))
    finally:
        close_run()


async def _measure(folder: Path) -> Report:
    address = (await connect_to_server()).service_client.config.target_host
    ledger = Ledger(sqlite_database(folder / "ledger.db"))
    token = Tokens(ledger.database).create("readers", Role.VIEWER)[1]
    with gateway_process(folder, address) as served:
        return await _with(served, ledger, token)


async def _with(served: Served, ledger: Ledger, token: str) -> Report:
    title = f"events: {STREAMS} streams of {EPISODES} episodes; the gateway alone, writer and readers apart"
    report = Report(title, ("what", "% of a core", "/ silent", "s to a reader", "p95", ""))
    report.add("nobody there", 100 * await served.busy(asyncio.sleep(SECONDS)))
    delays: list[float] = []
    headers = {"Authorization": f"Bearer {token}"}
    limits = httpx2.Limits(max_connections=None)
    async with httpx2.AsyncClient(headers=headers, timeout=None, limits=limits, trust_env=False) as http:
        readers = [
            asyncio.create_task(_read(http, f"{served.url}/api/events", delays if n < TIMED else None))
            for n in range(STREAMS)
        ]
        await asyncio.sleep(5)
        silent = 100 * await served.busy(asyncio.sleep(SECONDS))
        report.add("silent streams", silent, 1.0)
        for rate in RATES:
            delays.clear()
            busy = 100 * await served.busy(asyncio.to_thread(_write, ledger, rate))
            await asyncio.sleep(2)
            took = Spread.of(delays)
            report.add(f"{rate} events a second", busy, busy / max(silent, 0.01), took.median, took.p95, aim=AIM)
            report.notes.append(f"{rate} events a second: {len(delays)} timed at {TIMED} of the readers")
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
    return report


async def _read(http: httpx2.AsyncClient, url: str, delays: list[float] | None) -> None:
    async with http.stream("GET", url) as stream:
        if delays is None:
            async for _ in stream.aiter_raw():
                pass
            return
        async for line in stream.aiter_lines():
            if line.startswith("data:") and '"text":"at ' in line:
                sent = float(line.partition('"text":"at ')[2].partition('"')[0])
                delays.append(time.time() - sent)


def _write(ledger: Ledger, rate: int) -> None:
    of = ledger.select_project(ProjectLine(id=PROJECT, name="orders"))
    begun = time.perf_counter()
    for number in range(int(rate * SECONDS)):
        episode, key = f"episode-{number % EPISODES}", f"{rate}/{number}"
        of.add_event(TrailEvent(episode_id=episode, kind="iteration", text=f"at {time.time()}", key=key))
        time.sleep(max(0.0, begun + (number + 1) / rate - time.perf_counter()))
