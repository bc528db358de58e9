"""Episodes stay open while another build of the workers is started, gets a part of the new ones, and then all of them.

`TIGHTLOOP_TEST_UPGRADE_EPISODES=20` runs so many of them.
"""

import asyncio
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client

from tests.support.episodes import eventually, scripted
from tests.support.model_server import ModelServer, says
from tests.support.stack.stack import ROOT, Stack, wait_for_port
from tests.trials.test_host_loss import PLAN
from tightloop.client import TightloopClient
from tightloop.episode.budget import Budget
from tightloop.episode.model import EpisodeOutcome, EpisodeRequest

DEAD_SECONDS = 3.5
"""Three heartbeats are missed then."""
EPISODES = int(os.environ.get("TIGHTLOOP_TEST_UPGRADE_EPISODES", "4"))
LINES = {"stays": 1, "moves": 3, "walks": 1}
"""An episode that stays is done with the iteration that runs; one that moves has further ones; one that walks has
iterations all the while."""


def request(workspace: Path, go: Path, kind: str) -> EpisodeRequest:
    """An episode that cannot end before the file `go` is there."""
    # Checks see the workspace only.
    waits = (
        f"sleep 1; [ ! -e {go} ] || touch data/go"
        if kind == "walks"
        else f"until [ -e {go} ]; do sleep 0.1; done; touch data/go"
    )
    step = {"append": [{"path": "log.txt", "text": "{n}\n"}], "run": ["sh", "-c", f"mkdir -p data; {waits}"]}
    return EpisodeRequest(
        goal="write lines",
        workspace=str(workspace),
        planner="openai",
        definition_of_done=[f"test $(wc -l < log.txt) -ge {LINES[kind]} && test -e data/go"],  # type: ignore[list-item]
        executor=scripted(step),
        budget=Budget(max_iterations=None, warn_at_iteration=None, max_executor_failures=None),
        repeat_error_limit=10_000,
        deviation_limit=10_000,
    )


def start_build(stack: Stack, build_id: str) -> "subprocess.Popen[bytes]":
    stack.environment["TIGHTLOOP_WORKER__BUILD_ID"] = build_id
    return stack.add_worker()


def run(stack: Stack, *arguments: str, code: int = 0) -> str:
    """Run a command with the build that was started last."""
    command = [sys.executable, "-m", "tightloop.cli.main", *arguments]
    done = subprocess.run(
        command, cwd=ROOT, env=stack.environment, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == code, f"{arguments}: {done.returncode} {done.stdout[-3000:]} {done.stderr[-3000:]}"
    return done.stdout + done.stderr


async def builds_of(client: Client, episode_id: str) -> tuple[list[str], int]:
    """Return the build of each run of an episode, and how many of its workflow tasks failed."""
    builds, failures, run_id = [], 0, None
    while True:
        history = await client.get_workflow_handle(episode_id, run_id=run_id).fetch_history()
        done = [one for one in history.events if one.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED]
        versions = {one.workflow_task_completed_event_attributes.deployment_version.build_id for one in done}
        assert len(versions) == 1, f"a pinned run of {episode_id} was on {versions}"
        builds.insert(0, versions.pop())
        failures += sum(one.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED for one in history.events)
        run_id = history.events[0].workflow_execution_started_event_attributes.continued_execution_run_id
        if not run_id:
            return builds, failures


async def is_held(client: TightloopClient, episode_id: str) -> bool:
    status = await client.status(episode_id)
    assert status.status == "running", (status.status, status.questions, status.reason)
    return status.iteration >= 1 and status.phase.value == "EXECUTING"


@pytest.mark.timeout(600)
async def test_open_episodes_outlive_the_promotion_of_another_build(tmp_path: Path, workspace: Path) -> None:
    go, environment = tmp_path / "go", {
        "OPENAI_API_KEY": "test",
        "TIGHTLOOP_WORKER__DEPLOYMENT": "tl",
        "TIGHTLOOP_WORKER__HEARTBEAT_INTERVAL_S": "1",
        "TIGHTLOOP_WORKER__MAX_CONCURRENT_ACTIVITIES": "60",
    }  # fmt: skip
    with ModelServer(says(PLAN)) as model:
        environment["TIGHTLOOP_PLANNER__BASE_URL"] = model.url
        with Stack(tmp_path / "stack", environment) as stack:
            stack.start_server()
            wait_for_port(stack.settings.temporal.address)
            older = start_build(stack, "A")
            client = await TightloopClient.connect(settings=stack.settings, compare_keys=False)
            temporal = await Client.connect(stack.settings.temporal.address)
            await eventually(lambda: _works(client, 1), seconds=60)
            assert "A" in run(stack, "deploy", "promote")

            async def start(count: int, *kinds: str) -> dict[str, str]:
                started = {}
                for n in range(count):
                    folder = tmp_path / f"project-{len(list(tmp_path.glob('project-*')))}"
                    shutil.copytree(workspace, folder)
                    kind = kinds[n % len(kinds)]
                    started[await client.start(request(folder, go, kind))] = kind
                return started

            async def held(started: dict[str, str]) -> dict[str, str]:
                for each in started:
                    await eventually(lambda each=each: is_held(client, each), seconds=120)
                return started

            before = await held(await start(EPISODES, *LINES))
            newer = start_build(stack, "B")
            await eventually(lambda: _works(client, 2), seconds=60)
            assert "50 % of new workflows" in run(stack, "deploy", "ramp", "--percent", "50")
            meanwhile = await held(await start(max(2, EPISODES // 3), "moves"))
            began = time.monotonic()
            told = run(stack, "deploy", "promote")
            print(told, f"promoted in {time.monotonic() - began:.1f} s")
            assert "still open on A" in told
            after = await held(await start(2, "stays"))
            go.touch()

            found: Counter[tuple[str, str, str]] = Counter()
            for each, kind in (before | meanwhile | after).items():
                result = await asyncio.wait_for(client.result(each), 200)
                assert result.outcome is EpisodeOutcome.SUCCEEDED
                builds, failures = await builds_of(temporal, each)
                assert failures == 0, f"{failures} workflow tasks of {each} failed"
                when = "before" if each in before else "while ramping" if each in meanwhile else "after"
                found[when, kind, " -> ".join(builds)] += 1
                if each in before:
                    assert builds[0] == "A"
                    assert builds[-1] == {"stays": "A", "moves": "B"}.get(kind, builds[-1])
                if each in after:
                    assert builds == ["B"]
            print(*(f"{key}: {count}" for key, count in sorted(found.items())), sep="\n")

            # Nothing is left on the older build: its workers may go, and the newer one does what comes.
            await eventually(lambda: _drained(stack), seconds=60)
            older.terminate()
            older.wait(60)
            last = await start(1, "stays")
            assert (await client.result(next(iter(last)))).outcome is EpisodeOutcome.SUCCEEDED
            assert newer.poll() is None

            # Temporal remembers a killed worker for minutes; a promotion does not count it.
            newer.kill()
            newer.wait(60)
            await asyncio.sleep(DEAD_SECONDS)
            assert "no worker of tl:B lives on task queue 'tightloop'" in run(stack, "deploy", "promote", code=1)


async def _works(client: TightloopClient, count: int) -> bool:
    return len((await client.topology()).workflows) >= count


async def _drained(stack: Stack) -> bool:
    told = await asyncio.to_thread(run, stack, "deploy", "status")
    return any(line.split()[0] == "A" and line.split()[-2] == "0" for line in told.splitlines())
