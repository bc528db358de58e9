"""Connections that carry one message a line: standard input and output, and a Unix socket of one user."""

import asyncio
import os
import socket
import stat
import struct
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import anyio
from mcp.server import Server
from mcp.server.stdio import stdio_server

from tightloop.errors import ServiceUnavailableError, SettingsError

LINE_BYTES = 256 * 1024
CONNECTIONS = 32
_PEER = struct.Struct("3i")


async def serve_stdio(server: Server[Any]) -> None:
    """Answer on standard output until standard input ends."""
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


async def serve_socket(server: Server[Any], path: Path) -> None:
    """Answer at a Unix socket that only this user can open, until it is cancelled.

    Raises:
        SettingsError: the folder belongs to somebody else, or others may write to it.
        ServiceUnavailableError: something else is there, or listens there.
    """
    free = asyncio.Semaphore(CONNECTIONS)

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if _is_own_user(writer.get_extra_info("socket")):
                async with free:
                    await _serve_lines(server, reader, writer)
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    listener = _listening(path)
    try:
        async with await asyncio.start_unix_server(connected, sock=listener, limit=LINE_BYTES) as serving:
            await serving.serve_forever()
    finally:
        path.unlink(missing_ok=True)


async def _serve_lines(server: Server[Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    lines = cast("anyio.AsyncFile[str]", Lines(reader, writer))
    # A client that goes away, or sends a line without end, ends its own connection alone.
    with suppress(ConnectionError, ExceptionGroup):
        async with stdio_server(lines, lines) as (read, write):
            await server.run(read, write, server.create_initialization_options())


class Lines:
    """A socket as the text file that the SDK reads and writes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def __aiter__(self) -> AsyncIterator[str]:
        while True:
            try:
                line = await self._reader.readline()
            except (ValueError, ConnectionError):
                return
            if not line:
                return
            yield line.decode("utf-8", "replace")

    async def write(self, text: str) -> None:
        """Write a message and its line end."""
        self._writer.write(text.encode())

    async def flush(self) -> None:
        """Wait while the other side does not read."""
        await self._writer.drain()


def _listening(path: Path) -> socket.socket:
    folder = path.parent
    try:
        found = folder.stat()
        if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o022:
            raise SettingsError(
                f"the folder {folder} of the socket belongs to another user, or others may write to it. Choose your own"
            )
        _remove_left(path)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        # Before it has a name: a client that is quick must not find it open to others.
        before = os.umask(0o177)
        try:
            listener.bind(str(path))
        finally:
            os.umask(before)
        listener.listen(CONNECTIONS)
    except OSError as error:
        raise ServiceUnavailableError(
            f"nothing can listen at {path}: {error.strerror or error}. Choose another path for --socket"
        ) from error
    return listener


def _remove_left(path: Path) -> None:
    """Remove the socket of a process that is gone; anything else stays.

    Raises:
        ServiceUnavailableError: it is not a socket, or somebody listens there.
    """
    with suppress(FileNotFoundError):
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise ServiceUnavailableError(f"{path} is not a socket. Choose another path for --socket")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(1)
            try:
                probe.connect(str(path))
            except ConnectionRefusedError:
                path.unlink()
                return
        raise ServiceUnavailableError(f"something listens at {path} already. End it, or choose another path")


def _is_own_user(connection: socket.socket) -> bool:
    """Whether the other side is a process of this user, or of root."""
    if sys.platform == "darwin":
        # struct xucred of sys/ucred.h: version, uid, ...
        uid = struct.unpack_from("2I", connection.getsockopt(0, 1, 76))[1]
    else:
        uid = _PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))[1]
    return uid in (0, os.geteuid())
