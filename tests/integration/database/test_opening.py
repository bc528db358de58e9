"""The ledger of a host: one file in the state home, safe for many processes, and what it makes of earlier files."""

import shutil
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from tightloop.database.ledger import close_ledgers, local_ledger, open_project, open_state
from tightloop.episode.checkpoint import CheckpointRecord
from tightloop.errors import WorkspaceError
from tightloop.host import state_folder
from tightloop.ledger.model import TrailEvent

PROJECT = Path(__file__).parents[3]
EARLIER = PROJECT / "tests/data/ledger/before_database.db"
"""Written by the version that kept a file for each project."""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TIGHTLOOP_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


@pytest.fixture
def earlier(tmp_path: Path) -> Path:
    """The state folder of a project that has a file of its own."""
    folder = state_folder(tmp_path / "orders")
    folder.mkdir(parents=True)
    shutil.copy(EARLIER, folder / "ledger.db")
    return folder


def rows_of(path: Path) -> tuple[list[str], list[tuple[str, str, str]]]:
    with closing(sqlite3.connect(path)) as connection:
        records = [text for (text,) in connection.execute("SELECT record FROM checkpoint ORDER BY episode_id, number")]
        lines = connection.execute(
            "SELECT episode_id, json_extract(event, '$.kind'), json_extract(event, '$.text') FROM trail ORDER BY id"
        ).fetchall()
    return records, lines


def check_moved(folder: Path) -> None:
    records, lines = rows_of(EARLIER)
    moved = [
        record.model_dump_json() for name in ("fix-login", "nightly") for record in open_state(folder).checkpoints(name)
    ]
    assert moved == records
    found = local_ledger().events(project=folder.name)
    assert [(line.episode_id, line.kind, line.text) for line in found] == lines
    assert [path.name for path in folder.iterdir()] == ["ledger.db.migrated"]


def test_every_row_of_an_earlier_ledger_is_moved_when_a_project_is_opened(tmp_path: Path, earlier: Path) -> None:
    ledger = open_project(tmp_path / "orders")
    check_moved(earlier)
    at = [event.at.isoformat() for event in ledger.events("fix-login") if event.at]
    assert at[0] == "2026-05-04T09:30:00.123456+00:00"
    assert ledger.record_checkpoint("fix-login", "run-a/1", CheckpointRecord(id="", iteration=9)).iteration == 1
    assert ledger.record_checkpoint("fix-login", "run-a/3", CheckpointRecord(id="", iteration=3)).id == "ckpt-3"


def test_a_move_that_was_ended_in_the_middle_is_finished_without_doubles(tmp_path: Path, earlier: Path) -> None:
    for _ in range(2):
        open_project(tmp_path / "orders")
        (earlier / "ledger.db.migrated").rename(earlier / "ledger.db")
    open_project(tmp_path / "orders")
    check_moved(earlier)


def test_many_openers_at_once_move_it_once(tmp_path: Path, earlier: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: open_project(tmp_path / "orders"), range(8)))
    check_moved(earlier)


def test_an_earlier_ledger_that_is_damaged_is_named_and_kept(tmp_path: Path, earlier: Path) -> None:
    (earlier / "ledger.db").write_bytes(b"this is not a database" * 100)
    with pytest.raises(WorkspaceError, match=r"ledger\.db of an earlier version is damaged.*Move it away"):
        open_project(tmp_path / "orders")
    assert (earlier / "ledger.db").exists()


def test_an_earlier_ledger_of_an_unknown_version_is_refused(tmp_path: Path, earlier: Path) -> None:
    with closing(sqlite3.connect(earlier / "ledger.db")) as connection:
        connection.execute("PRAGMA user_version = 99")
    with pytest.raises(WorkspaceError, match="written by a newer tightloop"):
        open_project(tmp_path / "orders")


def test_many_processes_get_different_numbers_and_share_keys(tmp_path: Path) -> None:
    script = """
import sys
from pathlib import Path
from tightloop.database.ledger import open_project
from tightloop.episode.checkpoint import CheckpointRecord
ledger = open_project(Path(sys.argv[1]))
for n in range(10):
    ledger.record_checkpoint("one", f"{sys.argv[2]}-{n}", CheckpointRecord(id="", iteration=n))
    ledger.record_checkpoint("one", f"shared-{n}", CheckpointRecord(id="", iteration=n))
"""
    workers = [
        subprocess.Popen([sys.executable, "-c", script, str(tmp_path), name], cwd=PROJECT) for name in ("a", "b", "c")
    ]
    assert [worker.wait(120) for worker in workers] == [0, 0, 0]
    assert [entry.number for entry in open_project(tmp_path).checkpoints("one")] == list(range(40))


def test_record_survives_a_kill_right_after_it_was_returned(tmp_path: Path) -> None:
    script = """
import os, signal, sys
from pathlib import Path
from tightloop.database.ledger import open_project
from tightloop.episode.checkpoint import CheckpointRecord
open_project(Path(sys.argv[1])).record_checkpoint("one", "k", CheckpointRecord(id="", iteration=3))
os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], cwd=PROJECT, check=False)
    assert [entry.iteration for entry in open_project(tmp_path).checkpoints("one")] == [3]


def test_looking_into_a_missing_ledger_makes_no_project(tmp_path: Path) -> None:
    ledger = open_project(tmp_path)
    assert not ledger.is_recorded("one", "k")
    assert (ledger.checkpoints("one"), ledger.events("one")) == ((), ())
    assert not state_folder(tmp_path).exists()
    assert local_ledger().projects() == ()


def test_damaged_ledger_is_named(home: Path, tmp_path: Path) -> None:
    home.mkdir()
    (home / "ledger.db").write_bytes(b"this is not a database" * 100)
    with pytest.raises(WorkspaceError, match=f"{home}/ledger.db is damaged.*Move it away"):
        open_project(tmp_path).checkpoints("one")


def test_a_ledger_that_is_put_in_the_place_of_another_is_read(home: Path, tmp_path: Path) -> None:
    """As from a backup, while the worker runs: what it keeps open belongs to the file that is gone."""
    file, backup = home / "ledger.db", tmp_path / "backup.db"
    ledger = open_project(tmp_path)
    ledger.add_event(TrailEvent(episode_id="e", key="first", kind="opened"))
    close_ledgers()
    shutil.copy(file, backup)
    ledger.add_event(TrailEvent(episode_id="e", key="second", kind="opened"))
    for part in home.glob("ledger.db*"):
        part.unlink()
    backup.rename(file)
    assert [event.key for event in ledger.events("e")] == ["first"]
    for part in home.glob("ledger.db*"):
        part.unlink()
    ledger.add_event(TrailEvent(episode_id="e", key="third", kind="opened"))
    assert [event.key for event in ledger.events("e")] == ["third"]
