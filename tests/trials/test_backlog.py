"""More steps than one worker's only slot can take wait and are seen, and a second worker takes its share of them."""

import asyncio
import math
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
import yaml
from temporalio.api.enums.v1 import EventType, TimeoutType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client

from tests.support.episodes import Git, eventually
from tests.support.extent import part
from tests.support.stack.plan_killing import COUNTS
from tests.support.stack.stack import ROOT, Stack, shared_state, wait_for_port
from tightloop.client import TightloopClient
from tightloop.errors import WorkspaceElsewhereError
from tightloop.plan.request import PlanOutcome, PlanRequest
from workflows.plan.dispatch import WINDOW_LIMIT

BACKLOG = part(60, of=500)
PLANS = math.ceil(BACKLOG / WINDOW_LIMIT)
STEPS = math.ceil(BACKLOG / PLANS)
"""Of each plan; all of them wait at once."""
PATIENCE_S = 60 + BACKLOG
GATE = "begin"
FAILED = {EventType.EVENT_TYPE_ACTIVITY_TASK_FAILED, EventType.EVENT_TYPE_ACTIVITY_TASK_TIMED_OUT}


def only_waited(event: HistoryEvent) -> bool:
    """Return whether a step had not begun: it was sent on to the host of its workspace, or looked who works there."""
    failed = event.activity_task_failed_event_attributes.failure.cause.application_failure_info
    waited = event.activity_task_timed_out_event_attributes.failure.timeout_failure_info
    return (
        failed.type == WorkspaceElsewhereError.__name__
        or waited.timeout_type == TimeoutType.TIMEOUT_TYPE_SCHEDULE_TO_START
    )


def plan_of(number: int) -> str:
    """Return a plan of steps that need nothing of each other, and begin together once a person lets them.

    A plan that begins waits behind those that run already, so without the gate few of their steps would meet.
    """
    steps: list[dict[str, object]] = [{"id": GATE, "gate": {"approval": {"question": "Begin?"}}}]
    steps += [
        {"id": f"s{step}", "needs": [GATE], "access": "none", "run": f"sleep 0.4; echo p{number}s{step} >> {COUNTS}"}
        for step in range(STEPS)
    ]
    head = {"id": f"p{number}", "title": "Many steps", "max_parallel": WINDOW_LIMIT, "policy": {"write": [COUNTS]}}
    return yaml.safe_dump({**head, "steps": steps})


def project(folder: Path, git: Git) -> Path:
    """Make a repository of its own: a plan holds its workspace."""
    folder.mkdir()
    (folder / ".gitignore").write_text(f"{COUNTS}\n")
    git(folder, "init", "--quiet")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "-m", "start")
    return folder


@pytest.mark.timeout(2 * PATIENCE_S + 240)
async def test_a_second_worker_helps_to_drain_a_backlog(git: Git, tmp_path: Path) -> None:
    one_slot = {"TIGHTLOOP_WORKER__MAX_CONCURRENT_ACTIVITIES": "1", **shared_state()}
    projects = [project(tmp_path / f"p{number}", git) for number in range(PLANS)]
    with Stack(tmp_path / "stack", one_slot) as stack:
        stack.start_server()
        wait_for_port(stack.settings.temporal.address)
        stack.add_worker("--role", "workflows")
        first = stack.add_worker("--role", "workspace")
        await eventually(lambda: ready(stack), seconds=120)
        client = await TightloopClient.connect(settings=stack.settings)
        ids = [
            await client.start(PlanRequest(workspace=str(folder), source=plan_of(number)))
            for number, folder in enumerate(projects)
        ]

        async def all_ask() -> bool:
            return all([(await client.status(each)).questions for each in ids])

        await eventually(all_ask, seconds=PATIENCE_S)
        await asyncio.gather(*(client.answer(each, "approve", question=GATE) for each in ids))
        most = 0

        async def waits() -> int:
            nonlocal most
            now = sum(each.count for each in (await client.topology()).backlogs.values())
            most = max(most, now)
            return now if now >= 0.8 * BACKLOG else 0

        await eventually(waits, seconds=PATIENCE_S)
        told = await asyncio.to_thread(doctor, stack)
        second = stack.add_worker("--role", "workspace")
        began = time.monotonic()
        async with asyncio.timeout(PATIENCE_S):
            results = await asyncio.gather(*(client.result(each) for each in ids))
        took = time.monotonic() - began

        async def nothing_waits() -> bool:
            return not (await client.topology()).backlogs

        await eventually(nothing_waits, seconds=60)
        temporal = await Client.connect(stack.settings.temporal.address)
        started, events = Counter[int](), Counter[int]()
        for each in ids:
            async for event in temporal.get_workflow_handle(each).fetch_history_events():
                events[event.event_type] += not only_waited(event)
                if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_STARTED:
                    identity = event.activity_task_started_event_attributes.identity
                    started[int(identity.partition("@")[0])] += 1
    ran = Counter(line for folder in projects for line in (folder / COUNTS).read_text().split())
    share = {name: started[process.pid] for name, process in (("first", first), ("second", second))}
    print(f"\n{most} waited at once; after the second worker's start {took:.1f} s; started by {share}")
    print("\n".join(told))
    assert any("step" in line for line in told)
    assert [result.outcome for result in results] == [PlanOutcome.COMPLETED] * PLANS
    assert set(ran.values()) == {1}
    assert len(ran) == PLANS * STEPS
    assert not any(events[kind] for kind in FAILED)
    assert events[EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED] == 0
    assert min(share.values()) > BACKLOG / 20, "each worker does its part"


async def ready(stack: Stack) -> bool:
    """Return whether both workers are."""
    return stack.worker_log().count(" is ready") == 2


def doctor(stack: Stack) -> list[str]:
    """Return what `tightloop doctor` tells operators of steps that wait."""
    command = (str(Path(sys.executable).with_name("tightloop")), "doctor")
    done = subprocess.run(command, cwd=ROOT, env=stack.environment, capture_output=True, text=True, timeout=120)
    return [line for line in done.stdout.splitlines() if "waiting on" in line]
