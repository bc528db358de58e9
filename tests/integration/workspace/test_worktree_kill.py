"""Git worktrees whose worker died while they were made, or while they were removed."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from activities.plan.children import Worktrees
from activities.plan.requests import PlanScope
from activities.workspace.folders import root_of
from activities.workspace.scope import EpisodeScope
from activities.workspace.working_tree import WorkingTree, Workspaces
from tests.support.git_sample import git, make_repository, on_disk
from tightloop.host.worktree import read_worktree

ROOT = Path(__file__).parents[3]
FILES = {f"{number}.txt": f"{number}\n" for number in range(8)}
PREPARE = """
import sys
from activities.workspace.scope import EpisodeScope
from activities.workspace.working_tree import Workspaces
scope = EpisodeScope(episode_id="plan.ways.1.a", workspace=sys.argv[1], worktree=True)
Workspaces().prepare(scope, take_over=lambda _: False)
"""


class WorkerDiedError(BaseException):
    """Stands for the end of the process: nothing may clean up after it."""


class Dying(Workspaces):
    """Workspaces of a worker that dies when it has let go of a tree."""

    @contextmanager
    def hold(self, scope: EpisodeScope) -> Iterator[WorkingTree]:
        with super().hold(scope) as tree:
            yield tree
        raise WorkerDiedError


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_repository(tmp_path / "repo", FILES)


@pytest.fixture
def scope(root: Path) -> PlanScope:
    return PlanScope(episode_id="plan.ways.1.a", workspace=str(root), worktree=True)


def worktrees(root: Path) -> list[str]:
    listed = git(root, "worktree", "list", "--porcelain").decode()
    return [line for line in listed.splitlines() if line.startswith("worktree ")][1:]


def test_git_that_outlives_the_worker_does_not_take_the_new_worktree_away(
    root: Path, scope: PlanScope, tmp_path: Path
) -> None:
    (tmp_path / "bin").mkdir()
    slow = tmp_path / "bin/git"
    wait = f'case " $* " in *" read-tree "*) : > {tmp_path}/begun; sleep 1;; esac'
    slow.write_text(f'#!/bin/sh\n{wait}\nexec {shutil.which("git")} "$@"\n')
    slow.chmod(0o755)
    environment = {**os.environ, "PATH": f"{slow.parent}{os.pathsep}{os.environ['PATH']}"}
    worker = subprocess.Popen((sys.executable, "-c", PREPARE, str(root)), cwd=ROOT, env=environment)
    deadline = time.monotonic() + 60
    while not (tmp_path / "begun").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    worker.kill()
    worker.wait(60)
    assert read_worktree(root_of(scope)) is None, "it was killed too late"
    Workspaces().prepare(scope, take_over=lambda _: False)
    assert on_disk(root_of(scope)) == on_disk(root)
    assert worktrees(root) == [f"worktree {root_of(scope)}"]


def test_worktree_that_was_removed_in_part_is_made_anew(root: Path, scope: PlanScope) -> None:
    with Worktrees(Workspaces()).open_worktree(scope, git(root, "rev-parse", "HEAD^{tree}").decode().strip()) as held:
        tree = held.snapshot()
    with pytest.raises(WorkerDiedError):
        Worktrees(Dying()).remove(scope)
    # As far as `git worktree remove` came.
    (root_of(scope) / ".git").unlink()
    (root_of(scope) / "1.txt").unlink()
    with Worktrees(Workspaces()).open_worktree(scope, tree) as held:
        assert held.snapshot() == tree
    Worktrees(Workspaces()).remove(scope)
    assert worktrees(root) == []
    assert list(root_of(scope).parent.iterdir()) == []
