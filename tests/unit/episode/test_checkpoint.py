"""Checkpoints: ids are read leniently, going back discards but never removes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tightloop.episode.checkpoint import CheckpointRecord, checkpoint_id, checkpoint_number, discard_after, merge


@st.composite
def histories(draw: st.DrawFn) -> tuple[CheckpointRecord, ...]:
    """Checkpoints as an episode makes them: each continues some earlier one."""
    size = draw(st.integers(min_value=1, max_value=12))
    return tuple(
        CheckpointRecord(
            id=checkpoint_id(n),
            iteration=n,
            parent=checkpoint_id(draw(st.integers(min_value=0, max_value=n - 1))) if n else None,
            discarded=draw(st.booleans()),
        )
        for n in range(size)
    )


def ancestry(records: tuple[CheckpointRecord, ...], of: str) -> set[str]:
    parents = {record.id: record.parent for record in records}
    found: set[str] = set()
    at: str | None = of
    while at is not None:
        found.add(at)
        at = parents[at]
    return found


def line(*discarded: int, last: int) -> tuple[CheckpointRecord, ...]:
    return tuple(
        CheckpointRecord(
            id=checkpoint_id(n),
            iteration=n,
            parent=checkpoint_id(n - 1) if n else None,
            discarded=n in discarded,
        )
        for n in range(last + 1)
    )


@given(st.integers(min_value=0, max_value=9_999_999))
def test_id_and_number_are_the_same_thing(number: int) -> None:
    assert checkpoint_number(checkpoint_id(number)) == number
    assert checkpoint_number(f" {number} ") == number
    assert CheckpointRecord(id=checkpoint_id(number), iteration=1).number == number


@pytest.mark.parametrize("text", ["", "ckpt-", "ckpt-x", "-1", "1.5", "ckpt-1 2", "latest"])
def test_what_is_no_id_is_not_read_as_one(text: str) -> None:
    assert checkpoint_number(text) is None


@given(histories(), st.data())
def test_going_back_keeps_the_ancestors_and_discards_the_rest(
    records: tuple[CheckpointRecord, ...], data: st.DataObject
) -> None:
    target = data.draw(st.sampled_from(records)).id
    after = discard_after(records, target)
    assert [record.id for record in after] == [record.id for record in records]
    assert {record.id for record in after if not record.discarded} == ancestry(records, target)


def test_going_forth_again_brings_discarded_checkpoints_back() -> None:
    back = discard_after(line(last=4), "ckpt-1")
    assert [record.discarded for record in back] == [False, False, True, True, True]
    assert [record.discarded for record in discard_after(back, "ckpt-3")] == [False, False, False, False, True]


def test_checkpoint_that_is_no_longer_listed_discards_only_what_came_after_it() -> None:
    assert [record.discarded for record in discard_after(line(last=4)[2:], "ckpt-1")] == [True, True, True]
    assert [record.discarded for record in discard_after(line(last=4), "ckpt-9")] == [False] * 5


@given(histories(), histories())
def test_merged_lists_have_each_checkpoint_once_in_order(
    known: tuple[CheckpointRecord, ...], found: tuple[CheckpointRecord, ...]
) -> None:
    merged = merge(known, found)
    assert [record.number for record in merged] == sorted({record.number for record in (*known, *found)})
    assert set(merged) >= set(known)
