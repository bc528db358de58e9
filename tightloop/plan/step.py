"""A step and its contract: needs, action, outputs, failure modes and follow-ups."""

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

# Step ids become parts of child workflow ids, which become parts of git refs (`plan/child.py`).
ID_CHARACTERS = 200
ID_PATTERN = rf"^[A-Za-z0-9][A-Za-z0-9._-]{{0,{ID_CHARACTERS - 1}}}(\*)?$"
"""Pattern of a step id. One that ends with `*` is a template with one instance per item of `for_each`."""
RESERVED_IDS = frozenset({"inputs", "plan", "item", "outputs", "hypotheses", "seed", "exit_code", "status"})
"""First words of a reference that do not name a step."""


class StepKind(StrEnum):
    """Purpose of a step. Its implementation is given by the capability."""

    TOOL = "tool"
    MODEL = "model"
    DECISION = "decision"
    CHECKPOINT = "checkpoint"
    COMPENSATION = "compensation"
    """Only started to compensate another step."""
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
    """Implementation of a step; selects the runner."""

    NONE = "none"
    """Milestone without an action that others wait for."""
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
    """Project step that is not a task."""


ACTIONS = tuple(capability for capability in Capability if capability is not Capability.NONE)
"""Each is also the name of the `Step` field that holds the action."""
CHILDREN = frozenset({Capability.EPISODE, Capability.SUBPLAN, Capability.BRANCH})
"""Capabilities that start child workflows."""


class Access(StrEnum):
    """Access to the working tree. Writers run alone; readers and merging steps run together."""

    NONE = "none"
    READS = "reads"
    WRITES = "writes"
    MERGES = "merges"
    """Works in a separate worktree; its changes are merged when it ends."""

    @property
    def changes_tree(self) -> bool:
        """True if the tree may change."""
        return self in (Access.WRITES, Access.MERGES)


# A checkpoint counts as a writer: a concurrent step could change files while the tree is captured.
_WRITERS = frozenset(
    {
        Capability.SHELL, Capability.EDIT, Capability.GIT, Capability.CHECKPOINT, Capability.EPISODE,
        Capability.SUBPLAN, Capability.BRANCH,
    }
)  # fmt: skip
_READERS = frozenset({Capability.SEARCH, Capability.GATE})


class Join(StrEnum):
    """Start condition of a step with several needs."""

    ALL = "all"
    """All needs completed; a skipped need skips this step too."""
    ANY = "any"
    """Every need is settled, none failed, and at least one completed: joins exclusive paths."""
    SETTLED = "settled"
    """Every need has ended in any way: completed, skipped, failed for good, or blocked by a failed step."""


class Prose(Document):
    """Unchecked condition, kept for people and reported as unchecked."""

    prose: str
    """Condition in prose."""


class EvidenceRule(Document):
    """Evidence for or against a hypothesis from the end of this step."""

    hypothesis: str
    """Id of the hypothesis."""
    when: str = ""
    """Expression; empty: the step completed."""
    verdict: str = Field(default="supports", pattern="^(supports|refutes|neutral)$")
    """Direction in which it changes the odds."""
    strength: str = Field(default="moderate", pattern="^(weak|moderate|strong)$")
    """Weight of the evidence: a factor of 1.5, 3 or 10."""
    note: str = ""
    """Explanation for readers."""


class StepBudget(Document):
    """Budget of one step, within that of the plan."""

    max_cost_usd: float | None = Field(default=None, ge=0)
    """Total cost over all attempts."""
    max_tokens: int | None = Field(default=None, ge=0)
    """Total tokens over all attempts."""


class SubplanAction(Document):
    """Nested plan: a child workflow on the same tree."""

    steps: "tuple[Step, ...]" = ()
    """Steps of the nested plan; use either this or `file`."""
    file: str = ""
    """Path of a plan file from the root of the tree, regardless of the outer plan's location; instead of `steps`."""
    inputs: dict[str, Any] = Field(default_factory=dict)
    """Inputs, read as `${plan.<name>}` inside; a file accepts only inputs that it declares."""
    max_parallel: int = Field(default=4, ge=1, le=100)
    """Maximum number of steps running at the same time."""


class Alternative(Document):
    """One alternative of a branch."""

    name: str
    """Name, unique among the alternatives."""
    note: str = ""
    """Description for readers."""
    steps: "tuple[Step, ...]" = ()
    """Steps to run in its worktree."""


class BranchAction(Document):
    """Try alternatives in separate worktrees and keep the best one that passes the checks."""

    alternatives: tuple[Alternative, ...] = ()
    """Alternatives; at least two."""
    checks: tuple[Check, ...] = ()
    """Checks that every candidate must pass."""
    score: str = ""
    """Shell command that prints a number; higher is better. Empty: the smallest change wins."""
    max_cost_usd: float | None = Field(default=None, ge=0)
    """Cost limit for all alternatives together."""


class ProjectAction(Document):
    """Project step that is not a task: inspection, decomposition, gates. Written by `tightloop loop`."""

    stage: str = Field(default="inspect", pattern="^(inspect|decompose|dispatch|verify|find_gates|gate)$")
    """Stage of the project."""
    given: dict[str, Any] = Field(default_factory=dict)
    """Arguments of the stage."""


class Choice(NamedTuple):
    """Path that a decision or a gate can take."""

    path: tuple[str | int, ...]
    """Location of the field that names the targets."""
    label: str
    to: tuple[str, ...]


class InnerSteps(NamedTuple):
    """Steps of a subplan or of an alternative."""

    path: tuple[str | int, ...]
    """Location of the field that holds them."""
    title: str
    """Name of the alternative; empty for a subplan."""
    steps: "tuple[Step, ...]"


class Step(Document):
    """One unit of work with its contract. It has at most one action; without one it is a milestone."""

    id: str = Field(pattern=ID_PATTERN)
    """Unique id within its list; a trailing `*` makes it a template.

    References reserve `inputs`, `plan`, `item`, `outputs`, `hypotheses`, `seed`, `exit_code` and `status`, so they
    cannot be ids.
    """
    title: str = ""
    """Title for readers and for the models that do the work."""
    description: str = ""
    """Description for readers and for the models that do the work."""
    kind: StepKind = StepKind.TOOL
    """Purpose of the step; `policy.approve` may name it."""
    owner: str = ""
    """Responsible person, for readers."""
    labels: tuple[str, ...] = ()
    """Labels that `policy.approve` may name."""
    priority: int = 0
    """Among ready steps, a higher priority starts first."""
    needs: tuple[str, ...] = ()
    """Ids of the steps to wait for; a template `name-*` means all its instances."""
    join: Join = Join.ALL
    """Outcomes of `needs` that are sufficient to start."""
    when: str = ""
    """Expression over inputs and outputs of `needs`; if false, the step is skipped."""
    for_each: str | tuple[Any, ...] | None = None
    """`${step.output}` that is a list, or the items themselves; requires an id that ends with `*`."""
    inputs: dict[str, Any] = Field(default_factory=dict)
    """Input values; text may hold references such as `${collect.sources}`."""
    outputs: dict[str, str] = Field(default_factory=dict)
    """Output name -> source: `stdout`, `json` or `json.<field>` (of stdout), `file:<path>`, `json:<path>`, or a result.

    """
    preconditions: tuple[str | Prose, ...] = ()
    """Expressions that must hold before the action, or `prose:`."""
    expect: tuple[str | Prose, ...] = ()
    """Success criteria: expressions that must hold afterwards, or `prose:`."""
    effects: tuple[str, ...] = ()
    """Effects in prose."""
    assumptions: tuple[str, ...] = ()
    """Assumptions in prose."""
    risks: tuple[str, ...] = ()
    """Risks in prose."""
    access: Access | None = None
    """Access to the tree; default: that of the capability."""

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
    """Steps that start only if this one completes (conditional edges, in addition to `needs`)."""
    on_failure: OnFailure | None = None
    failure_modes: tuple[FailureMode, ...] = ()
    # model_construct here and below: an instance would build pydantic's validator while modules are imported.
    retry: Retry = Retry.model_construct()
    # `validation/step.py` keeps it finite: `timedelta` and Temporal have no infinite durations.
    timeout_s: float = Field(default=600.0, gt=0)
    """Time limit of one attempt, in seconds."""
    timebox_s: float | None = Field(default=None, gt=0)
    """Time limit of all attempts together, in seconds."""
    watchdog: Watchdog | None = None
    estimate_s: float = Field(default=1.0, ge=0)
    """Expected duration in seconds; determines the critical path."""
    budget: StepBudget = StepBudget.model_construct()
    compensate: Compensation | None = None
    evidence: tuple[EvidenceRule, ...] = ()
    cache: bool = True
    """Let a re-run of the plan reuse the result if the inputs are unchanged."""

    @property
    def capability(self) -> Capability:
        """Implementation of the step."""
        return next((action for action in ACTIONS if getattr(self, action.value) is not None), Capability.NONE)

    @property
    def tree_access(self) -> Access:
        """Access to the working tree, explicit or by capability."""
        if self.access is not None:
            return self.access
        if self.episode is not None and self.episode.worktree:
            return Access.MERGES
        capability = self.capability
        if capability in _WRITERS:
            return Access.WRITES
        return Access.READS if capability in _READERS else Access.NONE

    def inner(self) -> Iterator[InnerSteps]:
        """Yield the lists of nested steps."""
        if self.subplan and self.subplan.steps:
            yield InnerSteps(("subplan", "steps"), "", self.subplan.steps)
        for number, alternative in enumerate(self.branch.alternatives if self.branch else ()):
            yield InnerSteps(("branch", "alternatives", number, "steps"), alternative.name, alternative.steps)

    def choices(self) -> Iterator[Choice]:
        """Yield the paths that a decision or a gate chooses from."""
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
    """Yield steps and all steps nested in them, depth first."""
    for step in steps:
        yield step
        for nested in step.inner():
            yield from walk(nested.steps)


# The forward references can be resolved only here; `normalize` reads the types of all fields.
SubplanAction.model_rebuild()
Alternative.model_rebuild()
BranchAction.model_rebuild()
