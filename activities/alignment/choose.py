"""Choosing the judge that fits an episode's planner."""

from activities.alignment.port import Judge, Judges
from activities.model.service import ModelService


def judges(service: ModelService, *, enabled: bool = True) -> Judges:
    """Return the chooser: a model judges where a model plans; elsewhere a person is asked."""
    made: list[Judge] = []

    def choose(planner: str) -> Judge | None:
        if not enabled or planner not in ("auto", "openai") or not service.configured:
            return None
        if not made:
            # Imported late for the same reason as the planner: the SDK is slow to import.
            from activities.alignment.openai import OpenAIJudge

            made.append(OpenAIJudge(service))
        return made[0]

    return choose
