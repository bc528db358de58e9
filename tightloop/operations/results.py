"""Response models of the HTTP API."""

from datetime import datetime
from typing import Any, Literal

from pydantic import Field

from tightloop.client import Event, Run
from tightloop.episode.checkpoint import CheckpointRecord
from tightloop.episode.model import EpisodeStatus
from tightloop.ledger.metrics import MetricsReport
from tightloop.ledger.model import EvidenceLine, InboxItem, ProjectLine, StepRow, WorkflowLine
from tightloop.loop.digest import Digest as ProjectDigest
from tightloop.loop.gates import Estimate
from tightloop.loop.model import LoopState, TaskState
from tightloop.operations.models import Shown, make_output_model
from tightloop.plan.request import PlanStatus
from tightloop.run.question import Question
from tightloop.value import ArtifactRef

Line = make_output_model(WorkflowLine, without=frozenset({"details"}))
Artifact = make_output_model(ArtifactRef)
Project = make_output_model(ProjectLine)
Digest = make_output_model(ProjectDigest)
Metrics = make_output_model(MetricsReport)


class TextProblem(Shown):
    """Error or warning about a plan's text, with its position."""

    severity: str = Field(examples=["error"])
    message: str
    suggestion: str = ""
    code: str = ""
    line: int = 0
    column: int = 0


class Examined(Shown):
    """Validation result of a plan's text."""

    ok: bool
    """True if there are no errors; a worker may still reject the plan."""
    problems: list[TextProblem]


class Asked(Shown):
    """The request that started a workflow. For an episode, it includes all amendments."""

    kind: Literal["episode", "plan", "loop"]
    request: dict[str, Any]
    """Request body, with defaults filled in from the settings."""


class Runs(Shown):
    """The runs that Temporal still stores, oldest first."""

    items: list[make_output_model(Run)]  # type: ignore[valid-type]


class WorkerLine(Shown):
    """Worker process."""

    process: str = Field(examples=["4711@build-1"])
    last_seen: datetime | None = None
    free_slots: int | None = None
    """Number of free activity slots; null if the worker does not report it."""
    runs_workflows: bool = False


class WaitingSteps(Shown):
    """The number of steps that are waiting for a free slot on a task queue.

    Temporal's numbers are approximate and a few seconds old.
    """

    queue: str = Field(examples=["tightloop-gui-macos"])
    steps: int
    oldest_s: float
    person_waits: int
    """Number of steps that a person is waiting for; first priority."""
    running: int
    """Number of steps that belong to work in progress; second priority."""
    new: int
    """Number of first steps of new work; last priority."""


class Workers(Shown):
    """Workers of the installation, missing workers and waiting steps."""

    queue: str
    """Task queue for workflows."""
    items: list[WorkerLine]
    hosts: list[str]
    """Task queues of the hosts that can open workspaces."""
    missing: list[str]
    """Missing workers, each described by a sentence that contains the command to start it."""
    waiting: list[WaitingSteps]
    """Waiting steps by task queue. Queues without waiting steps are omitted."""


class Done(Shown):
    """Response to a message."""

    id: str
    message: str = Field(examples=["the run will pause at the next safe point"])


class Started(Shown):
    """Started workflow and its URL."""

    id: str = Field(examples=["episode-1f2e3d4c5b6a"])
    href: str = Field(examples=["/api/episodes/episode-1f2e3d4c5b6a"])


class Lines(Shown):
    """A page of the list of workflows, most recently started first."""

    items: list[Line]  # type: ignore[valid-type]
    cursor: str = ""
    """Cursor of the next page; empty on the last page."""


class Timeline(Shown):
    """Timeline events, oldest first."""

    items: list[make_output_model(Event)]  # type: ignore[valid-type]
    cursor: str = ""
    """Cursor for requesting later events."""


class Trail(Shown):
    """Recorded events, oldest first."""

    items: list[make_output_model(EvidenceLine)]  # type: ignore[valid-type]
    after: int = 0
    """Cursor for requesting later events."""


class Checkpoints(Shown):
    """Checkpoints, oldest first."""

    items: list[make_output_model(CheckpointRecord)]  # type: ignore[valid-type]


class Artifacts(Shown):
    """References to stored artifacts."""

    items: list[Artifact]  # type: ignore[valid-type]


class ChangedFile(Shown):
    """Number of lines changed in a file; null for a binary file."""

    path: str
    added: int | None = None
    removed: int | None = None


class Diff(Shown):
    """Changes between two checkpoints."""

    before: str
    after: str
    files: list[ChangedFile]
    patch: str = ""
    """Unified diff, truncated if very long."""
    cut: bool = False
    plan_change: str = ""
    """Changed lines of the plan: `{+text+}` was added, and `[-text-]` was removed."""


class Waiting(make_output_model(InboxItem)):  # type: ignore[misc]
    """A question that is waiting for a person, with the URL at which to answer it."""

    answer_href: str
    """URL to answer the question. Send a POST request with `{"question": ..., "option": ...}`."""


class Inbox(Shown):
    """Open questions, oldest first."""

    items: list[Waiting]


class Episode(Line):  # type: ignore[misc, valid-type]
    """Last recorded state of an episode."""

    details: make_output_model(EpisodeStatus)  # type: ignore[valid-type]
    """Last recorded status; with `fresh=true`, the current status."""


class Plan(Line):  # type: ignore[misc, valid-type]
    """Last recorded state of a plan of steps."""

    details: make_output_model(PlanStatus)  # type: ignore[valid-type]


class Steps(Shown):
    """Steps of a plan, in plan order."""

    items: list[make_output_model(StepRow)]  # type: ignore[valid-type]


class Projects(Shown):
    """Projects, most recently active first."""

    items: list[Project]  # type: ignore[valid-type]


class Schemas(Shown):
    """URLs of the schemas, by workflow type."""

    items: dict[str, str]


class PlanTask(Shown):
    """Task of a plan. Each task is executed as a separate run."""

    task_id: str
    description: str
    priority: int
    dependencies: list[str]
    """Ids of the tasks that must complete first."""
    run_id: str | None = None
    """Id of the task's episode; null until the task is dispatched."""
    status: TaskState
    conflict_of: str | None = None
    """Task whose conflict this task resolves; null for other tasks."""
    message: str = ""
    """Explanation of the state."""


class GateCheckResult(Shown):
    """Result of a gate."""

    name: str
    passed: bool
    message: str
    duration: int
    """Duration in milliseconds."""
    running: bool = False
    """True while the gate is running. `passed` is not meaningful during that time."""


class GateResults(Shown):
    """Result of `gate:all`."""

    passed: bool
    checks: list[GateCheckResult]


class LoopPlan(Shown):
    """Plan of the project loop."""

    kind: Literal["loop"] = "loop"
    plan_id: str
    project_id: str
    org_id: str
    """Temporal namespace."""
    run_id: str | None = None
    """Id of the inspected episode."""
    packet_id: str | None = None
    goal: str = ""
    status: LoopState
    tasks: list[PlanTask]
    estimate: make_output_model(Estimate) | None = None  # type: ignore[valid-type]
    """Upper bounds for the cost of dispatching the plan; null after it has been dispatched."""
    verify_run_id: str | None = None
    gate_result: GateResults | None = None
    questions: list[make_output_model(Question)] = []  # type: ignore[valid-type] # noqa: RUF012
    reason: str = ""
    possible: list[str] = []  # noqa: RUF012
    """Operations that are currently possible: `dispatch`, `verify`, `cancel`."""
    created_at: datetime | None = None
    updated_at: datetime | None = None
    executed_at: datetime | None = None
    """Time of the dispatch."""
    completed_at: datetime | None = None
    """Time when the last task ended."""
    verified_at: datetime | None = None


class TaskRun(Shown):
    """Run of a task."""

    task_id: str
    run_id: str


class Dispatched(Shown):
    """Result of dispatching a plan."""

    plan_id: str
    status: LoopState
    runs: list[TaskRun]
    executed_at: datetime | None = None


class Verified(Shown):
    """Result of the gates. While they are running, the status is VERIFYING."""

    plan_id: str
    status: LoopState
    verify_run_id: str | None = None
    gate_result: GateResults | None = None
    verified_at: datetime | None = None


AnyPlan = LoopPlan | Plan
Schema = dict[str, Any]
