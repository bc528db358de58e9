"""Episodes with faults of every kind: truthful ends, no double delivery, no survivor, no unnoticed hang."""

import asyncio
import random
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from activities.executor.outbox import open_outbox
from activities.executor.port import DeliveryState
from tests.support.episodes import eventually
from tests.support.extent import draw_seed, part
from tests.support.stack.stack import Stack, shared_state, wait_for_port
from tightloop.client import TightloopClient
from tightloop.client.setup import connect_and_set_up
from tightloop.episode.budget import Budget
from tightloop.episode.model import EpisodeOutcome, EpisodePhase, EpisodeRequest, EpisodeStatus
from tightloop.errors import ServiceUnavailableError
from tightloop.executor.asking import MOST_CLAIMS
from tightloop.executor.model import ExecutorChoice, ExecutorStatus
from tightloop.host import state_folder
from tightloop.run.question import QuestionKind

WORKERS = 3
AT_ONCE = 24
RANDOM_KILLS = 20
SETTLE_S = 20.0
"""The workers are killed in the end: what they had started is gone a moment later. An orphan would stay longer."""
APPEND = {"append": [{"path": "log.txt", "text": "{n}\n"}]}
ORPHAN = {**APPEND, "orphan": {"path": "late.txt", "after_s": 60}}
GIVEN_UP = "hangs that crashes was interrupted five times"
DONE = "test $(cat log.txt | wc -l) -ge 2"


@dataclass(frozen=True)
class Fault:
    """What goes wrong in the first iteration, how often it is tried, and what must be seen."""

    name: str
    count: int
    step: dict[str, Any]
    reported: ExecutorStatus | None = None
    """Status that the first delivery must have, unless crashes of others broke it off as often as it may begin."""
    waits: bool = False
    """The episode must wait, not end."""


FAULTS = (
    Fault("hang-silent", 30, {"stall": ""}, ExecutorStatus.TIMED_OUT),
    Fault("hang-retry-after-3600", 30, {"stall": "Reconnecting... 1/5 (retry-after 3600)"}, ExecutorStatus.TIMED_OUT),
    Fault("nothing-done", 40, {}, ExecutorStatus.NO_CHANGE),
    Fault("crash-before-claim", 30, APPEND),
    Fault("crash-after-claim", 30, APPEND),
    Fault("dies-before-work", 20, {**APPEND, "crash": "before"}),
    Fault("dies-after-work", 30, {**APPEND, "crash": True}),
    Fault("crash-before-report", 20, APPEND),
    Fault("crash-after-report", 20, APPEND),
    Fault("orphan", 30, ORPHAN),
    Fault("limit-told-3600", 10, {"limit_tries": 9, "retry_after_s": 3600}, waits=True),
    Fault("cannot-work", 10, {"status": "fatal", "error": "bad key"}, waits=True),
)


def request_of(fault: Fault, workspace: Path) -> EpisodeRequest:
    return EpisodeRequest(
        goal="write two lines",
        workspace=str(workspace),
        definition_of_done=[DONE],  # type: ignore[list-item]
        executor=ExecutorChoice(
            name="scripted", options={"steps": [fault.step, *[APPEND] * 10]}, idle_limit_s=2, wall_limit_s=120
        ),
        budget=Budget(max_iterations=11, max_executor_failures=None, warn_at_iteration=None),
        pause_after=100,
    )


def project(folder: Path, template: Path) -> Path:
    shutil.copytree(template, folder)
    return folder


@asynccontextmanager
async def faulty_workers(stack: Stack, marks: Path) -> AsyncIterator[psutil.Process]:
    marks.mkdir()
    process = stack.start_faulty_workers(WORKERS, marks)
    try:
        yield psutil.Process(process.pid)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(90)


async def kill_at_random(keeper: psutil.Process, moments: random.Random) -> int:
    """kill -9 of a random worker, again and again, until cancelled or enough."""
    kills = 0
    while kills < RANDOM_KILLS:
        await asyncio.sleep(moments.uniform(2.0, 6.0))
        workers = keeper.children()
        if workers:
            with suppress(psutil.NoSuchProcess):  # it has just died of a fault of its own
                moments.choice(workers).kill()
                kills += 1
    return kills


@dataclass
class Seen:
    """How one episode ended."""

    fault: Fault
    episode_id: str
    workspace: Path
    status: EpisodeStatus


async def run_episode(client: TightloopClient, fault: Fault, number: int, workspace: Path) -> Seen:
    """Run it to its end, or to where it must wait; end it then."""
    episode_id = await client.start(request_of(fault, workspace), new_id=f"{fault.name}-{number}")
    if not fault.waits:
        try:
            async with asyncio.timeout(900):
                await client.result(episode_id)
        except TimeoutError:
            timeline = "; ".join(f"{entry.kind}: {entry.text}" for entry in await client.timeline(episode_id))
            raise AssertionError(f"{episode_id} hangs: {timeline} / {await client.status(episode_id)}") from None
        return Seen(fault, episode_id, workspace, await client.status(episode_id))

    async def waiting() -> EpisodeStatus | None:
        try:
            status = await client.status(episode_id)
        except ServiceUnavailableError:  # its worker has just been killed
            return None
        return status if status.questions or status.phase is EpisodePhase.BACKING_OFF else None

    status = await eventually(waiting, seconds=600)
    await client.cancel(episode_id, "seen enough")
    async with asyncio.timeout(600):
        await client.result(episode_id)
    return Seen(fault, episode_id, workspace, status)


def survivors(folder: Path) -> list[str]:
    """Processes that work in one of the projects."""
    found = []
    for process in psutil.process_iter(["pid", "cwd", "cmdline", "status"]):
        cwd = process.info["cwd"]
        if cwd and Path(cwd).is_relative_to(folder) and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(f"{process.info['pid']}: {process.info['cmdline']}")
    return found


def check(seen: Seen) -> Counter[str]:
    """Compare what is told with the files and the outbox; return what is worth counting."""
    deliveries = open_outbox(seen.workspace).deliveries(seen.episode_id)
    log = seen.workspace / "log.txt"
    lines = Counter(log.read_text().split()) if log.exists() else Counter()
    told = {str(d.iteration): d.report.status for d in deliveries if d.report}
    assert not lines or max(lines.values()) == 1, f"{seen.episode_id}: delivered twice: {lines}"
    assert not (seen.workspace / "late.txt").exists(), f"{seen.episode_id}: an orphan edited the tree"
    for iteration in lines:
        assert told[iteration] in (ExecutorStatus.COMPLETED, ExecutorStatus.OUTCOME_UNKNOWN), (seen.episode_id, told)
    for iteration, status in told.items():
        assert status is not ExecutorStatus.COMPLETED or iteration in lines, (seen.episode_id, told, lines)
    if seen.fault.waits:
        check_waiting(seen)
        return Counter({"waiting for a person or a time": 1})
    assert seen.status.outcome is EpisodeOutcome.SUCCEEDED, (seen.episode_id, seen.status.reason)
    assert all(delivery.state is DeliveryState.REPORTED for delivery in deliveries)
    done = subprocess.run(["sh", "-c", DONE], cwd=seen.workspace, check=False)
    assert done.returncode == 0, f"{seen.episode_id} claims what is not true"
    first = next(delivery for delivery in deliveries if delivery.iteration == 1)
    given_up = first.claims == MOST_CLAIMS and told["1"] is ExecutorStatus.OUTCOME_UNKNOWN
    if seen.fault.reported is not None and not given_up:
        assert told["1"] is seen.fault.reported, (seen.episode_id, told, first.claims)
    return Counter(
        {
            "green, and truly so": 1,
            "deliveries begun again, without effect before": sum(d.claims > 1 for d in deliveries),
            GIVEN_UP: seen.fault.reported is ExecutorStatus.TIMED_OUT and given_up,
            "deliveries with unknown outcome": sum(s is ExecutorStatus.OUTCOME_UNKNOWN for s in told.values()),
            "hangs noticed": sum(status is ExecutorStatus.TIMED_OUT for status in told.values()),
        }
    )


def check_waiting(seen: Seen) -> None:
    if seen.fault.name == "cannot-work":
        assert seen.status.questions
        assert seen.status.questions[0].kind is QuestionKind.FATAL
        assert "bad key" in seen.status.questions[0].title
    else:
        assert seen.status.phase is EpisodePhase.BACKING_OFF


@pytest.mark.timeout(3000)
async def test_episodes_with_faults_end_truthfully(workspace: Path, tmp_path: Path) -> None:
    seed = draw_seed()
    share = part(12, of=300) / sum(fault.count for fault in FAULTS)
    moments = random.Random(seed)
    projects = tmp_path / "projects"
    todo = [(fault, number) for fault in FAULTS for number in range(max(1, round(fault.count * share)))]
    moments.shuffle(todo)
    environment = {
        **shared_state(),
        "TIGHTLOOP_SANDBOX__UNSAFE_LOCAL": "true",
        "TIGHTLOOP_WORKER__GRACEFUL_SHUTDOWN_S": "1",
    }
    with Stack(tmp_path / "stack", environment) as stack:
        stack.start_server()
        wait_for_port(stack.settings.temporal.address)
        client = await TightloopClient.connect(settings=stack.settings)
        await connect_and_set_up(stack.settings)
        async with faulty_workers(stack, tmp_path / "marks") as keeper:
            killer = asyncio.create_task(kill_at_random(keeper, moments))
            places = asyncio.Semaphore(AT_ONCE)

            async def one(fault: Fault, number: int) -> Seen:
                async with places:
                    folder = await asyncio.to_thread(project, projects / f"{fault.name}-{number}", workspace)
                    return await run_episode(client, fault, number, folder)

            ended = await asyncio.gather(*(one(fault, number) for fault, number in todo))
            killer.cancel()
            deaths = len(list((tmp_path / "marks").iterdir())) + len(
                [crash for each in projects.iterdir() for crash in state_folder(each).rglob("*.crashed")]
            )
        left = survivors(projects)
        until = time.monotonic() + SETTLE_S
        while left and time.monotonic() < until:
            await asyncio.sleep(0.2)
            left = survivors(projects)
    figures: Counter[str] = Counter()
    for seen in ended:
        figures += check(seen)
    print(f"\nseed {seed}: {len(ended)} episodes with faults")
    print(f"  workers that died by kill -9 at a chosen moment: {deaths}, and at a random one: up to {RANDOM_KILLS}")
    for name, count in sorted(figures.items()):
        print(f"  {name}: {count}")
    print(f"  double deliveries: 0, late edits: 0, surviving processes: {len(left)}")
    assert left == []
    hangs = sum(seen.fault.reported is ExecutorStatus.TIMED_OUT for seen in ended)
    assert figures["hangs noticed"] >= hangs - figures[GIVEN_UP]
