"""Builds the request of an episode from a file, options and settings; unknown names are refused."""

import json
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from tightloop.episode.check import Check
from tightloop.episode.model import LONGEST_LIMIT_S, EpisodeRequest
from tightloop.episode.progress.presets import under_request
from tightloop.errors import InvalidRequestError
from tightloop.settings import Settings
from tightloop.value import first_problem

_EXAMPLE = 'tightloop start "make the tests pass" --done "pytest -q"'


def read_request_file(path: Path) -> dict[str, Any]:
    """Read a request as YAML or JSON.

    Raises:
        InvalidRequestError: the file cannot be read, is not a mapping, or has an unknown field.
    """
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidRequestError(f"the request file {path} cannot be read: {error.strerror}. Name a file") from error
    except UnicodeDecodeError as error:
        raise InvalidRequestError(f"the request file {path} is not UTF-8 text (byte {error.start})") from error
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
        raise InvalidRequestError(f"{path}: unknown field {unknown[0]!r}. Known fields: {known}")
    return document


def unknown_fields(model: type[BaseModel], document: dict[str, Any], above: str = "") -> list[str]:
    """Return the dotted names in `document` that `model` does not have, also in its parts."""
    found = []
    for name, value in document.items():
        field = model.model_fields.get(name)
        if field is None:
            found.append(f"{above}{name}")
            continue
        # Its type is a tuple, which does not say what is in it.
        part = Check if name == "definition_of_done" else field.annotation
        if isinstance(part, type) and issubclass(part, BaseModel):
            for item in value if isinstance(value, list) else [value]:
                found += unknown_fields(part, item, f"{above}{name}.") if isinstance(item, dict) else []
    return found


def given(**options: Any) -> dict[str, Any]:
    """Return the options that were given on the command line."""
    return {name: value for name, value in options.items() if value is not None}


def defaults_from(settings: Settings) -> dict[str, Any]:
    """Return the defaults that the settings give for a request."""
    return {
        "planner": settings.planner.kind,
        "executor": {
            "name": settings.executor.default,
            "fallback": settings.executor.fallback,
            "wall_limit_s": settings.executor.wall_limit_s,
            "idle_limit_s": settings.executor.idle_limit_s,
            "on_crash": settings.executor.on_crash,
        },
        "budget": settings.budget.as_budget().model_dump(),
        "preset": settings.tracking.preset,
        "thresholds": settings.tracking.as_thresholds().model_dump(),
        "repeat_error_limit": settings.tracking.repeat_error_limit,
        "deviation_limit": settings.tracking.deviation_limit,
    }


def build_request(*layers: dict[str, Any]) -> EpisodeRequest:
    """Merge the layers, the last on top, and make the request.

    Raises:
        InvalidRequestError: a value is wrong, or the request is not complete.
    """
    if not any(layer.get("definition_of_done") for layer in layers):
        raise InvalidRequestError(f"without a check nothing can be called done. Give at least one: {_EXAMPLE}")
    merged: dict[str, Any] = {}
    for layer in layers:
        for name, value in under_request(layer).items():
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
    """Return the budget for `--max-iterations`: the planner is warned at four fifths of it."""
    if limit < 1:
        raise InvalidRequestError(f"--max-iterations is {limit}; it must be at least 1")
    # As 12 of the 15 of the default budget.
    return {"max_iterations": limit, "warn_at_iteration": max(1, limit * 4 // 5)}


def with_timeout(checks: list[Any] | None, seconds: float | None) -> list[Any] | None:
    """Return the checks for `--check-timeout`: it holds for those that name no `timeout_s` themselves.

    Raises:
        InvalidRequestError: it is not a time.
    """
    if seconds is None or checks is None:
        return checks
    if not 0 < seconds <= LONGEST_LIMIT_S:
        raise InvalidRequestError(
            f"--check-timeout is {seconds:g}; it must be above 0 and at most {LONGEST_LIMIT_S} seconds"
        )
    return [{"timeout_s": seconds, **({"run": one} if isinstance(one, str) else one)} for one in checks]


def read_pairs(option: str, pairs: list[str], example: str) -> dict[str, str]:
    """Read the `name=value` pairs of an option.

    Raises:
        InvalidRequestError: the `=` is missing.
    """
    split = [(pair, *pair.partition("=")) for pair in pairs]
    for pair, name, separator, _ in split:
        if not separator or not name:
            raise InvalidRequestError(f"{option} {pair!r} is not name=value. For example: {option} {example}")
    return {name: value for _, name, _, value in split}


def json_or_text(text: str) -> Any:
    """Return the value of a JSON text, or else the text itself."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text
