"""Observation of the files in a tree that are opened, using inotify."""

import ctypes
import os
import select
import struct
import sys
import threading
from collections.abc import Iterable
from pathlib import Path

from activities.workspace.store.entry import folders_of

_OPEN, _OVERFLOW, _IS_FOLDER = 0x20, 0x4000, 0x40000000
_ONLY_FOLDERS, _NO_LINKS = 0x01000000, 0x02000000
_EVENT = struct.Struct("iIII")
_BUFFER = 1 << 16
FOLDERS_LIMIT = 20_000
"""Maximum number of folders to watch. Linux allows a user 8 192 to 1 048 576 of them, depending on the memory."""
FILES_LIMIT = 20_000
"""Maximum number of opened files in an observation."""


class OpenedFiles:
    """Files of a tree that are opened between `start` and `stop`, ordered by the time at which each was first opened.

    inotify sees every process on this host, in any language and through any mount. It does not report which process
    opened a file. It does not see containers on another host, and it only exists on Linux.
    """

    def __init__(self, folder: Path, paths: Iterable[str]) -> None:
        self._folder, self._paths = folder, frozenset(paths)
        self._watched: dict[int, str] = {}
        self._opened: dict[str, None] = {}
        self._inotify, self._wake = -1, (-1, -1)
        self._thread: threading.Thread | None = None
        self._is_read = False
        self.is_complete = False
        """True if nothing was missed. False before `stop`."""

    def start(self) -> None:
        """Start watching. This does nothing if inotify is missing or the system's limit has been reached."""
        folders = ["", *(os.fsdecode(path) for path in folders_of(self._paths))]
        if sys.platform != "linux" or len(folders) > FOLDERS_LIMIT:
            return
        library = ctypes.CDLL(None, use_errno=True)
        self._inotify = library.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._inotify < 0:
            return
        for folder in folders:
            target = os.fsencode(self._folder / folder)
            number = library.inotify_add_watch(self._inotify, target, _OPEN | _ONLY_FOLDERS | _NO_LINKS)
            if number < 0:
                os.close(self._inotify)
                return
            self._watched[number] = f"{folder}/" if folder else ""
        self._wake = os.pipe()
        self._thread = threading.Thread(target=self._read_until_woken, name="opened files", daemon=True)
        self._thread.start()
        self.is_complete = True

    def stop(self) -> tuple[str, ...]:
        """Stop watching and return the paths of the opened files. Later calls return the same paths."""
        if self._thread is not None:
            os.write(self._wake[1], b"x")
            self._thread.join()
            self._thread = None
            for descriptor in (self._inotify, *self._wake):
                os.close(descriptor)
            self.is_complete = self.is_complete and self._is_read and len(self._opened) <= FILES_LIMIT
        return tuple(self._opened)[:FILES_LIMIT]

    def _read_until_woken(self) -> None:
        # A worker may have more descriptors than `select` takes.
        poll = select.poll()
        for descriptor in (self._inotify, self._wake[0]):
            poll.register(descriptor, select.POLLIN)
        is_woken = False
        while not is_woken:
            is_woken = any(descriptor == self._wake[0] for descriptor, _ in poll.poll())
            # The events of a command that has ended are in the queue already.
            self._take_queued()
        self._is_read = True

    def _take_queued(self) -> None:
        while True:
            try:
                events = os.read(self._inotify, _BUFFER)
            except BlockingIOError:
                return
            position = 0
            while position < len(events):
                watch, mask, _, length = _EVENT.unpack_from(events, position)
                position += _EVENT.size
                name = events[position : position + length].rstrip(b"\0")
                position += length
                if mask & _OVERFLOW:
                    self.is_complete = False
                elif not mask & _IS_FOLDER:
                    path = self._watched.get(watch, "") + os.fsdecode(name)
                    if path in self._paths:
                        self._opened.setdefault(path)
