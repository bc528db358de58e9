"""The working trees of this host, as git repositories."""

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from activities.workspace.folders import root_of, state_folder_of, store_folder_of
from activities.workspace.git_command import COMMAND_TIMEOUT
from activities.workspace.ownership import LOCK_WAIT, Claims, OwnedProcesses, tree_key, tree_lock, write_atomically
from activities.workspace.plain_git import make_worktree
from activities.workspace.scope import EpisodeScope
from activities.workspace.store.objects import TreeStore
from activities.workspace.store.walk import REMEMBERED, StatCache, States
from activities.workspace.user_repository import IndexMemory, UserRepository
from activities.workspace.working_tree import (
    READ_TIMEOUT,
    GitWorkingTree,
    check_workspace,
    notes_on,
)
from tightloop.errors import WorkspaceError
from tightloop.host import open_state_home, private_folder, state_home
from tightloop.safety.drift import DriftError


@dataclass(frozen=True, kw_only=True)
class GitWorkspaces:
    """Prepares working trees for episodes and hands them out, one holder at a time.

    Snapshots are in a store in the state home; of the user's repository only the list of worktrees is changed, for an
    episode with a worktree of its own.
    """

    lock_wait: timedelta = LOCK_WAIT
    """How long to wait for another holder."""
    timeout: timedelta = COMMAND_TIMEOUT
    """Of a git command that neither reads nor writes a whole tree."""
    asks: bool = True
    """A person is asked about files that somebody else changed; else they are saved and undone."""
    states: States = field(default_factory=lambda: States(REMEMBERED), repr=False, compare=False)
    indexes: IndexMemory = field(default_factory=IndexMemory, repr=False, compare=False)

    def prepare(self, scope: EpisodeScope, *, take_over: Callable[[str], bool]) -> tuple[str, ...]:
        """Check the workspace, claim it and make the worktree; see the port.

        An episode within a plan works under the claim of that plan, in its tree.
        """
        workspace = Path(scope.workspace)
        check_workspace(workspace, needs_commit=scope.worktree, timeout=self.timeout)
        home = state_home()
        # Agents could write what we believe, and snapshots would hold it.
        if home.resolve().is_relative_to(workspace.resolve()):
            raise WorkspaceError(
                f"the state home {home} lies in the workspace {workspace}. "
                "Start the worker with one outside of it: export TIGHTLOOP_HOME=..."
            )
        open_state_home()
        repository = UserRepository(workspace)
        try:
            TreeStore(store_folder_of(scope)).make()
            # For a person who looks for the state of a workspace; nothing reads it.
            write_atomically(state_folder_of(scope) / "workspace", os.fsencode(f"{workspace.resolve()}\n"))
        except (PermissionError, FileExistsError, NotADirectoryError) as error:
            raise WorkspaceError(
                f"cannot write {error.filename}: {error.strerror}. Give the worker's user write access"
            ) from error
        # Before the worktree is made, so that two episodes never make the same one.
        self._claims(scope).take(root_of(scope), scope.holder, take_over)
        notes = notes_on(repository, repository.coverage(self.indexes), worktree=scope.worktree, timeout=self.timeout)
        if scope.worktree and not scope.within:
            root = root_of(scope)
            finished = root.with_name(root.name + ".ready")
            with tree_lock(state_folder_of(scope), root, wait=self.lock_wait) as lock:
                if not (finished.exists() and root.exists()):
                    # One that an interrupted attempt left incomplete is made again.
                    if root.exists():
                        shutil.rmtree(root)
                    private_folder(root.parent)
                    # A git that outlives a killed worker removes what it has made: it holds the lock and is waited for.
                    make_worktree(repository, root, timeout=READ_TIMEOUT, inherit=(lock,))
                    write_atomically(finished, b"")
        return notes

    def release(self, scope: EpisodeScope) -> None:
        """Give the claim back. A worktree stays, because it holds the result. Idempotent.

        One within a plan has none of its own: the plan's is left.
        """
        if not scope.within:
            self._claims(scope).release(root_of(scope), scope.episode_id)

    @contextlib.contextmanager
    def hold(self, scope: EpisodeScope) -> Iterator[GitWorkingTree]:
        """Hold the tree exclusively; see the port.

        Git processes inherit the lock, so one that outlives a killed holder is waited for, too.

        Raises:
            NotARepositoryError: the workspace is not a git working tree any more.
        """
        root, state, trees = root_of(scope), state_folder_of(scope), store_folder_of(scope)
        locks, key = state / "locks", tree_key(root)
        with tree_lock(state, root, wait=self.lock_wait):
            processes = OwnedProcesses(locks / f"{key}.processes.json")
            # Only now: the lock is ours, so what still runs belongs to a holder that is dead.
            processes.end_all()
            store = TreeStore(trees)
            store.make()
            repository = UserRepository(root)
            mark = locks / f"{key}.held"
            is_ours = scope.put_back or mark.exists()
            mark.touch(mode=0o600)
            try:
                yield GitWorkingTree(
                    root,
                    scope.episode_id,
                    store=store,
                    cache=StatCache(trees / "states" / key, self.states),
                    coverage=lambda: repository.coverage(self.indexes),
                    processes=processes,
                    asks=self.asks,
                    is_ours=is_ours,
                )
            except DriftError:
                mark.unlink()
                raise
            # Left there by a holder that died or failed, which may have written half of its work.
            mark.unlink()

    def _claims(self, scope: EpisodeScope) -> Claims:
        return Claims(state_folder_of(scope) / "claims", wait=self.lock_wait)
