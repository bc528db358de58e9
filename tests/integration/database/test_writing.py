"""What activities write: numbered checkpoints, the trail, snapshots where the newest wins, steps, and what is freed."""

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest

from tests.support.ledger import START, question, snapshot
from tightloop.database.ledger import Ledger
from tightloop.episode.checkpoint import CheckpointRecord
from tightloop.episode.progress.tracking import ProbabilityClass
from tightloop.errors import EpisodeNotFoundError
from tightloop.ledger.model import ProjectLine, StepRow, TrailEvent


def record(iteration: int = 0, **fields: object) -> CheckpointRecord:
    return CheckpointRecord.model_validate({"id": "ckpt-0", "iteration": iteration, **fields})


def kinds(ledger: Ledger, workflow_id: str) -> list[str]:
    return [line.kind for line in ledger.events(workflow_id=workflow_id)]


def test_checkpoints_are_numbered_from_zero_in_each_episode(ledger: Ledger) -> None:
    project = ledger.of("orders-1")
    assert [project.record_checkpoint("one", key, record()).id for key in "abc"] == ["ckpt-0", "ckpt-1", "ckpt-2"]
    assert project.record_checkpoint("two", "a", record()).id == "ckpt-0"
    assert ledger.of("other-1").record_checkpoint("one", "a", record()).id == "ckpt-0"


def test_same_key_returns_the_first_record(ledger: Ledger) -> None:
    project = ledger.of("orders-1")
    first = project.record_checkpoint("one", "run-1/5", record(1, title="first"))
    assert project.record_checkpoint("one", "run-1/5", record(2, title="retry")) == first
    assert ledger.checkpoints("one") == (first,)
    assert project.is_recorded("one", "run-1/5")
    assert not project.is_recorded("one", "run-1/6")


def test_all_fields_come_back(ledger: Ledger) -> None:
    at = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    full = record(7, tree="t" * 40, probability_class=ProbabilityClass.LOW, title="caf\u00e9 \u2028\x00", at=at)
    kept = ledger.of("orders-1").record_checkpoint("one", "k", full)
    assert kept == full
    assert ledger.checkpoints("one") == (full,)


def test_many_threads_get_different_numbers(ledger: Ledger) -> None:
    project = ledger.of("orders-1")
    with ThreadPoolExecutor(16) as pool:
        kept = list(pool.map(lambda n: project.record_checkpoint("one", f"k{n}", record(n)), range(40)))
    assert sorted(entry.number for entry in kept) == list(range(40))


def test_numbers_of_lines_grow_in_the_order_in_which_readers_see_them(ledger: Ledger) -> None:
    project = ledger.of("orders-1")

    def add(number: int) -> None:
        project.add_event(TrailEvent(episode_id="one", kind="note", key=f"k{number}"))

    seen: list[int] = []
    with ThreadPoolExecutor(8) as pool:
        done = [pool.submit(add, number) for number in range(60)]
        while len(seen) < 60:
            is_last_look = all(each.done() for each in done)
            seen += [line.seq for line in ledger.events(after=seen[-1] if seen else 0)]
            if is_last_look:
                break
    assert len(seen) == 60
    assert seen == sorted(seen)
    assert ledger.last_event() == seen[-1]


def test_event_with_the_same_key_is_recorded_once(ledger: Ledger) -> None:
    project = ledger.of("orders-1")
    for text in ("first", "again"):
        project.add_event(TrailEvent(episode_id="one", kind="handed_off", text=text, key="it-1"))
    project.add_event(TrailEvent(episode_id="two", kind="handed_off", text="other", key="it-1"))
    assert [event.text for event in project.events("one")] == ["first"]


def test_events_without_key_are_all_kept_in_order_and_get_a_time(ledger: Ledger) -> None:
    project = ledger.of("orders-1")
    for number in range(3):
        project.add_event(TrailEvent(episode_id="one", kind="note", text=str(number)))
    events = project.events("one")
    assert [event.text for event in events] == ["0", "1", "2"]
    assert all(event.at is not None and event.at.tzinfo is not None for event in events)


def test_texts_that_a_database_refuses_are_kept_readable(ledger: Ledger) -> None:
    ledger.of("orders-1").add_event(TrailEvent(episode_id="one", kind="note", text="a\x00b\ud800c"))
    assert ledger.events()[0].text == "a\ufffdb?c"


def test_newest_snapshot_wins_whatever_the_order_of_arrival(ledger: Ledger) -> None:
    project = ledger.of("orders-1")
    project.record(snapshot("one", 2, status="paused", iteration=2, questions=(question(),)))
    project.record(snapshot("one", 1, iteration=1))
    assert (ledger.workflow("one").status, ledger.workflow("one").iteration) == ("paused", 2)
    # The id is used again: by a workflow that starts with its first run.
    again = START + timedelta(hours=1)
    project.record(snapshot("one", 60, run=2, closed=again))
    project.record(snapshot("one", 61, started=again))
    found = ledger.workflow("one")
    assert (found.run, found.status, found.started, found.closed) == (1, "running", again, None)


def test_changes_that_people_see_become_lines_of_the_trail_once(ledger: Ledger) -> None:
    project = ledger.of("orders-1")
    said = [
        snapshot("one", 0),
        snapshot("one", 1, status="paused", questions=(question(),)),
        snapshot("one", 2, status="running"),
        snapshot("one", 3, status="running", iteration=3),
        snapshot("one", 4, status="succeeded", closed=START + timedelta(minutes=4)),
    ]
    for each in said:
        project.record(each)
        project.record(each)
    assert kinds(ledger, "one") == ["running", "paused", "asked", "running", "settled", "succeeded"]
    assert ledger.events(workflow_id="one")[2].text == "Allow q1?"


def test_what_has_ended_asks_nothing(ledger: Ledger) -> None:
    project = ledger.of("orders-1")
    project.record(snapshot("one", 1, status="paused", questions=(question(),)))
    assert len(ledger.inbox()) == 1
    project.record(snapshot("one", 2, status="failed", questions=(question(),), closed=START + timedelta(minutes=2)))
    assert ledger.inbox() == ()
    assert ledger.workflow("one").waiting_since is None


def test_progress_moves_a_workflow_without_a_line_of_the_trail(ledger: Ledger) -> None:
    project = ledger.of("orders-1")
    project.record(snapshot("one", 0, details={"phase": "working"}))
    project.progress("one", iteration=3, checks="2/3", cost_usd=0.5, at=START + timedelta(minutes=3))
    project.progress("one", iteration=2, checks="1/3", cost_usd=0.2, at=START + timedelta(minutes=2))
    project.progress("unknown", iteration=2, checks="1/3", cost_usd=0.2, at=START)
    found = ledger.workflow("one")
    assert (found.iteration, found.checks, found.cost_usd) == (3, "2/3", 0.5)
    assert found.details == {"phase": "working"}
    assert kinds(ledger, "one") == ["running"]


def test_steps_are_kept_as_they_last_were(ledger: Ledger) -> None:
    project = ledger.of("orders-1")
    begun = StepRow(plan_id="plan", step="build", status="running", attempt=1, order=1, at=START, needs=("fetch",))
    ended = begun.evolve(status="completed", at=START + timedelta(minutes=1))
    fetched = StepRow(plan_id="plan", step="fetch", status="completed", order=0)
    for rows in ([begun], [ended, fetched], [begun], [ended]):
        project.record_steps(rows)
    assert ledger.steps("plan") == (fetched, ended)
    assert [line.text.split(",")[0] for line in ledger.events(workflow_id="plan")] == [
        "build: running",
        "build: completed",
        "fetch: completed",
    ]


def test_freed_workflows_leave_one_line(ledger: Ledger) -> None:
    project = ledger.of("orders-1")
    for name in ("one", "two"):
        project.record(snapshot(name))
        project.record_checkpoint(name, "k", record())
        project.record_steps([StepRow(plan_id=name, step="s", status="completed")])
    assert project.counted_rows(["one"]) == 3
    project.free(["one"])
    with pytest.raises(EpisodeNotFoundError):
        ledger.workflow("one")
    assert kinds(ledger, "one") == ["freed"]
    assert (ledger.checkpoints("one"), ledger.steps("one")) == ((), ())
    assert project.last_activity()[1] == {"one"}
    assert (len(ledger.checkpoints("two")), len(ledger.steps("two"))) == (1, 1)


def test_project_is_known_by_what_was_last_said_of_it(ledger: Ledger) -> None:
    ledger.select_project(ProjectLine(id="orders-1", name="orders", workspace="/src/orders", host="a")).record(
        snapshot("one")
    )
    ledger.of("orders-1").record(snapshot("two", 5))
    found = ledger.project("orders-1")
    assert (found.name, found.workspace, found.host, found.running) == ("orders", "/src/orders", "a", 2)
    assert found.last_event == START + timedelta(minutes=5)
