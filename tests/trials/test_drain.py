"""SIGTERM to a worker in the middle of a long delivery of an agent that does not stop when asked."""

import asyncio
import contextlib
import os
import sys
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest

from activities.executor.outbox import open_outbox
from tests.support.episodes import eventually
from tests.support.extent import part
from tests.support.stack.stack import Stack, shared_state, wait_for_port
from tightloop.client import TightloopClient
from tightloop.episode.model import EpisodeOutcome, EpisodeRequest
from tightloop.executor.model import AgentMode, ExecutorChoice, ExecutorStatus

DRAIN_S = part(1, of=10)
BOUND_S = DRAIN_S + 20
"""What docs/operate/workers.md promises: before that nobody has to kill it."""
AGENT = Path(__file__).parents[1] / "support" / "agents" / "acp_fake_agent.py"


def processes_in(folder: Path) -> set[psutil.Process]:
    """Return what works in a folder, in whatever session or namespace."""
    found = set()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.cwd() == str(folder):
                found.add(process)
    return found


@pytest.mark.timeout(240)
async def test_a_stopped_worker_hands_a_long_delivery_back(workspace: Path, tmp_path: Path) -> None:
    bound = {"TIGHTLOOP_WORKER__GRACEFUL_SHUTDOWN_S": f"{DRAIN_S}", **shared_state()}
    request = EpisodeRequest(
        goal="make made.txt",
        workspace=str(workspace),
        definition_of_done=["test -e made.txt"],  # type: ignore[list-item]
        executor=ExecutorChoice(
            name="acp", mode=AgentMode.FULL, options={"argv": [sys.executable, str(AGENT), "takes_long"]}
        ),
    )
    with Stack(tmp_path / "stack", bound) as stack:
        stack.start_server()
        wait_for_port(stack.settings.temporal.address)
        stack.add_worker("--role", "workflows")
        first = stack.add_worker("--role", "workspace")
        client = await TightloopClient.connect(settings=stack.settings)
        episode_id = await client.start(request)

        async def begun() -> bool:
            return (workspace / "begun.txt").exists()

        await eventually(begun, seconds=60)
        at_work = processes_in(workspace)
        stack.add_worker("--role", "workspace")

        async def both_ready() -> bool:
            return stack.worker_log().count("worker 'workspace' is ready") == 2

        await eventually(both_ready, seconds=60)
        stopped = time.monotonic()
        first.terminate()
        code = await asyncio.to_thread(first.wait, BOUND_S)
        took = time.monotonic() - stopped
        survivors = [process for process in at_work if process.is_running()]
        (workspace / "go.txt").touch()
        async with asyncio.timeout(90):
            result = await client.result(episode_id)
    rows = open_outbox(workspace).deliveries(episode_id)
    ends = {row.key.partition("/")[2]: row.report and row.report.status for row in rows}
    homes = Path(os.environ["TIGHTLOOP_HOME"], "homes")
    asked = Counter(file.read_text().count("\nprompt ") for file in homes.glob("*/acp/*.log"))
    print(f"\ndrained in {took:.1f} s of {BOUND_S:g} s, {len(at_work)} processes ended; {result.iterations} iterations")
    assert code == 0
    assert len(at_work) >= 2, "the agent and its child in a session of its own"
    assert not survivors
    assert not (workspace / "late.txt").exists()
    # Files had changed: the delivery is settled by what is on disk, and the next plan does the rest.
    assert ends == {"1/1": ExecutorStatus.OUTCOME_UNKNOWN, "2/1": ExecutorStatus.COMPLETED}
    assert asked == {1: 2}, "two sessions, asked once each"
    assert result.outcome is EpisodeOutcome.SUCCEEDED
