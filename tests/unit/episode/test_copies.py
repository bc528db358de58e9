"""Who may go on with an episode: epochs only grow, and one host holds each."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tightloop.episode.checkpoint import (
    CheckpointRecord,
    CopiesHead,
    MoveTarget,
    check_holder,
    check_move,
    choose_home,
    host_of,
)
from tightloop.episode.control import read_move
from tightloop.errors import FencedError, InvalidRequestError

HOMES = ("tightloop-workspace-host-1-1a2b3c", "tightloop-workspace-host-2-4d5e6f", "tightloop-workspace-host-2-777777")
RECORD = CheckpointRecord(id="ckpt-0", iteration=0)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 6)), max_size=20))
def test_each_epoch_has_one_holder_whoever_asks_in_whatever_order(asked: list[tuple[str, int]]) -> None:
    head, holders = CopiesHead(home="a", last=RECORD), {1: "a"}
    for home, epoch in asked:
        before = head
        try:
            head = head.taken(home, epoch)
        except FencedError:
            assert head.epoch >= epoch
        assert head.epoch >= before.epoch
        assert holders.setdefault(head.epoch, head.home) == head.home
    assert check_holder(head, head.home, head.epoch) == head


def test_host_of_an_older_epoch_is_refused_and_told_who_has_it() -> None:
    head = CopiesHead(home="b", epoch=2, last=RECORD)
    with pytest.raises(FencedError, match=r"'a' does not own .* \(epoch 1\): the owner is 'b', with epoch 2"):
        check_holder(head, "a", 1)
    with pytest.raises(FencedError, match="has no record of it"):
        check_holder(None, "a", 1)


def test_id_that_is_used_again_begins_without_the_copies_of_before() -> None:
    head = CopiesHead(home="a", run="one", epoch=3, increments=("1/0-x",), last=RECORD)
    assert head.with_run("a", "one") == head
    again = head.with_run("a", "two")
    assert (again.epoch, again.increments, again.last) == (4, (), None)


def test_host_is_found_by_its_name_or_its_queue() -> None:
    assert host_of(HOMES[1]) == "host-2-4d5e6f"
    assert choose_home("host-2-4d5e6f", HOMES) == HOMES[1]
    assert choose_home("host-1", HOMES) == HOMES[0]
    assert choose_home(HOMES[2], HOMES) == HOMES[2]
    with pytest.raises(InvalidRequestError, match="'host-2' has 2 workspace workers"):
        choose_home("host-2", HOMES)
    with pytest.raises(InvalidRequestError, match="no workspace worker is running on 'host-3'"):
        choose_home("host-3", HOMES)


@pytest.mark.parametrize(
    ("to", "epoch", "said"),
    [
        (HOMES[1], 0, "exist only on its host. To make episodes movable, set remote.bucket"),
        (HOMES[0], 1, "is already on .* and is not paused"),
        ("host-2", 1, "not the task queue of a workspace host"),
    ],
)
def test_move_that_cannot_work_is_refused(to: str, epoch: int, said: str) -> None:
    with pytest.raises(InvalidRequestError, match=said):
        check_move(MoveTarget(to=to), home=HOMES[0], epoch=epoch, waits=False)


def test_episode_that_waits_may_go_on_on_its_own_host() -> None:
    check_move(MoveTarget(to=HOMES[0]), home=HOMES[0], epoch=1, waits=True)


def test_argument_of_move_is_read_leniently() -> None:
    assert read_move(HOMES[1]).to == HOMES[1]
    with pytest.raises(InvalidRequestError, match="'project' is not an absolute path"):
        read_move({"to": HOMES[1], "workspace": "project"})
