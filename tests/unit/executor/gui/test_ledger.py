"""The ledger of hand-offs in files: what it has recorded is there for the next process, and it does not grow."""

from pathlib import Path

import pytest

from activities.artifacts.port import file_stem
from activities.executor.gui.port import Ledger
from tightloop.errors import ExecutorError
from tightloop.executor.handoff import HandOffState, Message, Receipt

MESSAGE = Message(id="e/1/0123abcd", text="a plan")


def test_next_process_finds_how_far_it_came(tmp_path: Path) -> None:
    folder = tmp_path / "handoffs"
    assert Ledger(folder).get(MESSAGE.id) is None
    assert list(Ledger(folder).texts()) == []
    Ledger(folder).record(MESSAGE, HandOffState.PREPARED)
    Ledger(folder).record(MESSAGE, HandOffState.ACKED, Receipt(handoff_id=MESSAGE.id, conversation="c"))
    entry = Ledger(folder).get(MESSAGE.id)
    assert entry is not None
    assert (entry.state, entry.text) == (HandOffState.ACKED, "a plan")
    assert entry.receipt == Receipt(handoff_id=MESSAGE.id, conversation="c")
    assert list(Ledger(folder).texts()) == ["a plan"]


def test_damaged_entry_is_not_taken_for_a_missing_one(tmp_path: Path) -> None:
    Ledger(tmp_path).record(MESSAGE, HandOffState.ENTER)
    (tmp_path / f"{file_stem(MESSAGE.id)}.json").write_text('{"id": ')
    with pytest.raises(ExecutorError, match="it is unknown whether hand-off"):
        Ledger(tmp_path).get(MESSAGE.id)


def test_it_does_not_grow_without_end(tmp_path: Path) -> None:
    for number in range(8):
        Ledger(tmp_path, limit=5).record(Message(id=f"e/{number}/0123abcd", text="x"), HandOffState.PREPARED)
    assert len(list(tmp_path.iterdir())) == 5
