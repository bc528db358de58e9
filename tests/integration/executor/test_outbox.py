"""The outbox: every delivery is on disk before anything else happens."""

import os
import signal
import sqlite3
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from activities.executor.outbox import Outbox, open_outbox
from activities.executor.port import DeliveryError, DeliveryState
from tightloop.executor.model import ExecutorReport, ExecutorStatus
from tightloop.host import state_folder
from tightloop.value import reference

REPOSITORY = Path(__file__).parents[3]
ORDER = reference(b"the order", name="work order")
KEY = "run/1/1"


def report(status: ExecutorStatus = ExecutorStatus.COMPLETED) -> ExecutorReport:
    return ExecutorReport(key=KEY, status=status, summary="done: schön", new_tree="f" * 40)


@pytest.fixture
def outbox(tmp_path: Path) -> Outbox:
    return open_outbox(tmp_path)


def state_of(outbox: Outbox, key: str = KEY) -> DeliveryState:
    found = outbox.get(key)
    assert found is not None
    return found.state


def claimed_at(workspace: Path) -> list[float]:
    with closing(sqlite3.connect(state_folder(workspace) / "outbox.db")) as connection:
        return [row[0] for row in connection.execute("SELECT claimed_at FROM claim ORDER BY number")]


def test_a_delivery_goes_from_queued_to_reported(outbox: Outbox, tmp_path: Path) -> None:
    before = time.time()
    assert outbox.get(KEY) is None
    outbox.add(KEY, "episode-1", 1, ORDER)
    assert state_of(outbox) is DeliveryState.QUEUED
    outbox.claim(KEY, "base")
    assert state_of(outbox) is DeliveryState.CLAIMED
    outbox.report(KEY, report())
    found = open_outbox(tmp_path).get(KEY)
    assert found is not None
    assert (found.state, found.claims, found.order, found.report) == (DeliveryState.REPORTED, 1, ORDER, report())
    assert (found.episode_id, found.iteration) == ("episode-1", 1)
    assert before <= claimed_at(tmp_path)[0] <= time.time()


def test_adding_again_changes_nothing(outbox: Outbox) -> None:
    outbox.add(KEY, "episode-1", 1, ORDER)
    outbox.claim(KEY, "base")
    outbox.add(KEY, "episode-2", 2, reference(b"another", name="work order"))
    found = outbox.get(KEY)
    assert found is not None
    assert (found.state, found.episode_id, found.order) == (DeliveryState.CLAIMED, "episode-1", ORDER)


def test_each_claim_is_counted(outbox: Outbox, tmp_path: Path) -> None:
    outbox.add(KEY, "episode-1", 1, ORDER)
    for _ in range(3):
        outbox.claim(KEY, "base")
    found = outbox.get(KEY)
    assert found is not None
    assert found.claims == 3
    assert claimed_at(tmp_path) == sorted(claimed_at(tmp_path))


def test_what_is_reported_is_not_delivered_again(outbox: Outbox) -> None:
    outbox.add(KEY, "episode-1", 1, ORDER)
    outbox.report(KEY, report())
    with pytest.raises(DeliveryError, match="already been reported"):
        outbox.claim(KEY, "base")
    found = outbox.get(KEY)
    assert found is not None
    assert (found.state, found.claims) == (DeliveryState.REPORTED, 0)


def test_the_first_report_stays(outbox: Outbox) -> None:
    outbox.add(KEY, "episode-1", 1, ORDER)
    outbox.claim(KEY, "base")
    outbox.report(KEY, report())
    outbox.report(KEY, report())
    with pytest.raises(DeliveryError, match="already reported as completed, not as outcome_unknown"):
        outbox.report(KEY, report(ExecutorStatus.OUTCOME_UNKNOWN))
    found = outbox.get(KEY)
    assert found is not None
    assert found.report == report()


def test_an_unknown_delivery_cannot_be_claimed_or_reported(outbox: Outbox) -> None:
    with pytest.raises(DeliveryError, match="delivery 'run/1/1' not found"):
        outbox.claim(KEY, "base")
    with pytest.raises(DeliveryError, match="delivery 'run/1/1' not found"):
        outbox.report(KEY, report())


def test_deliveries_of_an_episode_come_in_order(outbox: Outbox) -> None:
    keys = [f"run/{number}/1" for number in (1, 2, 10, 3)]
    for number, key in enumerate(keys):
        outbox.add(key, "episode-1", number, ORDER)
    outbox.add("other/1/1", "episode-2", 1, ORDER)
    assert [delivery.key for delivery in outbox.deliveries("episode-1")] == keys
    assert outbox.deliveries("episode-3") == ()


def test_the_file_is_private_and_durable(outbox: Outbox, tmp_path: Path) -> None:
    outbox.add(KEY, "episode-1", 1, ORDER)
    file = state_folder(tmp_path) / "outbox.db"
    assert file.stat().st_mode & 0o777 == 0o600
    connection = sqlite3.connect(file)
    assert connection.execute("PRAGMA journal_mode").fetchone()[0] == "wal"
    connection.close()


def test_a_newer_or_damaged_file_is_refused_with_a_sentence(outbox: Outbox, tmp_path: Path) -> None:
    outbox.add(KEY, "episode-1", 1, ORDER)
    file = state_folder(tmp_path) / "outbox.db"
    connection = sqlite3.connect(file)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(DeliveryError, match="has schema version 99"):
        outbox.get(KEY)
    file.write_bytes(b"not a database, but long enough to be read as one" * 100)
    with pytest.raises(DeliveryError, match="is damaged"):
        outbox.get(KEY)


def start(code: str, workspace: Path, *arguments: str) -> subprocess.Popen[str]:
    head = """
import sys, time
from pathlib import Path
from activities.executor.outbox import open_outbox
from tightloop.value import reference
outbox = open_outbox(Path(sys.argv[1]))
ORDER = reference(b"the order", name="work order")
"""
    return subprocess.Popen(
        (sys.executable, "-c", head + code, str(workspace), *arguments),
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        stdout=subprocess.PIPE,
        text=True,
    )


def test_a_claim_survives_the_death_of_its_process(outbox: Outbox, tmp_path: Path) -> None:
    outbox.add(KEY, "episode-1", 1, ORDER)
    with start("outbox.claim('run/1/1', 'base'); print('claimed', flush=True); time.sleep(60)", tmp_path) as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "claimed\n"
        worker.send_signal(signal.SIGKILL)
        assert worker.wait(10) == -signal.SIGKILL
    found = outbox.get(KEY)
    assert found is not None
    assert (found.state, found.claims, found.report) == (DeliveryState.CLAIMED, 1, None)
    outbox.claim(KEY, "base")
    outbox.report(KEY, report())
    assert state_of(outbox) is DeliveryState.REPORTED


def test_a_death_in_the_middle_of_writing_leaves_a_whole_file(outbox: Outbox, tmp_path: Path) -> None:
    code = """
for number in range(100_000):
    outbox.add(f"run/{number}/1", "episode-1", number, ORDER)
    print(number, flush=True)
"""
    with start(code, tmp_path) as worker:
        assert worker.stdout is not None
        for _ in range(20):
            last = int(worker.stdout.readline())
        worker.send_signal(signal.SIGKILL)
        last = max([last, *(int(line) for line in worker.stdout if line.endswith("\n"))])
        worker.wait(10)
    deliveries = outbox.deliveries("episode-1")
    assert [delivery.iteration for delivery in deliveries] == list(range(len(deliveries)))
    assert len(deliveries) >= last + 1


def test_two_processes_and_many_threads_share_one_file(tmp_path: Path) -> None:
    code = """
for number in range(25):
    outbox.add(f"run/{number}/1", "episode-1", number, ORDER)
    outbox.claim(f"run/{number}/1", "base")
"""
    workers = [start(code, tmp_path) for _ in range(2)]
    outbox = open_outbox(tmp_path)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda number: outbox.add(f"thread/{number}/1", "episode-2", number, ORDER), range(20)))
    for worker in workers:
        worker.communicate(timeout=60)
        assert worker.returncode == 0
    deliveries = outbox.deliveries("episode-1")
    assert len(deliveries) == 25
    assert {delivery.claims for delivery in deliveries} == {2}
    assert len(outbox.deliveries("episode-2")) == 20


def test_a_call_keeps_the_locks_of_the_other_connections_of_its_process(outbox: Outbox, tmp_path: Path) -> None:
    outbox.add(KEY, "episode-1", 1, ORDER)
    file = state_folder(tmp_path) / "outbox.db"
    with closing(sqlite3.connect(file)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM delivery").fetchall()
        outbox.add("run/2/1", "episode-1", 2, ORDER)
        with start("outbox.add('run/3/1', 'episode-1', 3, ORDER)", tmp_path) as other:
            assert other.wait(30) == 0
        # The last process that closes a database deletes its log: the other one must have seen that it is not the last.
        assert file.with_name("outbox.db-wal").exists()
        outbox.add("run/4/1", "episode-1", 4, ORDER)
    assert [delivery.iteration for delivery in outbox.deliveries("episode-1")] == [1, 2, 3, 4]
