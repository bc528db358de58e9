"""Liveness and readiness of a worker process over HTTP, for whatever starts and stops it."""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus

from temporalio.client import Client
from temporalio.worker import Worker

from tightloop.client.calls import Calls
from tightloop.client.installation.staffing import workers_on
from tightloop.errors import SettingsError, TightloopError
from tightloop.settings import Settings

logger = logging.getLogger("tightloop")

REQUEST_SECONDS = 5.0
ASK_SECONDS = 2.0
"""Timeout of the questions to Temporal; a probe of Kubernetes is usually given some seconds."""


class Health:
    """Tells whether the process is alive, and whether it can work."""

    def __init__(self) -> None:
        """Begin as a process that starts."""
        self._client: Client | None = None
        self._workers: Sequence[Worker] = ()
        self._drains = False

    def begin(self, client: Client, workers: Sequence[Worker]) -> None:
        """Watch these workers, which run."""
        self._client, self._workers = client, workers

    def drain(self) -> None:
        """Take note that the process ends: it takes no new work, and is alive until then."""
        self._drains = True

    def problem_of_life(self) -> str:
        """Return why the process should be replaced; empty: it should not."""
        dead = [] if self._drains else [one.task_queue for one in self._workers if not one.is_running]
        return f"the worker of task queue {dead[0]} has stopped: start the process again" if dead else ""

    async def problem_of_work(self) -> str:
        """Return why the process cannot work now; empty: it can."""
        if self._drains:
            return "draining: running activities may finish, no new ones are taken"
        if self._client is None:
            return "starting: not connected to Temporal yet"
        if dead := self.problem_of_life():
            return dead
        try:
            async with asyncio.timeout(ASK_SECONDS):
                calls = Calls(self._client)
                polls = await asyncio.gather(*(_polls(calls, one) for one in self._workers))
        except TightloopError as error:
            return error.message
        except TimeoutError:
            return f"Temporal did not answer within {ASK_SECONDS:g} s"
        idle = [one.task_queue for one, does in zip(self._workers, polls, strict=True) if not does]
        return f"nothing polls task queue {idle[0]} yet" if idle else ""


async def _polls(calls: Calls, worker: Worker) -> bool:
    """Return whether Temporal knows that this worker polls, or is busy in all its slots."""
    identity = worker.config().get("identity")
    return any(one.identity == identity for one in await workers_on(calls, worker.task_queue))


@asynccontextmanager
async def serving_health(settings: Settings) -> AsyncIterator[Health]:
    """Serve `/healthz` and `/readyz` at `worker.health_bind` while the block runs; nothing where it is empty.

    Raises:
        SettingsError: nothing can listen there.
    """
    health = Health()
    if not settings.worker.health_bind:
        yield health
        return
    host, _, port = settings.worker.health_bind.rpartition(":")
    try:
        server = await asyncio.start_server(lambda *ends: _answer(health, *ends), host.strip("[]"), int(port))
    except (OSError, OverflowError) as error:
        raise SettingsError(
            f"nothing can listen at {settings.worker.health_bind}: {error}. Set worker.health_bind to a free port on "
            "an address of this host, such as 127.0.0.1:9465; each worker process needs its own"
        ) from error
    async with server:
        yield health


async def _answer(health: Health, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer one request and close."""
    try:
        async with asyncio.timeout(REQUEST_SECONDS):
            # Longer lines than 64 KiB are a ValueError.
            line = await reader.readline()
            method, _, rest = line.decode("latin-1").partition(" ")
            status, text = await _status(health, method, rest.partition(" ")[0].partition("?")[0])
            body = f"{text}\n".encode()
            head = (
                f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: text/plain; charset=utf-8\r\n"
                f"Content-Length: {len(body)}\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n"
            )
            writer.write(head.encode() + (b"" if method == "HEAD" else body))
            await writer.drain()
    except (OSError, TimeoutError, ValueError) as error:
        logger.debug("a probe was not answered: %s", error)
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


async def _status(health: Health, method: str, path: str) -> tuple[HTTPStatus, str]:
    if method not in ("GET", "HEAD"):
        return HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD"
    if path == "/healthz":
        problem = health.problem_of_life()
    elif path == "/readyz":
        problem = await health.problem_of_work()
    else:
        return HTTPStatus.NOT_FOUND, "there are /healthz and /readyz"
    return (HTTPStatus.SERVICE_UNAVAILABLE, problem) if problem else (HTTPStatus.OK, "ok")
