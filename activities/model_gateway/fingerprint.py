"""Tells whether two calls ask the same, whatever their ids, times and folders."""

import hashlib
import json
import re
from collections.abc import Sequence
from typing import Any

from activities.model_gateway.exchange import Call
from activities.model_gateway.port import Wire

_MEASURED = (
    (r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "<id>"),
    (
        r"\b(?:call|msg|resp|rs|fc|ctc|item|req|chatcmpl|toolu|ses|prt|thread|turn|run|user)_(?=[a-z_-]*\d)[\w-]{6,}",
        "<id>",
    ),
    (r"\bchunk id: \w+", "<id>"),
    # Of an output that names a folder: it depends on how long the folder's name is.
    (r"\boriginal token count: \d+", "<count>"),
    (r"\b(pgid|pids?|process id|session id)(\W{1,4})\d+", r"\1\2<id>"),
    (r"\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:?\d\d)?)?", "<date>"),
    (r"\b(?:mon|tues|wednes|thurs|fri|satur|sun)day,? (?:[a-z]+ \d{1,2}|\d{1,2} [a-z]+),? \d{4}", "<date>"),
    (r"\b(?:mon|tue|wed|thu|fri|sat|sun) [a-z]{3} \d{1,2} \d{4}", "<date>"),
    (r"\b1\d{9}(?:\d{3})?\b", "<date>"),
    (r"\d+(?:\.\d+)? ?(?:ms|s|secs?|seconds)\b", "<time>"),
    (r"(duration\w*|wall time)([\"': ]{1,4})\d+(?:\.\d+)?", r"\1\2<time>"),
)
_UNASKED = ("client_metadata", "metadata", "prompt_cache_key", "safety_identifier", "user")
"""Top-level fields that say who asks, not what."""
_PATTERNS = tuple((re.compile(text, re.IGNORECASE), mark) for text, mark in _MEASURED)


def fingerprint(wire: Wire, call: Call, volatile: Sequence[str]) -> str:
    """Return the SHA-256, in hex, of what a call asks: wire format, method, path, query and body.

    Args:
        wire: of the door.
        call: as it came; its headers do not matter.
        volatile: paths that differ from run to run, in an order that does not.
    """
    try:
        body = json.loads(call.body) if call.body else None
        if isinstance(body, dict):
            body = {name: value for name, value in body.items() if name not in _UNASKED}
        text = json.dumps(normalised(body, volatile), sort_keys=True, separators=(",", ":"))
    except (ValueError, RecursionError):
        text = hashlib.sha256(call.body).hexdigest()
    asked = "\n".join((wire, call.method, call.route.tail, call.route.query, text))
    return hashlib.sha256(asked.encode("utf-8", "surrogatepass")).hexdigest()


def normalised(value: Any, volatile: Sequence[str]) -> Any:
    """Return decoded JSON with marks in place of ids, dates, durations, counts and the given paths."""
    if isinstance(value, dict):
        return {_plain(key, volatile): normalised(item, volatile) for key, item in value.items()}
    if isinstance(value, list):
        return [normalised(item, volatile) for item in value]
    return _plain(value, volatile) if isinstance(value, str) else value


def marks(volatile: Sequence[str]) -> list[tuple[str, str]]:
    """Return each path with its placeholder, the longest first: one can lie within another."""
    pairs = [(path.rstrip("/"), f"<volatile-{number}>") for number, path in enumerate(volatile)]
    return sorted((pair for pair in pairs if pair[0]), key=lambda pair: -len(pair[0]))


def _plain(text: str, volatile: Sequence[str]) -> str:
    for path, mark in marks(volatile):
        text = text.replace(path, mark)
    for pattern, mark in _PATTERNS:
        text = pattern.sub(mark, text)
    return text
