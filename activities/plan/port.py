"""The ports of the plan activities: runners by capability, trees, child workflows, and who writes plans."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

from pydantic import BaseModel

from activities.artifacts.port import ArtifactStore
from activities.plan.requests import PlanScope, RevisePlanRequest, SettleRequest, StepRun
from activities.workspace.folders import root_of
from activities.workspace.port import WorkingTree
from activities.workspace.store.entry import TreeMerge
from tightloop.executor.usage import Usage
from tightloop.plan.document.plan import Plan
from tightloop.plan.document.step import Step
from tightloop.plan.request import PlanRequest
from tightloop.plan.result import Belief, EvidenceNote, StepFailure
from tightloop.question import Answer, Question
from tightloop.value.artifact import ArtifactRef

A = TypeVar("A", bound=BaseModel)


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
    answers: tuple[Answer, ...] = ()

    @property
    def root(self) -> Path:
        """Top folder of the working tree."""
        return root_of(self.scope)

    def action(self, kind: type[A]) -> A:
        """Return what the step does, as the model of its capability."""
        action = getattr(self.step, self.step.capability.value)
        assert isinstance(action, kind)
        return action


@dataclass(frozen=True, kw_only=True)
class RunnerResult:
    """What a runner did."""

    outputs: dict[str, Any] = field(default_factory=dict)
    """By the action's own result names: `stdout`, `exit_code`, `documents`, `hits` ..."""
    artifacts: dict[str, ArtifactRef] = field(default_factory=dict)
    command: str = ""
    failure: StepFailure | None = None
    chosen: tuple[str, ...] | None = None
    question: Question | None = None
    """A person has to answer; the step is run again with the answer in `Work.answers`."""
    evidence: tuple[EvidenceNote, ...] = ()
    usage: Usage | None = None
    api_calls: int = 0
    summary: str = ""
    said: str = ""
    """The end of what it printed besides its results; shown where a criterion does not hold."""
    tree: str = ""
    """The tree that it took over from a child workflow; empty: what is on disk."""


class Runner(Protocol):
    """Does the steps of one capability. Blocking; called in an activity's thread."""

    def preview(self, work: Work) -> str:
        """Return what `run` would do, in words or as a diff. Changes nothing and asks nobody."""
        ...

    def run(self, work: Work) -> RunnerResult:
        """Do the step.

        A step that fails is a `RunnerResult` with a failure. Only a worker's own trouble is raised: it is tried again
        unchanged.
        """
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
    """Compares and combines trees without touching files; `store` is the `store_folder` of their scope."""

    def changed(self, store: Path, before: str, after: str) -> tuple[str, ...]:
        """Return the paths that differ, sorted; bytes that are not UTF-8 as escapes."""
        ...

    def patch(self, store: Path, before: str, after: str) -> bytes:
        """Return the unified diff, cut at 2 MB."""
        ...

    def undo(self, store: Path, before: str, after: str, current: str) -> Undone:
        """Take the change from `before` to `after` out of `current`, exactly and by path. No file is touched."""
        ...

    def merge(self, store: Path, base: str, ours: str, theirs: str, *, markers: bool = False) -> TreeMerge:
        """Merge what `theirs` changed since `base` into `ours`. No file is touched.

        With `markers` conflicts are written into the files, and there is a tree in any case.
        """
        ...


class Children(Protocol):
    """Prepares the child workflows of `episode`, `subplan` and `branch` steps, and judges their results."""

    def prepare(self, work: Work) -> StepRun:
        """Return what is to be started. `work.tree` is None: the children hold the tree themselves."""
        ...

    def preview(self, work: Work) -> str:
        """Return what would be started, in words."""
        ...

    def settle(self, work: Work, request: SettleRequest) -> RunnerResult:
        """Read the results of the children; of a branch, take the best alternative over into `work.tree`."""
        ...

    def tidy(self, scope: PlanScope) -> None:
        """Remove what children left that were never settled; the plan has ended. Idempotent."""
        ...


@dataclass(frozen=True, kw_only=True)
class WrittenPlan:
    """What a model wrote, and what that cost."""

    text: str = ""
    """A plan that may run, within its bounds; empty: none was made."""
    problem: str = ""
    """Why none was made."""
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
            InvalidRequestError: the flag is off, or the worker has no model; the message says what to set.
            PlannerUnavailableError: the model is busy or down. Retryable.
        """
        ...

    def revise(self, request: RevisePlanRequest, plan: Plan) -> WrittenPlan:
        """Write the next revision. Raises as `write` does."""
        ...
