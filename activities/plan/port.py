"""Interfaces for plan steps, namely attempts, runners, trees, children and plan writers."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

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
    PlanClosed,
    PlanScope,
    RevisedPlan,
    RevisePlanRequest,
    RunStepRequest,
    StepRun,
)
from activities.workspace.folders import root_of
from activities.workspace.scope import Call
from tightloop.executor.model import Usage
from tightloop.ledger.model import StepRow, TrailEvent, with_delivered
from tightloop.plan.action import ShellAction
from tightloop.plan.child import EvidenceNote, StepFailure, StepResult, StepStatus, child_id
from tightloop.plan.document import Plan
from tightloop.plan.engine.graph import Graph
from tightloop.plan.reference import resolve
from tightloop.plan.step import Step
from tightloop.run.outcome import headline
from tightloop.run.question import Question
from tightloop.safety.drift import Drift
from tightloop.value import ArtifactRef, shorten

if TYPE_CHECKING:
    from activities.workspace.working_tree import WorkingTree
    from tightloop.database.project import ProjectLedger

A = TypeVar("A", bound=BaseModel)


@dataclass(kw_only=True)
class Work:
    """State of one step attempt."""

    request: RunStepRequest
    run: str
    """Workflow run id, which stays the same when the activity is retried."""
    loaded: LoadedPlan
    step: Step
    """The step to run.

    Its texts still contain references, which runners resolve with `resolve` or as quoted shell words.
    """
    lookup: References
    """Returns the value of a reference such as `collect.sources`. Raises `ReferenceMissingError`."""
    store: ArtifactStore
    records: FileRecords
    started_at: datetime
    cancelled: Callable[[], bool] = field(default=should_stop)
    tree: "WorkingTree | None" = None
    """Locked working tree. Set for steps that write."""
    inputs_sha256: str = ""
    before: str = ""
    """Tree before the step. Set for steps that change it."""
    drift: Drift | None = None

    @property
    def scope(self) -> PlanScope:
        return self.request.scope

    @property
    def plan(self) -> Plan:
        return self.loaded.plan

    @property
    def root(self) -> Path:
        return root_of(self.scope)

    @cached_property
    def command(self) -> Command:
        """The command of a shell step with all references resolved. The policy checks exactly this text."""
        return shell_command(self.action(ShellAction).run, self.lookup)

    def resolve(self, value: Any) -> Any:
        """Replace the references in a text, list or mapping with their values.

        A string that consists of a single reference is replaced with the value itself.
        """
        return resolve(value, self.lookup)

    def record_process(self, pid: int) -> None:
        """Record the pid of a process that the step has started."""
        # The next holder of the tree ends recorded processes that outlived their worker.
        if self.tree is not None:
            self.tree.own_process(pid)

    def action(self, kind: type[A]) -> A:
        """Return the step's action as an instance of the model for its capability."""
        action = getattr(self.step, self.step.capability.value)
        assert isinstance(action, kind)
        return action


@dataclass(frozen=True, kw_only=True)
class RunnerResult:
    """A runner's result."""

    outputs: dict[str, Any] = field(default_factory=dict)
    """Outputs by the action's result names, such as `stdout`, `exit_code`, `documents` or `hits`."""
    artifacts: dict[str, ArtifactRef] = field(default_factory=dict)
    command: str = ""
    failure: StepFailure | None = None
    chosen: tuple[str, ...] | None = None
    question: Question | None = None
    """Question for a person. The step runs again with the answer in its request."""
    evidence: tuple[EvidenceNote, ...] = ()
    usage: Usage | None = None
    unpriced_calls: int = 0
    """Number of model calls of children whose cost is unknown. `usage` contains the known cost."""
    api_calls: int = 0
    summary: str = ""
    output_tail: str = ""
    """Tail of any output other than results. Shown if a criterion is not met."""
    tree: str = ""
    """Tree applied from a child workflow. If empty, the files on disk are used."""
    note: dict[str, Any] | None = None
    """`ProjectNote` with the step's findings; see `StepResult.note`."""
    qualifier: str = ""
    """Reason why the child workflow's success is not a plain success; see `StepResult.qualifier`."""


class Runner(Protocol):
    """Runs the steps of one capability. Calls block and run in an activity's thread."""

    def preview(self, work: Work) -> str:
        """Describe the effect of `run` in words or as a diff. This has no side effects and asks no questions."""
        ...

    def run(self, work: Work) -> RunnerResult:
        """Run a step and return its result.

        If the step fails, the returned `RunnerResult` contains a failure. Errors are raised only for problems
        in the worker, and Temporal retries the activity.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class UndoResult:
    """The result of reverting a change in another tree."""

    tree: str = ""
    """Tree id. Empty if there are conflicts."""
    files: int = 0
    conflicts: tuple[str, ...] = ()
    """Paths in which later steps made overlapping changes."""


@dataclass(frozen=True, kw_only=True)
class WrittenPlan:
    """A plan written by a model, with its cost."""

    text: str = ""
    """A valid plan within its limits. Empty if none was written."""
    problem: str = ""
    """Reason why no plan was written."""
    rationale: str = ""
    model: str = ""
    usage: Usage | None = None
    calls: int = 0
    transcript: bytes = b""
    """Prompts and answers."""
    prompts_sha256: str = ""


LINE_CHARACTERS = 400


def note_opening(ledger: "ProjectLedger", request: OpenPlanRequest, opened: OpenedPlan, call: Call) -> None:
    """Record an opened plan and its steps in the ledger."""
    _note(ledger, request.scope, call, "plan-opened", opened.plan.sha256[:12], key=f"opened/{request.opening}")
    if request.snapshot is not None:
        # A plan given as text has no goal; its title then names it in lists.
        title = Graph.unpack(opened.graph).head.title
        ledger.record(request.snapshot.evolve(goal=request.snapshot.goal or title))
    ledger.add_steps(_steps(request.scope, opened.graph, call))


def note_revision(ledger: "ProjectLedger", request: RevisePlanRequest, revised: RevisedPlan, call: Call) -> None:
    """Record a revision and its new steps in the ledger. Rejected texts are not recorded."""
    if revised.plan is None:
        return
    line = f"revision {request.scope.revision + 1}: {revised.diff}"
    _note(ledger, request.scope, call, "plan-revised", line, key=f"revised/{revised.plan.sha256}")
    ledger.add_steps(_steps(request.scope, revised.graph, call))


def note_step_start(ledger: "ProjectLedger", request: RunStepRequest, call: Call, child: str = "") -> None:
    """Record in the ledger that a step attempt has started."""
    if not request.dry_run:
        # All retries share the scheduled time, so a late one cannot turn a finished row back to running.
        row = _row(request, StepStatus.RUNNING, call).evolve(at=call.scheduled, child_id=child)
        ledger.record_steps([row])


def note_preparation(ledger: "ProjectLedger", request: RunStepRequest, prepared: StepRun, call: Call) -> None:
    """Record the start of child workflows in the ledger, or the step's result if there are none."""
    if prepared.result is not None:
        note_step_end(ledger, request, prepared.result, call)
        return
    first = prepared.names[0] if prepared.names else ""
    note_step_start(ledger, request, call, child_id(request.scope.episode_id, request.step, request.attempt, first))


def note_step_end(ledger: "ProjectLedger", request: RunStepRequest, result: StepResult, call: Call) -> None:
    """Record the result of a step attempt in the ledger."""
    if not request.dry_run:
        ledger.record_steps([_row(request, result.status, call)])


def note_compensation(ledger: "ProjectLedger", request: RunStepRequest, result: CompensationResult, call: Call) -> None:
    """Record a compensation, or the reason why it failed, in the ledger."""
    text = result.failure or result.summary
    # The ledger drops an entry whose key it has, so a retried activity adds no second line.
    key = f"compensated/{request.step}/{request.attempt}/{call.run}"
    _note(ledger, request.scope, call, "plan-compensated", f"{request.step}: {text}", key=key)
    if not result.failure:
        ledger.record_steps([_row(request, StepStatus.COMPENSATED, call)])


def note_closing(ledger: "ProjectLedger", request: ClosePlanRequest, call: Call, result: PlanClosed) -> None:
    """Record a plan's outcome, the location of its result and the final statuses of unfinished steps."""
    scope = request.scope
    ledger.close_steps(scope.episode_id, request.statuses, at=call.scheduled)
    if request.snapshot is not None:
        ledger.record(with_delivered(request.snapshot, result.delivered))
    qualifier = request.snapshot.qualifier if request.snapshot is not None else ""
    line = headline(request.outcome.value, qualifier, request.reason)
    # Last: pages reload the row when they are notified of a timeline entry.
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


def _note(ledger: "ProjectLedger", scope: PlanScope, call: Call, kind: str, text: str, *, key: str) -> None:
    line = shorten(text, LINE_CHARACTERS)
    ledger.add_event(TrailEvent(episode_id=scope.episode_id, kind=kind, text=line, key=key, at=call.scheduled))
