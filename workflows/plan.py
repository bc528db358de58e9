"""The plan workflow: opens a plan, runs its steps as its graph allows, verifies what came out, and closes it.

This file is the order of things. Which step starts is decided in `tightloop/plan/engine/schedule.py`, what follows a
failure in `tightloop/plan/engine/recovery.py`; attempts are looked after in `workflows/plan_floor.py`, and people
speak to `workflows/plan_desk.py`.
"""

import asyncio
from collections.abc import Awaitable
from datetime import timedelta
from typing import NoReturn

from activities.plan.activity import PlanActivities
from activities.plan.requests import (
    ClosePlanRequest,
    LoadPlanRequest,
    OpenedPlan,
    OpenPlanRequest,
    VerifyPlanRequest,
)
from activities.workspace.activity import AdoptRequest, WorkspaceActivities
from temporalio import workflow
from temporalio.exceptions import ApplicationError, is_cancelled_exception
from tightloop.episode import PauseKind
from tightloop.errors import InvalidRequestError
from tightloop.plan.engine.compensation import take_back
from tightloop.plan.engine.graph import Graph
from tightloop.plan.engine.schedule import Schedule
from tightloop.plan.input import PlanInput
from tightloop.plan.model import OnPlanFailure
from tightloop.plan.request import PlanOutcome, PlanPhase, PlanRequest, PlanResult
from tightloop.plan.result import StepResult, StepStatus
from tightloop.scrub import scrub
from tightloop.value import shorten

from workflows.plan_notice import APPROVAL, PAUSE_KIND, STATUS, Ended
from workflows.plan_steps import run_activity
from workflows.plan_waiting import NAMES_SHOWN, PlanWaiting
from workflows.steps import CLOSE_TIMEOUT, OPEN_TIMEOUT, RESTORE_TIMEOUT, Call, StepFailedError

OPEN_WITH_PLANNER_TIMEOUT = timedelta(minutes=60)
VERIFY_TIMEOUT = timedelta(hours=6)
"""The commands of the definition of done have limits of their own."""
DRAIN_PATIENCE = timedelta(seconds=10)
"""How long nothing is started so that a run may give way; a long step is not waited for in vain."""
DRAIN_AGAIN = 4
"""The next try comes after the run's number of attempts divided by this."""
HARD_ATTEMPTS = 8_000
HARD_EVENTS = 30_000
"""From here on the run gives way whatever it waits for: at about 51 000 events the server would end it."""
CARRIED_CHARACTERS = 100_000
"""A longer plan text is not given to the next run."""
STATUSES_LIMIT = 2_000
ASK_ADVICE = "answer with retry, skip, abort or replan; edit files before if that is what it needs"


class GivesWay(Exception):  # noqa: N818 - it ends the run, it is not an error
    """This run gives way to a new one."""


@workflow.defn
class PlanWorkflow(PlanWaiting):
    """A graph of steps carried out to an outcome. Its history is the log of what was done."""

    @workflow.init
    def __init__(self, request: PlanInput | None = None) -> None:
        """Take up the state of the run before, so that handlers see it at once."""
        super().__init__(request)
        self._draining: asyncio.Task[None] | None = None
        self._drain_after = self._request.attempts_per_run

    @workflow.run
    async def run(self, request: PlanInput | None = None) -> PlanResult:
        """Carry the plan out until its steps are done and verified, or a failure or a person ends it."""
        del request  # `__init__` took it up
        self._refuse_bad_input()
        try:
            return await self._or_give_way(self._carry_out())
        except BaseException as error:
            if is_cancelled_exception(error):
                self._book.cancel = self._book.cancel or "cancelled in Temporal"
                await asyncio.shield(self._or_give_way(self._end(Ended(self._book.cancel))))
            raise

    async def _or_give_way(self, work: Awaitable[PlanResult]) -> PlanResult:
        try:
            return await work
        except GivesWay:
            await self._continue_as_new()

    async def _carry_out(self) -> PlanResult:
        try:
            await self._open()
            await self._pursue()
        except Ended as end:
            return await self._end(end)
        return await self._close(PlanOutcome.COMPLETED, "all steps are done")

    async def _pursue(self) -> None:
        """Start what may start and take in what has ended, until nothing is left to do."""
        while True:
            self._take_in_ended()
            self._take_notice()
            await self._adopt_when_wanted()
            self._start_what_may()
            self._count_time()
            # While the definition of done ran, people may have changed or paused the plan.
            if self._nothing_left and await self._is_done() and self._nothing_left:
                return
            self._give_way_when_due()
            await self._next_event()

    @property
    def _nothing_left(self) -> bool:
        busy = self._running or self._ended or self._side or self._book.wanted
        return self._plan.settled and self._book.pause is None and not busy and not self._holds

    async def _is_done(self) -> bool:
        """Ask a person, or check the definition of done. Return whether the plan is completed."""
        if self._book.asked:
            names = ", ".join(self._book.asked[:NAMES_SHOWN])
            why = self._book.failures.get(self._book.asked[0])
            reason = f"failed: {names}" + (f" ({why.reason})" if why else "")
            # The first of them was alerted of when it failed.
            self._begin_pause(PauseKind.RESPONSE, reason, ASK_ADVICE, step=self._book.asked[0], tell=False)
            return False
        left = self._plan.unrecovered()
        if left:
            names = ", ".join(self._plan.name(number) for number in left[:NAMES_SHOWN])
            why = self._book.failures.get(self._plan.name(left[0]))
            count = "1 step" if len(left) == 1 else f"{len(left)} steps"
            raise Ended(f"{count} failed: {names}" + (f" ({why.reason})" if why else ""))
        return await self._is_verified()

    async def _is_verified(self) -> bool:
        """Run the definition of done on the tree that the plan leaves."""
        if not self._plan.graph.head.checks or self._request.dry_run:
            return True
        self._enter(PlanPhase.VERIFYING)
        found = await self._do(
            PlanActivities.verify_plan,
            lambda: VerifyPlanRequest(scope=self._scope(), expected_tree=self._book.tree),
            Call("run the definition of done", VERIFY_TIMEOUT, self._request.queues.workspace),
        )
        self._enter(PlanPhase.RUNNING)
        if found.drift is not None:
            self._log("drift", detail=f"files changed outside a pause were saved as tree {found.drift[:12]} and undone")
        self._log("verified", detail=f"{found.total - len(found.failed)} of {found.total} checks pass")
        # Where people changed or paused the plan meanwhile, it is verified again later.
        if not found.passed and self._nothing_left:
            self._follow_unmet("; ".join(found.failed) or "no check passed")
        return found.passed

    def _follow_unmet(self, failed: str) -> None:
        """Find the way out where all steps are done and the definition of done does not hold."""
        reason = f"the definition of done does not hold: {failed}"
        policy = self._plan.graph.head.on_failure
        if policy is not OnPlanFailure.ASK:
            raise Ended(reason, compensate=policy is OnPlanFailure.COMPENSATE)
        self._begin_pause(PauseKind.RESPONSE, reason, "mend the files and resume, or replan, or cancel")

    # -- opening, adopting, closing -----------------------------------------------------------------

    def _refuse_bad_input(self) -> None:
        problem = self._input.problem
        if not problem and self._input.state is None:
            try:
                self._request.check()
                return
            except InvalidRequestError as error:
                problem = error.message
        if problem:
            raise ApplicationError(problem, type="InvalidRequestError", non_retryable=True)

    async def _open(self) -> None:
        """Open a new plan, or load the graph of the run before."""
        queue = self._request.queues.workspace
        if self._book.plan is None:
            opened = await self._opened(queue)
            self._book.plan, self._book.base_tree, self._book.tree = opened.plan, opened.tree, opened.tree
        else:
            call = Call(f"load revision {self._book.revision}", OPEN_TIMEOUT, queue)
            opened = await self._do(PlanActivities.load_plan, lambda: LoadPlanRequest(scope=self._scope()), call)
        first = self._input.state is None
        graph = Graph.unpack(opened.graph)
        self._schedule = Schedule(graph, None if first else self._input.state)
        self._title, self._planner = graph.head.title or graph.head.plan_id, opened.planner
        if first:
            self._book.begin(graph.head.budget, graph.head.hypotheses)
            if opened.api_calls:
                self._book.spent = self._book.spent.with_usage(opened.usage, opened.api_calls)
            self._log("opened", detail="; ".join([f"{len(graph.nodes)} steps", *opened.notes]))
            workflow.upsert_memo({"goal": shorten(scrub(self._title), 200)})
        for name in list(self._book.due):
            self._back_off(name)
        if self._book.phase is PlanPhase.COMPENSATING:
            raise Ended(self._book.reason, compensate=True)
        self._attention = self._book.pause.kind if self._book.pause else APPROVAL if self._book.waiting else ""
        self._enter(PlanPhase.RUNNING)
        self._catch_up()

    async def _opened(self, queue: str) -> OpenedPlan:
        limit = OPEN_WITH_PLANNER_TIMEOUT if self._request.goal else OPEN_TIMEOUT
        opening = workflow.info().original_execution_run_id
        request = OpenPlanRequest(scope=self._scope(), request=self._request, opening=opening)
        try:
            return await self._unless_cancelled(
                PlanActivities.open_plan, request, Call("check the plan and claim the workspace", limit, queue)
            )
        except StepFailedError as failure:
            await self._alert_failure(failure.reason)
            raise ApplicationError(failure.reason, type="PlanNotOpened", non_retryable=True) from failure

    async def _adopt_when_wanted(self) -> None:
        """Keep what a person edited during a pause, beside steps that read at most."""
        if not self._book.adopt or self._book.pause is not None or self._request.dry_run or self._holds:
            return
        self._book.adopt = False
        if any(attempt.writes for attempt in self._running.values()):
            return  # its tree holds them
        call = Call("resume: keep edits made during the pause", RESTORE_TIMEOUT, self._request.queues.workspace)
        adopted = await self._do(
            WorkspaceActivities.adopt_workspace,
            lambda: AdoptRequest(scope=self._scope(), expected_tree=self._book.tree),
            call,
        )
        if adopted.tree != self._book.tree:
            self._book.tree = adopted.tree
            self._log("adopted", detail=f"{adopted.files_changed} files edited during the pause were kept")

    async def _end(self, end: Ended) -> PlanResult:
        """End a plan that did not reach its end: stop what runs, take back what shall be, close."""
        self._stop_revising()
        await self._stop_running()
        if self._schedule is None and self._book.plan is not None:
            await self._load_to_close()
        cancelled = self._book.cancel is not None
        reason = self._book.reason = end.reason
        compensate = end.compensate
        if self._schedule is not None and cancelled:
            compensate = self._plan.graph.head.on_failure is OnPlanFailure.COMPENSATE
        outcome = PlanOutcome.CANCELLED if cancelled else PlanOutcome.FAILED
        if compensate:
            problems = await self._take_all_back()
            if problems:
                reason += ". Not taken back: " + "; ".join(problems[:NAMES_SHOWN])
            elif not cancelled:
                outcome = PlanOutcome.COMPENSATED
        if not cancelled:
            await self._alert_failure(reason)
        return await self._close(outcome, reason)

    async def _load_to_close(self) -> None:
        """Load the graph of a plan that was opened in a run before, to take back what shall be and give it back."""
        call = Call(f"load revision {self._book.revision}", OPEN_TIMEOUT, self._request.queues.workspace)
        try:
            opened = await run_activity(PlanActivities.load_plan, LoadPlanRequest(scope=self._scope()), call)
        except StepFailedError as failure:
            self._log("closed", detail=f"the workspace could not be given back: {failure.reason}")
            return
        self._schedule = Schedule(Graph.unpack(opened.graph), self._input.state)

    async def _stop_running(self) -> None:
        """Cancel what runs and wait until it has really stopped."""
        for attempt in self._running.values():
            if attempt.task is not None:
                attempt.task.cancel()
        for task in [*self._backing_off.values(), *self._side]:
            task.cancel()
        await workflow.wait_condition(lambda: self._all_stopped)
        done = (StepStatus.COMPLETED, StepStatus.SKIPPED)
        while self._ended:
            attempt, ended = self._ended.popleft()
            number = self._plan.find(attempt.name)
            if number is None:
                continue
            if isinstance(ended, StepResult) and ended.status in done:
                self._settle(attempt, number, ended)
                continue
            self._log("stopped", attempt.name)
            self._plan.ready_again(number)
        self._running.clear()

    @property
    def _all_stopped(self) -> bool:
        tasks = (attempt.task for attempt in self._running.values())
        return all(task is None or task.done() for task in tasks) and not self._side

    async def _take_all_back(self) -> list[str]:
        """Take everything back in reverse order; a run that grows too long gives way in between."""
        self._enter(PlanPhase.COMPENSATING)
        problems: list[str] = []
        for entry in take_back(self._book.undo):
            if self._attempts_here >= HARD_ATTEMPTS:
                raise GivesWay
            problems += await self._take_back((entry,))
        return problems

    async def _close(self, outcome: PlanOutcome, reason: str) -> PlanResult:
        self._status, self._reason = outcome.value.lower(), shorten(reason, 1_000)
        self._count_time()
        result = PlanResult(outcome=outcome, reason=self._reason)
        if self._schedule is not None:
            self._plan.close()
            self._log("closed", detail=f"{outcome.value}: {self._reason}")
            result = await self._account(outcome)
        self._enter(PlanPhase.CLOSED)
        workflow.upsert_search_attributes([STATUS.value_set(self._status), PAUSE_KIND.value_unset()])
        await workflow.wait_condition(workflow.all_handlers_finished)
        if outcome in (PlanOutcome.FAILED, PlanOutcome.COMPENSATED):
            raise ApplicationError(self._reason, result, type="PlanFailed", non_retryable=True)
        return result

    async def _account(self, outcome: PlanOutcome) -> PlanResult:
        """Store the account of the plan, give the workspace back, and return the result."""
        counts, record = self._plan.counts(), None
        request = ClosePlanRequest(
            scope=self._scope(),
            outcome=outcome,
            reason=self._reason,
            expected_tree="" if self._request.dry_run else self._book.tree,
            statuses=self._open_statuses(),
            counts=counts,
        )
        try:
            call = Call(f"close: {outcome.value}", CLOSE_TIMEOUT, self._request.queues.workspace)
            closed = await run_activity(PlanActivities.close_plan, request, call)
            record = closed.archive
            if closed.drift is not None:
                found = closed.drift[:12]
                self._log("drift", detail=f"files changed outside a pause were saved as tree {found} and undone")
        except StepFailedError as failure:
            self._log("closed", detail=f"the workspace could not be given back: {failure.reason}")
        return PlanResult(
            outcome=outcome,
            reason=self._reason,
            counts=counts,
            tree=self._book.tree,
            revision=self._book.revision,
            spent=self._book.spent,
            record=record,
        )

    def _open_statuses(self) -> dict[str, str]:
        plan = self._plan
        left = [number for number in range(len(plan)) if plan.status(number) is not StepStatus.COMPLETED]
        return {plan.name(number): plan.status(number).value for number in left[:STATUSES_LIMIT]}

    # -- runs ---------------------------------------------------------------------------------------

    def _give_way_when_due(self) -> None:
        """Let a long run give way to a new one, in a moment in which nothing runs."""
        if self._draining is None:
            hard = self._is_very_long()
            if not hard and (not self._is_long() or self._children_run or self._nothing_left):
                return
            self._holds += 1
            self._stop_growing()
            self._draining = asyncio.create_task(self._stop_draining(forever=hard))
        if not (self._running or self._ended or self._side or self._alerting):
            raise GivesWay

    def _is_long(self) -> bool:
        # After a try in vain only further attempts count: the suggestion would hold for good.
        suggested = (
            workflow.info().is_continue_as_new_suggested() and self._drain_after == self._request.attempts_per_run
        )
        return suggested or self._attempts_here >= self._drain_after

    def _is_very_long(self) -> bool:
        most = max(HARD_ATTEMPTS, self._request.attempts_per_run)
        return self._attempts_here >= most or workflow.info().get_current_history_length() >= HARD_EVENTS

    async def _stop_draining(self, *, forever: bool) -> None:
        """Go on starting steps where one that runs takes too long to wait for."""
        if forever:
            return
        await workflow.sleep(DRAIN_PATIENCE, summary="a new run follows when nothing runs")
        self._draining = None
        self._drain_after = self._attempts_here + max(self._request.attempts_per_run // DRAIN_AGAIN, 1)
        self._holds -= 1
        self._wake()

    async def _continue_as_new(self) -> NoReturn:
        """Follow this run with a new one; handlers finish first, and what they were told goes along."""
        self._count_time()
        for task in self._backing_off.values():
            task.cancel()
        await workflow.wait_condition(lambda: workflow.all_handlers_finished() or self._book.cancel is not None)
        if self._book.cancel is not None:
            self._stop_revising()
        await workflow.wait_condition(workflow.all_handlers_finished)
        self._book.runs += 1
        state = self._book.save(self._schedule)
        fields = {name: getattr(self._request, name) for name in PlanRequest.model_fields}
        if len(self._request.source) > CARRIED_CHARACTERS:
            fields["source"] = ""  # it is stored, and has to leave room for the state
        workflow.continue_as_new(PlanInput(**{**fields, "state": state}))
