"""Requests and results of the plan activities."""

from pydantic import Field

from activities.workspace.scope import EpisodeScope
from tightloop.executor.model import Usage
from tightloop.ledger.model import WorkflowSnapshot
from tightloop.loop.model import LoopTask
from tightloop.plan.child import Belief, StepResult, StepStatus
from tightloop.plan.request import PlanOutcome, PlanRequest
from tightloop.run.question import Answer
from tightloop.safety.drift import Drift
from tightloop.value import ArtifactRef, Sparse, Value


class PlanScope(EpisodeScope):
    """Scope of one plan in one workspace; `episode_id` is the plan's id (its workflow id)."""

    plan: ArtifactRef | None = None
    """Stored `StoredPlan` of the revision; None only before the plan is opened."""
    revision: int = 1
    base_tree: str = ""
    """Initial tree of the plan."""


class OpenPlanRequest(Value):
    """Request to open a plan."""

    scope: PlanScope
    request: PlanRequest
    opening: str = ""
    """Original run id: a new run opens the plan again, a reset run reuses what was opened."""
    is_new: bool = False
    """Reject an id that the project already knows."""
    snapshot: WorkflowSnapshot | None = None
    """Initial ledger row of the plan."""


class OpenedPlan(Value):
    """Result of opening a plan."""

    plan: ArtifactRef
    graph: str = Field(repr=False)
    """Result of `Graph.pack`: the scheduler's compressed graph, at most `records.GRAPH_CHARACTERS`."""
    tree: str = ""
    notes: tuple[str, ...] = ()
    attempt: int = 1
    planner: bool = False
    """Whether a planner can write a revision when a step fails: the setting `plans.agent_planning` is on."""
    usage: Usage | None = None
    """Usage of the planner that wrote the plan."""
    api_calls: int = 0
    home: str = ""
    """Task queue of the host that holds the workspace."""


class LoadPlanRequest(Value):
    """Request for the graph of a stored revision, for a continued run."""

    scope: PlanScope


class RevisePlanRequest(Value):
    """Request for a new revision: text from a person, or empty to ask a planner."""

    scope: PlanScope
    source: str = ""
    rationale: str = ""
    by: str = ""
    fixed: tuple[str, ...] = ()
    """Completed or running steps: they must stay unchanged; completed ones may be left out."""
    statuses: dict[str, str] = Field(default_factory=dict)
    """Statuses of all steps that are not pending, for the planner; at most 500."""
    trouble: str = ""
    """Description of the divergence, for the planner."""
    after: str = ""
    """Step that triggered an automatic revision by finding tasks or a conflict."""
    tasks: tuple[LoopTask, ...] = ()
    """Current tasks of a project's plan."""

    @property
    def busy(self) -> list[str]:
        """Fixed steps that have not ended."""
        return [step for step in self.fixed if self.statuses.get(step) in (StepStatus.RUNNING, StepStatus.WAITING)]


class RevisedPlan(Value):
    """New revision, or the reason why it was rejected."""

    plan: ArtifactRef | None = None
    graph: str = Field(default="", repr=False)
    problem: str = ""
    """Reason for the rejection, with line, column and a suggestion."""
    diff: str = ""
    """Summary of the changes in words; at most 1 kB."""
    changed: tuple[str, ...] = ()
    """Ids of new or changed steps."""
    tasks: tuple[LoopTask, ...] = ()
    """New tasks of a project's plan."""
    usage: Usage | None = None
    """Usage of the planner, even if it found no valid revision."""
    api_calls: int = 0


# Sparse: the history holds one per attempt, and a step costs 900 bytes there (docs/reference/figures.md).
class RunStepRequest(Sparse):
    """One step attempt to run or compensate."""

    scope: PlanScope
    step: str
    """Step id; a step generated from a template has its own: `look-3`."""
    template: str = ""
    """Template id, such as `look-*`; empty for other steps."""
    item: int | None = None
    """Index into the template's items."""
    attempt: int = 1
    expected_tree: str = ""
    """For steps that read or write the tree; empty for others."""
    beliefs: tuple[Belief, ...] = ()
    """For decisions."""
    answers: tuple[Answer, ...] = ()
    """Answers by people to a gate, or to a step's question."""
    dry_run: bool = False


class CompensationResult(Value):
    """Result of a compensation."""

    tree: str = ""
    failure: str = ""
    """Reason why the compensation failed; a sentence for a person."""
    files_changed: int = 0
    drift: Drift | None = None
    """Deviation from the expected tree; still on disk, or undone."""


class VerifyPlanRequest(Value):
    """Request to run the definition of done after all steps have ended."""

    scope: PlanScope
    expected_tree: str


class PlanVerification(Value):
    """Result of the definition of done."""

    passed: bool = True
    total: int = 0
    failed: tuple[str, ...] = ()
    """At most 10, one line each."""
    tree: str = ""
    drift: Drift | None = None
    touched: Drift | None = None
    """Changes made while the checks ran; saved and undone."""


class ClosePlanRequest(Value):
    """Request to close a plan: store its archive and release its claim."""

    scope: PlanScope
    outcome: PlanOutcome
    reason: str = ""
    expected_tree: str = ""
    statuses: dict[str, str] = Field(default_factory=dict)
    """At most 2 000 unfinished steps, by id."""
    counts: dict[str, int] = Field(default_factory=dict)
    snapshot: WorkflowSnapshot | None = None
    """Final ledger row of the plan."""


class PlanClosed(Value):
    """Result of closing a plan."""

    archive: ArtifactRef | None = None
    drift: Drift | None = None
    """Deviation from the expected tree; it stays on disk unless settings say otherwise."""


class StepRun(Value):
    """Child workflows to start for an `episode`, `subplan` or `branch` step."""

    result: StepResult | None = None
    """Set if there is nothing to start: already done, skipped, denied or a preview."""
    episode: dict[str, object] = Field(default_factory=dict)
    """Fields of an `EpisodeRequest`."""
    plans: tuple[PlanRequest, ...] = ()
    """One for a subplan; one per alternative for a branch, each with its own worktree."""
    names: tuple[str, ...] = ()
    """Names of the alternatives."""
    names_executor: bool = True
    """Whether the step names its executor; otherwise the plan's request may."""


class SettleRequest(Value):
    """Request to settle a step whose children have ended: read results, compare alternatives, apply the best one."""

    run: RunStepRequest
    children: tuple[str, ...] = ()
    """Workflow ids, in the order of `StepRun.plans`."""
    outcomes: tuple[str, ...] = ()
    """Their outcomes."""
    reasons: tuple[str, ...] = ()
    trees: tuple[str, ...] = ()
    cost_usd: float = 0.0
    tokens: int = 0
    api_calls: int = 0
    base_tree: str = ""
    """Initial tree of an episode with its own worktree."""

    @property
    def scope(self) -> PlanScope:
        """Scope of the requesting plan; every activity request has one."""
        return self.run.scope
