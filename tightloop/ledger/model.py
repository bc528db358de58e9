"""Models of the ledger."""

from datetime import datetime
from typing import Any

from pydantic import Field

from tightloop.episode.model import EpisodeStatus
from tightloop.ledger.metrics import Unit
from tightloop.run.outcome import label
from tightloop.run.question import Question
from tightloop.value import Value, shorten

KINDS = ("episode", "plan", "loop")
FREED = "freed"
"""Kind of the event that remains of a workflow after `tightloop gc` has deleted its rows."""
KEPT, RELEASED = "kept", "released"
"""Kinds of the events that protect a workflow from `tightloop gc` or end this protection. The last event wins."""


UNKNOWN = "unknown"
"""Status of an ended workflow if Temporal no longer knows the outcome."""


class TrailEvent(Value):
    """Recorded event of a workflow."""

    episode_id: str
    """Id of the episode, plan or loop."""
    kind: str
    """Event kind, such as `iteration`, `paused`, `plan_created`, `plan_verified`."""
    text: str = ""
    key: str = ""
    """Idempotency key, unique within the workflow. A second event with the same key is ignored."""
    at: datetime | None = None


class EvidenceLine(TrailEvent):
    """Event of a workflow, as read from the ledger."""

    seq: int = 0
    """Sequence number, increasing across the whole ledger. It is the cursor for live events."""
    project: str = ""


class WorkflowSnapshot(Value):
    """The state of a workflow at one point in time. The newest snapshot takes precedence."""

    id: str
    kind: str
    """One of `KINDS`."""
    status: str
    """Status as in `tightloop list`: `running`, `paused`, `succeeded`, ..."""
    qualifier: str = ""
    """Reason why a success is not a plain success; see `RunResult.qualifier`."""
    files_changed: int | None = None
    """Number of files that differ from the initial tree. None if it is unknown."""
    parent: str = ""
    goal: str = ""
    """Goal of an episode or loop, or title of a plan; at most 200 characters."""
    executor: str = ""
    phase: str = ""
    iteration: int = 0
    checks: str = ""
    """Number of passed checks out of all checks, such as `2/3`."""
    model: str = ""
    """The executor's model, if known."""
    cost_usd: float = 0.0
    cost_known: bool = False
    """False if `cost_usd` is only a lower bound or was not reported."""
    tokens: int | None = None
    """Input and output tokens of all model calls. Here and below, None means unknown or incomplete."""
    worked_s: float | None = None
    """Working time in seconds."""
    interventions: int | None = None
    """Number of messages sent by people during the run."""
    run: int = 1
    """Run number. Together with `at`, it determines which snapshot is newer."""
    at: datetime
    started: datetime | None = None
    closed: datetime | None = None
    questions: tuple[Question, ...] = ()
    details: dict[str, Any] = Field(default_factory=dict)
    """Complete status as JSON: an `EpisodeStatus`, `PlanStatus` or `LoopStatus`."""

    @property
    def label(self) -> str:
        """Status and abbreviated qualifier, such as `succeeded, not proven`."""
        return label(self.status, self.qualifier)


def with_delivered(snapshot: WorkflowSnapshot, delivered: str) -> WorkflowSnapshot:
    """Record in a snapshot where the result of a closed run was delivered.

    See `RunStatus.delivered`.
    """
    if not delivered:
        return snapshot
    return snapshot.evolve(details={**snapshot.details, "delivered": delivered})


class WorkflowLine(WorkflowSnapshot):
    """Snapshot of a workflow, as read from the ledger."""

    project: str = ""
    waiting_since: datetime | None = None
    """Time since which the workflow has needed a person, or None if it does not need one now."""


class WorkflowFilter(Value):
    """Filter for a workflow list. Empty fields match all workflows."""

    project: str = ""
    kind: str = ""
    status: str = ""
    text: str = ""
    """Substring of the id or the goal."""
    parent: str | None = None
    """Id of the parent plan. If empty, only workflows without a parent match; if None, all workflows match."""


class WorkflowPage(Value):
    """A page of the workflow list, most recently started first."""

    lines: tuple[WorkflowLine, ...] = ()
    cursor: str = ""
    """Cursor of the next page; empty on the last page."""


class InboxItem(Value):
    """An open question, or a project plan that is waiting for `dispatch` or `verify`."""

    project: str
    workflow_id: str
    kind: str
    goal: str = ""
    executor: str = ""
    iteration: int = 0
    question: Question
    since: datetime | None = None
    blocks: int = 0
    """Number of blocked tasks or steps, including the one that asked."""
    loop: str = ""
    """Id of the project plan waiting for the answer."""
    tasks: tuple[str, ...] = ()
    """Blocked tasks of that plan: first the task that asked, then its dependents."""


class ProjectLine(Value):
    """Project with its latest activity."""

    id: str
    name: str
    workspace: str = ""
    host: str = ""
    running: int = 0
    waiting: int = 0
    """Workflows that need a person."""
    last_event: datetime | None = None


class StepRow(Value):
    """Last recorded state of a plan step."""

    plan_id: str
    step: str
    status: str
    attempt: int = 0
    child_id: str = ""
    """Id of the workflow that the step started, if any."""
    needs: tuple[str, ...] = ()
    title: str = ""
    order: int = 0
    at: datetime | None = None


MODEL_CHARACTERS = 120


def episode_snapshot(status: EpisodeStatus, *, parent: str, at: datetime) -> WorkflowSnapshot:
    """Convert the status of an episode to a snapshot for the ledger.

    Args:
        status: result of the status query.
        parent: id of the workflow that started the episode, if any.
        at: current time.
    """
    spent = status.spent
    return WorkflowSnapshot.of(
        status,
        id=status.episode_id,
        kind="episode",
        parent=parent,
        phase=status.phase.value,
        model=shorten(status.model, MODEL_CHARACTERS),
        cost_usd=spent.cost_usd,
        cost_known=not spent.unpriced_calls,
        # A sum without the unreported calls would look complete.
        tokens=None if spent.unreported_calls else spent.tokens,
        worked_s=spent.wall_time.total_seconds(),
        interventions=spent.interventions,
        run=status.runs,
        at=at,
        questions=tuple(question for question in status.questions if question.needs_person),
        details=status.model_dump(mode="json"),
    )


_MINUTE, _HOUR, _DAY = 60, 3_600, 86_400


def amount(value: float | None, unit: Unit) -> str:
    """Format a value with its unit, such as `80 %`, `$0.41` or `1h 5m`. None becomes `unknown`."""
    if value is None:
        return UNKNOWN
    match unit:
        case Unit.SHARE:
            return f"{value:.0%}".replace("%", " %")
        # Calls of small models cost less than a cent, and $0.00 would look free.
        case Unit.USD:
            return f"${value:,.2f}" if value >= 0.01 or value == 0 else f"${value:.4f}"
        case Unit.SECONDS:
            # Compared as it will be rounded: 59.7 is `1m`, not `60s`.
            if value < _MINUTE - 0.5:
                return f"{value:.1f}s" if 0 < value < 10 else f"{value:.0f}s"
            whole = round(value)
            for large, small, names in ((_DAY, _HOUR, "dh"), (_HOUR, _MINUTE, "hm"), (_MINUTE, 1, "ms")):
                if whole >= large:
                    rest = whole % large // small
                    return f"{whole // large}{names[0]} {rest}{names[1]}" if rest else f"{whole // large}{names[0]}"
            return f"{whole}s"
        case Unit.COUNT:
            return f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"
