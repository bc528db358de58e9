"""Asking until the answer can be used, a bounded number of times."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from pydantic import ValidationError

from activities.model.client import AnswerSchema, ModelAnswer, ModelClient, Turn
from activities.model.prompt import Prompts
from activities.model.repair import Level, read_object
from activities.model.service import ModelService
from activities.model.usage import total
from tightloop.budget import Usage
from tightloop.egress import Egress

QUOTED_CHARACTERS = 4_000
"""How much of a malformed answer is sent back to the model."""
TRANSCRIPT_CHARACTERS = 200_000
PROBLEMS_LIMIT = 8

T = TypeVar("T")


class Unusable(Exception):  # noqa: N818
    """Raised by a reader: what is wrong with an answer, one sentence each, for the model to read."""

    def __init__(self, *problems: str) -> None:
        """Keep the sentences."""
        super().__init__(*problems)
        self.problems = problems


class Question(NamedTuple):
    """What is asked."""

    system: str
    """The stable part of the prompt."""
    user: str
    """The changing part."""
    schema: AnswerSchema
    example: str = ""
    """A right answer, shown to the author of a wrong one."""
    egress: Egress | None = None
    """The level that the prompt keeps. None: not known; nothing is sent then where a project is at `summary`."""


@dataclass(frozen=True)
class Exchange(Generic[T]):
    """How the asking ended: with a value, a refusal or problems."""

    value: T | None = None
    refusal: str = ""
    problems: tuple[str, ...] = ()
    truncated: bool = False
    """The last answer was cut off: by the service's own word, or its object has no end."""
    level: Level = Level.NONE
    """How much help the accepted answer needed."""
    usage: Usage = field(default_factory=Usage)
    """Sum over all answers; a field that one of them did not report is unknown."""
    model: str = ""
    asked: int = 0
    transcript: bytes = b""

    @property
    def failure(self) -> str:
        """Why there is no value, in a sentence."""
        cut = ". Raise max_output_tokens or ask for less" if self.truncated else ""
        return f"model {self.model} gave no usable answer in {self.asked} tries: " + "; ".join(self.problems[:3]) + cut


class Asker:
    """Asks a model service and sends malformed answers back with what is wrong with them."""

    def __init__(self, service: ModelService) -> None:
        """Take the service."""
        self._client = ModelClient(service)
        self._corrections = service.corrections
        self._prompts = Prompts(Path(__file__).parent / "prompts", context_characters=service.context_characters)
        self.sha256 = self._prompts.sha256
        """Version of the wording of corrections."""

    async def ask(self, question: Question, read: Callable[[dict[str, Any]], T]) -> Exchange[T]:
        """Ask until `read` accepts an answer.

        Args:
            question: what is asked.
            read: turns the object into a value; raises `Unusable` or a `ValidationError` if it cannot.

        Raises:
            PlannerError: the service refuses; not retryable.
            PlannerUnavailableError: it is busy or down; retryable. Earlier answers of this call are lost.
        """
        record = [f"# system\n{question.system}", f"# user\n{question.user}"]
        answers: list[ModelAnswer] = []
        verdict = _Verdict[T]()
        after: tuple[Turn, ...] = ()
        for _ in range(1 + self._corrections):
            answer = await self._client.ask(
                question.system, question.user, question.schema, after=after, egress=question.egress
            )
            answers.append(answer)
            record.append(f"# {answer.model}\n{answer.text}{answer.refusal}")
            if answer.refusal:
                verdict = _Verdict()
                break
            # Repairing a hostile answer may take seconds, which the worker's event loop does not have.
            verdict = await asyncio.to_thread(_judge, answer, question.schema, read)
            if not verdict.problems:
                break
            complaint = self._prompts.render(
                "correction.md", problems=verdict.problems, truncated=verdict.truncated, example=question.example
            )
            record.append(f"# user\n{complaint}")
            # Only the last answer is sent back: the prompt must not grow with the number of tries.
            after = (Turn("assistant", answer.text[:QUOTED_CHARACTERS] or "(empty)"), Turn("user", complaint))
        return Exchange(
            value=verdict.value,
            refusal=answers[-1].refusal,
            problems=verdict.problems,
            truncated=verdict.truncated,
            level=verdict.level,
            usage=total(answer.usage for answer in answers),
            model=answers[-1].model,
            asked=len(answers),
            transcript=_transcript(record),
        )


class _Verdict(NamedTuple, Generic[T]):
    """What one answer is worth."""

    value: T | None = None
    problems: tuple[str, ...] = ()
    truncated: bool = False
    level: Level = Level.NONE


def _judge(answer: ModelAnswer, schema: AnswerSchema, read: Callable[[dict[str, Any]], T]) -> _Verdict[T]:
    if answer.truncated:
        return _Verdict(problems=("the answer was cut off at the output limit",), truncated=True)
    reading = read_object(answer.text, schema.keys)
    if reading.truncated:
        return _Verdict(problems=(f"{reading.problem}: its object has no end",), truncated=True)
    if reading.value is None:
        return _Verdict(problems=(reading.problem,))
    try:
        return _Verdict(read(reading.value), level=reading.level)
    except ValidationError as error:
        found = [f"`{'.'.join(map(str, e['loc']))}`: {e['msg']}" for e in error.errors(include_url=False)]
        return _Verdict(problems=tuple(found[:PROBLEMS_LIMIT]))
    except Unusable as error:
        return _Verdict(problems=error.problems[:PROBLEMS_LIMIT])


def _transcript(record: list[str]) -> bytes:
    share = TRANSCRIPT_CHARACTERS // len(record)
    parts = (
        part if len(part) <= share else part[:share] + f"\n[... {len(part) - share} characters more]" for part in record
    )
    return "\n\n".join(parts).encode("utf-8", "replace")
