"""Turning the object that a model answered with into a reflection."""

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict

from activities.model.asking import Unusable
from tightloop.message import Reflection, problems_of
from tightloop.template import parse_items

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
    if isinstance(value, list):
        return [_worded(item) for item in value]
    return value


def _worded(item: object) -> object:
    if not isinstance(item, dict):
        return item
    given = {str(key).lower(): text for key, text in item.items()}
    return next((given[key] for key in _WORDS if isinstance(given.get(key), str)), item)


class _Answer(BaseModel):
    """The answer; `prompts/answer.json` is its schema."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    diagnosis: Annotated[str, BeforeValidator(_joined)] = ""
    action_items: Annotated[list[str], BeforeValidator(_listed)] = []


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
