"""What a request leaves open: the one place where the settings in force fill it in."""

from collections.abc import Mapping
from typing import Any, TypeVar

from tightloop.episode.model import EpisodeRequest
from tightloop.episode.share import project_of
from tightloop.loop.model import LoopRequest
from tightloop.plan.request import PlanRequest
from tightloop.settings.document import Settings

Request = TypeVar("Request", EpisodeRequest, PlanRequest, LoopRequest)


def with_defaults(request: Request, settings: Settings) -> Request:
    """Return a request with what it leaves open as the settings say. Idempotent.

    What was given stays, also in the parts: of a budget with one bound the other bounds come from the settings.
    """
    if isinstance(request, EpisodeRequest | LoopRequest):
        given = request.model_dump(exclude_unset=True)
        known = {name: value for name, value in _defaults(settings).items() if name in type(request).model_fields}
        request = type(request).model_validate(layered(known, given))
    project = request.project_name if isinstance(request, EpisodeRequest) else project_of(request.workspace)
    queues = settings.queues.fill(request.queues, project)
    return request.evolve(queues=queues.evolve(absence_s=settings.temporal.absence_s))


def layered(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of both documents, those of `above` where both have one; mappings are merged field by field."""
    merged = dict(below)
    for name, value in above.items():
        beneath = merged.get(name)
        both = isinstance(beneath, dict) and isinstance(value, dict)
        merged[name] = {**beneath, **value} if both else value  # type: ignore[dict-item]
    return merged


def _defaults(settings: Settings) -> dict[str, Any]:
    chosen, tracking = settings.executor, settings.tracking
    return {
        "planner": settings.planner.kind,
        "executor": {
            "name": chosen.default,
            "fallback": chosen.fallback,
            "wall_limit_s": chosen.wall_limit_s,
            "idle_limit_s": chosen.idle_limit_s,
            "on_crash": chosen.on_crash,
        },
        "budget": settings.budget.as_budget().model_dump(),
        "preset": tracking.preset,
        "thresholds": tracking.as_thresholds().model_dump(),
        "repeat_error_limit": tracking.repeat_error_limit,
        "deviation_limit": tracking.deviation_limit,
    }
