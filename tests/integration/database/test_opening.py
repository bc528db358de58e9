"""The ledger of a host: one file in the state home, safe for many processes."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tightloop.database.ledger import close_ledgers, local_ledger, open_project
from tightloop.errors import WorkspaceError
from tightloop.host import state_folder
from tightloop.ledger.model import TrailEvent

PROJECT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TIGHTLOOP_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


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
    with pytest.raises(WorkspaceError, match=f"{home}/ledger.db is damaged.*Move the file out of the way"):
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
