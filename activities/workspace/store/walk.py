"""Walks over the files of a working tree."""

import contextlib
import itertools
import os
import stat
import struct
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from activities.artifacts.port import FULL, replace_file
from activities.workspace.store.entry import FOLDER, Entry, file_mode
from activities.workspace.store.objects import DEPTH_LIMIT, STREAMED_BYTES, ObjectSink, tree_content
from activities.workspace.store.rules import RULES_BYTES, RuleList, Rules, as_bytes_text
from tightloop.errors import GitError
from tightloop.host import private_folder
from tightloop.value import LruCache

MAGIC = b"tightloop-index 1\n"
ROW = struct.Struct("<qqQQI20s")
NODE = struct.Struct("<III20s")
REMEMBERED = 8
"""Number of trees whose last state stays in memory.

For 50 000 files, reading it takes 60 ms and a walk takes 110 ms.
"""
UNKNOWN = -1


class Row(NamedTuple):
    """The recorded state of a file or symlink."""

    mtime_ns: int
    """Modification time.

    `UNKNOWN` means that the file must be read again, as a later change might not show in its times.
    """
    ctime_ns: int
    inode: int
    size: int
    mode: int
    """Mode as in a tree."""
    digest: bytes


class Folder:
    """The recorded state of a folder. Files that snapshots do not cover are left out."""

    __slots__ = ("files", "folders", "tree")

    def __init__(self) -> None:
        self.files: dict[str, Row] = {}
        self.folders: dict[str, Folder] = {}
        self.tree = b""
        """Tree id. Empty if it is not known."""

    def __bool__(self) -> bool:
        return bool(self.files or self.folders)

    def same_content(self, other: "Folder") -> bool:
        """Return whether this folder has the same content as `other`.

        Return False if the tree id of `other` is unknown.
        """
        if not other.tree or len(self.files) != len(other.files) or len(self.folders) != len(other.folders):
            return False
        for name, below in self.folders.items():
            counterpart = other.folders.get(name)
            if counterpart is None or not below.tree or counterpart.tree != below.tree:
                return False
        for name, row in self.files.items():
            old = other.files.get(name)
            # Unchanged files share the same row object.
            if old is not row and (old is None or old.digest != row.digest or old.mode != row.mode):
                return False
        return True

    def content(self) -> bytes:
        """Return the content of the tree object for this folder."""
        files = ((os.fsencode(name), row.mode, row.digest) for name, row in self.files.items())
        folders = ((os.fsencode(name), FOLDER, below.tree) for name, below in self.folders.items())
        return tree_content(itertools.chain(files, folders))

    def paths(self, prefix: str = "") -> Iterator[str]:
        """Yield the paths of all files in the folder."""
        for name in self.files:
            yield prefix + name
        for name, below in self.folders.items():
            yield from below.paths(f"{prefix}{name}/")

    def put(self, path: bytes, entry: Entry | None) -> None:
        """Set the entry for a path. None means that there is no file. The next walk reads the file again."""
        name, _, rest = os.fsdecode(path).partition("/")
        self.tree = b""
        if rest:
            below = self.folders.get(name)
            if below is None:
                if entry is None:
                    return
                self.files.pop(name, None)
                below = self.folders[name] = Folder()
            below.put(os.fsencode(rest), entry)
            if not below:
                del self.folders[name]
        elif entry is None:
            self.files.pop(name, None)
        else:
            self.folders.pop(name, None)
            self.files[name] = Row(UNKNOWN, 0, 0, 0, entry.mode, bytes.fromhex(entry.id))


Signature = tuple[int, int, int]
States = LruCache[Path, tuple[Signature, Folder]]
"""The last states of a few trees, by file and its signature. Only one thread at a time may use a tree's state."""


class StatCache:
    """The last known state of a working tree, stored in a file and in memory."""

    def __init__(self, path: Path, memory: States) -> None:
        self._path = path
        self._memory = memory

    def load(self) -> Folder | None:
        """Load the last state, or return None if the state is missing or damaged.

        In that case, all files are read again.
        """
        signature = signature_of(self._path)
        if signature is None:
            return None
        if (cached := self._memory.get(self._path)) is not None and cached[0] == signature:
            return cached[1]
        try:
            return _read(self._path.read_bytes())
        except (OSError, ValueError, struct.error, UnicodeDecodeError, IndexError):
            return None

    def save(self, folder: Folder) -> None:
        nodes: list[bytes] = []
        rows: list[bytes] = []
        names: list[str] = []

        def add(name: str, node: Folder) -> None:
            names.append(name)
            nodes.append(NODE.pack(len(node.files), len(node.folders), 0, node.tree or bytes(20)))
            names.extend(node.files)
            rows.extend(itertools.starmap(ROW.pack, node.files.values()))
            for below_name, below in node.folders.items():
                add(below_name, below)

        add("", folder)
        # Names cannot contain zero bytes.
        text = os.fsencode("\0".join(names))
        body = b"".join((struct.pack("<QQQ", len(nodes), len(rows), len(text)), *nodes, *rows, text))
        private_folder(self._path.parent)
        replace_file(self._path, MAGIC + struct.pack("<I", zlib.crc32(body)) + body)
        self.remember(folder)

    def remember(self, folder: Folder) -> None:
        """Keep a state in memory, but do not write it to the file.

        The file already contains an older state with the same content.
        """
        if (signature := signature_of(self._path)) is not None:
            self._memory.put(self._path, (signature, folder))

    def forget(self) -> None:
        self._memory.drop(self._path)
        self._path.unlink(missing_ok=True)


def signature_of(path: Path) -> Signature | None:
    """Return a value that changes whenever the file changes, or None if the file cannot be read."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


def _read(content: bytes) -> Folder:
    body = content[len(MAGIC) + 4 :]
    if not content.startswith(MAGIC) or struct.unpack_from("<I", content, len(MAGIC))[0] != zlib.crc32(body):
        raise ValueError("the file is not a tightloop cache, or is damaged")
    node_count, row_count, text_bytes = struct.unpack_from("<QQQ", body)
    rows_at = 24 + node_count * NODE.size
    text_at = rows_at + row_count * ROW.size
    nodes = NODE.iter_unpack(body[24:rows_at])
    rows = map(Row._make, ROW.iter_unpack(body[rows_at:text_at]))
    names = iter(os.fsdecode(body[text_at : text_at + text_bytes]).split("\0"))

    def take() -> tuple[str, Folder]:
        files, folders, _, tree = next(nodes)
        folder, name = Folder(), next(names)
        folder.tree = tree if tree != bytes(20) else b""
        folder.files = dict(zip(itertools.islice(names, files), itertools.islice(rows, files), strict=True))
        folder.folders = dict(take() for _ in range(folders))
        return name, folder

    return take()[1]


OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: a file may have been replaced by a pipe.
OPEN_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
RULES_FILE = ".gitignore"
GIT_FOLDER = ".git"
SLACK_NS, COARSE_SLACK_NS = 100_000_000, 2_500_000_000
"""Time in nanoseconds within which changes may look like one, because of a file system's time resolution.

Some file systems count whole seconds, and FAT counts two.
"""
SECOND_NS = 1_000_000_000
READ_ROUNDS = 3


class WalkTimeoutError(GitError):
    """Raised when a tree cannot be read in time."""


@dataclass(frozen=True)
class Coverage:
    """The files of a working tree that its snapshots cover."""

    rules: Rules = field(default_factory=Rules)
    """The user's rules for the whole tree. `.gitignore` files are read during the walk."""
    tracked: frozenset[str] = frozenset()
    """Paths tracked by the user's git, which ignore rules do not affect."""
    tracked_folders: frozenset[str] = frozenset()
    folded: bool = False
    """True if rules ignore case (`core.ignoreCase`)."""
    never: frozenset[str] = frozenset()
    """Paths of copied private files, which no rule in the tree can make part of a snapshot."""


class Walk:
    """One pass over a working tree."""

    def __init__(
        self,
        coverage: Coverage,
        sink: ObjectSink | None,
        *,
        seconds: float,
        ignored: Callable[[str], None] | None = None,
    ) -> None:
        """Prepare to read covered files into `sink` within `seconds`. If `sink` is None, files are only listed.

        `ignored` is called with the path of every ignored file and folder. Folders have a trailing slash.
        """
        self._coverage = coverage
        self._sink = sink
        self._seconds = seconds
        self._deadline = time.monotonic() + seconds
        self._ignored = ignored
        self._now_ns = time.time_ns()
        self.nested: list[str] = []
        """Folders that have their own git folder."""
        self.changed_rows = 0
        """Number of files whose size, times or content changed."""

    def run(self, root: str, previous: Folder | None) -> Folder:
        """Walk the tree at `root` and return its state. The state in `previous` is not modified.

        Raises:
            WalkTimeoutError: the walk took too long.
            GitError: a file cannot be read.
            OSError: a folder cannot be read.
        """
        # The root itself may be a symlink; nothing below it may be followed.
        descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            folder = self._folder(descriptor, "", previous, self._coverage.rules, excluded=False, depth=0)
        finally:
            os.close(descriptor)
        if not folder.tree and self._sink is not None:
            folder.tree = self._sink.add("tree", folder.content())
        return folder

    def _folder(
        self, descriptor: int, prefix: str, previous: Folder | None, rules: Rules, *, excluded: bool, depth: int
    ) -> Folder:
        self._check(prefix, depth)
        if not excluded:
            rules = rules.within(self._rules_in(descriptor, prefix))
        new = Folder()
        before = previous if previous is not None else Folder()
        # By descriptor: a folder that is replaced by a link during the walk cannot lead out of the tree.
        with os.scandir(descriptor) as entries:
            for entry in entries:
                name = entry.name
                if len(name) == 4 and name.lower() == GIT_FOLDER:
                    if prefix:
                        self.nested.append(prefix[:-1])
                elif entry.is_dir(follow_symlinks=False):
                    below = before.folders.get(name)
                    folder = self._below(descriptor, prefix, name, below, rules, excluded=excluded, depth=depth)
                    if folder is not None:
                        new.folders[name] = folder
                else:
                    row = before.files.get(name)
                    # What was covered once stays covered under a new ignore rule, or the next restore would lose it.
                    if row is not None or self._covers(prefix + name, name, rules, excluded=excluded):
                        row = self._file(descriptor, prefix, entry, row)
                        if row is not None:
                            new.files[name] = row
        if self._sink is not None and new:
            new.tree = before.tree if new.same_content(before) else self._sink.add("tree", new.content())
        return new

    def _check(self, prefix: str, depth: int) -> None:
        if time.monotonic() > self._deadline:
            raise WalkTimeoutError(
                f"reading the files took longer than {self._seconds:g} s and stopped at "
                f"{_decode_path(prefix) or 'the root folder'}. Add large generated folders to .gitignore"
            )
        if depth > DEPTH_LIMIT:
            raise GitError(
                f"{_decode_path(prefix)[:100]}... contains folders nested more than {DEPTH_LIMIT} levels deep. "
                "Remove these folders, or add them to .gitignore"
            )

    def _below(
        self,
        descriptor: int,
        prefix: str,
        name: str,
        previous: Folder | None,
        rules: Rules,
        *,
        excluded: bool,
        depth: int,
    ) -> Folder | None:
        path = prefix + name
        out = excluded or rules.ignores(path, name, folder=True)
        is_covered = previous is not None or path in self._coverage.tracked_folders
        if out and not is_covered:
            if self._ignored is not None:
                self._ignored(path + "/")
            return None
        try:
            inner = os.open(name, OPEN_FOLDER, dir_fd=descriptor)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            # ELOOP: it was replaced by a symlink. Otherwise another user's folder that was never covered.
            if is_covered and isinstance(error, PermissionError):
                raise GitError(f"cannot read the folder {_decode_path(path)}: {error.strerror}") from error
            return None
        try:
            folder = self._folder(inner, path + "/", previous, rules, excluded=out, depth=depth + 1)
        finally:
            os.close(inner)
        return folder or None

    def _covers(self, path: str, name: str, rules: Rules, *, excluded: bool) -> bool:
        if path in self._coverage.never:
            return False
        if not excluded and not rules.ignores(path, name, folder=False):
            return True
        if path in self._coverage.tracked:
            return True
        if self._ignored is not None:
            self._ignored(path)
        return False

    def _file(self, descriptor: int, prefix: str, entry: "os.DirEntry[str]", row: Row | None) -> Row | None:
        try:
            status = entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            return None
        if (
            row is not None
            and row.mtime_ns == status.st_mtime_ns
            and row.ctime_ns == status.st_ctime_ns
            and row.inode == status.st_ino
            and row.size == status.st_size
        ):
            return row
        if not (stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode)):
            return None
        self.changed_rows += 1
        if self._sink is None:
            return Row(UNKNOWN, 0, 0, status.st_size, file_mode(status.st_mode), b"")
        try:
            if stat.S_ISLNK(status.st_mode):
                target = os.fsencode(os.readlink(entry.name, dir_fd=descriptor))
                return self._row(status, self._sink.add("blob", target))
            return self._read(self._sink, descriptor, entry.name)
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno in FULL:
                raise
            raise GitError(f"cannot read {_decode_path(prefix + entry.name)}: {error.strerror}") from error

    def _read(self, sink: ObjectSink, descriptor: int, name: str) -> Row | None:
        for _ in range(READ_ROUNDS):
            opened = os.open(name, OPEN_FILE, dir_fd=descriptor)
            try:
                status = os.fstat(opened)
                if not stat.S_ISREG(status.st_mode):
                    return None
                if status.st_size > STREAMED_BYTES:
                    digest = sink.add_file(opened, status.st_size)
                else:
                    digest = sink.add("blob", content) if len(content := _all(opened)) == status.st_size else None
            finally:
                os.close(opened)
            if digest is not None:
                return self._row(status, digest)
        raise GitError(f"{_decode_path(name)} changed while it was being read. Temporal will retry")

    def _row(self, status: os.stat_result, digest: bytes) -> Row:
        # As in git's index: a file changed a moment ago may change again without a new time, so it is read again.
        coarse = status.st_mtime_ns % SECOND_NS == 0 and status.st_ctime_ns % SECOND_NS == 0
        settled = status.st_ctime_ns < self._now_ns - (COARSE_SLACK_NS if coarse else SLACK_NS)
        mtime = status.st_mtime_ns if settled else UNKNOWN
        return Row(mtime, status.st_ctime_ns, status.st_ino, status.st_size, file_mode(status.st_mode), digest)

    def _rules_in(self, descriptor: int, prefix: str) -> RuleList:
        with contextlib.suppress(OSError):
            opened = os.open(RULES_FILE, OPEN_FILE, dir_fd=descriptor)
            try:
                status = os.fstat(opened)
                if stat.S_ISREG(status.st_mode):
                    if status.st_size > RULES_BYTES:
                        raise GitError(
                            f"{_decode_path(prefix)}{RULES_FILE} is {status.st_size} bytes, but the maximum "
                            f"is {RULES_BYTES}. Shorten the file"
                        )
                    return RuleList(as_bytes_text(prefix), os.read(opened, RULES_BYTES), folded=self._coverage.folded)
            finally:
                os.close(opened)
        return RuleList("", b"")


def _all(descriptor: int) -> bytes:
    parts = []
    left = STREAMED_BYTES + 1
    while left > 0 and (part := os.read(descriptor, min(left, 1 << 20))):
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def _decode_path(path: str) -> str:
    return os.fsencode(path).decode("utf-8", "backslashreplace")
