"""Compares trees by git, within a time bound whatever the input.

Lines are compared by the algorithm of Myers; by that of histograms where the changed files are larger than
`HISTOGRAM_FROM_BYTES`, or many. Measured: on single commits of two projects both take the same time, and Myers has 0.2
to 0.4 % fewer changed lines; on jumps of 150 commits histograms take 25 % less time (the worst jump 50 %) and have
0.2 % fewer lines; on 300 000 moved lines they take 70 % less.
"""

import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

from activities.tracking.quick_diff import quick_diff
from activities.tracking.tree_estimate import BYTES_PER_LINE, Estimates, estimated, sizes_of
from activities.tracking.tree_patch import headed, tried
from activities.workspace.git_command import Git, split_z
from activities.workspace.plain_git import store_git
from activities.workspace.store.entry import EMPTY_TREE, TreeChange
from activities.workspace.store.objects import TreeStore
from activities.workspace.trail import FileChange, TreeDiff
from tightloop.value import counted

# Git compares two trees of 2 000 files in 9 ms: only unusual changes come near these bounds.
COMPARE_BOUND = timedelta(milliseconds=600)
LINES_BOUND = timedelta(milliseconds=200)
ESTIMATE_BOUND = timedelta(milliseconds=100)
NUMBERS_SHARE = 0.5
"""Part of the bound for counting lines; the rest is for the patch, or for an estimate should counting take too long."""

PATCH_LIMIT_BYTES = 2_000_000
NUMBERS_LIMIT_BYTES = 50_000_000
FILES_LIMIT = 2_000
RENAME_LIMIT = 400
HISTOGRAM_FROM_BYTES = 1_000_000
RENAME_BYTES = 16_000_000
"""Of changed files; above, only files that moved without a change are found again."""

BINARY_LIMIT_BYTES = 500_000
"""Of binary files whose content the patch may hold; more are in it by id."""

AGAIN_LINES = 20_000
AGAIN_FILES = 5_000
"""A change below these sizes is compared again if there was no time for its patch."""

HEAD_ROOM_BYTES = 300
SIDES = ("--no-color", "--src-prefix=a/", "--dst-prefix=b/")
# Without programs and conversions that the attributes of the repository name.
PLAIN = ("--no-ext-diff", "--no-textconv", "--full-index", *SIDES)


class _Pair(NamedTuple):
    """Two trees to compare, and how."""

    git: Git
    store: TreeStore
    base: str
    tree: str
    deadline: float
    changes: tuple[TreeChange, ...]
    sizes: dict[str, int]
    """Bytes of the blobs by id; empty where there are too many."""

    def options(self) -> tuple[str, ...]:
        total = sum(self.sizes.values())
        unknown = bool(self.changes) and not self.sizes
        algorithm = "histogram" if unknown or total >= HISTOGRAM_FROM_BYTES else "myers"
        renames = "-M100%" if unknown or total >= RENAME_BYTES else "-M"
        return ("-r", renames, f"-l{RENAME_LIMIT}", f"--diff-algorithm={algorithm}", *PLAIN)

    def left(self) -> timedelta:
        return timedelta(seconds=max(0.05, self.deadline - time.monotonic()))


class GitDiffer:
    """Compares trees; degrades to a coarser answer instead of failing or taking long."""

    def __init__(self, *, compare_bound: timedelta = COMPARE_BOUND, lines_bound: timedelta = LINES_BOUND) -> None:
        self._compare_bound = compare_bound
        self._lines_bound = lines_bound

    def compare(self, store: Path, base: str, tree: str) -> TreeDiff:
        """Return the difference of two trees of a store.

        If counting lines does not end in time, the lines of the files that are left are estimated as if they were
        rewritten. A patch that could not be made and tried in time is left out.
        """
        if base == tree:
            return TreeDiff()
        found = self._once(store, base, tree)
        small = found.files_changed <= AGAIN_FILES and found.lines_added + found.lines_removed <= AGAIN_LINES
        # A small change takes that long on a busy machine only, and without a patch a person has to look at it.
        return self._once(store, base, tree) if small and not found.patch else found

    def _once(self, folder: Path, base: str, tree: str) -> TreeDiff:
        bound = self._compare_bound
        deadline = time.monotonic() + bound.total_seconds()
        store = TreeStore(folder)
        changes, complete = store.listed_changes(base, tree, seconds=bound.total_seconds())
        if not complete:
            names = tuple(FileChange(path=_shown(change.path)) for change in changes[:FILES_LIMIT])
            note = "the changed files could not be listed in time"
            return TreeDiff(files=names, files_changed=len(changes), approximate=True, note=note)
        if time.monotonic() < deadline and (quick := quick_diff(store, base, tree, changes)) is not None:
            numbers = [_Counted(path, added, removed, False) for path, added, removed in quick.lines]
            count = len(changes)
            return _tree_diff(numbers, headed(base, tree, quick.patch, held=count, paths=count), "")
        pair = _Pair(store_git(folder), store, base, tree, deadline, tuple(changes), sizes_of(store, changes))
        counted, complete = pair.git.head(
            "diff-tree", *pair.options(), "--numstat", "-z", base, tree,
            limit_bytes=NUMBERS_LIMIT_BYTES, timeout=min(bound * NUMBERS_SHARE, pair.left()),
        )  # fmt: skip
        numbers = list(_numbers(counted))
        return _tree_diff(numbers, *_patch(pair, numbers)) if complete else _estimate(pair, numbers)

    def lines(self, store: Path, tree: str) -> int:
        """Return how many lines of text a tree has; where counting takes too long, an estimate.

        The lines of a successor are known without counting: those of its base, plus added, less removed.
        """
        git = store_git(store)
        counted, complete = git.head(
            "diff-tree", "-r", "--numstat", "-z", "--no-renames", *PLAIN, EMPTY_TREE, tree,
            limit_bytes=NUMBERS_LIMIT_BYTES, timeout=self._lines_bound,
        )  # fmt: skip
        known = [change.added for change in _numbers(counted[: counted.rfind(b"\0") + 1])]
        if complete:
            return sum(known)
        listed, whole = git.head(
            "ls-tree", "-r", "-z", "--name-only", tree, limit_bytes=NUMBERS_LIMIT_BYTES, timeout=ESTIMATE_BOUND
        )
        if known and whole:
            return sum(known) * len(split_z(listed)) // len(known)
        listed, _ = git.head("ls-tree", "-r", "-l", "-z", tree, limit_bytes=NUMBERS_LIMIT_BYTES, timeout=ESTIMATE_BOUND)
        sizes = (entry.partition(b"\t")[0].split()[-1] for entry in split_z(listed) if b"\t" in entry)
        return sum(int(size) for size in sizes if size.isdigit()) // BYTES_PER_LINE


class _Counted(NamedTuple):
    """An entry of `--numstat`."""

    path: bytes
    added: int
    removed: int
    binary: bool
    renamed_from: bytes = b""


def _estimate(pair: _Pair, known: list[_Counted]) -> TreeDiff:
    covered = {path for number in known for path in (number.path, number.renamed_from)}
    rest = [change for change in pair.changes if change.path not in covered]
    average = Estimates(
        added=sum(number.added for number in known) // max(1, len(known)),
        removed=sum(number.removed for number in known) // max(1, len(known)),
    )
    guessed = estimated(pair.store, rest, pair.sizes, average=average, seconds=pair.left().total_seconds())
    numbers = known + [_Counted(change.path, guess.added, guess.removed, False) for change, guess in guessed]
    files = counted(len(rest), "file")
    note = f"the time was too short to compare the lines of {files}: they are estimated, without a patch"
    return _tree_diff(numbers, b"", note)


def _tree_diff(numbers: list[_Counted], patch: bytes, note: str) -> TreeDiff:
    return TreeDiff(
        files=tuple(
            FileChange(path=_shown(path), added=added, removed=removed, binary=binary, renamed_from=_shown(old))
            for path, added, removed, binary, old in numbers[:FILES_LIMIT]
        ),
        files_changed=len(numbers),
        lines_added=sum(number.added for number in numbers),
        lines_removed=sum(number.removed for number in numbers),
        patch=patch,
        approximate=bool(note),
        note=note,
    )


def _patch(pair: _Pair, numbers: list[_Counted]) -> tuple[bytes, str]:
    """Return the patch, tried, and what it lacks."""
    binary = {number.path for number in numbers if number.binary}
    sides = (side for c in pair.changes if c.path in binary for side in (c.before, c.after) if side is not None)
    heavy = sum(pair.sizes.get(side.id, 0) for side in sides)
    contents = ("--binary",) if pair.sizes and heavy <= BINARY_LIMIT_BYTES else ()
    # Git refuses its own patch where a link becomes a folder and moves into it.
    for form in (contents, (*contents, "--no-renames")):
        patch, whole = pair.git.head(
            "diff-tree", *pair.options(), "-p", *form, pair.base, pair.tree,
            limit_bytes=PATCH_LIMIT_BYTES - HEAD_ROOM_BYTES, timeout=pair.left(),
        )  # fmt: skip
        patch = patch if whole else patch[: patch.rfind(b"\ndiff --git ") + 1]
        if not patch:
            return b"", f"no patch: its first file is larger than {PATCH_LIMIT_BYTES} bytes, or took too long"
        held = tried(pair.git, pair.changes, patch, pair.left())
        if held is not None and (held == len(pair.changes) or not whole):
            paths = len(pair.changes)
            cut = f"the patch holds {held} of {paths} changed paths: it was cut at {PATCH_LIMIT_BYTES} bytes"
            return headed(pair.base, pair.tree, patch, held=held, paths=paths), "" if whole else cut
    return b"", "no patch: it could not be tried in time, or did not lead to the new tree"


def _numbers(output: bytes) -> Iterator[_Counted]:
    """Read `--numstat -z`, maybe cut: an entry is `added TAB removed TAB path`; a rename has no path, but two more."""
    fields = iter(output.split(b"\0")[:-1])
    for entry in fields:
        added, removed, path = entry.split(b"\t", 2)
        old = b""
        if not path:
            old, path = next(fields, b""), next(fields, b"")
        if path:
            binary = added == b"-"
            yield _Counted(path, 0 if binary else int(added), 0 if binary else int(removed), binary, old)


def _shown(path: bytes) -> str:
    return path.decode("utf-8", "backslashreplace")
