"""Limits on a process's output and disk usage."""

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
"""Default limit on the output kept from one run."""
HEAD_BYTES = 64_000
"""Part of the limit that is reserved for the start of the output, where tools print their version and settings."""
ERRORS_BYTES = 64_000
"""Limit for standard error if it is separate."""
LINE_BYTES = 10_000_000
# The tail is trimmed in steps of this size, not with every chunk.
_SLACK_BYTES = 256_000
_MARK_BYTES = 64


class BoundedOutput:
    """Keeps the head and tail of a byte stream. The middle is dropped but counted.

    At most `limit` bytes and a constant overhead are kept in memory. One thread may add data while
    another one reads.
    """

    def __init__(self, limit: int = OUTPUT_BYTES, *, head_bytes: int = HEAD_BYTES) -> None:
        """Keep at most `limit` bytes (256 or more), including the first `head_bytes` (at most a quarter)."""
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
        """True if part of the output was dropped."""
        return self._dropped > 0 or len(self._tail) > self._tail_room

    def value(self) -> bytes:
        """Return the output that was kept. If part of it was dropped, a line gives the size of that part."""
        with self._changing:
            self._trim()
            cut_note = f"\n[... {self._dropped} bytes cut ...]\n".encode() if self._dropped else b""
            return bytes(self._head) + cut_note + bytes(self._tail)


class EventLines:
    """Splits a byte stream into lines of text, each at most `limit` bytes long.

    A longer line is truncated and ends with the number of bytes dropped. Invalid UTF-8 is replaced.
    """

    def __init__(self, limit: int = LINE_BYTES) -> None:
        """Buffer at most `limit` bytes of an incomplete line."""
        self._limit = limit
        self._line = bytearray()
        self._cut = 0

    def feed(self, chunk: bytes) -> list[str]:
        """Add bytes and return the lines that are now complete, without line endings."""
        *ends, start = chunk.split(b"\n")
        lines = []
        for end in ends:
            self._add(end)
            lines.append(self.rest())
        self._add(start)
        return lines

    def rest(self) -> str:
        """Return and clear the incomplete line, or ""."""
        text = bytes(self._line).removesuffix(b"\r").decode("utf-8", "replace")
        cut_note = f" [... {self._cut} bytes cut ...]" if self._cut else ""
        self._line.clear()
        self._cut = 0
        return text + cut_note

    def _add(self, piece: bytes) -> None:
        room = self._limit - len(self._line)
        self._line += piece[:room]
        self._cut += max(len(piece) - room, 0)


WALK_S = 5.0
"""Time limit in seconds for one walk through the folders."""
_RESTS = 20
"""Pause after a walk, as a multiple of the walk's duration."""
_EARLIER_NS = 20_000_000
"""Tolerance by which the start is moved back, because file times have the resolution of the kernel's clock tick."""
_BLOCK_BYTES = 512
_NAMED = 3
_MEGABYTE = 1_000_000


@dataclass(frozen=True, kw_only=True)
class Growth:
    """A limit on the amount of data that a program may write to disk."""

    folders: tuple[Path, ...]
    limit_bytes: int
    """The limit for all folders together, as allocated on the disk."""


class GrowthWatch:
    """Watches how much data a program adds to the disk after it starts."""

    def __init__(self, growth: Growth) -> None:
        self._growth = growth
        self._begun_ns = time.time_ns() - _EARLIER_NS
        self._free = dict(self._room())
        self._rest_until = 0.0
        self._deadline = 0.0

    def describe_excess(self, pids: Callable[[], Iterable[int]]) -> str:
        """Return a sentence describing the disk limit that was exceeded, or "" if none was.

        Args:
            pids: returns the pids of the program and its descendants. Deleted files that they have open are
                counted.
        """
        limit = self._growth.limit_bytes
        lost = 0
        for device, now in self._room():
            # Space that others free meanwhile must not hide new usage.
            self._free[device] = max(now, self._free.get(device, now))
            lost += self._free[device] - now
        start_time = time.monotonic()
        # As long as the file systems have not lost that much, no walk is needed.
        if lost < limit or start_time < self._rest_until:
            return ""
        self._deadline = start_time + WALK_S
        added: Counter[str] = Counter()
        for name, size in self._list_added_sizes(pids()):
            added[name] += size
            # A walk that takes too long proves nothing; the program goes on until the next one.
            if added.total() > limit or time.monotonic() > self._deadline:
                break
        self._rest_until = start_time + (1 + _RESTS) * (time.monotonic() - start_time)
        if added.total() <= limit:
            return ""
        most = ", ".join(f"{name} ({size / _MEGABYTE:.0f} MB)" for name, size in added.most_common(_NAMED))
        allowed = f"{limit / _MEGABYTE:.0f} MB"
        return (
            f"killed: the program added more than {allowed} to the disk, mostly in {most}. Write less, or raise "
            "sandbox.disk_mb"
        )

    def _room(self) -> Iterator[tuple[int, int]]:
        """Yield the device number and the free bytes of each file system."""
        free_bytes: dict[int, int] = {}
        for folder in self._growth.folders:
            with suppress(OSError):
                device = folder.stat().st_dev
                if device not in free_bytes:
                    room = os.statvfs(folder)
                    free_bytes[device] = room.f_bfree * room.f_frsize
        yield from free_bytes.items()

    def _list_added_sizes(self, pids: Iterable[int]) -> Iterator[tuple[str, int]]:
        """Yield the size of each file that has changed since the start.

        Each size is preceded by the top-level entry that contains the file.
        """
        folders = dict.fromkeys(self._growth.folders)
        for folder in folders:
            if not any(folder != other and folder.is_relative_to(other) for other in folders):
                yield from self._below(folder)
        for pid in pids:
            with suppress(OSError), os.scandir(f"/proc/{pid}/fd") as descriptors:
                for descriptor in descriptors:
                    with suppress(OSError):
                        file_stat = descriptor.stat()
                        if (
                            stat.S_ISREG(file_stat.st_mode)
                            and not file_stat.st_nlink
                            and file_stat.st_ctime_ns >= self._begun_ns
                        ):
                            yield "deleted files that are still open", file_stat.st_blocks * _BLOCK_BYTES

    def _below(self, folder: Path) -> Iterator[tuple[str, int]]:
        # Iterative: a program can nest folders deeper than any stack.
        waiting, linked = [(str(folder), "")], set[int]()
        while waiting:
            folder_path, top = waiting.pop()
            try:
                entries = os.scandir(folder_path)
            except OSError:
                # A changed folder that cannot be read exceeds the limit, or a program could hide its files by chmod.
                with suppress(OSError):
                    if Path(folder_path).lstat().st_ctime_ns >= self._begun_ns:
                        yield f"{top or folder_path}, which cannot be read", self._growth.limit_bytes + 1
                continue
            with entries:
                for entry in entries:
                    with suppress(OSError):
                        entry_stat = entry.stat(follow_symlinks=False)
                        if stat.S_ISDIR(entry_stat.st_mode):
                            waiting.append((entry.path, top or entry.name))
                        elif entry_stat.st_ctime_ns >= self._begun_ns and entry_stat.st_ino not in linked:
                            # By ctime, because a program can set mtime to any value.
                            if entry_stat.st_nlink > 1:
                                # Several hard links to a file take its space only once.
                                linked.add(entry_stat.st_ino)
                            # By allocated blocks: a sparse file takes less than its size.
                            yield top or entry.name, entry_stat.st_blocks * _BLOCK_BYTES
