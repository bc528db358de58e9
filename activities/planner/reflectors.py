"""Model-based and rule-based reflectors."""

import re
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from activities.model.asking import Exchange, PromptedAsker, UnusableAnswerError, apply_privacy
from activities.model.client import ModelService
from activities.planner.reflection import Reflectors
from tightloop.episode.check import CheckReport, CheckStatus
from tightloop.episode.fixes import last_error
from tightloop.episode.planning import ReflectCause, ReflectionBriefing, ReflectorAnswer
from tightloop.errors import PlannerError, PlannerUnavailableError
from tightloop.executor.message import Reflection, parse_items, problems_of
from tightloop.executor.model import Usage
from tightloop.value import Value, shorten

ACTIONS_LIMIT = 10
_WORDS = ("action", "action_item", "step", "item", "title", "description", "text", "task")
"""Keys that models use for an item's text, most likely first."""


def _join_texts(value: object) -> object:
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return " ".join(value)
    return value


def _parse_list(value: object) -> object:
    """Convert a single text, an object with numbered keys, or a list of objects to a list of texts.

    Models sometimes return these where a list of texts is expected. Each object contains one text.
    """
    if isinstance(value, str):
        return list(parse_items(value))
    if isinstance(value, dict) and all(str(key).isdecimal() for key in value):
        value = list(value.values())
    if not isinstance(value, list):
        return value
    items = list(value)
    for number, item in enumerate(value):
        if isinstance(item, dict):
            fields = {str(key).lower(): text for key, text in item.items()}
            items[number] = next((fields[key] for key in _WORDS if isinstance(fields.get(key), str)), item)
    return items


class _Answer(Value):
    """The model's response; its schema is `prompts/answer.json`."""

    diagnosis: Annotated[str, BeforeValidator(_join_texts)] = ""
    action_items: Annotated[list[str], BeforeValidator(_parse_list)] = Field(default_factory=list)


def read_reflection(value: dict[str, Any]) -> Reflection:
    """Read a reflection from the object that a model returned.

    Raises:
        UnusableAnswerError: the diagnosis or the action items are missing, or consist of placeholder dots.
        ValidationError: a value has the wrong type.
    """
    answer = _Answer.model_validate(value)
    items = [item for item in answer.action_items if _says(item)]
    reflection = Reflection(
        diagnosis=answer.diagnosis if _says(answer.diagnosis) else "", action_items=tuple(items[:ACTIONS_LIMIT])
    )
    if problems := problems_of(reflection, None):
        raise UnusableAnswerError(*problems)
    return reflection


def _says(text: str) -> bool:
    return any(letter.isalnum() for letter in text)


CHECKS_NAMED = 3
DETAIL_CHARACTERS = 300


_BY_REASON = {
    "newly.failing": "first undo or fix what broke the checks that passed before",
    "outside the plan|out_of_scope": "change only the files that the plan names, or name the other files with a reason",
    "back and forth|alternation": "stop alternating: choose one of the two states and explain why the other is wrong",
    "exactly like this before|same_tree_again": (
        "do not repeat the last plan, because it leads to a tree that was seen before"
    ),
    "changed no file|no_change": "make the next plan's first step a concrete change to a named file",
    "is not known|outcome_unknown": "inspect the tree before planning: the last delivery may be only partly done",
    "of the tree is unchanged|ratio": "plan a smaller change that addresses one cause in few files",
}
"""Advice by the wording of the tracker's reasons, most urgent first."""


class RuleReflector:
    """Reflects using rules. Never fails and needs no network."""

    async def reflect(self, briefing: ReflectionBriefing) -> ReflectorAnswer:
        return ReflectorAnswer(reflection=rule_reflection(briefing), source="rules")


def rule_reflection(briefing: ReflectionBriefing) -> Reflection:
    """Build a reflection from rules. It contains the cause, the failures and the action items."""
    actions: list[str] = []
    if briefing.cause is ReflectCause.RESTORED:
        happened = "The work was reset to an earlier checkpoint"
        actions.append("start from the restored files and do not repeat the abandoned approach")
    elif briefing.cause is ReflectCause.REPEATED_FAILURE:
        happened = "The same failure came back"
        tried = shorten(briefing.previous.diagnosis, 120) if briefing.previous else ""
        why = f"acting on '{tried}' did not help" if tried else "the plan does not address the cause"
        actions.append(f"form a new diagnosis: {why}")
    else:
        happened = "The last iteration went off course"
        actions.extend(
            action for pattern, action in _BY_REASON.items() if re.search(pattern, briefing.detail, re.IGNORECASE)
        )
    actions.extend(_by_check(briefing.checks))
    detail = shorten(" ".join(briefing.detail.split()), DETAIL_CHARACTERS) or "no details are known"
    parts = [f"{happened} ({detail})", *_failing(briefing.checks)]
    request = briefing.plan_request
    if request is not None and request.outcome not in ("", "completed", "no_change"):
        parts.append(f"the executor ended with '{request.outcome}'")
    return Reflection(
        diagnosis=". ".join(part.rstrip(".") for part in parts) + ".",
        action_items=tuple(dict.fromkeys(actions)) or ("compare the result with the goal, then plan what is missing",),
    )


def _failing(checks: CheckReport | None) -> list[str]:
    if checks is None or not checks.results:
        return ["No check has run"]
    if checks.green:
        return ["All checks pass"]
    return [f"'{result.name}' {result.status.value}: {last_error(result)}" for result in checks.failed[:CHECKS_NAMED]]


def _by_check(checks: CheckReport | None) -> list[str]:
    actions: list[str] = []
    for result in checks.failed[:CHECKS_NAMED] if checks else ():
        if result.status is CheckStatus.NOT_FOUND:
            actions.append(f"install the program that '{result.name}' requires, or correct the command")
        elif result.status is CheckStatus.TIMED_OUT:
            actions.append(f"find out what is hanging in '{result.name}'")
        else:
            causes = ", ".join(result.failing[:CHECKS_NAMED])
            actions.append(f"make '{result.name}' pass" + (f", starting with {causes}" if causes else ""))
    return actions


PROMPTS = Path(__file__).parent / "reflection_prompts"


class OpenAIReflector:
    """Asks a model for a reflection. Falls back to rules if the model does not respond."""

    def __init__(self, service: ModelService) -> None:
        self._asker = PromptedAsker(service, PROMPTS, "reflection")

    async def reflect(self, briefing: ReflectionBriefing) -> ReflectorAnswer:
        """Ask the model for a diagnosis and at least one action item.

        If rules were used instead of the model, `note` gives the reason.
        """
        # The rules get the same reduced briefing: what they quote may end up in the next prompt.
        briefing = apply_privacy(briefing)
        try:
            exchange = await self._asker.ask("reflect.md", briefing, briefing.prompt_privacy, self._read)
        except PlannerUnavailableError as error:
            # The call may have been charged: usage is unknown, not zero.
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
            raise UnusableAnswerError("the answer repeats the example. Describe this iteration instead")
        return reflection

    def _by_rules(
        self, briefing: ReflectionBriefing, exchange: Exchange[Reflection] | None, note: str
    ) -> ReflectorAnswer:
        """Reflect using rules instead of a model. `exchange` is None if no model was called."""
        return ReflectorAnswer(
            reflection=rule_reflection(briefing),
            source="rules",
            note=shorten(note, 500),
            usage=exchange.usage if exchange else None,
            truncated=exchange is not None and exchange.truncated,
            prompt_sha256=self._asker.sha256,
            transcript=exchange.transcript if exchange else b"",
        )


def reflectors(service: ModelService) -> Reflectors:
    """Return a factory for reflectors. They use a model if the planner uses one, and rules otherwise."""
    by_model = cache(lambda: OpenAIReflector(service))
    return lambda planner: by_model() if service.plans(planner) else RuleReflector()
