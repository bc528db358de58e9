"""Survey of a working tree's untracked files, and detection of later changes to them."""

import contextlib
import hashlib
import json
import os
import stat
import time
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from activities.proof.port import UntrackedChanges
from activities.workspace.folders import has_packages
from activities.workspace.store.entry import folders_of
from tightloop.episode.proof.files import is_cache
from tightloop.host.worktree import mounted_environments

ENTRIES_LIMIT = 400_000
HASHING_S = 15.0
"""Time limit for hashing in a project's first survey.

Hashing 632 MB took 4.7 s. An unhashed file counts as changed if its times or inode change.
"""
SHOWN_LIMIT = 200
_SKIPPED = frozenset({".git", ".tightloop"})
_CHUNK = 1 << 20

Stat = tuple[int, int, int, int, int]
"""Size, mtime and ctime in ns, inode, mode."""


class Entry(NamedTuple):
    """The recorded state of a file or symlink."""

    stat: Stat
    content: str = ""
    """Digest of the content, or the target of a symlink. Empty if there was not enough time to read it."""


@dataclass
class Survey:
    """The untracked files in a tree, and the folders that contain installed programs."""

    files: dict[str, Entry] = field(default_factory=dict)
    environments: list[str] = field(default_factory=list)

    def write(self) -> bytes:
        rows = {path: [*entry.stat, entry.content] for path, entry in self.files.items()}
        text = json.dumps({"files": rows, "environments": self.environments}, separators=(",", ":"))
        return zlib.compress(text.encode("utf-8", "surrogatepass"), 1)


def read_survey(content: bytes) -> Survey:
    """Parse a survey that was written by `Survey.write`."""
    document = json.loads(zlib.decompress(content).decode("utf-8", "surrogatepass"))
    files = {path: Entry(tuple(row[:5]), row[5]) for path, row in document["files"].items()}
    return Survey(files, document["environments"])


def survey(root: Path, tracked: Iterable[str]) -> Survey:
    """Record the state of all untracked files below `root`."""
    result = Survey()
    deadline = time.monotonic() + HASHING_S
    for path, entry in _walk(root, frozenset(tracked), result.environments):
        result.files[path] = Entry(_stat_of(entry), _content(entry) if time.monotonic() < deadline else "")
    return result


def compare(root: Path, before: Survey, tracked: Iterable[str]) -> UntrackedChanges:
    """Find the changes to untracked files since an earlier survey."""
    environments: list[str] = []
    changed, hidden, unchanged, left_out = [], dict[str, None](), [], dict[str, None]()
    seen_paths = set()
    old = tuple(f"{folder}/" for folder in before.environments)
    for path, entry in _walk(root, frozenset(tracked), environments):
        seen_paths.add(path)
        was = before.files.get(path)
        current = _stat_of(entry)
        # A touched file may have the same content and mode.
        is_same = was is not None and (
            was.stat == current or (bool(was.content) and was.stat[4] == current[4] and _content(entry) == was.content)
        )
        if not path.startswith(old):
            if is_same:
                unchanged.append(path)
            elif not is_cache(path):
                top = next((folder for folder in environments if path.startswith(f"{folder}/")), path)
                left_out[top] = None
        elif not is_same and is_cache(path):
            hidden[_cache_folder(path)] = None
        elif not is_same:
            changed.append(f"{'modified' if was else 'added'} {path}")
    deleted = [path for path in before.files if path.startswith(old) and path not in seen_paths and not is_cache(path)]
    changed += [f"deleted {path}" for path in deleted]
    # Programs first, because checks start them.
    changed.sort(key=lambda line: ("/bin/" not in line and "/.bin/" not in line, line))
    return UntrackedChanges(
        environments=tuple(folder for folder in before.environments if (root / folder).is_dir()),
        changed=tuple(changed[:SHOWN_LIMIT]),
        hidden=tuple(hidden),
        unchanged=tuple(unchanged),
        left_out=tuple(left_out)[:SHOWN_LIMIT],
    )


def present(root: Path, tracked: Iterable[str]) -> UntrackedChanges:
    """List all untracked files below `root`.

    For installed programs, only the folders are listed.
    """
    environments: list[str] = []
    paths = [path for path, _ in _walk(root, frozenset(tracked), environments, enters=False)]
    return UntrackedChanges(environments=tuple(environments), unchanged=tuple(paths))


def _cache_folder(path: str) -> str:
    parts = path.split("/")
    return "/".join(parts[: next(at for at, part in enumerate(parts) if is_cache(part)) + 1])


def _walk(
    root: Path, tracked: frozenset[str], environments: list[str], *, enters: bool = True
) -> Iterator[tuple[str, "os.DirEntry[str]"]]:
    """Yield untracked files and symlinks, and collect the folders of installed programs.

    The files in these folders are only yielded if `enters` is set.
    """
    holding, mounted = folders_of(tracked), mounted_environments(root)
    waiting: list[tuple[str, str | Path, bool]] = [("", root, False)]
    count = 0
    while waiting:
        folder, place, installed = waiting.pop()
        with contextlib.suppress(OSError), os.scandir(mounted.get(folder, place)) as entries:
            for entry in entries:
                path = f"{folder}/{entry.name}" if folder else entry.name
                if entry.name in _SKIPPED:
                    continue
                if entry.is_dir(follow_symlinks=False):
                    is_own = not installed and path not in holding
                    if is_own := is_own and (path in mounted or has_packages(Path(entry.path))):
                        environments.append(path)
                    if installed or (is_own and enters) or not (is_own or is_cache(entry.name)):
                        waiting.append((path, entry.path, installed or is_own))
                elif path not in tracked and (installed or not is_cache(entry.name)):
                    count += 1
                    if count > ENTRIES_LIMIT:
                        return
                    yield path, entry


def _stat_of(entry: "os.DirEntry[str]") -> Stat:
    try:
        status = entry.stat(follow_symlinks=False)
    except OSError:
        return (-1, 0, 0, 0, 0)
    # With ctime, which a program cannot set back, unlike mtime.
    return (status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_mode)


def _content(entry: "os.DirEntry[str]") -> str:
    try:
        if entry.is_symlink():
            return f"-> {os.readlink(entry.path)}"  # noqa: PTH115
        # O_NOFOLLOW, O_NONBLOCK: the file may have become a symlink or a pipe since it was listed.
        descriptor = os.open(entry.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return ""
    digest = hashlib.blake2b(digest_size=20)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return ""
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
