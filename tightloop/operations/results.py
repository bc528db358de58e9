"""Answers of operations as HTTP gives them."""

from datetime import datetime
from typing import Any, Literal

from pydantic import Field

from tightloop.client import Event, Run
from tightloop.episode.checkpoint import CheckpointRecord
from tightloop.episode.model import EpisodeStatus
from tightloop.ledger.metrics import MetricsReport
from tightloop.ledger.model import Digest as DayDigest
from tightloop.ledger.model import EvidenceLine, InboxItem, ProjectLine, StepRow, WorkflowLine
from tightloop.loop.gates import Estimate
from tightloop.loop.model import LoopState, TaskState
from tightloop.operations.models import Shown, shown
from tightloop.plan.request import PlanStatus
from tightloop.run.question import Question
from tightloop.value import ArtifactRef

Line = shown(WorkflowLine, without=frozenset({"details"}))
Artifact = shown(ArtifactRef)
Project = shown(ProjectLine)
Digest = shown(DayDigest)
Metrics = shown(MetricsReport)


class TextProblem(Shown):
    """Something wrong or odd in a text, and where."""

    severity: str = Field(examples=["error"])
    message: str
    suggestion: str = ""
    code: str = ""
    line: int = 0
    column: int = 0


class Examined(Shown):
    """What is wrong or odd in the text of a plan."""

    ok: bool
    """Nothing stops it from running; a worker may refuse more."""
    problems: list[TextProblem]


class Asked(Shown):
    """What a workflow was asked for; of an episode with its amendments."""

    kind: Literal["episode", "plan", "loop"]
    request: dict[str, Any]
    """As the body that starts one, with what the settings filled in."""


class Runs(Shown):
    """The runs that Temporal still has, oldest first."""

    items: list[shown(Run)]  # type: ignore[valid-type]


class WorkerLine(Shown):
    """A worker process."""

    process: str = Field(examples=["4711@build-1"])
    last_seen: datetime | None = None
    free_slots: int | None = None
    """For activities; null where the worker does not say."""
    runs_workflows: bool = False


class WaitingSteps(Shown):
    """The steps that wait on a task queue for a free slot. Temporal counts them roughly, and some seconds late."""

    queue: str = Field(examples=["tightloop-gui-macos"])
    steps: int
    oldest_s: float
    person_waits: int
    """Steps for which a person waits; they go first."""
    running: int
    """Steps of work that runs; they go next."""
    new: int
    """First steps of new work."""


class Workers(Shown):
    """The workers of the installation, what is missing, and what waits."""

    queue: str
    """The task queue of the workflows."""
    items: list[WorkerLine]
    hosts: list[str]
    """Task queues of the hosts that open workspaces."""
    missing: list[str]
    """What an episode would wait for, each as a sentence that says what to start."""
    waiting: list[WaitingSteps]
    """By task queue; only where steps wait."""


class Done(Shown):
    """Answer to a message."""

    id: str
    message: str = Field(examples=["the pause begins at the next safe point"])


class Started(Shown):
    """What was started, and where it is."""

    id: str = Field(examples=["episode-1f2e3d4c5b6a"])
    href: str = Field(examples=["/api/episodes/episode-1f2e3d4c5b6a"])


class Lines(Shown):
    """A page of a list, the newest start first."""

    items: list[Line]  # type: ignore[valid-type]
    cursor: str = ""
    """Where the next page begins; empty: this is the last one."""


class Timeline(Shown):
    """Events, oldest first."""

    items: list[shown(Event)]  # type: ignore[valid-type]
    cursor: str = ""
    """Ask for what follows with it."""


class Trail(Shown):
    """Lines of the evidence trail, oldest first."""

    items: list[shown(EvidenceLine)]  # type: ignore[valid-type]
    after: int = 0
    """Ask for what follows with it."""


class Checkpoints(Shown):
    """Checkpoints, oldest first."""

    items: list[shown(CheckpointRecord)]  # type: ignore[valid-type]


class Artifacts(Shown):
    """References to what is stored."""

    items: list[Artifact]  # type: ignore[valid-type]


class ChangedFile(Shown):
    """How many lines of one file changed; null: it is binary."""

    path: str
    added: int | None = None
    removed: int | None = None


class Diff(Shown):
    """What changed between two checkpoints."""

    before: str
    after: str
    files: list[ChangedFile]
    patch: str = ""
    """The unified diff, cut where it is very long."""
    cut: bool = False
    plan_change: str = ""


class Waiting(shown(InboxItem)):  # type: ignore[misc]
    """A question that waits for a person, and where the answer goes."""

    answer_href: str
    """POST `{"question": ..., "option": ...}` to it."""


class Inbox(Shown):
    """What waits for a person, oldest first."""

    items: list[Waiting]


class Episode(Line):  # type: ignore[misc, valid-type]
    """An episode as it last was."""

    details: shown(EpisodeStatus)  # type: ignore[valid-type]
    """What its workflow said then; with `fresh=true` what it says now."""


class Plan(Line):  # type: ignore[misc, valid-type]
    """A plan of steps as it last was."""

    details: shown(PlanStatus)  # type: ignore[valid-type]


class Steps(Shown):
    """The steps of a plan, in its order."""

    items: list[shown(StepRow)]  # type: ignore[valid-type]


class Projects(Shown):
    """Projects, those with the latest events first."""

    items: list[Project]  # type: ignore[valid-type]


class Schemas(Shown):
    """Where the schemas are, by the type of the workflow."""

    items: dict[str, str]


class PlanTask(Shown):
    """A task, which becomes a run of its own."""

    task_id: str
    description: str
    priority: int
    dependencies: list[str]
    """Tasks that must be complete before."""
    run_id: str | None = None
    """The episode, once dispatched."""
    status: TaskState
    conflict_of: str | None = None
    """Of a task that resolves a conflict: the task whose result could not be merged."""
    message: str = ""
    """Why it is in its state."""


class GateCheckResult(Shown):
    """The result of one gate."""

    name: str
    passed: bool
    message: str
    duration: int
    """Milliseconds."""
    running: bool = False
    """It has not ended; `passed` says nothing yet."""


class GateResults(Shown):
    """The result of `gate:all`."""

    passed: bool
    checks: list[GateCheckResult]


class LoopPlan(Shown):
    """A plan of the project loop."""

    kind: Literal["loop"] = "loop"
    plan_id: str
    project_id: str
    org_id: str
    """The namespace of Temporal."""
    run_id: str | None = None
    """The episode that was inspected."""
    packet_id: str | None = None
    goal: str = ""
    status: LoopState
    tasks: list[PlanTask]
    estimate: shown(Estimate) | None = None  # type: ignore[valid-type]
    """What dispatching may take at most; null once it is dispatched."""
    verify_run_id: str | None = None
    gate_result: GateResults | None = None
    questions: list[shown(Question)] = []  # type: ignore[valid-type] # noqa: RUF012
    reason: str = ""
    possible: list[str] = []  # noqa: RUF012
    """What can be done now: `dispatch`, `verify`, `cancel`."""
    created_at: datetime | None = None
    updated_at: datetime | None = None
    executed_at: datetime | None = None
    """When it was dispatched."""
    completed_at: datetime | None = None
    """When all tasks had ended."""
    verified_at: datetime | None = None


class TaskRun(Shown):
    """The run of a task."""

    task_id: str
    run_id: str


class Dispatched(Shown):
    """What dispatching started."""

    plan_id: str
    status: LoopState
    runs: list[TaskRun]
    executed_at: datetime | None = None


class Verified(Shown):
    """How the gates ended; while they run the status is VERIFYING."""

    plan_id: str
    status: LoopState
    verify_run_id: str | None = None
    gate_result: GateResults | None = None
    verified_at: datetime | None = None


AnyPlan = LoopPlan | Plan
Schema = dict[str, Any]
