"""Episodes stay open while a second build of the workers starts, gets a part of the new ones, and then all of them."""

import asyncio
import shutil
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client

from tests.support.episodes import eventually
from tests.support.extent import part
from tests.support.line_writing import PLAN, line_request
from tests.support.model_server import ModelServer, says
from tests.support.stack.stack import ROOT, Stack, wait_for_port
from tightloop.client import TightloopClient
from tightloop.episode.model import EpisodeOutcome, EpisodeRequest

DEAD_SECONDS = 3.5
"""Three heartbeats are missed then."""
EPISODES = part(4, of=20)
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
    done = f"test $(wc -l < log.txt) -ge {LINES[kind]} && test -e data/go"
    return line_request(
        workspace, LINES[kind], {"run": ["sh", "-c", f"mkdir -p data; {waits}"]}, definition_of_done=[done]
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


@dataclass(frozen=True)
class Episodes:
    """Starts episodes in folders of their own, and looks on which builds they ended."""

    client: TightloopClient
    temporal: Client
    folder: Path
    workspace: Path
    """What each folder begins with."""
    found: Counter[tuple[str, str, str]] = field(default_factory=Counter)

    @property
    def go(self) -> Path:
        """Let them end."""
        return self.folder / "go"

    async def start(self, count: int, *kinds: str) -> dict[str, str]:
        """Start so many; return the kind of each."""
        started = {}
        for n in range(count):
            project = self.folder / f"project-{len(list(self.folder.glob('project-*')))}"
            shutil.copytree(self.workspace, project)
            started[await self.client.start(request(project, self.go, kinds[n % len(kinds)]))] = kinds[n % len(kinds)]
        return started

    async def held(self, count: int, *kinds: str) -> dict[str, str]:
        """Start so many, and wait until each is in the middle of an iteration."""
        started = await self.start(count, *kinds)
        for each in started:
            await eventually(lambda each=each: is_held(self.client, each), seconds=120)
        return started

    async def ended(self, started: dict[str, str], when: str) -> list[tuple[str, list[str]]]:
        """Return the kind and the builds of each; all have to be green, with no failed workflow task."""
        all_builds = []
        for each, kind in started.items():
            result = await asyncio.wait_for(self.client.result(each), 200)
            assert result.outcome is EpisodeOutcome.SUCCEEDED
            builds, failures = await builds_of(self.temporal, each)
            assert failures == 0, f"{failures} workflow tasks of {each} failed"
            self.found[when, kind, " -> ".join(builds)] += 1
            all_builds.append((kind, builds))
        return all_builds


@pytest.mark.timeout(600)
async def test_open_episodes_outlive_the_promotion_of_another_build(tmp_path: Path, workspace: Path) -> None:
    environment = {
        "OPENAI_API_KEY": "test",
        "TIGHTLOOP_WORKER__DEPLOYMENT": "tl",
        "TIGHTLOOP_WORKER__HEARTBEAT_INTERVAL_S": "1",
        "TIGHTLOOP_WORKER__MAX_CONCURRENT_ACTIVITIES": "60",
    }
    with ModelServer(says(PLAN)) as model:
        environment["TIGHTLOOP_PLANNER__BASE_URL"] = model.url
        with Stack(tmp_path / "stack", environment) as stack:
            stack.start_server()
            wait_for_port(stack.settings.temporal.address)
            older = start_build(stack, "A")
            client = await TightloopClient.connect(settings=stack.settings, compare_keys=False)
            temporal = await Client.connect(stack.settings.temporal.address)
            episodes = Episodes(client, temporal, tmp_path, workspace)
            await eventually(lambda: _works(client, 1), seconds=60)
            assert "A" in run(stack, "deploy", "promote")
            before = await episodes.held(EPISODES, *LINES)

            newer = start_build(stack, "B")
            await eventually(lambda: _works(client, 2), seconds=60)
            assert "50 % of new workflows" in run(stack, "deploy", "ramp", "--percent", "50")
            meanwhile = await episodes.held(max(2, EPISODES // 3), "moves")
            began = time.monotonic()
            told = run(stack, "deploy", "promote")
            print(told, f"promoted in {time.monotonic() - began:.1f} s")
            assert "still open on A" in told
            after = await episodes.held(2, "stays")

            episodes.go.touch()
            for kind, builds in await episodes.ended(before, "before"):
                assert builds[0] == "A"
                assert builds[-1] == {"stays": "A", "moves": "B"}.get(kind, builds[-1])
            await episodes.ended(meanwhile, "while ramping")
            assert all(builds == ["B"] for _, builds in await episodes.ended(after, "after"))
            print(*(f"{key}: {count}" for key, count in sorted(episodes.found.items())), sep="\n")

            await old_workers_may_go(stack, older, episodes)
            assert newer.poll() is None
            # Temporal remembers a killed worker for minutes; a promotion does not count it.
            newer.kill()
            newer.wait(60)
            await asyncio.sleep(DEAD_SECONDS)
            assert "no worker of tl:B is running on task queue 'tightloop'" in run(stack, "deploy", "promote", code=1)


async def old_workers_may_go(stack: Stack, older: "subprocess.Popen[bytes]", episodes: Episodes) -> None:
    """Stop the older build once nothing is open on it; the newer one does what comes."""
    await eventually(lambda: _drained(stack), seconds=60)
    older.terminate()
    older.wait(60)
    last = await episodes.start(1, "stays")
    await episodes.ended(last, "later")


def copy_code(to: Path) -> Path:
    """Copy the packages of this commit."""
    for package in ("workflows", "activities", "tightloop", "worker"):
        shutil.copytree(ROOT / package, to / package, ignore=shutil.ignore_patterns("__pycache__"))
    return to


def run_worker_command(stack: Stack, code: Path, *arguments: str) -> str:
    """Run a command of the server part with the packages of a folder."""
    command = [sys.executable, "-m", "worker", *arguments]
    done = subprocess.run(
        command, cwd=code, env=stack.environment, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, f"{arguments}: {done.returncode} {done.stdout[-3000:]} {done.stderr[-3000:]}"
    return done.stdout + done.stderr


async def collect_on(temporal: Client, version: str) -> None:
    """Have the schedule collect once, and wait until that is done by a version of the workers."""
    [schedule] = [one.id async for one in await temporal.list_schedules()]
    await temporal.get_schedule_handle(schedule).trigger()
    done = f"TemporalWorkerDeploymentVersion = '{version}' AND ExecutionStatus = 'Completed'"
    query = f"WorkflowType = 'RetentionWorkflow' AND {done}"

    async def is_done() -> bool:
        return (await temporal.count_workflows(query)).count == 1

    await eventually(is_done, seconds=120)


async def version_of(temporal: Client, episode_id: str) -> str:
    [build] = (await builds_of(temporal, episode_id))[0]
    return f"tl:{build}"


@pytest.mark.timeout(600)
async def test_this_commit_and_the_next_are_replayed_and_promoted_after_retention_ran(
    tmp_path: Path, workspace: Path
) -> None:
    this, following = copy_code(tmp_path / "this"), copy_code(tmp_path / "next")
    with (following / "tightloop" / "value" / "__init__.py").open("a") as code:
        code.write("# The next commit.\n")
    environment = {
        "TIGHTLOOP_WORKER__DEPLOYMENT": "tl",
        "TIGHTLOOP_WORKER__HEARTBEAT_INTERVAL_S": "1",
        "TIGHTLOOP_RETENTION__EVERY_H": "24",
    }
    request = EpisodeRequest.model_validate(
        {"goal": "have an app", "workspace": str(workspace), "definition_of_done": ["test -s app.py"]}
    )
    with Stack(tmp_path / "stack", environment) as stack:
        stack.start_server()
        wait_for_port(stack.settings.temporal.address)
        client = await TightloopClient.connect(settings=stack.settings, compare_keys=False)
        temporal = await Client.connect(stack.settings.temporal.address)
        stack.tightloop("setup")
        versions = []
        for count, commit in enumerate((this, following), 1):
            stack.add_worker(code=commit)
            await eventually(lambda count=count: _works(client, count), seconds=200)
            report = tmp_path / f"{commit.name}.xml"
            told = run_worker_command(stack, commit, "replay", "--days", "7", "--junit", str(report))
            assert "is compatible" in told or count == 1
            if count == 2:
                assert 'classname="RetentionWorkflow"' in report.read_text()
                assert "50 % of new workflows" in run_worker_command(stack, commit, "deploy", "ramp", "--percent", "50")
            assert "is current: new workflows start on" in run_worker_command(stack, commit, "deploy", "promote")
            episode_id = await client.start(request)
            result = await asyncio.wait_for(client.result(episode_id), 120)
            assert result.outcome is EpisodeOutcome.SUCCEEDED
            versions.append(await version_of(temporal, episode_id))
            await collect_on(temporal, versions[-1])
        assert versions[0] != versions[1]
        print(*versions)


async def _works(client: TightloopClient, count: int) -> bool:
    return len((await client.topology()).workflows) >= count


async def _drained(stack: Stack) -> bool:
    told = await asyncio.to_thread(run, stack, "deploy", "status")
    return any(line.split()[0] == "A" and line.split()[-2] == "0" for line in told.splitlines())
