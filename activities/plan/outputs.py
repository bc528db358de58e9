"""The outputs of a step: what it names, taken from its standard output, from files, or from results of the action."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from activities.plan.files import read_file
from tightloop.errors import InvalidRequestError, ReferenceMissingError
from tightloop.plan.language.reference import follow
from tightloop.plan.model import Step

DEPTH_LIMIT = 100
"""Levels of lists and mappings in an output, as in a plan."""


def outputs_of(step: Step, results: Mapping[str, Any], root: Path) -> dict[str, Any]:
    """Return the action's own results and the outputs that the step declares; the declared ones win.

    Raises:
        InvalidRequestError: an output is not there, or not what it is said to be; the message names it.
    """
    declared = {name: _output(name, source, results, root) for name, source in step.outputs.items()}
    if why := unfit(declared):
        raise InvalidRequestError(why)
    return {**results, **declared}


def counts_of(outputs: Mapping[str, Any]) -> dict[str, int]:
    """Return the lengths of the outputs that are lists."""
    return {name: len(value) for name, value in outputs.items() if isinstance(value, list | tuple)}


def unfit(outputs: Mapping[str, Any]) -> str:
    """Return why results cannot be kept as JSON that is Unicode, or ""."""
    for name, value in outputs.items():
        if why := _unfit(name) or _unfit(value):
            return f"output {name!r}: {why}"
    return ""


def _unfit(value: Any) -> str:
    # Without recursion: the depth is what is looked for.
    waiting = [(value, 0)]
    while waiting:
        one, depth = waiting.pop()
        if isinstance(one, str):
            if any("\ud800" <= letter <= "\udfff" for letter in one):
                return "a text with half of a surrogate pair is no Unicode"
        elif isinstance(one, float) and not math.isfinite(one):
            return f"{one} is no JSON number"
        elif isinstance(one, Mapping | list | tuple):
            if depth == DEPTH_LIMIT:
                return f"nested deeper than {DEPTH_LIMIT} levels"
            inner = (*one, *one.values()) if isinstance(one, Mapping) else one
            waiting.extend((each, depth + 1) for each in inner)
    return ""


def _output(name: str, source: str, results: Mapping[str, Any], root: Path) -> Any:
    kind, colon, path = source.partition(":")
    if colon and kind in ("file", "json"):
        content = read_file(root, path.strip())
        if content is None:
            raise InvalidRequestError(f"output {name!r}: the step left no file {path.strip()!r}")
        text = _text(name, content)
        return text if kind == "file" else _json(name, text, path.strip())
    if source == "json":
        return _json(name, str(results.get("stdout", "")), "its standard output")
    try:
        return follow(results, source.split("."), name=source)
    except ReferenceMissingError:
        known = ", ".join(sorted(results)) or "none"
        raise InvalidRequestError(
            f"output {name!r}: the step has no result {source!r}. It has: {known}; "
            "`json`, `file:<path>` and `json:<path>` are possible too"
        ) from None


def _text(name: str, content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise InvalidRequestError(f"output {name!r}: the file is no UTF-8 text (byte {error.start})") from error


def _json(name: str, text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except RecursionError:
        raise InvalidRequestError(f"output {name!r}: {where} is nested deeper than {DEPTH_LIMIT} levels") from None
    except ValueError as error:
        raise InvalidRequestError(f"output {name!r}: {where} is no JSON: {error}") from error
