"""Chooses the reflector that fits an episode's planner."""

from functools import cache

from activities.model.service import ModelService
from activities.planner.reflection.port import Reflector, Reflectors
from activities.planner.reflection.rules import RuleReflector


def reflectors(service: ModelService) -> Reflectors:
    """Return the chooser: a model reflects where a model plans; anything else is left to the rules."""

    @cache
    def by_model() -> Reflector:
        # Imported late for the same reason as the planner: the SDK is slow to import.
        from activities.planner.reflection.openai import OpenAIReflector

        return OpenAIReflector(service)

    return lambda planner: by_model() if service.plans(planner) else RuleReflector()
