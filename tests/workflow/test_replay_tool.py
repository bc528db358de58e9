"""`python -m worker replay`: what a person sees who replays a file, or an episode that still runs."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.episodes import APPEND, Working, eventually, scripted
from tightloop.client.keys import new_ring, write_ring
from tightloop.client.sealing import Keys, SealingCodec
from worker.replay import fetch_history, format_replay, read_history, replay
from worker.up import warn_of_changed_code

PROJECT = Path(__file__).parents[2]
RECORDED = PROJECT / "tests" / "replay" / "histories" / "paused_and_resumed.json"


async def run_replay(tmp_path: Path, *what: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "worker", "replay", *what]
    environment = {**os.environ, **variables, "XDG_CONFIG_HOME": str(tmp_path)}
    # In a thread: a worker of the test may have to answer meanwhile.
    return await asyncio.to_thread(
        subprocess.run, command, cwd=PROJECT, env=environment, capture_output=True, text=True, timeout=60
    )


@pytest.mark.parametrize("authenticate", ["true", "false"])
async def test_a_history_file_is_replayed_and_told_as_a_story(tmp_path: Path, authenticate: str) -> None:
    """With keys here or without: it is not sealed."""
    variables = {"TIGHTLOOP_HOME": str(tmp_path / "state"), "TIGHTLOOP_TEMPORAL__AUTHENTICATE": authenticate}
    done = await run_replay(tmp_path, str(RECORDED), **variables)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    kinds = [line[21:].split()[0] for line in lines[:-1]]
    assert kinds[0] == "opened"
    assert kinds.index("paused") < kinds.index("resumed") < kinds.index("closed")
    events = len(json.loads(RECORDED.read_text())["events"])
    assert (
        lines[-1]
        == f"replayed {events} events of sample-paused-and-resumed: the current code is compatible with the history"
    )


async def test_a_history_that_does_not_fit_is_told_and_ends_with_1(tmp_path: Path) -> None:
    """As if the code that recorded it had called another activity where ours plans."""
    other = tmp_path / "other.json"
    other.write_text(RECORDED.read_text().replace('"next_plan"', '"plan_next"'))
    done = await run_replay(tmp_path, str(other))
    assert done.returncode == 1
    assert "DIVERGED: the current code is not compatible with the history of sample-paused-and-resumed." in done.stdout
    rows = [line for line in done.stdout.splitlines() if line.startswith("  ")]
    assert [row.split("  ")[1].strip() for row in rows] == ["where", "history has", "code wants", "look at"]
    assert rows[0].endswith("iteration 1, PLANNING, event 18")
    assert rows[1].endswith("activity plan_next (iteration 1: next plan)")
    assert rows[2].endswith("activity next_plan")
    assert "ckpt-0, the last checkpoint before this event (iteration 0, event 9 of run " in rows[3]
    assert "Let the workflow finish on the build that recorded it" in done.stdout
    # Nothing that the core does to the run once it has left the history.
    assert "closed" not in done.stdout
    for raw in ("Traceback", "TMPRL1100", "WARN", "event id above", "Failure {"):
        assert raw not in done.stdout + done.stderr


async def test_the_folder_of_an_export_is_replayed(tmp_path: Path) -> None:
    folder = tmp_path / "letter"
    folder.mkdir()
    (folder / "history.json").write_text(RECORDED.read_text())
    done = await run_replay(tmp_path, str(folder))
    assert done.returncode == 0, done.stderr
    assert "the current code is compatible with the history" in done.stdout


async def test_a_folder_named_as_an_episode_does_not_hide_it(tmp_path: Path) -> None:
    nobody = {"TIGHTLOOP_TEMPORAL__ADDRESS": "127.0.0.1:1"}
    done = await run_replay(tmp_path, "docs", **nobody)
    assert "cannot reach Temporal" in done.stderr


async def test_a_worker_says_once_that_its_code_changed_and_names_the_restart(tmp_path: Path, caplog) -> None:
    file = tmp_path / "workflows" / "episode" / "iteration.py"
    file.parent.mkdir(parents=True)
    file.write_text("before")
    looking = asyncio.create_task(warn_of_changed_code(every=0.05, root=tmp_path))
    await asyncio.sleep(0.3)
    assert not looking.done()
    file.write_text("after")
    await asyncio.wait_for(looking, 10)
    [told] = [record.getMessage() for record in caplog.records if record.name == "tightloop"]
    assert "the code of this worker has changed since the worker started: workflows/episode/iteration.py." in told
    assert "restart the worker: tightloop up" in told


async def test_a_file_that_is_no_history_ends_with_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "notes.json").write_text("notes")
    done = await run_replay(tmp_path, str(tmp_path / "notes.json"))
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(f"error: {tmp_path / 'notes.json'} is not an episode history")
    assert "Traceback" not in done.stderr


async def test_a_running_episode_is_replayed_by_its_id(
    client, temporal_client, settings, working: Working, request_for, tmp_path: Path
) -> None:
    async with working():
        episode_id = await client.start(request_for(executor=scripted(APPEND, {**APPEND, "hang": True})))

        async def hangs() -> bool:
            status = await client.status(episode_id)
            return status.iteration == 2 and status.phase.value == "EXECUTING"

        await eventually(hangs)
        replayed = await replay(await fetch_history(temporal_client, episode_id))
        shown = await run_replay(tmp_path, episode_id, TIGHTLOOP_TEMPORAL__ADDRESS=settings.temporal.address)
        still = await client.status(episode_id)
        await client.cancel(episode_id)
        await client.result(episode_id)
    assert replayed.failure == ""
    assert [entry.kind for entry in replayed.timeline] == ["opened", "iteration"]
    assert f"of {episode_id}: the current code is compatible with the history" in format_replay(replayed)
    assert shown.returncode == 0, shown.stderr
    assert f"of {episode_id}: the current code is compatible with the history" in shown.stdout
    assert still.status == "running"


async def test_an_encrypted_history_without_its_key_ends_with_one_line_that_names_the_key_and_says_what_to_do(
    tmp_path: Path,
) -> None:
    ring, sealed = new_ring(), tmp_path / "sealed.json"
    codec = SealingCodec(Keys(ring))
    history = read_history(RECORDED)
    started = history.events[0].workflow_execution_started_event_attributes
    [payload] = await codec.encode(started.input.payloads)
    started.input.payloads[0].CopyFrom(payload)
    sealed.write_text(history.to_json())
    homes = {name: tmp_path / name for name in ("with_it", "with_another")}
    write_ring(homes["with_it"] / "keys.json", ring)
    write_ring(homes["with_another"] / "keys.json", new_ring())
    # The history was recorded without seals.
    plain = {"TIGHTLOOP_TEMPORAL__AUTHENTICATE": "false"}
    on = {
        name: {"TIGHTLOOP_HOME": str(home), "TIGHTLOOP_PRIVACY__ENCRYPT": "true", **plain}
        for name, home in homes.items()
    }
    told = await run_replay(tmp_path, str(sealed), **on["with_it"])
    off = await run_replay(tmp_path, str(sealed), **plain)
    another = await run_replay(tmp_path, str(sealed), **on["with_another"])
    assert told.returncode == 0, told.stderr
    for done, advice in ((off, "Turn on either one, using the key file"), (another, "Copy the key file")):
        assert done.returncode == 1
        assert done.stdout == ""
        [line] = done.stderr.splitlines()
        assert line.startswith("error: cannot decrypt the history of sample-paused-and-resumed: ")
        assert ring.current in line
        assert advice in line


async def test_an_unknown_episode_ends_with_a_sentence(settings, tmp_path: Path) -> None:
    done = await run_replay(tmp_path, "ep-nobody", TIGHTLOOP_TEMPORAL__ADDRESS=settings.temporal.address)
    assert done.returncode == 1
    assert "ep-nobody" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
