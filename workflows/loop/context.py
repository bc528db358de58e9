"""What a project's plan knows while it runs."""

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta

from temporalio import workflow

from activities.workspace.scope import EpisodeScope
from tightloop.episode.budget import project_of
from tightloop.episode.check import Check
from tightloop.loop.model import (
    RIGHT_LOOP_INPUT,
    GateCheck,
    GateResult,
    LoopInput,
    LoopRequest,
    LoopState,
    LoopStatus,
)
from tightloop.loop.tasks import Tasks
from tightloop.plan.child import ChildWait
from tightloop.run.timeline import RunTimeline, TimelineLine
from tightloop.value import shorten
from workflows.run.activities import ActivityOptions
from workflows.run.kernel import Run

TEXT_CHARACTERS = 600


class LoopEnd(Exception):  # noqa: N818 - it ends the loop, it is not an error
    """The plan is over."""

    def __init__(self, state: LoopState, reason: str) -> None:
        super().__init__(reason)
        self.state, self.reason = state, reason


class LoopRun(Run):
    """What a project's plan has in common with every run."""

    whole = "the plan"

    def __init__(self, given: LoopInput, request: LoopRequest, *, run_id: str) -> None:
        super().__init__(given, request.queues, run_id=run_id)
        self._workspace = request.workspace

    @property
    def scope(self) -> EpisodeScope:
        """Where activities work."""
        return EpisodeScope(episode_id=self.id, workspace=self._workspace, home=self.queues.home)

    @property
    def project(self) -> str:
        """Project that shares the workers fairly with others."""
        return project_of(self._workspace)


class LoopContext:
    """The state of a project's plan. Attributes are changed by its methods only.

    Attributes:
        request: what was asked for.
        status: where the plan is, but for its questions.
        timeline: what has happened.
        parallel: tasks that run at the same time, once dispatched.
        is_verify_wanted: a person has called `verify`.
        gates: those that the project had when it was planned.
        cancelled: why a person ends the plan; None: nobody does.
    """

    def __init__(self, given: LoopInput | None, *, plan_id: str, now: Callable[[], datetime] = workflow.now) -> None:
        """Begin as a draft without tasks."""
        given = given or LoopInput(problem=f"the input is missing. A right input: {RIGHT_LOOP_INPUT}")
        self.request = LoopRequest() if given.problem else LoopRequest.of(given)
        self.run = LoopRun(given, self.request, run_id=plan_id)
        self.plan_id, self._now = plan_id, now
        self.status = LoopStatus(
            plan_id=plan_id,
            workspace=self.request.workspace,
            goal=self.request.goal,
            run_id=self.request.episode,
            parallel=self.request.parallel,
            executor=self.request.executor.name,
            budget=self.request.budget,
            created_at=now(),
            updated_at=now(),
        )
        self.timeline = RunTimeline()
        self.parallel = 0
        self.is_verify_wanted = False
        self.gates: tuple[Check, ...] = ()
        self.cancelled: str | None = None
        self.children: dict[str, tuple[ChildWait, ...]] = {}
        self._on_log: Callable[[TimelineLine], None] = lambda _line: None

    def check(self) -> None:
        """Refuse an input that cannot work.

        Raises:
            InvalidRequestError: with a sentence for the first wrong field.
        """
        self.run.check_start()
        self.request.check()

    # -- what activities are given --------------------------------------------------------------------

    def scope(self) -> EpisodeScope:
        """Return where activities work."""
        return self.run.scope

    def on_host(self, summary: str, timeout: timedelta) -> ActivityOptions:
        """Return how an activity is run on the host of the workspace."""
        return ActivityOptions(summary, timeout, self.request.queues.workspace)

    # -- what happens ----------------------------------------------------------------------------------

    def on_log(self, tell: Callable[[TimelineLine], None]) -> None:
        """Have each new line of the timeline told."""
        self._on_log = tell

    def log(self, kind: str, text: str = "", step: str = "") -> None:
        """Add a line to the timeline."""
        line = TimelineLine(at=self._now(), kind=kind, step=step, text=shorten(text, TEXT_CHARACTERS))
        self.timeline.add(line)
        self._on_log(line)

    def change(self, status: LoopStatus) -> None:
        """Take another status."""
        self.status = status.evolve(updated_at=self._now())

    def inspect(self, gates: tuple[Check, ...]) -> None:
        """Note the gates that the project has before anything is done."""
        self.gates = gates

    def enter(self, state: LoopState) -> None:
        """Begin a state."""
        self.change(self.status.evolve(status=state, reason=""))

    def set_tasks(self, tasks: Tasks) -> None:
        """Take where the tasks stand."""
        if tasks != self.status.tasks:
            self.change(self.status.evolve(tasks=tasks))

    def set_gates(self, checks: Iterable[GateCheck], *, passed: bool = False) -> None:
        """Take where the gates stand."""
        self.change(self.status.evolve(gate_result=GateResult(passed=passed, checks=tuple(checks))))

    def dispatch(self, parallel: int) -> None:
        """Note that a person wants the tasks started."""
        self.parallel = parallel
        dispatched = self.status.evolve(status=LoopState.DISPATCHING, parallel=parallel, executed_at=self._now())
        self.change(dispatched)

    def verify(self, wanted: bool = True) -> None:
        """Note that a person wants the gates run, or that they have run."""
        self.is_verify_wanted = wanted

    def complete(self, tree: str) -> None:
        """Note that all tasks have ended."""
        self.children.clear()
        self.change(self.status.evolve(completed_at=self._now(), tree=tree or self.status.tree))

    def cancel(self, reason: str) -> None:
        """Have the plan ended; the first reason counts."""
        if self.cancelled is None:
            self.cancelled = reason

    def hear(self, child: str, waits: tuple[ChildWait, ...]) -> None:
        """Note what waits for a person in the runs of a round."""
        self.children = {child: waits}

    def close(self, end: LoopEnd) -> None:
        """Note how the plan ended."""
        verified = self._now() if self.status.status is LoopState.VERIFYING else self.status.verified_at
        self.children.clear()
        self.change(self.status.evolve(status=end.state, reason=end.reason, verified_at=verified))

    # -- where it stands -------------------------------------------------------------------------------

    @property
    def is_paused(self) -> bool:
        """Whether a person has paused it."""
        return bool(self.run.waiting)

    def snapshot(self) -> LoopStatus:
        """Return where the plan stands."""
        waits = tuple(wait for found in self.children.values() for wait in found)
        return self.status.evolve(questions=self.run.waiting, children=waits)
