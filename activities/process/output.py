"""Output of a process, kept in bounded memory or split into bounded lines."""

import threading

OUTPUT_BYTES = 1_000_000
"""Default bound of what is kept of one run."""
HEAD_BYTES = 64_000
"""Of this the beginning: a tool names its version and its settings there."""
ERRORS_BYTES = 64_000
"""Of standard error, where it is kept apart."""
LINE_BYTES = 10_000_000
# The tail is trimmed in steps of this size, and not with every chunk.
_SLACK_BYTES = 256_000
_MARK_BYTES = 64


class BoundedOutput:
    """The head and the tail of a stream of bytes; what lies between is counted and dropped.

    Holds at most `limit` bytes and a constant, however long the stream is. One thread may add while another reads.
    """

    def __init__(self, limit: int = OUTPUT_BYTES, *, head_bytes: int = HEAD_BYTES) -> None:
        """Keep at most `limit` bytes, at least 256, of which the first `head_bytes`, at most a quarter."""
        limit = max(limit, 256)
        self._head_room = min(head_bytes, limit // 4)
        self._tail_room = limit - self._head_room - _MARK_BYTES
        self._head = bytearray()
        self._tail = bytearray()
        self._dropped = 0
        self._changing = threading.Lock()

    def add(self, chunk: bytes) -> None:
        """Append bytes."""
        with self._changing:
            room = self._head_room - len(self._head)
            self._head += chunk[:room]
            self._tail += chunk[room:]
            if len(self._tail) > self._tail_room + _SLACK_BYTES:
                self._trim()

    def _trim(self) -> None:
        surplus = len(self._tail) - self._tail_room
        if surplus > 0:
            del self._tail[:surplus]
            self._dropped += surplus

    @property
    def cut(self) -> bool:
        """Whether anything is missing."""
        return self._dropped > 0 or len(self._tail) > self._tail_room

    def value(self) -> bytes:
        """Return what was kept, with a line that says how much is missing."""
        with self._changing:
            self._trim()
            mark = f"\n[... {self._dropped} bytes cut ...]\n".encode() if self._dropped else b""
            return bytes(self._head) + mark + bytes(self._tail)


class EventLines:
    """Splits a stream of bytes into lines of text, each at most `limit` bytes long.

    A longer line is cut, and its end says by how much; bytes that are not UTF-8 become replacement characters.
    """

    def __init__(self, limit: int = LINE_BYTES) -> None:
        """Hold at most `limit` bytes of the line that is not complete yet."""
        self._limit = limit
        self._line = bytearray()
        self._cut = 0

    def feed(self, chunk: bytes) -> list[str]:
        """Take bytes and return the lines that are complete now, without their ends."""
        *ends, start = chunk.split(b"\n")
        lines = []
        for end in ends:
            self._add(end)
            lines.append(self.rest())
        self._add(start)
        return lines

    def rest(self) -> str:
        """Take the line that has no end yet, or ""."""
        text = bytes(self._line).removesuffix(b"\r").decode("utf-8", "replace")
        mark = f" [... {self._cut} bytes cut ...]" if self._cut else ""
        self._line.clear()
        self._cut = 0
        return text + mark

    def _add(self, piece: bytes) -> None:
        room = self._limit - len(self._line)
        self._line += piece[:room]
        self._cut += max(len(piece) - room, 0)
