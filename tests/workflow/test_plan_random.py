"""Random plans on the real server: steps end at random, people pause and answer, workers go and come, runs follow runs.

`TIGHTLOOP_TEST_PLANS=500` takes more of them, `TIGHTLOOP_TEST_SEED=17` begins with another one.
"""

import asyncio
import contextlib
import os
import random
from collections import Counter
from datetime import timedelta
from uuid import uuid4

import pytest
from temporalio import activity
from temporalio.client import Client
from temporalio.service import RPCError
from temporalio.worker import Worker

from activities.plan.requests import RunStepRequest
from tests.plan_doubles import PlanStage, ScriptedPlanActivities, asks, done, fails, skipped
from tests.plan_model import DONE, Script, Scripted, predicted, random_plan, random_script
from tightloop.client.plans import Plans
from tightloop.errors import InvalidRequestError, ServiceUnavailableError
from tightloop.plan.model import Access, FailureClass, Join, Plan, Step
from tightloop.plan.request import PlanOutcome
from tightloop.plan.result import StepResult, StepStatus
from tightloop.plan.text.writing import write_plan
from tightloop.settings import Settings
from worker.build import workflow_runner
from worker.edge import ActivityEdge
from workflows.plan import PlanWorkflow

PLANS = int(os.environ.get("TIGHTLOOP_TEST_PLANS", "28"))
FIRST_SEED = int(os.environ.get("TIGHTLOOP_TEST_SEED", "0"))
AT_ONCE = 4
LARGEST = 200
SMALL = 40
"""Plans up to this size also run on workers that keep no workflow in memory."""
RESULT_S = 150.0
STOP_S = 3.0


class Chance(ScriptedPlanActivities):
    """Steps that end as a script says, at a random time; it notes every start that the rules forbid."""

    def __init__(self, plan: Plan, script: Script, seed: int) -> None:
        super().__init__()
        self.plan, self.ends, self.seed = plan, script, seed
        self.by_id = {step.id: step for step in plan.steps}
        self.expected = predicted(plan, script)
        self.running: dict[str, Access] = {}
        self.completed: set[str] = set()
        self.asked = 0
        self.waiting: set[str] = set()
        self.activities: dict[tuple[str, int, int], str] = {}
        """(step, attempt, answers) -> the activity that made it."""
        self.problems: list[str] = []

    async def _act(self, request: RunStepRequest) -> StepResult:
        step = self.by_id[request.template or request.step]
        self._check(request, step)
        self.running[request.step] = step.tree_access
        self.waiting.discard(request.step)
        luck = random.Random(f"{self.seed} {request.step} {request.attempt}")
        try:
            await asyncio.sleep(luck.uniform(0, 0.02))
            result = await self._end(request, luck)
        finally:
            del self.running[request.step]
        if result.status is StepStatus.COMPLETED:
            self.completed.add(request.step)
        return result

    async def _end(self, request: RunStepRequest, luck: random.Random) -> StepResult:
        if luck.random() < 0.04 and not request.decisions:
            self.asked += 1
            self.waiting.add(request.step)
            return await asks(f"may {request.step} go on?")(request)
        ending = self.ends(request.step, request.attempt)
        if ending.failure is not None:
            return fails("scripted", ending.failure.value)
        if ending.status is StepStatus.SKIPPED:
            return skipped()
        return done(chosen=ending.chosen, counts=ending.counts)

    def _check(self, request: RunStepRequest, step: Step) -> None:
        made_by = f"{activity.info().workflow_run_id} {activity.info().activity_id}"
        key = (request.step, request.attempt, len(request.decisions))
        if self.activities.setdefault(key, made_by) != made_by:
            self.problems.append(f"{key} was made twice")
        if request.attempt > step.retry.attempts:
            self.problems.append(f"{request.step} is tried {request.attempt} times, {step.retry.attempts} are allowed")
        if request.attempt > 1 and self.ends(request.step, request.attempt - 1).failure is not FailureClass.TRANSIENT:
            self.problems.append(f"{request.step} is tried again after an end that is no transient failure")
        if request.step in self.completed or request.step in self.running:
            self.problems.append(f"{request.step} started though it is completed or runs")
        for need in step.needs:
            if not self._holds(need, step):
                self.problems.append(f"{request.step} started before {need}, which it needs")
        touching = [access for access in self.running.values() if access is not Access.NONE]
        if step.tree_access is Access.WRITES and touching:
            self.problems.append(f"{request.step} writes beside {self.running}")
        if step.tree_access is Access.READS and Access.WRITES in touching:
            self.problems.append(f"{request.step} reads beside {self.running}")

    def _holds(self, need: str, step: Step | None) -> bool:
        """Return whether a need has really ended as the specification says, and well enough."""
        status = self.expected[need]
        if status is StepStatus.SKIPPED:
            return step is None or step.join is Join.ANY
        if status is StepStatus.RECOVERED:
            alternate = self.by_id[need if need in self.by_id else f"{need.rpartition('-')[0]}-*"].on_failure
            return alternate is not None and self._holds(alternate.to, None)
        made = self.made(need)
        if made:
            return status in DONE and all(self._holds(each, None) for each in made)
        return need in self.completed

    def made(self, name: str) -> list[str]:
        """Return the steps that a template becomes."""
        if not name.endswith("*"):
            return []
        return [each for each in self.expected if each not in self.by_id and each.rpartition("-")[0] == name[:-2]]

    def statuses(self) -> dict[str, str]:
        """Return what the specification says of each step, without templates that become steps."""
        return {name: status.value for name, status in self.expected.items() if not self.made(name)}


def mild(script: Script, seed: int) -> Script:
    """Return a script with few failures, so that most steps of a large plan get their turn."""

    def ends(name: str, attempt: int) -> Scripted:
        ending = script(name, attempt)
        for another in range(1, 4):
            if ending.failure is None or random.Random(f"{seed} {name} {attempt} harsh").random() < 0.05:
                break
            ending = script(name, attempt + 1_000 * another)
        return ending

    return ends


class Shift:
    """Workers of one task queue that come and go, one after the other."""

    def __init__(self, client: Client, queue: str, chance: Chance, luck: random.Random) -> None:
        self._client, self._queue, self._chance, self._luck = client, queue, chance, luck
        self._tasks: list[asyncio.Task[None]] = []
        self.restarts = luck.randrange(4)

    async def __aenter__(self) -> "Shift":
        self._changing = asyncio.create_task(self._change())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._changing.cancel()
        await asyncio.wait([self._changing])
        await self._stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _change(self) -> None:
        for _ in range(self.restarts):
            self._start()
            await asyncio.sleep(self._luck.uniform(0.2, 1.5))
            await self._stop()
        self._start()

    def _start(self) -> None:
        small = len(self._chance.plan.steps) <= SMALL and self._luck.random() < 0.3
        self._worker = Worker(
            self._client,
            task_queue=self._queue,
            workflows=[PlanWorkflow],
            activities=self._chance.all(),
            workflow_runner=workflow_runner(),
            interceptors=[ActivityEdge()],
            max_cached_workflows=0 if small else 10,
            max_concurrent_activities=50,
            sticky_queue_schedule_to_start_timeout=timedelta(seconds=1),
            graceful_shutdown_timeout=timedelta(0),
        )
        self._tasks.append(asyncio.create_task(self._worker.run()))

    async def _stop(self) -> None:
        # On a busy machine the SDK (1.35) may never end a worker that is stopped in the middle of something.
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._worker.shutdown(), STOP_S)


async def disturb(stage: PlanStage, chance: Chance, luck: random.Random) -> None:
    """Answer what is asked, and pause and resume at random moments, until cancelled."""
    handle = stage.temporal.get_workflow_handle(stage.id)
    while True:
        await asyncio.sleep(luck.uniform(0.05, 0.3))
        with contextlib.suppress(InvalidRequestError, RPCError):  # it is closed
            for step in sorted(chance.waiting):
                await handle.signal("approve_gate", {"gate": step, "by": "ada"})
            if luck.random() < 0.2:
                await stage.plans.pause(stage.id, "a look")
                await asyncio.sleep(luck.uniform(0, 0.2))
            await stage.plans.resume(stage.id)


async def run_one(client: Client, settings: Settings, seed: int) -> Counter[str]:
    """Run one plan and compare it with its specification; return what is worth counting."""
    luck = random.Random(seed)
    plan = random_plan(luck, luck.choice((luck.randint(1, SMALL), luck.randint(1, LARGEST))))
    script = random_script(luck, plan)
    chance = Chance(plan, luck.choice((script, mild(script, seed))), seed)
    queue = f"random-{uuid4().hex[:12]}"
    there = settings.model_copy(update={"temporal": settings.temporal.model_copy(update={"task_queue": queue})})
    stage = PlanStage(Plans(client, there), chance, client)
    text = write_plan(plan, "json")
    async with Shift(client, queue, chance, luck) as shift:
        await stage.start(text, max_parallel=luck.randint(1, 12), attempts_per_run=luck.choice((15, 60, 1_000)))
        disturbing = asyncio.create_task(disturb(stage, chance, luck))
        try:
            result = await stage.result(seconds=RESULT_S)
        finally:
            disturbing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await disturbing
        found = await listed(stage)
    about = f"seed {seed}, {len(plan.steps)} steps"
    assert not chance.problems, f"{about}: {chance.problems[:5]}"
    assert found == chance.statuses(), f"{about}: {_differ(found, chance.statuses())}"
    failed = StepStatus.FAILED in chance.expected.values()
    assert result.outcome is (PlanOutcome.FAILED if failed else PlanOutcome.COMPLETED), about
    return Counter(
        plans=1, steps=len(found), attempts=len(chance.activities), runs=chance.loads + 1,
        restarts=shift.restarts, questions=chance.asked, failed=failed,
    )  # fmt: skip


async def listed(stage: PlanStage) -> dict[str, str]:
    """Return where each step stands, once a worker is there to tell."""
    async with asyncio.timeout(30):
        while True:
            with contextlib.suppress(ServiceUnavailableError):
                return await stage.steps()


def _differ(found: dict[str, str], expected: dict[str, str]) -> str:
    names = [name for name in {**expected, **found} if found.get(name) != expected.get(name)]
    return ", ".join(f"{name} is {found.get(name)}, not {expected.get(name)}" for name in names[:5])


@pytest.mark.timeout(max(180, PLANS * 6))
async def test_random_plans_end_as_their_specification_says(temporal_client: Client, settings: Settings) -> None:
    seen: Counter[str] = Counter()
    at_once = asyncio.Semaphore(AT_ONCE)

    async def one(seed: int) -> None:
        async with at_once:
            try:
                seen.update(await run_one(temporal_client, settings, seed))
            except BaseException as error:
                error.add_note(f"again with TIGHTLOOP_TEST_PLANS=1 TIGHTLOOP_TEST_SEED={seed}")
                raise

    async with asyncio.TaskGroup() as group:
        for seed in range(FIRST_SEED, FIRST_SEED + PLANS):
            group.create_task(one(seed))
    print(f"\n{dict(seen)}")
    assert seen["plans"] == PLANS
    assert seen["attempts"] > seen["plans"]
