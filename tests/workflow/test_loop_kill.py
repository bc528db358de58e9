"""A worker process is killed with SIGKILL while a project's plan is dispatched and verified."""

from pathlib import Path

import pytest

from tests.support.episodes import Git
from tests.support.loops import dying_worker, whole_loop
from tightloop.client import TightloopClient
from tightloop.loop.model import LoopState, TaskState
from tightloop.settings import Settings

MOMENTS = ("prepare_children.after", "settle_children.after", "run_project_gate.after")


@pytest.mark.timeout(240)
async def test_killed_worker_changes_nothing_of_the_end(
    client: TightloopClient, settings: Settings, workspace: Path, tmp_path: Path, git: Git
) -> None:
    notes = tmp_path / "deaths"
    notes.mkdir()
    async with dying_worker(settings, notes, MOMENTS):
        result = await whole_loop(client, workspace, seconds=180)
    assert sorted(path.name for path in notes.iterdir()) == sorted(MOMENTS), "it died at each moment"
    assert result.outcome is LoopState.VERIFIED, result
    assert {task.state for task in result.tasks} == {TaskState.COMPLETE}
    assert (workspace / "all.txt").read_text() == "1\n2\n3\n"
    assert len(git(workspace, "worktree", "list").splitlines()) == 1
