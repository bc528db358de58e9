"""Eight simulated hours with a realistic mix of faults: the loop needs a person less than once in 100 iterations."""

import asyncio
import os
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest
from temporalio.client import Client
from temporalio.testing import TimeSkippingConfig, WorkflowEnvironment

from tests.support.episodes import Git
from tests.support.simulation.account import Account, account
from tests.support.simulation.mix import ABSORBED, FIXES_NOTHING, LIMITS, TESTS_SH, Deal, Fault, deal, steps
from tightloop.client import TightloopClient
from tightloop.episode.budget import Budget
from tightloop.episode.model import EpisodeOutcome, EpisodeRequest, EpisodeResult
from tightloop.executor.model import ExecutorChoice, ExecutorStatus
from tightloop.settings import parse_settings
from worker.connect import DATA_CONVERTER
from worker.server import temporal_binary, tuning_arguments

ROOT = Path(__file__).parents[2]
SEED = int(os.environ.get("TIGHTLOOP_TEST_SEED", "8"))
ITERATIONS = 210
EXTRA = 40
"""Iterations that the script has besides: flaky runs cost some."""
LONGEST_REAL_S = 1500
SKIPS = 100_000
"""Beyond this number of timers a session stops skipping."""


@asynccontextmanager
async def skipping_server() -> AsyncIterator[WorkflowEnvironment]:
    environment = await WorkflowEnvironment.start_time_skipping_v2(
        ts_config=TimeSkippingConfig(max_session_skip_count=SKIPS),
        data_converter=DATA_CONVERTER,
        dev_server_existing_path=str(temporal_binary()),
        dev_server_extra_args=[
            *tuning_arguments(),
            "--dynamic-config-value",
            "frontend.WorkflowTimeSkippingEnabled=true",
        ],
    )
    async with environment:
        yield environment


@contextmanager
def workers(environment: dict[str, str], log: Path) -> Iterator[None]:
    with log.open("wb") as output:
        keeper = subprocess.Popen(
            [sys.executable, "-m", "tests.support.simulation.worker"],
            cwd=ROOT,
            env={**os.environ, **environment},
            stdout=output,
            stderr=output,
        )
        try:
            yield
        finally:
            keeper.send_signal(signal.SIGTERM)
            keeper.wait(90)


def request_of(dealt: Deal, workspace: Path, folder: Path) -> EpisodeRequest:
    return EpisodeRequest(
        goal="make the tests pass",
        workspace=str(workspace),
        definition_of_done=[f"sh tests.sh {dealt.fixed} {folder}", "! test -e broken.txt"],  # type: ignore[list-item]
        executor=ExecutorChoice(name="scripted", options={"steps": steps(dealt, extra=EXTRA)}),
        budget=Budget(
            max_iterations=ITERATIONS + EXTRA,
            warn_at_iteration=None,
            max_executor_failures=ITERATIONS // 4,
            max_wall_time=timedelta(hours=24),
        ),
    )


@dataclass(frozen=True)
class Seen:
    """What is left of the eight hours."""

    dealt: Deal
    result: EpisodeResult
    account: Account
    told: tuple[tuple[int, str], ...]
    """Iteration and kind of each pause that a person had to end."""
    flaked: int
    restarted: int
    lines: tuple[str, ...]
    """Number of the iteration that fixed something, one for each time."""
    real_s: float

    @property
    def faults(self) -> Counter[Fault]:
        """What went wrong in the iterations that there were."""
        return Counter(self.dealt.at(number) for number in range(1, self.result.iterations + 1))

    @property
    def unaided(self) -> float:
        """Share of the iterations that needed no person."""
        return 1 - len({number for number, _ in self.told}) / self.result.iterations

    @property
    def interventions(self) -> float:
        """Pauses for a person in 100 iterations."""
        return 100 * len(self.told) / self.result.iterations


def report(seen: Seen) -> None:
    result, found, cycles = seen.result, seen.account, sorted(seen.account.cycles())
    hours = found.waited / timedelta(hours=1)
    pauses = ", ".join(f"{kind} in {number}" for number, kind in seen.told) or "none"
    print(
        f"\n{result.iterations} iterations in {hours:.1f} simulated hours ({seen.real_s:.0f} s real), "
        f"{found.runs} runs, {found.events} events\n{seen.unaided:.1%} without a nudge, "
        f"{seen.interventions:.2f} interventions in 100 iterations: {pauses}"
    )
    print(
        f"tracker and reflection: p50 {statistics.median(cycles):.3f} s, p95 {cycles[int(0.95 * len(cycles))]:.3f} s, "
        f"most {cycles[-1]:.3f} s; {len(found.of('reflect'))} reflections"
    )
    for fault, times in seen.faults.most_common():
        if fault is Fault.NONE:
            continue
        where = [number for number in range(1, result.iterations + 1) if seen.dealt.at(number) is fault]
        helped = sum(number in where for number, _ in seen.told)
        lost = statistics.mean(found.lost(number) for number in where)
        print(
            f"  {times:3} {fault.value}: {ABSORBED[fault]}; {lost:.1f} iterations lost, a person needed {helped} times"
        )
    print(f"  {seen.flaked:3} runs of the tests with a flaky failure: no progress is seen, the next run is right")


async def runs_of(client: Client, episode_id: str) -> list[str]:
    found = [run async for run in client.list_workflows(f"WorkflowId = '{episode_id}'")]
    return [run.run_id for run in sorted(found, key=lambda run: run.start_time)]


@pytest.fixture
async def seen(workspace: Path, git: Git, tmp_path: Path) -> Seen:
    """Let the eight hours pass."""
    dealt = deal(SEED, ITERATIONS)
    folder = tmp_path / "simulation"
    folder.mkdir()
    (folder / "flaky").write_text("".join(f"{run}\n" for run in dealt.flaky_runs))
    (workspace / "tests.sh").write_text(TESTS_SH)
    (workspace / "work.txt").touch()
    git(workspace, "add", "--all")
    git(workspace, "commit", "--quiet", "-m", "tests")
    began = time.monotonic()
    async with skipping_server() as environment:
        names = {
            "TIGHTLOOP_HOME": str(tmp_path / "state"),
            "TIGHTLOOP_TEMPORAL__ADDRESS": environment.client.service_client.config.target_host,
            "TIGHTLOOP_TEMPORAL__TASK_QUEUE": f"simulation-{uuid4().hex[:8]}",
            "TIGHTLOOP_SANDBOX__UNSAFE_LOCAL": "true",
            "TIGHTLOOP_SANDBOX__WRITE": f"[{folder}]",
            "TIGHTLOOP_WORKER__STICKY_TIMEOUT_S": "1",
            "TIGHTLOOP_WORKER__GRACEFUL_SHUTDOWN_S": "1",
        }
        simulation = {
            "SIMULATION_FOLDER": str(folder),
            "SIMULATION_SEED": str(SEED),
            "SIMULATION_ITERATIONS": str(ITERATIONS),
        }
        client = TightloopClient(environment.client, parse_settings("", names))
        with workers({**names, **simulation}, tmp_path / "worker.log"):
            episode_id = await client.start(request_of(dealt, workspace, folder))
            async with asyncio.timeout(LONGEST_REAL_S):
                result = await client.result(episode_id)
            found = await account(environment.client, episode_id, await runs_of(environment.client, episode_id))
    told = (line.split() for line in lines_of(folder / "interventions"))
    return Seen(
        dealt=dealt,
        result=result,
        account=found,
        told=tuple((int(number), kind) for number, kind in told),
        flaked=len(lines_of(folder / "flaked")),
        restarted=len(list(folder.glob("*.restarted"))),
        lines=lines_of(workspace / "work.txt"),
        real_s=time.monotonic() - began,
    )


def lines_of(path: Path) -> tuple[str, ...]:
    return tuple(path.read_text().splitlines()) if path.exists() else ()


@pytest.mark.timeout(1700)
async def test_eight_hours_with_faults_need_a_person_less_than_once_in_100_iterations(seen: Seen) -> None:
    report(seen)
    result, found, faults = seen.result, seen.account, seen.faults
    assert result.outcome is EpisodeOutcome.SUCCEEDED
    assert result.iterations >= 200
    assert found.waited >= timedelta(hours=8)
    assert seen.unaided >= 0.99
    assert seen.interventions < 1
    assert found.signals == len(seen.told), "every resume answered a pause"
    fixed = [str(n) for n in range(1, result.iterations + 1) if seen.dealt.at(n) not in FIXES_NOTHING]
    assert list(seen.lines) == fixed, "every delivery took effect once, in its order"
    statuses = found.statuses()
    assert statuses[ExecutorStatus.LIMIT_HIT] == sum(times * faults[fault] for fault, times in LIMITS.items())
    assert statuses[ExecutorStatus.FAILED] == faults[Fault.AGENT_FAILED]
    assert statuses[ExecutorStatus.TIMED_OUT] == faults[Fault.AGENT_TIMED_OUT]
    assert statuses[ExecutorStatus.OUTCOME_UNKNOWN] == faults[Fault.KILLED_AFTER_WORK]
    assert seen.restarted == faults[Fault.RESTARTED]
    assert seen.flaked > 0
    assert sorted(found.cycles())[int(0.95 * result.iterations)] < 3
