"""The work floor of a plan: starts attempts, takes in how they ended, and does what follows from that."""

import asyncio
from collections import deque
from datetime import timedelta

from activities.plan.requests import RunStepRequest
from temporalio import workflow
from tightloop.alert import AlertKind
from tightloop.episode import PauseKind
from tightloop.plan.engine.breaker import breach, fan_out_breach, over_step_budget
from tightloop.plan.engine.compensation import undoable
from tightloop.plan.engine.graph import Node
from tightloop.plan.input import PlanInput
from tightloop.plan.model import Access, Capability, FailureClass
from tightloop.plan.request import PlanSpent, WaitingGate
from tightloop.plan.result import GateQuestion, StepFailure, StepResult, StepStatus
from tightloop.plan.state import UndoEntry

from workflows.plan_recovery import PlanRecovery
from workflows.plan_steps import CHILDREN, Attempt, failed, run_attempt
from workflows.steps import NO_WORKER_TIMEOUT, StepFailedError

WINDOW_LIMIT = 100
"""Attempts that run at the same time."""
YOUNG_LIMIT = 48
YOUNG_S = 1.0
"""At most so many attempts are younger than this. Each may end within one workflow task and leaves two events then;
more than 100 of them make the server throw the task away (`history.maximumBufferedEventsBatch`). A limit that grows
while few end at once is hardly faster, and a worker that stalls for 0.2 s loses its task."""
STOPS_GROWING = "stops-growing-when-draining"
"""Patch: no timer is left when a new run follows."""
DEFAULT_TIMEOUT_S: float = Node.model_fields["timeout_s"].default
_DEEPER = frozenset({Capability.SUBPLAN, Capability.BRANCH})


class PlanFloor(PlanRecovery):
    """Where attempts run."""

    def __init__(self, request: PlanInput | None = None) -> None:
        """Begin with nothing running."""
        super().__init__(request)
        self._ended: deque[tuple[Attempt, StepResult | StepFailedError | None]] = deque()
        self._young: deque[Attempt] = deque()
        self._growing_up: asyncio.Task[None] | None = None
        self._busy_s = 0.0
        """Time limits of all that runs."""
        self._no_worker_timeout = NO_WORKER_TIMEOUT

    # -- starting -----------------------------------------------------------------------------------

    def _start_what_may(self) -> None:
        """Start the best ready steps, as far as slots, tree, budget and people allow."""
        if self._holds:
            return
        if self._book.pause is None:
            problem = self._breach()
            if problem is not None and (self._plan.ready or self._plan.held):
                self._begin_pause(PauseKind.BUDGET, problem, "top_up, or cancel")
        self._start_wanted()
        if self._book.pause is not None:
            return
        self._expand_held()
        room = self._window - self._plan.running
        for number in self._plan.take(min(room, YOUNG_LIMIT - self._count_young())):
            self._start(number)
        if self._plan.running < self._window and self._plan.ready and len(self._young) >= YOUNG_LIMIT:
            self._start_more_later()

    @property
    def _window(self) -> int:
        return min(self._request.max_parallel or self._plan.graph.head.max_parallel, WINDOW_LIMIT)

    def _count_young(self) -> int:
        """Return how many of the running attempts began just now."""
        now = workflow.now()
        self._young = deque(
            attempt
            for attempt in self._young
            if self._running.get(attempt.name) is attempt and (now - attempt.since).total_seconds() < YOUNG_S
        )
        return len(self._young)

    def _start_more_later(self) -> None:
        if self._growing_up is None or self._growing_up.done():
            self._growing_up = asyncio.create_task(self._grow_up())

    async def _grow_up(self) -> None:
        await workflow.sleep(YOUNG_S, summary="start more steps beside those that run")
        self._wake()

    def _stop_growing(self) -> None:
        """End the wait for starting more: ending while this run gives way, it would make the server refuse that."""
        if self._growing_up is not None and not self._growing_up.done() and workflow.patched(STOPS_GROWING):
            self._growing_up.cancel()

    def _start_wanted(self) -> None:
        """Start what a person wants started, also in a pause."""
        for name in list(self._book.wanted):
            number = self._plan.find(name)
            if number is not None and self._plan.take_this(number):
                self._start(number)
            if number is None or not self._plan.is_ready(number):
                self._book.wanted.remove(name)

    def _expand_held(self) -> None:
        """Decide on templates that would become more steps than the budget allows."""
        for number, count in list(self._plan.held.items()):
            node = self._plan.node(number)
            problem = fan_out_breach(node, count, self._book.budget)
            if problem is None:
                self._plan.expand(number, count)
            elif count < 0 and self._request.dry_run:
                self._plan.finish(number, StepStatus.SKIPPED)
            elif count < 0:
                failure = StepFailure(failure_class=FailureClass.LOGIC, reason=problem)
                self._fail(node.id, number, failure, attempt=1)
            else:
                self._begin_pause(PauseKind.BUDGET, problem, "top_up with fan_out, or replan, or cancel", step=node.id)

    def _start(self, number: int) -> None:
        """Start one attempt."""
        attempt = self._attempt(number)
        self._running[attempt.name] = attempt
        self._busy_s += _seconds(attempt)
        self._attempts_here += 1
        attempt.task = asyncio.create_task(self._run(attempt))
        attempt.task.add_done_callback(lambda task: self._miss_none(attempt, task))
        self._young.append(attempt)
        node = self._plan.node(number)
        if node.watchdog is not None:
            attempt.watchdog = asyncio.create_task(self._watch(attempt, node))

    def _attempt(self, number: int) -> Attempt:
        plan, book, now = self._plan, self._book, workflow.now()
        node, name, made = plan.node(number), plan.name(number), plan.template(number)
        touches = node.access is not Access.NONE
        return Attempt(
            name=name,
            capability=node.capability,
            request=RunStepRequest(
                scope=self._scope(),
                step=name,
                template=made[0] if made else "",
                item=made[1] if made else None,
                attempt=plan.attempt(number),
                expected_tree=book.tree if touches else "",
                beliefs=book.beliefs,
                decisions=book.decisions.get(name, ()),
                dry_run=self._request.dry_run,
            ),
            summary=_summary(name, node),
            instant=node.plain,
            timeout=self._time_limit(name, node),
            plan=self._request,
            since=now,
            touches_tree=touches,
            writes=node.access is Access.WRITES,
            patience=self._no_worker_timeout + timedelta(seconds=self._busy_s),
            asked=self._request,
        )

    def _time_limit(self, name: str, node: Node) -> timedelta | None:
        """Return how long an attempt may take: what is left of the time box, and the limit of one attempt.

        The default limit is meant for one command; a workflow within the step may wait for people.
        """
        limit = None if node.capability in CHILDREN and node.timeout_s == DEFAULT_TIMEOUT_S else node.timeout_s
        if node.timebox_s is not None:
            now = workflow.now()
            since = self._book.first_starts.setdefault(name, now)
            left = max(node.timebox_s - (now - since).total_seconds(), 1.0)
            limit = left if limit is None else min(limit, left)
        return None if limit is None else timedelta(seconds=limit)

    async def _run(self, attempt: Attempt) -> None:
        ended: StepResult | StepFailedError | None
        try:
            ended = self._too_deep(attempt) or await run_attempt(attempt)
        except StepFailedError as failure:
            ended = failure
        except asyncio.CancelledError:
            ended = failed(FailureClass.TRANSIENT, attempt.ended_by) if attempt.ended_by else None
        finally:
            if attempt.watchdog is not None:
                attempt.watchdog.cancel()
        self._ended.append((attempt, ended))
        self._wake()

    def _miss_none(self, attempt: Attempt, task: asyncio.Task[None]) -> None:
        """Take in an attempt that broke in the workflow itself, such as over an answer that cannot be read."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self._ended.append((attempt, StepFailedError(f"{attempt.name}: {type(error).__name__}: {error}")))
            self._wake()

    def _too_deep(self, attempt: Attempt) -> StepResult | None:
        if attempt.capability not in _DEEPER:
            return None
        problem = breach(self._book.budget, PlanSpent(), depth=self._request.depth + 1)
        return failed(FailureClass.POLICY, problem) if problem and "nested" in problem else None

    async def _watch(self, attempt: Attempt, node: Node) -> None:
        """Do what the watchdog says once an attempt takes long."""
        watchdog = node.watchdog
        if watchdog is None:
            return
        await workflow.sleep(watchdog.after_s, summary=f"watchdog of {attempt.name}")
        reason = f"{attempt.name} runs for more than {watchdog.after_s:g} s"
        self._log("overdue", attempt.name, f"more than {watchdog.after_s:g} s; {watchdog.escalate}")
        if watchdog.escalate == "cancel" and attempt.task is not None:
            attempt.ended_by = f"the watchdog ended it after {watchdog.after_s:g} s"
            attempt.task.cancel()
            return
        if watchdog.escalate == "pause":
            self._begin_pause(
                PauseKind.LIMIT, reason, "look at it, then resume", step=attempt.name, alert=AlertKind.OVERDUE
            )
        else:
            self._alert(AlertKind.OVERDUE, reason, attempt.name)

    # -- taking in ----------------------------------------------------------------------------------

    def _take_in_ended(self) -> None:
        """Let the schedule know of attempts that have ended."""
        while self._ended:
            attempt, ended = self._ended.popleft()
            del self._running[attempt.name]
            self._busy_s -= _seconds(attempt)
            number = self._plan.find(attempt.name)
            if number is None:
                continue
            if isinstance(ended, StepResult):
                self._settle(attempt, number, ended)
            else:
                self._plan.ready_again(number)
                if ended is not None:
                    self._begin_pause_for(ended, attempt.name)
        self._show()

    def _begin_pause_for(self, failure: StepFailedError, step: str = "") -> None:
        """Pause because an activity could not be run; it is run again on resume."""
        alert = AlertKind.NO_EXECUTOR if failure.no_worker else None
        self._log("stuck", step, failure.reason)
        self._begin_pause(PauseKind.FATAL, failure.reason, "mend it, then resume", step=step, alert=alert)

    def _settle(self, attempt: Attempt, number: int, result: StepResult) -> None:
        book, node, name = self._book, self._plan.node(number), attempt.name
        book.count(result)
        if result.drift is not None:
            self._log("drift", name, f"files changed outside a pause were saved as tree {result.drift[:12]} and undone")
        if attempt.writes and result.tree:
            book.tree = result.tree
        self._note_undo(attempt, node, result)
        if result.status is StepStatus.WAITING:
            self._wait_for_yes(name, number, result)
        elif result.status is StepStatus.FAILED:
            failure = result.failure or StepFailure(failure_class=FailureClass.LOGIC, reason="it gave no reason")
            self._fail(name, number, self._within_budget(name, node, result, failure), attempt=attempt.number)
        else:
            book.settled(name)
            done = StepStatus.SKIPPED if result.status is StepStatus.SKIPPED else StepStatus.COMPLETED
            self._plan.finish(number, done, chosen=result.chosen, counts=result.counts)
            self._log(done.value, name, result.summary + (" (taken over)" if result.reused else ""))

    def _note_undo(self, attempt: Attempt, node: Node, result: StepResult) -> None:
        if self._request.dry_run or result.status is StepStatus.WAITING:
            return
        completed = result.status is StepStatus.COMPLETED
        if undoable(node, completed=completed, tree_before=attempt.request.expected_tree, tree_after=result.tree):
            request = attempt.request
            self._book.undo.append(
                UndoEntry(step=request.step, template=request.template, item=request.item, attempt=request.attempt)
            )

    def _within_budget(self, name: str, node: Node, result: StepResult, failure: StepFailure) -> StepFailure:
        """Return the failure, as one of policy where the step may not spend more on another try."""
        if node.budget.max_cost_usd is None and node.budget.max_tokens is None:
            return failure
        cost, tokens = self._book.charge(name, result)
        problem = over_step_budget(node, cost_usd=cost, tokens=tokens)
        if problem is None:
            return failure
        return StepFailure(failure_class=FailureClass.POLICY, reason=f"{failure.reason}; {problem}")

    def _wait_for_yes(self, name: str, number: int, result: StepResult) -> None:
        question = result.question or GateQuestion(text=f"may {name} go on?")
        told = question.window and any(gate.question.window == question.window for gate in self._book.waiting.values())
        self._book.waiting[name] = WaitingGate(step=name, question=question, since=workflow.now())
        self._plan.waiting(number)
        self._log("waits", name, question.text)
        self._show_attention()
        if not told:
            self._alert(AlertKind.APPROVAL, question.text, question.window or name)

    @property
    def _children_run(self) -> bool:
        return any(attempt.capability in CHILDREN for attempt in self._running.values())


def _seconds(attempt: Attempt) -> float:
    return 0.0 if attempt.timeout is None else attempt.timeout.total_seconds()


def _summary(name: str, node: Node) -> str:
    """Return what Temporal's own UI shows beside the activity."""
    if node.title:
        return f"{name}: {node.title}"
    # A summary costs as much as the rest of the command; a bare milestone does nothing that is worth looking at.
    return "" if node.capability is Capability.NONE else name
