"""The plan document: steps with their contracts, what binds them, and what they may spend.

Every field is what a person writes; `tightloop/plan/text/reading.py` also takes the other spellings (`nodes`,
`depends_on`, `command` ...) and names line and column of what is wrong. Durations are seconds.
"""

from enum import StrEnum
from typing import Any

from pydantic import Field

from tightloop.check import Check
from tightloop.plan.action import (
    BranchAction,
    CheckpointAction,
    DecisionAction,
    EditAction,
    EpisodeAction,
    FetchAction,
    GateAction,
    GitAction,
    HttpAction,
    ModelAction,
    SearchAction,
    ShellAction,
    SubplanAction,
)
from tightloop.plan.policy import Policy
from tightloop.value import Document

ID_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}(\*)?$"
"""A step id; one that ends with `*` is a template for as many steps as `for_each` has items."""
FAN_OUT_LIMIT = 2_500
RESERVED_IDS = frozenset({"inputs", "plan", "item", "outputs", "hypotheses", "seed", "exit_code", "status"})
"""First words of a reference that mean something else than a step."""


class StepKind(StrEnum):
    """What a step is for. How it is done is its capability."""

    TOOL = "tool"
    MODEL = "model"
    DECISION = "decision"
    CHECKPOINT = "checkpoint"
    COMPENSATION = "compensation"
    """Only ever started to take another step back."""
    GATE = "gate"
    SUBPLAN = "subplan"
    BRANCH = "branch"
    EPISODE = "episode"
    RESEARCH = "research"
    ANALYZE = "analyze"
    SYNTHESIZE = "synthesize"
    IMPLEMENT = "implement"
    VALIDATE = "validate"
    DEBUG = "debug"
    REFACTOR = "refactor"
    DEPLOY = "deploy"


class Capability(StrEnum):
    """How a step is done: which runner does it."""

    NONE = "none"
    """Nothing is done: a milestone that others wait for."""
    SHELL = "shell"
    EDIT = "edit"
    GIT = "git"
    HTTP = "http"
    FETCH = "fetch"
    SEARCH = "search"
    MODEL = "model"
    GATE = "gate"
    DECISION = "decision"
    CHECKPOINT = "checkpoint"
    EPISODE = "episode"
    SUBPLAN = "subplan"
    BRANCH = "branch"


_ACTIONS = tuple((capability.value, capability) for capability in Capability if capability is not Capability.NONE)


class Access(StrEnum):
    """What a step does to the working tree; writers run alone, readers together."""

    NONE = "none"
    READS = "reads"
    WRITES = "writes"


DEFAULT_ACCESS = {
    Capability.NONE: Access.NONE,
    Capability.SHELL: Access.WRITES,
    Capability.EDIT: Access.WRITES,
    Capability.GIT: Access.WRITES,
    Capability.HTTP: Access.NONE,
    Capability.FETCH: Access.NONE,
    Capability.SEARCH: Access.READS,
    Capability.MODEL: Access.NONE,
    Capability.GATE: Access.READS,
    Capability.DECISION: Access.NONE,
    Capability.CHECKPOINT: Access.WRITES,
    Capability.EPISODE: Access.WRITES,
    Capability.SUBPLAN: Access.WRITES,
    Capability.BRANCH: Access.WRITES,
}


class Join(StrEnum):
    """When a step with several needs may start."""

    ALL = "all"
    """All needs completed; one that was skipped skips this step too."""
    ANY = "any"
    """Every need is settled, none failed, and at least one completed: the meeting point of exclusive paths."""


class FailureClass(StrEnum):
    """Why a step failed, as far as the way out of it depends on that."""

    TRANSIENT = "transient"
    """It may pass when tried again: a time limit, a network, a busy service."""
    LOGIC = "logic"
    """The work is wrong: the same again fails again."""
    POLICY = "policy"
    """A rule or a person refused it."""


class Recovery(StrEnum):
    """What follows a failure."""

    RETRY = "retry"
    ALTERNATE = "alternate"
    """Another step does the work instead; see `Step.on_failure`."""
    REPLAN = "replan"
    ASK = "ask"
    ABORT = "abort"
    SKIP = "skip"
    """Go on as if the step had been skipped."""


class Retry(Document):
    """How often, and after which wait, a transient failure is tried again. Wait = initial * factor^(n-1) <= maximum."""

    attempts: int = Field(default=3, ge=1, le=50)
    """All attempts, the first included."""
    initial_s: float = Field(default=1.0, ge=0)
    factor: float = Field(default=2.0, ge=1, allow_inf_nan=False)
    maximum_s: float = Field(default=60.0, ge=0)


class Watchdog(Document):
    """What happens when a step takes long: who is told, or that it is ended."""

    after_s: float = Field(gt=0)
    escalate: str = Field(default="alert", pattern="^(alert|pause|cancel)$")


class FailureMode(Document):
    """A known way to fail, how to recognise it, and what to do then."""

    name: str
    detect: str = ""
    """Expression over the step's own outputs, such as `"${exit_code} == 5"`; empty: any failure."""
    failure_class: FailureClass = FailureClass.LOGIC
    recover: Recovery = Recovery.ASK
    advice: str = ""
    """Prose for a person or a planner."""


class OnFailure(Document):
    """Which step is started when this one has failed for good."""

    to: str
    recovers: bool = True
    """If that step completes, this one counts as recovered, and those that need it go on."""
    compensate: tuple[str, ...] = ()
    """Steps to take back before, latest first whatever the order here; this step itself may be among them."""


class Compensation(Document):
    """How a step is taken back. By default a step that wrote files has exactly its own changes undone."""

    run: str = ""
    """Shell command; empty: undo the files."""
    step: str = ""
    """Id of a step of kind `compensation`."""
    none: bool = False
    """Nothing can or need be taken back."""


class EvidenceRule(Document):
    """What the end of this step says about a hypothesis."""

    hypothesis: str
    when: str = ""
    """Expression; empty: the step completed."""
    verdict: str = Field(default="supports", pattern="^(supports|refutes|neutral)$")
    strength: str = Field(default="moderate", pattern="^(weak|moderate|strong)$")
    note: str = ""


class Hypothesis(Document):
    """A statement that evidence can refute."""

    id: str
    statement: str = ""
    prior: float = Field(default=0.5, gt=0, lt=1)


class ArtifactDeclaration(Document):
    """A named output of the plan."""

    name: str
    from_step: str
    output: str = ""
    """Name of the step's output; empty: the same name."""
    type: str = "file"
    """For readers, such as `list[url]`."""


class PlanBudget(Document):
    """Circuit breakers. None: unbounded, but for those that have a default."""

    max_wall_s: float | None = Field(default=None, gt=0)
    max_cost_usd: float | None = Field(default=None, ge=0)
    max_tokens: int | None = Field(default=None, ge=0)
    max_api_calls: int | None = Field(default=None, ge=0)
    """Calls of models, and HTTP requests of `http` and `fetch`."""
    max_steps: int = Field(default=20_000, ge=1)
    """Attempts of steps, of all kinds."""
    max_depth: int = Field(default=4, ge=1, le=16)
    """Plans within plans, this one included."""
    max_fan_out: int = Field(default=100, ge=1, le=FAN_OUT_LIMIT)
    """Steps that one template may become."""
    max_revisions: int = Field(default=10, ge=1)


class StepBudget(Document):
    """What one step may spend; must fit into the plan's."""

    max_cost_usd: float | None = Field(default=None, ge=0)
    max_tokens: int | None = Field(default=None, ge=0)


class Step(Document):
    """One unit of work with its contract. It has at most one action; without one it is a milestone."""

    id: str = Field(pattern=ID_PATTERN)
    title: str = ""
    description: str = ""
    kind: StepKind = StepKind.TOOL
    using: Capability | None = None
    """Follows from the action; must agree with it where given."""
    owner: str = ""
    labels: tuple[str, ...] = ()
    priority: int = 0
    """Higher starts earlier among those that are ready."""
    needs: tuple[str, ...] = ()
    """Ids; a template `name-*` stands for all steps it became."""
    join: Join = Join.ALL
    when: str = ""
    """Expression over inputs and outputs of `needs`; false skips the step."""
    for_each: str | tuple[Any, ...] | None = None
    """`${step.output}` that is a list, or the items themselves; only with an id that ends with `*`."""
    inputs: dict[str, Any] = Field(default_factory=dict)
    """Values; text may hold references such as `${collect.sources}`."""
    outputs: dict[str, str] = Field(default_factory=dict)
    """Name -> where from: `stdout`, `json` (of stdout), `file:<path>`, `json:<path>`, or a result of the action."""
    preconditions: tuple[str, ...] = ()
    expect: tuple[str, ...] = ()
    """Success criteria. An expression is checked; prose is kept for people and shown as unchecked."""
    effects: tuple[str, ...] = ()
    """Prose: what is different afterwards."""
    assumptions: tuple[str, ...] = ()
    risks: tuple[str, ...] = ()
    access: Access | None = None
    """What it does to the tree; by default that of its capability."""

    shell: ShellAction | None = None
    edit: EditAction | None = None
    git: GitAction | None = None
    http: HttpAction | None = None
    fetch: FetchAction | None = None
    search: SearchAction | None = None
    model: ModelAction | None = None
    gate: GateAction | None = None
    decision: DecisionAction | None = None
    checkpoint: CheckpointAction | None = None
    episode: EpisodeAction | None = None
    subplan: SubplanAction | None = None
    branch: BranchAction | None = None

    on_success: tuple[str, ...] = ()
    """Steps that start only if this one completes (conditional edges, beside `needs`)."""
    on_failure: OnFailure | None = None
    failure_modes: tuple[FailureMode, ...] = ()
    retry: Retry = Retry()
    timeout_s: float = Field(default=600.0, gt=0)
    """For one attempt."""
    timebox_s: float | None = Field(default=None, gt=0)
    """For all attempts together."""
    watchdog: Watchdog | None = None
    estimate_s: float = Field(default=1.0, ge=0)
    """Expected duration; decides which path is critical."""
    budget: StepBudget = StepBudget()
    compensate: Compensation | None = None
    evidence: tuple[EvidenceRule, ...] = ()
    cache: bool = True
    """A re-run of the plan takes over the result if the inputs are the same."""

    @property
    def capability(self) -> Capability:
        """How the step is done."""
        return next((found for field, found in _ACTIONS if getattr(self, field) is not None), Capability.NONE)

    @property
    def tree_access(self) -> Access:
        """What the step does to the working tree."""
        return self.access or DEFAULT_ACCESS[self.capability]


class OnPlanFailure(StrEnum):
    """What follows a failure that no step recovers from."""

    ASK = "ask"
    """Go on with what does not depend on it, then wait for a person."""
    FAIL = "fail"
    """Go on with what does not depend on it, then end as failed; files stay as they are."""
    COMPENSATE = "compensate"
    """Stop, take back all that can be taken back in reverse order, and end as failed."""


class Plan(Document):
    """A directed acyclic graph of steps."""

    id: str = Field(pattern=ID_PATTERN)
    title: str = ""
    description: str = ""
    owner: str = ""
    created_at: str = ""
    labels: tuple[str, ...] = ()
    inputs: dict[str, Any] = Field(default_factory=dict)
    """Read as `${plan.<name>}`; a request may give other values."""
    assumptions: tuple[str, ...] = ()
    risks: tuple[str, ...] = ()
    steps: tuple[Step, ...] = ()
    artifacts: tuple[ArtifactDeclaration, ...] = ()
    hypotheses: tuple[Hypothesis, ...] = ()
    memory: tuple[str, ...] = ()
    """Keys of facts that the plan reads or leaves."""
    definition_of_done: tuple[Check, ...] = ()
    """Commands that must pass after the last step; the plan is not completed without them."""
    on_failure: OnPlanFailure = OnPlanFailure.ASK
    max_parallel: int = Field(default=8, ge=1, le=100)
    budget: PlanBudget = PlanBudget()
    policy: Policy = Policy()
    seed: int = 0
    """For everything that is random in a step: `TIGHTLOOP_SEED` in a shell step."""


SubplanAction.model_rebuild(_types_namespace={"Step": Step})
BranchAction.model_rebuild(_types_namespace={"Step": Step, "Check": Check})
Step.model_rebuild()
