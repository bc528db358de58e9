"""The execution activity after a crash: what an earlier attempt left is ended, asked for, resumed or reported."""

import asyncio
import errno
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from temporalio.client import Client
from temporalio.testing import ActivityEnvironment

from activities.artifacts.port import put_model
from activities.artifacts.stores import open_local_store
from activities.executor.activity import ExecuteRequest, ExecutionActivities
from activities.executor.outbox import open_outbox
from activities.executor.port import Availability, Control, Executor
from activities.workspace.scope import EpisodeScope
from activities.workspace.working_tree import Workspaces
from tests.support.episodes import Working, eventually
from tests.support.orders import order
from tightloop.errors import ExecutorError, StorageFullError
from tightloop.executor.asking import MOST_CLAIMS, permission_question
from tightloop.executor.model import (
    ErrorKind,
    ExecutorChoice,
    ExecutorOutcome,
    ExecutorReport,
    ExecutorStatus,
    Progress,
    ResumeToken,
    WorkOrder,
)
from tightloop.host import state_folder
from tightloop.safety.drift import DriftError

ROOT = Path(__file__).parents[3]
KEY = "run/1/1"
TOKEN = ResumeToken(adapter="agent", session_id="s1")
COMPLETED = ExecutorOutcome(status=ExecutorStatus.COMPLETED, summary="all done")


class Agent(Executor):
    """An executor of the test's: what it finds, what it does, and what it was ordered."""

    def __init__(
        self,
        *,
        traces: ExecutorOutcome | None = None,
        act: Callable[[WorkOrder, Control], ExecutorOutcome] = lambda _order, _control: COMPLETED,
        reason: str = "",
        effects: str = "",
    ) -> None:
        self._traces, self._act, self._reason, self._effects = traces, act, reason, effects
        self.orders: list[WorkOrder] = []

    def availability(self) -> Availability:
        return Availability(usable=not self._reason, reason=self._reason)

    def reconcile(self, order: WorkOrder, state_folder: Path) -> ExecutorOutcome | None:
        return self._traces

    def effects_outside(self, order: WorkOrder) -> str:
        return self._effects

    def execute(self, order: WorkOrder, control: Control, state_folder: Path) -> ExecutorOutcome:
        self.orders.append(order)
        return self._act(order, control)


class Bench:
    """One delivery in a real working tree, a real outbox and a real store."""

    def __init__(self, workspace: Path) -> None:
        self.workspace = workspace
        self.scope = EpisodeScope(episode_id="episode-1", workspace=str(workspace))
        self.workspaces = Workspaces()
        self.workspaces.prepare(self.scope, take_over=lambda _episode: True)
        self.outbox = open_outbox(workspace)
        with self.workspaces.hold(self.scope) as tree:
            self.base = tree.snapshot()

    def queue(self, *, claimed: bool = False, **choice: object) -> None:
        """Queue the order; `claimed`: as an attempt that died left it."""
        work = order(self.workspace, key=KEY)
        work = work.evolve(executor=ExecutorChoice.model_validate({"name": "agent", **choice}))
        stored = put_model(open_local_store(self.workspace), work, name="order")
        self.outbox.add(KEY, self.scope.episode_id, 1, stored)
        if claimed:
            self.outbox.claim(KEY, self.base)

    def execute(self, told: Progress | None = None, **executors: Executor) -> ExecutorReport:
        """Run the activity; `told`: the heartbeat of the attempt before."""

        def choose(name: str) -> Executor:
            if name not in executors:
                raise ExecutorError(f"the executor {name!r} is unknown")
            return executors[name]

        environment = ActivityEnvironment()
        details = [] if told is None else [told.model_dump(mode="json")]
        environment.info = replace(
            environment.info, workflow_run_id="run", heartbeat_details=details, attempt=2 if told else 1
        )
        activities = ExecutionActivities(self.workspaces, open_local_store, open_outbox, choose)
        report: ExecutorReport = environment.run(
            activities.execute, ExecuteRequest(scope=self.scope, key=KEY, expected_tree=self.base)
        )
        return report


@pytest.fixture
def bench(workspace: Path) -> Bench:
    return Bench(workspace)


def test_processes_of_the_attempt_that_died_are_gone_before_its_traces_are_read(bench: Bench) -> None:
    """A worker that is killed leaves its agent behind, which would go on editing."""
    left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"], start_new_session=True)
    with bench.workspaces.hold(bench.scope) as tree:
        tree.own_process(left.pid)
    bench.queue(claimed=True)
    seen: list[bool] = []

    class Witness(Agent):
        def reconcile(self, order: WorkOrder, state_folder: Path) -> ExecutorOutcome | None:
            seen.append(psutil.pid_exists(left.pid) and psutil.Process(left.pid).status() != psutil.STATUS_ZOMBIE)
            return None

    try:
        report = bench.execute(agent=Witness())
    finally:
        left.kill()
        left.wait(10)
    assert seen == [False]
    assert report.status is ExecutorStatus.NO_CHANGE


def test_traces_that_tell_how_the_delivery_ended_are_reported_and_nothing_is_done_twice(bench: Bench) -> None:
    (bench.workspace / "made.txt").write_text("by the attempt that died\n")
    bench.queue(claimed=True)
    agent = Agent(traces=COMPLETED)
    report = bench.execute(agent=agent)
    assert (report.status, report.summary) == (ExecutorStatus.COMPLETED, "all done")
    assert report.new_tree != bench.base
    assert agent.orders == []
    assert bench.execute(agent=agent) == report


@pytest.mark.parametrize("from_traces", [True, False])
def test_an_untouched_tree_is_delivered_again_in_the_session_of_the_attempt_that_died(
    bench: Bench, from_traces: bool
) -> None:
    bench.queue(claimed=True)
    unknown = ExecutorOutcome(status=ExecutorStatus.OUTCOME_UNKNOWN, resume=TOKEN)
    agent = Agent(traces=unknown if from_traces else None)
    report = bench.execute(None if from_traces else Progress(events=3, resume=TOKEN), agent=agent)
    assert [work.resume for work in agent.orders] == [TOKEN]
    assert report.status is ExecutorStatus.NO_CHANGE
    delivered = bench.outbox.get(KEY)
    assert delivered is not None
    assert delivered.claims == 2


def test_a_tree_that_moved_without_traces_is_reported_as_unknown_with_the_way_back(bench: Bench) -> None:
    (bench.workspace / "half.txt").write_text("half\n")
    bench.queue(claimed=True)
    agent = Agent()
    report = bench.execute(Progress(resume=TOKEN), agent=agent)
    assert (report.status, report.resume) == (ExecutorStatus.OUTCOME_UNKNOWN, TOKEN)
    assert agent.orders == []
    assert (bench.workspace / "half.txt").exists()


@pytest.mark.parametrize(
    ("effects", "on_crash", "again"),
    [
        ("", "retry", True),
        ("the agent may reach the network", "retry", False),
        ("", "verify", False),
        ("", "ask", False),
    ],
)
def test_an_untouched_tree_is_delivered_again_only_where_the_policy_allows_it(
    bench: Bench, effects: str, on_crash: str, again: bool
) -> None:
    bench.queue(claimed=True, on_crash=on_crash)
    agent = Agent(effects=effects)
    report = bench.execute(agent=agent)
    assert bool(agent.orders) is again
    asked = ExecutorStatus.NEEDS_PERSON if on_crash == "ask" else ExecutorStatus.OUTCOME_UNKNOWN
    assert report.status is (ExecutorStatus.NO_CHANGE if again else asked)
    assert (report.question is not None) == (on_crash == "ask")
    assert bench.execute(agent=agent) == report, "asked or settled once"


def test_an_executor_that_says_nothing_of_its_effects_is_not_called_twice(bench: Bench) -> None:
    class Silent(Executor):
        def execute(self, order: WorkOrder, control: Control, state_folder: Path) -> ExecutorOutcome:
            raise AssertionError("it was called again")

    bench.queue(claimed=True)
    assert bench.execute(agent=Silent()).status is ExecutorStatus.OUTCOME_UNKNOWN


def test_a_delivery_that_always_kills_its_worker_is_not_begun_for_ever(bench: Bench) -> None:
    bench.queue(claimed=True)
    for _ in range(MOST_CLAIMS - 2):
        bench.outbox.claim(KEY, bench.base)
    agent = Agent()
    bench.outbox.claim(KEY, bench.base)
    assert bench.execute(agent=agent).status is ExecutorStatus.OUTCOME_UNKNOWN
    assert agent.orders == []


def test_a_stand_in_gets_neither_model_nor_session_of_another_and_is_named(bench: Bench) -> None:
    bench.queue(fallback=["other"], model="gpt-5.1", options={"effort": "high"})
    other = Agent()
    report = bench.execute(Progress(resume=TOKEN), agent=Agent(reason="no key"), other=other)
    assert (report.executor, report.passed_over) == ("other", ("agent: no key",))
    [work] = other.orders
    assert (work.executor.name, work.executor.model, work.resume) == ("other", "", None)
    assert work.executor.options == {}, "an option of one executor is an error to another"


def test_a_full_disk_and_a_forbidden_folder_are_told_with_what_to_do(bench: Bench) -> None:
    def failing(number: int) -> Agent:
        def act(_order: WorkOrder, _control: Control) -> ExecutorOutcome:
            raise OSError(number, os.strerror(number), str(state_folder(bench.workspace) / "runs"))

        return Agent(act=act)

    bench.queue()
    with pytest.raises(
        StorageFullError,
        match=r"the disk that contains .*runs is full .*Free up space on it, then resume.* No space left",
    ):
        bench.execute(agent=failing(errno.ENOSPC))
    report = bench.execute(agent=failing(errno.EACCES))
    assert (report.status, report.error_kind) == (ExecutorStatus.FATAL, ErrorKind.CONFIG)
    assert "runs: Permission denied. Grant the worker's user access to this path" in report.error


def test_nothing_is_delivered_over_an_edit_of_a_stranger(bench: Bench) -> None:
    (bench.workspace / "stray.txt").write_text("by somebody\n")
    bench.queue()
    agent = Agent()
    with pytest.raises(DriftError, match=r"stray\.txt"):
        bench.execute(agent=agent)
    assert (bench.workspace / "stray.txt").exists()
    assert agent.orders == []


def test_no_usable_executor_is_fatal_with_every_reason(bench: Bench) -> None:
    bench.queue(fallback=["missing"])
    report = bench.execute(agent=Agent(reason="not installed: npm install -g agent"))
    assert report.status is ExecutorStatus.FATAL
    assert report.error == (
        "no executor is usable. agent: not installed: npm install -g agent; the executor 'missing' is unknown"
    )
    assert report.error_kind is ErrorKind.CONFIG
    assert report.new_tree == bench.base


def test_the_report_carries_what_the_executor_said_within_bounds(bench: Bench) -> None:
    outcome = ExecutorOutcome(
        status=ExecutorStatus.NEEDS_PERSON,
        error_kind=ErrorKind.AUTH,
        denied=tuple("x" * 500 for _ in range(50)),
        question=permission_question("two\nlines " + "t" * 1_000, "d" * 9_000, "f"),
        versions={"agent": "1.2.3"},
    )
    bench.queue()
    report = bench.execute(agent=Agent(act=lambda _order, _control: outcome))
    assert (report.error_kind, report.versions, report.executor) == (ErrorKind.AUTH, {"agent": "1.2.3"}, "")
    assert [len(line) for line in report.denied] == [120] * 10
    assert report.question is not None
    assert report.question.title.startswith("two lines ttt")
    assert (len(report.question.title), len(report.question.evidence)) == (600, 20)
    assert bench.outbox.get(KEY).report == report  # type: ignore[union-attr]


async def test_the_way_back_of_a_delivery_that_broke_off_reaches_the_next_attempt(
    client, working: Working, request_for, workspace: Path
) -> None:
    """Through a real server: heartbeats bring it back, also past an attempt that ended before it told anything."""
    attempts = itertools.count(1)

    def act(order: WorkOrder, control: Control) -> ExecutorOutcome:
        attempt = next(attempts)
        if attempt == 1:
            for events in range(1_000):
                control.progress(Progress(events=events, resume=TOKEN))
            raise RuntimeError("the attempt breaks off")
        if attempt == 2:
            time.sleep(1.5)  # longer than a beat of the worker
            raise RuntimeError("it breaks off again, and told nothing")
        (Path(order.root) / "log.txt").write_text("resumed\n")
        return COMPLETED

    agent = Agent(act=act)
    async with working(executors=lambda _name: agent):
        episode_id = await client.start(
            request_for(executor={"name": "agent"}, definition_of_done=["grep -q resumed log.txt"])
        )

        async def closed() -> bool:
            return (await client.status(episode_id)).outcome is not None

        await eventually(closed, seconds=90)
        result = await client.result(episode_id)
    assert [work.resume for work in agent.orders] == [None, TOKEN, TOKEN]
    assert result.outcome.value == "SUCCEEDED"
    assert result.spent.infrastructure_retries == 2


async def heartbeat_is_known(client: Client, episode_id: str) -> bool:
    """Whether the server has the way back that the breaking worker told."""
    described = (await client.get_workflow_handle(episode_id).describe()).raw_description
    # The check on opening tells its own name, which has the same word in it.
    executing = [one for one in described.pending_activities if one.activity_type.name == "execute"]
    told = (payload.data for one in executing for payload in one.heartbeat_details.payloads)
    return any(b"session-of-the-dead" in data for data in told)


async def test_a_worker_killed_in_a_delivery_leaves_no_process_and_the_next_one_resumes_the_session(
    client, temporal_client: Client, settings, request_for, workspace: Path
) -> None:
    where = (settings.temporal.address, settings.temporal.task_queue)
    command = [sys.executable, "-m", "tests.support.breaking_worker", *where]
    request = request_for(executor={"name": "breaking"}, definition_of_done=["grep -q session-of-the-dead log.txt"])
    episode_id = await client.start(request)
    first = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        await eventually(lambda: heartbeat_is_known(temporal_client, episode_id), seconds=90)
        (state_folder(workspace) / "die").touch()
        await asyncio.to_thread(first.wait, 60)
    finally:
        first.kill()
        first.wait(10)
    left = int((state_folder(workspace) / "left.pid").read_text())
    survived = psutil.pid_exists(left)
    second = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        result = await client.result(episode_id)
    finally:
        second.kill()
        second.wait(10)
    assert first.returncode == -signal.SIGKILL
    assert survived, "the process was to outlive its worker, or this test shows nothing"
    assert not psutil.pid_exists(left) or psutil.Process(left).status() == psutil.STATUS_ZOMBIE
    assert result.outcome.value == "SUCCEEDED"
    assert (result.iterations, result.spent.executor_failures) == (1, 0)
