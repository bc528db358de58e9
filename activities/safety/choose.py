"""Chooses the judge that fits an episode's planner."""

from functools import cache

from activities.model.service import ModelService
from activities.safety.port import Judge, Judges


def judges(service: ModelService, *, enabled: bool = True) -> Judges:
    """Return the chooser: a model judges where a model plans; elsewhere a person is asked."""

    @cache
    def by_model() -> Judge:
        # Imported late for the same reason as the planner: the SDK is slow to import.
        from activities.safety.openai import OpenAIJudge

        return OpenAIJudge(service)

    return lambda planner: by_model() if enabled and service.plans(planner) else None
