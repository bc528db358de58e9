"""Liveness and readiness of a worker process, reported to its supervisor over HTTP."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus

from temporalio.client import Client
from temporalio.worker import Worker

from tightloop.client.calls import Calls
from tightloop.client.execution import version_name
from tightloop.client.staffing import count_open, workers_on
from tightloop.client.workers import Poller, explain_idle
from tightloop.errors import SettingsError, TightloopError
from tightloop.settings import Settings

logger = logging.getLogger("tightloop")

REQUEST_SECONDS = 5.0
ASK_SECONDS = 2.0
"""Timeout of queries to Temporal. Kubernetes probes usually allow a few seconds."""
ANSWER_SECONDS = 1.0
"""Time in seconds for which a readiness result is cached. Anyone may send probes, and each check requires several
calls.
"""
LOOK_SECONDS = 15.0
START_SECONDS = 3.0
"""Time in seconds that a new worker may take to appear in Temporal before a warning is logged."""
FIRST_LOOK_SECONDS = 0.3


class Health:
    """The process's liveness and readiness."""

    def __init__(self) -> None:
        self._client: Client | None = None
        self._workers: Sequence[Worker] = ()
        self._drains = False
        self._asking = asyncio.Lock()
        self._asked, self._answer = -ANSWER_SECONDS, ""

    def begin(self, client: Client, workers: Sequence[Worker]) -> None:
        """Start watching the given running workers."""
        self._client, self._workers = client, workers

    def drain(self) -> None:
        """Mark the process as draining. It is then alive but not ready."""
        self._drains = True

    def problem_of_life(self) -> str:
        """Return the reason why the process should be replaced, or "" if the process is alive."""
        # Draining stops workers on purpose; a restart now would cut their last activities off.
        dead = [] if self._drains else [worker.task_queue for worker in self._workers if not worker.is_running]
        return f"the worker for task queue {dead[0]} has stopped. Restart the process" if dead else ""

    async def problem_of_work(self) -> str:
        """Return the reason why the process cannot accept work, or "" if the process is ready.

        The result is cached for `ANSWER_SECONDS`.
        """
        if self._drains:
            return "draining: running activities can finish, but no new ones start"
        if self._client is None:
            return "starting: not connected to Temporal yet"
        if dead := self.problem_of_life():
            return dead
        # Concurrent probes share one check.
        async with self._asking:
            if time.monotonic() - self._asked >= ANSWER_SECONDS:
                self._answer = await self._ask(Calls(self._client))
                self._asked = time.monotonic()
            return self._answer

    async def _ask(self, calls: Calls) -> str:
        try:
            async with asyncio.timeout(ASK_SECONDS):
                pollers = await asyncio.gather(*(_as_known(calls, served_worker) for served_worker in self._workers))
                for worker, poller in zip(self._workers, pollers, strict=True):
                    if poller is None:
                        return f"no worker polls task queue {worker.task_queue} yet"
                    # An older build gets no new workflows, but is ready as long as open ones are pinned to it.
                    idle = explain_idle(worker.task_queue, [poller])
                    if idle and not (poller.version and await count_open(calls, poller.version)):
                        return str(idle)
        except TightloopError as error:
            return error.message
        except TimeoutError:
            return f"Temporal did not respond within {ASK_SECONDS:g} s"
        return ""

    async def log_changes(self, name: str, every: float = LOOK_SECONDS) -> None:
        """Log every change in readiness until cancelled."""
        last_problem: str | None = None
        start = time.monotonic()
        while True:
            problem = await self.problem_of_work()
            starts = last_problem is None and time.monotonic() - start < START_SECONDS
            if problem != last_problem and not (problem and starts):
                if problem:
                    logger.warning("worker %s is not ready: %s", name, problem)
                else:
                    logger.info("worker %s is ready", name)
                last_problem = problem
            await asyncio.sleep(FIRST_LOOK_SECONDS if last_problem is None else every)


async def _as_known(calls: Calls, worker: Worker) -> Poller | None:
    """Return the entry for a worker in Temporal's list, or None if the worker is not listed yet."""
    config = worker.config()
    deployment = config.get("deployment_config")
    version = version_name(deployment.version.deployment_name, deployment.version.build_id) if deployment else ""
    workers = await workers_on(calls, worker.task_queue)
    return next(
        (poller for poller in workers if (poller.identity, poller.version) == (config.get("identity"), version)), None
    )


@asynccontextmanager
async def serving_health(settings: Settings) -> AsyncIterator[Health]:
    """Serve `/healthz` and `/readyz` on `worker.health_bind` during the block.

    Do nothing if the setting is empty.

    Raises:
        SettingsError: the address cannot be bound.
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
            f"cannot listen on {settings.worker.health_bind}: {error}. Set worker.health_bind to an address on "
            "this host and a free port, for example 127.0.0.1:9465. Each worker process needs its own port"
        ) from error
    async with server:
        yield health


async def _answer(health: Health, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Respond to one request and close the connection."""
    try:
        async with asyncio.timeout(REQUEST_SECONDS):
            # `readline` raises ValueError for lines over 64 KiB.
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
        logger.debug("could not respond to a health check: %s", error)
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


async def _status(health: Health, method: str, path: str) -> tuple[HTTPStatus, str]:
    if method not in ("GET", "HEAD"):
        return HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD are allowed"
    if path == "/healthz":
        problem = health.problem_of_life()
    elif path == "/readyz":
        problem = await health.problem_of_work()
    else:
        return HTTPStatus.NOT_FOUND, "not found. Available paths: /healthz and /readyz"
    return (HTTPStatus.SERVICE_UNAVAILABLE, problem) if problem else (HTTPStatus.OK, "ok")
