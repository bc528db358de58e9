"""Reads a reflection from the object that a model answered with."""

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from activities.model.asking import Unusable
from tightloop.executor.messages.message import Reflection, problems_of
from tightloop.executor.messages.template import parse_items
from tightloop.value import Value

ACTIONS_LIMIT = 10
_WORDS = ("action", "action_item", "step", "item", "title", "description", "text", "task")
"""Keys under which models put the words of an item, the likeliest first."""


def _joined(value: object) -> object:
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return " ".join(value)
    return value


def _listed(value: object) -> object:
    """Accept what models write instead of a list of texts: one text, numbered keys, objects with a text each."""
    if isinstance(value, str):
        return list(parse_items(value))
    if isinstance(value, dict) and all(str(key).isdecimal() for key in value):
        value = list(value.values())
    if not isinstance(value, list):
        return value
    items = list(value)
    for number, item in enumerate(value):
        if isinstance(item, dict):
            given = {str(key).lower(): text for key, text in item.items()}
            items[number] = next((given[key] for key in _WORDS if isinstance(given.get(key), str)), item)
    return items


class _Answer(Value):
    """The answer; `prompts/answer.json` is its schema."""

    diagnosis: Annotated[str, BeforeValidator(_joined)] = ""
    action_items: Annotated[list[str], BeforeValidator(_listed)] = Field(default_factory=list)


def read_reflection(value: dict[str, Any]) -> Reflection:
    """Return the reflection in an object.

    Raises:
        Unusable: it lacks a diagnosis or action items; dots in their place do not count.
        ValidationError: a value has the wrong type.
    """
    answer = _Answer.model_validate(value)
    items = [item for item in answer.action_items if _says(item)]
    reflection = Reflection(
        diagnosis=answer.diagnosis if _says(answer.diagnosis) else "", action_items=tuple(items[:ACTIONS_LIMIT])
    )
    if problems := problems_of(reflection, None):
        raise Unusable(*problems)
    return reflection


def _says(text: str) -> bool:
    return any(letter.isalnum() for letter in text)
