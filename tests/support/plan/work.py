"""Work as the plan activities hand it to a runner, for tests of single runners."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from activities.artifacts.stores import open_local_store
from activities.plan.outputs import References
from activities.plan.port import Work
from activities.plan.records import LoadedPlan, open_file_records
from activities.plan.requests import PlanScope, RunStepRequest
from tightloop.errors import ReferenceMissingError
from tightloop.plan.document import Plan, StoredPlan
from tightloop.plan.reference import resolve
from tightloop.plan.step import Step


@dataclass(kw_only=True)
class _Given(References):
    values: Mapping[str, Any]

    def __call__(self, name: str) -> Any:
        if name not in self.values:
            raise ReferenceMissingError(f"${{{name}}} has no value")
        return self.values[name]


def work_for(
    workspace: Path,
    step: dict[str, Any],
    *,
    plan: dict[str, Any] | None = None,
    values: dict[str, Any] | None = None,
    base_tree: str = "",
    **changes: Any,
) -> Work:
    """Return the work of a step; `values` are what references read."""
    one = Step.model_validate({"id": "one", **step})
    scope = PlanScope(episode_id="plan-0123456789ab", workspace=str(workspace), base_tree=base_tree)
    asked = {name: changes.pop(name) for name in set(changes) & set(RunStepRequest.model_fields)}
    request = RunStepRequest(scope=scope, step="one", **asked)
    stored = StoredPlan(
        plan_id=scope.episode_id, plan=Plan.model_validate({"id": "p", **(plan or {}), "steps": (one,)})
    )
    loaded, store, records = LoadedPlan(stored), open_local_store(workspace), open_file_records(workspace)
    lookup = _Given(loaded=loaded, step=one, request=request, store=store, records=records, values=values or {})
    lookup.inputs = resolve(one.inputs, lookup)
    given: dict[str, Any] = {"cancelled": lambda: False, **changes}
    return Work(
        request=request,
        run="run",
        loaded=loaded,
        step=one,
        lookup=lookup,
        store=store,
        records=records,
        started_at=datetime.now(UTC),
        **given,
    )
