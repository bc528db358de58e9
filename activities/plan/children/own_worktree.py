"""Episodes that work beside each other, each in a worktree of its own, and whose changes are merged into the plan's."""

import shlex
from dataclasses import replace
from pathlib import Path

from activities.plan.attempts.beside import move
from activities.plan.attempts.contract import make_failure
from activities.plan.attempts.git_trees import GitTrees
from activities.plan.children.worktrees import Worktrees, child_scope
from activities.plan.port import RunnerResult, Work
from activities.plan.requests import SettleRequest
from activities.workspace.folders import store_folder_of
from activities.workspace.store.entry import TreeMerge
from tightloop.host import diff_command
from tightloop.loop.conflict import CONFLICT, Conflict
from tightloop.plan.child import child_id
from tightloop.plan.document.action import EpisodeAction
from tightloop.plan.stored import file_name
from tightloop.value import counted

SHOWN = 10


class OwnWorktree:
    """Prepares the worktree of an episode, and merges what the episode left."""

    def __init__(self, worktrees: Worktrees) -> None:
        """Take what makes worktrees."""
        self._worktrees = worktrees
        self._trees = GitTrees()

    def prepare(self, work: Work) -> None:
        """Make the worktree, with the files of the plan of now; with a change to resolve, with that merged in.

        Raises:
            WorkspaceError: the repository has no commit. Not retryable.
            WorkspaceLockedError: another attempt holds the worktree. Retryable.
        """
        tree, start = work.expected_tree, work.action(EpisodeAction).merge
        if start is not None:
            tree = self._trees.merge(store_folder_of(work.scope), start.base, tree, start.tree, markers=True).tree
        child = child_id(work.scope.episode_id, work.step.id, work.attempt)
        with self._worktrees.at(child_scope(work.scope, child), tree):
            pass

    def settle(self, work: Work, request: SettleRequest, done: RunnerResult) -> RunnerResult:
        """Merge what a successful episode left into `work.tree`; of another one the tree is kept and named.

        The worktree is removed: its trees are in the store.
        """
        assert work.tree is not None
        left = request.trees[0]
        if done.failure is not None:
            done = self._keep(work, request, done, done.failure.reason) if left else done
        else:
            done = self._merge(work, request, done)
        # Last: an activity that is tried again settles the same.
        self._worktrees.remove(child_scope(work.scope, request.children[0]))
        return done

    def _merge(self, work: Work, request: SettleRequest, done: RunnerResult) -> RunnerResult:
        assert work.tree is not None
        store, left = store_folder_of(work.scope), request.trees[0]
        merged = self._trees.merge(store, request.base_tree, work.expected_tree, left)
        if merged.conflicts:
            return self._conflict(work, request, done, merged)
        move(work.tree, self._trees, store, work.expected_tree, merged.tree)
        count = counted(len(self._trees.changed(store, work.expected_tree, merged.tree)), "file")
        return replace(done, tree=merged.tree, summary=f"{done.summary}; {count} changed")

    def _conflict(self, work: Work, request: SettleRequest, done: RunnerResult, merged: TreeMerge) -> RunnerResult:
        store, left = store_folder_of(work.scope), request.trees[0]
        beside = self._trees.merge(store, request.base_tree, work.expected_tree, left, markers=True).beside
        shown = ", ".join(shlex.quote(path) for path in merged.conflicts[:SHOWN])
        more = len(merged.conflicts) - SHOWN
        reason = f"its changes conflict with those of other steps in {shown}{f' and {more} more' if more > 0 else ''}"
        conflict = Conflict(base=request.base_tree, tree=left, paths=merged.conflicts[:SHOWN], beside=beside[:SHOWN])
        outputs = {**done.outputs, CONFLICT: conflict.model_dump(mode="json")}
        return self._keep(work, request, replace(done, outputs=outputs), reason)

    def _keep(self, work: Work, request: SettleRequest, done: RunnerResult, reason: str) -> RunnerResult:
        assert work.tree is not None
        name = f"step.{file_name(work.step.id)}.{work.attempt}"
        work.tree.keep(f"{name}.left", request.trees[0])
        work.tree.keep(f"{name}.base", request.base_tree)
        command = diff_command(Path(work.scope.workspace), request.base_tree, request.trees[0])
        kind = done.failure.failure_class if done.failure is not None else None
        said = f"{reason}. What it did is kept; see it with: {command}"
        return replace(done, failure=make_failure(said) if kind is None else make_failure(said, kind))
