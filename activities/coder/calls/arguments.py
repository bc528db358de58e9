"""Reads the arguments of a tool call: what a model wrote, checked against the schema that it was given."""

import json
from collections.abc import Mapping
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match

from tightloop.errors import did_you_mean
from tightloop.value import shorten

ARGUMENT_CHARACTERS = 2_000_000
SHOWN_CHARACTERS = 200


class ArgumentsError(ValueError):
    """The arguments cannot be used; the message tells the model why."""


def schema(**properties: dict[str, Any]) -> dict[str, Any]:
    """Return the strict schema of a tool's arguments: each is required, none may be added."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def text(description: str) -> dict[str, Any]:
    """Return the schema of a text."""
    return {"type": "string", "description": description}


def optional(kind: str, description: str, **more: Any) -> dict[str, Any]:
    """Return the schema of a value that may be null."""
    return {"type": [kind, "null"], "description": description, **more}


def read_arguments(written: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call. Those that may be null may also be left out.

    Raises:
        ArgumentsError: they do not follow the schema.
    """
    found = _read_object(written)
    properties: Mapping[str, Any] = schema["properties"]
    for name in found:
        if name not in properties:
            raise ArgumentsError(f"unknown argument {shorten(name, 60)!r}. {did_you_mean(name, properties)}")
    for name, about in properties.items():
        if name not in found and "null" in about["type"]:
            found[name] = None
    problem = best_match(Draft202012Validator(schema).iter_errors(found))
    if problem is not None:
        place = ".".join(map(str, problem.absolute_path))
        said = shorten(problem.message, SHOWN_CHARACTERS)
        raise ArgumentsError(f"wrong arguments: {f'{place}: ' if place else ''}{said}. Make the call again")
    return found


def _read_object(written: str) -> dict[str, Any]:
    if len(written) > ARGUMENT_CHARACTERS:
        raise ArgumentsError(f"the arguments have more than {ARGUMENT_CHARACTERS:,} characters. Do it in parts")
    try:
        found = json.loads(written or "{}", strict=False)
        # Some models write JSON within JSON.
        found = json.loads(found, strict=False) if isinstance(found, str) else found
        # A half of a surrogate pair is valid JSON and not text.
        json.dumps(found, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        said = shorten(str(error), SHOWN_CHARACTERS)
        raise ArgumentsError(f"the arguments are not valid JSON: {said}. Make the call again") from error
    if not isinstance(found, dict):
        raise ArgumentsError(f"the arguments have to be a JSON object, not {shorten(written, 60)!r}")
    return found
