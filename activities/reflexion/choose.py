"""Choosing the reflector that fits an episode's planner."""

from activities.model.service import ModelService
from activities.reflexion.port import Reflector, Reflectors
from activities.reflexion.rules import RuleReflector


def reflectors(service: ModelService) -> Reflectors:
    """Return the chooser: a model reflects where a model plans; anything else is left to the rules."""
    made: dict[str, Reflector] = {}

    def choose(planner: str) -> Reflector:
        kind = "openai" if planner in ("auto", "openai") and service.configured else "rules"
        if kind not in made:
            made[kind] = _openai(service) if kind == "openai" else RuleReflector()
        return made[kind]

    return choose


def _openai(service: ModelService) -> Reflector:
    # Imported late for the same reason as the planner: the SDK is slow to import.
    from activities.reflexion.openai import OpenAIReflector

    return OpenAIReflector(service)
