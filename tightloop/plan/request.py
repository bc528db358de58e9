"""What starts a plan, and what a plan leaves behind."""

from collections.abc import Iterator
from datetime import timedelta
from enum import StrEnum
from typing import Any, Self

from pydantic import Field

from tightloop.episode.check import ProofRule
from tightloop.episode.model import check_run
from tightloop.errors import InvalidRequestError
from tightloop.executor.model import ExecutorChoice, Usage
from tightloop.plan.child import Belief, StepFailure, StepStatus
from tightloop.run.core import RunResult, RunStatus
from tightloop.run.question import ChildWait
from tightloop.run.routing import Queues
from tightloop.safety.drift import Drift
from tightloop.value import ArtifactRef, CallerInput, Duration, Value, json_size

RIGHT_PLAN_INPUT = '{"workspace": "/home/me/project", "file": "plans/refactor.yaml"}'
SOURCE_BYTES = 1_000_000
"""Bound of a plan text in a message; Temporal refuses messages of 2 MB."""
INPUT_CHARACTERS = 64_000


class PlanOutcome(StrEnum):
    """How a plan ended."""

    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    COMPENSATED = "COMPENSATED"
    """Failed, and everything that could be taken back was."""
    CANCELLED = "CANCELLED"


class PlanPhase(StrEnum):
    """What a plan is about."""

    OPENING = "OPENING"
    RUNNING = "RUNNING"
    COMPENSATING = "COMPENSATING"
    VERIFYING = "VERIFYING"
    """The definition of done is executed."""
    PROVING = "PROVING"
    """It is executed apart from the working tree."""
    REPLANNING = "REPLANNING"
    CLOSED = "CLOSED"


class PlanRequest(CallerInput):
    """A plan to run: its text, or the file that holds it on the workspace's host."""

    workspace: str = ""
    """Absolute path of the top of a git working tree."""
    source: str = ""
    """The plan as YAML, JSON or DSL; at most 1 MB."""
    file: str = ""
    """Path of the plan file, absolute or below the workspace; for plans of any size."""
    inputs: dict[str, Any] = Field(default_factory=dict)
    """Values for `Plan.inputs`."""
    worktree: bool = False
    """Work in a git worktree of its own."""
    goal: str = ""
    """What the plan is for; a planner writes it (needs the flag `agent_planning`) without source and file."""
    max_parallel: int | None = None
    allow: tuple[ProofRule, ...] = ()
    """What may speak against proofs without a question, such as `tests_changed`; also for episodes and plans within."""
    dry_run: bool = False
    """Show what each step would do; nothing is changed."""
    pause_timeout: Duration = timedelta(days=30)
    queues: Queues = Queues.model_construct()
    executor: ExecutorChoice | None = None
    """Of episode steps that name none; None: as the settings say."""
    depth: int = 1
    """1 for a plan of its own; a subplan has its parent's and one more."""
    within: str = ""
    """Id of the plan that holds the workspace and waits for this one."""
    base_tree: str = ""
    """Tree to begin with, for plans within plans; empty: the files as they are found."""
    # 3.3 events for a step: a run stays under the 4 096 events from which Temporal suggests a new one, and its replay
    # takes 1.1 s of processor time (docs/reference/figures.md, Plans).
    attempts_per_run: int = 1_000
    """After so many attempts of steps the workflow continues as new."""

    def check(self) -> None:
        """Refuse what cannot work.

        Raises:
            InvalidRequestError: with a sentence for the first wrong field.
        """
        # Checked here and not by the model: a request that cannot be decoded makes the workflow task fail and hang.
        counts = {"attempts_per_run": self.attempts_per_run, "depth": self.depth}
        check_run(self.workspace, self.pause_timeout, counts)
        if problem := next(self._problems(), ""):
            raise InvalidRequestError(problem)

    def _problems(self) -> Iterator[str]:
        if sum(map(bool, (self.source.strip(), self.file.strip(), self.goal.strip()))) != 1:
            yield f"there must be exactly one of source, file and goal. A right input: {RIGHT_PLAN_INPUT}"
        if (size := len(self.source.encode())) > SOURCE_BYTES:
            most = f"the plan has {size} bytes; the maximum of a message is {SOURCE_BYTES}"
            yield f'{most}. Put it into a file and name that: "file": "plans/big.yaml"'
        if json_size(self, {"inputs"}) > INPUT_CHARACTERS:
            yield f"the inputs have more than {INPUT_CHARACTERS} characters. Put large values into files of the tree"
        if self.max_parallel is not None and not 1 <= self.max_parallel <= 100:
            yield f"max_parallel is {self.max_parallel}; it must be 1 to 100"


class PlanSpent(Value):
    """What a plan used so far."""

    attempts: int = 0
    """Attempts of steps."""
    api_calls: int = 0
    tokens: int = 0
    cost_usd: float = 0.0
    unpriced_calls: int = 0
    wall_time: timedelta = timedelta()
    """Without pauses."""
    revisions: int = 1

    def by_bound(self) -> dict[str, float]:
        """Return what counts against each bound of `PlanBudget`, by the bound's name."""
        return {
            "max_wall_s": self.wall_time.total_seconds(),
            "max_cost_usd": self.cost_usd,
            "max_tokens": self.tokens,
            "max_api_calls": self.api_calls,
            "max_attempts": self.attempts,
        }

    def with_usage(self, usage: Usage | None, api_calls: int) -> "PlanSpent":
        """Return the sum of this and one step's usage."""
        if usage is None:
            return self.evolve(api_calls=self.api_calls + api_calls)
        return self.evolve(
            api_calls=self.api_calls + api_calls,
            tokens=self.tokens + (usage.input_tokens or 0) + (usage.output_tokens or 0),
            cost_usd=self.cost_usd + (usage.cost_usd or 0.0),
            unpriced_calls=self.unpriced_calls + (1 if usage.cost_usd is None else 0),
        )


class PlanResult(RunResult):
    """What a plan leaves behind."""

    outcome: PlanOutcome  # pyright: ignore[reportIncompatibleVariableOverride]  # frozen
    counts: dict[str, int] = Field(default_factory=dict)
    """Steps by status."""
    revision: int = 1
    spent: PlanSpent = PlanSpent.model_construct()
    record: ArtifactRef | None = None
    """The stored account of the plan (`PlanArchive`), with the values of the plan's `artifacts`."""
    outputs: dict[str, Any] = Field(default_factory=dict)
    """Of a subplan: counts of its lists; values are in its records."""


class StepLine(Value):
    """A step in a listing."""

    id: str
    status: StepStatus
    attempt: int = 0
    failure: StepFailure | None = None
    summary: str = ""


class StepPage(Value):
    """A page of the listing of all steps, in the order of the plan."""

    lines: tuple[StepLine, ...] = ()
    page: int = 1
    pages: int = 1
    total: int = 0


class PlanStatus(RunStatus):
    """A snapshot of a plan; at most 100 steps of each list. It goes on beside questions that block only a step."""

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
    """What waits for a person in the workflows that running steps started."""
    beliefs: tuple[Belief, ...] = ()
    spent: PlanSpent = PlanSpent.model_construct()
    drifts: tuple[Drift, ...] = ()
    """Files that others changed while the plan worked, what became of them, and how to bring them back."""
    proof: ArtifactRef | None = None
    """The last proof that was made."""
    outcome: PlanOutcome | None = None

    @property
    def id(self) -> str:
        """Workflow id."""
        return self.plan_id

    @property
    def needs_person(self) -> bool:
        """Whether the run cannot continue until a person acts."""
        waiting = {wait.step for wait in self.children}
        some = bool(self.questions or waiting)
        return self.word == "paused" or (some and all(line.id in waiting for line in self.running))

    def ended(self, result: RunResult, word: str) -> Self:
        """Return this last snapshot with how the plan ended; `result` may know less than it does."""
        assert isinstance(result, PlanResult)
        return self.evolve(
            status=word,
            phase=PlanPhase.CLOSED,
            outcome=result.outcome,
            reason=result.reason,
            running=(),
            questions=(),
            children=(),
            counts=result.counts or self.counts,
            tree=result.tree or self.tree,
            proof=result.proof or self.proof,
            spent=result.spent if result.counts else self.spent,
            revision=result.revision if result.counts else self.revision,
        )
