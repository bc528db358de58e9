"""`python -m gateway`: serve this installation's web page and HTTP API."""

import argparse
import asyncio
import logging
import os
import signal
import socket
import sys
import threading
from pathlib import Path

import uvicorn
from temporalio.client import Interceptor

from gateway.access.site import http_server, listening, origin_of
from gateway.server import application
from tightloop.client import TightloopClient
from tightloop.client.connection import trace_calls
from tightloop.database.ledger import open_ledger
from tightloop.errors import ServiceUnavailableError, TightloopError
from tightloop.host import load_settings, open_state_home, settings_mark
from tightloop.host.access import note_gateway
from tightloop.host.log import set_up
from tightloop.settings import LOOPBACK_HOSTS, Settings

READY = "the gateway listens at"
AGAIN_SECONDS = 1.0
FLUSH_SECONDS = 2.0
"""Time in seconds to export the last spans at the end."""
CONNECTIONS = 1_024
"""Maximum number of connections. Most are event streams of open pages, one per browser."""


def main() -> int:
    """Run the gateway and return its exit code.

    If there is a tightloop error, it is printed as one sentence and the exit code is 1.
    """
    set_up(logging.INFO, content=False)
    logging.getLogger("alembic").setLevel(logging.WARNING)
    parser = argparse.ArgumentParser(prog="python -m gateway", description=__doc__)
    parser.add_argument("--settings", type=Path, help="settings file")
    parser.add_argument("--embedded", action="store_true", help="exit when standard input closes")
    arguments = parser.parse_args()
    # uvicorn shuts down and then raises the signal again, whose default action would lose the last spans.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        settings = load_settings(arguments.settings)
        open_state_home()
        asyncio.run(serve(settings, embedded=arguments.embedded, settings_id=settings_mark(arguments.settings)))
    except TightloopError as error:
        print(f"error: {error.message}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


async def serve(settings: Settings, *, embedded: bool = False, settings_id: str = "") -> None:
    """Serve until SIGTERM or SIGINT. With `embedded`, also stop at the end of standard input.

    Commands on this host whose settings have the same `settings_id` send their requests to this gateway.

    Raises:
        TightloopError: Temporal or the database does not respond, a key cannot be used, or the address is
            already in use.
    """
    # Before waiting for Temporal, so that a taken address is reported at once.
    listener = listening(settings.gateway.address(settings.temporal), "gateway.listen")
    with listener, trace_calls(settings, FLUSH_SECONDS) as tracing:
        client = await _connect(settings, tracing)
        ledger = open_ledger(settings)
        # Checked now instead of with the first request: with a database of another release the gateway must not start.
        await asyncio.to_thread(ledger.last_event)
        app = application(ledger, client, settings)
        if tracing is not None:
            # Imported here: it loads OpenTelemetry, which is an optional dependency.
            from gateway.access.site import CallersTrace

            app = CallersTrace(app)
        await _run(settings, http_server(app, CONNECTIONS), listener, embedded=embedded, settings_id=settings_id)


async def _connect(settings: Settings, tracing: Interceptor | None) -> TightloopClient:
    """Connect to Temporal. Wait for the server as long as workers do."""
    clock = asyncio.get_running_loop().time
    until = clock() + settings.worker.start_wait_s
    while True:
        try:
            return await TightloopClient.connect(settings=settings, interceptors=[tracing] if tracing else [])
        except ServiceUnavailableError:
            if clock() > until:
                raise
            await asyncio.sleep(AGAIN_SECONDS)


async def _run(
    settings: Settings, server: uvicorn.Server, listener: socket.socket, *, embedded: bool, settings_id: str
) -> None:
    def at_the_end_of_stdin() -> None:
        while os.read(sys.stdin.fileno(), 4096):
            pass
        server.should_exit = True

    if embedded:
        # A blocking read in a daemon thread: epoll rejects a standard input that is a file.
        threading.Thread(target=at_the_end_of_stdin, daemon=True).start()
    page, address = settings.gateway.page(settings.temporal), settings.gateway.address(settings.temporal)
    if settings_id and address.rpartition(":")[0] in LOOPBACK_HOSTS:
        note_gateway(address, origin_of(page).partition("://")[2], settings_id)
    # The socket already listens, so whoever reads this line can connect at once.
    print(f"{READY} {page}", flush=True)
    await server.serve(sockets=[listener])


if __name__ == "__main__":
    sys.exit(main())
