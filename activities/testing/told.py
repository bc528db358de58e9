"""Reads what the runner told."""

import json
from collections.abc import Iterator
from typing import Any, TypeVar

from pydantic import ValidationError

from tightloop.testing.runs import Collected, Run, Session

TAIL_CHARACTERS = 300

M = TypeVar("M", Run, Collected)


def read_session(output: str, nonce: str, message: str = "") -> Session:
    """Return what was told with the nonce of the run; lines of anybody else, and wrong ones, are passed over."""
    plain: list[Run] = []
    mutated: dict[int, list[Run]] = {}
    sets: dict[str, set[int]] = {"unreached": set(), "broken": set()}
    missing, collected, ended, told = "", None, False, False
    for event in _events(output, nonce):
        told = True
        match event:
            case {"e": "missing", "program": program, "version": version, "why": why}:
                missing = f"{program} (Python {version}) has no pytest that works ({why})"
            case {"e": "collected"}:
                collected = _valid(Collected, event)
            case {"e": "plain"} if (run := _valid(Run, event)) is not None:
                plain.append(run)
            case {"e": "mutated", "mutant": int(number)} if (run := _valid(Run, event)) is not None:
                mutated.setdefault(number, []).append(run)
            case {"e": "unreached" | "broken" as what, "mutant": int(number)}:
                sets[what].add(number)
            case {"e": "end"}:
                ended = True
    return Session(
        missing=missing,
        collected=collected,
        plain=tuple(plain),
        mutated={number: tuple(runs) for number, runs in mutated.items()},
        unreached=frozenset(sets["unreached"]),
        broken=frozenset(sets["broken"]),
        ended=ended,
        output="" if told and collected else (message or output.strip())[-TAIL_CHARACTERS:],
    )


def _events(output: str, nonce: str) -> Iterator[dict[str, Any]]:
    for line in output.splitlines():
        if not line.startswith("{"):
            continue
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(event, dict) and event.get("n") == nonce:
            yield event


def _valid(model: type[M], event: dict[str, Any]) -> M | None:
    try:
        return model.model_validate(event)
    except ValidationError:
        return None
