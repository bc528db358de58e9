"""What the parts of a plan's workflow share: its request, its progress, its schedule, and whether it goes on."""

from collections.abc import Callable
from datetime import datetime, timedelta

from temporalio import workflow
from temporalio.exceptions import ApplicationError

from activities.plan.requests import OpenedPlan, PlanScope, RevisedPlan
from tightloop.episode.failure import signature
from tightloop.episode.model import RunTimeline, TimelineLine
from tightloop.errors import InvalidRequestError
from tightloop.ledger.alert import GOAL_SHOWN, Alert, AlertKind, Subject, alert_key
from tightloop.plan.control import PlanTopUp, extended
from tightloop.plan.document.plan import OnPlanFailure
from tightloop.plan.engine.graph import Graph
from tightloop.plan.engine.recovery import find_breach
from tightloop.plan.engine.revision import carry_over
from tightloop.plan.engine.schedule import Schedule
from tightloop.plan.guard import carry_over_bounds, changed_bounds
from tightloop.plan.progress import PlanInput, PlanProgress
from tightloop.plan.request import RIGHT_PLAN_INPUT, PlanPhase, PlanRequest
from tightloop.question import Question
from tightloop.safety.drift import Drift, DriftAnswer
from tightloop.value import abridge, counted, shorten
from workflows.shared.activities import ActivityOptions

REASON_CHARACTERS = 600
ENDING = "the plan is ending and takes no more messages"


class PlanEnd(Exception):  # noqa: N818 - it ends the loop, it is not an error
    """The plan is over although its steps are not all done."""

    def __init__(self, reason: str, *, compensate: bool = False) -> None:
        super().__init__(reason)
        self.reason, self.compensate = reason, compensate


class PlanContext:
    """The state of one run of a plan's workflow. Attributes are changed by its methods only.

    Attributes:
        request: what was asked for.
        replaces: a plan with this id may have ended before.
        progress: what the next run goes on from.
        status: `running`, or how the plan ended.
        reason: why it ended.
        timeline: what this run has logged.
        end: set where the loop has to end.
        is_ending: messages of people are refused.
        is_woken: the loop has something to look at.
        attempts: attempts, and steps taken back, in this run.
        is_adopting: edits of people are being taken over into the tree.
    """

    def __init__(
        self, given: PlanInput | None, *, plan_id: str = "", now: Callable[[], datetime] = workflow.now
    ) -> None:
        """Restore the progress of the previous run, so that handlers see it at once."""
        given = given or PlanInput(problem=f"the input is missing. A right input: {RIGHT_PLAN_INPUT}")
        self.plan_id, self.now = plan_id, now
        self.problem, self.unknown = given.problem, given.unknown
        self.is_first_run, self.replaces = given.progress is None, given.replace
        self.request = PlanRequest() if given.problem else PlanRequest.of(given)
        self.progress = given.progress or PlanProgress()
        self.title = given.title
        self.has_planner = False
        self.status, self.reason = "running", ""
        self.timeline = RunTimeline()
        self.end: PlanEnd | None = None
        self.is_ending = False
        self.attempts = 0
        self._schedule: Schedule | None = None
        self.is_adopting = False
        self._holds = 0
        self.is_woken = False

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

    def begin(self, opened: OpenedPlan, graph: Graph) -> None:
        """Note what opening a new plan has found."""
        progress = self.progress
        queues = self.request.queues
        self.request = self.request.evolve(queues=queues.evolve(home=opened.home or queues.home))
        progress.plan, progress.base_tree, progress.tree = opened.plan, opened.tree, opened.tree
        progress.begin(graph.head.budget, graph.head.hypotheses)
        progress.count_usage(opened.usage, opened.api_calls)
        self.log("opened", detail="; ".join([counted(len(graph.nodes), "step"), *opened.notes]))

    def save(self, waiting: tuple[Question, ...], asked: int) -> None:
        """Bring the progress up to date for the run that follows, which asks on from `asked` questions."""
        self.progress.runs += 1
        self.progress.questions, self.progress.asked = waiting, asked
        if self._schedule is not None:
            self.progress.schedule = self._schedule.save()

    def revise(self, graph: Graph, revised: RevisedPlan, *, by_person: bool) -> str:
        """Go on with another graph; completed steps and those that run keep their place.

        Returns:
            Which bounds changed, in words.
        """
        progress, old = self.progress, self.schedule
        progress.schedule, gone = carry_over(old.graph, old.save(), graph, revised.changed)
        progress.forget(gone)
        progress.plan, progress.revision = revised.plan, progress.revision + 1
        progress.spent = progress.spent.evolve(revisions=progress.spent.revisions + 1)
        before = progress.budget
        progress.budget = carry_over_bounds(before, old.graph.head.budget, graph.head.budget, by_person=by_person)
        progress.add_hypotheses(graph.head.hypotheses)
        progress.doubted = None
        self.open(graph, has_planner=self.has_planner)
        find = self.schedule.find
        progress.failures = {name: why for name, why in progress.failures.items() if find(name) is not None}
        progress.wanted = [name for name in progress.wanted if find(name) is not None]
        return changed_bounds(before, progress.budget)

    # -- going on, and the end ----------------------------------------------------------------------

    def wake(self) -> None:
        """Have the loop look at what is to be done."""
        self.is_woken = True

    def sleep(self) -> None:
        """Let the loop wait for the next event."""
        self.is_woken = False

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

    def cancel(self, reason: str) -> None:
        """Have the plan cancelled; the first reason counts, also in the run that follows."""
        if self.progress.cancel is None:
            self.progress.cancel = reason
        self.wake()

    def refuse_messages(self) -> None:
        """Accept nothing more from people: the plan ends."""
        self.is_ending = True

    def close(self, status: str, reason: str) -> None:
        """Note how the plan ended."""
        self.status, self.reason = status, reason

    def count_attempt(self) -> None:
        """Count what makes the history of this run longer."""
        self.attempts += 1

    def try_afresh(self, step: str, number: int) -> None:
        """Begin a failed step again, with all the attempts and the time that it had at first."""
        attempts = self.schedule.attempt(number)
        self.schedule.reopen(number)
        self.progress.settle(step)
        self.progress.earlier[step] = attempts

    # -- progress -----------------------------------------------------------------------------------

    def log(self, event: str, step: str = "", detail: str = "") -> None:
        """Add a line to the timeline."""
        self.progress.log(self.now(), event, step, detail)
        added = self.progress.timeline[-1]
        self.timeline.add(TimelineLine(at=added.at, kind=added.event, step=added.step, text=added.text))

    def accept_proof(self, by: str) -> None:
        """Note who accepts the tree in spite of what speaks against its proof."""
        if self.progress.doubted is not None:
            self.progress.doubted = self.progress.doubted.evolve(accepted_by=by)

    def log_drift(self, drift: Drift | None, step: str = "") -> None:
        """Note what was found on disk that the steps had not left."""
        if self.progress.note_drift(drift) and drift is not None:
            for line in drift.report:
                self.log("drift", step, line.strip())

    def expect_own_leftovers(self, expected: bool = True) -> None:
        """Note that what is on disk was left by work of this plan which was stopped or discarded, or not any more."""
        self.progress.put_back = expected

    def adopt(self, adopting: bool = True) -> None:
        """Note that edits of people are being taken over into the tree, or not any more."""
        self.is_adopting = adopting

    def decide_drift(self, answer: DriftAnswer | None) -> None:
        """Note what a person decided about files that somebody else changed."""
        self.progress.drift = answer

    def keep_edits(self, keep: bool = True) -> None:
        """Note whether edits of people are still to be kept."""
        self.progress.adopt = keep

    def set_phase(self, phase: PlanPhase) -> None:
        """Note what the plan does now."""
        self.progress.phase = phase

    def set_tree(self, tree: str) -> None:
        """Note which tree the steps have left."""
        self.progress.tree = tree or self.progress.tree

    def find_breach(self) -> str | None:
        """Return which bound of the plan is reached."""
        return find_breach(self.progress.budget, self.progress.spent, depth=self.request.depth)

    def add_budget(self, addition: PlanTopUp) -> None:
        """Raise bounds by what a person adds."""
        self.progress.budget = addition.applied(self.progress.budget)

    def extend_budget(self, step: str = "") -> None:
        """Raise the bounds that are reached by what the plan states for them; for a step, those of its template."""
        schedule, progress = self.schedule, self.progress
        number = schedule.find(step) if step else None
        progress.budget = extended(
            progress.budget,
            schedule.graph.head.budget,
            progress.spent,
            depth=self.request.depth,
            fan_out=0 if number is None else schedule.held.get(number, 0),
        )

    def on_host(self, summary: str, timeout: timedelta) -> ActivityOptions:
        """Return how an activity is run on the host of the workspace."""
        return ActivityOptions(summary, timeout, self.request.queues.workspace)

    def scope(self) -> PlanScope:
        """Return where activities work."""
        return PlanScope(
            episode_id=self.plan_id,
            workspace=self.request.workspace,
            worktree=self.request.worktree,
            plan=self.progress.plan,
            revision=self.progress.revision,
            base_tree=self.progress.base_tree,
            home=self.request.queues.home,
            within=self.request.within,
            put_back=self.progress.put_back,
        )

    def alert(
        self, kind: AlertKind, reason: str, step: str = "", *, question: str = "", options: tuple[str, ...] = ()
    ) -> Alert:
        """Return what people are told; `question` is an id, or the window of several."""
        now = self.now()
        return Alert(
            key=alert_key(self.plan_id, kind, f"{step}\n{signature(reason)}", now),
            kind=kind,
            episode_id=self.plan_id,
            at=now,
            subject=Subject.PLAN,
            phase=self.progress.phase.value,
            step=step,
            question=question,
            options=options,
            reason=abridge(reason, REASON_CHARACTERS),
            goal=shorten(self.title, GOAL_SHOWN),
        )
