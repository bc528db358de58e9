"""Random plans on the real server: steps end at random, people pause, answer and cancel, workers go and come.

Every run takes the same plans. `TIGHTLOOP_TEST_SEED=any-word` takes others.
The specification in `tests/support/plan/model.py` says how each plan has to end.
"""

import asyncio
import contextlib
import os
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from uuid import uuid4

import pytest
from temporalio import activity
from temporalio.client import Client, RPCTimeoutOrCancelledError, WorkflowUpdateFailedError
from temporalio.service import RPCError
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import Worker

from activities.plan.requests import RunStepRequest
from tests.support.extent import part
from tests.support.plan.doubles import PlanStage, ScriptedPlanActivities, asks, done, fails, skipped
from tests.support.plan.fault_scenarios import ROUND, Disturbance, FaultScenario, Way, check_round
from tests.support.plan.model import DONE, at_cancellation, predicted
from tightloop.client import TightloopClient
from tightloop.errors import InvalidRequestError, ServiceUnavailableError
from tightloop.plan.child import StepResult, StepStatus
from tightloop.plan.failing import FailureClass
from tightloop.plan.request import PlanOutcome, PlanRequest
from tightloop.plan.step import Access, Join, Step
from tightloop.plan.text.writing import write_plan
from tightloop.settings import Settings, parse_settings
from worker.build import workflow_runner
from worker.connect import DATA_CONVERTER
from worker.hosting.interceptor import ActivityInterceptor
from workflows.plan.workflow import PlanWorkflow

PLANS = part(10, of=500)
SEED = os.environ.get("TIGHTLOOP_TEST_SEED", "")
AT_ONCE = 4
"""Rounds of examples side by side, each with an event loop and a worker of its own: most of the time is waiting."""
RESULT_S = 90.0
STOP_S = 5.0
LOOK_S = 0.01
SHRINKING_S = 300
"""How long hypothesis looks for a smaller example at most."""


class Course:
    """One plan under way: what has begun and ended, and every start that the rules forbid."""

    def __init__(self, scenario: FaultScenario) -> None:
        self.scenario = scenario
        self.id = f"random-{uuid4().hex[:12]}"
        self.by_id = {step.id: step for step in scenario.plan.steps}
        self.expected = predicted(scenario.plan, scenario.script)
        self.running: dict[str, Access] = {}
        self.completed: set[str] = set()
        self.begun = 0
        self.asked = 0
        self.waiting: dict[str, int] = {}
        """Step -> the attempt that asks."""
        self.activities: dict[tuple[str, int, int], str] = {}
        """(step, attempt, answers) -> the activity that made it."""
        self.cancelled = False
        self.problems: list[str] = []

    async def act(self, request: RunStepRequest) -> StepResult:
        """Make one attempt."""
        step = self.by_id[request.template or request.step]
        self._check(request, step)
        self.begun += 1
        self.running[request.step] = step.tree_access
        self.waiting.pop(request.step, None)
        try:
            await asyncio.sleep(self.scenario.behaviour(request.step).takes_s)
            result = await self._end(request)
        finally:
            del self.running[request.step]
        if result.status is StepStatus.COMPLETED:
            self.completed.add(request.step)
        return result

    async def _end(self, request: RunStepRequest) -> StepResult:
        if self.scenario.behaviour(request.step).asks:
            answer = await asks(f"may {request.step} go on?")(request)
            if answer.status is StepStatus.WAITING:
                self.asked += 1
                self.waiting[request.step] = request.attempt
            if answer.status is not StepStatus.COMPLETED:
                return answer
        ending = self.scenario.script(request.step, request.attempt)
        if ending.failure is not None:
            return fails("scripted", ending.failure.value)
        if ending.status is StepStatus.SKIPPED:
            return skipped()
        return done(chosen=ending.chosen, counts=ending.counts)

    def _check(self, request: RunStepRequest, step: Step) -> None:
        made_by = f"{activity.info().workflow_run_id} {activity.info().activity_id}"
        key = (request.step, request.attempt, len(request.answers))
        if self.activities.setdefault(key, made_by) != made_by:
            self.problems.append(f"{key} was made twice")
        if request.attempt > step.retry.attempts:
            self.problems.append(f"{request.step} is tried {request.attempt} times, {step.retry.attempts} are allowed")
        if request.attempt > 1 and self._failure(request.step, request.attempt - 1) is not FailureClass.TRANSIENT:
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

    def _failure(self, name: str, attempt: int) -> FailureClass | None:
        return self.scenario.script(name, attempt).failure

    def _holds(self, need: str, step: Step | None) -> bool:
        """Return whether a need has really ended as the specification says, and well enough."""
        status = self.expected[need]
        if step is not None and step.join is Join.ENDED and status not in DONE:
            # It ended somehow, or never starts.
            return not {need, *self.made(need)} & self.running.keys()
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

    def impossible(self, found: dict[str, str]) -> list[str]:
        """Return what cannot be in a cancelled plan."""
        wrong = [
            f"{name} is {status}, and in the end it is {self.expected[name]}"
            for name, status in found.items()
            if StepStatus(status) not in at_cancellation(self.expected[name])
        ]
        unmade = {name for name in self.by_id if found.get(name) == StepStatus.ABANDONED}
        for name in self.statuses().keys() - found.keys():
            if f"{name.rpartition('-')[0]}-*" not in unmade:
                wrong.append(f"{name} is missing")
        return wrong + [
            f"{name} is completed, and was not made"
            for name, status in found.items()
            if status == StepStatus.COMPLETED and name not in self.completed
        ]


class Actor(ScriptedPlanActivities):
    """The activities of all examples: they play the plan that is under way."""

    def __init__(self) -> None:
        super().__init__()
        self.course: Course | None = None

    async def _act(self, request: RunStepRequest) -> StepResult:
        course = self.course
        if course is None or course.id != request.scope.episode_id:
            raise asyncio.CancelledError  # of a plan that is over
        return await course.act(request)


class Shift:
    """The worker of all examples: it stops in the middle of what it does, and another one takes over."""

    def __init__(self, client: Client, queue: str, actor: Actor) -> None:
        self._client, self._queue, self._actor = client, queue, actor
        self._worker: Worker | None = None
        self._forgetful = False
        self._runs: list[asyncio.Task[None]] = []

    async def begin(self, *, forgetful: bool = False) -> None:
        """Have a worker; a forgetful one keeps no workflow in memory."""
        if self._worker is not None and self._forgetful == forgetful:
            return
        await self.stop()
        self._forgetful = forgetful
        self._worker = Worker(
            self._client,
            task_queue=self._queue,
            workflows=[PlanWorkflow],
            activities=self._actor.all(),
            workflow_runner=workflow_runner(),
            interceptors=[ActivityInterceptor()],
            max_cached_workflows=0 if forgetful else 10,
            max_concurrent_activities=50,
            sticky_queue_schedule_to_start_timeout=timedelta(seconds=1),
            graceful_shutdown_timeout=timedelta(0),
        )
        self._runs.append(asyncio.create_task(self._worker.run()))

    async def stop(self) -> None:
        """Stop the worker; one that does not end in time is left to end by itself."""
        if self._worker is None:
            return
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._worker.shutdown(), STOP_S)
        self._worker = None
        for run in [each for each in self._runs if each.done()]:
            self._runs.remove(run)
            run.result()

    async def close(self) -> None:
        """Stop all that is left."""
        await self.stop()
        for run in self._runs:
            run.cancel()
        if self._runs:
            await asyncio.wait(self._runs, timeout=STOP_S)


class Stand:
    """Where all examples run: an event loop, a client of the session's server, and a worker."""

    def __init__(self, runner: asyncio.Runner, client: Client, settings: Settings) -> None:
        self._runner, self._client = runner, client
        self._actor = Actor()
        self._plans = TightloopClient(client, settings)
        self._queue = settings.temporal.task_queue
        self._shift = Shift(client, self._queue, self._actor)
        self.seen: Counter[str] = Counter()

    def run(self, scenario: FaultScenario) -> None:
        """Run one plan and compare it with its specification."""
        self._runner.run(self._run(scenario))

    def close(self) -> None:
        """Stop the worker."""
        self._runner.run(self._shift.close())

    async def _run(self, scenario: FaultScenario) -> None:
        course = self._actor.course = Course(scenario)
        stage = PlanStage(self._plans, self._actor, self._client)
        stage.id = course.id
        loads = self._actor.loads
        await self._shift.begin()
        # Not by `stage`: the doors refuse many of these plans, such as one with a step that can never start.
        request = PlanRequest(
            workspace="/sample/project",
            source=write_plan(scenario.plan, "json"),
            max_parallel=scenario.max_parallel,
            attempts_per_run=scenario.attempts_per_run,
        )
        await self._client.start_workflow(PlanWorkflow.run, request, id=course.id, task_queue=self._queue)
        others = [asyncio.create_task(self._disturb(course)), asyncio.create_task(self._answer(course))]
        try:
            result = await stage.result(seconds=RESULT_S)
        finally:
            for task in others:
                task.cancel()
            ends = await asyncio.gather(*others, return_exceptions=True)
            await self._shift.begin()
        for end in ends:
            if isinstance(end, Exception):
                raise end
        found = await listed(stage)
        self._judge(course, result.outcome, found)
        self.seen.update(steps=len(found), attempts=len(course.activities), asked=course.asked)
        self.seen.update(plans=1, runs=self._actor.loads - loads + 1)
        self.seen[result.outcome.value] += 1

    def _judge(self, course: Course, outcome: PlanOutcome, found: dict[str, str]) -> None:
        assert not course.problems, course.problems[:5]
        if outcome is PlanOutcome.CANCELLED:
            assert course.cancelled
            if not found and not course.begun:
                return  # before it was opened
            assert not course.impossible(found), course.impossible(found)[:5]
            return
        assert found == course.statuses(), _differ(found, course.statuses())
        failed = StepStatus.FAILED in course.expected.values()
        assert outcome is (PlanOutcome.FAILED if failed else PlanOutcome.COMPLETED)

    async def _disturb(self, course: Course) -> None:
        """Do to the plan what is to happen to it, each at its time."""
        for disturbance in course.scenario.disturbances:
            while course.begun < disturbance.after:
                await asyncio.sleep(LOOK_S)
            self.seen[disturbance.way.value] += 1
            with contextlib.suppress(InvalidRequestError, RPCError):  # it is closed
                await self._do(disturbance, course)

    async def _do(self, disturbance: Disturbance, course: Course) -> None:
        match disturbance.way:
            case Way.PAUSE:
                await self._plans.pause(course.id, "a look")
                await asyncio.sleep(disturbance.lasts_s)
                await self._plans.resume(course.id)
            case Way.RESTART:
                await self._shift.stop()
                await asyncio.sleep(disturbance.lasts_s)
                await self._shift.begin(forgetful=disturbance.forgetful)
            case Way.CANCEL:
                course.cancelled = True
                await self._plans.cancel(course.id)
            case Way.CANCEL_IN_TEMPORAL:
                course.cancelled = True
                await self._client.get_workflow_handle(course.id).cancel()

    async def _answer(self, course: Course) -> None:
        """Answer what is asked: no, where the attempt is to fail by policy."""
        handle = self._client.get_workflow_handle(course.id)
        task = asyncio.current_task()
        # The SDK may turn the cancellation of a call into an error of its own.
        while task is not None and not task.cancelling():
            await asyncio.sleep(5 * LOOK_S)
            for name, attempt in sorted(course.waiting.items()):
                refused = course.scenario.script(name, attempt).failure is FailureClass.POLICY
                answer = {"question": name, "option": "reject" if refused else "approve", "by": "ada"}
                # The plan is closed, the step does not wait now, or no worker was there to take the answer: it is
                # sent again as long as the step waits.
                with contextlib.suppress(RPCError, WorkflowUpdateFailedError, RPCTimeoutOrCancelledError, TimeoutError):
                    async with asyncio.timeout(5):
                        await handle.execute_update("answer", answer)


async def listed(stage: PlanStage) -> dict[str, str]:
    """Return where each step stands. For a closed plan the worker replays the last run: it has to be able to.

    Open plans are not asked: the SDK (1.35) may write a history that cannot be replayed when an event comes in
    between a query and the next workflow task.
    """
    async with asyncio.timeout(30):
        while True:
            try:
                return await stage.steps()
            except ServiceUnavailableError as error:
                if "TMPRL1100" in error.message:
                    raise
            await asyncio.sleep(LOOK_S)


def _differ(found: dict[str, str], expected: dict[str, str]) -> str:
    names = [name for name in {**expected, **found} if found.get(name) != expected.get(name)]
    return ", ".join(f"{name} is {found.get(name)}, not {expected.get(name)}" for name in names[:5])


@contextmanager
def stand(address: str) -> Iterator[Stand]:
    """Open an event loop of its own, for hypothesis is not async, and a worker on the session's server."""
    queue = f"random-{uuid4().hex[:12]}"
    settings = parse_settings(f"temporal: {{address: '{address}', task_queue: '{queue}', authenticate: false}}\n", {})
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        client = runner.run(Client.connect(address, data_converter=DATA_CONVERTER))
        opened = Stand(runner, client, settings)
        try:
            yield opened
        finally:
            opened.close()


@pytest.mark.timeout(180 + PLANS * 10 + SHRINKING_S)
def test_random_plans_end_as_their_specification_says(temporal: WorkflowEnvironment) -> None:
    address = temporal.client.service_client.config.target_host

    def one_round(number: int) -> Counter[str]:
        with stand(address) as opened:
            check_round(opened.run, f"{SEED}{number}")
            return opened.seen

    seen: Counter[str] = Counter()
    rounds = -(-PLANS // ROUND)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for each in pool.map(one_round, range(rounds)):
            seen.update(each)
    print(f"\n{dict(seen)}")
    assert seen["plans"] == rounds * ROUND
    assert seen["attempts"] > seen["plans"]
