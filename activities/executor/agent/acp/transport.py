"""Carries the messages of the Agent Client Protocol over the pipes of a process that somebody else owns."""

import asyncio
import json
import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

from activities.process.output import EventLines

LINE_BYTES = 50_000_000
"""A longer line is cut and not read as a message; opencode's list of models alone has hundreds of kilobytes."""
_CHUNK_BYTES = 65_536

Message = dict[str, Any]


@dataclass(frozen=True)
class Traffic:
    """Who sees what passes."""

    came: Callable[[Message], bool]
    """Sees each message in the order of arrival, before anybody else; True: it is dealt with."""
    line: Callable[[str, str], None]
    """Sees each line: `<` came, `>` went, `!` came and is not a message."""


class PipeTransport:
    """One JSON message a line, as `acp.connection.Connection` wants its transports.

    Lines that are not JSON objects are skipped: agents, and what they start, print there too.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        source: asyncio.ReadTransport,
        traffic: Traffic,
    ) -> None:
        self._reader = reader
        self._source = source
        self._writer = writer
        self._traffic = traffic
        self._lines = EventLines(LINE_BYTES)
        self._waiting: deque[str] = deque()

    @classmethod
    async def open(cls, stdin_fd: int, stdout_fd: int, traffic: Traffic) -> Self:
        """Connect to the pipes of a process. Copies of the descriptors are used, the owner's stay open."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=_CHUNK_BYTES)
        source, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(os.dup(stdout_fd), "rb")
        )
        # `StreamWriter.drain` needs flow control, and of the public protocols only StreamReaderProtocol has it.
        pipe, protocol = await loop.connect_write_pipe(
            lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader()), os.fdopen(os.dup(stdin_fd), "wb")
        )
        return cls(reader, asyncio.StreamWriter(pipe, protocol, None, loop), source=source, traffic=traffic)

    async def send(self, message: Message) -> None:
        """Write one message; an answer to an agent that is gone is dropped.

        Raises:
            ConnectionError: the agent is gone, and `message` is not an answer.
        """
        text = json.dumps(message, separators=(",", ":"))
        self._traffic.line(">", text)
        try:
            self._writer.write(text.encode() + b"\n")
            await self._writer.drain()
        except ConnectionError:
            if "method" in message:
                raise

    async def receive(self) -> Message | None:
        """Return the next message that nobody dealt with yet; None at the end of the stream."""
        while True:
            while self._waiting:
                message = self._decode(self._waiting.popleft())
                if message is not None and not self._traffic.came(message):
                    return message
            chunk = await self._reader.read(_CHUNK_BYTES)
            if not chunk:
                return None
            self._waiting.extend(self._lines.feed(chunk))

    async def close(self) -> None:
        """Let go of both pipes; what was not written yet is dropped."""
        self._source.close()
        if not self._writer.transport.is_closing():
            self._writer.transport.abort()
        # The pipes are closed in the next turn of the loop, which may be its last.
        await asyncio.sleep(0)

    def _decode(self, line: str) -> Message | None:
        text = line.strip()
        try:
            message = json.loads(text) if text else None
        except (ValueError, RecursionError):
            message = None
        if text:
            self._traffic.line("<" if isinstance(message, dict) else "!", text)
        return message if isinstance(message, dict) else None
