"""Builds an episode's request from a file, options and settings; what is misspelt is refused."""

import json
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from tightloop.check import Check
from tightloop.episode import EpisodeRequest
from tightloop.errors import InvalidRequestError
from tightloop.settings import Settings
from tightloop.value import first_problem

_EXAMPLE = 'tightloop start "make the tests pass" --done "pytest -q"'


def read_request_file(path: Path) -> dict[str, Any]:
    """Read a request as YAML or JSON.

    Raises:
        InvalidRequestError: the file cannot be read, is no document, or has a field that does not exist.
    """
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidRequestError(f"the request file {path} cannot be read: {error.strerror}. Name a file") from error
    except UnicodeDecodeError as error:
        raise InvalidRequestError(f"the request file {path} is no UTF-8 text (byte {error.start})") from error
    except yaml.MarkedYAMLError as error:
        at = (
            f"line {error.problem_mark.line + 1}, column {error.problem_mark.column + 1}: "
            if error.problem_mark
            else ""
        )
        raise InvalidRequestError(f"the request file {path} is not YAML: {at}{error.problem}") from error
    except yaml.YAMLError as error:
        raise InvalidRequestError(f"the request file {path} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(document, dict):
        raise InvalidRequestError(
            f"{path} is not a request. Write: goal: ..., workspace: ..., definition_of_done: [...]"
        )
    unknown = unknown_fields(EpisodeRequest, document)
    if unknown:
        known = ", ".join(EpisodeRequest.model_fields)
        raise InvalidRequestError(f"{path}: there is no field {unknown[0]!r}. Known are: {known}")
    return document


def unknown_fields(model: type[BaseModel], document: dict[str, Any], above: str = "") -> list[str]:
    """Return the dotted names in `document` that `model` does not have, also in its parts."""
    found = []
    for name, value in document.items():
        field = model.model_fields.get(name)
        if field is None:
            found.append(f"{above}{name}")
            continue
        part = Check if name == "definition_of_done" else field.annotation
        if isinstance(part, type) and issubclass(part, BaseModel):
            for item in value if isinstance(value, list) else [value]:
                found += unknown_fields(part, item, f"{above}{name}.") if isinstance(item, dict) else []
    return found


def defaults_from(settings: Settings) -> dict[str, Any]:
    """Return what the settings say about episodes whose request does not."""
    return {
        "planner": settings.planner.kind,
        "executor": {
            "name": settings.executor.default,
            "fallback": settings.executor.fallback,
            "wall_limit_s": settings.executor.wall_limit_s,
            "idle_limit_s": settings.executor.idle_limit_s,
        },
        "budget": settings.budget.as_budget().model_dump(),
        "thresholds": settings.tracking.as_thresholds().model_dump(),
        "repeat_error_limit": settings.tracking.repeat_error_limit,
        "deviation_limit": settings.tracking.deviation_limit,
    }


def build_request(*layers: dict[str, Any]) -> EpisodeRequest:
    """Lay the layers over each other, the last on top, and make the request.

    Raises:
        InvalidRequestError: a value is wrong, or the request is not complete.
    """
    if not any(layer.get("definition_of_done") for layer in layers):
        raise InvalidRequestError(f"without a check nothing can be called done. Give at least one: {_EXAMPLE}")
    merged: dict[str, Any] = {}
    for layer in layers:
        for name, value in layer.items():
            below = merged.get(name)
            both = isinstance(below, dict) and isinstance(value, dict)
            merged[name] = {**below, **value} if both else value  # type: ignore[dict-item]
    try:
        request = EpisodeRequest.model_validate(merged)
    except ValidationError as error:
        raise InvalidRequestError(f"{first_problem(error)}. For example: {_EXAMPLE}") from error
    request.check()
    return request


def with_iterations(limit: int) -> dict[str, Any]:
    """Return the budget for `--max-iterations`: the warning comes at four fifths of it."""
    if limit < 1:
        raise InvalidRequestError(f"--max-iterations is {limit}; it must be at least 1")
    return {"max_iterations": limit, "warn_at_iteration": max(1, limit * 4 // 5)}


def read_options(pairs: list[str]) -> dict[str, Any]:
    """Read `name=value` pairs; a value is JSON, or plain text where it is not.

    Raises:
        InvalidRequestError: there is no `=`.
    """
    options: dict[str, Any] = {}
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not separator or not name:
            raise InvalidRequestError(f"--executor-option {pair!r} is not name=value. For example: model=gpt-5.1")
        try:
            options[name] = json.loads(value)
        except json.JSONDecodeError:
            options[name] = value
    return options
