"""Turns the errors of the models into sentences with a position and a suggestion."""

import re
from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from tightloop.errors import Problem, did_you_mean
from tightloop.plan.text.located import Map, Path, Seq, position

# A reader corrects the first ones and runs again.
PROBLEMS_LIMIT = 50
VALUE_CHARACTERS = 60
_EXPECTED = re.compile(r"'([^']*)'")
_UNFIT = re.compile(r"[^A-Za-z0-9._-]+")


def diagnose(error: ValidationError, tree: Any) -> list[Problem]:
    """Return one problem for each wrong value, at most `PROBLEMS_LIMIT`. `normalize` has reported unknown fields."""
    found: dict[Path, Problem] = {}
    for detail in error.errors(include_url=False):
        # Reported there with a suggestion, and by the name that the author wrote.
        if detail["type"] == "extra_forbidden":
            continue
        path, where = _real_path(detail["loc"], tree)
        message, suggestion = _sentence(detail, path)
        code = "missing" if detail["type"] == "missing" else "wrong-value"
        at = position(tree, path)
        found.setdefault(path, Problem(message=message + where, suggestion=suggestion, position=at, code=code))
        if len(found) >= PROBLEMS_LIMIT:
            break
    return list(found.values())


def _real_path(loc: Sequence[str | int], tree: Any) -> tuple[Path, str]:
    """Return the path without the parts that name a type, and ` in step '<id>'` where it leads into one."""
    path: list[str | int] = []
    owner = ""
    for index, part in enumerate(loc):
        if isinstance(tree, Map) and isinstance(part, str):
            if part not in tree:
                return (*path, part) if index == len(loc) - 1 else tuple(path), owner
            tree = tree[part]
            path.append(part)
        elif isinstance(tree, Seq) and isinstance(part, int) and part < len(tree):
            tree = tree[part]
            if path and path[-1] == "steps" and isinstance(tree, dict):
                owner = f" in step '{tree.get('id', part)}'"
            path.append(part)
    return tuple(path), owner


def _sentence(detail: ErrorDetails, path: Path) -> tuple[str, str]:
    kind, value = detail["type"], detail["input"]
    if kind == "missing":
        missing = path[-1] if path else "the plan"
        return f"'{missing}' is missing", f"Add `{missing}:`"
    start = 0
    for index, part in enumerate(path):
        if part == "steps" and index + 1 < len(path) - 1:
            start = index + 2
    name = ".".join(str(part) for part in path[start:]) or "the plan"
    shown = _shown(value)
    if kind in ("enum", "literal_error"):
        known = _EXPECTED.findall(str(detail.get("ctx", {}).get("expected", "")))
        return f"'{name}' is {shown}", did_you_mean(str(value), known)
    if kind == "string_type" and isinstance(value, bool | int | float):
        return f"'{name}' must be a text, not {shown}", f'Put it in quotes: "{shown}"'
    if kind == "string_pattern_mismatch" and path and path[-1] == "id":
        fit = _UNFIT.sub("-", str(value)).strip("-._")[:63]
        rule = (
            "it has at most 63 letters, digits, '.', '_' and '-', begins with a letter or digit, and may end with '*'"
        )
        return f"{shown} is not a valid id: {rule}", f"Write `{fit}`" if fit else ""
    if kind == "string_pattern_mismatch":
        known = re.findall(r"[a-z]+", str(detail.get("ctx", {}).get("pattern", "")))
        return f"'{name}' is {shown}", did_you_mean(str(value), known)
    if kind in ("tuple_type", "list_type"):
        return f"'{name}' must be a list, not {shown}", f"Write `{path[-1] if path else name}: [...]`"
    if kind in ("model_type", "dict_type", "model_attributes_type"):
        return f"'{name}' must be fields (`key: value`), not {shown}", ""
    said = detail["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
    return f"'{name}' must be {said}, not {shown}", ""


def _shown(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "empty"}[value]
    if isinstance(value, dict | list | tuple):
        return "fields" if isinstance(value, dict) else "a list"
    text = f"'{value}'" if isinstance(value, str) else str(value)
    return text if len(text) <= VALUE_CHARACTERS else f"{text[:VALUE_CHARACTERS]}...'"
