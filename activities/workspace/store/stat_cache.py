"""The last state of a working tree: ids of files by size, times and inode, so that only changes are read.

It also says what is covered: a file that was in a snapshot stays in the next ones though a later rule ignores it.
"""

import itertools
import os
import struct
import threading
import zlib
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from activities.artifacts.durable import replace_file
from activities.workspace.store.entry import FOLDER, Entry
from activities.workspace.store.objects import tree_content
from tightloop.host import private_folder

MAGIC = b"tightloop-index 1\n"
ROW = struct.Struct("<qqQQI20s")
NODE = struct.Struct("<III20s")
REMEMBERED = 8
"""Trees whose last state stays in memory; reading that of 50 000 files takes 60 ms, walking over them 110."""
UNKNOWN = -1


class Row(NamedTuple):
    """A file or link as it was found."""

    mtime_ns: int
    """`UNKNOWN`: it is read again, because a change since then might have left the same times."""
    ctime_ns: int
    inode: int
    size: int
    mode: int
    """As in a tree."""
    digest: bytes


class Folder:
    """A folder as it was found, without what is not covered."""

    __slots__ = ("files", "folders", "tree")

    def __init__(self) -> None:
        """Begin an empty one."""
        self.files: dict[str, Row] = {}
        self.folders: dict[str, Folder] = {}
        self.tree = b""
        """Its id; empty: not known."""

    def __bool__(self) -> bool:
        """Return whether there is a file in it."""
        return bool(self.files or self.folders)

    def same_content(self, other: "Folder") -> bool:
        """Return whether the tree of `other` is known, and is that of this folder, too."""
        if not other.tree or len(self.files) != len(other.files) or len(self.folders) != len(other.folders):
            return False
        for name, below in self.folders.items():
            seen = other.folders.get(name)
            if seen is None or not below.tree or seen.tree != below.tree:
                return False
        for name, row in self.files.items():
            old = other.files.get(name)
            # A file that did not change has the very same row.
            if old is not row and (old is None or old.digest != row.digest or old.mode != row.mode):
                return False
        return True

    def content(self) -> bytes:
        """Return the content of its tree object."""
        files = ((os.fsencode(name), row.mode, row.digest) for name, row in self.files.items())
        folders = ((os.fsencode(name), FOLDER, below.tree) for name, below in self.folders.items())
        return tree_content(itertools.chain(files, folders))

    def paths(self, prefix: str = "") -> Iterator[str]:
        """Yield the paths of all files."""
        for name in self.files:
            yield prefix + name
        for name, below in self.folders.items():
            yield from below.paths(f"{prefix}{name}/")

    def put(self, path: bytes, entry: Entry | None) -> None:
        """Note what a path is now; None: nothing. It is read when it is next walked over."""
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


class StatCache:
    """The last state of one working tree, in a file and in memory."""

    def __init__(self, path: Path, memory: "Memory") -> None:
        """Keep it in `path`, and share `memory` with the other caches of this process."""
        self._path = path
        self._memory = memory

    def load(self) -> Folder | None:
        """Return the last state; None where it is missing or damaged: everything is read again then."""
        signature = _signature(self._path)
        if signature is None:
            return None
        if (held := self._memory.get(self._path, signature)) is not None:
            return held
        try:
            return _read(self._path.read_bytes())
        except (OSError, ValueError, struct.error, UnicodeDecodeError, IndexError):
            return None

    def save(self, folder: Folder) -> None:
        """Keep a state."""
        private_folder(self._path.parent)
        replace_file(self._path, _written(folder))
        self.remember(folder)

    def remember(self, folder: Folder) -> None:
        """Keep a state in memory alone; the older one in the file says the same of the content."""
        if (signature := _signature(self._path)) is not None:
            self._memory.put(self._path, signature, folder)

    def forget(self) -> None:
        """Remove it."""
        self._memory.drop(self._path)
        self._path.unlink(missing_ok=True)


Signature = tuple[int, int, int]


class Memory:
    """The last states of a few trees; may be used by many threads, each tree by one at a time."""

    def __init__(self) -> None:
        """Begin without any."""
        self._held: OrderedDict[Path, tuple[Signature, Folder]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, path: Path, signature: Signature) -> Folder | None:
        """Return the state that belongs to a file with this signature."""
        with self._lock:
            found = self._held.get(path)
        return found[1] if found is not None and found[0] == signature else None

    def put(self, path: Path, signature: Signature, folder: Folder) -> None:
        """Keep a state; the oldest one goes."""
        with self._lock:
            self._held[path] = signature, folder
            self._held.move_to_end(path)
            while len(self._held) > REMEMBERED:
                self._held.popitem(last=False)

    def drop(self, path: Path) -> None:
        """Remove a state."""
        with self._lock:
            self._held.pop(path, None)


def _signature(path: Path) -> Signature | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def _written(folder: Folder) -> bytes:
    nodes: list[bytes] = []
    rows: list[bytes] = []
    names: list[str] = []

    def add(name: str, found: Folder) -> None:
        names.append(name)
        nodes.append(NODE.pack(len(found.files), len(found.folders), 0, found.tree or bytes(20)))
        names.extend(found.files)
        rows.extend(itertools.starmap(ROW.pack, found.files.values()))
        for below_name, below in found.folders.items():
            add(below_name, below)

    add("", folder)
    # No name has a zero byte.
    text = os.fsencode("\0".join(names))
    body = b"".join((struct.pack("<QQQ", len(nodes), len(rows), len(text)), *nodes, *rows, text))
    return MAGIC + struct.pack("<I", zlib.crc32(body)) + body


def _read(content: bytes) -> Folder:
    body = content[len(MAGIC) + 4 :]
    if not content.startswith(MAGIC) or struct.unpack_from("<I", content, len(MAGIC))[0] != zlib.crc32(body):
        raise ValueError("not a cache of ours, or torn")
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
