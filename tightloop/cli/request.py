"""Builds the request of an episode from a file, options and settings; unknown names are refused."""

import json
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from tightloop.episode.model import LONGEST_LIMIT_S, EpisodeRequest
from tightloop.episode.progress.presets import under_request
from tightloop.errors import InvalidRequestError
from tightloop.settings import Settings
from tightloop.settings.defaults import layered, with_defaults
from tightloop.value import first_problem
from tightloop.value.caller import unknown_fields
from tightloop.value.yaml_reading import load_yaml

_EXAMPLE = 'tightloop start "make the tests pass" --done "pytest -q"'


def read_request_file(path: Path) -> dict[str, Any]:
    """Read a request as YAML or JSON.

    Raises:
        InvalidRequestError: the file cannot be read, is not a mapping, or has an unknown field.
    """
    try:
        document = load_yaml(path.read_text(encoding="utf-8"))
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
    if unknown := next(unknown_fields(EpisodeRequest, document), ""):
        raise InvalidRequestError(f"{path}: {unknown}")
    return document


def given(**options: Any) -> dict[str, Any]:
    """Return the options that were given on the command line."""
    return {name: value for name, value in options.items() if value is not None}


def read_request(
    settings: Settings, file: Path | None, asked: dict[str, Any], *, workspace: str | None, check_timeout: float | None
) -> EpisodeRequest:
    """Make the request of `tightloop start` from its file and options; an option wins over the file.

    Raises:
        InvalidRequestError: a value is wrong, or the request is not complete.
    """
    written = read_request_file(file) if file else {}
    checks = with_timeout(asked.get("definition_of_done") or written.get("definition_of_done"), check_timeout)
    folder = Path(workspace or written.get("workspace") or ".").expanduser().resolve()
    return build_request(settings, written, asked | given(definition_of_done=checks), {"workspace": str(folder)})


def build_request(settings: Settings, *layers: dict[str, Any]) -> EpisodeRequest:
    """Merge the layers, the last on top, over the defaults of the settings, and make the request.

    Raises:
        InvalidRequestError: a value is wrong, or the request is not complete.
    """
    if not any(layer.get("definition_of_done") for layer in layers):
        raise InvalidRequestError(f"without a check nothing can be called done. Give at least one: {_EXAMPLE}")
    merged: dict[str, Any] = {}
    for layer in layers:
        merged = layered(merged, under_request(layer))
    try:
        request = EpisodeRequest.model_validate(merged)
    except ValidationError as error:
        raise InvalidRequestError(f"{first_problem(error)}. For example: {_EXAMPLE}") from error
    request = with_defaults(request, settings)
    request.check()
    return request


def budget_of(limit: int | None) -> dict[str, Any] | None:
    """Return the budget for `--max-iterations`: the planner is warned at four fifths of it."""
    if limit is None:
        return None
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


def executor_values(pairs: list[str] | None) -> dict[str, Any] | None:
    """Return the values of `--executor-option`.

    Raises:
        InvalidRequestError: one is not `name=value`.
    """
    read = read_pairs("--executor-option", pairs or [], "model=gpt-5.1")
    return {name: json_or_text(value) for name, value in read.items()} or None


def json_or_text(text: str) -> Any:
    """Return the value of a JSON text, or else the text itself."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text
