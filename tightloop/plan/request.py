"""Request, status and result of a plan."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Self

from pydantic import AwareDatetime, Field

from tightloop.episode.check import ProofRule
from tightloop.episode.model import check_run
from tightloop.episode.scenarios import HiddenScenarios
from tightloop.errors import InvalidRequestError
from tightloop.executor.model import ExecutorChoice, Usage
from tightloop.executor.options import choice_problem
from tightloop.plan.child import Belief, StepFailure, StepStatus
from tightloop.run.core import Queues, ResultMode, RunResult, RunStatus
from tightloop.run.question import ChildWait
from tightloop.safety.drift import Drift
from tightloop.value import ArtifactRef, CallerInput, Duration, Value, json_size

RIGHT_PLAN_INPUT = '{"workspace": "/home/me/project", "file": "plans/refactor.yaml"}'
SOURCE_BYTES = 1_000_000
"""Maximum size of a plan text in a message. Temporal rejects messages larger than 2 MB."""
# Inputs are part of the workflow's input, which is repeated in the history of every Temporal run.
INPUT_CHARACTERS = 64_000


class PlanOutcome(StrEnum):
    """Final outcome of a plan."""

    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    COMPENSATED = "COMPENSATED"
    """The plan failed, and everything that can be undone has been undone."""
    CANCELLED = "CANCELLED"


class PlanPhase(StrEnum):
    """Phase of a plan."""

    OPENING = "OPENING"
    RUNNING = "RUNNING"
    COMPENSATING = "COMPENSATING"
    VERIFYING = "VERIFYING"
    """The definition of done is running."""
    PROVING = "PROVING"
    """The definition of done is running outside the working tree, for the proof."""
    REPLANNING = "REPLANNING"
    CLOSED = "CLOSED"


class PlanRequest(CallerInput):
    """Request to run a plan. The plan is given as text, or as a file on the workspace's host."""

    workspace: str = ""
    """Absolute path of the root of a git working tree."""
    source: str = ""
    """Text of the plan in YAML, JSON or DSL format, at most 1 MB."""
    file: str = ""
    """Path of the plan file, either absolute or relative to the workspace. The plan may have any size."""
    inputs: dict[str, Any] = Field(default_factory=dict)
    """Overrides for `Plan.inputs`."""
    worktree: bool = False
    """Run the plan in a separate git worktree."""
    setup: str = ""
    """Shell command that installs the project's packages, such as `npm ci`. It runs in the sandbox before the work
    starts, again only after the lock files change. If empty, tightloop proposes a command based on the lock files.
    """
    result: ResultMode = "auto"
    """Form of a success: `branch` (one commit on a new branch `tightloop/ID`), `commits` (one commit for each
    task) or `tree` (the files stay in the working tree). `auto` means `branch` for a worktree, otherwise `tree`.
    """
    goal: str = ""
    """Goal for a planner, which writes the plan if there is no source or file. Requires the setting `agent_planning`.
    """
    max_parallel: int | None = None
    allow: tuple[ProofRule, ...] = ()
    """Proof findings to accept without asking, such as `tests_changed`. This also applies to nested episodes and plans.
    """
    scenarios: HiddenScenarios | None = None
    """Hidden scenarios that must pass in the proof, as printed by `tightloop scenarios pack`."""
    dry_run: bool = False
    """Show what each step would do, without changing anything."""
    pause_timeout: Duration = timedelta(days=30)
    queues: Queues = Queues.model_construct()
    executor: ExecutorChoice | None = None
    """Executor of episode steps that do not specify one. If null, it is taken from the settings."""
    unattended: bool = False
    """Send an alert instead of pausing when the work of an episode step is stuck."""
    until: AwareDatetime | None = None
    """Time, with a time zone, at which the plan and its children stop, as at any other budget limit. Running steps are
    finished first.
    """
    depth: int = 1
    """Nesting depth: 1 for a top-level plan, plus one for each enclosing plan."""
    within: str = ""
    """ID of the enclosing plan, which owns the workspace and waits for this plan."""
    base_tree: str = ""
    """Initial tree of a nested plan. If empty, the plan starts with the current files."""
    # 3.3 events per step: a run stays below the 4 096 events from which Temporal suggests a new one, and its replay
    # takes 1.1 s of CPU time (docs/reference/figures.md, Plans).
    attempts_per_run: int = 1_000
    """Number of step attempts after which the workflow continues as new."""

    def check(self) -> None:
        """Check that the request is valid.

        Raises:
            InvalidRequestError: a field is invalid. The message describes the first one.
        """
        # Checked here and not in the model: an undecodable request would make the workflow task fail forever.
        counts = {"attempts_per_run": self.attempts_per_run, "depth": self.depth}
        check_run(self.workspace, self.pause_timeout, counts, self.setup)
        if problem := next(self._problems(), ""):
            raise InvalidRequestError(problem)

    def _problems(self) -> Iterator[str]:
        if sum(map(bool, (self.source.strip(), self.file.strip(), self.goal.strip()))) != 1:
            yield f"provide exactly one of source, file and goal. For example: {RIGHT_PLAN_INPUT}"
        if (size := len(self.source.encode())) > SOURCE_BYTES:
            most = f"the plan is {size} bytes long, but a message can contain at most {SOURCE_BYTES}"
            yield f'{most}. Save the plan to a file and send the path: "file": "plans/big.yaml"'
        if json_size(self, {"inputs"}) > INPUT_CHARACTERS:
            yield f"the inputs have more than {INPUT_CHARACTERS} characters. Store large values in files in the tree"
        if self.max_parallel is not None and not 1 <= self.max_parallel <= 100:
            yield f"max_parallel must be between 1 and 100, got {self.max_parallel}"
        if self.executor is not None and (problem := choice_problem(self.executor)):
            yield problem
        if self.scenarios is not None and self.scenarios.problem:
            yield self.scenarios.problem


class PlanSpent(Value):
    """The resources that a plan has used so far."""

    attempts: int = 0
    """Number of step attempts."""
    api_calls: int = 0
    tokens: int = 0
    cost_usd: float = 0.0
    unpriced_calls: int = 0
    wall_time: timedelta = timedelta()
    """Working time, excluding pauses."""
    revisions: int = 1

    def by_bound(self) -> dict[str, float]:
        """Return the usage that counts towards each limit in `PlanBudget`, by field name."""
        return {
            "max_wall_s": self.wall_time.total_seconds(),
            "max_cost_usd": self.cost_usd,
            "max_tokens": self.tokens,
            "max_api_calls": self.api_calls,
            "max_attempts": self.attempts,
        }

    def with_usage(self, usage: Usage | None, api_calls: int) -> "PlanSpent":
        """Return this usage plus the usage of one step."""
        if usage is None:
            return self.evolve(api_calls=self.api_calls + api_calls)
        return self.evolve(
            api_calls=self.api_calls + api_calls,
            tokens=self.tokens + (usage.input_tokens or 0) + (usage.output_tokens or 0),
            cost_usd=self.cost_usd + (usage.cost_usd or 0.0),
            # A call without a price makes the sum a lower bound; views show it as such.
            unpriced_calls=self.unpriced_calls + (1 if usage.cost_usd is None else 0),
        )


class PlanResult(RunResult):
    """Result of a plan."""

    outcome: PlanOutcome  # pyright: ignore[reportIncompatibleVariableOverride]  # frozen
    counts: dict[str, int] = Field(default_factory=dict)
    """Number of steps by status."""
    revision: int = 1
    spent: PlanSpent = PlanSpent.model_construct()
    record: ArtifactRef | None = None
    """Stored account of the plan (`PlanArchive`), including the values of its `artifacts`."""
    outputs: dict[str, Any] = Field(default_factory=dict)
    """Lengths of the output lists, for subplans only. The values are stored in the subplan's records."""


class StepLine(Value):
    """Row in a list of steps."""

    id: str
    status: StepStatus
    attempt: int = 0
    failure: StepFailure | None = None
    summary: str = ""


class StepPage(Value):
    """A page of a plan's step list, in plan order."""

    lines: tuple[StepLine, ...] = ()
    page: int = 1
    pages: int = 1
    total: int = 0


class PlanStatus(RunStatus):
    """Snapshot of the state of a plan, with at most 100 steps per list.

    A question that blocks a single step does not stop the other steps.
    """

    plan_id: str = ""
    run_id: str = ""
    title: str = ""
    phase: PlanPhase = PlanPhase.OPENING
    revision: int = 1
    plan: ArtifactRef | None = None
    counts: dict[str, int] = Field(default_factory=dict)
    running: tuple[StepLine, ...] = ()
    failed: tuple[StepLine, ...] = ()
    children: tuple[ChildWait, ...] = ()
    """Open questions in the child workflows of running steps."""
    beliefs: tuple[Belief, ...] = ()
    spent: PlanSpent = PlanSpent.model_construct()
    until: datetime | None = None
    """Time at which the plan stops."""
    drifts: tuple[Drift, ...] = ()
    """Files that changed outside the plan while it was running, how the plan reacted, and how to restore them."""
    proof: ArtifactRef | None = None
    """Latest proof of the plan."""
    scenarios: int = 0
    """Number of hidden scenarios that passed in the latest proof."""
    outcome: PlanOutcome | None = None

    @property
    def id(self) -> str:
        """Workflow ID."""
        return self.plan_id

    @property
    def needs_person(self) -> bool:
        """True if the run cannot continue until a person acts."""
        waiting = {wait.step for wait in self.children}
        some = bool(self.questions or waiting)
        # While a step runs that does not wait itself, the plan makes progress without the answer.
        return self.list_status == "paused" or (some and all(line.id in waiting for line in self.running))

    def with_outcome(self, result: RunResult, status: str) -> Self:
        """Return the final snapshot, updated with the result.

        Fields that are missing in `result` keep their values.
        """
        assert isinstance(result, PlanResult)
        return self.evolve(
            status=status,
            phase=PlanPhase.CLOSED,
            outcome=result.outcome,
            qualifier=result.qualifier,
            reason=result.reason,
            files_changed=result.files_changed,
            running=(),
            questions=(),
            children=(),
            counts=result.counts or self.counts,
            tree=result.tree or self.tree,
            proof=result.proof or self.proof,
            # A result without counts comes from a plan that failed before it had any; its zeros say nothing.
            spent=result.spent if result.counts else self.spent,
            revision=result.revision if result.counts else self.revision,
        )
