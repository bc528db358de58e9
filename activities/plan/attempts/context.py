"""What an attempt of a step works with."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path

from activities.artifacts.port import ArtifactStore, ArtifactStores
from activities.plan.attempts.references import References
from activities.plan.plan_cache import LoadedPlan, PlanCache
from activities.plan.port import Trees, Work
from activities.plan.records.file_records import FileRecords, open_file_records
from activities.plan.requests import RunStepRequest
from activities.workspace.port import Workspaces
from activities.workspace.trail import Differ
from tightloop.plan.document.step import Step
from tightloop.plan.language.reference import resolve
from tightloop.safety.drift import Drift


@dataclass(frozen=True, kw_only=True)
class AttemptPorts:
    """What attempts are made of."""

    workspaces: Workspaces
    stores: ArtifactStores
    trees: Trees
    differ: Differ

    @cached_property
    def plans(self) -> PlanCache:
        """The stored plans, parsed once."""
        return PlanCache(self.stores)


@dataclass(frozen=True, kw_only=True)
class ActivityRun:
    """The activity that an attempt runs in."""

    run: str
    """Workflow run; an activity that is tried again has the same."""
    cancelled: Callable[[], bool] = lambda: False
    """It is to stop, also where its worker ends."""
    is_unwanted: Callable[[], bool] = lambda: False
    """The workflow has cancelled it, and waits for its result."""


@dataclass(kw_only=True)
class AttemptContext:
    """One attempt of one step, and what is known of it so far."""

    request: RunStepRequest
    call: ActivityRun
    loaded: LoadedPlan
    step: Step
    lookup: References
    store: ArtifactStore
    records: FileRecords
    started: datetime
    inputs_sha256: str = ""
    before: str = ""
    drift: Drift | None = None

    @classmethod
    def begin(
        cls, ports: AttemptPorts, request: RunStepRequest, call: ActivityRun, loaded: LoadedPlan
    ) -> "AttemptContext":
        """Return an attempt of the request's step that begins now."""
        workspace, step = Path(request.scope.workspace), loaded.step(request.step, request.template)
        store, records = ports.stores(workspace), open_file_records(workspace)
        return cls(
            request=request,
            call=call,
            loaded=loaded,
            step=step,
            lookup=References(loaded=loaded, step=step, request=request, store=store, records=records),
            store=store,
            records=records,
            started=datetime.now(UTC),
        )

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
            answers=self.request.answers,
        )
