"""Chooses who writes the tasks of a project's plan."""

from dataclasses import replace

from activities.loop.tasks.port import TaskPlanner, TaskPlanners
from activities.loop.tasks.rules import RuleTaskPlanner
from activities.model.service import ModelService
from tightloop.episode.planning import planner_problem
from tightloop.errors import PlannerError


def task_planners(service: ModelService) -> TaskPlanners:
    """Return the chooser: `auto` is the model where it is configured, otherwise the rules."""

    def choose(kind: str, model: str) -> TaskPlanner:
        if problem := planner_problem(kind):
            raise PlannerError(problem)
        if kind == "openai" and not service.configured:
            raise PlannerError(
                "planner 'openai' has no key: set OPENAI_API_KEY, or the base URL of an own service, or use 'heuristic'"
            )
        if not service.plans(kind):
            return RuleTaskPlanner()
        # The SDK takes most of a second to import: workers without a key never pay for it.
        from activities.loop.tasks.openai import ModelTaskPlanner

        return ModelTaskPlanner(replace(service, models=(model, *service.models)) if model else service)

    return choose
