"""State of a plan: its request, progress and schedule, and when its workflow continues as new."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from temporalio import workflow
from temporalio.exceptions import ApplicationError

from activities.plan.requests import OpenedPlan, PlanScope, RevisedPlan, RunStepRequest
from tightloop.episode.failure import signature
from tightloop.errors import InvalidRequestError
from tightloop.ledger.alert import GOAL_SHOWN, Alert, AlertKind, Subject, alert_key
from tightloop.loop.model import LoopTask
from tightloop.plan.child import StepFailure, StepResult
from tightloop.plan.control import extended
from tightloop.plan.document import OnPlanFailure
from tightloop.plan.engine.graph import Graph
from tightloop.plan.engine.recovery import find_breach
from tightloop.plan.engine.revision import carry_over
from tightloop.plan.engine.schedule import Schedule
from tightloop.plan.guard import carry_over_bounds, changed_bounds
from tightloop.plan.progress import PlanInput, PlanProgress
from tightloop.plan.request import PlanPhase, PlanRequest
from tightloop.plan.step import Capability
from tightloop.run.question import ChildWait, Question
from tightloop.run.routing import Queues, project_of
from tightloop.value import ArtifactRef, abridge, counted, shorten
from workflows.run.activities import ActivityFailedError, ActivityOptions
from workflows.run.kernel import ContinueAsNew, Meter, Run
from workflows.run.workflow import is_other_build_wanted

REASON_CHARACTERS = 600
ENDING = "the plan is ending and takes no more messages"


class PlanEnd(Exception):  # noqa: N818 - it ends the loop, it is not an error
    """The plan is over although its steps are not all done."""

    def __init__(self, reason: str, *, compensate: bool = False) -> None:
        super().__init__(reason)
        self.reason, self.compensate = reason, compensate


@dataclass(eq=False)
class Attempt:
    """One attempt of one step while it runs."""

    name: str
    capability: Capability
    request: RunStepRequest
    summary: str
    instant: bool
    """It does nothing that takes time."""
    timeout: timedelta | None
    """None: it starts workflows that have bounds of their own, and may wait for people."""
    plan: PlanRequest
    """What was asked for; children inherit from it."""
    since: datetime
    touches_tree: bool = False
    writes: bool = False
    merges: bool = False
    """Its changes are merged into the tree when it ends."""
    task: asyncio.Task[None] | None = None
    watchdog: asyncio.Task[None] | None = None
    ended_by: str = ""
    """Why it was cancelled, where the plan goes on without it."""
    children: list[str] = field(default_factory=list)
    """Ids of the workflows that it started."""
    waits: dict[str, tuple[ChildWait, ...]] = field(default_factory=dict)
    """Open questions of each of them."""
    is_lost: bool = False
    """It ended without a word of what it has written."""
    proof: ArtifactRef | None = None
    """Of the tree that its only child left."""

    @property
    def number(self) -> int:
        """Of the attempt, from 1."""
        return self.request.attempt

    @property
    def is_waiting(self) -> bool:
        """Whether all workflows that it started wait for a person."""
        return bool(self.children) and all(self.waits.get(child) for child in self.children)

    def options(self, summary: str, timeout: timedelta) -> ActivityOptions:
        """Return how an activity of the attempt is run: on the host of the workspace."""
        return ActivityOptions(summary, timeout, self.plan.queues.workspace, instant=self.instant)


class PlanContext(Run):
    """The run of a plan.

    Attributes:
        request: what was asked for.
        progress: what the next Temporal run goes on from.
        running: attempts that run, by step.
        ended: attempts that have ended and are not taken in yet, with what came of them.
        beside: what is done beside the main loop, and has to end before the plan or this Temporal run may.
        end: set where the loop has to end.
        is_ending: messages of people are refused.
        kind: of the run, for the ledger.
        attempts: attempts, and steps taken back, in this Temporal run.
        is_adopting: edits of people are being taken over into the tree.
    """

    kind = "plan"
    whole = "the plan"
    line_characters = 600
    lines_kept = 200

    def __init__(
        self,
        given: PlanInput,
        *,
        run_id: str,
        now: Callable[[], datetime] = workflow.now,
        meter: Meter | None = None,
    ) -> None:
        self.request = PlanRequest() if given.problem else PlanRequest.of(given)
        super().__init__(given, run_id=run_id, now=now, meter=meter)
        self.is_first_run = given.progress is None
        self.progress = given.progress or PlanProgress()
        self.title = given.title
        self.has_planner = False
        self.end: PlanEnd | None = None
        self.is_ending = False
        self.attempts = 0
        self._schedule: Schedule | None = None
        self.running: dict[str, Attempt] = {}
        self.ended: deque[tuple[Attempt, StepResult | ActivityFailedError | None]] = deque()
        # A dictionary: the order of a set could differ in replay.
        self.beside: dict[asyncio.Task[None], None] = {}
        self.is_adopting = False
        self._holds = 0

    # -- what the kernel asks ---------------------------------------------------------------------------

    @property
    def queues(self) -> Queues:
        """Task queues of the request."""
        return self.request.queues

    @property
    def project(self) -> str:
        """Project that shares the workers fairly with others."""
        return project_of(self.request.workspace)

    @property
    def is_new(self) -> bool:
        """Whether the graph is not loaded yet."""
        return not self.is_open

    @property
    def scope(self) -> PlanScope:
        """Where activities work."""
        return PlanScope(
            episode_id=self.id,
            workspace=self.request.workspace,
            worktree=self.request.worktree,
            plan=self.progress.plan,
            revision=self.progress.revision,
            base_tree=self.progress.base_tree,
            home=self.request.queues.home,
            within=self.request.within,
            put_back=self.progress.put_back,
        )

    def cut(self, text: str, limit: int) -> str:
        """Return a line of at most so many characters; the end of a text tells most of a failure."""
        return abridge(text, limit)

    def enter_closed(self) -> None:
        """Note that the plan has ended."""
        self.progress = self.progress.evolve(phase=PlanPhase.CLOSED)

    # -- the schedule -------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Whether the graph is loaded."""
        return self._schedule is not None

    @property
    def schedule(self) -> Schedule:
        """Where each step stands.

        Raises:
            ApplicationError: the graph is not loaded yet.
        """
        if self._schedule is None:
            raise ApplicationError("the plan is not open", non_retryable=True)
        return self._schedule

    def need_schedule(self) -> Schedule:
        """Return the schedule for what a person asks.

        Raises:
            InvalidRequestError: the graph is not loaded yet.
        """
        if self._schedule is None:
            raise InvalidRequestError("the plan is not open yet; send it again in a moment")
        return self._schedule

    @property
    def failure_policy(self) -> OnPlanFailure | None:
        """What the plan does about failures that no step recovers from; None before it is open."""
        return None if self._schedule is None else self._schedule.graph.head.on_failure

    def open(self, graph: Graph, *, has_planner: bool) -> None:
        """Take the graph of the revision."""
        self._schedule = Schedule(graph, self.progress.schedule)
        self.title, self.has_planner = graph.head.title or graph.head.plan_id, has_planner

    @property
    def tasks(self) -> tuple[LoopTask, ...]:
        """Of a project's plan: the tasks that it has by now."""
        return ()

    def begin(self, opened: OpenedPlan, graph: Graph) -> None:
        """Note what opening a new plan has found."""
        queues = self.request.queues
        self.request = self.request.evolve(queues=queues.evolve(home=opened.home or queues.home))
        progress = self.progress.evolve(plan=opened.plan, base_tree=opened.tree, tree=opened.tree)
        progress = progress.begin(graph.head.budget, graph.head.hypotheses)
        self.progress = progress.count_usage(opened.usage, opened.api_calls)
        self.log("opened", "; ".join([counted(len(graph.nodes), "step"), *opened.notes]))

    def save(self) -> None:
        """Bring the progress up to date for the Temporal run that follows."""
        schedule = self.progress.schedule if self._schedule is None else self._schedule.save()
        self.progress = self.progress.evolve(runs=self.progress.runs + 1, schedule=schedule)

    def revise(self, graph: Graph, revised: RevisedPlan, *, by_person: bool, of_itself: bool = False) -> str:
        """Go on with another graph; completed steps and those that run keep their place.

        Args:
            graph: of the revision.
            revised: the revision.
            by_person: a person may widen the budget, a planner may not.
            of_itself: the plan makes it of itself, and nobody has looked at what failed: that stays as it is.

        Returns:
            Which bounds changed, in words.
        """
        before, old = self.progress, self.schedule
        schedule, gone = carry_over(old.graph, old.save(), graph, revised.changed, keeps_failures=of_itself)
        progress = before.settle(*gone, spent=False).add_hypotheses(graph.head.hypotheses)
        self.progress = progress.evolve(
            plan=revised.plan,
            revision=before.revision + 1,
            schedule=schedule,
            spent=before.spent.evolve(revisions=before.spent.revisions + 1),
            budget=carry_over_bounds(before.budget, old.graph.head.budget, graph.head.budget, by_person=by_person),
            doubted=None,
        )
        self.open(graph, has_planner=self.has_planner)
        find = self.schedule.find
        self.progress = self.progress.evolve(
            failures={name: why for name, why in progress.failures.items() if find(name) is not None},
            wanted=tuple(name for name in progress.wanted if find(name) is not None),
        )
        return changed_bounds(before.budget, self.progress.budget)

    # -- what runs --------------------------------------------------------------------------------------

    @property
    def has_attempts(self) -> bool:
        """Whether an attempt runs, or has ended and is not taken in yet."""
        return bool(self.running or self.ended)

    @property
    def is_idle(self) -> bool:
        """Whether no step runs or can start, whatever people are asked."""
        is_wanted = bool(self.progress.wanted)
        return not (self.has_attempts or self.beside or is_wanted or self.is_held) and self.schedule.is_settled

    @property
    def is_nothing_left(self) -> bool:
        """Whether the plan may end: nothing runs or can start, and no person holds it up."""
        return self.is_idle and not self.is_paused

    @property
    def waits_within(self) -> tuple[ChildWait, ...]:
        """Questions that wait in the workflows of the steps that run."""
        return tuple(
            wait
            for attempt in self.running.values()
            for child in attempt.children
            for wait in attempt.waits.get(child, ())
        )

    @property
    def otherwise(self) -> str:
        """A sentence on where else to answer, where nothing of the plan itself waits."""
        waits = self.waits_within
        if not waits:
            return f"Where it stands: tightloop status {self.id}"
        example = f"tightloop answer {waits[0].workflow_id} {waits[0].question.names[0]}"
        where = ", ".join(dict.fromkeys(wait.workflow_id for wait in waits))
        return f"What its steps started waits: {where}. Answer there, for example: {example}"

    # -- going on, and the end ----------------------------------------------------------------------

    def hold(self) -> None:
        """Let no step start until `release`."""
        self._holds += 1

    def release(self) -> None:
        """Let steps start again, as far as nothing else holds them."""
        self._holds -= 1
        self.wake()

    @property
    def is_held(self) -> bool:
        """Whether no step may start."""
        return self._holds > 0

    def end_with(self, end: PlanEnd) -> None:
        """Have the loop end; the first reason counts."""
        self.end = self.end or end
        self.wake()

    def refuse_messages(self) -> None:
        """Accept nothing more from people: the plan ends."""
        self.is_ending = True

    def give_up(self, waiting: Iterable[Question]) -> PlanEnd:
        """Return the end of a plan to which nobody answered in time."""
        names = ", ".join(question.step or question.title for question in waiting)
        return PlanEnd(
            f"nobody answered within {self.request.pause_timeout}: {names}",
            compensate=self.failure_policy is OnPlanFailure.COMPENSATE,
        )

    @property
    def final_tree(self) -> str:
        """The tree that the plan leaves; empty: none is to be compared with what is on disk."""
        return "" if self.request.dry_run else self.progress.tree

    def count_attempt(self, step: str = "") -> None:
        """Count what makes the history of this run longer: an attempt of a step, or a step that is taken back."""
        del step
        self.attempts += 1

    def take_result(self, step: str, result: StepResult) -> None:
        """Take in what an attempt spent and found."""
        del step
        self.progress = self.progress.count_attempt(result)

    def revises_itself(self, step: str, failure: StepFailure | None = None) -> bool:
        """Return whether the end of a step, or its failure, is followed by a revision that the plan makes of itself."""
        del step, failure
        return False

    def try_afresh(self, step: str, number: int) -> None:
        """Begin a failed step again, with all the attempts and the time that it had at first."""
        attempts = self.schedule.attempt(number)
        self.schedule.reopen(number)
        progress = self.progress.settle(step)
        self.progress = progress.evolve(earlier={**progress.earlier, step: attempts})

    # -- progress -----------------------------------------------------------------------------------

    def expect_own_leftovers(self, expected: bool = True) -> None:
        """Note that what is on disk was left by work of this plan which was stopped or discarded, or not any more."""
        self.progress = self.progress.evolve(put_back=expected)

    def keep_edits(self, keep: bool = True) -> None:
        """Note whether edits of people are still to be kept."""
        self.progress = self.progress.evolve(adopt=keep)

    def set_tree(self, tree: str) -> None:
        """Note which tree the steps have left; empty: the same as before."""
        self.progress = self.progress.evolve(tree=tree or self.progress.tree)

    def find_breach(self) -> str | None:
        """Return which bound of the plan is reached."""
        return find_breach(self.progress.budget, self.progress.spent, depth=self.request.depth)

    def extend_budget(self, step: str = "") -> None:
        """Raise the bounds that are reached by what the plan states for them; for a step, those of its template."""
        schedule, progress = self.schedule, self.progress
        number = schedule.find(step) if step else None
        budget = extended(
            progress.budget,
            schedule.graph.head.budget,
            progress.spent,
            depth=self.request.depth,
            fan_out=0 if number is None else schedule.held.get(number, 0),
        )
        self.progress = progress.evolve(budget=budget)

    def on_host(self, summary: str, timeout: timedelta) -> ActivityOptions:
        """Return how an activity is run on the host of the workspace."""
        return ActivityOptions(summary, timeout, self.request.queues.workspace)

    def alert(
        self, kind: AlertKind, reason: str, step: str = "", *, question: str = "", options: tuple[str, ...] = ()
    ) -> Alert:
        """Return what people are told; `question` is an id, or the window of several."""
        now = self.now()
        return Alert(
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
"""How long nothing is started so that a new run may follow; a longer step is not waited for in vain."""
DRAIN_AGAIN = 4
"""The next try comes after the run's number of attempts divided by this."""
HARD_ATTEMPTS = 8_000
HARD_EVENTS = 30_000
"""From here on a new run follows whatever this one waits for: at about 51 000 events the server would end it."""
CARRIED_CHARACTERS = 100_000
"""A longer plan text is not given to the next run."""


class Continuation:
    """Lets a new run follow a long one, in a moment in which nothing runs."""

    # 10 000 steps took 105 s in one run, and 44 s with a new one every 1 000: a worker that has lost the workflow
    # replays all of its run, 32 000 events in 14 s, and a workflow task has 10 s.

    def __init__(self, context: PlanContext) -> None:
        self._context = context
        self._draining: asyncio.Task[None] | None = None
        self._drain_after = context.request.attempts_per_run

    @property
    def is_draining(self) -> bool:
        """Whether nothing is started because a new run is to follow."""
        return self._draining is not None

    def start_when_due(self, *, is_suitable: bool) -> None:
        """Start no more steps where the run is long, and let a new one follow as soon as nothing runs.

        Args:
            is_suitable: whether the moment is a good one; a very long run does not wait for one.

        Raises:
            ContinueAsNew: nothing runs, and a new run is to follow.
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
        return not (context.has_attempts or context.beside or context.alerts.is_sending)

    def _is_due(self, *, is_quiet: bool) -> bool:
        # Temporal suggests a new run from 4 096 events or 4 MiB on.
        # After a try in vain only further attempts count: the suggestion would hold for good.
        limit = self._context.request.attempts_per_run
        is_suggested = workflow.info().is_continue_as_new_suggested() and self._drain_after == limit
        attempts = self._context.attempts
        if is_suggested or attempts >= self._drain_after:
            return True
        # After an attempt at least: a run that is held on its build by an operator would do nothing else.
        return attempts > 0 and is_other_build_wanted() and (is_quiet or self._drain_after == limit)

    async def _stop_draining(self, *, forever: bool) -> None:
        """Start steps again where one that runs takes too long to wait for."""
        if forever:
            return
        await workflow.sleep(DRAIN_PATIENCE, summary="a new run follows when nothing runs")
        self._draining = None
        context = self._context
        self._drain_after = context.attempts + max(context.request.attempts_per_run // DRAIN_AGAIN, 1)
        context.release()

    def next_input(self) -> PlanInput:
        """Return the input of the run that follows."""
        context = self._context
        context.save()
        # A long text is stored, and has to leave room for the progress: Temporal refuses inputs over 2 MiB.
        source = context.request.source if len(context.request.source) <= CARRIED_CHARACTERS else ""
        return PlanInput.of(
            context.request, source=source, progress=context.progress, core=context.core, heard=context.inbox.heard
        )
