"""A plan's state: request, progress, schedule, and the rule for continuing as new."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from temporalio import workflow
from temporalio.exceptions import ApplicationError

from activities.plan.requests import OpenedPlan, PlanScope, RevisedPlan, RunStepRequest
from tightloop.episode.budget import describe_end
from tightloop.episode.failure import signature
from tightloop.errors import InvalidRequestError
from tightloop.ledger.alert import GOAL_SHOWN, Alert, AlertKind, Subject, alert_key
from tightloop.loop.model import LoopTask
from tightloop.plan.child import StepFailure, StepResult, StepStatus
from tightloop.plan.control import raise_exhausted_bounds
from tightloop.plan.document import OnPlanFailure
from tightloop.plan.engine.graph import Graph
from tightloop.plan.engine.recovery import find_breach
from tightloop.plan.engine.revision import carry_over
from tightloop.plan.engine.schedule import Schedule
from tightloop.plan.guard import carry_over_bounds, changed_bounds
from tightloop.plan.progress import PlanInput, PlanProgress
from tightloop.plan.request import PlanPhase, PlanRequest
from tightloop.plan.step import Capability
from tightloop.run.core import Queues, project_of
from tightloop.run.outcome import Facts, is_partial
from tightloop.run.question import ChildWait, Question
from tightloop.safety.approval import Approval
from tightloop.value import ArtifactRef, abridge, format_count, shorten
from tightloop.wording import span
from workflows.run.activities import ActivityFailedError, ActivityOptions
from workflows.run.kernel import ContinueAsNew, Meter, Run
from workflows.run.workflow import is_other_build_wanted

REASON_CHARACTERS = 600
ENDING = "the plan is ending and no longer accepts messages"


class PlanEnd(Exception):  # noqa: N818 - it ends the loop, it is not an error
    """Signals that the plan ends before all of its steps are done."""

    def __init__(self, reason: str, *, compensate: bool = False) -> None:
        super().__init__(reason)
        self.reason, self.compensate = reason, compensate


# Compared by identity, because two attempts of a step may be equal in all fields.
@dataclass(eq=False)
class Attempt:
    """A step's running attempt."""

    name: str
    capability: Capability
    request: RunStepRequest
    summary: str
    instant: bool
    """True if the attempt finishes almost immediately."""
    timeout: timedelta | None
    """Time limit. None for a step that starts workflows, which have their own limits and may wait for people."""
    plan: PlanRequest
    """The plan's request, whose settings child workflows inherit."""
    since: datetime
    touches_tree: bool = False
    writes: bool = False
    merges: bool = False
    """True if the attempt's changes are merged into the tree at the end."""
    task: asyncio.Task[None] | None = None
    watchdog: asyncio.Task[None] | None = None
    ended_by: str = ""
    """Reason why the attempt was cancelled, if the plan continues without it."""
    children: list[str] = field(default_factory=list)
    """Child workflow ids."""
    waits: dict[str, tuple[ChildWait, ...]] = field(default_factory=dict)
    """Open questions by child workflow."""
    is_lost: bool = False
    """True if the attempt ended without reporting its changes."""
    proof: ArtifactRef | None = None
    """Proof of the tree that the only child left behind."""
    approvals: tuple[Approval, ...] = ()
    """People's answers about changes in the child workflows."""

    @property
    def number(self) -> int:
        """Number of the attempt, starting at 1."""
        return self.request.attempt

    @property
    def is_waiting(self) -> bool:
        """True if all child workflows are waiting for a person."""
        return bool(self.children) and all(self.waits.get(child) for child in self.children)

    def options(self, summary: str, timeout: timedelta) -> ActivityOptions:
        """Return the options for running one of the attempt's activities on the workspace's host."""
        return ActivityOptions(summary, timeout, self.plan.queues.workspace, instant=self.instant)


class PlanContext(Run):
    """The state of a plan run.

    Attributes:
        request: the plan's request.
        progress: state that is passed to the next Temporal run.
        running: running attempts by step.
        ended: finished attempts whose results have not been applied yet.
        side_tasks: tasks outside the main loop. They must finish before the plan or this Temporal run
            ends.
        end: set when the main loop has to end.
        is_ending: whether messages are refused because the plan is ending.
        kind: kind of the run in the ledger.
        attempts: number of attempts and compensations in this Temporal run.
        is_adopting: whether edits by people are being adopted into the tree.
    """

    kind = "plan"
    whole = "the plan"
    line_characters = 600
    lines_kept = 200

    def __init__(
        self,
        run_input: PlanInput,
        *,
        run_id: str,
        now: Callable[[], datetime] = workflow.now,
        meter: Meter | None = None,
    ) -> None:
        self.request = PlanRequest() if run_input.problem else PlanRequest.of(run_input)
        super().__init__(run_input, run_id=run_id, now=now, meter=meter)
        self.is_first_run = run_input.progress is None
        self.progress = run_input.progress or PlanProgress()
        self.title = run_input.title
        self.has_planner = False
        self.end: PlanEnd | None = None
        self.is_ending = False
        self.attempts = 0
        self._schedule: Schedule | None = None
        self.running: dict[str, Attempt] = {}
        self.ended: deque[tuple[Attempt, StepResult | ActivityFailedError | None]] = deque()
        # A dictionary: the order of a set could differ in replay.
        self.side_tasks: dict[asyncio.Task[None], None] = {}
        self.is_adopting = False
        self._holds = 0

    # -- required by the kernel -------------------------------------------------------------------------

    @property
    def queues(self) -> Queues:
        """The request's task queues."""
        return self.request.queues

    @property
    def project(self) -> str:
        """Project of the workspace, used as the fairness key on task queues."""
        return project_of(self.request.workspace)

    @property
    def is_new(self) -> bool:
        """True if the graph has not been loaded yet."""
        return not self.is_open

    @property
    def scope(self) -> PlanScope:
        """Scope for activity requests."""
        return PlanScope.of(
            self.progress,
            episode_id=self.id,
            workspace=self.request.workspace,
            worktree=self.request.worktree,
            home=self.request.queues.home,
            within=self.request.within,
        )

    def cut(self, text: str, limit: int) -> str:
        """Shorten text to `limit` characters by removing the middle.

        The end usually contains the cause of a failure.
        """
        return abridge(text, limit)

    def enter_closed_phase(self) -> None:
        """Enter the CLOSED phase."""
        self.progress = self.progress.evolve(phase=PlanPhase.CLOSED)

    # -- schedule -----------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """True if the graph is loaded."""
        return self._schedule is not None

    @property
    def schedule(self) -> Schedule:
        """State of each step.

        Raises:
            ApplicationError: the graph has not been loaded yet.
        """
        if self._schedule is None:
            raise ApplicationError("the plan is not open", non_retryable=True)
        return self._schedule

    def need_schedule(self) -> Schedule:
        """Return the schedule for a command that requires it.

        Raises:
            InvalidRequestError: the graph has not been loaded yet.
        """
        if self._schedule is None:
            raise InvalidRequestError("the plan is not open yet. Try again in a moment")
        return self._schedule

    @property
    def failure_policy(self) -> OnPlanFailure | None:
        """The policy for failures that no step handles. None until the plan is open."""
        return None if self._schedule is None else self._schedule.graph.head.on_failure

    def open(self, graph: Graph, *, has_planner: bool) -> None:
        """Load the graph of the current revision."""
        self._schedule = Schedule(graph, self.progress.schedule)
        self.title, self.has_planner = graph.head.title or graph.head.plan_id, has_planner

    @property
    def tasks(self) -> tuple[LoopTask, ...]:
        """Tasks of a project plan. Empty for other plans."""
        return ()

    def begin(self, opened: OpenedPlan, graph: Graph) -> None:
        """Record the result of opening a new plan."""
        queues = self.request.queues
        self.request = self.request.evolve(queues=queues.evolve(home=opened.home or queues.home))
        progress = self.progress.evolve(plan=opened.plan, base_tree=opened.tree, tree=opened.tree)
        progress = progress.begin(graph.head.budget, graph.head.hypotheses).evolve(until=self.request.until)
        self.progress = progress.count_usage(opened.usage, opened.api_calls)
        self.core = self.core.evolve(worktree=opened.worktree)
        self.log("opened", "; ".join([format_count(len(graph.nodes), "step"), *opened.notes]))

    def save(self) -> None:
        """Update the progress that is passed to the next Temporal run."""
        schedule = self.progress.schedule if self._schedule is None else self._schedule.save()
        self.progress = self.progress.evolve(runs=self.progress.runs + 1, schedule=schedule)

    def revise(self, graph: Graph, revised: RevisedPlan, *, by_person: bool, of_itself: bool = False) -> str:
        """Switch to a revised graph. Completed and running steps keep their state.

        Args:
            graph: the revised graph.
            revised: the revision.
            by_person: True if a person made the revision. Only a person may raise the budget.
            of_itself: True if the plan revised itself. Failed steps then stay failed, because no person has
                reviewed the failures.

        Returns:
            A description of the changed limits.
        """
        before, old = self.progress, self.schedule
        schedule, removed_steps = carry_over(old.graph, old.save(), graph, revised.changed, keeps_failures=of_itself)
        progress = before.settle(*removed_steps, spent=False).add_hypotheses(graph.head.hypotheses)
        self.progress = progress.evolve(
            plan=revised.plan,
            revision=before.revision + 1,
            schedule=schedule,
            spent=before.spent.evolve(revisions=before.spent.revisions + 1),
            budget=carry_over_bounds(before.budget, old.graph.head.budget, graph.head.budget, by_person=by_person),
            # The doubts were about the proof of the previous revision.
            doubted=None,
        )
        self.open(graph, has_planner=self.has_planner)
        find = self.schedule.find
        self.progress = self.progress.evolve(
            failures={name: why for name, why in progress.failures.items() if find(name) is not None},
            wanted=tuple(name for name in progress.wanted if find(name) is not None),
        )
        return changed_bounds(before.budget, self.progress.budget)

    # -- running work -----------------------------------------------------------------------------------

    @property
    def has_attempts(self) -> bool:
        """True if an attempt is running or the result of a finished attempt has not been applied yet."""
        return bool(self.running or self.ended)

    @property
    def is_idle(self) -> bool:
        """True if no step is running or can start, regardless of open questions."""
        is_wanted = bool(self.progress.wanted)
        return not (self.has_attempts or self.side_tasks or is_wanted or self.is_held) and self.schedule.is_settled

    @property
    def is_nothing_left(self) -> bool:
        """True if the plan is idle and not paused, and may therefore end."""
        return self.is_idle and not self.is_paused

    @property
    def waits_within(self) -> tuple[ChildWait, ...]:
        """Open questions in the child workflows of running steps."""
        return tuple(
            wait
            for attempt in self.running.values()
            for child in attempt.children
            for wait in attempt.waits.get(child, ())
        )

    @property
    def answer_hint(self) -> str:
        """A hint to show if the plan itself has no open questions, saying where else to answer."""
        waits = self.waits_within
        if not waits:
            return f"Check the status: tightloop status {self.id}"
        example = f"tightloop answer {waits[0].workflow_id} {waits[0].question.names[0]}"
        where = ", ".join(dict.fromkeys(wait.workflow_id for wait in waits))
        return (
            f"The open questions belong to child workflows of the plan: {where}. Send the answer to the child "
            f"workflow, for example: {example}"
        )

    # -- holds, and the end -------------------------------------------------------------------------

    def hold(self) -> None:
        """Prevent steps from starting until `release` is called. Calls can be nested."""
        self._holds += 1

    def release(self) -> None:
        """Undo one call to `hold`."""
        self._holds -= 1
        self.wake()

    @property
    def is_held(self) -> bool:
        """True if `hold` prevents steps from starting."""
        return self._holds > 0

    def end_with(self, end: PlanEnd) -> None:
        """End the main loop. If this is called several times, the first reason is kept."""
        self.end = self.end or end
        self.wake()

    def refuse_messages(self) -> None:
        """Refuse all further messages, because the plan is ending."""
        self.is_ending = True

    def give_up(self, waiting: Iterable[Question]) -> PlanEnd:
        """Return the record of the end of a plan whose questions were not answered in time."""
        names = ", ".join(question.step or question.title for question in waiting)
        return PlanEnd(
            f"nobody answered within {span(self.request.pause_timeout.total_seconds())}: {names}",
            compensate=self.failure_policy is OnPlanFailure.COMPENSATE,
        )

    @property
    def final_tree(self) -> str:
        """Tree expected at the end of the plan. If empty, it is not compared with the files on disk."""
        return "" if self.request.dry_run else self.progress.tree

    def count_attempt(self, step: str = "") -> None:
        """Count an attempt or a compensation, because each of them adds events to the history."""
        del step
        self.attempts += 1

    def take_result(self, step: str, result: StepResult) -> None:
        """Record the usage and the findings of an attempt."""
        self.progress = self.progress.count_attempt(result).note_qualifier(step, result.qualifier)

    @property
    def outcome_facts(self) -> Facts:
        """Facts that determine whether a completed plan is a plain success."""
        steps, skipped = self.schedule.list_skipped()
        evidence = dict(self.progress.evidence) if self.progress.evidence else {}
        return Facts(
            has_checks=bool(self.schedule.graph.head.checks),
            steps=len(steps),
            skipped=skipped,
            failed=self.schedule.list_tolerated(),
            partly=self._list_partly_done(),
            dry_run=self.request.dry_run,
            # A nested plan's changes are proven together with those of its parent.
            is_part=self.request.depth > 1,
            **evidence,
        )

    @property
    def files_changed(self) -> int | None:
        """Number of files that differ from the initial tree, or None if unknown."""
        return self.progress.evidence.files_changed if self.progress.evidence else None

    def _list_partly_done(self) -> list[str]:
        """Return the completed steps whose nested plans skipped some steps."""
        numbers = {
            name: self.schedule.find(name) for name, text in self.progress.qualifiers.items() if is_partial(text)
        }
        return [
            name
            for name, number in numbers.items()
            if number is not None and self.schedule.status(number) is StepStatus.COMPLETED
        ]

    def revises_itself(self, step: str, failure: StepFailure | None = None) -> bool:
        """Return whether the plan revises itself after this step has completed or failed."""
        del step, failure
        return False

    def reset_failed_step(self, step: str, number: int) -> None:
        """Reopen a failed step, and the undone steps that it needs.

        Each gets back all of its attempts and its full time limit.
        """
        schedule = self.schedule
        undone = {schedule.name(need): need for need in schedule.reopen(number)}
        reopened = {step: number, **undone}
        # Attempts so far must not count against the retries that the steps get now.
        attempts = {name: schedule.attempt(at) for name, at in reopened.items()}
        progress = self.progress.settle(*reopened)
        self.progress = progress.evolve(earlier={**progress.earlier, **attempts})

    # -- progress -----------------------------------------------------------------------------------

    def expect_own_leftovers(self, expected: bool = True) -> None:
        """Record whether the files on disk may be left over from work that was stopped or discarded."""
        self.progress = self.progress.evolve(put_back=expected)

    def keep_edits(self, keep: bool = True) -> None:
        """Record whether people's edits still need to be kept."""
        self.progress = self.progress.evolve(adopt=keep)

    def set_tree(self, tree: str) -> None:
        """Record the tree that the steps produced. An empty value changes nothing."""
        self.progress = self.progress.evolve(tree=tree or self.progress.tree)

    def find_breach(self) -> str | None:
        """Return a description of the budget limit that was reached, or None."""
        reached = find_breach(self.progress.budget, self.progress.spent, depth=self.request.depth)
        end = describe_end(self.progress.until, self.now())
        return reached or (f"the plan may only run {end}" if end else None)

    def extend_budget(self, step: str = "") -> None:
        """Raise each exhausted limit by the amount defined in the plan.

        If `step` is given, raise the limit of its template.
        """
        schedule, progress = self.schedule, self.progress
        number = schedule.find(step) if step else None
        is_over = bool(describe_end(progress.until, self.now()))
        budget = raise_exhausted_bounds(
            progress.budget,
            schedule.graph.head.budget,
            progress.spent,
            depth=self.request.depth,
            fan_out=0 if number is None else schedule.held.get(number, 0),
        )
        self.progress = progress.evolve(budget=budget, until=None if is_over else progress.until)

    def on_host(self, summary: str, timeout: timedelta) -> ActivityOptions:
        """Return the options for running an activity on the workspace's host."""
        return ActivityOptions(summary, timeout, self.request.queues.workspace)

    def alert(
        self, kind: AlertKind, reason: str, step: str = "", *, question: str = "", options: tuple[str, ...] = ()
    ) -> Alert:
        """Create an alert.

        `question` is the ID of a question, or the window that several questions share.
        """
        now = self.now()
        return Alert(
            # The signature ignores numbers and paths, so that a cause is alerted once and not in each variation.
            key=alert_key(self.id, kind, f"{step}\n{signature(reason)}", now),
            kind=kind,
            episode_id=self.id,
            at=now,
            subject=Subject.PLAN,
            phase=self.progress.phase.value,
            step=step,
            question=question,
            options=options,
            reason=abridge(reason, REASON_CHARACTERS),
            goal=shorten(self.title, GOAL_SHOWN),
        )


DRAIN_PATIENCE = timedelta(seconds=10)
"""Maximum time to hold back new steps while waiting for a moment without running steps. After that, steps start again.
"""
DRAIN_AGAIN = 4
"""Divisor of `attempts_per_run`: after that many further attempts, draining is tried again."""
HARD_ATTEMPTS = 8_000
HARD_EVENTS = 30_000
"""Number of history events at which no more steps start until a new run follows. The server would end this run at about
51 000 events.
"""
CARRIED_CHARACTERS = 100_000
"""Maximum length of a plan text that is passed to the next run."""


class Continuation:
    """Continues a long run as new when nothing is running."""

    # 10 000 steps took 105 s in one run, and 44 s with a new one every 1 000: a worker that has lost the workflow
    # replays all of its run, 32 000 events in 14 s, and a workflow task has 10 s.

    def __init__(self, context: PlanContext) -> None:
        self._context = context
        self._draining: asyncio.Task[None] | None = None
        self._drain_after = context.request.attempts_per_run

    @property
    def is_draining(self) -> bool:
        """True if no more steps will be started, because a new run is about to follow."""
        return self._draining is not None

    def start_when_due(self, *, is_suitable: bool) -> None:
        """Stop starting steps if the run is long, and continue as new once nothing is running.

        Args:
            is_suitable: whether this is a good moment. A very long run does not wait for a good moment.

        Raises:
            ContinueAsNew: nothing is running and a new run follows.
        """
        if self._draining is None:
            limit = max(HARD_ATTEMPTS, self._context.request.attempts_per_run)
            is_forced = self._context.attempts >= limit or workflow.info().get_current_history_length() >= HARD_EVENTS
            if not is_forced and not (is_suitable and self._is_due(is_quiet=self._is_quiet)):
                return
            self._context.hold()
            self._draining = asyncio.create_task(self._stop_draining(forever=is_forced))
        if self._is_quiet:
            raise ContinueAsNew

    @property
    def _is_quiet(self) -> bool:
        context = self._context
        return not (context.has_attempts or context.side_tasks or context.alerts.is_sending)

    def _is_due(self, *, is_quiet: bool) -> bool:
        # Temporal suggests a new run from 4 096 events or 4 MiB on. After a failed try only further attempts count: the
        # suggestion would stay true.
        limit = self._context.request.attempts_per_run
        is_suggested = workflow.info().is_continue_as_new_suggested() and self._drain_after == limit
        attempts = self._context.attempts
        if is_suggested or attempts >= self._drain_after:
            return True
        # Only after at least one attempt: an operator who pins this run to its build would otherwise cause an endless
        # loop of new runs.
        return attempts > 0 and is_other_build_wanted() and (is_quiet or self._drain_after == limit)

    async def _stop_draining(self, *, forever: bool) -> None:
        """Allow steps to start again if the running steps take too long."""
        # Past the hard limit the server may end the run, so a slow step must not stop the draining.
        if forever:
            return
        await workflow.sleep(DRAIN_PATIENCE, summary="wait for running steps before starting a new run")
        self._draining = None
        context = self._context
        self._drain_after = context.attempts + max(context.request.attempts_per_run // DRAIN_AGAIN, 1)
        context.release()

    def next_input(self) -> PlanInput:
        """Return the input for the next Temporal run."""
        context = self._context
        context.save()
        # A long text is stored as an artifact; Temporal refuses inputs over 2 MiB, and the progress needs room too.
        source = context.request.source if len(context.request.source) <= CARRIED_CHARACTERS else ""
        return PlanInput.of(
            context.request, source=source, progress=context.progress, core=context.core, heard=context.inbox.heard
        )
