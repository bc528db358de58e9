"""Chooses the planner that an episode asked for."""

from functools import cache

from activities.model.service import ModelService
from activities.planner.heuristic import HeuristicPlanner, Ruff
from activities.planner.port import Planner, Planners
from tightloop.episode.planning import planner_problem
from tightloop.errors import PlannerError


def planners(service: ModelService, ruff: Ruff) -> Planners:
    """Return the chooser: `auto` is the model where it is configured, otherwise the rules."""

    @cache
    def by_model() -> Planner:
        # The SDK takes most of a second to import: workers without a key never pay for it.
        from activities.planner.openai import OpenAIPlanner

        return OpenAIPlanner(service)

    def choose(kind: str) -> Planner:
        if problem := planner_problem(kind):
            raise PlannerError(problem)
        if kind == "openai" and not service.configured:
            raise PlannerError(
                "planner 'openai' has no key: set OPENAI_API_KEY, or the base URL of an own service, or use 'heuristic'"
            )
        return by_model() if service.plans(kind) else HeuristicPlanner(ruff)

    return choose
