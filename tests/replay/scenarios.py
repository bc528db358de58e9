"""Episodes worth keeping: each runs on a real server with scripted ports and is recorded once, see `record.py`."""

import shutil
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import temporalio.api.common.v1 as common
import temporalio.api.workflowservice.v1 as service
from temporalio.api.enums.v1 import ResetReapplyExcludeType
from temporalio.client import Client

from activities.executor.choose import executors
from activities.executor.port import Executor
from activities.model.gateway.wire import Wire
from tests.support.doubles import AppendingExecutor, AskingExecutor, ScriptedPlanner, gives_up, planned
from tests.support.episodes import APPEND, eventually, scripted
from tests.support.fake_model.script import Step, use
from tests.support.fake_model.turns import FakeCoderModel
from tests.support.gui.agent import Agent
from tests.support.loops import (
    ObedientExecutor,
    ScriptedTaskPlanner,
    ended,
    five_tasks,
    planner_of_goals,
    task,
)
from tests.support.loops import (
    planned as planned_project,
)
from tests.support.plan.doubles import (
    Hanging,
    PlanStage,
    Script,
    ScriptedPlanActivities,
    asks,
    done,
    fails,
    plan_worker,
)
from tightloop.client import TightloopClient
from tightloop.coder.model import CODER
from tightloop.episode.budget import Budget
from tightloop.episode.check import Check
from tightloop.episode.checkpoint import CheckpointRecord
from tightloop.episode.control import ExecutorAmendment
from tightloop.episode.model import EpisodePhase, EpisodeRequest
from tightloop.host.identity import home_queue
from tightloop.loop.model import LoopRequest, LoopTask
from tightloop.plan.child import child_id
from tightloop.run.core import Queues
from tightloop.run.question import QuestionKind
from tightloop.settings import Settings, parse_settings
from worker.build import Role, build_adapters, build_executor_dependencies, build_workers
from worker.composition import coder_executor
from workflows.retention import RetentionWorkflow

SLOW = {**APPEND, "sleep": 0.4}
READ = use(("read_file", {"path": "app.py", "start": None, "end": None}), ("list_files", {"path": None, "glob": None}))
WRITE = use(("create_file", {"path": "log.txt", "content": "one\n", "overwrite": None}))
FINISH = use(("finish", {"summary": "log.txt is there"}))
TASK_QUEUE = "tightloop-sample"


@dataclass(frozen=True)
class Stage:
    """Where a scenario plays: a server, a workspace, and workers while `working`."""

    temporal: Client
    workspace: Path
    episode_id: str

    @property
    def client(self) -> TightloopClient:
        return TightloopClient(self.temporal, self.settings)

    @property
    def settings(self) -> Settings:
        address = self.temporal.service_client.config.target_host
        return parse_settings(
            f"temporal: {{address: '{address}', task_queue: '{TASK_QUEUE}'}}\n"
            "worker: {sticky_timeout_s: 2, graceful_shutdown_s: 1}\n"
            "sandbox: {unsafe_local: true}\n",
            {},
        )

    @asynccontextmanager
    async def working(
        self, planner: ScriptedPlanner | None = None, *, settings: Settings | None = None, **more: Executor
    ) -> AsyncIterator[TightloopClient]:
        chosen, under = planner or ScriptedPlanner(), settings or self.settings
        around = build_executor_dependencies(under)
        adapters = replace(
            build_adapters(self.temporal, under),
            planners=lambda _kind: chosen,
            executors=executors(around, {CODER: coder_executor(under, around.sandbox), **more}),
        )
        async with AsyncExitStack() as stack:
            for worker in build_workers(self.temporal, under, adapters=adapters):
                await stack.enter_async_context(worker)
            yield self.client

    @asynccontextmanager
    async def at_the_screen(self) -> AsyncIterator[None]:
        """Run the worker of an executor's own queue."""
        settings = self.settings
        settings = settings.evolve(queues=settings.queues.evolve(executor=f"{TASK_QUEUE}-screen"))
        async with AsyncExitStack() as stack:
            for worker in build_workers(self.temporal, settings, Role.GUI):
                await stack.enter_async_context(worker)
            yield

    @asynccontextmanager
    async def looping(self, *tasks: LoopTask) -> AsyncIterator[TightloopClient]:
        """Work on a project's plan of these tasks."""
        planner, writer = planner_of_goals(), ScriptedTaskPlanner(*tasks)
        adapters = replace(
            build_adapters(self.temporal, self.settings),
            planners=lambda _kind: planner,
            executors=lambda _name: ObedientExecutor(),
            task_planners=lambda _kind, _model: writer,
        )
        async with AsyncExitStack() as stack:
            for worker in build_workers(self.temporal, self.settings, adapters=adapters):
                await stack.enter_async_context(worker)
            yield self.client

    def loop_request(self, *gates: str) -> LoopRequest:
        checks = tuple(Check(run=run) for run in gates)
        return LoopRequest(workspace=str(self.workspace), goal="make files", gates=checks)

    @asynccontextmanager
    async def planning(self, script: Script) -> AsyncIterator[PlanStage]:
        """Run a worker whose plan activities follow a script."""
        plan = PlanStage(self.client, ScriptedPlanActivities(script), self.temporal)
        plan.id = self.episode_id
        async with plan_worker(self.temporal, TASK_QUEUE, plan.scripted.all()):
            yield plan

    async def start(self, **changes: Any) -> str:
        """Start an episode that appends a line an iteration until it has three."""
        fields: dict[str, Any] = {
            "goal": "write three lines",
            "workspace": str(self.workspace),
            "definition_of_done": ["test $(cat log.txt | wc -l) -ge 3"],
            "executor": scripted(APPEND),
        }
        request = EpisodeRequest.model_validate({**fields, **changes})
        return await self.client.start(request, new_id=self.episode_id)

    async def paused(self, *, iteration: int = 0, branch: int = 1) -> None:
        async def waits() -> bool:
            status = await self.client.status(self.episode_id)
            return status.questions and status.iteration >= iteration and status.branch >= branch

        await eventually(waits)

    async def executing(self) -> None:
        async def runs() -> bool:
            log = self.workspace / "log.txt"
            return (await self.client.status(self.episode_id)).phase is EpisodePhase.EXECUTING and log.exists()

        await eventually(runs)

    async def reset_to(self, checkpoint: CheckpointRecord) -> None:
        """Reset in Temporal to the event of a checkpoint, as an engineer does it."""
        await self.temporal.workflow_service.reset_workflow_execution(
            service.ResetWorkflowExecutionRequest(
                namespace=self.temporal.namespace,
                workflow_execution=common.WorkflowExecution(workflow_id=self.episode_id, run_id=checkpoint.run_id),
                reason="look again",
                workflow_task_finish_event_id=checkpoint.event_id or 0,
                request_id=f"reset-{self.episode_id}",
                reset_reapply_exclude_types=[
                    ResetReapplyExcludeType.RESET_REAPPLY_EXCLUDE_TYPE_SIGNAL,
                    ResetReapplyExcludeType.RESET_REAPPLY_EXCLUDE_TYPE_UPDATE,
                ],
            )
        )


@contextmanager
def sample_workspace(name: str) -> Iterator[Path]:
    """A git repository with one commit, in a place whose name says nothing about this machine."""
    folder = Path("/tmp") / f"tightloop-sample-{name}"
    folder.mkdir()
    try:
        (folder / "notes.txt").write_text("".join(f"line {n}\n" for n in range(200)))
        identity = ("-c", "user.name=sample", "-c", "user.email=sample@localhost", "-c", "commit.gpgsign=false")
        for command in (("init", "-q", "-b", "main"), ("add", "-A"), (*identity, "commit", "-q", "-m", "start")):
            subprocess.run(("git", *command), cwd=folder, check=True, capture_output=True, timeout=60)
        yield folder
    finally:
        shutil.rmtree(folder)


async def paused_and_resumed(stage: Stage) -> str:
    """An operator pauses, edits a file and resumes; the edit is adopted."""
    async with stage.working() as client:
        episode_id = await stage.start(executor=scripted(SLOW))
        await stage.executing()
        await client.pause(episode_id, "lunch")
        await stage.paused()
        (stage.workspace / "mine.txt").write_text("by a person\n")
        await client.resume(episode_id, note="keep my file")
        await client.result(episode_id)
    return episode_id


async def restored(stage: Stage) -> str:
    """Back to ckpt-1 during a pause; the run gives way to a new one, on branch 2."""
    async with stage.working() as client:
        episode_id = await stage.start(budget=Budget(max_iterations=2))
        await stage.paused(iteration=2)
        await client.restore(episode_id, "ckpt-1", reason="wrong turn")
        await stage.paused(iteration=2, branch=2)
        await client.top_up(episode_id, iterations=3)
        await client.result(episode_id)
    return episode_id


async def restored_while_pausing(stage: Stage) -> str:
    """A pause is wanted when a restore is accepted, so that the next run begins with both."""
    async with stage.working() as client:
        episode_id = await stage.start(executor=scripted(SLOW))
        await stage.executing()
        await client.pause(episode_id, "lunch")
        await client.restore(episode_id, "ckpt-0")

        async def waits() -> bool:
            return (await client.status(episode_id)).status == "paused"

        await eventually(waits)
        await client.resume(episode_id)
        await client.result(episode_id)
    return episode_id


async def reset_in_temporal(stage: Stage) -> str:
    """A plain reset to the event of ckpt-1; the files follow."""
    async with stage.working() as client:
        episode_id = await stage.start(budget=Budget(max_iterations=2))
        await stage.paused(iteration=2)
        await stage.reset_to((await client.checkpoints(episode_id))[1])
        await stage.paused(iteration=2, branch=2)
        await client.top_up(episode_id, iterations=3)
        await client.result(episode_id)
    return episode_id


async def limit_hit(stage: Stage) -> str:
    """One limit that is waited for; then three in a row, a pause, and a delivery that works."""
    limited = {**APPEND, "retry_after_s": 0.1, "evidence": "429 Too Many Requests"}
    steps = ({**limited, "limit_tries": 1}, {**limited, "limit_tries": 3}, APPEND)
    async with stage.working() as client:
        episode_id = await stage.start(executor=scripted(*steps, repeat=False).evolve(retries=3))
        await stage.paused(iteration=2)
        await client.resume(episode_id)
        await client.result(episode_id)
    return episode_id


async def continued_as_new(stage: Stage) -> str:
    """Two iterations a run; the second run takes up where the first one ended."""
    async with stage.working() as client:
        episode_id = await stage.start(iterations_per_run=2)
        await client.result(episode_id)
    return episode_id


async def failed(stage: Stage) -> str:
    """Nobody answers a pause in time."""
    async with stage.working() as client:
        episode_id = await stage.start(budget=Budget(max_iterations=1), pause_timeout=timedelta(seconds=1))
        await client.result(episode_id)
    return episode_id


async def cancelled_while_executing(stage: Stage) -> str:
    """An operator ends the episode while the executor works."""
    async with stage.working() as client:
        episode_id = await stage.start(executor=scripted({**APPEND, "hang": True}))
        await stage.executing()
        await client.cancel(episode_id, "enough")
        await client.result(episode_id)
    return episode_id


async def planner_gave_up_and_respond(stage: Stage) -> str:
    """The planner gives up, a person tells it what to do."""
    planner = ScriptedPlanner(lambda briefing: planned() if any("append" in n for n in briefing.notes) else gives_up())
    async with stage.working(planner) as client:
        episode_id = await stage.start(definition_of_done=["test -f log.txt"])
        await stage.paused()
        await client.respond(episode_id, "append a line")
        await client.result(episode_id)
    return episode_id


async def budget_top_up_amend(stage: Stage) -> str:
    """The budget is spent; a person changes the goal, then gives more."""
    async with stage.working() as client:
        episode_id = await stage.start(budget=Budget(max_iterations=1))
        await stage.paused()
        await client.amend(episode_id, goal="two lines", definition_of_done=["test $(cat log.txt | wc -l) -ge 2"])
        await client.top_up(episode_id, iterations=5)
        await client.result(episode_id)
    return episode_id


async def asked_for_permission(stage: Stage) -> str:
    """An agent asks; it is denied, asks again, is not answered by a bare resume, and is allowed."""
    async with stage.working(asking=AskingExecutor()) as client:
        episode_id = await stage.start(executor={"name": "asking"}, definition_of_done=["test -f log.txt"])
        await stage.paused()
        await client.answer(episode_id, "deny", "not yet")
        await stage.paused(iteration=2)
        await client.resume(episode_id)
        await client.answer(episode_id, "allow")
        await client.result(episode_id)
    return episode_id


async def coder_reflects(stage: Stage) -> str:
    """The coder finishes too early, reflects, works on and finishes."""
    diagnosis = use(("finish", {"summary": "log.txt is missing"}))
    episode_id = await _coded(stage, READ, FINISH, diagnosis, READ, WRITE, FINISH)
    return child_id(episode_id, CODER, 1, "1")


async def coder_asks(stage: Stage) -> str:
    """An episode whose coder asks a person in the middle of its work."""
    ask = use(("ask_person", {"question": "Which text?", "detail": None}))
    return await _coded(stage, READ, ask, WRITE, FINISH, answer="any")


async def _coded(stage: Stage, *steps: Step, answer: str = "") -> str:
    with FakeCoderModel(*steps) as fake:
        coder = stage.settings.coder.evolve(base_url=fake.base_url(Wire.CHAT), models=("sample",))
        async with stage.working(settings=stage.settings.evolve(coder=coder)) as client:
            episode_id = await stage.start(executor={"name": CODER}, definition_of_done=["test -f log.txt"])
            if answer:
                await stage.paused()
                await client.answer(episode_id, "answer", answer)
            await client.result(episode_id)
    return episode_id


async def person_works(stage: Stage) -> str:
    """A person is the executor: fails once, then writes the file and says that it is done."""
    async with stage.working() as client:
        episode_id = await stage.start(executor={"name": "person"}, definition_of_done=["test -f log.txt"])
        await stage.paused()
        await client.answer(episode_id, "failed", "no time")
        await stage.paused(iteration=2)
        (stage.workspace / "log.txt").write_text("by hand\n")
        await client.answer(episode_id, "done", "by hand")
        await client.result(episode_id)
    return episode_id


async def fallback_and_amended_executor(stage: Stage) -> str:
    """A fallback stands in; then nobody can work, until a person names another executor."""
    absent = AskingExecutor(reason="it is not installed")
    async with stage.working(absent=absent, appending=AppendingExecutor()) as client:
        choice = scripted(APPEND).evolve(name="absent", fallback=("appending",))
        episode_id = await stage.start(executor=choice, budget=Budget(max_iterations=1))
        await stage.paused()
        await client.amend(episode_id, executor=ExecutorAmendment(fallback=()))
        await client.top_up(episode_id, iterations=5)

        async def fatal() -> bool:
            waiting = (await client.status(episode_id)).questions
            return bool(waiting) and waiting[0].kind is QuestionKind.FATAL

        await eventually(fatal)
        await client.amend(episode_id, executor="scripted")
        await client.resume(episode_id)
        await client.result(episode_id)
    return episode_id


async def alerted(stage: Stage) -> str:
    """Two causes are told to the log, and a third by the end that nobody prevented."""
    client = stage.client

    async def told(count: int) -> bool:
        return sum(entry.kind == "alert" for entry in await client.timeline(stage.episode_id)) == count

    async with stage.working():
        episode_id = await stage.start(budget=Budget(max_iterations=1), pause_timeout=timedelta(seconds=3))
        await eventually(lambda: told(1))
        await client.top_up(episode_id, iterations=1)
        await stage.paused(iteration=2)
        await eventually(lambda: told(2))
        await client.result(episode_id)
    return episode_id


async def told_without_a_pause(stage: Stage) -> str:
    """Work goes on while the checks say the same: people and the planner are told, nobody is asked."""
    work = [{"write": [{"path": f"part_{n}.py", "text": f"def part_{n}():\n    return {n}\n"}]} for n in range(1, 9)]
    async with stage.working() as client:
        done = ["echo not yet; test -f part_8.py"]
        episode_id = await stage.start(definition_of_done=done, executor=scripted(*work, repeat=False))
        await client.result(episode_id)
    return episode_id


async def executor_missing(stage: Stage) -> str:
    """Nobody serves the executor's queue; people are told, and it goes on when a worker comes."""
    async with stage.working() as client:
        episode_id = await stage.start(queues=Queues(executor=f"{TASK_QUEUE}-screen"))

        async def waits() -> bool:
            return any(entry.kind == "waits" for entry in await client.timeline(episode_id))

        await eventually(waits)
        async with stage.at_the_screen():
            await client.result(episode_id)
    return episode_id


async def agent_reports(stage: Stage) -> str:
    """The agent in a window says by a message that it is done, before its window shows anything."""
    with TemporaryDirectory() as folder:
        (Path(folder) / "transcripts").mkdir()
        agent = Agent(Path(folder), stage.workspace, silent=True)
        async with stage.working(**{"cursor-gui": agent.executor}) as client:
            episode_id = await stage.start(executor={"name": "cursor-gui"})

            async def at_work() -> bool:
                return len(agent.desktop.submitted) == 1 and bool((await client.status(episode_id)).questions)

            await eventually(at_work)
            await client.answer(episode_id, "done", "three lines are there")
            await client.result(episode_id)
    return episode_id


PLAN = """
id: sample
title: Look, decide, write
steps:
  - {id: list, shell: {run: "ls"}, access: reads, outputs: {found: json}}
  - {id: look-*, needs: [list], for_each: "${list.found}", shell: {run: "cat ${item}"}, access: reads}
  - {id: pick, needs: ["look-*"], decision: {rules: [{when: "1 == 1", to: [write]}], otherwise: [stop]}}
  - {id: write, shell: {run: "true"}}
  - {id: stop, shell: {run: "true"}}
definition_of_done: ["true"]
"""
RELEASE = """
id: release
on_failure: compensate
steps:
  - {id: build, shell: {run: "true"}}
  - {id: pack, needs: [build], shell: {run: "true"}, retry: {attempts: 2, initial_s: 0.1}}
  - {id: ask, needs: [pack], gate: {approval: {count: 2}}}
  - {id: deploy, needs: [ask], shell: {run: "true"}, watchdog: {after_s: 60}}
"""
CHANGED = """
id: changed
steps:
  - {id: one, shell: {run: "true"}}
  - {id: two, needs: [one], shell: {run: "true"}}
  - {id: three, needs: [two], shell: {run: "true"}}
"""


async def plan_completed(stage: Stage) -> str:
    """A template, a decision and a writer; the definition of done holds."""
    script: Script = {"list": done(counts={"found": 3}), "pick": done(chosen=("write",))}
    async with stage.planning(script) as plan:
        await plan.start(PLAN, workspace=str(stage.workspace))
        await plan.result()
    return plan.id


async def plan_gate_and_compensation(stage: Stage) -> str:
    """Two people approve, then a step fails and everything is undone."""
    script: Script = {"pack": [fails("busy", "transient"), done()], "ask": asks(count=2), "deploy": fails("no route")}
    async with stage.planning(script) as plan:
        await plan.start(RELEASE, workspace=str(stage.workspace))
        await plan.waits()
        await plan.plans.answer(plan.id, "approve", question="ask", by="ada")
        await plan.plans.answer(plan.id, "approve", question="ask", by="bob")
        await plan.result()
    return plan.id


async def plan_changed(stage: Stage) -> str:
    """Paused, changed, asked about a failure, carried over to a second run, and cancelled in it."""
    slow = Hanging()
    script: Script = {"two": [fails("wrong flag"), done()], "four": slow}
    longer = CHANGED + '  - {id: four, needs: [three], shell: {run: "true"}}\n'
    async with stage.planning(script) as plan:
        await plan.start(CHANGED, workspace=str(stage.workspace), attempts_per_run=4)
        await plan.paused()
        await plan.plans.replan(plan.id, longer, rationale="one more", by="ada")
        await slow.started.wait()
        await plan.plans.pause(plan.id, "lunch")
        await plan.plans.cancel(plan.id, "enough", by="ada")
        await plan.result()
    return plan.id


_RESOLVES = r"if grep -q '^<<<<<<<' log.txt; then sed -i '/^[<=>]\{7\}/d' log.txt; else "
CONFLICTING = (
    task(1, f"{_RESOLVES} echo one > log.txt; fi", "grep -qx one log.txt"),
    task(2, f"{_RESOLVES} echo two > log.txt; fi", "grep -qx two log.txt"),
    task(3, "cat log.txt > all.txt", "test -s all.txt", 1, 2),
)


async def loop_with_conflict(stage: Stage) -> str:
    """Paused as a draft, dispatched, two tasks conflict, verified."""
    async with stage.looping(*CONFLICTING) as client:
        plan_id = await planned_project(client, stage.loop_request("test -s all.txt", "true"))
        await client.pause(plan_id, "lunch")
        await eventually(lambda: _stands(client, plan_id, "paused"))
        await client.resume(plan_id)
        await eventually(lambda: _stands(client, plan_id, "draft"))
        await client.dispatch(plan_id, by="ada")
        await ended(client, plan_id)
        await client.verify(plan_id, by="ada")
        await client.result(plan_id)
    return plan_id


async def loop_failed_gate(stage: Stage) -> str:
    """A run fails, what depends on it never begins, and a gate does not pass."""
    broken = CONFLICTING[0].evolve(definition_of_done=())
    async with stage.looping(broken, CONFLICTING[2].evolve(dependencies=("ptask_1",))) as client:
        plan_id = await planned_project(client, stage.loop_request("false"))
        await client.dispatch(plan_id)
        await ended(client, plan_id)
        await client.verify(plan_id)
        await client.result(plan_id)
    return plan_id


async def plan_merged(stage: Stage) -> str:
    """Two episodes in worktrees of their own, whose changes are merged."""
    async with stage.looping(*five_tasks()[:2]) as client:
        plan_id = await planned_project(client, stage.loop_request("true"))
        await client.dispatch(plan_id)
        await ended(client, plan_id)
        await client.cancel(plan_id)
        await client.result(plan_id)
    return plan_id


async def _stands(client: TightloopClient, plan_id: str, status: str) -> bool:
    return (await client.summary(plan_id)).status == status


async def retention_collected(stage: Stage) -> str:
    """One collection on a host that has nothing to free."""
    settings = stage.settings.evolve(worker=stage.settings.worker.evolve(host="sample"))
    async with stage.working(settings=settings):
        await stage.temporal.execute_workflow(
            RetentionWorkflow.run, id=stage.episode_id, task_queue=home_queue(settings)
        )
    return stage.episode_id


@dataclass(frozen=True)
class Scenario:
    """A scenario and the histories it leaves, one for each run, oldest first."""

    play: Callable[[Stage], Awaitable[str]]
    histories: tuple[str, ...]


def _scenario(play: Callable[[Stage], Awaitable[str]], *runs: str) -> Scenario:
    name: str = getattr(play, "__name__")  # noqa: B009 - a Callable has none for the type checker
    return Scenario(play, tuple(f"{name}_{run}" for run in runs) or (name,))


SCENARIOS: dict[str, Scenario] = {
    "paused_and_resumed": _scenario(paused_and_resumed),
    "restored": _scenario(restored, "before", "after"),
    "restored_while_pausing": _scenario(restored_while_pausing, "before", "after"),
    "reset_in_temporal": _scenario(reset_in_temporal),
    "limit_hit": _scenario(limit_hit),
    "continued_as_new": _scenario(continued_as_new, "first", "second"),
    "failed": _scenario(failed),
    "told_without_a_pause": _scenario(told_without_a_pause),
    "executor_missing": _scenario(executor_missing),
    "agent_reports": _scenario(agent_reports),
    "cancelled_while_executing": _scenario(cancelled_while_executing),
    "planner_gave_up_and_respond": _scenario(planner_gave_up_and_respond),
    "budget_top_up_amend": _scenario(budget_top_up_amend),
    "asked_for_permission": _scenario(asked_for_permission),
    "coder_reflects": _scenario(coder_reflects),
    "coder_asks": _scenario(coder_asks),
    "person_works": _scenario(person_works),
    "fallback_and_amended_executor": _scenario(fallback_and_amended_executor),
    "alerted": _scenario(alerted),
    "plan_completed": _scenario(plan_completed),
    "plan_gate_and_compensation": _scenario(plan_gate_and_compensation),
    "plan_changed": _scenario(plan_changed, "first", "second"),
    "loop_with_conflict": _scenario(loop_with_conflict),
    "loop_failed_gate": _scenario(loop_failed_gate),
    "plan_merged": _scenario(plan_merged),
    "retention_collected": _scenario(retention_collected),
}
