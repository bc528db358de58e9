"""How often an episode pauses though it does honest work, and how soon it does where it is stuck."""

from pathlib import Path

import pytest

from tests.data.pauses import HALVES
from tests.support.episodes import Git, Working
from tests.support.extent import some
from tests.support.pauses import courses_of, selected
from tightloop.client import TightloopClient

FALSE_IN_200, NOTICED = 1.0, 0.8
PAUSED = 0.6
"""Share of the stuck entries that have to pause; of the others people are told by an alert."""


@pytest.mark.timeout(1700)
@pytest.mark.parametrize("half", HALVES)
async def test_honest_work_is_left_alone(
    half: str, client: TightloopClient, working: Working, tmp_path: Path, git: Git
) -> None:
    honest = some([entry for entry in selected(half) if entry.since is None], 6) or pytest.skip("no entries")
    found = await courses_of(honest, client=client, working=working, folder=tmp_path, git=git)
    print(f"\n{half}: {found}")
    assert found.false_in_200 <= FALSE_IN_200


@pytest.mark.timeout(1700)
@pytest.mark.parametrize("half", HALVES)
async def test_stuck_episodes_are_noticed(
    half: str, client: TightloopClient, working: Working, tmp_path: Path, git: Git
) -> None:
    stuck = some([entry for entry in selected(half) if entry.since is not None], 6) or pytest.skip("no entries")
    found = await courses_of(stuck, client=client, working=working, folder=tmp_path, git=git)
    print(f"\n{half}: {found}")
    assert found.heard >= NOTICED
    assert found.noticed >= PAUSED
    assert found.false_in_200 <= FALSE_IN_200
