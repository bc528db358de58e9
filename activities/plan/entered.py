"""An attempt that was let in, and what it is made with."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from activities.artifacts.port import ArtifactStore, ArtifactStores
from activities.plan.port import Guard, ProjectRecords, Records, Trees, Work
from activities.plan.references import References
from activities.plan.requests import RunStepRequest
from activities.plan.stored import LoadedPlan, PlanMemory
from activities.workspace.port import Workspaces
from tightloop.plan.language.reference import resolve
from tightloop.plan.model import Step


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What attempts are made of."""

    workspaces: Workspaces
    stores: ArtifactStores
    records: ProjectRecords
    trees: Trees
    guard: Guard
    plans: PlanMemory


@dataclass(frozen=True, kw_only=True)
class Call:
    """The activity that an attempt runs in."""

    run: str
    """Workflow run; an activity that is tried again has the same."""
    cancelled: Callable[[], bool] = lambda: False


@dataclass(kw_only=True)
class Attempt:
    """One attempt that has been let in: the step may be done."""

    request: RunStepRequest
    call: Call
    loaded: LoadedPlan
    step: Step
    lookup: References
    store: ArtifactStore
    records: Records
    started: datetime
    inputs_sha256: str = ""
    before: str = ""
    drift: str | None = None

    @property
    def work(self) -> Work:
        """What a runner is given."""
        return Work(
            scope=self.request.scope,
            plan=self.loaded.plan,
            step=self.step,
            attempt=self.request.attempt,
            inputs=self.lookup.inputs,
            resolve=lambda value: resolve(value, self.lookup),
            lookup=self.lookup,
            store=self.store,
            expected_tree=self.request.expected_tree,
            cancelled=self.call.cancelled,
            beliefs=self.request.beliefs,
            decisions=self.request.decisions,
        )
