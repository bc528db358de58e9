"""Choosing the planner that an episode asked for."""

from activities.model.service import ModelService
from activities.planning.heuristic import HeuristicPlanner
from activities.planning.port import Planner, Planners
from tightloop.errors import PlannerError

KINDS = ("auto", "openai", "heuristic")


def planners(service: ModelService) -> Planners:
    """Return the chooser: `auto` is the model where it is configured, otherwise the rules."""
    made: dict[str, Planner] = {}

    def choose(kind: str) -> Planner:
        if kind not in KINDS:
            raise PlannerError(f"there is no planner '{kind}'; choose one of: {', '.join(KINDS)}")
        if kind == "auto":
            kind = "openai" if service.configured else "heuristic"
        if kind == "openai" and not service.configured:
            raise PlannerError(
                "planner 'openai' has no key: set OPENAI_API_KEY, or the base URL of an own service, or use 'heuristic'"
            )
        if kind not in made:
            made[kind] = _openai(service) if kind == "openai" else HeuristicPlanner()
        return made[kind]

    return choose


def _openai(service: ModelService) -> Planner:
    # The SDK takes most of a second to import: workers without a key never pay for it.
    from activities.planning.openai import OpenAIPlanner

    return OpenAIPlanner(service)
