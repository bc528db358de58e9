"""Turns the errors of the models into sentences with a position and a suggestion."""

import re
from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from tightloop.errors import Problem, did_you_mean
from tightloop.plan.document.step import ID_CHARACTERS
from tightloop.plan.text.located import Map, Path, Seq, position
from tightloop.value.duration import UNITS

# A reader corrects the first ones and runs again.
PROBLEMS_LIMIT = 50
VALUE_CHARACTERS = 60
_TYPES = frozenset({"str", "Prose", "tuple[str, ...]", "tuple[any, ...]"})
"""How pydantic names the ways of a field that may be a text or something else."""
_WORDS = {
    "string": "a text", "int": "a whole number", "float": "a number", "finite": "a number", "bool": "true or false",
}  # fmt: skip
_BOUNDS = {
    "greater_than": ("above", "gt"),
    "greater_than_equal": ("at least", "ge"),
    "less_than": ("below", "lt"),
    "less_than_equal": ("at most", "le"),
}
_AMOUNT = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]+)")
_BETWEEN = re.compile(r"\s+|,|\band\b")
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
        message, suggestion = _sentence(detail, path, tree)
        code = "missing" if detail["type"] == "missing" else "wrong-value"
        at = position(tree, path)
        found.setdefault(path, Problem(message=message + where, suggestion=suggestion, position=at, code=code))
        if len(found) >= PROBLEMS_LIMIT:
            break
    # A text or fields: where the fields are wrong, that it might have been a text is of no help.
    return [
        one for path, one in found.items() if not any(path != other and path == other[: len(path)] for other in found)
    ]


def _real_path(loc: Sequence[str | int], tree: Any) -> tuple[Path, str]:
    """Return the path without the parts that name a type, and ` in step '<id>'` where it leads into one."""
    path: list[str | int] = []
    owner = ""
    for index, part in enumerate(loc):
        if isinstance(tree, Map) and isinstance(part, str):
            if part in _TYPES and part not in tree and index < len(loc) - 1:
                continue
            if part not in tree:
                missing = index == len(loc) - 1 and part not in _TYPES
                return (*path, part) if missing else tuple(path), owner
            tree = _below(tree, part)
            path.append(part)
        elif isinstance(tree, Seq) and isinstance(part, int) and part < len(tree):
            tree = _below(tree, part)
            if path and path[-1] == "steps" and isinstance(tree, dict):
                owner = f" in step '{tree['id']}'" if "id" in tree else ""
            path.append(part)
    return tuple(path), owner


def _below(tree: Any, part: str | int) -> Any:
    if isinstance(tree, dict):
        return tree.get(part)
    return tree[part] if isinstance(tree, list) and isinstance(part, int) and part < len(tree) else None


def _sentence(detail: ErrorDetails, path: Path, tree: Any) -> tuple[str, str]:
    kind, value = detail["type"], detail["input"]
    if kind == "missing":
        missing = path[-1] if path else "the plan"
        return f"'{missing}' is missing", f"Add `{missing}:`"
    name, shown, last = _name(path, tree), _shown(value), path[-1] if path else ""
    if kind in ("enum", "literal_error"):
        known = _EXPECTED.findall(str(detail.get("ctx", {}).get("expected", "")))
        return f"{name} is {shown}", did_you_mean(str(value), known)
    if (str(last).endswith("_s") or kind.startswith("time_delta")) and not kind.endswith(("than", "equal")):
        return f"{name} is not a duration: {shown}", _duration(value)
    if kind == "string_pattern_mismatch" and last == "id":
        fit = _UNFIT.sub("-", str(value)).strip("-._")[:ID_CHARACTERS]
        rule = (
            f"it has at most {ID_CHARACTERS} letters, digits, '.', '_' and '-', begins with a letter or digit, and may "
            "end with '*'"
        )
        return f"{shown} is not a valid id: {rule}", f"Write `{fit}`" if fit else ""
    if kind == "string_pattern_mismatch":
        known = re.findall(r"[a-z]+", str(detail.get("ctx", {}).get("pattern", "")))
        return f"{name} is {shown}", did_you_mean(str(value), known)
    if kind in _BOUNDS:
        word, limit = _BOUNDS[kind]
        return f"{name} is {shown}; it must be {word} {detail.get('ctx', {}).get(limit):g}", ""
    return _of_type(detail, name, shown, str(last))


def _of_type(detail: ErrorDetails, name: str, shown: str, last: str) -> tuple[str, str]:
    kind, value = detail["type"], detail["input"]
    if kind == "string_type" and isinstance(value, bool | int | float):
        return f"{name} must be a text, not {shown}", f'Put it in quotes: "{shown}"'
    if kind in ("tuple_type", "list_type"):
        are_steps = last == "steps" and isinstance(value, dict)
        fix = "Begin each step with `- id: NAME`" if are_steps else f"Write `{last or name}: [...]`"
        return f"{name} must be a list, not {shown}", fix
    if kind in ("model_type", "dict_type", "model_attributes_type"):
        return f"{name} must be fields (`key: value`), not {shown}", ""
    if kind == "value_error":
        return f"{name}: {detail.get('ctx', {}).get('error')}", ""
    word = next((word for start, word in _WORDS.items() if kind.startswith(start)), "")
    return (f"{name} must be {word}, not {shown}", "") if word else (f"{name} cannot be {shown}", "")


def _name(path: Path, tree: Any) -> str:
    """Return a field as its author wrote it, below its step."""
    start = max((at + 2 for at, part in enumerate(path[:-2]) if part == "steps"), default=0)
    parts: list[str] = []
    for number, part in enumerate(path):
        written = tree.written.get(str(part), part) if isinstance(tree, Map) else part
        if number >= start:
            parts.append(f"item {part + 1}" if isinstance(part, int) else str(written))
        tree = _below(tree, part)
    if not parts:
        return "the plan"
    if len(parts) > 1 and parts[-1].startswith("item "):
        return f"{parts[-1]} of '{'.'.join(parts[:-1])}'"
    return f"'{'.'.join(parts)}'" if not parts[-1].startswith("item ") else parts[-1]


def _duration(value: Any) -> str:
    rule = "A duration is a number of seconds, or `90s`, `5m`, `2h`, `1d`"
    parts = _AMOUNT.findall(value) if isinstance(value, str) else []
    whole = "".join(f"{number}{unit}" for number, unit in parts).lower()
    units = [UNITS.get(unit[:1].lower() if unit.lower() != "ms" else "") for _, unit in parts]
    if not parts or None in units or len(whole) != len(_BETWEEN.sub("", value.lower())):
        return rule
    if len(parts) == 1:
        return f"Write `{parts[0][0]}{parts[0][1][:1].lower()}`. {rule}"
    seconds = sum(float(number) * (unit or 0) for (number, _), unit in zip(parts, units, strict=True))
    return f"Write `{seconds:g}s`. {rule}"


def _shown(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "empty"}[value]
    if isinstance(value, dict | list | tuple):
        return "fields" if isinstance(value, dict) else "a list"
    text = f"'{value}'" if isinstance(value, str) else str(value)
    return text if len(text) <= VALUE_CHARACTERS else f"{text[:VALUE_CHARACTERS]}...'"
