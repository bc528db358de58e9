"""The outputs of a step: what it names, taken from its standard output, from files, or from results of the action."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from activities.plan.files import read_text
from tightloop.errors import InvalidRequestError, ReferenceMissingError
from tightloop.plan.document.step import Step
from tightloop.plan.language.reference import follow

DEPTH_LIMIT = 100
"""Levels of lists and mappings in an output, as in a plan."""


def collect_outputs(step: Step, results: Mapping[str, Any], root: Path) -> dict[str, Any]:
    """Return the action's own results and the outputs that the step declares; the declared ones win.

    Raises:
        InvalidRequestError: an output is not there, or not what it is said to be; the message names it.
    """
    declared = {name: _output(name, source, results, root) for name, source in step.outputs.items()}
    if why := find_unfit(declared):
        raise InvalidRequestError(why)
    return {**results, **declared}


def count_items(outputs: Mapping[str, Any]) -> dict[str, int]:
    """Return the lengths of the outputs that are lists."""
    return {name: len(value) for name, value in outputs.items() if isinstance(value, list | tuple)}


def find_unfit(outputs: Mapping[str, Any]) -> str:
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
            # UTF-8 has no form for it, so neither the record nor Temporal's JSON could hold it.
            if any("\ud800" <= letter <= "\udfff" for letter in one):
                return "the text is not valid Unicode: it has half of a surrogate pair"
        # Python writes NaN and Infinity, which are not JSON (RFC 8259, section 6).
        elif isinstance(one, float) and not math.isfinite(one):
            return f"{one} is not a JSON number"
        elif isinstance(one, Mapping | list | tuple):
            if depth == DEPTH_LIMIT:
                return f"nested deeper than {DEPTH_LIMIT} levels"
            inner = (*one, *one.values()) if isinstance(one, Mapping) else one
            waiting.extend((each, depth + 1) for each in inner)
    return ""


def _output(name: str, source: str, results: Mapping[str, Any], root: Path) -> Any:
    kind, colon, path = source.partition(":")
    if colon and kind in ("file", "json"):
        text = read_text(root, path.strip())
        if text is None:
            raise InvalidRequestError(f"output {name!r}: the step left no file {path.strip()!r}")
        return text if kind == "file" else _json(name, text, path.strip())
    parts = source.split(".")
    if parts[0] == "json" and "stdout" in results:
        results = {**results, "json": _json(name, str(results["stdout"]), "its standard output")}
    try:
        return follow(results, parts, name=source)
    except ReferenceMissingError:
        known = ", ".join(sorted(results)) or "none"
        raise InvalidRequestError(
            f"output {name!r}: the step has no result {source!r}. It has: {known}; "
            "`json`, `file:<path>` and `json:<path>` are possible too"
        ) from None


def _json(name: str, text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except RecursionError:
        raise InvalidRequestError(f"output {name!r}: {where} is nested deeper than {DEPTH_LIMIT} levels") from None
    except ValueError as error:
        raise InvalidRequestError(f"output {name!r}: {where} is not JSON: {error}") from error
