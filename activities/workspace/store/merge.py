"""Three-way merges of trees, in this process: no program runs, and no file is touched."""

import os
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

import pygit2
from pygit2.enums import MergeFlag

from activities.workspace.store.entry import EXECUTABLE, REGULAR, Entry, TreeMerge, folders_above
from activities.workspace.store.objects import TreeStore, translated_errors
from tightloop.errors import GitError

THEIRS = ".theirs"
"""Added to the name of a file that lies beside the other one, where no text can hold both."""
TEXT_BYTES = 5_000_000
"""A larger file is not merged line by line."""


class _Conflict(NamedTuple):
    path: str
    base: pygit2.IndexEntry | None
    ours: pygit2.IndexEntry | None
    theirs: pygit2.IndexEntry | None


def merge_trees(store: TreeStore, base: str, ours: str, theirs: str, *, markers: bool = False) -> TreeMerge:
    """Merge what `theirs` changed since `base` into `ours`.

    Args:
        store: it holds all three.
        base: what both sides began with.
        ours: the tree that is merged into.
        theirs: the tree whose changes are taken over.
        markers: write conflicts into the files, as git does.

    Raises:
        GitError: a tree is not in the store, or cannot be merged. Retryable.
    """
    if theirs in (base, ours):
        return TreeMerge(tree=ours)
    if ours == base:
        return TreeMerge(tree=theirs)
    if missing := next((tree for tree in (base, ours, theirs) if not store.holds(tree)), ""):
        raise GitError(f"the tree {missing} is not in {store.folder}")
    repository = store.repository
    with translated_errors(store.folder):
        # The empty tree is known to git without being stored.
        repository.TreeBuilder().write()
        # Without renames: a file that one side moved and the other edited is shown as the conflict that it is.
        index = repository.merge_trees(base, ours, theirs, flags=MergeFlag(0))
        found = sorted(_conflicts(index), key=lambda one: one.path)
        if not found:
            return TreeMerge(tree=str(index.write_tree(repository)))
        paths = tuple(one.path for one in found)
        if not markers:
            return TreeMerge(conflicts=paths)
        conflicts = index.conflicts
        assert conflicts is not None
        for path in paths:
            del conflicts[path]
        clean = str(index.write_tree(repository))
        folders = {folder for path in store.files(clean) for folder in folders_above(path)}
        wanted, beside = _with_markers(store, found, folders)
    return TreeMerge(tree=store.merged(clean, wanted), conflicts=paths, beside=beside)


def _conflicts(index: pygit2.Index) -> Iterable[_Conflict]:
    for base, ours, theirs in index.conflicts or ():
        path = next(side.path for side in (ours, theirs, base) if side is not None)
        yield _Conflict(os.fsdecode(path), base, ours, theirs)


def _with_markers(
    store: TreeStore, found: Iterable[_Conflict], folders: Collection[bytes]
) -> tuple[Mapping[bytes, Entry | None], tuple[str, ...]]:
    wanted: dict[bytes, Entry | None] = {}
    beside: list[str] = []
    for one in found:
        path = os.fsencode(one.path)
        kept = one.ours or one.theirs
        assert kept is not None
        if path in folders:
            # A file on one side, a folder on the other.
            wanted[path + THEIRS.encode()] = Entry(kept.mode, str(kept.id))
            beside.append(one.path + THEIRS)
            continue
        text = _text(store, one)
        if text is not None:
            with store.adding() as sink:
                wanted[path] = Entry(kept.mode, sink.add("blob", text).hex())
            continue
        wanted[path] = Entry(kept.mode, str(kept.id))
        if one.ours is not None and one.theirs is not None:
            wanted[path + THEIRS.encode()] = Entry(one.theirs.mode, str(one.theirs.id))
            beside.append(one.path + THEIRS)
    return wanted, tuple(beside)


def _text(store: TreeStore, one: _Conflict) -> bytes | None:
    """Return both sides in one text; None where they are not texts."""
    sides = [side for side in (one.base, one.ours, one.theirs) if side is not None]
    if any(side.mode not in (REGULAR, EXECUTABLE) or store.size(str(side.id)) > TEXT_BYTES for side in sides):
        return None
    if any(b"\0" in store.read(str(side.id)) for side in sides):
        return None
    if one.ours is None or one.theirs is None:
        # One side removed what the other changed.
        left = one.ours or one.theirs
        assert left is not None
        content = store.read(str(left.id))
        content += b"" if content.endswith(b"\n") or not content else b"\n"
        ours, theirs = (content, b"") if one.ours is not None else (b"", content)
        return b"<<<<<<< %s\n" % _label(one.ours) + ours + b"=======\n" + theirs + b">>>>>>> %s\n" % _label(one.theirs)
    try:
        merged = store.repository.merge_file_from_index(one.base, one.ours, one.theirs)
    except UnicodeDecodeError:
        return None
    assert not isinstance(merged, str)
    return merged.contents.encode()


def _label(side: pygit2.IndexEntry | None) -> bytes:
    return b"removed" if side is None else os.fsencode(side.path)
