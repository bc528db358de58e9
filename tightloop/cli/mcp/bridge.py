"""Connects standard input and output with the Unix socket of a server: for clients that only start programs."""

import os
import socket
import stat
import sys
import threading
from pathlib import Path

from tightloop.errors import ServiceUnavailableError

_BYTES = 65_536


def bridge(path: Path) -> None:
    """Pass everything on until the server, or standard input, ends.

    Raises:
        ServiceUnavailableError: nothing listens there, or the socket belongs to another user.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        try:
            found = path.lstat()
            if not stat.S_ISSOCK(found.st_mode) or found.st_uid not in (0, os.geteuid()):
                raise ServiceUnavailableError(f"{path} is not a socket of this user. Name the one of `--socket`")
            connection.connect(str(path))
        except OSError as error:
            raise ServiceUnavailableError(
                f"no MCP server answers at {path}: {error.strerror or error}. "
                f"Start one: tightloop mcp serve --socket {path}"
            ) from None
        threading.Thread(target=_send, args=(connection,), daemon=True).start()
        while content := connection.recv(_BYTES):
            sys.stdout.buffer.write(content)
            sys.stdout.buffer.flush()


def _send(connection: socket.socket) -> None:
    while content := os.read(sys.stdin.fileno(), _BYTES):
        connection.sendall(content)
    # What was asked is still answered.
    connection.shutdown(socket.SHUT_WR)
