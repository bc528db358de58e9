"""Computes the differences between two trees."""

import re
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

import pygit2
from pygit2.enums import DiffOption

from activities.workspace.git_command import Git, split_z, store_git
from activities.workspace.scope import FileChange, TreeDiff
from activities.workspace.store.entry import EMPTY_TREE, EXECUTABLE, REGULAR, Entry, TreeChange, decode_path
from activities.workspace.store.objects import TreeStore
from tightloop.errors import GitError
from tightloop.value import format_count

FILES = 100
BYTES = 256_000
"""Maximum total size of the changed files. Myers takes 20 ms for 10 000 changed lines at this size."""

# Names that git writes unquoted.
_PLAIN = re.compile(rb"[A-Za-z0-9_./@%+,=:~ #()!&$^{}\[\];-]+")
_INDEX = re.compile(rb"^index [0-9a-f]+\.\.[0-9a-f]+", re.MULTILINE)
_HUNK = re.compile(rb"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
_NO_LINE_END = b"\\ No newline at end of file\n"


class QuickDiff(NamedTuple):
    """The line counts and the patch of an ordinary change."""

    lines: tuple[tuple[bytes, int, int], ...]
    """Path, number of lines added and number of lines removed."""
    patch: bytes
    """Patch that was applied to verify that it produces the second tree's files."""


def quick_diff(store: TreeStore, base: str, tree: str, changes: Sequence[TreeChange]) -> QuickDiff | None:
    """Quickly compute the diff of an ordinary change.

    Return None if the change is not ordinary or the patch cannot be verified.
    """
    contents = _ordinary(store, changes)
    if contents is None:
        return None
    diff = _tree(store, base).diff_to_tree(_tree(store, tree), DiffOption.INDENT_HEURISTIC | DiffOption.FORCE_TEXT)
    patches = {patch.delta.new_file.raw_path: patch for patch in diff if patch is not None}
    parts, lines = [], []
    for change in changes:
        patch = patches.get(change.path)
        if patch is None:
            return None
        # libgit2 shortens the ids, but patches made by git have them in full (`--full-index`).
        text = _INDEX.sub(b"index %s..%s" % (_id(change.before), _id(change.after)), patch.data, count=1)
        old = contents[change.before.id] if change.before is not None else b""
        new = contents[change.after.id] if change.after is not None else b""
        # Applied by code of our own: an error of the library could hide itself in both directions.
        if _apply_patch(old, text) != new:
            return None
        parts.append(text)
        _, more, less = patch.line_stats
        lines.append((change.path, more, less))
    return QuickDiff(tuple(lines), b"".join(parts))


def _ordinary(store: TreeStore, changes: Sequence[TreeChange]) -> dict[str, bytes] | None:
    """Read the contents of all blobs of an ordinary change, by blob id.

    Return None if there is too much content or it is not line-based.
    """
    has_removed, new = (
        any(side is None for side in sides) for sides in zip(*((c.after, c.before) for c in changes), strict=True)
    )
    # A removed and an added file may be a rename, which git detects.
    if len(changes) > FILES or (has_removed and new):
        return None
    # Git cannot apply its own patch for an empty file in a folder whose name ends with a space.
    if not all(_PLAIN.fullmatch(change.path) and b" /" not in change.path for change in changes):
        return None
    sides = [side for change in changes for side in (change.before, change.after) if side is not None]
    if (
        any(side.mode not in (REGULAR, EXECUTABLE) for side in sides)
        or sum(store.size(side.id) for side in sides) > BYTES
    ):
        return None
    contents = {side.id: store.read(side.id) for side in sides}
    return None if any(b"\0" in content for content in contents.values()) else contents


def _tree(store: TreeStore, tree: str) -> pygit2.Tree:
    git_object = store.repository[tree]
    if not isinstance(git_object, pygit2.Tree):
        raise GitError(f"the object {tree} in {store.folder} is not a tree")
    return git_object


def _id(side: Entry | None) -> bytes:
    return (side.id if side is not None else "0" * 40).encode()


def _apply_patch(old: bytes, patch: bytes) -> bytes | None:
    """Apply a file's hunks without fuzz. Return None if a hunk does not match."""
    begin = re.search(rb"^@@ ", patch, re.MULTILINE)
    if begin is None:
        return old
    lines = old.split(b"\n")
    source = [line + b"\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])
    result: list[bytes] = []
    position = 0
    rows = [row + b"\n" for row in patch[begin.start() :].split(b"\n")[:-1]]
    for number, row in enumerate(rows):
        if (hunk := _HUNK.match(row)) is not None:
            # For an empty range the number is that of the line before it.
            start = int(hunk[1]) - (hunk[2] != b"0")
            if start < position:
                return None
            result += source[position:start]
            position = start
            continue
        if row == _NO_LINE_END:
            continue
        body = row[1:]
        if number + 1 < len(rows) and rows[number + 1] == _NO_LINE_END:
            body = body[:-1]
        if row[:1] in (b" ", b"-"):
            if position >= len(source) or source[position] != body:
                return None
            position += 1
        if row[:1] in (b" ", b"+"):
            result.append(body)
    return b"".join((*result, *source[position:]))


SIZES_LIMIT = 2_000
"""Maximum number of changed paths. Above it, reading blob sizes takes longer than it saves."""

READ_LIMIT_BYTES = 64_000_000
BYTES_PER_LINE = 40
BINARY_PROBE_BYTES = 8_000
"""Number of bytes at the start of a file. Git treats the file as binary if they contain a NUL."""


class Estimates(NamedTuple):
    """Estimated line counts of changed files, assuming that the files were rewritten."""

    added: int
    removed: int


def sizes_of(store: TreeStore, changes: Sequence[TreeChange]) -> dict[str, int]:
    """Return the size of each blob by id. Return nothing if there are too many blobs."""
    if len(changes) > SIZES_LIMIT:
        return {}
    try:
        return {blob: store.size(blob) for blob in _ids(changes)}
    except GitError:
        return {}


def estimate_lines(
    store: TreeStore, changes: list[TreeChange], sizes: dict[str, int], *, average: Estimates, seconds: float
) -> list[tuple[TreeChange, Estimates]]:
    """Return the line counts of each changed path.

    Files that cannot be read in time are estimated from their blob sizes. If the blob sizes are unknown,
    every path gets the average.
    """
    if not sizes:
        return [(change, average) for change in changes]
    lines = {blob: size // BYTES_PER_LINE for blob, size in sizes.items()}
    ids = _ids(changes)
    if sum(sizes.get(blob, 0) for blob in ids) <= READ_LIMIT_BYTES:
        deadline = time.monotonic() + seconds
        for blob in ids:
            # Out of time: estimate the rest by size.
            if time.monotonic() > deadline:
                break
            content = store.read(blob)
            ends = content.count(b"\n") + (content[-1:] not in (b"", b"\n"))
            lines[blob] = 0 if b"\0" in content[:BINARY_PROBE_BYTES] else ends
    sides = ((change, change.after, change.before) for change in changes)
    return [(change, Estimates(*(lines.get(side.id, 0) if side else 0 for side in two))) for change, *two in sides]


def _ids(changes: Sequence[TreeChange]) -> list[str]:
    return list(dict.fromkeys(side.id for c in changes for side in (c.before, c.after) if side is not None))


def with_header(base: str, tree: str, patch: bytes, *, held_count: int, paths: int) -> bytes:
    """Prepend a header to a patch. `git apply` ignores the header."""
    return (
        f"tightloop-patch 1\nbase-tree {base}\nresult-tree {tree}\nholds {held_count} of {paths} paths\n\n".encode()
        + patch
    )


def try_patch(git: Git, changes: Iterable[TreeChange], patch: bytes, bound: timedelta) -> int | None:
    """Apply a patch to the old files and count the paths that match the new tree.

    Paths that the patch does not change are not counted. Return None if the patch does not apply, a step
    takes longer than `bound`, or a path matches neither tree.
    """
    changes_by_path = {change.path: change for change in changes}
    present = [(change.path, change.before) for change in changes_by_path.values() if change.before is not None]
    old = b"".join(b"%o %s\t%s\0" % (entry.mode, entry.id.encode(), path) for path, entry in present)
    with tempfile.TemporaryDirectory(prefix="tightloop-patch-") as name:
        folder = Path(name)
        (folder / "objects").mkdir()
        # Keeps new objects out of the store.
        quoted = (git.variables["GIT_DIR"] + "/objects").replace("\\", "\\\\").replace('"', '\\"')
        places = {"GIT_OBJECT_DIRECTORY": str(folder / "objects"), "GIT_ALTERNATE_OBJECT_DIRECTORIES": f'"{quoted}"'}
        git = git.with_variables({**places, "GIT_INDEX_FILE": str(folder / "index")})
        try:
            git.run("update-index", "-z", "--index-info", stdin=old, timeout=bound)
            git.run("apply", "--cached", "-", stdin=patch, timeout=bound)
            listed = split_z(git.run("ls-files", "-s", "-z", timeout=bound))
        except GitError:
            return None
    entries: dict[bytes, Entry] = {}
    for line in listed:
        head, _, path = line.partition(b"\t")
        mode, blob, _ = head.split(b" ")
        entries[path] = Entry(int(mode, 8), blob.decode())
    # A path that is in neither tree shows that the patch does more than the change.
    if entries.keys() - changes_by_path.keys():
        return None
    pairs = [(change, entries.get(change.path)) for change in changes_by_path.values()]
    if any(entry not in (change.before, change.after) for change, entry in pairs):
        return None
    return sum(entry == change.after for change, entry in pairs)


# Git compares two trees of 2 000 files in 9 ms: only unusual changes come near these limits.
COMPARE_BOUND = timedelta(milliseconds=600)
LINES_BOUND = timedelta(milliseconds=200)
ESTIMATE_BOUND = timedelta(milliseconds=100)
NUMBERS_SHARE = 0.5
"""Share of the time for counting lines. The rest is for the patch, or for an estimate if counting takes too long."""

PATCH_LIMIT_BYTES = 2_000_000
NUMBERS_LIMIT_BYTES = 50_000_000
FILES_LIMIT = 2_000
RENAME_LIMIT = 400
HISTOGRAM_FROM_BYTES = 1_000_000
RENAME_BYTES = 16_000_000
"""Maximum total size of changed files. Above it, only exact renames are detected."""

BINARY_LIMIT_BYTES = 500_000
"""Maximum total size of binary contents in the patch. Above it, they are included by id."""

AGAIN_LINES = 20_000
AGAIN_FILES = 5_000
"""Number of changed files below which a change is compared again if there was not enough time for its patch."""

HEAD_ROOM_BYTES = 300
SIDES = ("--no-color", "--src-prefix=a/", "--dst-prefix=b/")
# Disables programs and conversions named by the repository's attributes.
PLAIN = ("--no-ext-diff", "--no-textconv", "--full-index", *SIDES)


class _Pair(NamedTuple):
    """Two trees to compare, and the options for the comparison."""

    git: Git
    store: TreeStore
    base: str
    tree: str
    deadline: float
    changes: tuple[TreeChange, ...]
    sizes: dict[str, int]
    """Blob sizes by id. Empty if there are too many."""

    def options(self) -> tuple[str, ...]:
        total = sum(self.sizes.values())
        unknown = bool(self.changes) and not self.sizes
        algorithm = "histogram" if unknown or total >= HISTOGRAM_FROM_BYTES else "myers"
        renames = "-M100%" if unknown or total >= RENAME_BYTES else "-M"
        return ("-r", renames, f"-l{RENAME_LIMIT}", f"--diff-algorithm={algorithm}", *PLAIN)

    def time_left(self) -> timedelta:
        return timedelta(seconds=max(0.05, self.deadline - time.monotonic()))


class Differ:
    """Compares trees. If a comparison fails or takes too long, the result is less detailed."""

    def __init__(self, *, compare_bound: timedelta = COMPARE_BOUND, lines_bound: timedelta = LINES_BOUND) -> None:
        self._compare_bound = compare_bound
        self._lines_bound = lines_bound

    def compare(self, store: Path, base: str, tree: str) -> TreeDiff:
        """Compare two trees in a store within the time limit.

        If counting lines takes too long, the remaining files are treated as rewritten, and their line counts
        are estimated. The patch is omitted if it cannot be created and verified in time.
        """
        if base == tree:
            return TreeDiff()
        diff = self._once(store, base, tree)
        small = diff.files_changed <= AGAIN_FILES and diff.lines_added + diff.lines_removed <= AGAIN_LINES
        # Only a busy machine takes that long for a small change, and without a patch a person has to look at it.
        return self._once(store, base, tree) if small and not diff.patch else diff

    def _once(self, folder: Path, base: str, tree: str) -> TreeDiff:
        bound = self._compare_bound
        deadline = time.monotonic() + bound.total_seconds()
        store = TreeStore(folder)
        changes, complete = store.listed_changes(base, tree, seconds=bound.total_seconds())
        if not complete:
            names = tuple(FileChange(path=decode_path(change.path)) for change in changes[:FILES_LIMIT])
            note = "could not list the changed files in time"
            return TreeDiff(files=names, files_changed=len(changes), approximate=True, note=note)
        if time.monotonic() < deadline and (quick := quick_diff(store, base, tree, changes)) is not None:
            numbers = [_Counted(path, added, removed, False) for path, added, removed in quick.lines]
            count = len(changes)
            return _tree_diff(numbers, with_header(base, tree, quick.patch, held_count=count, paths=count), "")
        pair = _Pair(store_git(folder), store, base, tree, deadline, tuple(changes), sizes_of(store, changes))
        counted, complete = pair.git.head(
            "diff-tree", *pair.options(), "--numstat", "-z", base, tree,
            limit_bytes=NUMBERS_LIMIT_BYTES, timeout=min(bound * NUMBERS_SHARE, pair.time_left()),
        )  # fmt: skip
        numbers = list(_numbers(counted))
        return _tree_diff(numbers, *_patch(pair, numbers)) if complete else _estimate(pair, numbers)

    def lines(self, store: Path, tree: str) -> int:
        """Count the text lines in a tree. If counting takes too long, return an estimate.

        A later tree does not have to be counted: add the added lines to the base's count and subtract the
        removed ones.
        """
        git = store_git(store)
        counted, complete = git.head(
            "diff-tree", "-r", "--numstat", "-z", "--no-renames", *PLAIN, EMPTY_TREE, tree,
            limit_bytes=NUMBERS_LIMIT_BYTES, timeout=self._lines_bound,
        )  # fmt: skip
        counts = [change.added for change in _numbers(counted[: counted.rfind(b"\0") + 1])]
        if complete:
            return sum(counts)
        listed, whole = git.head(
            "ls-tree", "-r", "-z", "--name-only", tree, limit_bytes=NUMBERS_LIMIT_BYTES, timeout=ESTIMATE_BOUND
        )
        if counts and whole:
            return sum(counts) * len(split_z(listed)) // len(counts)
        listed, _ = git.head("ls-tree", "-r", "-l", "-z", tree, limit_bytes=NUMBERS_LIMIT_BYTES, timeout=ESTIMATE_BOUND)
        sizes = (entry.partition(b"\t")[0].split()[-1] for entry in split_z(listed) if b"\t" in entry)
        return sum(int(size) for size in sizes if size.isdigit()) // BYTES_PER_LINE


class _Counted(NamedTuple):
    """An entry in `--numstat` output."""

    path: bytes
    added: int
    removed: int
    binary: bool
    renamed_from: bytes = b""


def _estimate(pair: _Pair, counted_files: list[_Counted]) -> TreeDiff:
    covered = {path for number in counted_files for path in (number.path, number.renamed_from)}
    rest = [change for change in pair.changes if change.path not in covered]
    average = Estimates(
        added=sum(number.added for number in counted_files) // max(1, len(counted_files)),
        removed=sum(number.removed for number in counted_files) // max(1, len(counted_files)),
    )
    # The files that were counted in time are the best guess for those of unknown size.
    guessed = estimate_lines(pair.store, rest, pair.sizes, average=average, seconds=pair.time_left().total_seconds())
    numbers = counted_files + [_Counted(change.path, guess.added, guess.removed, False) for change, guess in guessed]
    files = format_count(len(rest), "file")
    note = f"comparing {files} took too long. The line counts are estimated, and there is no patch"
    return _tree_diff(numbers, b"", note)


def _tree_diff(numbers: list[_Counted], patch: bytes, note: str) -> TreeDiff:
    return TreeDiff(
        files=tuple(
            FileChange(
                path=decode_path(path), added=added, removed=removed, binary=binary, renamed_from=decode_path(old)
            )
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
    """Create a patch and verify that it applies. Return the patch, and a note on any missing parts."""
    binary = {number.path for number in numbers if number.binary}
    sides = (side for c in pair.changes if c.path in binary for side in (c.before, c.after) if side is not None)
    heavy = sum(pair.sizes.get(side.id, 0) for side in sides)
    contents = ("--binary",) if pair.sizes and heavy <= BINARY_LIMIT_BYTES else ()
    # Git rejects its own patch if a symlink becomes a folder and moves into it.
    for form in (contents, (*contents, "--no-renames")):
        patch, whole = pair.git.head(
            "diff-tree", *pair.options(), "-p", *form, pair.base, pair.tree,
            limit_bytes=PATCH_LIMIT_BYTES - HEAD_ROOM_BYTES, timeout=pair.time_left(),
        )  # fmt: skip
        # Cut between two files, so that the rest still applies.
        patch = patch if whole else patch[: patch.rfind(b"\ndiff --git ") + 1]
        if not patch:
            return b"", f"no patch: the first file is larger than {PATCH_LIMIT_BYTES} bytes or took too long"
        held_count = try_patch(pair.git, pair.changes, patch, pair.time_left())
        if held_count is not None and (held_count == len(pair.changes) or not whole):
            paths = len(pair.changes)
            cut = (
                f"the patch contains {held_count} of {paths} changed paths, because it was truncated at "
                f"{PATCH_LIMIT_BYTES} bytes"
            )
            return with_header(pair.base, pair.tree, patch, held_count=held_count, paths=paths), "" if whole else cut
    return b"", "no patch: the patch could not be verified in time or did not produce the new tree"


def _numbers(output: bytes) -> Iterator[_Counted]:
    """Parse the output of `--numstat -z`, which may be truncated.

    Each entry has the form `added TAB removed TAB path`. Renames have two more path fields.
    """
    fields = iter(output.split(b"\0")[:-1])
    for entry in fields:
        added, removed, path = entry.split(b"\t", 2)
        old = b""
        if not path:
            old, path = next(fields, b""), next(fields, b"")
        if path:
            binary = added == b"-"
            yield _Counted(path, 0 if binary else int(added), 0 if binary else int(removed), binary, old)
