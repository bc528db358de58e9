"""Writing, comparing and merging trees."""

import contextlib
import os
import shlex
import shutil
import stat
import tempfile
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import NamedTuple

import pygit2
from pygit2.enums import MergeFlag

from activities.artifacts.port import write_durably
from activities.workspace.folders import store_folder_of
from activities.workspace.scope import EpisodeScope
from activities.workspace.store.entry import (
    EMPTY_TREE,
    EXECUTABLE,
    FOLDER,
    LINK,
    REGULAR,
    Entry,
    TreeChange,
    TreeMerge,
    decode_path,
    folders_above,
)
from activities.workspace.store.objects import TreeStore, translated_errors, valid_name
from activities.workspace.store.walk import OPEN_FOLDER
from tightloop.episode.proof.files import is_cache
from tightloop.errors import GitError, WorkspaceError
from tightloop.host import open_state_home
from tightloop.safety.drift import LINES_LISTED, PATHS_LISTED, Drift, DriftAnswer, DriftCause
from tightloop.wording import PATHS_SHOWN

# O_EXCL: whatever somebody puts there meanwhile, such as a link or a pipe, is not written into.
NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class TreeWriter:
    """Writes files below one open folder without following symlinks."""

    def __init__(self, store: TreeStore, root: str) -> None:
        """Open the folder `root`. Symlinks are followed only in this path. Use `close` to release the folder."""
        self._store = store
        self._open: list[tuple[bytes, int]] = []
        self._root = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def close(self) -> None:
        self._leave(0)
        os.close(self._root)

    def apply(self, changes: Iterable[TreeChange]) -> None:
        """Apply changes to the files. Anything in the way of a new file is deleted.

        Raises:
            GitError: an object is missing, or a name is not allowed to be written.
            OSError: a file cannot be written.
        """
        ordered = sorted(changes, key=itemgetter(0))
        for change in ordered:
            if not all(map(valid_name, change.path.split(b"/"))):
                raise GitError(f"the tree contains the path {decode_path(change.path)!r}, which must not be written")
        # In reverse order, so that a folder is empty before its own turn.
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
        # An empty folder is deleted, as in git; one with ignored files stays.
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
        with contextlib.suppress(FileNotFoundError):
            if stat.S_ISDIR(os.stat(name, dir_fd=self._here, follow_symlinks=False).st_mode):
                # Only uncovered files can be left in it.
                shutil.rmtree(name, dir_fd=self._here)
            else:
                os.unlink(name, dir_fd=self._here)
        pieces = self._store.pieces(entry.id)
        try:
            # Before the file is created: a missing object must not leave an empty file.
            first = next(pieces, b"")
        except GitError as error:
            raise GitError(f"cannot write {decode_path(path)}: {error.message}") from error
        if entry.mode == LINK:
            os.symlink(first, name, dir_fd=self._here)
            return
        mode = 0o777 if entry.mode == EXECUTABLE else 0o666
        with os.fdopen(os.open(name, NEW_FILE, mode, dir_fd=self._here), "wb") as file:
            file.write(first)
            for piece in pieces:
                file.write(piece)

    @property
    def _here(self) -> int:
        return self._open[-1][1] if self._open else self._root

    def _enter(self, folders: list[bytes], *, make: bool) -> bool:
        """Change to a folder, creating it if `make` is set. Return False if the folder does not exist."""
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
                # An uncovered symlink, file or pipe, or nothing.
                with contextlib.suppress(FileNotFoundError):
                    status = os.stat(name, dir_fd=self._here, follow_symlinks=False)
                    if stat.S_ISDIR(status.st_mode):
                        raise
                    os.unlink(name, dir_fd=self._here)
                os.mkdir(name, dir_fd=self._here)
                inner = os.open(name, OPEN_FOLDER, dir_fd=self._here)
            self._open.append((name, inner))
        return True

    def _leave(self, depth: int) -> None:
        while len(self._open) > depth:
            os.close(self._open.pop()[1])


DIGITS = 16
"""Number of digits of a tree id to show in a command."""


def describe_drift(
    root: Path,
    expected: str,
    actual: str,
    changes: Iterable[TreeChange],
    cause: DriftCause,
    *,
    store: Path | None = None,
    step: str = "",
) -> Drift:
    """Describe the differences between the expected tree and the files on disk. Tool caches are left out.

    Pass `store` if the changes are about to be undone. The report then contains the command that restores
    them.
    """
    listed = [change for change in changes if not is_cache(decode_path(change.path))]
    # The drift of checks is part of each result, and that of failed steps of every attempt.
    is_short = cause in (DriftCause.DURING_CHECKS, DriftCause.DURING_STEP)
    timed_changes = [(change, _changed_at(root, change)) for change in listed[:PATHS_LISTED]]
    times = [moment for _, moment in timed_changes if moment is not None]
    lines = []
    for change, moment in () if is_short else timed_changes[:LINES_LISTED]:
        how = "removed" if change.after is None else "added" if change.before is None else "changed"
        at = f" at {moment:%Y-%m-%d %H:%M:%S} UTC" if moment is not None else ""
        lines.append(f"{decode_path(change.path)}: {how}{at}")
    bring_back = ""
    if store is not None:
        # `diff-tree` ignores the user's settings for the patch format.
        trees = f"{expected[:DIGITS]} {actual[:DIGITS]}"
        source = f"git --git-dir={shlex.quote(str(store))} diff-tree -p --binary {trees}"
        # File by file: hunks that no longer apply are written to `.rej` files.
        bring_back = f"{source} | git -C {shlex.quote(str(root))} apply --reject --whitespace=nowarn"
    return Drift(
        tree=actual,
        expected=expected,
        paths=tuple(
            decode_path(change.path) for change, _ in timed_changes[: PATHS_SHOWN if is_short else PATHS_LISTED]
        ),
        count=len(listed),
        lines=tuple(lines),
        since=min(times, default=None),
        cause=cause,
        step=step,
        bring_back=bring_back,
    )


def undone_changes(
    changes: Sequence[TreeChange], present: Mapping[bytes, Entry], asked_paths: set[bytes], answer: DriftAnswer
) -> tuple[list[TreeChange], dict[bytes, Entry | None]]:
    """Return the changes that a person wants undone.

    Also return the entry that each affected path should have afterwards.

    Args:
        changes: changes from the workflow's last tree to the files on disk.
        present: the files on disk.
        asked_paths: paths in the question. All other paths changed later and are kept.
        answer: the person's decision.
    """
    undone = [
        change
        for change in changes
        if is_cache(decode_path(change.path))
        or (change.path in asked_paths and answer.undoes(decode_path(change.path)))
    ]
    targets = {change.path: change.before for change in undone}
    back = {path for path, entry in targets.items() if entry is not None}
    folders = {folder for path in back for folder in folders_above(path)}
    # A restored file cannot coexist with a folder of its name, or be below a file.
    for path in present:
        if path not in targets and (path in folders or not back.isdisjoint(folders_above(path))):
            targets[path] = None
    return undone, targets


def _changed_at(root: Path, change: TreeChange) -> datetime | None:
    if change.after is None:
        return None
    try:
        return datetime.fromtimestamp(os.lstat(root / os.fsdecode(change.path)).st_mtime, UTC).replace(microsecond=0)
    except (OSError, ValueError, OverflowError):
        return None


THEIRS = ".theirs"
"""Suffix of the extra file that contains the other side if one text cannot contain both."""
TEXT_BYTES = 5_000_000
"""Maximum size of a text to merge line by line."""


class _Conflict(NamedTuple):
    path: str
    base: pygit2.IndexEntry | None
    ours: pygit2.IndexEntry | None
    theirs: pygit2.IndexEntry | None


def merge_trees(store: TreeStore, base: str, ours: str, theirs: str, *, markers: bool = False) -> TreeMerge:
    """Merge the changes from `base` to `theirs` into `ours`.

    If `markers` is set, conflicts are marked in the files.

    Raises:
        GitError: a tree is not in the store or cannot be merged. Retryable.
    """
    if theirs in (base, ours):
        return TreeMerge(tree=ours)
    if ours == base:
        return TreeMerge(tree=theirs)
    if missing := next((tree for tree in (base, ours, theirs) if not store.holds(tree)), ""):
        raise GitError(f"the tree {missing} is not in {store.folder}")
    repository = store.repository
    with translated_errors(store.folder):
        # Git knows the empty tree without storing it.
        repository.TreeBuilder().write()
        # Without rename detection: a file moved on one side and edited on the other is reported as a conflict.
        index = repository.merge_trees(base, ours, theirs, flags=MergeFlag(0))
        file_conflicts = []
        for sides in index.conflicts or ():
            path = next(side.path for side in (sides[1], sides[2], sides[0]) if side is not None)
            file_conflicts.append(_Conflict(os.fsdecode(path), *sides))
        file_conflicts.sort(key=attrgetter("path"))
        if not file_conflicts:
            return TreeMerge(tree=str(index.write_tree(repository)))
        paths = tuple(conflict.path for conflict in file_conflicts)
        if not markers:
            return TreeMerge(conflicts=paths)
        conflicts = index.conflicts
        assert conflicts is not None
        for path in paths:
            del conflicts[path]
        clean = str(index.write_tree(repository))
        folders = {folder for path in store.files(clean) for folder in folders_above(path)}
        replacements, extra_paths = _with_markers(store, file_conflicts, folders)
    return TreeMerge(tree=store.replace_paths(clean, replacements), conflicts=paths, extra_paths=extra_paths)


def _with_markers(
    store: TreeStore, file_conflicts: Iterable[_Conflict], folders: Collection[bytes]
) -> tuple[Mapping[bytes, Entry | None], tuple[str, ...]]:
    replacements: dict[bytes, Entry | None] = {}
    extra_paths: list[str] = []
    for conflict in file_conflicts:
        path = os.fsencode(conflict.path)
        side = conflict.ours or conflict.theirs
        assert side is not None
        if path in folders:
            # A file on one side, a folder on the other.
            replacements[path + THEIRS.encode()] = Entry(side.mode, str(side.id))
            extra_paths.append(conflict.path + THEIRS)
            continue
        text = _text(store, conflict)
        if text is not None:
            with store.adding() as sink:
                replacements[path] = Entry(side.mode, sink.add("blob", text).hex())
            continue
        replacements[path] = Entry(side.mode, str(side.id))
        if conflict.ours is not None and conflict.theirs is not None:
            replacements[path + THEIRS.encode()] = Entry(conflict.theirs.mode, str(conflict.theirs.id))
            extra_paths.append(conflict.path + THEIRS)
    return replacements, tuple(extra_paths)


def _text(store: TreeStore, conflict: _Conflict) -> bytes | None:
    """Merge both sides of a conflict into one text. Return None if they are not text."""
    sides = [side for side in (conflict.base, conflict.ours, conflict.theirs) if side is not None]
    if any(side.mode not in (REGULAR, EXECUTABLE) or store.size(str(side.id)) > TEXT_BYTES for side in sides):
        return None
    if any(b"\0" in store.read(str(side.id)) for side in sides):
        return None
    if conflict.ours is None or conflict.theirs is None:
        # One side deleted what the other changed.
        left = conflict.ours or conflict.theirs
        assert left is not None
        content = store.read(str(left.id))
        content += b"" if content.endswith(b"\n") or not content else b"\n"
        ours, theirs = (content, b"") if conflict.ours is not None else (b"", content)
        return (
            b"<<<<<<< %s\n" % _label(conflict.ours)
            + ours
            + b"=======\n"
            + theirs
            + b">>>>>>> %s\n" % _label(conflict.theirs)
        )
    try:
        merged = store.repository.merge_file_from_index(conflict.base, conflict.ours, conflict.theirs)
    except UnicodeDecodeError:
        return None
    assert not isinstance(merged, str)
    return merged.contents.encode()


def _label(side: pygit2.IndexEntry | None) -> bytes:
    return b"removed" if side is None else os.fsencode(side.path)


class PackedTrees:
    """Packs trees as git pack files for a store on another host. Working trees are not read."""

    def pack(self, scope: EpisodeScope, tree: str, known_tree: str) -> dict[str, bytes]:
        """Pack the objects of a tree that `known_tree` does not contain.

        Return the pack and its index by file name, or an empty dictionary if there is nothing to pack.
        """
        store = TreeStore(store_folder_of(scope))
        object_ids: dict[str, None] = {}
        _collect(store, tree, known_tree or EMPTY_TREE, object_ids)
        if not object_ids:
            return {}
        with translated_errors(store.folder), tempfile.TemporaryDirectory() as folder:
            builder = pygit2.PackBuilder(store.repository)
            builder.set_threads(1)
            for name in object_ids:
                builder.add(pygit2.Oid(hex=name))
            builder.write(folder)
            return {path.name: path.read_bytes() for path in sorted(Path(folder).glob("pack-*"))}

    def unpack(self, scope: EpisodeScope, files: dict[str, bytes]) -> None:
        """Add the files of a pack to this host's store. Idempotent."""
        open_state_home()
        store = TreeStore(store_folder_of(scope))
        store.make()
        # The index last: git finds a pack by it.
        for name in sorted(files, key=lambda name: name.endswith(".idx")):
            write_durably(store.folder / "objects" / "pack" / name, files[name])

    def make_workspace(self, scope: EpisodeScope) -> None:
        """Create the workspace folder as an empty git repository if nothing exists there.

        Raises:
            WorkspaceError: the folder cannot be created.
        """
        workspace = Path(scope.workspace)
        if os.path.lexists(workspace):
            return
        try:
            workspace.mkdir(parents=True)
            pygit2.init_repository(str(workspace))
        except (OSError, pygit2.GitError) as error:
            raise WorkspaceError(
                f"the workspace {workspace} cannot be created on this host: {error}. Clone the repository on this "
                "host, or choose another folder: tightloop move ID --to HOST --workspace FOLDER"
            ) from error


def _collect(store: TreeStore, tree: str, known_tree: str, object_ids: dict[str, None]) -> None:
    """Collect the objects of a tree, except for objects that a known tree has at the same path."""
    if tree in (known_tree, EMPTY_TREE) or tree in object_ids:
        return
    if not store.holds(tree):
        raise GitError(f"the tree {tree} is not in {store.folder}")
    object_ids[tree] = None
    before = store.entries(known_tree)
    for name, entry in store.entries(tree).items():
        old = before.get(name)
        if entry == old:
            continue
        if entry.mode == FOLDER:
            _collect(store, entry.id, old.id if old is not None and old.mode == FOLDER else EMPTY_TREE, object_ids)
        else:
            object_ids[entry.id] = None
