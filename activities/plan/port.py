"""What a step of a plan may use."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, TypeVar

from pydantic import BaseModel

from activities.artifacts.port import ArtifactStore
from activities.attempt import should_stop
from activities.plan.files import Command, shell_command
from activities.plan.outputs import References
from activities.plan.records import FileRecords, LoadedPlan
from activities.plan.requests import (
    ClosePlanRequest,
    CompensationResult,
    OpenedPlan,
    OpenPlanRequest,
    PlanScope,
    RevisedPlan,
    RevisePlanRequest,
    RunStepRequest,
    SettleRequest,
    StepRun,
)
from activities.workspace.folders import root_of
from activities.workspace.port import WorkingTree
from activities.workspace.scope import Call, Ledger
from activities.workspace.store.entry import TreeMerge
from tightloop.executor.model import Usage
from tightloop.ledger.model import StepRow, TrailEvent
from tightloop.plan.action import ShellAction
from tightloop.plan.child import EvidenceNote, StepFailure, StepResult, StepStatus, child_id
from tightloop.plan.document import Plan
from tightloop.plan.engine.graph import Graph
from tightloop.plan.reference import resolve
from tightloop.plan.request import PlanRequest
from tightloop.plan.step import Step
from tightloop.run.question import Question
from tightloop.safety.drift import Drift
from tightloop.value import ArtifactRef, counted, shorten

A = TypeVar("A", bound=BaseModel)


@dataclass(kw_only=True)
class Work:
    """One attempt of one step, and what is known of it so far."""

    request: RunStepRequest
    run: str
    """Workflow run; an activity that is tried again has the same."""
    loaded: LoadedPlan
    step: Step
    """Its texts still hold references: a runner resolves them by `resolve`, quoted where it needs that."""
    lookup: References
    """Returns the value of one reference, such as `collect.sources`; raises `ReferenceMissingError`."""
    store: ArtifactStore
    records: FileRecords
    begun: datetime
    cancelled: Callable[[], bool] = field(default=should_stop)
    tree: WorkingTree | None = None
    """Held, for a step that writes."""
    inputs_sha256: str = ""
    before: str = ""
    """Tree that a step which changes it began with."""
    drift: Drift | None = None

    @property
    def scope(self) -> PlanScope:
        """The plan that the step is in."""
        return self.request.scope

    @property
    def plan(self) -> Plan:
        """The document."""
        return self.loaded.plan

    @property
    def root(self) -> Path:
        """Top folder of the working tree."""
        return root_of(self.scope)

    @cached_property
    def command(self) -> Command:
        """The command of a shell step: the policy judges the very one that is run."""
        return shell_command(self.action(ShellAction).run, self.lookup)

    def resolve(self, value: Any) -> Any:
        """Replace the references in a text, list or mapping; a text that is one reference becomes its value."""
        return resolve(value, self.lookup)

    def started(self, pid: int) -> None:
        """Note the pid of a program of the step."""
        if self.tree is not None:
            self.tree.own_process(pid)

    def action(self, kind: type[A]) -> A:
        """Return what the step does, as the model of its capability."""
        action = getattr(self.step, self.step.capability.value)
        assert isinstance(action, kind)
        return action


@dataclass(frozen=True, kw_only=True)
class RunnerResult:
    """What a runner did."""

    outputs: dict[str, Any] = field(default_factory=dict)
    """By the action's own result names: `stdout`, `exit_code`, `documents`, `hits` ..."""
    artifacts: dict[str, ArtifactRef] = field(default_factory=dict)
    command: str = ""
    failure: StepFailure | None = None
    chosen: tuple[str, ...] | None = None
    question: Question | None = None
    """A person has to answer; the step is run again with the answer in its request."""
    evidence: tuple[EvidenceNote, ...] = ()
    usage: Usage | None = None
    api_calls: int = 0
    summary: str = ""
    said: str = ""
    """The end of what it printed besides its results; shown where a criterion does not hold."""
    tree: str = ""
    """The tree that it took over from a child workflow; empty: what is on disk."""
    note: dict[str, Any] | None = None
    """See `StepResult.note`."""


class Runner(Protocol):
    """Does the steps of one capability. Blocking; called in an activity's thread."""

    def preview(self, work: Work) -> str:
        """Return what `run` would do, in words or as a diff. Changes nothing and asks nobody."""
        ...

    def run(self, work: Work) -> RunnerResult:
        """Do the step.

        A step that fails is a `RunnerResult` with a failure. Only a worker's own trouble is raised: it is tried again
        unchanged.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class Undone:
    """The inverse of a change, applied to another tree."""

    tree: str = ""
    """Id of the tree; empty where there are conflicts."""
    files: int = 0
    conflicts: tuple[str, ...] = ()
    """Paths that later steps changed in the same places."""


class Trees(Protocol):
    """Compares and combines trees without touching files; `store` is the `store_folder` of their scope."""

    def changed(self, store: Path, before: str, after: str) -> tuple[str, ...]:
        """Return the paths that differ, sorted; bytes that are not UTF-8 as escapes."""
        ...

    def patch(self, store: Path, before: str, after: str) -> bytes:
        """Return the unified diff, cut at 2 MB."""
        ...

    def undo(self, store: Path, before: str, after: str, current: str) -> Undone:
        """Take the change from `before` to `after` out of `current`, exactly and by path. No file is touched."""
        ...

    def merge(self, store: Path, base: str, ours: str, theirs: str, *, markers: bool = False) -> TreeMerge:
        """Merge what `theirs` changed since `base` into `ours`. No file is touched.

        With `markers` conflicts are written into the files, and there is a tree in any case.
        """
        ...


class Children(Protocol):
    """Prepares the child workflows of `episode`, `subplan` and `branch` steps, and judges their results."""

    def prepare(self, work: Work) -> StepRun:
        """Return what is to be started. `work.tree` is None: the children hold the tree themselves."""
        ...

    def preview(self, work: Work) -> str:
        """Return what would be started, in words."""
        ...

    def settle(self, work: Work, request: SettleRequest) -> RunnerResult:
        """Read the results of the children; of a branch, take the best alternative over into `work.tree`."""
        ...

    def tidy(self, scope: PlanScope) -> None:
        """Remove what children left that were never settled; the plan has ended. Idempotent."""
        ...


@dataclass(frozen=True, kw_only=True)
class WrittenPlan:
    """What a model wrote, and what that cost."""

    text: str = ""
    """A plan that may run, within its bounds; empty: none was made."""
    problem: str = ""
    """Why none was made."""
    rationale: str = ""
    model: str = ""
    usage: Usage | None = None
    calls: int = 0
    transcript: bytes = b""
    """Prompts and answers."""
    prompts_sha256: str = ""


class PlanWriter(Protocol):
    """Writes plans: a model where the flag `agent_planning` is on."""

    @property
    def available(self) -> bool:
        """Whether it may be asked."""
        ...

    def write(self, scope: PlanScope, request: PlanRequest) -> WrittenPlan:
        """Write a plan for a goal. Every call is paid.

        Raises:
            InvalidRequestError: the flag is off, or the worker has no model; the message says what to set.
            PlannerUnavailableError: the model is busy or down. Retryable.
        """
        ...

    def revise(self, request: RevisePlanRequest, plan: Plan) -> WrittenPlan:
        """Write the next revision. Raises as `write` does."""
        ...


LINE_CHARACTERS = 400


def note_opened(ledger: Ledger, request: OpenPlanRequest, opened: OpenedPlan, call: Call) -> None:
    """Enter a plan that was opened, with its steps."""
    _note(ledger, request.scope, call, "plan-opened", opened.plan.sha256[:12], key=f"opened/{request.opening}")
    if request.snapshot is not None:
        title = Graph.unpack(opened.graph).head.title
        ledger.record(request.snapshot.evolve(goal=request.snapshot.goal or title))
    ledger.add_steps(_steps(request.scope, opened.graph, call))


def note_revised(ledger: Ledger, request: RevisePlanRequest, revised: RevisedPlan, call: Call) -> None:
    """Enter a revision of a plan, with the steps that are new; a text that was refused leaves nothing."""
    if revised.plan is None:
        return
    line = f"revision {request.scope.revision + 1}: {revised.diff}"
    _note(ledger, request.scope, call, "plan-revised", line, key=f"revised/{revised.plan.sha256}")
    ledger.add_steps(_steps(request.scope, revised.graph, call))


def note_begun(ledger: Ledger, request: RunStepRequest, call: Call, child: str = "") -> None:
    """Enter that an attempt of a step begins."""
    if not request.dry_run:
        row = _row(request, StepStatus.RUNNING, call).evolve(at=call.scheduled, child_id=child)
        ledger.record_steps([row])


def note_prepared(ledger: Ledger, request: RunStepRequest, prepared: StepRun, call: Call) -> None:
    """Enter that an attempt starts workflows, or its result where it starts none."""
    if prepared.result is not None:
        note_ended(ledger, request, prepared.result, call)
        return
    first = prepared.names[0] if prepared.names else ""
    note_begun(ledger, request, call, child_id(request.scope.episode_id, request.step, request.attempt, first))


def note_ended(ledger: Ledger, request: RunStepRequest, result: StepResult, call: Call) -> None:
    """Enter what became of an attempt."""
    if not request.dry_run:
        ledger.record_steps([_row(request, result.status, call)])


def note_compensated(ledger: Ledger, request: RunStepRequest, found: CompensationResult, call: Call) -> None:
    """Enter that an attempt was taken back, or why it could not be."""
    said = found.failure or counted(found.files_changed, "file")
    key = f"compensated/{request.step}/{request.attempt}/{call.run}"
    _note(ledger, request.scope, call, "plan-compensated", f"{request.step}: {said}", key=key)
    if not found.failure:
        ledger.record_steps([_row(request, StepStatus.COMPENSATED, call)])


def note_closed(ledger: Ledger, request: ClosePlanRequest, call: Call) -> None:
    """Enter how a plan ended, and where its steps that are not completed stand."""
    scope = request.scope
    ledger.close_steps(scope.episode_id, request.statuses, at=call.scheduled)
    if request.snapshot is not None:
        ledger.record(request.snapshot)
    line = f"{request.outcome.value}: {request.reason}"
    # Last: pages read the row again when they hear of a line of the trail.
    _note(ledger, scope, call, "plan-closed", line, key=f"closed/{call.run}")


def _steps(scope: PlanScope, packed: str, call: Call) -> list[StepRow]:
    nodes = Graph.unpack(packed).nodes
    return [
        StepRow(
            plan_id=scope.episode_id,
            step=node.id,
            status=StepStatus.PENDING.value,
            needs=tuple(nodes[need].id for need in node.needs),
            title=node.title,
            order=number,
            at=call.scheduled,
        )
        for number, node in enumerate(nodes)
    ]


def _row(request: RunStepRequest, status: StepStatus, call: Call) -> StepRow:
    plan = request.scope.episode_id
    return StepRow(plan_id=plan, step=request.step, status=status.value, attempt=request.attempt, at=call.started)


def _note(ledger: Ledger, scope: PlanScope, call: Call, kind: str, text: str, *, key: str) -> None:
    line = shorten(text, LINE_CHARACTERS)
    ledger.add_event(TrailEvent(episode_id=scope.episode_id, kind=kind, text=line, key=key, at=call.scheduled))
