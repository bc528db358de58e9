"""The working trees of this host, as git repositories."""

import contextlib
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from activities.workspace.git_command import COMMAND_TIMEOUT
from activities.workspace.ownership import LOCK_WAIT, Claims, OwnedProcesses, tree_key, tree_lock, write_atomically
from activities.workspace.preflight import check_workspace, notes_on, refuse_state_home_within
from activities.workspace.scope import EpisodeScope
from activities.workspace.snapshot_repository import ADD_TIMEOUT, SnapshotRepository
from activities.workspace.working_tree import GitWorkingTree
from tightloop.errors import WorkspaceError
from tightloop.host import open_state_home, private_folder


@dataclass(frozen=True, kw_only=True)
class GitWorkspaces:
    """Prepares working trees for episodes and hands them out, one holder at a time.

    Our state is in the state home; of the user's repository only `refs/tightloop/` and, for an episode with a worktree
    of its own, the list of worktrees are changed.
    """

    lock_wait: timedelta = LOCK_WAIT
    """How long to wait for another holder."""
    timeout: timedelta = COMMAND_TIMEOUT
    """Of a git command that neither reads nor writes a whole tree."""

    def prepare(self, scope: EpisodeScope, *, take_over: Callable[[str], bool]) -> tuple[str, ...]:
        """Check the workspace, claim it and make the worktree; see the port.

        An episode within a plan works under the claim of that plan, in its tree.
        """
        workspace = Path(scope.workspace)
        check_workspace(workspace, needs_commit=scope.worktree, timeout=self.timeout)
        refuse_state_home_within(workspace)
        open_state_home()
        repository = SnapshotRepository(scope.state_folder, workspace, timeout=self.timeout)
        try:
            repository.make()
        except (PermissionError, FileExistsError, NotADirectoryError) as error:
            raise WorkspaceError(
                f"cannot write {error.filename}: {error.strerror}. Give the worker's user write access"
            ) from error
        # Before the worktree is made, so that two episodes never make the same one.
        self._claims(scope).take(scope.root, scope.holder, take_over)
        notes = notes_on(repository, worktree=scope.worktree)
        if scope.worktree and not scope.within:
            with self._lock(scope) as lock:
                # A git that outlives a killed worker removes what it has made: it is waited for, too.
                holding = SnapshotRepository(scope.state_folder, workspace, timeout=self.timeout, lock=lock)
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
        """Hold the tree exclusively; see the port.

        Git processes inherit the lock, so one that outlives a killed holder is waited for, too.

        Raises:
            NotARepositoryError: the workspace is no longer a git working tree.
        """
        with self._lock(scope) as lock:
            processes = OwnedProcesses(scope.state_folder / "locks" / f"{tree_key(scope.root)}.processes.json")
            # Only now: the lock is ours, so what still runs belongs to a holder that is dead.
            processes.end_all()
            repository = SnapshotRepository(scope.state_folder, scope.root, timeout=self.timeout, lock=lock)
            repository.make()
            repository.remove_stale_lock()
            yield GitWorkingTree(repository, scope.episode_id, processes)

    def _lock(self, scope: EpisodeScope) -> contextlib.AbstractContextManager[int]:
        return tree_lock(scope.state_folder, scope.root, wait=self.lock_wait)

    def _claims(self, scope: EpisodeScope) -> Claims:
        return Claims(scope.state_folder / "claims", wait=self.lock_wait)

    def _make_worktree(self, repository: SnapshotRepository, root: Path) -> None:
        """Add a git worktree; one that an interrupted attempt left incomplete is made again."""
        finished = root.with_name(root.name + ".ready")
        if finished.exists() and root.exists():
            return
        if root.exists():
            shutil.rmtree(root)
        private_folder(root.parent)
        # Twice: the worktree may be known but missing, and locked by the `git worktree add` that was killed.
        repository.as_user.run(
            "worktree", "add", "--force", "--force", "--detach", str(root), "HEAD", timeout=ADD_TIMEOUT
        )
        write_atomically(finished, b"")
