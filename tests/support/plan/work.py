"""Work as the plan activities hand it to a runner, for tests of single runners."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from activities.artifacts.stores import open_local_store
from activities.plan.port import Work
from activities.plan.requests import PlanScope
from tightloop.errors import ReferenceMissingError
from tightloop.plan.document.plan import Plan
from tightloop.plan.document.step import Step
from tightloop.plan.language.reference import resolve


def work_for(
    workspace: Path,
    step: dict[str, Any],
    *,
    plan: dict[str, Any] | None = None,
    values: dict[str, Any] | None = None,
    **changes: Any,
) -> Work:
    """Return the work of a step; `values` are what references read."""
    known = values or {}

    def lookup(name: str) -> Any:
        if name not in known:
            raise ReferenceMissingError(f"${{{name}}} has no value")
        return known[name]

    resolved: Callable[[Any], Any] = lambda value: resolve(value, lookup)  # noqa: E731
    one = Step.model_validate({"id": "one", **step})
    return Work(
        scope=PlanScope(episode_id="plan-0123456789ab", workspace=str(workspace)),
        plan=Plan.model_validate({"id": "p", **(plan or {}), "steps": (one,)}),
        step=one,
        attempt=1,
        inputs=resolved(one.inputs),
        resolve=resolved,
        lookup=lookup,
        store=open_local_store(workspace),
        **changes,
    )
