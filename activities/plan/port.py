"""The ports of the plan activities: runners by capability, and the records of what was done."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol, TypeVar

from pydantic import BaseModel

from activities.artifacts.port import ArtifactStore
from activities.plan.requests import PlanScope, RevisePlanRequest, SettleRequest, StepRun
from activities.workspace.port import WorkingTree
from tightloop.artifact import ArtifactRef
from tightloop.budget import Usage
from tightloop.plan.model import Plan, Step
from tightloop.plan.request import PlanRequest
from tightloop.plan.result import Belief, EvidenceNote, GateQuestion, PersonDecision, StepFailure, StepRecord

M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True, kw_only=True)
class Work:
    """One attempt of one step, ready to be done: references resolved, policy passed."""

    scope: PlanScope
    plan: Plan
    step: Step
    """Its texts still hold references: a runner resolves them by `resolve`, quoted where it needs that."""
    attempt: int
    inputs: Mapping[str, Any]
    """Resolved."""
    resolve: Callable[[Any], Any]
    """Replaces the references in a text, list or mapping; a text that is one reference becomes its value."""
    lookup: Callable[[str], Any]
    """Returns the value of one reference, such as `collect.sources`; raises `ReferenceMissingError`."""
    store: ArtifactStore
    tree: WorkingTree | None = None
    """Held, for a step that writes."""
    expected_tree: str = ""
    """Tree that a step which reads or writes begins with; empty for others."""
    cancelled: Callable[[], bool] = field(default=lambda: False)
    started: Callable[[int], None] = field(default=lambda _pid: None)
    """To be told the pid of every program."""
    beliefs: tuple[Belief, ...] = ()
    decisions: tuple[PersonDecision, ...] = ()

    @property
    def root(self) -> Path:
        """Top folder of the working tree."""
        return self.scope.root


@dataclass(frozen=True, kw_only=True)
class Done:
    """What a runner did."""

    outputs: dict[str, Any] = field(default_factory=dict)
    """By the action's own result names: `stdout`, `exit_code`, `documents`, `hits` ..."""
    artifacts: dict[str, ArtifactRef] = field(default_factory=dict)
    command: str = ""
    failure: StepFailure | None = None
    chosen: tuple[str, ...] | None = None
    question: GateQuestion | None = None
    """A person has to answer; the step is run again with the answer in `Work.decisions`."""
    evidence: tuple[EvidenceNote, ...] = ()
    usage: Usage | None = None
    api_calls: int = 0
    summary: str = ""


class Runner(Protocol):
    """Does the steps of one capability. Blocking; called in an activity's thread."""

    def preview(self, work: Work) -> str:
        """Return what `run` would do, in words or as a diff. Changes nothing and asks nobody."""
        ...

    def run(self, work: Work) -> Done:
        """Do the step.

        A step that fails is a `Done` with a failure. Only a worker's own trouble is raised: it is tried again
        unchanged.
        """
        ...


class Records(Protocol):
    """The records of all attempts of a project's plans."""

    def put(self, record: StepRecord) -> str:
        """Store a record durably and return its sha256. An equal record is harmless."""
        ...

    def attempt(self, plan_id: str, step: str, attempt: int) -> StepRecord | None:
        """Return the record of one attempt."""
        ...

    def latest(self, plan_id: str, step: str) -> StepRecord | None:
        """Return the newest completed attempt of this run that was not undone: what references read."""
        ...

    def same(self, plan_id: str, step: str, inputs_sha256: str) -> StepRecord | None:
        """Return the newest completed attempt of any run with these inputs; None where it was undone."""
        ...

    def all(self, plan_id: str) -> tuple[StepRecord, ...]:
        """Return all records of a plan, of all its runs, in the order of their ends."""
        ...

    def of_this_run(self, plan_id: str) -> tuple[StepRecord, ...]:
        """Return the records that were made since the plan began, in the order of their ends."""
        ...

    def mark_undone(self, plan_id: str, step: str, attempt: int) -> None:
        """Note that an attempt was compensated. Idempotent."""
        ...

    def keep(self, plan_id: str, name: str, model: BaseModel) -> None:
        """Keep a small fact of a plan under a name, durably; the newest one counts."""
        ...

    def kept(self, plan_id: str, name: str, kind: type[M]) -> M | None:
        """Return what `keep` was given last."""
        ...


class ProjectRecords(Protocol):
    """The records of each workspace."""

    def __call__(self, workspace: Path) -> Records:
        """Return the records of the project in `workspace`."""
        ...


class Judgement(StrEnum):
    """What the policy says about an act."""

    ALLOW = "allow"
    ASK = "ask"
    """A person has to approve first."""
    DENY = "deny"


@dataclass(frozen=True, kw_only=True)
class Ruling:
    """The policy's answer, with the rule that gave it."""

    judgement: Judgement = Judgement.ALLOW
    reason: str = ""
    """A sentence that names the rule and what to do; empty where the act is allowed."""


class Guard(Protocol):
    """Judges acts by the policy of their plan. Pure."""

    def before(self, plan: Plan, step: Step, action: Mapping[str, Any]) -> Ruling:
        """Judge a step before it starts.

        Args:
            plan: its policy decides.
            step: as it is written.
            action: fields of its action with references replaced, in a command quoted for the shell; {} of a milestone.
        """
        ...

    def changed(self, plan: Plan, paths: tuple[str, ...]) -> Ruling:
        """Judge what a step changed; a refusal undoes it. Never ASK."""
        ...


@dataclass(frozen=True, kw_only=True)
class Undone:
    """The inverse of a change, applied to another tree."""

    tree: str = ""
    """Id of the tree; empty where there are conflicts."""
    files: int = 0
    conflicts: tuple[str, ...] = ()
    """Paths that later steps changed in the same places."""


class Trees(Protocol):
    """Compares and combines trees without touching files."""

    def changed(self, root: Path, before: str, after: str) -> tuple[str, ...]:
        """Return the paths that differ, sorted; bytes that are not UTF-8 as escapes."""
        ...

    def patch(self, root: Path, before: str, after: str) -> bytes:
        """Return the unified diff, cut at 2 MB."""
        ...

    def undo(self, root: Path, before: str, after: str, current: str) -> Undone:
        """Take the change from `before` to `after` out of `current`, exactly and by path. No file is touched."""
        ...


class Children(Protocol):
    """Prepares the child workflows of `episode`, `subplan` and `branch` steps, and judges what came of them."""

    def prepare(self, work: Work) -> StepRun:
        """Return what is to be started. `work.tree` is None: the children hold the tree themselves."""
        ...

    def preview(self, work: Work) -> str:
        """Return what would be started, in words."""
        ...

    def settle(self, work: Work, request: SettleRequest) -> Done:
        """Read the results of the children; of a branch, take the best alternative over into `work.tree`."""
        ...

    def tidy(self, scope: PlanScope) -> None:
        """Remove what children left that were never settled; the plan has ended. Idempotent."""
        ...


@dataclass(frozen=True, kw_only=True)
class WrittenPlan:
    """What a model wrote, and what that cost."""

    text: str = ""
    """A plan that may run, within its bounds; empty: there is none."""
    problem: str = ""
    """Why there is none."""
    rationale: str = ""
    model: str = ""
    usage: Usage | None = None
    calls: int = 0
    transcript: bytes = b""
    """Prompts and answers."""
    prompts_sha256: str = ""


class PlanWriter(Protocol):
    """Writes plans: a model where the flag `agent_planning` is on."""

    @property
    def available(self) -> bool:
        """Whether it may be asked."""
        ...

    def write(self, scope: PlanScope, request: PlanRequest) -> WrittenPlan:
        """Write a plan for a goal. Every call is paid.

        Raises:
            InvalidRequestError: the flag is off, or there is no model; the message says what to set.
            PlannerUnavailableError: the model is busy or down. Retryable.
        """
        ...

    def revise(self, request: RevisePlanRequest, plan: Plan) -> WrittenPlan:
        """Write the next revision. Raises as `write` does."""
        ...
