"""A worker process is killed with SIGKILL at twenty moments of one project's plan: the end is the same."""

from pathlib import Path

import pytest

from tests.support.episodes import Git
from tests.support.loops import dying_worker, whole_loop
from tightloop.client import TightloopClient
from tightloop.host import state_folder
from tightloop.loop.model import LoopState, TaskState
from tightloop.settings import Settings

ACTIVITIES = (
    "open_plan", "prepare_children", "open_workspace", "hand_off", "track_iteration", "settle_children", "close_plan",
    "read_results", "find_gates", "run_project_gate",
)  # fmt: skip
MOMENTS = tuple(f"{name}.{moment}" for name in ACTIVITIES for moment in ("before", "after"))


@pytest.mark.timeout(900)
async def test_twenty_kills_change_nothing_of_the_end(
    client: TightloopClient, settings: Settings, workspace: Path, tmp_path: Path, git: Git
) -> None:
    notes = tmp_path / "deaths"
    notes.mkdir()
    async with dying_worker(settings, notes, MOMENTS):
        result = await whole_loop(client, workspace, seconds=800)
    died = sorted(path.name for path in notes.iterdir())
    assert died == sorted(MOMENTS), set(MOMENTS) - set(died)
    assert result.outcome is LoopState.VERIFIED, result
    assert {task.state for task in result.tasks} == {TaskState.COMPLETE}
    assert (workspace / "all.txt").read_text() == "1\n2\n3\n"
    assert [path.name for path in state_folder(workspace).glob("worktrees/*")] == []
    assert [path.name for path in state_folder(workspace).glob("claims/*.json")] == []
    assert len(git(workspace, "worktree", "list").splitlines()) == 1
    print(f"\n{len(died)} kills, the same end")
