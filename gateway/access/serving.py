"""The HTTP server around the application, and its bounds."""

import logging
import resource
import socket

import uvicorn
from starlette.types import ASGIApp

from gateway.access.connection import BoundedConnection
from tightloop.errors import ServiceUnavailableError

CONNECTIONS = 256
OTHER_FILES = 256
"""Open files of the process that are no connections."""
IDLE_SECONDS = 30
# Open streams of a browser would hold the process for ever.
END_SECONDS = 1


def listening(address: str, setting: str) -> socket.socket:
    """Return a socket that listens at `host:port`.

    Raises:
        ServiceUnavailableError: the address is taken; the message names the setting to change.
    """
    host, _, port = address.rpartition(":")
    # Not `create_server`: without the protocol asyncio leaves Nagle's algorithm on, and an answer takes 44 ms, not 2.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, int(port)))
        listener.listen(CONNECTIONS)
        return listener
    except OSError as error:
        listener.close()
        raise ServiceUnavailableError(
            f"nothing can listen at {address}: {error.strerror or error}. End what listens there, or change {setting}"
        ) from error


def http_server(app: ASGIApp, connections: int = CONNECTIONS) -> uvicorn.Server:
    """Return a server that logs nothing and trusts no header of a proxy.

    Args:
        app: answers.
        connections: beyond them those that send no request are closed, and requests are answered with 503.
    """
    connections = _with_files_for(connections)
    # Its lines have addresses with sign-in links in them, its tracebacks could have content; the guard logs what fails.
    for name in ("uvicorn.access", "uvicorn.error"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    return uvicorn.Server(
        uvicorn.Config(
            app, log_config=None, access_log=False, server_header=False, proxy_headers=False, ws="none",
            http=BoundedConnection, loop="asyncio", limit_concurrency=connections,
            timeout_keep_alive=IDLE_SECONDS, timeout_graceful_shutdown=END_SECONDS,
        )
    )  # fmt: skip


def _with_files_for(connections: int) -> int:
    """Return how many connections the process may have; the usual limits are 1 024 files, on macOS 256."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        connections = min(connections, max(soft - OTHER_FILES, 1))
    return connections
