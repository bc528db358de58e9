"""Tells whether two calls ask the same, whatever their ids, times and folders."""

import hashlib
import json
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from activities.model.gateway.exchange import Call
from activities.model.gateway.port import Wire

_UNASKED = ("client_metadata", "metadata", "prompt_cache_key", "safety_identifier", "user")
"""Top-level fields that say who asks, not what."""
_RULES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))["pattern"]
_PATTERNS = tuple((re.compile(rule["text"], re.IGNORECASE), rule["mark"]) for rule in _RULES)


def fingerprint(wire: Wire, call: Call, volatile: Sequence[str]) -> str:
    """Return the SHA-256, in hex, of what a call asks: wire format, method, path, query and body.

    `volatile` are paths that differ from run to run, in an order that does not.
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
