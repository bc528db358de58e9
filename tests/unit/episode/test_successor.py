"""Which host goes on with the episodes of a silent one."""

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest

from activities.staffing import CheckWorkersRequest, WorkerCheckActivities
from activities.workspace.scope import EpisodeScope
from tightloop.episode.checkpoint import choose_successor

HOMES = ("tl-workspace-a-1", "tl-workspace-b-1", "tl-workspace-c-1")


def test_successor_is_another_host_and_the_same_for_each_look() -> None:
    chosen = {each: choose_successor(HOMES[0], HOMES, each) for each in map("episode-{}".format, range(50))}
    assert set(chosen.values()) == set(HOMES[1:])
    assert chosen == {each: choose_successor(HOMES[0], HOMES[::-1], each) for each in chosen}


def test_only_host_has_no_successor() -> None:
    assert choose_successor(HOMES[0], HOMES[:1], "episode-1") == ""


@dataclass
class Known:
    """What Temporal knows of the workers."""

    seen_before: timedelta | None
    known: tuple[str, ...] = HOMES[:2]

    async def count(self, queue: str) -> int:
        return 0 if self.seen_before is None else 1

    async def last_seen(self, queue: str) -> datetime | None:
        return None if self.seen_before is None else datetime.now(UTC) - self.seen_before

    async def parent_of(self, workflow_id: str) -> str:
        return ""

    async def homes(self) -> tuple[str, ...]:
        return self.known


@pytest.mark.parametrize(
    ("staff", "waited_s", "queue", "epoch", "moves"),
    [
        (Known(None), 40, HOMES[0], 1, True),
        (Known(timedelta(seconds=35)), 40, HOMES[0], 1, True),
        (Known(timedelta(seconds=2)), 4_000, HOMES[0], 1, False),  # busy, but alive
        (Known(None), 20, HOMES[0], 1, False),  # not for long enough
        (Known(None), 40, "tl-gui-macos", 1, False),  # a screen is not the host of the workspace
        (Known(None), 40, HOMES[0], 0, False),  # no copies
        (Known(None, HOMES[:1]), 40, HOMES[0], 1, False),  # nobody else
    ],
)
def test_successor_is_named_once_the_host_was_silent_for_long(
    staff: Known, waited_s: float, queue: str, epoch: int, moves: bool
) -> None:
    looking = WorkerCheckActivities(staff, timedelta(seconds=5), timedelta(hours=4), timedelta(seconds=30))
    scope = EpisodeScope(episode_id="episode-1", workspace="/w", home=HOMES[0], epoch=epoch)
    request = CheckWorkersRequest(scope=scope, queue=queue, waited=timedelta(seconds=waited_s))
    found = asyncio.run(looking.look_for_workers(request))
    assert bool(found.successor) is moves
    if found.again is not None:
        assert timedelta() < found.again <= timedelta(seconds=30)
        assert found.patience > request.waited
