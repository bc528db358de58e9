"""Requests to the plan activities, and their results."""

from pydantic import Field

from activities.workspace.scope import EpisodeScope
from tightloop.checks.setup import Setup
from tightloop.executor.model import Usage
from tightloop.ledger.model import WorkflowSnapshot
from tightloop.loop.model import LoopTask
from tightloop.plan.child import Belief, StepResult, StepStatus
from tightloop.plan.request import PlanOutcome, PlanRequest
from tightloop.run.core import ResultMode
from tightloop.run.question import Answer
from tightloop.safety.drift import Drift
from tightloop.value import ArtifactRef, Sparse, Value


class PlanScope(EpisodeScope):
    """The scope of one plan in one workspace. `episode_id` is the id of the plan and of its workflow."""

    plan: ArtifactRef | None = None
    """The revision's stored `StoredPlan`. None only before the plan is opened."""
    revision: int = 1
    base_tree: str = ""
    """The plan's initial tree."""


class OpenPlanRequest(Value):
    """Request to open a plan."""

    scope: PlanScope
    request: PlanRequest
    opening: str = ""
    """Original run id. A new run opens the plan again, and a reset run reuses what was opened."""
    is_new: bool = False
    """True to reject an id that the project already knows."""
    snapshot: WorkflowSnapshot | None = None
    """The plan's initial ledger row."""


class OpenedPlan(Value):
    """Result of opening a plan."""

    plan: ArtifactRef
    graph: str = Field(repr=False)
    """Result of `Graph.pack`, which is the scheduler's compressed graph of at most `records.GRAPH_CHARACTERS`."""
    tree: str = ""
    notes: tuple[str, ...] = ()
    worktree: str = ""
    """Path of the plan's own worktree."""
    setup: Setup | None = None
    """Setup command to run, or to ask about, before the first step."""
    attempt: int = 1
    planner: bool = False
    """True if a planner can write a revision when a step fails, because the `plans.agent_planning` setting is on."""
    usage: Usage | None = None
    """The planner's usage for writing the plan."""
    api_calls: int = 0
    home: str = ""
    """Task queue of the host where the workspace is."""


class LoadPlanRequest(Value):
    """A request from a continued run for the graph of a stored revision."""

    scope: PlanScope


class RevisePlanRequest(Value):
    """A request for a new revision. If nobody has supplied its text, a planner is asked."""

    scope: PlanScope
    source: str = ""
    rationale: str = ""
    by: str = ""
    fixed: tuple[str, ...] = ()
    """Completed or running steps, which must stay unchanged. Completed ones may be left out."""
    statuses: dict[str, str] = Field(default_factory=dict)
    """Statuses of all steps that are not pending, for the planner. At most 500."""
    trouble: str = ""
    """Description of the divergence for the planner."""
    after: str = ""
    """Step that triggered an automatic revision by finding tasks or a conflict."""
    tasks: tuple[LoopTask, ...] = ()
    """Current tasks in a project's plan."""

    @property
    def busy(self) -> list[str]:
        """The fixed steps that are still running or waiting."""
        return [step for step in self.fixed if self.statuses.get(step) in (StepStatus.RUNNING, StepStatus.WAITING)]


class RevisedPlan(Value):
    """A new revision, or the reason why it was rejected."""

    plan: ArtifactRef | None = None
    graph: str = Field(default="", repr=False)
    problem: str = ""
    """Reason for the rejection, with line, column and a suggestion."""
    diff: str = ""
    """Summary of the changes in words, at most 1 kB."""
    changed: tuple[str, ...] = ()
    """Ids of new or changed steps."""
    tasks: tuple[LoopTask, ...] = ()
    """New tasks in a project's plan."""
    usage: Usage | None = None
    """The planner's usage, even if it did not find a valid revision."""
    api_calls: int = 0


# Sparse: the history holds one per attempt, and a step costs 900 bytes there (docs/reference/figures.md).
class RunStepRequest(Sparse):
    """A request to run or compensate one step attempt."""

    scope: PlanScope
    step: str
    """Step id. A step generated from a template has its own id, such as `look-3`."""
    template: str = ""
    """Template id such as `look-*`. Empty for other steps."""
    item: int | None = None
    """Index into the template's items."""
    attempt: int = 1
    expected_tree: str = ""
    """Expected tree for steps that read or write the tree. Empty for other steps."""
    beliefs: tuple[Belief, ...] = ()
    """Beliefs to use in decisions."""
    answers: tuple[Answer, ...] = ()
    """People's answers to a gate or to a step's question."""
    dry_run: bool = False


class CompensationResult(Value):
    """A compensation's result."""

    tree: str = ""
    failure: str = ""
    """Reason why the compensation failed, as a sentence for people."""
    files_changed: int = 0
    summary: str = ""
    """Actions and their result, such as `step rollback: POST /rollback: 200`. Empty if the compensation failed."""
    step: str = ""
    """Step that ran as the compensation, if it was not a command and did not only undo file changes."""
    drift: Drift | None = None
    """Deviation from the expected tree, which is either still on disk or was undone."""


class VerifyPlanRequest(Value):
    """A request to run the definition of done after all steps have finished."""

    scope: PlanScope
    expected_tree: str
    failed_before: tuple[str, ...] = ()
    """Keys of the checks that have failed before."""


class PlanVerification(Value):
    """The result of running a plan's definition of done."""

    passed: bool = True
    total: int = 0
    failed: tuple[str, ...] = ()
    """Failed checks. At most 10, with one line each."""
    keys: tuple[str, ...] = ()
    """Keys of the failed checks; see `check_key`."""
    flaky: tuple[str, ...] = ()
    """Checks that failed and then passed when they were repeated without a change. They count as passed."""
    tree: str = ""
    drift: Drift | None = None
    touched: Drift | None = None
    """Changes made while the checks ran. They were saved and undone."""


class ClosePlanRequest(Value):
    """A request to close a plan. This stores the plan's archive and releases its claim."""

    scope: PlanScope
    outcome: PlanOutcome
    reason: str = ""
    expected_tree: str = ""
    statuses: dict[str, str] = Field(default_factory=dict)
    """Statuses of unfinished steps by id. At most 2 000."""
    counts: dict[str, int] = Field(default_factory=dict)
    decisions: dict[str, tuple[Answer, ...]] = Field(default_factory=dict)
    """People's answers that no step has read, by step or kind of question."""
    edits: tuple[str, ...] = ()
    """Sentences about changes by people that were adopted."""
    result: ResultMode = "tree"
    """Form in which the expected tree is delivered."""
    title: str = ""
    """Title for the commit."""
    snapshot: WorkflowSnapshot | None = None
    """The plan's final ledger row."""


class PlanClosed(Value):
    """Result of closing a plan."""

    archive: ArtifactRef | None = None
    drift: Drift | None = None
    """Deviation from the expected tree. It stays on disk unless the settings say otherwise."""
    delivered: str = ""
    """Place of the plan's result; see `RunStatus.delivered`."""


class StepRun(Value):
    """The child workflows to start for an `episode`, `subplan` or `branch` step."""

    result: StepResult | None = None
    """Set if there is nothing to start because the step is already done, skipped, denied or a preview."""
    episode: dict[str, object] = Field(default_factory=dict)
    """Fields of an `EpisodeRequest`."""
    plans: tuple[PlanRequest, ...] = ()
    """Requests for child plans. A subplan has one; a branch has one per alternative, each with its own worktree."""
    names: tuple[str, ...] = ()
    """Names of the alternatives."""
    names_executor: bool = True
    """True if the step specifies its executor. If it does not, the plan's request may specify one."""


class SettleRequest(Value):
    """A request to settle a step after its children have finished.

    The results of the children are compared, and the best alternative is applied.
    """

    run: RunStepRequest
    children: tuple[str, ...] = ()
    """Workflow ids in the order of `StepRun.plans`."""
    outcomes: tuple[str, ...] = ()
    """Outcomes in the same order as `children`."""
    reasons: tuple[str, ...] = ()
    qualifiers: tuple[str, ...] = ()
    """For each success, the reason why it is not a plain success. Empty if it is one."""
    trees: tuple[str, ...] = ()
    cost_usd: float = 0.0
    unpriced_calls: int = 0
    tokens: int = 0
    api_calls: int = 0
    base_tree: str = ""
    """Initial tree of an episode that has its own worktree."""

    @property
    def scope(self) -> PlanScope:
        """Scope of the requesting plan."""
        return self.run.scope
