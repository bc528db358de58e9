"""Writes files of a tree below a folder: never through a link, never onto an existing file, never outside."""

import contextlib
import os
import shutil
import stat
from collections.abc import Iterable
from operator import itemgetter

from activities.workspace.store.entry import EXECUTABLE, LINK, Entry, TreeChange
from activities.workspace.store.objects import TreeStore, valid_name
from activities.workspace.store.walk import OPEN_FOLDER
from tightloop.errors import GitError

NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class TreeWriter:
    """Works below one folder, which it holds open; every step from it is taken without following links."""

    def __init__(self, store: TreeStore, root: str) -> None:
        """Open `root`, the one path in which links are followed; close it with `close`."""
        self._store = store
        self._open: list[tuple[bytes, int]] = []
        self._root = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def close(self) -> None:
        """Close all folders."""
        self._leave(0)
        os.close(self._root)

    def apply(self, changes: Iterable[TreeChange]) -> None:
        """Bring the files from one tree to the other; what is in the way of a new file is removed.

        Raises:
            GitError: an object is missing, or a name is not one that may be written.
            OSError: a file cannot be written.
        """
        ordered = sorted(changes, key=itemgetter(0))
        for change in ordered:
            if not all(map(valid_name, change.path.split(b"/"))):
                shown = change.path.decode("utf-8", "backslashreplace")
                raise GitError(f"the tree has the path {shown!r}, which may not be written")
        # From the end, so that a folder is empty before it is its turn.
        for change in reversed(ordered):
            if change.before is not None:
                self._remove(change.path)
        self._leave(0)
        for change in ordered:
            if change.after is not None:
                self._write(change.path, change.after)
        self._leave(0)

    def _remove(self, path: bytes) -> None:
        parts = path.split(b"/")
        if not self._enter(parts[:-1], make=False):
            return
        with contextlib.suppress(FileNotFoundError, IsADirectoryError):
            if not stat.S_ISDIR(os.stat(parts[-1], dir_fd=self._here, follow_symlinks=False).st_mode):
                os.unlink(parts[-1], dir_fd=self._here)
        # A folder that holds nothing any more goes, as in git; one with ignored files stays.
        while self._open:
            above = self._open[-2][1] if len(self._open) > 1 else self._root
            try:
                os.rmdir(self._open[-1][0], dir_fd=above)
            except OSError:
                return
            self._leave(len(self._open) - 1)

    def _write(self, path: bytes, entry: Entry) -> None:
        *folders, name = path.split(b"/")
        self._enter(folders, make=True)
        self._clear(name)
        pieces = self._store.pieces(entry.id)
        try:
            # Before the file is made: an object that is missing must not leave an empty one.
            first = next(pieces, b"")
        except GitError as error:
            shown = path.decode("utf-8", "backslashreplace")
            raise GitError(f"{shown} cannot be written: {error.message}") from error
        if entry.mode == LINK:
            os.symlink(first, name, dir_fd=self._here)
            return
        mode = 0o777 if entry.mode == EXECUTABLE else 0o666
        with os.fdopen(os.open(name, NEW_FILE, mode, dir_fd=self._here), "wb") as file:
            file.write(first)
            for piece in pieces:
                file.write(piece)

    def _clear(self, name: bytes) -> None:
        try:
            found = os.stat(name, dir_fd=self._here, follow_symlinks=False)
        except FileNotFoundError:
            return
        if stat.S_ISDIR(found.st_mode):
            # Only what is not covered can be left in it.
            shutil.rmtree(name, dir_fd=self._here)
        else:
            os.unlink(name, dir_fd=self._here)

    @property
    def _here(self) -> int:
        return self._open[-1][1] if self._open else self._root

    def _enter(self, folders: list[bytes], *, make: bool) -> bool:
        """Go to a folder, making it where that is wanted; False: it is not there."""
        common = 0
        while common < min(len(folders), len(self._open)) and self._open[common][0] == folders[common]:
            common += 1
        self._leave(common)
        for name in folders[common:]:
            try:
                inner = os.open(name, OPEN_FOLDER, dir_fd=self._here)
            except OSError:
                if not make:
                    return False
                # A link, a file or a pipe that is not covered, or nothing.
                with contextlib.suppress(FileNotFoundError):
                    found = os.stat(name, dir_fd=self._here, follow_symlinks=False)
                    if stat.S_ISDIR(found.st_mode):
                        raise
                    os.unlink(name, dir_fd=self._here)
                os.mkdir(name, dir_fd=self._here)
                inner = os.open(name, OPEN_FOLDER, dir_fd=self._here)
            self._open.append((name, inner))
        return True

    def _leave(self, depth: int) -> None:
        while len(self._open) > depth:
            os.close(self._open.pop()[1])
