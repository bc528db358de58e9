"""A held working tree: snapshot, restore and references, without touching the user's index or branch."""

import os
import stat
from pathlib import Path

from activities.workspace.git_command import GitTimeoutError, join_z, shown_paths, split_z
from activities.workspace.ownership import OwnedProcesses
from activities.workspace.snapshot_repository import ADD_TIMEOUT, SnapshotRepository
from tightloop.errors import GitError, WorkspaceError

RESTORE_ROUNDS = 3
NESTING_LIMIT = 100
SHOWN_PATHS = 10
IGNORE_FILE = b".gitignore"
# No user has a file of this name.
SEED = b".tightloop-seed"


class GitWorkingTree:
    """A working tree that the caller holds exclusively."""

    def __init__(self, repository: SnapshotRepository, episode: str, processes: OwnedProcesses) -> None:
        """Work on the tree of `repository` for an episode; the caller holds its lock."""
        self._repository = repository
        self._private = repository.private
        self._episode = episode
        self._processes = processes

    @property
    def root(self) -> Path:
        """Top folder of the tree."""
        return self._repository.root

    def snapshot(self) -> str:
        """Return the id of the tree as it is on disk, byte for byte. Idempotent.

        Covered is what is not ignored, and what the user's repository tracks although it is ignored. Nested
        repositories and submodules are covered as plain files, without their `.git`.

        Raises:
            GitError: a file cannot be read, or git ran out of time. Retryable.
        """
        try:
            return self._write_tree()
        except GitTimeoutError:
            raise
        except GitError:
            # A damaged index, or one that names objects which a `git gc` removed, is only a cache: it is built again.
            self._repository.index.unlink(missing_ok=True)
            return self._write_tree()

    def restore(self, tree: str) -> None:
        """Make the files on disk equal `tree`: bytes, executable bit, link targets. Idempotent.

        Files that are ignored by the rules *of that tree* and not part of it are left alone. What had to go and was in
        no snapshot before is kept under `refs/tightloop/<episode>/drift-<tree>`.

        Raises:
            WorkspaceError: the repository does not hold the tree.
            GitError: the files still differ after three rounds. Retryable.
        """
        self._go_to(tree, self.snapshot())

    def ensure(self, expected: str) -> str | None:
        """Make sure that `expected` is on disk; see the port."""
        found = self.snapshot()
        if found == expected:
            return None
        self._keep_drift(found)
        self._go_to(expected, found)
        return found

    def keep(self, name: str, tree: str) -> None:
        """Keep a tree alive as `refs/tightloop/<episode>/<name>` in the user's repository. Idempotent."""
        self._repository.keep(f"refs/tightloop/{self._episode}/{name}", tree)

    def own_process(self, pid: int) -> None:
        """Note a child process, so that the next holder ends it, its descendants and its session."""
        self._processes.note(pid)

    def _write_tree(self) -> str:
        covered = self._cover_nested_repositories()
        # The private index remembers sizes and times: 2 000 files took 0.5 s at first, and 8 ms unchanged.
        self._private.run("add", "-A", timeout=ADD_TIMEOUT)
        user = self._repository.user
        outcome = user.attempt("ls-files", "-z", "--recurse-submodules")
        # Recursion fails on a damaged submodule; its files are then covered only where they are not ignored.
        tracked = split_z(outcome.out if outcome.code == 0 else user.run("ls-files", "-z"))
        forced = sorted(path for path in set(tracked) - covered if self._is_file(path))
        if forced:
            arguments = ("update-index", "--add", "--replace", "-z", "--stdin")
            self._private.run(*arguments, stdin=join_z(forced), timeout=ADD_TIMEOUT)
        return self._private.run("write-tree").decode().strip()

    def _cover_nested_repositories(self) -> set[bytes]:
        """Return the paths that `git add` will cover, after making it enter nested repositories.

        Git enters a nested repository instead of recording a link to its commit if the index has an entry below it
        (treat_directory in git's dir.c). The entry names a file that does not exist, so `git add` drops it again.
        """
        for _ in range(NESTING_LIMIT):
            listed = self._private.run("ls-files", "-t", "-c", "-o", "-z", "--exclude-standard")
            paths = {entry[2:] for entry in split_z(listed)}
            nested = [path for path in paths if path.endswith(b"/")]
            if not nested:
                return paths
            empty = self._private.run("hash-object", "-w", "--stdin").strip()
            seeds = join_z([b"100644 " + empty + b"\t" + path + SEED for path in nested])
            self._private.run("update-index", "--add", "--replace", "-z", "--index-info", stdin=seeds)
        raise GitError(f"{self.root} has repositories nested more than {NESTING_LIMIT} deep. Move them out of it")

    def _is_file(self, path: bytes) -> bool:
        """Return whether the path is a file or link of the tree itself, not one behind a link."""
        relative = Path(os.fsdecode(path))
        if any((self.root / folder).is_symlink() for folder in relative.parents[:-1]):
            return False
        try:
            mode = (self.root / relative).lstat().st_mode
        except OSError:
            return False
        return stat.S_ISREG(mode) or stat.S_ISLNK(mode)

    def _go_to(self, tree: str, found: str) -> None:
        """Restore `tree` where `found` is on disk and in the private index."""
        if found != tree and self._private.attempt("cat-file", "-e", f"{tree}^{{tree}}").code != 0:
            raise WorkspaceError(
                f"the repository of {self.root} does not hold the tree {tree}. "
                "Was it cloned again, or refs/tightloop removed? Choose another checkpoint"
            )
        for round_ in range(RESTORE_ROUNDS):
            if found == tree:
                return
            if round_ > 0:
                # Files that were ignored before and are not any more; nobody has a copy of them.
                self._keep_drift(found)
            self._adopt_ignore_rules(tree, found)
            # Git itself: the forced checkout of libgit2 1.9 writes through a link that took the place of a file.
            self._private.run("read-tree", "-u", "--reset", tree, timeout=ADD_TIMEOUT)
            found = self.snapshot()
        if found != tree:
            shown = shown_paths(self._changed(found, tree), SHOWN_PATHS)
            raise GitError(f"{self.root} could not be restored to {tree}: {shown} differ")

    def _adopt_ignore_rules(self, tree: str, found: str) -> None:
        """Bring the ignore rules of `tree` to disk first, and spare the files that they ignore from removal.

        Otherwise a file that was never covered (such as `.env`) would be removed only because the rule that ignores it
        was gone for a while.
        """
        rules = [path for path in self._changed(found, tree) if path.split(b"/")[-1] == IGNORE_FILE]
        if not rules:
            return
        arguments = ("--staged", "--worktree", "--pathspec-from-file=-", "--pathspec-file-nul")
        self._private.run("restore", f"--source={tree}", *arguments, stdin=join_z(rules))
        ignored = set(split_z(self._private.run("ls-files", "-c", "-i", "--exclude-standard", "-z")))
        wanted = set(split_z(self._private.run("ls-tree", "-r", "-z", "--name-only", tree)))
        spared = sorted(ignored - wanted)
        if spared:
            self._private.run("update-index", "--force-remove", "-z", "--stdin", stdin=join_z(spared))

    def _keep_drift(self, tree: str) -> None:
        self.keep(f"drift-{tree[:12]}", tree)

    def _changed(self, found: str, tree: str) -> list[bytes]:
        return split_z(self._private.run("diff-tree", "-r", "-z", "--name-only", "--no-renames", found, tree))
