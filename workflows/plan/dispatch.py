"""A plan's dispatcher. Starts attempts, applies their results and passes failures to recovery."""

import asyncio
from collections import deque
from datetime import datetime, timedelta

from temporalio import workflow

from activities.plan.requests import RunStepRequest
from tightloop.ledger.alert import AlertKind
from tightloop.plan.child import StepFailure, StepResult, StepStatus
from tightloop.plan.engine.graph import Node
from tightloop.plan.engine.recovery import find_breach, find_fan_out_breach, find_step_overspend, may_be_undone
from tightloop.plan.engine.state import UndoEntry, choices
from tightloop.plan.failing import FailureClass, Watchdog
from tightloop.plan.request import PlanSpent
from tightloop.plan.step import CHILDREN, Access, Capability
from tightloop.run.outcome import NO_WORK
from tightloop.run.question import Question, QuestionKind
from tightloop.safety.approval import with_approval
from workflows.plan.attempts import MergeQueue, failed_result, run_attempt
from workflows.plan.context import Attempt, PlanContext
from workflows.plan.recovery import Recovery
from workflows.plan.reporting import PlanQuestions
from workflows.run.activities import ActivityFailedError, ActivityRunner

# More at a time is slower, and with more than 2 000 pending activities the workflow task fails forever.
WINDOW_LIMIT = 100
"""Maximum number of concurrent attempts."""
RATE_LIMIT = 48
RATE_S = 1.0
"""Age in seconds below which a running attempt counts towards `RATE_LIMIT`.

Each young attempt may end within one workflow task, which adds two events. With more than 100 such events, the server
discards the task (`history.maximumBufferedEventsBatch`). An adaptive limit is hardly faster, and a worker that stalls
for 0.2 s would lose its task.
"""
DEFAULT_TIMEOUT_S: float = Node.model_fields["timeout_s"].default
_DEEPER = frozenset({Capability.SUBPLAN, Capability.BRANCH})


class StartRate:
    """Rate limiter for starting attempts."""

    def __init__(self, context: PlanContext) -> None:
        self._context = context
        self._begun: deque[Attempt] = deque()
        self._waiting: asyncio.Task[None] | None = None

    def add(self, attempt: Attempt) -> None:
        """Record an attempt that is starting."""
        self._begun.append(attempt)

    def count_free_starts(self) -> int:
        """Return the number of attempts that may start now. Finished attempts do not count."""
        now, running = self._context.now(), self._context.running
        self._begun = deque(
            attempt
            for attempt in self._begun
            if running.get(attempt.name) is attempt and (now - attempt.since).total_seconds() < RATE_S
        )
        return RATE_LIMIT - len(self._begun)

    def wait(self) -> None:
        """Wake the main loop after `RATE_S`."""
        if self._waiting is None or self._waiting.done():
            self._waiting = asyncio.create_task(self._wait())

    def stop(self) -> None:
        """Cancel the wait.

        The server would reject the new run if the wait ended during continue-as-new.
        """
        if self._waiting is not None:
            self._waiting.cancel()

    async def _wait(self) -> None:
        await workflow.sleep(RATE_S, summary="start more steps")
        self._context.wake()


class Dispatch:
    """Runs attempts concurrently."""

    def __init__(
        self, context: PlanContext, questions: PlanQuestions, recovery: Recovery, activities: ActivityRunner
    ) -> None:
        self._context, self._questions, self._recovery, self._activities = context, questions, recovery, activities
        self._rate = StartRate(context)
        self._merging = MergeQueue(context)
        self._working_time: asyncio.Task[None] | None = None
        self._busy_since: datetime | None = None

    # -- running attempts ---------------------------------------------------------------------------

    @property
    def is_busy(self) -> bool:
        """True if anything is running or backing off. Waiting for people does not count."""
        return bool(self._context.running or self._context.side_tasks or self._recovery.is_backing_off)

    @property
    def has_children(self) -> bool:
        """True if any step's child workflows are running."""
        return any(attempt.capability in CHILDREN for attempt in self._context.running.values())

    def count_time(self) -> None:
        """Add time spent running or backing off. Time spent waiting for people does not count."""
        context, now = self._context, self._context.now()
        if self._busy_since is not None:
            context.progress = context.progress.add_work(now - self._busy_since)
        self._busy_since = now if self.is_busy else None

    # -- starting -----------------------------------------------------------------------------------

    def start_steps(self) -> None:
        """Start the best ready steps.

        The number of steps is limited by free slots, the tree, the budget and pauses.
        """
        context, schedule = self._context, self._context.schedule
        if context.is_held:
            return
        problem = context.find_breach()
        # Working time is the only bound that running steps use up.
        is_due = (
            schedule.ready
            or schedule.held
            or (context.has_attempts and problem is not None and "max_wall_s" in problem)
        )
        if problem is not None and is_due and not context.is_paused:
            self._questions.pause(QuestionKind.BUDGET, problem)
        elif context.is_idle:
            self._questions.close(context.find(QuestionKind.BUDGET))
        # Steps that a person requested start during a pause too.
        for name in context.progress.wanted:
            number = schedule.find(name)
            if number is not None and schedule.take_this(number):
                self._start(number)
            if number is None or not schedule.is_ready(number):
                left = tuple(step for step in context.progress.wanted if step != name)
                context.progress = context.progress.evolve(wanted=left)
        if context.is_paused:
            return
        self._expand_held()
        window = min(context.request.max_parallel or schedule.graph.head.max_parallel, WINDOW_LIMIT)
        rate = self._rate.count_free_starts()
        # An attempt that waits for a person does no work, so another step takes its slot.
        busy = schedule.running - sum(attempt.is_waiting for attempt in context.running.values())
        for number in schedule.take(min(window - busy, rate)):
            self._start(number)
        self._watch_working_time()
        # Steps are ready and slots are free: without this timer nothing might wake the loop.
        if busy < window and schedule.ready and self._rate.count_free_starts() <= 0:
            self._rate.wait()

    def stop_starting(self) -> None:
        """Cancel all timers before a new run starts."""
        self._rate.stop()
        if self._working_time is not None:
            self._working_time.cancel()

    def _watch_working_time(self) -> None:
        """Wake the main loop when the plan's working time is used up or the plan has to stop."""
        progress = self._context.progress
        is_watched = self._working_time is not None and not self._working_time.done()
        limits = [] if progress.budget.max_wall_s is None else [progress.budget.max_wall_s]
        left = [limit - progress.spent.wall_time.total_seconds() for limit in limits]
        left += [] if progress.until is None else [(progress.until - self._context.now()).total_seconds()]
        if self._context.running and not is_watched and (ahead := [seconds for seconds in left if seconds > 0]):
            self._working_time = asyncio.create_task(self._wake_after(min(ahead)))

    async def _wake_after(self, seconds: float) -> None:
        await workflow.sleep(seconds, summary="remaining working time")
        self._context.wake()

    def _expand_held(self) -> None:
        """Expand held templates. Ask about templates with more steps than the budget allows."""
        context, schedule = self._context, self._context.schedule
        for number, count in list(schedule.held.items()):
            node = schedule.node(number)
            problem = find_fan_out_breach(node, count, context.progress.budget)
            if problem is None:
                schedule.expand(number, count)
            # A dry run has no results to expand the template with.
            elif count < 0 and context.request.dry_run:
                schedule.finish(number, StepStatus.SKIPPED)
            elif count < 0:
                failure = StepFailure(failure_class=FailureClass.LOGIC, reason=problem)
                self._recovery.fail(node.id, number, failure, attempt=1)
            else:
                self._questions.pause(QuestionKind.BUDGET, problem, step=node.id)

    def _start(self, number: int) -> None:
        context, schedule, progress = self._context, self._context.schedule, self._context.progress
        node, name, expansion = schedule.node(number), schedule.name(number), schedule.template(number)
        touches = node.access is not Access.NONE
        attempt = Attempt(
            name=name,
            capability=node.capability,
            request=RunStepRequest(
                scope=context.scope,
                step=name,
                template=expansion[0] if expansion else "",
                item=expansion[1] if expansion else None,
                attempt=schedule.attempt(number),
                expected_tree=progress.tree if touches else "",
                beliefs=progress.beliefs,
                answers=progress.answers.get(name, ()),
                dry_run=context.request.dry_run,
            ),
            summary=_summary(name, node),
            instant=node.plain,
            timeout=self._time_limit(name, node),
            # A person may have dropped the time to stop since the start.
            plan=context.request.evolve(until=progress.until),
            since=context.now(),
            touches_tree=touches,
            writes=node.access is Access.WRITES,
            merges=node.access is Access.MERGES,
        )
        self._context.running[attempt.name] = attempt
        self._context.count_attempt(name)
        attempt.task = asyncio.create_task(self._carry_out(attempt))
        # asyncio keeps an exception inside its task: without a callback the step would appear to run forever.
        attempt.task.add_done_callback(lambda task: self._report_broken(attempt, task))
        self._rate.add(attempt)
        if node.watchdog is not None:
            attempt.watchdog = asyncio.create_task(self._watch(attempt, node.watchdog))

    def _time_limit(self, name: str, node: Node) -> timedelta | None:
        """Return the time limit of an attempt.

        The limit is the remaining time box or the step's timeout, whichever is shorter. The default timeout
        is meant for a single command. It does not apply to steps with child workflows, which may wait for
        people.
        """
        limit = None if node.capability in CHILDREN and node.timeout_s == DEFAULT_TIMEOUT_S else node.timeout_s
        if node.timebox_s is not None:
            context, now = self._context, self._context.now()
            # The time box spans all attempts of the step, also those before a continue-as-new.
            since = context.progress.first_starts.get(name, now)
            context.progress = context.progress.evolve(first_starts={**context.progress.first_starts, name: since})
            # At least a second: Temporal treats a timeout of 0 as a missing one and refuses the activity.
            left = max(node.timebox_s - (now - since).total_seconds(), 1.0)
            limit = left if limit is None else min(limit, left)
        return None if limit is None else timedelta(seconds=limit)

    async def _carry_out(self, attempt: Attempt) -> None:
        ended: StepResult | ActivityFailedError | None
        try:
            ended = self._refuse_too_deep(attempt) or await run_attempt(attempt, self._activities, self._merging)
        except ActivityFailedError as failure:
            ended = failure
        # Cancelled by its watchdog, the attempt has failed; cancelled by the end of the plan, it has no outcome.
        except asyncio.CancelledError:
            ended = failed_result(FailureClass.TRANSIENT, attempt.ended_by) if attempt.ended_by else None
        else:
            # The activity may report its cancellation as a failure of its own; the cause was the watchdog.
            if attempt.ended_by and isinstance(ended, StepResult) and ended.status is StepStatus.FAILED:
                ended = ended.evolve(failure=failed_result(FailureClass.TRANSIENT, attempt.ended_by).failure)
        finally:
            if attempt.watchdog is not None:
                attempt.watchdog.cancel()
        # Without a tree in the result, whatever is on disk now is unaccounted for.
        is_unknown = not (isinstance(ended, StepResult) and ended.tree)
        if attempt.writes and (attempt.children or attempt.is_lost) and is_unknown:
            self._context.expect_own_leftovers()
        self._context.ended.append((attempt, ended))
        self._context.wake()

    def _report_broken(self, attempt: Attempt, task: asyncio.Task[None]) -> None:
        """Record an attempt that failed in workflow code, for example because its result could not be parsed."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self._context.ended.append(
                (attempt, ActivityFailedError(f"{attempt.name}: {type(error).__name__}: {error}"))
            )
            self._context.wake()

    def _refuse_too_deep(self, attempt: Attempt) -> StepResult | None:
        if attempt.capability not in _DEEPER:
            return None
        # With nothing spent, only the depth can be breached. The other bounds pause the plan before a step starts.
        problem = find_breach(self._context.progress.budget, PlanSpent(), depth=self._context.request.depth + 1)
        return failed_result(FailureClass.POLICY, problem) if problem and "nested" in problem else None

    async def _watch(self, attempt: Attempt, watchdog: Watchdog) -> None:
        """Escalate as configured if the attempt exceeds the time limit of the watchdog."""
        await workflow.sleep(watchdog.after_s, summary=f"watchdog for {attempt.name}")
        reason = f"{attempt.name} has been running for more than {watchdog.after_s:g} s"
        self._context.log(
            "overdue",
            f"running for more than {watchdog.after_s:g} s, so the watchdog took this action: {watchdog.escalate}",
            attempt.name,
        )
        if watchdog.escalate == "cancel" and attempt.task is not None:
            attempt.ended_by = f"the watchdog stopped the attempt after {watchdog.after_s:g} s"
            attempt.task.cancel()
        elif watchdog.escalate == "pause":
            self._questions.pause(
                QuestionKind.LIMIT, f"{reason}. The step keeps running, but no new step starts", step=attempt.name
            )
        else:
            self._context.alerts.send(self._context.alert(AlertKind.OVERDUE, reason, attempt.name))

    # -- results ------------------------------------------------------------------------------------

    def apply_ended_attempts(self) -> None:
        """Apply the results of finished attempts to the schedule."""
        context = self._context
        while self._context.ended:
            attempt, ended = self._context.ended.popleft()
            del self._context.running[attempt.name]
            number = context.schedule.find(attempt.name)
            if number is None:
                continue
            if isinstance(ended, StepResult):
                self._settle(attempt, number, ended)
            else:
                context.schedule.resume(number)
                if ended is not None:
                    self.pause_for(ended, attempt.name)

    def pause_for(self, failure: ActivityFailedError, step: str = "") -> None:
        """Pause the plan because an activity could not run. The activity runs again once an answer arrives."""
        if failure.drift is not None:
            # No question if the changes are known to be this plan's own: the next activity puts them back. No question
            # either if the tree has moved on meanwhile: then the activity started from a tree that no longer counts.
            progress = self._context.progress
            if not progress.put_back and failure.drift.expected == progress.tree:
                self._questions.ask_about_drift(failure.drift)
            return
        self._context.log("stuck", failure.reason, step)
        alert = AlertKind.NO_EXECUTOR if failure.no_worker else None
        self._questions.pause(QuestionKind.FATAL, failure.reason, step=step, alert=alert)

    async def stop(self) -> None:
        """Cancel all attempts and wait until they have stopped.

        If an attempt completes in the meantime, its result is applied.
        """
        context = self._context
        # Recovery first, because it could start more attempts.
        self._recovery.cancel()
        tasks = [attempt.task for attempt in self._context.running.values() if attempt.task is not None]
        for task in tasks:
            task.cancel()
        # `cancel()` is only a request. What follows (compensation, closing) needs a tree that nobody writes to.
        await workflow.wait_condition(lambda: all(task.done() for task in tasks) and not context.side_tasks)
        while self._context.ended:
            attempt, ended = self._context.ended.popleft()
            number = context.schedule.find(attempt.name)
            if number is None:
                continue
            # Such a step has changed files in spite of the cancellation, so compensation must know about it.
            if isinstance(ended, StepResult) and ended.status in (StepStatus.COMPLETED, StepStatus.SKIPPED):
                self._settle(attempt, number, ended)
            else:
                context.log_drift(ended.drift if isinstance(ended, StepResult) else None, attempt.name)
                context.log("stopped", step=attempt.name)
                context.schedule.resume(number)
        self._context.running.clear()

    def _settle(self, attempt: Attempt, number: int, result: StepResult) -> None:
        context, schedule = self._context, self._context.schedule
        node, name = schedule.node(number), attempt.name
        context.take_result(name, result)
        context.progress = context.progress.evolve(
            approvals=with_approval(context.progress.approvals, *attempt.approvals)
        )
        context.log_drift(result.drift, name)
        is_changed = result.tree not in ("", attempt.request.expected_tree)
        if (attempt.writes or attempt.merges) and is_changed and NO_WORK not in result.qualifier:
            context.progress = context.progress.evolve(worked=True)
        if attempt.writes:
            context.set_tree(result.tree)
        if attempt.writes and result.tree:
            context.expect_own_leftovers(False)
            if attempt.proof is not None:
                context.progress = context.progress.evolve(proof_within=attempt.proof)
        # Before the outcome is handled: a failed attempt may need compensation too.
        self._note_undo(attempt, node, result)
        if result.status is StepStatus.WAITING:
            question = result.question or Question(
                id="", kind=QuestionKind.GATE, title=f"May '{name}' continue?", options=choices()
            )
            schedule.mark_waiting(number)
            self._questions.ask_for_step(name, question)
        elif result.status is StepStatus.FAILED:
            failure = result.failure or StepFailure(failure_class=FailureClass.LOGIC, reason="no reason given")
            if node.catch_all is not None and not failure.mode:
                failure = node.catch_all.applied_to(failure)
            failure = self._within_budget(name, node, result, failure)
            self._recovery.fail(name, number, failure, attempt=attempt.number)
        elif result.status is StepStatus.COMPLETED and context.revises_itself(name):
            schedule.retry_later(number)
            self._recovery.grow(name, result)
        else:
            context.progress = context.progress.settle(name)
            status = StepStatus.SKIPPED if result.status is StepStatus.SKIPPED else StepStatus.COMPLETED
            schedule.finish(number, status, selected_steps=result.chosen, counts=result.counts)
            context.log(status.value, result.summary + (" (reused)" if result.reused else ""), name)

    def _note_undo(self, attempt: Attempt, node: Node, result: StepResult) -> None:
        context = self._context
        if context.request.dry_run or result.status is StepStatus.WAITING:
            return
        request, completed = attempt.request, result.status is StepStatus.COMPLETED
        if may_be_undone(node, completed=completed, tree_before=request.expected_tree, tree_after=result.tree):
            undo = (*context.progress.undo, UndoEntry.of(request))
            context.progress = context.progress.evolve(undo=undo)

    def _within_budget(self, name: str, node: Node, result: StepResult, failure: StepFailure) -> StepFailure:
        """Change the class of a failure to POLICY if the step has used up its own budget."""
        if node.budget.max_cost_usd is None and node.budget.max_tokens is None:
            return failure
        self._context.progress = progress = self._context.progress.charge(name, result)
        cost, tokens = progress.step_spent[name]
        problem = find_step_overspend(node, cost_usd=cost, tokens=tokens)
        if problem is None:
            return failure
        return StepFailure(failure_class=FailureClass.POLICY, reason=f"{failure.reason}; {problem}")


def _summary(name: str, node: Node) -> str:
    """Return the summary of a step's activity for Temporal's UI."""
    if node.title:
        return f"{name}: {node.title}"
    # A summary costs as much as the rest of the command, and a milestone does nothing worth showing.
    return "" if node.capability is Capability.NONE else name
