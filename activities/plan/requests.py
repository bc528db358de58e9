"""What the plan activities are asked for, and what they answer."""

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
    """One plan in one workspace; `episode_id` is the plan's id (its workflow id)."""

    plan: ArtifactRef | None = None
    """The stored `StoredPlan` of the revision; None only before the plan is open."""
    revision: int = 1
    base_tree: str = ""
    """Tree that the plan began with."""


class OpenPlanRequest(Value):
    """A plan that begins."""

    scope: PlanScope
    request: PlanRequest
    opening: str = ""
    """Original run id: a new run opens again, a reset run finds what it opened before."""
    is_new: bool = False
    """Refuse an id that this project knows already."""
    snapshot: WorkflowSnapshot | None = None
    """How the plan begins, for the ledger."""


class OpenedPlan(Value):
    """A plan that may run."""

    plan: ArtifactRef
    graph: str = Field(repr=False)
    """`Graph.packed()`: what the scheduler needs, compressed; not more than `plan_cache.GRAPH_CHARACTERS`."""
    tree: str = ""
    notes: tuple[str, ...] = ()
    attempt: int = 1
    planner: bool = False
    """A planner may be asked for a revision where a step has failed: the flag `agent_planning` is on."""
    usage: Usage | None = None
    """Of the planner that wrote the plan."""
    api_calls: int = 0
    home: str = ""
    """Task queue of the host that has the workspace."""


class LoadPlanRequest(Value):
    """The graph of a stored revision, for a run that follows another one."""

    scope: PlanScope


class RevisePlanRequest(Value):
    """A new revision: text from a person, or (empty) asked of a planner."""

    scope: PlanScope
    source: str = ""
    rationale: str = ""
    by: str = ""
    fixed: tuple[str, ...] = ()
    """Steps that are completed or running: they must stay as they are, or be left out if not running."""
    statuses: dict[str, str] = Field(default_factory=dict)
    """Status of steps that are not pending, for the planner; at most 500."""
    trouble: str = ""
    """What diverged, for the planner."""
    after: str = ""
    """The step that the revision follows from, where the plan makes it of itself: it found tasks, or a conflict."""
    tasks: tuple[LoopTask, ...] = ()
    """Of a project's plan, those that it has by now."""

    @property
    def busy(self) -> list[str]:
        """The fixed steps that have not ended."""
        return [step for step in self.fixed if self.statuses.get(step) in (StepStatus.RUNNING, StepStatus.WAITING)]


class RevisedPlan(Value):
    """A revision that may be used, or why it was refused."""

    plan: ArtifactRef | None = None
    graph: str = Field(default="", repr=False)
    problem: str = ""
    """Why the text was refused, with line, column and suggestion."""
    diff: str = ""
    """What is different, in words; at most 1 kB."""
    changed: tuple[str, ...] = ()
    """Ids of steps that are new or not as before."""
    tasks: tuple[LoopTask, ...] = ()
    """New tasks of a project's plan."""
    usage: Usage | None = None
    """Of the planner; also where it found no way."""
    api_calls: int = 0


# Sparse: the history holds one for every attempt, and a step costs 900 bytes there (docs/reference/figures.md).
class RunStepRequest(Sparse):
    """One attempt of one step, to be made or to be taken back."""

    scope: PlanScope
    step: str
    """Id; of a step made from a template, its own: `look-3`."""
    template: str = ""
    """`look-*` then."""
    item: int | None = None
    """Index into the template's items."""
    attempt: int = 1
    expected_tree: str = ""
    """For steps that read or write the tree; empty for others."""
    beliefs: tuple[Belief, ...] = ()
    """For decisions."""
    answers: tuple[Answer, ...] = ()
    """For a gate, or a step that asked: what people said."""
    dry_run: bool = False


class CompensationResult(Value):
    """The tree without the step's work."""

    tree: str = ""
    failure: str = ""
    """Why it could not be taken back; a sentence for a person."""
    files_changed: int = 0
    drift: Drift | None = None
    """What was found instead of the expected tree, and is still on disk, or was undone."""


class VerifyPlanRequest(Value):
    """The definition of done of a plan whose steps are settled."""

    scope: PlanScope
    expected_tree: str


class PlanVerification(Value):
    """Whether the definition of done holds."""

    passed: bool = True
    total: int = 0
    failed: tuple[str, ...] = ()
    """At most 10, one line each."""
    tree: str = ""
    drift: Drift | None = None
    touched: Drift | None = None
    """What changed while the checks ran; it was saved and undone."""


class ClosePlanRequest(Value):
    """A plan that ends: its account is stored, its claim given back."""

    scope: PlanScope
    outcome: PlanOutcome
    reason: str = ""
    expected_tree: str = ""
    statuses: dict[str, str] = Field(default_factory=dict)
    """At most 2 000 steps that are not completed, by id."""
    counts: dict[str, int] = Field(default_factory=dict)
    snapshot: WorkflowSnapshot | None = None
    """How the plan ended, for the ledger."""


class PlanClosed(Value):
    """The stored account."""

    archive: ArtifactRef | None = None
    drift: Drift | None = None
    """What was found instead of the expected tree; it stays on disk unless settings say otherwise."""


class StepRun(Value):
    """How the child workflows of an `episode`, `subplan` or `branch` step are to be started."""

    result: StepResult | None = None
    """Set where nothing is to be started: done before, skipped, refused, previewed."""
    episode: dict[str, object] = Field(default_factory=dict)
    """Fields of an `EpisodeRequest`."""
    plans: tuple[PlanRequest, ...] = ()
    """One for a subplan; one for each alternative of a branch, each in a worktree of its own."""
    names: tuple[str, ...] = ()
    """Of the alternatives."""
    names_executor: bool = True
    """The step says who works; else the request of the plan may."""


class SettleRequest(Value):
    """A step whose child workflows have ended: read their results, judge alternatives, take the best one over."""

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
    """Tree of the plan that an episode in a worktree of its own began with."""

    @property
    def scope(self) -> PlanScope:
        """The plan that asks, as every request of an activity names it."""
        return self.run.scope
