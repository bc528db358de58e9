"""A judge that asks a language model; whatever goes wrong, a person is asked."""

import asyncio
import json
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict

from activities.alignment.port import JudgeAnswer, JudgeBriefing, Ruling
from activities.model.asking import Asker, Exchange, Question, Unusable
from activities.model.client import AnswerSchema
from activities.model.prompt import Prompts
from activities.model.service import ModelService
from tightloop.budget import Usage
from tightloop.egress import Egress
from tightloop.errors import PlannerError, PlannerUnavailableError
from tightloop.scrub import scrub
from tightloop.value import shorten

PROMPTS = Path(__file__).parent / "prompts"
LONGEST_S = 120.0
"""For all tries. The answer only saves a person a question: it is not worth a long wait."""


def _lowered(value: object) -> object:
    return value.strip().lower() if isinstance(value, str) else value


class _Ruled(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")

    finding: int
    answer: Annotated[Ruling, BeforeValidator(_lowered)]
    rationale: str


class _Answer(BaseModel):
    """The answer; `prompts/answer.json` is its schema."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    rulings: list[_Ruled]


class OpenAIJudge:
    """Asks a model for a ruling on each finding."""

    def __init__(self, service: ModelService) -> None:
        """Take the service; nothing is opened before the first question."""
        self._asker = Asker(service)
        self._prompts = Prompts(PROMPTS, context_characters=service.context_characters)
        self._schema = AnswerSchema("alignment", json.loads((PROMPTS / "answer.json").read_text(encoding="utf-8")))
        self._example = self._prompts.render("example.json")

    async def judge(self, briefing: JudgeBriefing) -> JudgeAnswer:
        """Return one ruling for each finding; without a usable answer all are `UNSURE` and `note` says why."""
        shown = briefing if briefing.egress is Egress.FULL else scrub.model(briefing)
        question = Question(
            system=self._prompts.render("judge.md"),
            user=self._prompts.render("briefing.md", briefing=shown),
            schema=self._schema,
            example=self._example,
            egress=briefing.egress,
        )
        try:
            async with asyncio.timeout(LONGEST_S):
                exchange = await self._asker.ask(question, lambda value: _read(value, len(briefing.findings)))
        except TimeoutError:
            return self._unsure(briefing, f"no ruling within {LONGEST_S:g} s", usage=Usage())
        except PlannerUnavailableError as error:
            # It may have been paid for: unknown, not zero.
            return self._unsure(briefing, error.message, usage=Usage())
        except PlannerError as error:
            return self._unsure(briefing, error.message)
        return self._answer(briefing, exchange)

    def _answer(self, briefing: JudgeBriefing, exchange: Exchange[tuple[_Ruled, ...]]) -> JudgeAnswer:
        if exchange.value is None:
            note = f"the model refused: {exchange.refusal}" if exchange.refusal else exchange.failure
            return self._unsure(briefing, note, usage=exchange.usage, transcript=exchange.transcript)
        return JudgeAnswer(
            rulings=tuple(ruled.answer for ruled in exchange.value),
            rationales=tuple(shorten(ruled.rationale, 400) for ruled in exchange.value),
            model=exchange.model,
            prompt_sha256=self._prompts.sha256,
            usage=exchange.usage,
            transcript=exchange.transcript,
        )

    def _unsure(
        self, briefing: JudgeBriefing, note: str, *, usage: Usage | None = None, transcript: bytes = b""
    ) -> JudgeAnswer:
        return JudgeAnswer(
            rulings=tuple(Ruling.UNSURE for _ in briefing.findings),
            rationales=tuple(shorten(note, 400) for _ in briefing.findings),
            note=shorten(note, 500),
            prompt_sha256=self._prompts.sha256,
            usage=usage,
            transcript=transcript,
        )


def _read(value: dict[str, Any], count: int) -> tuple[_Ruled, ...]:
    ruled = {item.finding: item for item in _Answer.model_validate(value).rulings}
    missing = [str(number) for number in range(1, count + 1) if number not in ruled]
    if missing or len(ruled) != count:
        raise Unusable(f"`rulings` must have exactly one entry for each finding from 1 to {count}")
    if any(not item.rationale.strip() for item in ruled.values()):
        raise Unusable("each ruling needs a rationale")
    return tuple(ruled[number] for number in range(1, count + 1))
