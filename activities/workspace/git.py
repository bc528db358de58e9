"""The working trees of this host, as git repositories."""

import contextlib
import shutil
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

from activities.scope import EpisodeScope
from activities.workspace.git_command import COMMAND_TIMEOUT
from activities.workspace.ownership import (
    LOCK_WAIT,
    Claims,
    OwnedProcesses,
    tree_key,
    tree_lock,
    write_atomically,
)
from activities.workspace.preflight import check_workspace, notes_on
from activities.workspace.snapshot_repository import ADD_TIMEOUT, SnapshotRepository
from activities.workspace.working_tree import GitWorkingTree
from tightloop.errors import WorkspaceError


class GitWorkspaces:
    """Prepares working trees for episodes and hands them out, one holder at a time.

    State of ours lies in `<workspace>/.tightloop`; of the user's repository only `info/exclude` (one line),
    `refs/tightloop/` and, for an episode with a worktree of its own, the list of worktrees are changed.
    """

    def __init__(
        self,
        *,
        lock_wait: timedelta = LOCK_WAIT,
        timeout: timedelta = COMMAND_TIMEOUT,
        add_timeout: timedelta = ADD_TIMEOUT,
    ) -> None:
        """Set how long to wait for another holder, for a git command, and for reading or writing a whole tree."""
        self._lock_wait = lock_wait
        self._timeout = timeout
        self._add_timeout = add_timeout

    def prepare(self, scope: EpisodeScope, *, take_over: Callable[[str], bool]) -> tuple[str, ...]:
        """Check the workspace, claim it for the episode and make its worktree if it wants one.

        Idempotent for the same episode. One within a plan works under the claim of that plan, in its tree.

        Args:
            scope: the episode.
            take_over: asked with the id of another episode that holds the claim; True if that one has ended.

        Returns:
            Things that a person should know, as sentences.

        Raises:
            NotARepositoryError: the workspace is not the top of a git working tree.
            WorkspaceBusyError: another open episode works in the same tree.
            WorkspaceError: the workspace cannot be used otherwise.
        """
        workspace = Path(scope.workspace)
        check_workspace(workspace, needs_commit=scope.worktree, timeout=self._timeout)
        repository = SnapshotRepository(scope.state_folder, workspace, timeout=self._timeout)
        try:
            repository.exclude_state()
            repository.make()
        except (PermissionError, FileExistsError, NotADirectoryError) as error:
            raise WorkspaceError(
                f"cannot write {error.filename}: {error.strerror}. Give the worker's user the right to"
            ) from error
        self._claims(scope).take(scope.root, scope.holder, take_over)
        notes = notes_on(repository, worktree=scope.worktree)
        if scope.worktree and not scope.within:
            with self._lock(scope) as lock:
                # A git that outlives a killed worker removes what it has made: it is waited for, too.
                holding = SnapshotRepository(scope.state_folder, workspace, timeout=self._timeout, lock=lock)
                self._make_worktree(holding, scope.root)
        return notes

    def release(self, scope: EpisodeScope) -> None:
        """Give the claim back. A worktree stays, because it holds the result. Idempotent.

        One within a plan has none of its own: the plan's is left.
        """
        if not scope.within:
            self._claims(scope).release(scope.root, scope.episode_id)

    @contextlib.contextmanager
    def hold(self, scope: EpisodeScope) -> Iterator[GitWorkingTree]:
        """Hold the tree exclusively; ends what a dead holder left running.

        Git processes inherit the lock, so one that outlives a killed holder is waited for, too.

        Raises:
            WorkspaceLockedError: another attempt kept holding it for the whole waiting time. Retryable.
            NotARepositoryError: the workspace is no git working tree any more.
        """
        with self._lock(scope) as lock:
            processes = OwnedProcesses(scope.state_folder / "locks" / f"{tree_key(scope.root)}.processes.json")
            processes.end_all()
            repository = SnapshotRepository(scope.state_folder, scope.root, timeout=self._timeout, lock=lock)
            repository.make()
            repository.remove_stale_lock()
            yield GitWorkingTree(repository, scope.episode_id, processes, add_timeout=self._add_timeout)

    def _lock(self, scope: EpisodeScope) -> contextlib.AbstractContextManager[int]:
        return tree_lock(scope.state_folder, scope.root, wait=self._lock_wait)

    def _claims(self, scope: EpisodeScope) -> Claims:
        return Claims(scope.state_folder / "claims", wait=self._lock_wait)

    def _make_worktree(self, repository: SnapshotRepository, root: Path) -> None:
        """Add a git worktree; one that an interrupted attempt left half written is made anew."""
        finished = root.with_name(root.name + ".ready")
        if finished.exists() and root.exists():
            return
        if root.exists():
            shutil.rmtree(root)
        root.parent.mkdir(parents=True, exist_ok=True)
        # Twice: the worktree may be known but missing, and locked by the `git worktree add` that was killed.
        repository.as_user.run(
            "worktree", "add", "--force", "--force", "--detach", str(root), "HEAD", timeout=self._add_timeout
        )
        write_atomically(finished, b"")
