"""`/healthz` and `/readyz` of a worker process, asked as Kubernetes asks them."""

import asyncio
from contextlib import AsyncExitStack, suppress

import httpx2
import pytest
from temporalio.client import Client

from tests.support.episodes import eventually
from tightloop.errors import SettingsError
from tightloop.settings import Settings, WorkerSettings
from worker.build import build_workers
from worker.health import serving_health
from worker.server import free_port


def answering(settings: Settings) -> Settings:
    bind = f"127.0.0.1:{free_port()}"
    return settings.evolve(worker=WorkerSettings(health_bind=bind, graceful_shutdown_s=1))


async def ask(settings: Settings, path: str) -> tuple[int, str]:
    async with httpx2.AsyncClient() as http:
        answer = await http.get(f"http://{settings.worker.health_bind}{path}")
        return answer.status_code, answer.text.strip()


async def test_a_worker_is_ready_while_it_polls_and_alive_until_it_has_drained(
    temporal_client: Client, settings: Settings
) -> None:
    settings = answering(settings)
    async with serving_health(settings) as health:
        assert await ask(settings, "/healthz") == (200, "ok")
        assert await ask(settings, "/readyz") == (503, "starting: not connected to Temporal yet")
        async with AsyncExitStack() as stack:
            workers = build_workers(temporal_client, settings)
            for worker in workers:
                await stack.enter_async_context(worker)
            health.begin(temporal_client, workers)

            async def ready() -> bool:
                return await ask(settings, "/readyz?verbose") == (200, "ok")

            await eventually(ready)
            health.drain()
            status, told = await ask(settings, "/readyz")
            assert (status, told.partition(":")[0]) == (503, "draining")
            assert await ask(settings, "/healthz") == (200, "ok")
        assert (await ask(settings, "/metrics"))[0] == 404


async def test_a_worker_that_stopped_by_itself_is_not_alive(temporal_client: Client, settings: Settings) -> None:
    settings = answering(settings)
    async with serving_health(settings) as health:
        workers = build_workers(temporal_client, settings)
        async with AsyncExitStack() as stack:
            for worker in workers:
                await stack.enter_async_context(worker)
            health.begin(temporal_client, workers)
        status, told = await ask(settings, "/healthz")
        assert status == 503
        assert settings.temporal.task_queue in told


async def test_what_is_no_request_is_cut_off_and_the_next_one_answered(settings: Settings) -> None:
    settings = answering(settings)
    host, _, port = settings.worker.health_bind.partition(":")
    async with serving_health(settings):
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"x" * 200_000 + b"\r\n")
        async with asyncio.timeout(10):
            with suppress(ConnectionResetError):
                assert await reader.read() == b""
        writer.close()
        async with httpx2.AsyncClient() as http:
            assert (await http.post(f"http://{settings.worker.health_bind}/healthz")).status_code == 405
        assert await ask(settings, "/healthz") == (200, "ok")


async def test_a_taken_port_is_one_sentence(settings: Settings) -> None:
    settings = answering(settings)
    async with serving_health(settings):
        with pytest.raises(SettingsError, match=r"cannot listen on .*Set worker\.health_bind"):
            async with serving_health(settings):
                pass
