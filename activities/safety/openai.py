"""Model-based judge."""

import asyncio
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from activities.model.asking import LOWERED, PromptedAsker, UnusableAnswerError
from activities.model.client import ModelService
from activities.safety.gate import JudgeAnswer, JudgeBriefing, Judges
from tightloop.errors import PlannerError, PlannerUnavailableError
from tightloop.executor.model import Usage
from tightloop.safety.drift import PromptPrivacy
from tightloop.safety.rubric import Verdict
from tightloop.value import Value, shorten
from tightloop.value.scrub import scrub

PROMPTS = Path(__file__).parent / "prompts"
LONGEST_S = 120.0
"""Time limit for all attempts together. The response only saves a person a question, so a long wait is not worth it."""


class _Judged(Value):
    finding: int
    verdict: Annotated[Verdict, LOWERED]
    rationale: str


class _Answer(Value):
    """The model's response; its schema is `prompts/answer.json`."""

    verdicts: list[_Judged]


class OpenAIJudge:
    """Asks a model for a verdict on each finding."""

    def __init__(self, service: ModelService) -> None:
        self._asker = PromptedAsker(service, PROMPTS, "alignment")

    async def judge(self, briefing: JudgeBriefing) -> JudgeAnswer:
        """Ask the model for one verdict per finding. Without a usable response, all are `ASK` and `note` says why."""
        visible_briefing = briefing if briefing.prompt_privacy is PromptPrivacy.FULL else scrub.model(briefing)
        try:
            async with asyncio.timeout(LONGEST_S):
                exchange = await self._asker.ask(
                    "judge.md",
                    visible_briefing,
                    briefing.prompt_privacy,
                    lambda value: _read(value, len(briefing.findings)),
                )
        except TimeoutError:
            return self._make_undecided_answer(briefing, f"no verdict within {LONGEST_S:g} s", usage=Usage())
        except PlannerUnavailableError as error:
            # The call may have been charged: usage is unknown, not zero.
            return self._make_undecided_answer(briefing, error.message, usage=Usage())
        except PlannerError as error:
            return self._make_undecided_answer(briefing, error.message)
        if exchange.value is None:
            return self._make_undecided_answer(
                briefing, exchange.failure, usage=exchange.usage, transcript=exchange.transcript
            )
        return JudgeAnswer(
            verdicts=tuple(judged.verdict for judged in exchange.value),
            rationales=tuple(shorten(judged.rationale, 400) for judged in exchange.value),
            model=exchange.model,
            prompt_sha256=self._asker.sha256,
            usage=exchange.usage,
            transcript=exchange.transcript,
        )

    def _make_undecided_answer(
        self, briefing: JudgeBriefing, note: str, *, usage: Usage | None = None, transcript: bytes = b""
    ) -> JudgeAnswer:
        return JudgeAnswer(
            verdicts=tuple(Verdict.ASK for _ in briefing.findings),
            rationales=tuple(shorten(note, 400) for _ in briefing.findings),
            note=shorten(note, 500),
            prompt_sha256=self._asker.sha256,
            usage=usage,
            transcript=transcript,
        )


def _read(value: dict[str, Any], count: int) -> tuple[_Judged, ...]:
    judged = {item.finding: item for item in _Answer.model_validate(value).verdicts}
    missing = [str(number) for number in range(1, count + 1) if number not in judged]
    # A verdict on an unknown finding means that the model numbered them differently: none can be trusted.
    if missing or len(judged) != count:
        raise UnusableAnswerError(f"`verdicts` must contain exactly one entry for each finding from 1 to {count}")
    if any(not item.rationale.strip() for item in judged.values()):
        raise UnusableAnswerError("each verdict needs a rationale")
    return tuple(judged[number] for number in range(1, count + 1))


def judges(service: ModelService, *, enabled: bool = True) -> Judges:
    """Return the factory of judges. A model judges if a model plans. Otherwise, a person is asked."""
    by_model = cache(lambda: OpenAIJudge(service))
    return lambda planner: by_model() if enabled and service.plans(planner) else None
