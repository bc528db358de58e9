"""A reflector that asks a language model, and falls back to the rules where it does not answer."""

from pathlib import Path
from typing import Any

from activities.model.asking import Exchange, PromptedAsker, Unusable
from activities.model.prompt_privacy import cleared
from activities.model.service import ModelService
from activities.planner.reflection.answer import read_reflection
from activities.planner.reflection.rules import rule_reflection
from tightloop.episode.planning import ReflectionBriefing, ReflectorAnswer
from tightloop.errors import PlannerError, PlannerUnavailableError
from tightloop.executor.messages.message import Reflection
from tightloop.executor.usage import Usage
from tightloop.value import shorten

PROMPTS = Path(__file__).parent / "prompts"


class OpenAIReflector:
    """Asks a model for a reflection; always answers."""

    def __init__(self, service: ModelService) -> None:
        self._asker = PromptedAsker(service, PROMPTS, "reflection")

    async def reflect(self, briefing: ReflectionBriefing) -> ReflectorAnswer:
        """Return a diagnosis and at least one action item; `note` says why the rules stood in."""
        # The rules stand in with the same: what they quote may go into the next prompt.
        briefing = cleared(briefing)
        try:
            exchange = await self._asker.ask("reflect.md", briefing, briefing.prompt_privacy, self._read)
        except PlannerUnavailableError as error:
            # It may have been paid for: unknown, not zero.
            return self._by_rules(briefing, Exchange(usage=Usage()), error.message)
        except PlannerError as error:
            return self._by_rules(briefing, None, error.message)
        if exchange.value is None:
            return self._by_rules(briefing, exchange, exchange.failure)
        return ReflectorAnswer(
            reflection=exchange.value,
            source=exchange.model,
            usage=exchange.usage,
            repair=exchange.level.value,
            prompt_sha256=self._asker.sha256,
            transcript=exchange.transcript,
        )

    def _read(self, value: dict[str, Any]) -> Reflection:
        reflection = read_reflection(value)
        if reflection.diagnosis == self._asker.example["diagnosis"]:
            raise Unusable("the example came back: reflect on the iteration of the briefing")
        return reflection

    def _by_rules(
        self, briefing: ReflectionBriefing, exchange: Exchange[Reflection] | None, note: str
    ) -> ReflectorAnswer:
        """Let the rules stand in; without an exchange no model was paid."""
        return ReflectorAnswer(
            reflection=rule_reflection(briefing),
            source="rules",
            note=shorten(note, 500),
            usage=exchange.usage if exchange else None,
            truncated=exchange is not None and exchange.truncated,
            prompt_sha256=self._asker.sha256,
            transcript=exchange.transcript if exchange else b"",
        )
