"""The git worktrees in which the alternatives of a branch are tried."""

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from activities.plan.requests import PlanScope
from activities.workspace.folders import root_of, state_folder_of, store_folder_of
from activities.workspace.ownership import tree_key, tree_lock
from activities.workspace.plain_git import remove_worktree
from activities.workspace.port import WorkingTree, Workspaces
from activities.workspace.user_repository import UserRepository
from tightloop.errors import NotARepositoryError


class Worktrees:
    """Makes worktrees beside the tree of a plan, and removes them."""

    def __init__(self, workspaces: Workspaces) -> None:
        """Take the working trees of this host."""
        self._workspaces = workspaces

    @contextmanager
    def at(self, scope: PlanScope, tree: str) -> Iterator[WorkingTree]:
        """Hold the worktree of a child with these files; it is made where it is not there. Idempotent.

        Raises:
            WorkspaceError: the repository has no commit, or does not hold the tree. Not retryable.
            WorkspaceLockedError: another attempt holds it. Retryable.
        """
        self._workspaces.prepare(scope, take_over=lambda _: False)
        with self._workspaces.hold(scope) as held:
            if held.snapshot() != tree:
                held.restore(tree)
            yield held

    def remove(self, scope: PlanScope) -> None:
        """Remove the worktree of a child that has ended; its trees are kept by references. Idempotent."""
        self._workspaces.release(scope)
        root, state = root_of(scope), state_folder_of(scope)
        # First, so that one that is removed in part is made again where it is wanted again.
        root.with_name(root.name + ".ready").unlink(missing_ok=True)
        if root.exists():
            # Holding it ends what was left running there; a step may have broken it, which is no reason to keep it.
            with contextlib.suppress(NotARepositoryError), self._workspaces.hold(scope):
                pass
            with tree_lock(state, root):
                remove_worktree(UserRepository(Path(scope.workspace)), root)
        (store_folder_of(scope) / "states" / tree_key(root)).unlink(missing_ok=True)

    def remove_all(self, scope: PlanScope) -> None:
        """Remove what children of a plan left that was cancelled, or whose worker died, while they were judged."""
        folder = state_folder_of(scope) / "worktrees"
        names = [path.name for path in folder.iterdir() if path.is_dir()] if folder.is_dir() else []
        for name in sorted(names):
            if name.startswith(f"{scope.episode_id}."):
                self.remove(child_scope(scope, name))


def child_scope(scope: PlanScope, child: str) -> PlanScope:
    """Return the scope of a plan that works in a worktree of its own."""
    return PlanScope(episode_id=child, workspace=scope.workspace, worktree=True)
