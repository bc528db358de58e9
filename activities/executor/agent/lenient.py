"""Reads the JSON that agents print, leniently: they change their events with every release."""

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from tightloop.executor.model import DENIED_CHARACTERS, DENIED_LINES, SUMMARY_CHARACTERS, EventKind, ExecutorEvent
from tightloop.value import shorten


def decode_event(line: str) -> dict[str, Any] | None:
    """Return the event of a line; None for a line that is not a JSON object."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def words(table: Mapping[str, Any], name: str) -> str:
    """Return a text field; empty where it is absent or something else."""
    value = table.get(name)
    return value if isinstance(value, str) else ""


def mapping(value: object) -> dict[str, Any]:
    """Return `value` where it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def part(table: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return a field that is an object; empty where it is absent or something else."""
    return mapping(table.get(name))


def parts(table: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    """Return the objects of a field that is a list."""
    value = table.get(name)
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def number(table: Mapping[str, Any], name: str) -> int | None:
    """Return a field that is a whole number."""
    value = table.get(name)
    # In Python, true and false are whole numbers as well.
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def said(message: Mapping[str, Any]) -> str:
    """Return the text blocks of a message, one after the other."""
    return "\n".join(text for block in parts(message, "content") if (text := words(block, "text")))


def event(kind: EventKind, text: str = "", *, session_id: str = "", exit_code: int | None = None) -> ExecutorEvent:
    """Return an event with its text bounded."""
    return ExecutorEvent(kind=kind, text=shorten(text, SUMMARY_CHARACTERS), session_id=session_id, exit_code=exit_code)


def denied_lines(lines: Iterable[str]) -> tuple[str, ...]:
    """Return what was denied, each once, bounded."""
    return tuple(dict.fromkeys(shorten(" ".join(line.split()), DENIED_CHARACTERS) for line in lines))[:DENIED_LINES]


def local_now() -> datetime:
    """Return the present time in the zone of this host: agents name times of day without a zone."""
    return datetime.now(UTC).astimezone()
