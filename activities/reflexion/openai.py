"""A reflector that asks a language model, with the rules standing in where it does not answer."""

import json
from pathlib import Path
from typing import Any

from activities.model.asking import Asker, Exchange, Question, Unusable
from activities.model.client import AnswerSchema
from activities.model.egress import cleared
from activities.model.prompt import Prompts
from activities.model.service import ModelService
from activities.reflexion.answer import read_reflection
from activities.reflexion.rules import rule_reflection
from tightloop.budget import Usage
from tightloop.errors import PlannerError, PlannerUnavailableError
from tightloop.message import Reflection
from tightloop.planning import ReflectionBriefing, ReflectorAnswer
from tightloop.value import shorten

PROMPTS = Path(__file__).parent / "prompts"


class OpenAIReflector:
    """Asks a model for a reflection; always answers."""

    def __init__(self, service: ModelService) -> None:
        """Take the service; nothing is opened before the first reflection."""
        self._asker = Asker(service)
        self._prompts = Prompts(PROMPTS, context_characters=service.context_characters)
        self._schema = AnswerSchema("reflection", json.loads((PROMPTS / "answer.json").read_text(encoding="utf-8")))
        self._example = self._prompts.render("example.json")

    async def reflect(self, briefing: ReflectionBriefing) -> ReflectorAnswer:
        """Return a diagnosis and at least one action item; `note` says why the rules stood in."""
        # The rules stand in with the same: what they quote may go into the next prompt.
        briefing = cleared(briefing)
        question = Question(
            system=self._prompts.render("reflect.md"),
            user=self._prompts.render("briefing.md", briefing=briefing),
            schema=self._schema,
            example=self._example,
            egress=briefing.egress,
        )
        try:
            exchange = await self._asker.ask(question, self._read)
        except PlannerUnavailableError as error:
            # It may have been paid for: unknown, not zero.
            return self._by_rules(briefing, Exchange(usage=Usage()), error.message)
        except PlannerError as error:
            return self._by_rules(briefing, None, error.message)
        if exchange.value is None:
            note = f"the model refused: {exchange.refusal}" if exchange.refusal else exchange.failure
            return self._by_rules(briefing, exchange, note)
        return ReflectorAnswer(
            reflection=exchange.value,
            source=exchange.model,
            usage=exchange.usage,
            repair=exchange.level.value,
            prompt_sha256=self._prompts.sha256,
            transcript=exchange.transcript,
        )

    def _read(self, value: dict[str, Any]) -> Reflection:
        reflection = read_reflection(value)
        if reflection.diagnosis == json.loads(self._example)["diagnosis"]:
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
            prompt_sha256=self._prompts.sha256,
            transcript=exchange.transcript if exchange else b"",
        )
