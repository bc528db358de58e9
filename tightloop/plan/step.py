"""A step with its contract: what it needs, what it does, what it leaves, how it may fail, and what follows then."""

from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import Any, NamedTuple

from pydantic import Field

from tightloop.episode.check import Check
from tightloop.plan.action import (
    CheckpointAction,
    DecisionAction,
    EditAction,
    EpisodeAction,
    GateAction,
    GitAction,
    HttpAction,
    ModelAction,
    SearchAction,
    ShellAction,
)
from tightloop.plan.failing import Compensation, FailureMode, OnFailure, Retry, Watchdog
from tightloop.value import Document

# Ids become parts of the ids of child workflows, and those become parts of git refs (`plan/child.py`).
ID_CHARACTERS = 200
ID_PATTERN = rf"^[A-Za-z0-9][A-Za-z0-9._-]{{0,{ID_CHARACTERS - 1}}}(\*)?$"
"""A step id; one that ends with `*` is a template for as many steps as `for_each` has items."""
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
    SEARCH = "search"
    MODEL = "model"
    GATE = "gate"
    DECISION = "decision"
    CHECKPOINT = "checkpoint"
    EPISODE = "episode"
    SUBPLAN = "subplan"
    BRANCH = "branch"
    PROJECT = "project"
    """Steps of a project's plan that are no tasks."""


ACTIONS = tuple(capability for capability in Capability if capability is not Capability.NONE)
"""Each is also the name of the field of `Step` that holds the action."""
CHILDREN = frozenset({Capability.EPISODE, Capability.SUBPLAN, Capability.BRANCH})
"""These start workflows."""


class Access(StrEnum):
    """What a step does to the working tree; writers run alone, readers and those that merge together."""

    NONE = "none"
    READS = "reads"
    WRITES = "writes"
    MERGES = "merges"
    """It works in a worktree of its own, and its changes are merged into the tree when it ends."""

    @property
    def changes_tree(self) -> bool:
        """Whether the tree may be another one after it."""
        return self in (Access.WRITES, Access.MERGES)


# A checkpoint writes: a step that ran beside it could change files while its tree is taken.
_WRITERS = frozenset(
    {
        Capability.SHELL, Capability.EDIT, Capability.GIT, Capability.CHECKPOINT, Capability.EPISODE,
        Capability.SUBPLAN, Capability.BRANCH,
    }
)  # fmt: skip
_READERS = frozenset({Capability.SEARCH, Capability.GATE})


class Join(StrEnum):
    """When a step with several needs may start."""

    ALL = "all"
    """All needs completed; one that was skipped skips this step too."""
    ANY = "any"
    """Every need is settled, none failed, and at least one completed: the meeting point of exclusive paths."""
    SETTLED = "settled"
    """Every need has ended, however: completed, skipped, failed for good, or blocked by a failed one."""


class Prose(Document):
    """A condition that nothing checks: it is kept for people, and the result says that it is unchecked."""

    prose: str
    """The sentence."""


class EvidenceRule(Document):
    """What the end of this step says about a hypothesis."""

    hypothesis: str
    """Its id."""
    when: str = ""
    """Expression; empty: the step completed."""
    verdict: str = Field(default="supports", pattern="^(supports|refutes|neutral)$")
    """Which way it changes the odds."""
    strength: str = Field(default="moderate", pattern="^(weak|moderate|strong)$")
    """By how much: a factor of 1.5, 3 or 10."""
    note: str = ""
    """For readers."""


class StepBudget(Document):
    """What one step may spend; must fit into the plan's."""

    max_cost_usd: float | None = Field(default=None, ge=0)
    """Of all attempts."""
    max_tokens: int | None = Field(default=None, ge=0)
    """Of all attempts."""


class SubplanAction(Document):
    """A plan within the step: a child workflow on the same tree."""

    steps: "tuple[Step, ...]" = ()
    """The steps, instead of `file`."""
    file: str = ""
    """Path of a plan file from the root of the tree, wherever the outer plan's file lies; instead of `steps`."""
    inputs: dict[str, Any] = Field(default_factory=dict)
    """Read as `${plan.<name>}` within; a file may have only inputs that it declares."""
    max_parallel: int = Field(default=4, ge=1, le=100)
    """Steps at the same time."""


class Alternative(Document):
    """One of the ways to be tried."""

    name: str
    """Unique among the alternatives."""
    note: str = ""
    """For readers."""
    steps: "tuple[Step, ...]" = ()
    """What is done in its worktree."""


class BranchAction(Document):
    """Tries alternatives, each in a worktree of its own; the best one that passes the checks is taken over."""

    alternatives: tuple[Alternative, ...] = ()
    """At least two."""
    checks: tuple[Check, ...] = ()
    """An alternative that fails one is out."""
    score: str = ""
    """Shell command that prints a number; higher is better. Empty: the smallest change wins."""
    max_cost_usd: float | None = Field(default=None, ge=0)
    """Of all alternatives together."""


class ProjectAction(Document):
    """A step of a project's plan that is no task: inspection, decomposition, gates. `tightloop loop` writes it."""

    stage: str = Field(default="inspect", pattern="^(inspect|decompose|dispatch|verify|find_gates|gate)$")
    """Name of the work."""
    given: dict[str, Any] = Field(default_factory=dict)
    """Its arguments."""


class Choice(NamedTuple):
    """A way that a decision or a gate can take."""

    path: tuple[str | int, ...]
    """Field of the step that names the targets."""
    label: str
    to: tuple[str, ...]


class InnerSteps(NamedTuple):
    """The steps of a subplan or of an alternative."""

    path: tuple[str | int, ...]
    """Field of the step that holds them."""
    title: str
    """Name of the alternative."""
    steps: "tuple[Step, ...]"


class Step(Document):
    """One unit of work with its contract. It has at most one action; without one it is a milestone."""

    id: str = Field(pattern=ID_PATTERN)
    """Unique in its list; with `*` at the end a template. None of `inputs`, `plan`, `item`, `outputs`, `hypotheses`,
    `seed`, `exit_code`, `status`: in references these mean something else."""
    title: str = ""
    """For readers, and for models that do it."""
    description: str = ""
    """For readers, and for models that do it."""
    kind: StepKind = StepKind.TOOL
    """What it is for; `policy.approve` may name it."""
    owner: str = ""
    """Who answers for it; for readers."""
    labels: tuple[str, ...] = ()
    """Words that `policy.approve` may name."""
    priority: int = 0
    """Higher starts earlier among those that are ready."""
    needs: tuple[str, ...] = ()
    """Ids; a template `name-*` stands for all steps it became."""
    join: Join = Join.ALL
    """What of `needs` is enough."""
    when: str = ""
    """Expression over inputs and outputs of `needs`; false skips the step."""
    for_each: str | tuple[Any, ...] | None = None
    """`${step.output}` that is a list, or the items themselves; only with an id that ends with `*`."""
    inputs: dict[str, Any] = Field(default_factory=dict)
    """Values; text may hold references such as `${collect.sources}`."""
    outputs: dict[str, str] = Field(default_factory=dict)
    """Name -> where from: `stdout`, `json` (of stdout; `json.<field>` within it), `file:<path>`, `json:<path>`, or a
    result of the action."""
    preconditions: tuple[str | Prose, ...] = ()
    """Expressions that must hold before it acts, or `prose:`."""
    expect: tuple[str | Prose, ...] = ()
    """Success criteria: expressions that must hold afterwards, or `prose:`."""
    effects: tuple[str, ...] = ()
    """Prose: what is different afterwards."""
    assumptions: tuple[str, ...] = ()
    """Prose: what it takes for granted."""
    risks: tuple[str, ...] = ()
    """Prose: what may go wrong."""
    access: Access | None = None
    """What it does to the tree; by default that of its capability."""

    shell: ShellAction | None = None
    edit: EditAction | None = None
    git: GitAction | None = None
    http: HttpAction | None = None
    search: SearchAction | None = None
    model: ModelAction | None = None
    gate: GateAction | None = None
    decision: DecisionAction | None = None
    checkpoint: CheckpointAction | None = None
    episode: EpisodeAction | None = None
    subplan: SubplanAction | None = None
    branch: BranchAction | None = None
    project: ProjectAction | None = None

    on_success: tuple[str, ...] = ()
    """Steps that start only if this one completes (conditional edges, beside `needs`)."""
    on_failure: OnFailure | None = None
    failure_modes: tuple[FailureMode, ...] = ()
    retry: Retry = Retry.model_construct()
    # Finite by `validation/step.py`: `timedelta` and Temporal have no endless durations.
    timeout_s: float = Field(default=600.0, gt=0)
    """For one attempt."""
    timebox_s: float | None = Field(default=None, gt=0)
    """For all attempts together."""
    watchdog: Watchdog | None = None
    estimate_s: float = Field(default=1.0, ge=0)
    """Expected duration; decides which path is critical."""
    budget: StepBudget = StepBudget.model_construct()
    compensate: Compensation | None = None
    evidence: tuple[EvidenceRule, ...] = ()
    cache: bool = True
    """A re-run of the plan takes over the result if the inputs are the same."""

    @property
    def capability(self) -> Capability:
        """How the step is done."""
        return next((found for found in ACTIONS if getattr(self, found.value) is not None), Capability.NONE)

    @property
    def tree_access(self) -> Access:
        """What the step does to the working tree."""
        if self.access is not None:
            return self.access
        if self.episode is not None and self.episode.worktree:
            return Access.MERGES
        capability = self.capability
        if capability in _WRITERS:
            return Access.WRITES
        return Access.READS if capability in _READERS else Access.NONE

    def inner(self) -> Iterator[InnerSteps]:
        """Yield the lists of steps that run within this one."""
        if self.subplan and self.subplan.steps:
            yield InnerSteps(("subplan", "steps"), "", self.subplan.steps)
        for number, alternative in enumerate(self.branch.alternatives if self.branch else ()):
            yield InnerSteps(("branch", "alternatives", number, "steps"), alternative.name, alternative.steps)

    def choices(self) -> Iterator[Choice]:
        """Yield the ways that a decision or a gate chooses from."""
        decision, approval = self.decision, self.gate.approval if self.gate else None
        if decision:
            for number, rule in enumerate(decision.rules):
                yield Choice(("decision", "rules", number, "to"), rule.note or rule.when, rule.to)
            yield Choice(("decision", "otherwise"), "otherwise", decision.otherwise)
            for name, targets in decision.hypotheses.items():
                yield Choice(("decision", "hypotheses", name), name, targets)
            for number, option in enumerate(decision.options):
                yield Choice(("decision", "options", number, "to"), option.name, option.to)
        for number, option in enumerate(approval.options if approval else ()):
            yield Choice(("gate", "approval", "options", number, "to"), option.name, option.to)


def walk(steps: Iterable[Step]) -> Iterator[Step]:
    """Yield steps and all steps within them."""
    for step in steps:
        yield step
        for within in step.inner():
            yield from walk(within.steps)


# Their steps are known only now; `normalize` reads the types of all fields.
SubplanAction.model_rebuild()
Alternative.model_rebuild()
BranchAction.model_rebuild()
