"""Object store."""

import contextlib
import hashlib
import math
import os
import struct
import tempfile
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from operator import itemgetter
from pathlib import Path
from typing import IO

import pygit2
from pygit2.enums import ConfigLevel, ObjectType, RepositoryOpenFlag

from activities.artifacts.port import FULL
from activities.workspace.store.entry import EMPTY_TREE, FOLDER, Entry, TreeChange
from tightloop.errors import GitError, StorageFullError, WorkspaceError
from tightloop.host import private_folder

TYPES = {"tree": 2, "blob": 3}
FAR = 0x80000000
"""Offsets of at least this value are stored in a separate table."""


class PackFile:
    """A pack that is being written. It becomes readable when it is finished."""

    def __init__(self, folder: Path, *, level: int) -> None:
        self._folder = folder
        self._level = level
        # With git's own prefix, so that `git gc` removes it if this process is killed.
        descriptor, self._name = tempfile.mkstemp(dir=folder, prefix="tmp_pack_")
        self._file = os.fdopen(descriptor, "w+b")
        self._rows: list[tuple[bytes, int, int]] = []
        self._size = 12
        # The number of objects is only known at the end.
        self._file.write(b"PACK" + struct.pack(">II", 2, 0))

    def add(self, kind: str, digest: bytes, content: bytes) -> None:
        """Append an object that is not in the pack yet."""
        size = len(content)
        head = bytearray([(TYPES[kind] << 4) | (size & 15)])
        size >>= 4
        while size:
            head[-1] |= 0x80
            head.append(size & 0x7F)
            size >>= 7
        record = bytes(head) + zlib.compress(content, self._level)
        self._rows.append((digest, zlib.crc32(record), self._size))
        self._file.write(record)
        self._size += len(record)

    def finish(self) -> None:
        """Write the header, the checksum and the index durably."""
        self._file.seek(0)
        self._file.write(b"PACK" + struct.pack(">II", 2, len(self._rows)))
        self._file.flush()
        self._file.seek(0)
        digest = hashlib.sha1(usedforsecurity=False)
        # Read again, because the checksum covers the header, which was only complete now.
        while piece := self._file.read(1 << 20):
            digest.update(piece)
        checksum = digest.digest()
        self._file.seek(0, os.SEEK_END)
        self._file.write(checksum)
        _close_durably(self._file)
        index, index_name = tempfile.mkstemp(dir=self._folder, prefix="tmp_idx_")
        with os.fdopen(index, "wb") as file:
            file.write(self._index(checksum))
            _close_durably(file)
        stem = self._folder / f"pack-{checksum.hex()}"
        Path(self._name).replace(stem.with_suffix(".pack"))
        # Last: git finds a pack by its index.
        Path(index_name).replace(stem.with_suffix(".idx"))

    def close(self) -> None:
        """Delete the pack if it is unfinished."""
        self._file.close()
        Path(self._name).unlink(missing_ok=True)

    def _index(self, checksum: bytes) -> bytes:
        rows = sorted(self._rows)
        counts = [0] * 256
        for name, _, _ in rows:
            counts[name[0]] += 1
        total, fanout = 0, []
        for count in counts:
            total += count
            fanout.append(total)
        far = [offset for _, _, offset in rows if offset >= FAR]
        places = {offset: FAR | number for number, offset in enumerate(far)}
        offsets = [places.get(offset, offset) for _, _, offset in rows]
        parts = [
            b"\377tOc" + struct.pack(">I", 2),
            struct.pack(">256I", *fanout),
            b"".join(name for name, _, _ in rows),
            struct.pack(f">{len(rows)}I", *(crc for _, crc, _ in rows)),
            struct.pack(f">{len(rows)}I", *offsets),
            struct.pack(f">{len(far)}Q", *far),
            checksum,
        ]
        content = b"".join(parts)
        return content + hashlib.sha1(content, usedforsecurity=False).digest()


def _close_durably(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())
    file.close()


STREAMED_BYTES = 16 * 1024 * 1024
"""Minimum size of files that are copied in chunks, so that memory use stays constant, and stored as loose objects."""
PIECE_BYTES = 1 << 20
LOOSE_OBJECTS, LOOSE_BYTES = 100, 4_000_000
"""Maximum number and total size of loose objects per snapshot. Above them, a pack is written, which is 4 times as fast
for 50 000 files.
"""
# Speed before size: a snapshot follows every step, and `tightloop gc` frees most of them.
COMPRESSION = 1
DEPTH_LIMIT = 256
CONFIG = "[core]\n\trepositoryformatversion = 0\n\tbare = true\n\tlogallrefupdates = false\n[gc]\n\tauto = 0\n"

# Process-wide: settings of the system and the user must not affect libgit2. Nothing else in the project uses it.
for _level in (ConfigLevel.PROGRAMDATA, ConfigLevel.SYSTEM, ConfigLevel.XDG, ConfigLevel.GLOBAL):
    pygit2.settings.search_path[_level] = os.devnull


class TreeStore:
    """The objects and refs of a project. Each instance must be used by only one thread."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def make(self) -> None:
        """Create the store if it is missing. Idempotent, even for concurrent processes."""
        if (self.folder / "HEAD").exists():
            return
        for name in ("objects/pack", "objects/info", "refs", "states"):
            private_folder(self.folder / name)
        for name, text in (("config", CONFIG), ("HEAD", "ref: refs/heads/none\n")):
            # HEAD last: it marks a complete store.
            (self.folder / name).write_text(text)

    @cached_property
    def repository(self) -> pygit2.Repository:
        """The store's open git repository.

        Raises:
            WorkspaceError: the store is missing.
        """
        if not (self.folder / "HEAD").exists():
            raise WorkspaceError(f"{self.folder} has no snapshots: nothing has been recorded on this host yet")
        with translated_errors(self.folder):
            flags = RepositoryOpenFlag.NO_SEARCH | RepositoryOpenFlag.BARE
            return pygit2.Repository(str(self.folder), flags)

    def holds(self, tree: str) -> bool:
        """Return whether the store contains a tree object. The contents of the tree are not checked."""
        try:
            return tree == EMPTY_TREE or self.repository.odb.read(tree)[0] == ObjectType.TREE
        except (KeyError, ValueError, pygit2.GitError):
            return False

    def read(self, blob: str) -> bytes:
        """Read the content of an object.

        Raises:
            GitError: the object is missing or damaged.
        """
        if blob == EMPTY_TREE:
            return b""
        try:
            return self.repository.odb.read(blob)[1]
        except (KeyError, ValueError, pygit2.GitError) as error:
            raise GitError(f"cannot read object {blob} from {self.folder}: {error}") from error

    def pieces(self, blob: str) -> Iterator[bytes]:
        """Yield the content of a file. Large loose files are read in chunks."""
        path = self.folder / "objects" / blob[:2] / blob[2:] if self.size(blob) > STREAMED_BYTES else None
        if path is None or not path.exists():
            yield self.read(blob)
            return
        reader = zlib.decompressobj()
        with path.open("rb") as file:
            head = True
            while piece := file.read(PIECE_BYTES):
                # Bounded, because zlib can expand a chunk a thousandfold.
                while piece:
                    out = reader.decompress(piece, PIECE_BYTES)
                    piece = reader.unconsumed_tail
                    if head:
                        out, head = out.partition(b"\0")[2], False
                    if out:
                        yield out
            if out := reader.flush():
                yield out

    def size(self, blob: str) -> int:
        """Return the size of an object in bytes. Packed objects are not read.

        Raises:
            GitError: the object is missing.
        """
        try:
            return self.repository.odb.read_header(blob)[1]
        except (KeyError, ValueError, pygit2.GitError) as error:
            raise GitError(f"the object {blob} is not in {self.folder}: {error}") from error

    def entries(self, tree: str) -> dict[bytes, Entry]:
        """Return the direct entries of a tree by name."""
        data, position, entries = self.read(tree), 0, {}
        while position < len(data):
            end = data.index(b"\0", position)
            mode, _, name = data[position:end].partition(b" ")
            entries[name] = Entry(int(mode, 8), data[end + 1 : end + 21].hex())
            position = end + 21
        return entries

    def files(self, tree: str) -> dict[bytes, Entry]:
        """Return all files and symlinks in a tree by path."""
        files: dict[bytes, Entry] = {}
        self._list(b"", tree, files)
        return dict(sorted(files.items()))

    def _list(self, prefix: bytes, tree: str, files: dict[bytes, Entry]) -> None:
        if prefix.count(b"/") > DEPTH_LIMIT:
            raise GitError(f"the tree {tree} is more than {DEPTH_LIMIT} folders deep")
        for name, entry in self.entries(tree).items():
            if entry.mode == FOLDER:
                self._list(prefix + name + b"/", entry.id, files)
            else:
                files[prefix + name] = entry

    def changes(self, before: str, after: str) -> list[TreeChange]:
        """Return the paths that differ between two trees, sorted.

        If a folder replaced a file, the file's path is removed and the paths in the folder are added.
        """
        return self.listed_changes(before, after)[0]

    def listed_changes(self, before: str, after: str, *, seconds: float = math.inf) -> tuple[list[TreeChange], bool]:
        """Return the paths that differ between two trees, sorted, and whether the list is complete.

        The list is incomplete after a timeout.
        """
        changes: list[TreeChange] = []
        complete = self._compare(b"", before, after, changes, time.monotonic() + seconds)
        return sorted(changes, key=itemgetter(0)), complete

    def _compare(self, prefix: bytes, before: str, after: str, changes: list[TreeChange], deadline: float) -> bool:
        if before == after:
            return True
        if prefix.count(b"/") > DEPTH_LIMIT:
            raise GitError(f"the tree {after} is more than {DEPTH_LIMIT} folders deep")
        if time.monotonic() > deadline:
            return False
        old, new = self.entries(before), self.entries(after)
        for name in old.keys() | new.keys():
            a, b = old.get(name), new.get(name)
            if a == b:
                continue
            trees = [side.id if side is not None and side.mode == FOLDER else EMPTY_TREE for side in (a, b)]
            if not self._compare(prefix + name + b"/", trees[0], trees[1], changes, deadline):
                return False
            a, b = (side if side is not None and side.mode != FOLDER else None for side in (a, b))
            if a is not None or b is not None:
                changes.append(TreeChange(prefix + name, a, b))
        return True

    def replace_paths(self, tree: str, replacements: Mapping[bytes, Entry | None]) -> str:
        """Replace some paths in a tree and return the new tree. None removes a path."""
        files: dict[bytes, Entry] = self.files(tree)
        for path, entry in replacements.items():
            if entry is None:
                files.pop(path, None)
            else:
                files[path] = entry
        with self.adding() as sink:
            return _add_tree(files.items(), sink)

    @contextlib.contextmanager
    def adding(self) -> Iterator["ObjectSink"]:
        """Yield a sink that collects new objects. They become visible if the block ends without an error."""
        with translated_errors(self.folder):
            sink = ObjectSink(self.folder, self.repository)
            try:
                yield sink
                sink.finish()
            finally:
                sink.close()

    def keep(self, reference: str, tree: str) -> None:
        """Point a ref, such as `refs/tightloop/<episode>/<name>`, at a tree. Idempotent."""
        with translated_errors(self.folder):
            # The lock of a killed process would block forever.
            (self.folder / f"{reference}.lock").unlink(missing_ok=True)
            self.repository.references.create(reference, tree, force=True)

    def reference(self, name: str) -> str:
        """Return the tree that a ref points to, or "" if there is no such ref."""
        ref = self.repository.references.get(name)
        return "" if ref is None else str(ref.target)


class ObjectSink:
    """Collects new objects for the store."""

    def __init__(self, folder: Path, repository: pygit2.Repository) -> None:
        self._objects = folder / "objects"
        self._odb = repository.odb
        self._new: set[bytes] = set()
        self._pending: list[tuple[str, bytes]] = []
        self._pending_bytes = 0
        self._pack: PackFile | None = None

    def add(self, kind: str, content: bytes) -> bytes:
        """Add a `blob` or `tree` object and return its 20-byte id."""
        name = hashlib.sha1(b"%s %d\0" % (kind.encode(), len(content)), usedforsecurity=False)
        name.update(content)
        digest = name.digest()
        # Before compressing: most files of a snapshot are stored already.
        if digest in self._new or pygit2.Oid(raw=digest) in self._odb:
            return digest
        self._new.add(digest)
        if self._pack is not None:
            self._pack.add(kind, digest, content)
            return digest
        self._pending.append((kind, content))
        self._pending_bytes += len(content)
        if len(self._pending) > LOOSE_OBJECTS or self._pending_bytes > LOOSE_BYTES:
            self._pack = PackFile(self._objects / "pack", level=COMPRESSION)
            for kind_, body in self._pending:
                head = b"%s %d\0" % (kind_.encode(), len(body))
                self._pack.add(kind_, hashlib.sha1(head + body, usedforsecurity=False).digest(), body)
            self._pending.clear()
        return digest

    def add_file(self, descriptor: int, size: int) -> bytes | None:
        """Add a large file in chunks. Return its id, or None if it changed while being read."""
        head = b"blob %d\0" % size
        digest = hashlib.sha1(head, usedforsecurity=False)
        packer = zlib.compressobj(COMPRESSION)
        handle, name = tempfile.mkstemp(dir=self._objects, prefix="tmp_")
        try:
            with os.fdopen(handle, "wb") as out:
                out.write(packer.compress(head))
                left = size
                while piece := os.read(descriptor, PIECE_BYTES):
                    left -= len(piece)
                    digest.update(piece)
                    out.write(packer.compress(piece))
                if left != 0:
                    return None
                out.write(packer.flush())
                out.flush()
                os.fchmod(out.fileno(), 0o400)
                # Before the rename: after a crash, an object under its final name must be whole.
                os.fsync(out.fileno())
            target = self._objects / digest.hexdigest()[:2] / digest.hexdigest()[2:]
            target.parent.mkdir(exist_ok=True, mode=0o700)
            Path(name).replace(target)
        finally:
            Path(name).unlink(missing_ok=True)
        return digest.digest()

    def finish(self) -> None:
        """Make all added objects visible."""
        for kind, content in self._pending:
            self._odb.write(ObjectType.BLOB if kind == "blob" else ObjectType.TREE, content)
        self._pending.clear()
        if self._pack is not None:
            self._pack.finish()

    def close(self) -> None:
        """Discard unfinished files."""
        if self._pack is not None:
            self._pack.close()


def tree_content(rows: Iterable[tuple[bytes, int, bytes]]) -> bytes:
    """Build the content of a tree object from names, modes and ids, in git's order."""
    ordered = sorted(rows, key=lambda row: row[0] + b"/" if row[1] == FOLDER else row[0])
    return b"".join(b"%o %s\0%s" % (mode, name, digest) for name, mode, digest in ordered)


def valid_name(name: bytes) -> bool:
    """Return whether a name may be written. Git folders and names that lead out of the folder are not allowed."""
    return bool(name) and b"/" not in name and b"\0" not in name and name.lower() not in (b".", b"..", b".git")


@contextlib.contextmanager
def translated_errors(folder: Path) -> Iterator[None]:
    """Translate operating system and libgit2 errors into tightloop errors.

    Raises:
        StorageFullError: the disk is full.
        GitError: anything else. Retryable.
    """
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            raise StorageFullError.of(folder, error.strerror) from error
        # Decoded, because a name that is not UTF-8 cannot be part of a history.
        location = os.fsencode(error.filename or folder).decode("utf-8", "backslashreplace")
        raise GitError(f"{location}: {error.strerror}") from error
    except pygit2.GitError as error:
        if any(phrase in str(error) for phrase in ("No space left on device", "Disk quota exceeded")):
            raise StorageFullError.of(folder, error) from error
        raise GitError(f"cannot use the store {folder}: {error}") from error


def _add_tree(files: Iterable[tuple[bytes, Entry]], sink: ObjectSink) -> str:
    rows: list[tuple[bytes, int, bytes]] = []
    folders: dict[bytes, list[tuple[bytes, Entry]]] = {}
    for path, entry in files:
        name, _, rest = path.partition(b"/")
        if rest:
            folders.setdefault(name, []).append((rest, entry))
        else:
            rows.append((name, entry.mode, bytes.fromhex(entry.id)))
    rows += [(name, FOLDER, bytes.fromhex(_add_tree(below, sink))) for name, below in folders.items()]
    return sink.add("tree", tree_content(rows)).hex()
