"""This host's working trees, as git repositories."""

import contextlib
import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path

from activities.workspace.folders import root_of, state_folder_of, store_folder_of
from activities.workspace.git_command import (
    COMMAND_TIMEOUT,
    Git,
    filtered_paths,
    format_paths,
    split_z,
    user_git,
)
from activities.workspace.ownership import (
    LOCK_WAIT,
    OwnedProcesses,
    WorkspaceLocks,
    tree_key,
    tree_lock,
    write_atomically,
)
from activities.workspace.port import ResultPart
from activities.workspace.result import commit_result
from activities.workspace.scope import EpisodeScope
from activities.workspace.store.entry import EMPTY_TREE, Entry, TreeChange
from activities.workspace.store.objects import TreeStore, translated_errors
from activities.workspace.store.walk import (
    REMEMBERED,
    RULES_FILE,
    Coverage,
    Folder,
    StatCache,
    States,
    Walk,
    WalkTimeoutError,
)
from activities.workspace.store.writer import TreeWriter, describe_drift, undone_changes
from activities.workspace.user_repository import IndexMemory, UserRepository, is_trusted
from activities.workspace.worktree import make_worktree
from tightloop.errors import GitError, NotARepositoryError, WorkspaceError
from tightloop.host import open_state_home, private_folder, state_home
from tightloop.host.worktree import read_worktree
from tightloop.safety.drift import Drift, DriftAnswer, DriftCause, DriftError
from tightloop.settings import WorkspaceSettings
from tightloop.value import shorten

READ_TIMEOUT = timedelta(minutes=10)
# The first round may change `.gitignore` files, and with them the files that the next snapshot covers.
RESTORE_ROUNDS = 3
SHOWN_PATHS = 10
DESCRIPTION_CHARACTERS = 600
SETTLED_ROWS = 1_000
"""Number of files with new times but unchanged content, above which the cache is rewritten."""


class CheckedTree:
    """A working tree that can be checked out to another folder.

    A tree is identified by the git tree id of all files that are not ignored.
    """

    def __init__(self, root: Path, store: TreeStore) -> None:
        self.root = root
        self._store = store

    def entries(self, tree: str) -> dict[bytes, Entry]:
        """Return the mode and blob id of all files and symlinks in a tree, by path.

        Paths are bytes as on disk.

        Raises:
            GitError: the store does not contain the tree.
        """
        return self._store.files(tree)

    def content(self, blob: str) -> bytes:
        """Return the content of a file, or the target of a symlink, by blob id.

        Raises:
            GitError: the store does not contain the blob.
        """
        return self._store.read(blob)

    def pieces(self, blob: str) -> Iterator[bytes]:
        """Yield the content of a file in chunks.

        Decompressing a large file all at once would block the process.

        Raises:
            GitError: the store does not contain the blob.
        """
        return self._store.pieces(blob)

    def size(self, blob: str) -> int:
        """Return the size of a file in bytes without reading the file.

        Raises:
            GitError: the store does not contain the blob.
        """
        return self._store.size(blob)

    def own_process(self, pid: int) -> None:
        """Record a child process to kill later.

        An unlocked tree has no record, because there is no next holder to kill the process.
        """
        del pid


class WorkingTree(CheckedTree):
    """A working tree that the caller has locked exclusively."""

    def __init__(
        self,
        root: Path,
        episode: str,
        *,
        store: TreeStore,
        cache: StatCache,
        coverage: Callable[[], Coverage],
        processes: OwnedProcesses,
        asks: bool = True,
        is_ours: bool = False,
    ) -> None:
        """Use the working tree at `root` for an episode. The caller must hold the lock of the tree.

        If `asks` is set, a person decides about files that someone else changed. Otherwise, the changes are
        undone. If `is_ours` is set, differences are treated as leftovers of interrupted work.
        """
        super().__init__(root, store)
        self._episode = episode
        self._cache = cache
        self._coverage = coverage
        self._processes = processes
        self._known: Folder | None = None
        self._asks, self._is_ours = asks, is_ours

    @property
    def processes_ended(self) -> int:
        """How many of a dead holder's processes were killed when the tree was locked."""
        return self._processes.ended

    def snapshot(self) -> str:
        """Take a snapshot of the files on disk, byte for byte, and return its tree id. Idempotent.

        The snapshot covers files that are not ignored, files that were covered before they were ignored, and files
        that the user's repository tracks even though they are ignored. Nested repositories and submodules are covered
        as plain files, without their `.git`.

        Raises:
            GitError: a file cannot be read, or the snapshot took too long. Retryable.
        """
        previous = self._cache.load() if self._known is None else self._known
        try:
            return self._read(previous)
        except WalkTimeoutError:
            raise
        except GitError:
            if previous is None:
                raise
            # The cache may refer to objects that were deleted: read everything again.
            self._cache.forget()
            return self._read(None)

    def restore(self, tree: str) -> None:
        """Replace the files on disk with `tree`, including their content, mode and symlink targets. Idempotent.

        Files matched by the ignore rules *of that tree* are kept, unless they are part of the tree. Deleted files that
        are not in any earlier snapshot are saved under `refs/tightloop/<episode>/drift-<tree>`.

        Raises:
            WorkspaceError: the tree is not in the store.
            GitError: the files still differ after three rounds. Retryable.
        """
        self._go_to(tree, self.snapshot())

    def ensure(self, expected: str, cause: DriftCause = DriftCause.OUTSIDE, *, step: str = "") -> Drift | None:
        """Ensure that `expected` is on disk, and undo all other changes.

        `step` is the step whose changes are undone.

        Returns:
            None if `expected` was already on disk. Otherwise, the changes that were undone. They are saved
            under a ref.
        """
        actual = self.snapshot()
        if actual == expected:
            return None
        return self._undo(expected, actual, self._changes(expected, actual), cause, step=step)

    def expect(self, expected: str) -> Drift | None:
        """Ensure that `expected` is on disk, but ask a person before undoing someone else's changes.

        Tool caches and leftovers of our own interrupted attempt are undone, as in `ensure`.

        Returns:
            None if nothing but caches differed. Otherwise, the changes that were undone. They are saved under a ref.

        Raises:
            DriftError: someone else changed files, and the settings require asking a person. Nothing was
                undone. Not retryable.
        """
        actual = self.snapshot()
        if actual == expected:
            return None
        changes = self._changes(expected, actual)
        cause = DriftCause.INTERRUPTED if self._is_ours else DriftCause.OUTSIDE
        drift = describe_drift(self.root, expected, actual, changes, cause)
        # The count leaves out tool caches, which nobody wants to be asked about.
        if drift.count and self._asks and not self._is_ours:
            self._keep_drift(actual)
            raise DriftError(drift)
        undone = self._undo(expected, actual, changes, cause)
        return undone if undone.count else None

    def settle(self, expected: str, answer: DriftAnswer) -> tuple[str, Drift | None]:
        """Carry out a person's decision about differences from `expected`. Later changes are kept.

        Returns:
            The resulting tree, and the changes that were undone. They are saved under a ref.
        """
        actual = self.snapshot()
        asked_paths = {change.path for change in self._changes(expected, answer.tree)}
        undone, replacements = undone_changes(
            self._changes(expected, actual), self._store.files(actual), asked_paths, answer
        )
        if not undone:
            return actual, None
        tree = self._store.replace_paths(actual, replacements)
        return tree, self._undo(tree, actual, undone, DriftCause.OUTSIDE)

    def apply(self, before: str, after: str) -> tuple[bytes, ...]:
        """Apply the changes between two trees to the files on disk, and return the changed paths.

        Raises:
            WorkspaceError: a file differs from both trees. Nothing was written.
        """
        actual = self.snapshot()
        present, changes = self._store.files(actual), self._store.changes(before, after)
        open_changes = [change for change in changes if present.get(change.path) != change.after]
        if others := [change.path for change in open_changes if present.get(change.path) != change.before]:
            raise WorkspaceError(
                f"{format_paths(others, SHOWN_PATHS)} changed in {self.root} since the run started, so nothing was "
                "written. Commit the result on a branch and merge the branch: tightloop result ID --branch NAME"
            )
        self.restore(self._store.replace_paths(actual, {change.path: change.after for change in open_changes}))
        return tuple(change.path for change in open_changes)

    def keep(self, name: str, tree: str) -> None:
        """Keep a tree as `refs/tightloop/<episode>/<name>` in the project's own store. Idempotent."""
        self._store.keep(f"refs/tightloop/{self._episode}/{name}", tree)

    def checkout(self, tree: str, folder: Path) -> None:
        """Write all files of a tree, including executable bits and symlinks, to an empty folder.

        This only creates files and never follows symlinks, so the folder may be anywhere. Symlinks may lead
        out of the folder, and readers of the folder must handle this.

        Raises:
            WorkspaceError: the folder is not empty.
            GitError: the tree is not in the store, or a file cannot be written. Retryable.
        """
        if any(folder.iterdir()):
            raise WorkspaceError(f"{folder} is not empty. A tree can only be checked out into an empty folder")
        with translated_errors(folder):
            writer = TreeWriter(self._store, str(folder))
            try:
                writer.apply(self._store.changes(EMPTY_TREE, tree))
            finally:
                writer.close()

    def own_process(self, pid: int) -> None:
        """Record a child process. The next holder kills the process, its descendants and its session."""
        self._processes.note(pid)

    def _read(self, previous: Folder | None) -> str:
        with self._store.adding() as sink:
            walk = Walk(self._coverage(), sink, seconds=READ_TIMEOUT.total_seconds())
            folder = walk.run(str(self.root), previous)
        tree = folder.tree.hex()
        # An unchanged tree is not written again, so the loss of its object would go unnoticed.
        if not self._store.holds(tree):
            raise GitError(f"the snapshot {tree} of {self.root} is missing from the store")
        if previous is None or previous.tree != folder.tree or walk.changed_rows > SETTLED_ROWS:
            with translated_errors(self.root):
                self._cache.save(folder)
        elif walk.changed_rows:
            self._cache.remember(folder)
        self._known = folder
        return tree

    def _go_to(self, tree: str, actual: str) -> None:
        """Restore `tree` on disk. `actual` is the tree that was last read from disk."""
        if actual != tree and not self._store.holds(tree):
            raise WorkspaceError(
                f"the store {self._store.folder} does not contain the tree {tree}. Check that this worker runs on "
                "the episode's host and uses that host's state folder, or choose another checkpoint"
            )
        for round_ in range(RESTORE_ROUNDS):
            if actual == tree:
                return
            if round_ > 0:
                # Files that are no longer ignored; there is no other copy of them.
                self._keep_drift(actual)
            with translated_errors(self.root):
                self._write(tree, actual)
            actual = self.snapshot()
        if actual != tree:
            paths = format_paths([change.path for change in self._store.changes(actual, tree)], SHOWN_PATHS)
            raise GitError(f"could not restore {self.root} to {tree}: {paths} differ")

    def _write(self, tree: str, actual: str) -> None:
        changes = self._store.changes(actual, tree)
        assert self._known is not None
        writer = TreeWriter(self._store, str(self.root))
        try:
            # The tree's ignore rules first: an uncovered file (such as `.env`) must not be deleted only because the
            # rule that ignores it was missing for a while.
            rules = [change for change in changes if change.path.rpartition(b"/")[2] == os.fsencode(RULES_FILE)]
            spared: set[bytes] = set()
            if rules:
                writer.apply(rules)
                rules_only = replace(self._coverage(), tracked=frozenset(), tracked_folders=frozenset())
                listing = Walk(rules_only, None, seconds=READ_TIMEOUT.total_seconds()).run(str(self.root), None)
                covered = set(map(os.fsencode, listing.paths()))
                spared = {change.path for change in changes if change.after is None} - covered
            writer.apply(change for change in changes if change.path not in spared and change not in rules)
        finally:
            writer.close()
            # Also after a failure: everything written is read again.
            for change in changes:
                self._known.put(change.path, change.after)
            self._cache.save(self._known)

    def _changes(self, expected: str, actual: str) -> list[TreeChange]:
        # The expected tree may have been freed; the drift is then reported without its paths.
        return self._store.changes(expected, actual) if self._store.holds(expected) else []

    def _undo(
        self, expected: str, actual: str, changes: Sequence[TreeChange], cause: DriftCause, *, step: str = ""
    ) -> Drift:
        """Save the current files, restore `expected` and report the drift.

        The report contains the command that restores the saved files.
        """
        drift = describe_drift(self.root, expected, actual, changes, cause, store=self._store.folder, step=step)
        self._keep_drift(actual)
        self._go_to(expected, actual)
        return drift

    def _keep_drift(self, tree: str) -> None:
        self.keep(f"drift-{tree[:12]}", tree)


OLDEST_GIT = (2, 30)
BIG_FILE_BYTES = 50_000_000
SHOWN = 3


def check_workspace(workspace: Path, *, needs_commit: bool, timeout: timedelta = COMMAND_TIMEOUT) -> None:
    """Check that `workspace` is the top of a git working tree.

    Raises:
        NotARepositoryError: the workspace is not the top of a git working tree.
        WorkspaceError: the workspace cannot be used for another reason.
    """
    if not workspace.is_absolute():
        raise WorkspaceError(f"the workspace '{workspace}' is not an absolute path. Specify the full path")
    if not workspace.exists():
        raise WorkspaceError(
            f"the workspace {workspace} does not exist on this host. Check the path and the worker's host"
        )
    if not workspace.is_dir():
        raise WorkspaceError(f"the workspace {workspace} is not a folder. Specify the root of a git working tree")
    # Not in the workspace, whose configuration must not be read before it is known to be trusted.
    answer = Git(Path("/"), timeout=timeout).run("version").decode("utf-8", "replace").strip()
    match = re.search(r"(\d+)\.(\d+)", answer)
    if match is None or (int(match[1]), int(match[2])) < OLDEST_GIT:
        raise WorkspaceError(f"'{answer}' is too old. Install git 2.30 or newer")
    if not os.path.lexists(workspace / ".git"):
        raise _refusal(workspace)
    repository = UserRepository(workspace)
    if not is_trusted(repository.folder, workspace):
        raise WorkspaceError(
            f"{workspace} belongs to another user, so git does not trust it. To trust it, run: git config "
            f"--global --add safe.directory {workspace}"
        )
    if not _is_git_folder(repository.common):
        raise NotARepositoryError(f"{workspace} is not a git repository: {repository.common} is incomplete")
    if needs_commit:
        with user_git(repository, timeout=timeout) as git:
            has_commit = git.attempt("rev-parse", "--verify", "-q", "HEAD^{commit}").code == 0
        if not has_commit:
            raise WorkspaceError(
                f"{workspace} needs a commit before a separate worktree can be created: git -C {workspace} "
                "commit --allow-empty -m start (or start without a worktree)"
            )


def _refusal(workspace: Path) -> NotARepositoryError:
    """Create the error for a folder without `.git`."""
    real = workspace.resolve()
    for folder in (real, *real.parents):
        if folder.name == ".git" and _is_git_folder(folder):
            return NotARepositoryError(f"{workspace} is inside a .git folder. Specify the root of the working tree")
        if _is_git_folder(folder):
            return NotARepositoryError(
                f"{workspace} is a bare git repository. Specify one of its working trees (git -C {workspace} "
                "worktree add <path>)"
            )
        if os.path.lexists(folder / ".git"):
            inside = real.relative_to(folder).as_posix()
            return NotARepositoryError(
                f"{workspace} is inside the git working tree {folder}. Specify the root of the working tree as the "
                f'workspace. To work in the subfolder only, add "folder": "{inside}" to the episode or project plan. '
                f"Alternatively, create a separate repository: git init {workspace}"
            )
    return NotARepositoryError(f"{workspace} is not a git repository. Create one: git init {workspace}")


def _is_git_folder(folder: Path) -> bool:
    return (folder / "HEAD").is_file() and (folder / "objects").is_dir() and (folder / "refs").is_dir()


def notes_on(
    repository: UserRepository, coverage: Coverage, *, worktree: bool, timeout: timedelta = COMMAND_TIMEOUT
) -> tuple[str, ...]:
    """Describe the files that checkpoints cover, in sentences for the operator."""
    ignored: list[str] = []
    walk = Walk(coverage, None, seconds=READ_TIMEOUT.total_seconds(), ignored=ignored.append)
    files = list(walk.run(str(repository.root), None).paths())
    big = []
    for path in files:
        with contextlib.suppress(OSError):
            if (repository.root / path).lstat().st_size > BIG_FILE_BYTES:
                big.append(path)
    changed: list[bytes] = []
    if worktree:
        with user_git(repository, timeout=timeout) as git:
            status = ("status", "--porcelain", "-z", "--no-renames", "--ignore-submodules=all")
            changed = [entry[3:] for entry in split_z(git.run(*status))]
            # Files with a filter such as git-lfs always look changed, because the filter does not run.
            changed = sorted(set(changed) - set(filtered_paths(git, changed)))
    size = f"{BIG_FILE_BYTES // 1_000_000} MB"
    notes: dict[str, list[bytes]] = {
        # Of a worktree, `make_worktree` says more.
        "ignored files and empty folders are not part of checkpoints": [] if worktree else _encode_paths(ignored),
        f"files over {size} slow down checkpoints and are stored again after every change": _encode_paths(big),
        "checkpoints contain submodules and nested repositories as regular files, without their .git": _encode_paths(
            walk.nested
        ),
        "the worktree starts from the last commit and does not contain uncommitted changes": changed,
    }
    return tuple(f"{sentence}: {format_paths(paths, SHOWN)}" for sentence, paths in notes.items() if paths)


def _encode_paths(paths: list[str]) -> list[bytes]:
    return sorted(map(os.fsencode, paths))


@dataclass(frozen=True, kw_only=True)
class Workspaces:
    """Prepares working trees for episodes, and locks each tree for one holder at a time.

    Snapshots are stored in the state home. The user's repository is changed in only two ways: a worktree is listed in
    it for as long as the worktree exists, and `deliver` creates a branch.
    """

    lock_wait: timedelta = LOCK_WAIT
    """Maximum time to wait for another holder."""
    timeout: timedelta = COMMAND_TIMEOUT
    """Timeout for git commands that neither read nor write a whole tree."""
    settings: WorkspaceSettings = field(default_factory=WorkspaceSettings)
    states: States = field(default_factory=lambda: States(REMEMBERED), repr=False, compare=False)
    indexes: IndexMemory = field(default_factory=IndexMemory, repr=False, compare=False)

    def prepare(self, scope: EpisodeScope, *, take_over: Callable[[str], bool]) -> tuple[str, ...]:
        """Check the workspace, claim it for an episode and create a worktree if requested.

        A nested episode works under the plan's claim, in the plan's tree. Idempotent for the same episode.

        Args:
            scope: the episode.
            take_over: called with the id of another episode that holds the claim. Returns True if that episode has
                ended.

        Returns:
            Notes for the operator as sentences, for example that ignored files are not covered.

        Raises:
            NotARepositoryError: the workspace is not the top of a git working tree.
            WorkspaceBusyError: another open episode works in the same tree.
            WorkspaceError: the workspace cannot be used for another reason.
        """
        workspace = Path(scope.workspace)
        check_workspace(workspace, needs_commit=scope.worktree, timeout=self.timeout)
        home = state_home()
        # Agents could write tightloop's trusted state, and snapshots would include it.
        if home.resolve().is_relative_to(workspace.resolve()):
            raise WorkspaceError(
                f"the state home {home} is inside the workspace {workspace}. Start the worker with a state "
                "home outside the workspace: export TIGHTLOOP_HOME=..."
            )
        open_state_home()
        repository = UserRepository(workspace)
        try:
            TreeStore(store_folder_of(scope)).make()
            # For a person who looks for a workspace's state; no code reads it.
            write_atomically(state_folder_of(scope) / "workspace", os.fsencode(f"{workspace.resolve()}\n"))
        except (PermissionError, FileExistsError, NotADirectoryError) as error:
            raise WorkspaceError(
                f"cannot write {error.filename}: {error.strerror}. Give the worker's user write access"
            ) from error
        # Before the worktree is created, so that two episodes never create the same one.
        self._claims(scope).take(root_of(scope), scope.holder, take_over)
        notes = notes_on(repository, repository.coverage(self.indexes), worktree=scope.worktree, timeout=self.timeout)
        if scope.worktree and not scope.within:
            root = root_of(scope)
            with tree_lock(state_folder_of(scope), root, wait=self.lock_wait) as lock:
                worktree = read_worktree(root) if root.exists() else None
                if worktree is None:
                    # An incomplete worktree of an interrupted attempt is created again.
                    if root.exists():
                        shutil.rmtree(root)
                    private_folder(root.parent)
                    # A git that outlives a killed worker still holds the lock, and cleans up: wait for it.
                    coverage = repository.coverage(self.indexes)
                    worktree = make_worktree(
                        repository, root, coverage, self.settings, timeout=READ_TIMEOUT, inherit=(lock,)
                    )
            return (*worktree.notes, *notes)
        return notes

    def release(self, scope: EpisodeScope) -> None:
        """Release an episode's claim. Idempotent.

        Keeps the worktree, which contains the result, and for a nested episode also the plan's claim.
        """
        if not scope.within:
            self._claims(scope).release(root_of(scope), scope.episode_id)

    @contextlib.contextmanager
    def hold(self, scope: EpisodeScope) -> Iterator[WorkingTree]:
        """Lock the working tree exclusively, and kill leftover processes of a dead holder.

        Git processes inherit the lock, so the wait includes processes that outlive a killed holder.

        Raises:
            NotARepositoryError: the workspace is no longer a git working tree.
            WorkspaceLockedError: another attempt kept the lock for the entire wait. Retryable.
        """
        root, state, trees = root_of(scope), state_folder_of(scope), store_folder_of(scope)
        locks, key = state / "locks", tree_key(root)
        with tree_lock(state, root, wait=self.lock_wait):
            processes = OwnedProcesses(locks / f"{key}.processes.json")
            # With the lock held, any process still running belongs to a dead holder.
            processes.end_all()
            store = TreeStore(trees)
            store.make()
            repository = UserRepository(root)
            # Survives a killed worker: the next holder knows that deviations are leftovers, not edits of a person.
            marker = locks / f"{key}.held"
            is_ours = scope.put_back or marker.exists()
            marker.touch(mode=0o600)
            try:
                yield WorkingTree(
                    root,
                    scope.episode_id,
                    store=store,
                    cache=StatCache(trees / "states" / key, self.states),
                    coverage=lambda: repository.coverage(self.indexes),
                    processes=processes,
                    asks=self.settings.drift == "ask",
                    is_ours=is_ours,
                )
            # Asking a person is no failure: nothing was written, and their edits must not count as ours next time.
            except DriftError:
                marker.unlink()
                raise
            # Left by a holder that died or failed, possibly with half of its changes written.
            marker.unlink()

    def deliver(self, scope: EpisodeScope, parts: Sequence[ResultPart]) -> str:
        """Commit a run's changes as in `commit_result`, and describe the result in sentences for the status.

        If the changes cannot be committed, the sentences give the reason. Idempotent.

        Raises:
            GitError: git failed. Retryable.
        """
        try:
            return commit_result(scope, parts).describe()
        except WorkspaceError as error:
            return shorten(f"the result was not committed. {error.message}", DESCRIPTION_CHARACTERS)

    def _claims(self, scope: EpisodeScope) -> WorkspaceLocks:
        return WorkspaceLocks(state_folder_of(scope) / "claims", wait=self.lock_wait)
