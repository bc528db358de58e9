"""The ledger numbers checkpoints without gaps, keeps each key once, and survives other writers."""

import shutil
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import pytest

from activities.artifacts.sqlite import close_idle
from activities.tracking.sqlite_ledger import SqliteLedger, open_sqlite_ledger
from activities.workspace.trail import TrailEvent
from tightloop.episode.checkpoint import CheckpointRecord
from tightloop.episode.progress.tracking import ProbabilityClass
from tightloop.errors import WorkspaceError
from tightloop.host import state_folder

PROJECT = Path(__file__).parents[3]


@pytest.fixture
def ledger(tmp_path: Path) -> SqliteLedger:
    return open_sqlite_ledger(tmp_path)


def record(iteration: int = 0, **fields: object) -> CheckpointRecord:
    return CheckpointRecord.model_validate({"id": "ckpt-0", "iteration": iteration, **fields})


def test_checkpoints_are_numbered_from_zero_in_each_episode(ledger: SqliteLedger) -> None:
    assert [ledger.record_checkpoint("one", key, record()).id for key in "abc"] == ["ckpt-0", "ckpt-1", "ckpt-2"]
    assert ledger.record_checkpoint("two", "a", record()).id == "ckpt-0"


def test_same_key_returns_the_first_record(ledger: SqliteLedger) -> None:
    first = ledger.record_checkpoint("one", "run-1/5", record(1, title="first"))
    assert ledger.record_checkpoint("one", "run-1/5", record(2, title="retry")) == first
    assert ledger.checkpoints("one") == (first,)


def test_all_fields_come_back(ledger: SqliteLedger, tmp_path: Path) -> None:
    at = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    full = record(7, tree="t" * 40, probability_class=ProbabilityClass.LOW, title="caf\u00e9 \u2028", at=at, lines=12)
    kept = ledger.record_checkpoint("one", "k", full)
    assert kept == full
    assert open_sqlite_ledger(tmp_path).checkpoints("one") == (full,)


def test_checkpoints_are_in_order_of_their_numbers(ledger: SqliteLedger) -> None:
    for number in range(12):
        ledger.record_checkpoint("one", f"k{number}", record(number))
    assert [entry.number for entry in ledger.checkpoints("one")] == list(range(12))


def test_unknown_episode_has_nothing(ledger: SqliteLedger) -> None:
    assert ledger.checkpoints("unknown") == ()
    assert ledger.events("unknown") == ()


def test_event_with_the_same_key_is_recorded_once(ledger: SqliteLedger) -> None:
    for text in ("first", "retry"):
        ledger.add_event(TrailEvent(episode_id="one", kind="handed_off", text=text, key="it-1"))
    ledger.add_event(TrailEvent(episode_id="two", kind="handed_off", text="other", key="it-1"))
    assert [event.text for event in ledger.events("one")] == ["first"]


def test_events_without_key_are_all_kept_in_order_and_get_a_time(ledger: SqliteLedger) -> None:
    for number in range(3):
        ledger.add_event(TrailEvent(episode_id="one", kind="note", text=str(number)))
    events = ledger.events("one")
    assert [event.text for event in events] == ["0", "1", "2"]
    assert all(event.at is not None for event in events)


def test_many_threads_get_different_numbers(ledger: SqliteLedger) -> None:
    with ThreadPoolExecutor(8) as pool:
        kept = list(pool.map(lambda n: ledger.record_checkpoint("one", f"k{n}", record(n)), range(40)))
    assert sorted(entry.number for entry in kept) == list(range(40))


def test_many_processes_get_different_numbers_and_share_keys(tmp_path: Path) -> None:
    script = """
import sys
from pathlib import Path
from activities.tracking.sqlite_ledger import open_sqlite_ledger
from tightloop.episode.checkpoint import CheckpointRecord
ledger = open_sqlite_ledger(Path(sys.argv[1]))
for n in range(10):
    ledger.record_checkpoint("one", f"{sys.argv[2]}-{n}", CheckpointRecord(id="", iteration=n))
    ledger.record_checkpoint("one", f"shared-{n}", CheckpointRecord(id="", iteration=n))
"""
    workers = [
        subprocess.Popen([sys.executable, "-c", script, str(tmp_path), name], cwd=PROJECT) for name in ("a", "b", "c")
    ]
    assert [worker.wait(60) for worker in workers] == [0, 0, 0]
    assert [entry.number for entry in open_sqlite_ledger(tmp_path).checkpoints("one")] == list(range(40))


def test_record_survives_a_kill_right_after_it_was_returned(tmp_path: Path) -> None:
    script = """
import os, signal, sys
from pathlib import Path
from activities.tracking.sqlite_ledger import open_sqlite_ledger
from tightloop.episode.checkpoint import CheckpointRecord
open_sqlite_ledger(Path(sys.argv[1])).record_checkpoint("one", "k", CheckpointRecord(id="", iteration=3))
os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], cwd=PROJECT, check=False)
    assert [entry.iteration for entry in open_sqlite_ledger(tmp_path).checkpoints("one")] == [3]


def test_ledger_of_a_newer_version_is_refused(ledger: SqliteLedger, tmp_path: Path) -> None:
    ledger.record_checkpoint("one", "k", record())
    connection = sqlite3.connect(state_folder(tmp_path) / "ledger.db")
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(WorkspaceError, match=r"written by a newer tightloop \(schema 99"):
        ledger.checkpoints("one")


def test_looking_into_a_missing_ledger_makes_nothing(ledger: SqliteLedger, tmp_path: Path) -> None:
    assert not ledger.is_recorded("one", "k")
    assert (ledger.checkpoints("one"), ledger.events("one")) == ((), ())
    assert not state_folder(tmp_path).exists()


def test_damaged_ledger_is_named(ledger: SqliteLedger, tmp_path: Path) -> None:
    path = state_folder(tmp_path) / "ledger.db"
    path.parent.mkdir()
    path.write_bytes(b"this is not a database" * 100)
    with pytest.raises(WorkspaceError, match=f"{path} is damaged.*Move it away"):
        ledger.checkpoints("one")


def test_a_ledger_that_is_put_in_the_place_of_another_is_read(tmp_path: Path) -> None:
    """As from a backup, while the worker runs: what it keeps open belongs to the file that is gone."""
    file, backup = tmp_path / "ledger.db", tmp_path / "backup.db"
    ledger = SqliteLedger(file)
    ledger.add_event(TrailEvent(episode_id="e", key="first", kind="opened"))
    close_idle()
    shutil.copy(file, backup)
    ledger.add_event(TrailEvent(episode_id="e", key="second", kind="opened"))
    for part in tmp_path.glob("ledger.db*"):
        part.unlink()
    backup.rename(file)
    assert [event.key for event in ledger.events("e")] == ["first"]
