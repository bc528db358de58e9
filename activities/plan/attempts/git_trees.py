"""The exact inverse of a change, applied to a later tree: by path, and by three-way merge where both changed a file."""

import tempfile
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

from activities.plan.port import Undone
from activities.tracking.bare_git import bare_git, with_index
from activities.workspace.git_command import Git, split_z
from tightloop.errors import GitError

PATCH_BYTES = 2 * 1024 * 1024
PATCH_TIME = timedelta(seconds=30)
# How `git diff-tree --raw` writes that there is no file (git-diff(1), raw output format).
ABSENT = b"000000"
REGULAR = (b"100644", b"100755")
MERGE_CONFLICTS = 127
"""Highest exit code of `git merge-file` that counts conflicts; above it is an error (a binary file, for one)."""


class Entry(NamedTuple):
    """What a tree has at a path; mode `000000`: nothing."""

    mode: bytes
    blob: bytes


class Change(NamedTuple):
    """A path that a step changed."""

    path: bytes
    before: Entry
    after: Entry


NOTHING = Entry(ABSENT, b"")


class GitTrees:
    """Compares and combines trees in the object database; see the port."""

    def changed(self, root: Path, before: str, after: str) -> tuple[str, ...]:
        """Return the paths that differ, sorted; bytes that are not UTF-8 as escapes."""
        changes = _changes(bare_git(root), before, after)
        return tuple(sorted(change.path.decode("utf-8", "backslashreplace") for change in changes))

    def patch(self, root: Path, before: str, after: str) -> bytes:
        """Return the unified diff, cut at 2 MB."""
        # Drivers for diffs and text conversion are programs that the repository chooses.
        options = ("-r", "-p", "--binary", "--no-renames", "--no-ext-diff", "--no-textconv")
        git = bare_git(root)
        text, whole = git.head("diff-tree", *options, before, after, limit_bytes=PATCH_BYTES, timeout=PATCH_TIME)
        return text if whole else text + b"\n[tightloop: the rest is left out; compare the trees with git diff]\n"

    def undo(self, root: Path, before: str, after: str, current: str) -> Undone:
        """Take the change from `before` to `after` out of `current`.

        A path that is still as the step left it becomes what it was. In one that a later step changed elsewhere only
        the step's own lines are taken back. Everything else is a conflict, and then no tree is made.

        Raises:
            GitError: git failed, or a tree is not in the repository. Retryable.
        """
        git = bare_git(root)
        changes = _changes(git, before, after)
        present = {}
        for line in split_z(git.run("ls-tree", "-r", "-z", "--full-tree", current)):
            head, _, path = line.partition(b"\t")
            mode, _, blob = head.split(b" ")
            present[path] = Entry(mode, blob)
        wanted: dict[bytes, Entry] = {}
        conflicts: list[bytes] = []
        for change in changes:
            entry = _inverse(git, change, present.get(change.path, NOTHING))
            if entry is None:
                conflicts.append(change.path)
            elif entry != present.get(change.path, NOTHING):
                wanted[change.path] = entry
        gone = {path for path, entry in wanted.items() if entry is NOTHING or entry.mode == ABSENT}
        left = (set(present) | set(wanted)) - gone
        added = [path for path in wanted if path not in gone and path not in present]
        below_file = [path for path in added if any(folder in left for folder in _folders(path))]
        folders = {folder for path in left for folder in _folders(path)} if added else set()
        conflicts += [*below_file, *(path for path in added if path in folders)]
        if conflicts:
            shown = sorted({path.decode("utf-8", "backslashreplace") for path in conflicts})
            return Undone(conflicts=tuple(shown))
        return Undone(tree=_tree(git, current, wanted), files=len(wanted))


def _changes(git: Git, before: str, after: str) -> list[Change]:
    fields = split_z(git.run("diff-tree", "-r", "-z", "--raw", "--no-renames", "--no-abbrev", before, after))
    found = []
    for head, path in zip(fields[::2], fields[1::2], strict=True):
        old_mode, new_mode, old_blob, new_blob, _ = head.removeprefix(b":").split(b" ")
        found.append(Change(path, _entry(old_mode, old_blob), _entry(new_mode, new_blob)))
    return found


def _entry(mode: bytes, blob: bytes) -> Entry:
    return NOTHING if mode == ABSENT else Entry(mode, blob)


def _inverse(git: Git, change: Change, now: Entry) -> Entry | None:
    """Return what a path is to be; None: a conflict."""
    if now == change.after:
        return change.before
    if now == change.before:
        return now
    sides = (now, change.after, change.before)
    if any(side.mode not in REGULAR for side in sides):
        return None
    # The executable bit is merged like the text: it is taken back where only the step changed it.
    mode = change.before.mode if now.mode == change.after.mode else now.mode
    blob = _merged(git, now.blob, change.after.blob, change.before.blob)
    return None if blob is None else Entry(mode, blob)


def _merged(git: Git, now: bytes, after: bytes, before: bytes) -> bytes | None:
    if now == after:
        return before
    if before in (after, now):
        return now
    with tempfile.TemporaryDirectory(prefix="tightloop-undo-") as name:
        files = []
        for number, blob in enumerate((now, after, before)):
            file = Path(name, str(number))
            file.write_bytes(git.run("cat-file", "blob", blob.decode()))
            files.append(str(file))
        outcome = git.attempt("merge-file", "--stdout", "--quiet", *files)
    if 0 < outcome.code <= MERGE_CONFLICTS or "binary" in outcome.error.lower():
        return None
    if outcome.code != 0:
        raise GitError(f"git merge-file failed (exit code {outcome.code}): {outcome.error}")
    return git.run("hash-object", "-w", "--stdin", stdin=outcome.out).strip()


def _folders(path: bytes) -> list[bytes]:
    parts = path.split(b"/")
    return [b"/".join(parts[:length]) for length in range(1, len(parts))]


def _tree(git: Git, current: str, wanted: dict[bytes, Entry]) -> str:
    with tempfile.TemporaryDirectory(prefix="tightloop-undo-") as name:
        git = with_index(git, Path(name))
        git.run("read-tree", current)
        gone = [path for path, entry in wanted.items() if entry.mode == ABSENT]
        put = [(path, entry) for path, entry in wanted.items() if entry.mode != ABSENT]
        # Removals first: a folder may have to go before a file takes its name.
        # Mode 0 removes a path (git-update-index(1)); the id is as long as the repository's hashes.
        lines = b"".join(b"0 " + b"0" * len(current) + b"\t" + path + b"\0" for path in gone)
        lines += b"".join(entry.mode + b" " + entry.blob + b"\t" + path + b"\0" for path, entry in put)
        git.run("update-index", "-z", "--index-info", stdin=lines)
        return git.run("write-tree").decode().strip()
