"""Output of a process, and bounds on what it writes."""

import os
import stat
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

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


WALK_S = 5.0
"""Longest time of one walk."""
_RESTS = 20
"""So many times as long as a walk took, none is made."""
_EARLIER_NS = 20_000_000
"""The times of files are those of the last tick of the kernel's clock."""
_BLOCK_BYTES = 512
_NAMED = 3
_MEGABYTE = 1_000_000


@dataclass(frozen=True, kw_only=True)
class Growth:
    """A bound of what a program adds."""

    folders: tuple[Path, ...]
    limit_bytes: int
    """Of all of them together, as allocated on the disk."""


class GrowthWatch:
    """Watches one program from its start on."""

    def __init__(self, growth: Growth) -> None:
        self._growth = growth
        self._begun_ns = time.time_ns() - _EARLIER_NS
        self._free = dict(self._room())
        self._rest_until = 0.0
        self._deadline = 0.0

    def exceeded(self, pids: Callable[[], Iterable[int]]) -> str:
        """Return what grew beyond the bound, in a sentence; empty where nothing did.

        Args:
            pids: tells those of the program and its descendants: files that they removed and still hold count, too.
        """
        limit = self._growth.limit_bytes
        lost = 0
        for device, now in self._room():
            # What others free meanwhile must not hide anything.
            self._free[device] = max(now, self._free.get(device, now))
            lost += self._free[device] - now
        begun = time.monotonic()
        if lost < limit or begun < self._rest_until:
            return ""
        self._deadline = begun + WALK_S
        added: Counter[str] = Counter()
        for name, size in self._added(pids()):
            added[name] += size
            if added.total() > limit or time.monotonic() > self._deadline:
                break
        self._rest_until = begun + (1 + _RESTS) * (time.monotonic() - begun)
        if added.total() <= limit:
            return ""
        most = ", ".join(f"{name} ({size / _MEGABYTE:.0f} MB)" for name, size in added.most_common(_NAMED))
        allowed = f"{limit / _MEGABYTE:.0f} MB"
        return f"ended: it added more than {allowed} to the disk, most in {most}. Write less, or raise sandbox.disk_mb"

    def _room(self) -> Iterator[tuple[int, int]]:
        """Yield the free bytes of each file system, by its number."""
        found: dict[int, int] = {}
        for folder in self._growth.folders:
            with suppress(OSError):
                device = folder.stat().st_dev
                if device not in found:
                    room = os.statvfs(folder)
                    found[device] = room.f_bfree * room.f_frsize
        yield from found.items()

    def _added(self, pids: Iterable[int]) -> Iterator[tuple[str, int]]:
        """Yield the sizes of files that were changed since the start, each under what it lies in."""
        folders = dict.fromkeys(self._growth.folders)
        for folder in folders:
            if not any(folder != other and folder.is_relative_to(other) for other in folders):
                yield from self._below(folder)
        for pid in pids:
            with suppress(OSError), os.scandir(f"/proc/{pid}/fd") as descriptors:
                for descriptor in descriptors:
                    with suppress(OSError):
                        held = descriptor.stat()
                        if stat.S_ISREG(held.st_mode) and not held.st_nlink and held.st_ctime_ns >= self._begun_ns:
                            yield "files that were removed and are still open", held.st_blocks * _BLOCK_BYTES

    def _below(self, folder: Path) -> Iterator[tuple[str, int]]:
        # A list in place of recursion: a program can make folders deeper than any stack.
        waiting, linked = [(str(folder), "")], set[int]()
        while waiting:
            place, top = waiting.pop()
            try:
                entries = os.scandir(place)
            except OSError:
                # What nobody can look into could hold anything.
                with suppress(OSError):
                    if Path(place).lstat().st_ctime_ns >= self._begun_ns:
                        yield f"{top or place}, which cannot be read", self._growth.limit_bytes + 1
                continue
            with entries:
                for entry in entries:
                    with suppress(OSError):
                        found = entry.stat(follow_symlinks=False)
                        if stat.S_ISDIR(found.st_mode):
                            waiting.append((entry.path, top or entry.name))
                        elif found.st_ctime_ns >= self._begun_ns and found.st_ino not in linked:
                            if found.st_nlink > 1:
                                linked.add(found.st_ino)
                            yield top or entry.name, found.st_blocks * _BLOCK_BYTES
