"""A step and its contract: needs, action, outputs, failure modes and follow-up steps."""

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
"""Pattern of a step ID. If the ID ends with `*`, the step is a template with one instance per item of `for_each`."""
RESERVED_IDS = frozenset({"inputs", "plan", "item", "outputs", "hypotheses", "seed", "exit_code", "status"})
"""Words that do not name a step when they are the first word of a reference."""


class StepKind(StrEnum):
    """The purpose of a step. The implementation depends on the capability."""

    TOOL = "tool"
    MODEL = "model"
    DECISION = "decision"
    CHECKPOINT = "checkpoint"
    COMPENSATION = "compensation"
    """Step that is only started to compensate another step."""
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


WORK_KINDS = frozenset(
    {
        StepKind.RESEARCH, StepKind.ANALYZE, StepKind.SYNTHESIZE, StepKind.IMPLEMENT, StepKind.VALIDATE,
        StepKind.DEBUG, StepKind.REFACTOR, StepKind.DEPLOY,
    }
)  # fmt: skip
"""Kinds that describe work, which needs an action."""


class Capability(StrEnum):
    """Implementation of a step. The capability determines the runner."""

    NONE = "none"
    """Milestone without an action. Other steps can wait for it."""
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
    """Step of a project that is not a task."""


ACTIONS = tuple(capability for capability in Capability if capability is not Capability.NONE)
"""Capabilities that have an action. Each one is also the name of the `Step` field that contains the action."""
CHILDREN = frozenset({Capability.EPISODE, Capability.SUBPLAN, Capability.BRANCH})
"""Capabilities that start child workflows."""


class Access(StrEnum):
    """Access to the working tree. Steps that write run alone. Steps that read or merge can run together."""

    NONE = "none"
    READS = "reads"
    WRITES = "writes"
    MERGES = "merges"
    """The step works in a separate worktree. Its changes are merged when it ends."""

    @property
    def changes_tree(self) -> bool:
        """True if the step may change the tree."""
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
    """Condition for starting a step that has several dependencies."""

    ALL = "all"
    """Start if all needs have completed. If a need is skipped, this step is skipped too."""
    ANY = "any"
    """Start if all needs are settled, none of them has failed and at least one has completed. Use it to join exclusive
    paths.
    """
    ENDED = "ended"
    """Start if all needs have ended in any way: completed, skipped, failed without further retries, or blocked by a
    failed step.
    """


class Prose(Document):
    """A condition under `prose:`, which is for people.

    It is not checked, and reports list it as unchecked.
    """

    prose: str
    """The condition, written as prose."""


class EvidenceRule(Document):
    """A rule for recording evidence about a hypothesis when this step ends."""

    hypothesis: str
    """ID of the hypothesis."""
    when: str = ""
    """Expression that decides whether the rule applies. If empty, the rule applies if the step completes."""
    verdict: str = Field(default="supports", pattern="^(supports|refutes|neutral)$")
    """Effect of the evidence: it supports or refutes the hypothesis, or is neutral."""
    strength: str = Field(default="moderate", pattern="^(weak|moderate|strong)$")
    """Strength of the evidence. `weak`, `moderate` and `strong` change the odds by a factor of 1.5, 3 and 10."""
    note: str = ""
    """Explanation. For information only."""


class StepBudget(Document):
    """Budget of a single step. The budget of the plan applies as well."""

    max_cost_usd: float | None = Field(default=None, ge=0)
    """Maximum cost of all attempts in USD."""
    max_tokens: int | None = Field(default=None, ge=0)
    """Maximum number of tokens for all attempts."""


class SubplanAction(Document):
    """Nested plan, which runs as a child workflow on the same tree."""

    steps: "tuple[Step, ...]" = ()
    """Steps of the nested plan. Set either this or `file`."""
    file: str = ""
    """Path of a plan file, relative to the root of the tree, regardless of where the outer plan is located. Set either
    this or `steps`.
    """
    inputs: dict[str, Any] = Field(default_factory=dict)
    """Inputs, which the nested plan reads as `${plan.<name>}`. A plan file only accepts the inputs that it declares."""
    max_parallel: int = Field(default=4, ge=1, le=100)
    """Maximum number of steps that run at the same time."""


class Alternative(Document):
    """One alternative of a branch."""

    name: str
    """Name of the alternative. It must be unique."""
    note: str = ""
    """Description. For information only."""
    steps: "tuple[Step, ...]" = ()
    """Steps to run in the alternative's worktree."""


class BranchAction(Document):
    """Try several alternatives in separate worktrees, and keep the best one that passes the checks."""

    alternatives: tuple[Alternative, ...] = ()
    """Alternatives to try. At least two are required."""
    checks: tuple[Check, ...] = ()
    """Checks that every alternative must pass."""
    score: str = ""
    """Shell command that prints a number. The alternative with the highest number wins. If empty, the smallest change
    wins.
    """
    max_cost_usd: float | None = Field(default=None, ge=0)
    """Maximum cost of all alternatives together, in USD."""


class ProjectAction(Document):
    """Step of a project that is not a task, such as an inspection, a decomposition or a gate.

    `tightloop loop` creates these steps.
    """

    stage: str = Field(default="inspect", pattern="^(inspect|decompose|dispatch|verify|find_gates|gate)$")
    """Stage of the project."""
    given: dict[str, Any] = Field(default_factory=dict)
    """Arguments for the stage."""


class Choice(NamedTuple):
    """A path that a decision or a gate can select."""

    path: tuple[str | int, ...]
    """Location of the field that lists the steps to start."""
    label: str
    to: tuple[str, ...]


class InnerSteps(NamedTuple):
    """Steps of a subplan or of an alternative."""

    path: tuple[str | int, ...]
    """Location of the field that contains the steps."""
    title: str
    """Name of the alternative, or empty for a subplan."""
    steps: "tuple[Step, ...]"


class Step(Document):
    """Unit of work with at most one action. A step without an action is a milestone."""

    id: str = Field(pattern=ID_PATTERN)
    """ID of the step. It must be unique within its list. If it ends with `*`, the step is a template. The words
    `inputs`, `plan`, `item`, `outputs`, `hypotheses`, `seed`, `exit_code` and `status` are reserved for references and
    cannot be IDs.
    """
    title: str = ""
    """Title for readers and for the models that do the work."""
    description: str = ""
    """Description for readers and for the models that do the work."""
    kind: StepKind = StepKind.TOOL
    """Purpose of the step. `policy.approve` can refer to it."""
    owner: str = ""
    """Person who is responsible. For information only."""
    labels: tuple[str, ...] = ()
    """Labels. `policy.approve` can refer to them."""
    priority: int = 0
    """Priority. If several steps are ready, the one with the highest priority starts first."""
    needs: tuple[str, ...] = ()
    """IDs of the steps to wait for. A template `name-*` stands for all of its instances."""
    join: Join = Join.ALL
    """Outcomes of the `needs` steps that are required for this step to start."""
    when: str = ""
    """Expression over the inputs and the outputs of the `needs` steps. If it is false, the step is skipped."""
    for_each: str | tuple[Any, ...] | None = None
    """Reference `${step.output}` to a list, or the items themselves. The ID of the step must end with `*`."""
    inputs: dict[str, Any] = Field(default_factory=dict)
    """Input values. Texts may contain references such as `${collect.sources}`."""
    outputs: dict[str, str] = Field(default_factory=dict)
    """Mapping of output names to sources. A source is `stdout`, `json` or `json.<field>` (stdout parsed as JSON),
    `file:<path>`, `json:<path>`, or the name of a result.
    """
    preconditions: tuple[str | Prose, ...] = ()
    """Conditions that must be true before the action: expressions, or `prose:`."""
    expect: tuple[str | Prose, ...] = ()
    """Conditions that must be true after the action for the step to succeed: expressions, or `prose:`."""
    effects: tuple[str, ...] = ()
    """Effects, written as prose."""
    assumptions: tuple[str, ...] = ()
    """Assumptions, written as prose."""
    risks: tuple[str, ...] = ()
    """Risks, written as prose."""
    access: Access | None = None
    """Access to the tree. The default depends on the action."""

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
    """Steps that only start if this step completes. These are conditional edges, in addition to `needs`."""
    on_failure: OnFailure | None = None
    failure_modes: tuple[FailureMode, ...] = ()
    # model_construct here and below: an instance would build pydantic's validator while modules are imported.
    retry: Retry = Retry.model_construct()
    # `validation/step.py` keeps it finite: `timedelta` and Temporal have no infinite durations.
    timeout_s: float = Field(default=600.0, gt=0)
    """Time limit for one attempt, in seconds."""
    timebox_s: float | None = Field(default=None, gt=0)
    """Time limit for all attempts together, in seconds."""
    watchdog: Watchdog | None = None
    estimate_s: float = Field(default=1.0, ge=0)
    """Expected duration in seconds. It is used to determine the critical path."""
    budget: StepBudget = StepBudget.model_construct()
    compensate: Compensation | None = None
    evidence: tuple[EvidenceRule, ...] = ()
    cache: bool = True
    """Let a later run of the plan reuse the result if the inputs have not changed."""

    @property
    def capability(self) -> Capability:
        """Implementation of the step."""
        return next((action for action in ACTIONS if getattr(self, action.value) is not None), Capability.NONE)

    @property
    def tree_access(self) -> Access:
        """Access to the working tree. The default depends on the action."""
        if self.access is not None:
            return self.access
        if self.episode is not None and self.episode.worktree:
            return Access.MERGES
        capability = self.capability
        if capability in _WRITERS:
            return Access.WRITES
        return Access.READS if capability in _READERS else Access.NONE

    def inner(self) -> Iterator[InnerSteps]:
        """Yield the lists of steps that are nested in this step."""
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
    """Yield all steps, including nested steps, depth first."""
    for step in steps:
        yield step
        for nested in step.inner():
            yield from walk(nested.steps)


# The forward references can be resolved only here; `normalize` reads the types of all fields.
SubplanAction.model_rebuild()
Alternative.model_rebuild()
BranchAction.model_rebuild()
