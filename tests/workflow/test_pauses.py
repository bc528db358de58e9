"""An episode goes on as long as something new comes, and pauses soon where nothing does."""

from pathlib import Path

from tests.data.pauses import entries
from tests.support.episodes import Git, Working
from tests.support.pauses import courses_of
from tightloop.client import TightloopClient

FEW = (
    "one file per iteration under a check that says nothing",
    "fourteen steps, of which the check lists those that are left",
    "the message stays, its count sinks",
    "the executor changes nothing",
    "A-B-A-B with the same output",
    "only a log grows",
)


async def test_work_in_steps_is_left_alone_and_a_stuck_episode_is_noticed(
    client: TightloopClient, working: Working, tmp_path: Path, git: Git
) -> None:
    chosen = [entry for entry in entries("development") if entry.name in FEW]
    found = await courses_of(chosen, client=client, working=working, folder=tmp_path, git=git)
    assert len(chosen) == len(FEW)
    assert (found.false_in_200, found.heard) == (0, 1), str(found)
    assert found.noticed >= 0.6, f"a file that grows leads to an alert, not to a pause: {found}"
