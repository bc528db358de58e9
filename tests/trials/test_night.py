"""A night without anybody: everything that can end has ended, and its digest says in the morning what to do."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import pytest
from click.testing import CliRunner
from temporalio.client import Client
from temporalio.testing import WorkflowEnvironment

from activities.alerts.activity import AlertDelivery
from activities.executor.choose import executors
from tests.support.episodes import eventually
from tests.support.git_sample import git, make_repository
from tests.support.loops import ScriptedTaskPlanner, planner_of_goals
from tests.support.simulation.night import LOGIN_RENEWED_H, Asleep, NightAgent, night_seconds, skip_time
from tests.support.simulation.worker import TakesTime
from tightloop.cli.main import app
from tightloop.client import EpisodeRequest, LoopRequest, TightloopClient
from tightloop.episode.check import Check
from tightloop.episode.model import EpisodeStatus
from tightloop.ledger.alert import AlertKind
from tightloop.loop.model import LoopStatus, LoopTask, TaskState
from tightloop.run.question import QuestionKind
from tightloop.settings import Settings, parse_settings
from worker.build import build_adapters, build_executor_dependencies, build_workers
from worker.connect import DATA_CONVERTER
from worker.server import temporal_binary, tuning_arguments

LONGEST_REAL_S = 300
PLAN = "night"
TASKS = (
    "plain",
    "limited",
    "overloaded",
    "long",
    "offline",
    "bothxa",
    "bothxb",
    "bothya",
    "bothyb",
    "rates",
    "taxes",
    "silent",
)
"""Names of the plan's tasks, in their order. The agent reads from the name what happens; see its program."""
LINES = {"long": 7}
"""Lines that a task has to write, if more than one. Each takes a delivery."""
OTHERS: dict[str, dict[str, object]] = {
    "rounding": {},
    "orphan": {"pause_timeout": timedelta(hours=1)},
    "endless": {},
}
"""Runs beside the plan: one succeeds, one asks what nobody answers for an hour, one is at work in the morning."""
UNPAID = ("silent", "endless", "rates", "orphan")
"""Agents that report no cost, or have done nothing."""
NEEDS = {"taxes": ("rates",), "silent": ("plain", "limited")}


def task(name: str) -> LoopTask:
    path = f"shop/{name[:-1] if name.startswith('both') else name}.txt"
    lines = LINES.get(name, 1)
    done = f"grep -q 'rule of {name}' {path}" if name.startswith("both") else f"test $(cat {path} | wc -l) -ge {lines}"
    return LoopTask(
        task_id=task_id(name),
        description=f"Add the rule {name}",
        dependencies=tuple(map(task_id, NEEDS.get(name, ()))),
        definition_of_done=(Check(run=done),),
    )


def task_id(name: str) -> str:
    return f"ptask_{TASKS.index(name) + 1}"


@dataclass(frozen=True)
class Night:
    """Night with its server, workers, agents and alerts."""

    client: TightloopClient
    temporal: Client
    settings: Settings
    root: Path
    notes: Path
    operator: Asleep

    async def status(self) -> LoopStatus:
        status = await self.client.status(PLAN)
        assert isinstance(status, LoopStatus)
        return status

    async def episode(self, episode_id: str) -> EpisodeStatus:
        status = await self.client.status(episode_id)
        assert isinstance(status, EpisodeStatus)
        return status

    async def skip(self) -> None:
        """Skip the time of each task as soon as it runs. The plan's own must pass as it is: it waits for a person."""
        skipped = {PLAN, ""}
        while True:
            with contextlib.suppress(Exception):
                for run in {task.run_id for task in (await self.status()).tasks} - skipped:
                    await skip_time(self.temporal, run)
                    skipped.add(run)
            await asyncio.sleep(0.2)

    async def may(self, update: str) -> bool:
        return update in (await self.status()).possible

    def request(self, name: str, **changes: object) -> EpisodeRequest:
        fields = {
            "goal": f"Add the rule {name}",
            "workspace": str(self.root),
            "worktree": True,
            "definition_of_done": [f"test -s shop/{name}.txt"],
        }
        return EpisodeRequest.model_validate({**fields, **changes})

    @staticmethod
    def run(name: str) -> str:
        return f"{PLAN}.{task_id(name)}.1"

    async def digest(self) -> str:
        """Return the output of `tightloop digest` in the morning. The time of the runs is ahead of the real one."""
        now = datetime.now(UTC)
        window = [f"{moment:%Y-%m-%dT%H:%M}" for moment in (now - timedelta(hours=1), now + timedelta(hours=23))]
        arguments = ["--address", self.settings.temporal.address, "digest", "--since", window[0], "--until", window[1]]
        done = await asyncio.to_thread(CliRunner().invoke, app, arguments)
        assert done.exit_code == 0, done.output
        return done.output


@pytest.fixture
async def night(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Night]:
    monkeypatch.setenv("TIGHTLOOP_HOME", str(tmp_path / "state"))
    notes = tmp_path / "agent" / "notes"
    notes.mkdir(parents=True)
    root = make_repository(tmp_path / "shop", {"shop/x.txt": "", "check.sh": "test -s shop/plain.txt\n"})
    for name in ("bothx", "bothy"):
        (root / "shop" / f"{name}.txt").write_text("no rule yet\n")
    git(root, "add", "-A")
    git(root, "commit", "-qm", "Add rules")
    async with AsyncExitStack() as stack:
        environment = await WorkflowEnvironment.start_local(
            data_converter=DATA_CONVERTER,
            dev_server_existing_path=str(temporal_binary()),
            dev_server_extra_args=[
                *tuning_arguments(),
                "--dynamic-config-value",
                "frontend.WorkflowTimeSkippingEnabled=true",
            ],
        )
        await stack.enter_async_context(environment)
        address = environment.client.service_client.config.target_host
        settings = parse_settings(
            f"temporal: {{address: '{address}', task_queue: 'night-{uuid4().hex[:8]}', authenticate: false}}\n"
            f"sandbox: {{unsafe_local: true}}\ntracking: {{drafts: 0}}\n",
            {},
        )
        config = environment.client.config()
        config["interceptors"] = [TakesTime(night_seconds)]
        temporal = Client(**config)
        operator = Asleep(temporal, (f"{PLAN}.",))
        dependencies = build_executor_dependencies(settings)
        agent = NightAgent(executors(dependencies)("command"), notes, datetime.now(UTC))  # type: ignore[arg-type]
        tasks = ScriptedTaskPlanner(*map(task, TASKS))
        planner = planner_of_goals()
        adapters = replace(
            build_adapters(temporal, settings),
            planners=lambda _kind: planner,
            task_planners=lambda _kind, _model: tasks,
            executors=executors(dependencies, {"command": agent}),
            post=AlertDelivery(channels=(operator,)),
        )
        for worker in build_workers(temporal, settings, adapters=adapters):
            await stack.enter_async_context(worker)
        client = TightloopClient(environment.client, settings, query_timeout=timedelta(seconds=15))
        running = Night(client, temporal, settings, root, notes, operator)
        skipping = asyncio.create_task(running.skip())
        try:
            yield running
        finally:
            skipping.cancel()
            (notes / "morning").touch()


@pytest.mark.timeout(LONGEST_REAL_S + 60)
async def test_everything_that_can_end_has_ended_and_the_digest_says_what_to_do(night: Night) -> None:
    client = night.client
    gates = (Check(run="sh check.sh"),)
    request = LoopRequest(
        workspace=str(night.root), goal="Write the shop's rules", gates=gates, parallel=6, result="branch"
    )
    await client.plan_project(request, new_id=PLAN)
    await eventually(lambda: night.may("dispatch"), seconds=60)
    await client.dispatch(PLAN)
    for name, changes in OTHERS.items():
        await client.start(night.request(name, **changes), new_id=name)
        await skip_time(night.temporal, name)
    await eventually(lambda: is_morning(night), seconds=LONGEST_REAL_S)
    status, text = await night.status(), await night.digest()
    print(text)
    check_tasks(night, status)
    await check_faults(night)
    check_digest(night, text)
    # Nothing is lost: after the answer, the plan continues and ends.
    (night.notes / "published").touch()
    run = status.children[0].workflow_id
    await client.answer(run, "work", "the rates are published", by="ada")
    await skip_time(night.temporal, run)
    await eventually(lambda: night.may("verify"), seconds=90)
    await client.verify(PLAN)
    result = await client.result(PLAN)
    assert result.outcome == "VERIFIED", result.reason
    text = await night.digest()
    print(text)
    [line] = [line for line in text.splitlines() if line.split()[1:2] == [PLAN]]
    assert line.split()[0] == "merge"
    assert line.split(";")[1].endswith(f"git reset tightloop/{PLAN}")


def check_tasks(night: Night, status: LoopStatus) -> None:
    states = {each.task_id: each.state for each in status.tasks}
    resolving = [each for each in status.tasks if each.conflict_of]
    assert len(status.tasks) == len(TASKS) + len(resolving) == 14
    waiting = {task_id("rates"): TaskState.AWAITING_RESPONSE, task_id("taxes"): TaskState.QUEUED}
    assert {name: state for name, state in states.items() if state is not TaskState.COMPLETE} == waiting
    for name in ("bothx", "bothy"):
        rules = (night.root / "shop" / f"{name}.txt").read_text()
        assert f"rule of {name}a\n" in rules
        assert f"rule of {name}b\n" in rules
    [wait] = status.children
    assert wait.question.kind is QuestionKind.IMPOSSIBLE


async def check_faults(night: Night) -> None:
    """Everything that was to go wrong did, and nobody helped."""
    kinds = {(notice.episode_id, notice.kind) for notice in night.operator.notices}
    assert (night.run("offline"), AlertKind.FAILING) in kinds
    assert (night.run("long"), AlertKind.FATAL) in kinds
    expected = {"limited": "session limit", "overloaded": "Overloaded", "offline": "ENOTFOUND", "long": "/login"}
    for name, words in expected.items():
        timeline = await night.client.timeline(night.run(name))
        assert any(words in entry.text for entry in timeline), name
        if name == "long":
            assert timeline[-1].at - timeline[0].at > timedelta(hours=LOGIN_RENEWED_H)
            assert any("so the run will try again" in entry.text for entry in timeline)
        if name == "limited":
            assert timeline[-1].at - timeline[0].at > timedelta(hours=2, minutes=10)
        assert (await night.episode(night.run(name))).spent.interventions == 0


def check_digest(night: Night, text: str) -> None:
    lines = text.strip().splitlines()
    assert len(lines) <= 60
    items = {words[1]: (words[0], line) for line in lines if len(words := line.split()) > 1 and line.startswith("  ")}
    states = {name: state for name, (state, _) in items.items()}
    asking = night.run("rates")
    assert states == {asking: "answer", "rounding": "merge", "orphan": "failed", PLAN: "waits", "endless": "running"}
    for name, texts in {
        asking: (
            "the rates for 2027 are not published yet",
            "ptask_11 waits for it",
            f"tightloop answer {asking} work",
        ),
        "rounding": ("proven", "1 commit, 1 file, +1 -0", "git merge tightloop/rounding", "cost $0.25"),
        "orphan": ("nobody answered within 60 min", "not published yet"),
        PLAN: ("12 of 14 tasks complete", task_id("rates"), "2 conflicts resolved", f"tightloop loop verify {PLAN}"),
        "endless": ("in its first iteration",),
    }.items():
        for text in texts:
            assert text in items[name][1], items[name][1]
    deliveries = {path.stem: int(path.read_text()) for path in night.notes.glob("*.deliveries")}
    paid = sum(1 for name in deliveries if name not in UNPAID) + LINES["long"] - 1
    assert f"cost at least ${0.25 * paid:.2f}" in lines[1], (lines[1], deliveries)
    for name in (PLAN, "endless"):
        assert name in lines[1].rpartition("not fully reported by")[2]


async def is_morning(night: Night) -> bool:
    tasks = (await night.status()).tasks
    open_tasks = {each.task_id: each.state for each in tasks if not each.state.has_ended}
    closed = [(await night.episode(name)).status for name in ("rounding", "orphan")]
    waiting = {task_id("rates"): TaskState.AWAITING_RESPONSE, task_id("taxes"): TaskState.QUEUED}
    return open_tasks == waiting and not {"running", "paused"} & set(closed)
