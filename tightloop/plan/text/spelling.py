"""The other spellings of fields that plans in the wild use, and the short forms of values."""

import re
from functools import lru_cache
from typing import Any

from tightloop.plan.problem import Position
from tightloop.plan.text.marked import Map, Seq, seq

PLAN_NAMES = {
    "plan_id": "id",
    "nodes": "steps",
    "tasks": "steps",
    "policies": "policy",
    "dod": "definition_of_done",
}
STEP_NAMES = {
    "name": "title",
    "depends_on": "needs",
    "dependencies": "needs",
    "input": "inputs",
    "success_criteria": "expect",
    "validation": "expect",
    "postconditions": "expect",
    "timeout": "timeout_s",
    "timebox": "timebox_s",
    "estimate": "estimate_s",
    "rollback": "compensate",
    "foreach": "for_each",
}
BUDGET_NAMES = {
    "cost_usd": "max_cost_usd",
    "tokens": "max_tokens",
    "steps": "max_steps",
    "depth": "max_depth",
    "api_calls": "max_api_calls",
}
IGNORED_IN_PLAN = {
    "version": "revisions are counted by the run",
    "status": "the run knows it",
    "state": "the run knows it",
}
IGNORED_IN_STEP = {"status": "the run knows it", "state": "the run knows it"}
TEXT_LISTS = ("labels", "preconditions", "expect", "effects", "assumptions", "risks")
MAIN_TEXT = {
    "shell": "run",
    "model": "prompt",
    "search": "query",
    "fetch": "urls",
    "http": "url",
    "episode": "goal",
    "checkpoint": "name",
}
"""The field of an action that a bare text is meant for."""
CAPABILITY_NAMES = {"web.fetch": "fetch", "web.search": "search", "llm": "model", "bash": "shell", "sh": "shell"}

_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|min|h|d)")
_SECONDS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400}
_WORDS = re.compile(r"[\s,]+")
NAMES_KEPT = 1_000
"""A plan of thousands of steps has the same few dozen names of fields in each."""


@lru_cache(maxsize=NAMES_KEPT)
def snake(name: str) -> str:
    """Return `depends_on` for `dependsOn` and `depends-on`."""
    return _CAMEL.sub("_", name).replace("-", "_").lower()


def rename_fields(fields: Map, names: dict[str, str], known: frozenset[str]) -> None:
    """Give every field its own name; what is not known stays as it is, to be refused with its place."""
    for field in list(fields):
        if field in known:
            continue
        new = names.get(snake(field), snake(field))
        if new in known and new not in fields:
            fields.rename(field, new)


def as_words(fields: Map, field: str) -> None:
    """Turn `a b` or `a, b` into a list."""
    value = fields.get(field)
    if isinstance(value, str):
        at = fields.values_at[field]
        made = Seq(at)
        start = 0
        for word in _WORDS.split(value):
            start = value.find(word, start)
            if word:
                made.add(word, Position(at.line, at.column + (0 if "\n" in value else start)))
            start += len(word)
        fields.put(field, made, at=at, key_at=fields.keys_at[field])


def as_list(fields: Map, field: str) -> None:
    """Turn a single text into a list of one."""
    if isinstance(fields.get(field), str):
        at = fields.values_at[field]
        fields.put(field, seq([fields[field]], at), at=at, key_at=fields.keys_at[field])


def as_fields(fields: Map, field: str, name: str) -> None:
    """Turn a bare text into a mapping with this one field."""
    if isinstance(fields.get(field), str):
        value, at, key_at = fields.take(field)
        made = Map(at)
        made.put(name, value, at=at, key_at=at)
        fields.put(field, made, at=at, key_at=key_at)


def as_seconds(fields: Map, field: str, unit: float = 1.0) -> None:
    """Turn `90s`, `10m`, `2h` or a number of units into seconds."""
    value = fields.get(field)
    if isinstance(value, str) and (found := _DURATION.fullmatch(value.strip())):
        fields[field] = float(found[1]) * _SECONDS[found[2]]
    elif unit != 1.0 and isinstance(value, int | float) and not isinstance(value, bool):
        fields[field] = value * unit


def budget_fields(fields: Any, known: frozenset[str]) -> tuple[Any, Position, Position] | None:
    """Rename the fields of a budget; take out its time (`timeMin`, `time`), in seconds, if it has one."""
    if not isinstance(fields, Map):
        return None
    rename_fields(fields, BUDGET_NAMES, known)
    for field in list(fields):
        name = snake(field)
        if name in ("time_min", "time", "time_s", "time_hours"):
            as_seconds(fields, field, {"time_min": 60.0, "time_hours": 3600.0}.get(name, 1.0))
            return fields.take(field)
    return None


def id_from(file: str) -> str:
    """Return an id for a plan that has none: its file's name."""
    stem = file.replace("\\", "/").rsplit("/", 1)[-1].split(".", 1)[0]
    return re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip("-._")[:63] or "plan"
