"""Comparison and merging of trees, and a search for protected files."""

import tempfile
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path

from activities.plan.files import CLOSED
from activities.plan.port import UndoResult
from activities.workspace.git_command import store_git
from activities.workspace.store.entry import EXECUTABLE, REGULAR, Entry, TreeChange, TreeMerge, folders_above
from activities.workspace.store.objects import TreeStore
from activities.workspace.store.walk import Walk
from activities.workspace.store.writer import merge_trees
from activities.workspace.user_repository import IndexMemory, UserRepository
from tightloop.errors import GitError
from tightloop.plan.document import Policy
from tightloop.plan.guard import enclosing_policies
from tightloop.safety.scope import fits

PATCH_BYTES = 2 * 1024 * 1024
PATCH_TIME = timedelta(seconds=30)
MERGE_CONFLICTS = 127
"""Highest exit code of `git merge-file` that counts conflicts. Higher codes mean errors, such as a binary file."""


class Trees:
    """Compares and combines trees without touching files. `store` is the scope's `store_folder`."""

    def changed_paths(self, store: Path, before: str, after: str) -> tuple[str, ...]:
        """Return the paths that differ between two trees, sorted. Bytes that are not valid UTF-8 are escaped."""
        changes = TreeStore(store).changes(before, after)
        return tuple(sorted(change.path.decode("utf-8", "backslashreplace") for change in changes))

    def patch(self, store: Path, before: str, after: str) -> bytes:
        """Return the unified diff of two trees, truncated to 2 MiB."""
        # External diff and textconv programs come from the user's configuration, and none of them may run here.
        options = ("-r", "-p", "--binary", "--no-renames", "--no-ext-diff", "--no-textconv")
        git = store_git(store)
        text, whole = git.head("diff-tree", *options, before, after, limit_bytes=PATCH_BYTES, timeout=PATCH_TIME)
        return text if whole else text + b"\n[tightloop: the rest is left out; compare the trees with git diff]\n"

    def merge(self, store: Path, base: str, ours: str, theirs: str, *, markers: bool = False) -> TreeMerge:
        """Merge the changes from `base` to `theirs` into `ours`.

        With `markers`, conflicts are written into the files, so the result always has a tree.

        Raises:
            GitError: a tree is not in the store. Retryable.
        """
        return merge_trees(TreeStore(store), base, ours, theirs, markers=markers)

    def undo(self, store: Path, before: str, after: str, current: str) -> UndoResult:
        """Remove the change from `before` to `after` from `current`.

        A path that has not changed since the step is restored to its previous content. If a later step
        changed other lines, only the step's lines are reverted. Any other change is a conflict, and no tree
        is written.

        Raises:
            GitError: git failed, or a tree is not in the store. Retryable.
        """
        trees = TreeStore(store)
        present = trees.files(current)
        replacements: dict[bytes, Entry | None] = {}
        conflicts: list[bytes] = []
        for change in trees.changes(before, after):
            now = present.get(change.path)
            if now == change.after:
                replacements[change.path] = change.before
            # Otherwise a later step has undone the change already, and nothing is left to do.
            elif now != change.before:
                entry = _inverse(trees, change, now)
                if entry is None:
                    conflicts.append(change.path)
                elif entry != now:
                    replacements[change.path] = entry
        # Each path alone may fit, and together they could still make one path both a file and a folder.
        conflicts += _collisions(present, replacements)
        if conflicts:
            paths = sorted({path.decode("utf-8", "backslashreplace") for path in conflicts})
            return UndoResult(conflicts=tuple(paths))
        return UndoResult(tree=trees.replace_paths(current, replacements), files=len(replacements))


def _collisions(present: Mapping[bytes, Entry], replacements: Mapping[bytes, Entry | None]) -> list[bytes]:
    """Return the paths that would have to be a file and a folder at the same time."""
    removed = {path for path, entry in replacements.items() if entry is None}
    left = (present.keys() | replacements.keys()) - removed
    added = [path for path in replacements if path not in removed and path not in present]
    below_file = [path for path in added if any(folder in left for folder in folders_above(path))]
    folders = {folder for path in left for folder in folders_above(path)} if added else set()
    return [*below_file, *(path for path in added if path in folders)]


def _inverse(store: TreeStore, change: TreeChange, now: Entry | None) -> Entry | None:
    """Return the entry that reverts a step's change to a file, or None if there is a conflict.

    This is used for files that have changed again since the step.
    """
    before, after = change.before, change.after
    if now is None or before is None or after is None:
        return None
    if any(side.mode not in (REGULAR, EXECUTABLE) for side in (now, after, before)):
        return None
    # The executable bit is merged like the text: it is reverted only if nothing but the step changed it.
    mode = before.mode if now.mode == after.mode else now.mode
    blob = _merge_blobs(store, now.id, after.id, before.id)
    return None if blob is None else Entry(mode, blob)


def _merge_blobs(store: TreeStore, now: str, after: str, before: str) -> str | None:
    if now == after:
        return before
    if before in (after, now):
        return now
    with tempfile.TemporaryDirectory(prefix="tightloop-undo-") as name:
        files = []
        for number, blob in enumerate((now, after, before)):
            file = Path(name, str(number))
            file.write_bytes(store.read(blob))
            files.append(str(file))
        # A three-way merge with the step's result as the base and its origin as the other side reverts the step.
        outcome = store_git(store.folder).attempt("merge-file", "--stdout", "--quiet", *files)
    # Binary files end with 255, like real errors; only the message tells them apart.
    if 0 < outcome.code <= MERGE_CONFLICTS or "binary" in outcome.error.lower():
        return None
    if outcome.code != 0:
        raise GitError(f"git merge-file failed (exit code {outcome.code}): {outcome.error}")
    with store.adding() as sink:
        return sink.add("blob", outcome.out).hex()


LISTING_TIME = timedelta(seconds=20)


def protect_lists(policy: Policy) -> tuple[tuple[str, ...], ...]:
    """Return the `protect` patterns of a policy and of its enclosing policies."""
    return tuple(enclosing.protect for enclosing in enclosing_policies(policy))


def find_protected_paths(root: Path, rules: Sequence[Sequence[str]], *, covered: bool = False) -> frozenset[Path]:
    """Find the existing ignored files and folders that no step may change.

    Ignored folders such as `node_modules` may be huge. They are only searched if they are protected.

    Args:
        root: the top folder of the tree.
        rules: the lists of patterns.
        covered: also return paths that are covered by snapshots.
    """
    names: list[str] = []
    coverage = UserRepository(root).coverage(IndexMemory())
    walk = Walk(coverage, None, seconds=LISTING_TIME.total_seconds(), ignored=names.append)
    listing = walk.run(str(root), None)
    names += listing.paths() if covered else ()
    # A folder matches only if a pattern covers any name inside it.
    paths = {name: f"{name}any" if name.endswith("/") else name for name in names if name.rstrip("/") not in CLOSED}
    places = (root / name for name, path in paths.items() if any(fits(rule, path, folded=True) for rule in rules))
    # The sandbox mounts these paths, and a mount on a link would land on its target.
    return frozenset(path for path in places if not path.is_symlink())
