"""Asking a model: prompts, and a limited number of retries until the response is usable."""

import asyncio
import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import jinja2
from pydantic import BeforeValidator, ValidationError

from activities.model.client import AnswerSchema, FirstAvailable, ModelService, request_answer
from activities.model.observed import ModelAnswer, report_step
from activities.model.repair import Level, read_object
from tightloop.episode.planning import Briefing, ReflectCause, ReflectionBriefing
from tightloop.errors import PlannerError
from tightloop.executor.message import Reflection
from tightloop.executor.model import Usage, total
from tightloop.safety.drift import PromptPrivacy
from tightloop.value.scrub import scrub

QUOTED_CHARACTERS = 4_000
"""Maximum length of a malformed response that is sent back to the model."""
TRANSCRIPT_CHARACTERS = 200_000
PROBLEMS_LIMIT = 8

T = TypeVar("T")
LOWERED = BeforeValidator(lambda value: value.strip().lower() if isinstance(value, str) else value)
"""Validator that normalises words. Models write `Yes` and `ALLOW ` where the schema says `yes` and `allow`."""


class UnusableAnswerError(Exception):
    """Raised by a reader to reject a response.

    It contains a list of problems, one sentence each, which is sent to the model.
    """

    def __init__(self, *problems: str) -> None:
        super().__init__(*problems)
        self.problems = problems


class Question(NamedTuple):
    """A question for a model."""

    system: str
    """The stable part of the prompt."""
    user: str
    """The part of the prompt that varies."""
    schema: AnswerSchema
    example: str = ""
    """A valid response, which is shown to the model after an invalid one."""
    prompt_privacy: PromptPrivacy | None = None
    """The prompt's privacy level. If it is None (unknown), nothing is sent if any project is at `summary`."""


@dataclass(frozen=True)
class Exchange(Generic[T]):
    """The result of a question: a value, a refusal or a list of problems."""

    value: T | None = None
    refusal: str = ""
    problems: tuple[str, ...] = ()
    truncated: bool = False
    """True if the last response was cut off, either as reported by the service or because its object is incomplete."""
    level: Level = Level.NONE
    """Amount of repair that the accepted response needed."""
    usage: Usage = field(default_factory=Usage)
    """The sum over all responses. A field is None if one of them did not report it."""
    model: str = ""
    attempts: int = 0
    transcript: bytes = b""

    @property
    def failure(self) -> str:
        """The sentence that explains why there is no value."""
        if self.refusal:
            return f"the model refused: {self.refusal}"
        cut = ". Raise max_output_tokens or ask for less" if self.truncated else ""
        return (
            f"model {self.model} returned no usable answer in {self.attempts} attempts:\n"
            + "; ".join(self.problems[:3])
            + cut
        )


class Asker:
    """Asks a model service. A malformed response is sent back with a list of its problems."""

    def __init__(self, service: ModelService) -> None:
        # One instance for all questions, so that it remembers which models are missing.
        self._service, self._first = service, FirstAvailable(service, "planner.models")
        self._name = f"model {service.models[0]}" if service.models else "the model"
        self._prompts = Prompts(Path(__file__).parent / "prompts", context_characters=service.context_characters)
        self.sha256 = self._prompts.sha256
        """SHA-256 of the prompt files that ask for corrections, which identifies their version."""

    async def ask(self, question: Question, read: Callable[[dict[str, Any]], T]) -> Exchange[T]:
        """Ask until `read` accepts a response. To reject it, `read` raises `UnusableAnswerError` or `ValidationError`.

        Raises:
            PlannerError: the service refuses. Not retryable.
            PlannerUnavailableError: the service is busy or down. Retryable. Earlier responses from this call are lost.
        """
        record = [f"# system\n{question.system}", f"# user\n{question.user}"]
        answers: list[ModelAnswer] = []
        verdict = Exchange[T]()
        service, schema = self._service, question.schema

        def message(role: str, text: str) -> dict[str, str]:
            # Every message is redacted, including an answer that is sent back: it may quote a secret.
            content = redact_text(text, question.prompt_privacy, strictest=service.strictest_privacy)
            return {"role": role, "content": content}

        messages = [message("system", question.system), message("user", question.user)]
        for number in range(1, 2 + service.corrections):
            report_step(f"answer {number} of {1 + service.corrections} from {self._name}", verdict.problems)
            answer = await self._first.ask(lambda model: request_answer(service, model, messages, schema))
            answers.append(answer)
            record.append(f"# {answer.model}\n{answer.text}{answer.refusal}")
            if answer.refusal:
                # Asking again after a refusal costs money and yields the same answer.
                verdict = Exchange(refusal=answer.refusal)
                break
            # In a thread: repairing a hostile answer may take seconds and would block the event loop.
            verdict = await asyncio.to_thread(_judge, answer, schema, read)
            if not verdict.problems:
                break
            correction = self._prompts.render(
                "correction.md", problems=verdict.problems, truncated=verdict.truncated, example=question.example
            )
            record.append(f"# user\n{correction}")
            # Send back only the last answer: the prompt must not grow with the number of attempts.
            quoted = answer.text[:QUOTED_CHARACTERS] or "(empty)"
            messages[2:] = [message("assistant", quoted), message("user", correction)]
        # An equal share each: one huge answer must not displace the others.
        share = TRANSCRIPT_CHARACTERS // len(record)
        parts = (
            part if len(part) <= share else part[:share] + f"\n[... {len(part) - share} more characters]"
            for part in record
        )
        return replace(
            verdict,
            usage=total(answer.usage for answer in answers),
            model=answers[-1].model,
            attempts=len(answers),
            transcript="\n\n".join(parts).encode("utf-8", "replace"),
        )


class PromptedAsker:
    """An asker that loads its prompt files from a folder.

    The folder contains the prompt, `briefing.md`, `answer.json` (the schema) and `example.json`.
    """

    def __init__(self, service: ModelService, folder: Path, name: str) -> None:
        """Load the prompt files without opening a connection. `name` is the schema's name."""
        self._asker = Asker(service)
        self._prompts = Prompts(folder, context_characters=service.context_characters)
        self._schema = AnswerSchema(name, json.loads((folder / "answer.json").read_text(encoding="utf-8")))
        self._example = self._prompts.render("example.json")
        self.sha256 = self._prompts.sha256
        """SHA-256 of the prompt files, which identifies their version."""
        self.example: dict[str, Any] = json.loads(self._example)
        """The example response in the prompt. A model may copy it, which callers reject."""

    def share(self, percent: float) -> int:
        """Convert a percentage of the whole prompt to a number of characters."""
        return self._prompts.share(percent)

    async def ask(
        self, prompt: str, briefing: Any, prompt_privacy: PromptPrivacy, read: Callable[[dict[str, Any]], T]
    ) -> Exchange[T]:
        """Ask until `read` accepts a response; see `Asker.ask`."""
        question = Question(
            system=self._prompts.render(prompt),
            user=self._prompts.render("briefing.md", briefing=briefing),
            schema=self._schema,
            example=self._example,
            prompt_privacy=prompt_privacy,
        )
        return await self._asker.ask(question, read)


def _judge(answer: ModelAnswer, schema: AnswerSchema, read: Callable[[dict[str, Any]], T]) -> Exchange[T]:
    """Return the value in a response, or the problems with the response."""
    # With a schema, 3 of 100 answers of a small model did not parse, and all three were cut off.
    if answer.truncated:
        return Exchange(problems=("the answer was cut off at the output limit",), truncated=True)
    reading = read_object(answer.text, schema.keys)
    # Some services cut an answer off without reporting it.
    if reading.truncated:
        return Exchange(problems=(f"{reading.problem}: its JSON object is incomplete",), truncated=True)
    if reading.value is None:
        return Exchange(problems=(reading.problem,))
    try:
        return Exchange(read(reading.value), level=reading.level)
    except ValidationError as error:
        problems = [f"`{'.'.join(map(str, e['loc']))}`: {e['msg']}" for e in error.errors(include_url=False)]
        return Exchange(problems=tuple(problems[:PROBLEMS_LIMIT]))
    except UnusableAnswerError as error:
        return Exchange(problems=error.problems[:PROBLEMS_LIMIT])


SMALLEST_CONTEXT = 8_000
SHARED_OUT = 0.85
"""Share of the context that templates divide among their values. The rest is for their own text."""


class Prompts:
    """The prompt files in a folder.

    Templates limit inserted values with the filters `start`, `end` and `items`. Each filter takes a
    percentage of the whole prompt, so that no prompt grows with the length of an episode. `all_items` has
    no limit. It is meant for messages from people, which are limited when they are sent.
    """

    def __init__(self, folder: Path, *, context_characters: int) -> None:
        """Load the prompt files from `folder`.

        `context_characters` limits the length of a prompt, not including messages from people. The smallest
        possible limit is `SMALLEST_CONTEXT`.
        """
        self._characters = max(context_characters, SMALLEST_CONTEXT) * SHARED_OUT
        self._environment = jinja2.Environment(
            loader=jinja2.FileSystemLoader(folder),
            # A misspelt name in a template must fail in a test, not render as nothing.
            undefined=jinja2.StrictUndefined,
            # Prompts are Markdown, not HTML.
            autoescape=False,  # noqa: S701
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._environment.filters.update(start=self._start, end=self._end, items=self._items, all_items=_all_items)
        digest = hashlib.sha256()
        for path in sorted(path for path in folder.iterdir() if path.is_file()):
            content = path.read_bytes()
            # With name and length: text that moves from one file to the next must change the digest.
            digest.update(f"{path.name}\0{len(content)}\0".encode() + content)
        self.sha256 = digest.hexdigest()
        """SHA-256 of the prompt files, which identifies their version."""

    def render(self, name: str, **values: object) -> str:
        """Fill in a template and return the prompt. A missing value raises an error."""
        return self._environment.get_template(name).render(**values).strip() + "\n"

    def share(self, percent: float) -> int:
        """Convert a percentage of the whole prompt to a number of characters."""
        return int(self._characters * percent / 100)

    def _start(self, text: str, percent: float) -> str:
        limit = self.share(percent)
        return text if len(text) <= limit else text[: max(limit - 6, 0)] + " [...]"

    def _end(self, text: str, percent: float) -> str:
        limit = self.share(percent)
        return text if len(text) <= limit else "[...] " + text[len(text) - max(limit - 6, 0) :]

    def _items(self, items: Sequence[str], percent: float) -> str:
        """Format a Markdown list of the newest items that fit into the limit.

        The list states how many items were omitted.
        """
        limit = self.share(percent)
        lines: list[str] = []
        used = 0
        for item in reversed(items):
            # Half the space at most, so that one long item does not displace all others.
            line = "- " + self._start(item, percent / 2).replace("\n", "\n  ")
            used += len(line) + 1
            if used > limit:
                lines.append(f"- [{len(items) - len(lines)} left out]")
                break
            lines.append(line)
        return "\n".join(reversed(lines))


def _all_items(items: Sequence[str]) -> str:
    return "\n".join("- " + item.replace("\n", "\n  ") for item in items)


WITHHELD = "[withheld: privacy.prompts is summary]"

B = TypeVar("B", Briefing, ReflectionBriefing)


def apply_privacy(briefing: B) -> B:
    """Remove the content that a briefing's prompt privacy does not allow.

    The level `summary` keeps the goal, the definition of done, operator notes, the names and counts of
    checks, the names of changed files, the titles and outcomes of iterations, and reflections that were
    themselves based on a summary.
    """
    if briefing.prompt_privacy is PromptPrivacy.FULL:
        return briefing
    return scrub.model(_summarise(briefing) if briefing.prompt_privacy is PromptPrivacy.SUMMARY else briefing)


def redact_text(text: str, prompt_privacy: PromptPrivacy | None, *, strictest: PromptPrivacy) -> str:
    """Redact part of a prompt. `prompt_privacy` is its privacy level, or None if it is unknown.

    Raises:
        PlannerError: the level is unknown, and at least one project requires `summary`.
    """
    if prompt_privacy is None and strictest is PromptPrivacy.SUMMARY:
        raise PlannerError(
            "the prompt was not sent: its privacy level is unknown, and privacy.prompts is 'summary' for at least "
            "one project. Set privacy.prompts to 'redacted' or 'full', or disable the feature that uses the model "
            "here"
        )
    return text if (prompt_privacy or strictest) is PromptPrivacy.FULL else scrub(text)


def _summarise(briefing: B) -> B:
    # Recollections quote outputs and changes.
    changes: dict[str, Any] = {"remembered": ()}
    if checks := briefing.checks:
        # Names and counts stay; the output of a check may quote any file.
        results = (result.evolve(tail=WITHHELD if result.tail else "", output=None) for result in checks.results)
        changes["checks"] = checks.evolve(results=tuple(results))
    if request := briefing.plan_request:
        changes["plan_request"] = request.evolve(
            report=WITHHELD if request.report else "",
            checks=tuple(line.partition("\n")[0] for line in request.checks),
            questions=(WITHHELD,) if request.questions else (),
            reflection=Reflection(),
        )
    if isinstance(briefing, Briefing):
        changes |= {"files": (), "excerpts": ()}
    if isinstance(briefing, ReflectionBriefing):
        changes["plan_change"] = WITHHELD if briefing.plan_change else ""
        if briefing.cause is ReflectCause.REPEATED_FAILURE:
            # Its detail may quote the failure.
            changes["detail"] = WITHHELD if briefing.detail else ""
    return briefing.evolve(**changes)
