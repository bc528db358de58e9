"""What the models refuse, in sentences with a place and a suggestion."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from tightloop.plan.model import Plan
from tightloop.plan.problem import Problem, did_you_mean
from tightloop.plan.text.marked import Map, Path, Seq, position

PROBLEMS_LIMIT = 50
VALUE_CHARACTERS = 60
_EXPECTED = re.compile(r"'([^']*)'")
_UNFIT = re.compile(r"[^A-Za-z0-9._-]+")
_TOLERANT = ("definition_of_done", "checks", "budget")
"""Fields of steps whose models ignore what they do not know, because they cross Temporal."""


def complaints(error: ValidationError, tree: Any) -> list[Problem]:
    """Return one problem for each wrong place, at most `PROBLEMS_LIMIT`."""
    found: dict[Path, Problem] = {}
    for detail in error.errors(include_url=False):
        path = _real_path(detail["loc"], tree)
        found.setdefault(path, _complaint(detail, path, tree))
        if len(found) >= PROBLEMS_LIMIT:
            break
    return list(found.values())


def unknown_fields(tree: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield the misspelt fields of those models that would silently ignore them."""
    yield from _unknown(tree, Plan, ("definition_of_done",), tree)
    yield from _unknown_in_steps(tree.get("steps"), ("steps",), tree)


def _unknown_in_steps(steps: Any, path: Path, tree: Any) -> Iterator[Problem]:
    for index, step in enumerate(steps if isinstance(steps, Seq) else ()):
        if not isinstance(step, Map):
            continue
        for action in ("episode", "branch", "subplan"):
            inner = step.get(action)
            if not isinstance(inner, Map):
                continue
            here = (*path, index, action)
            for field in _TOLERANT:
                yield from _unknown(inner, _model_at((*here, "?")), (*here, field), tree)
            yield from _unknown_in_steps(inner.get("steps"), (*here, "steps"), tree)
            alternatives = inner.get("alternatives")
            for number, one in enumerate(alternatives if isinstance(alternatives, Seq) else ()):
                if isinstance(one, Map):
                    below = (*here, "alternatives", number, "steps")
                    yield from _unknown_in_steps(one.get("steps"), below, tree)


def _unknown(owner: Mapping[str, Any], model: type[BaseModel] | None, path: Path, tree: Any) -> Iterator[Problem]:
    value = owner.get(str(path[-1]))
    if model is None or path[-1] not in model.model_fields:
        return
    field_model = _model_at((*path, "?"))
    for index, one in enumerate(value) if isinstance(value, Seq) else [(None, value)]:
        for name in one if isinstance(one, Map) and field_model is not None else ():
            known = set(field_model.model_fields) if field_model else set()
            if name not in known:
                place = (*path, name) if index is None else (*path, index, name)
                yield _unknown_field(name, known, place, tree)


def _unknown_field(name: str, known: set[str], path: Path, tree: Any) -> Problem:
    return Problem(
        message=f"unknown field '{name}'{_of(path, tree)}",
        suggestion=did_you_mean(name, known),
        position=position(tree, path, key=True),
        code="unknown-field",
    )


def _real_path(loc: Sequence[str | int], tree: Any) -> Path:
    """Leave out the parts that name a type, not a field."""
    path: list[str | int] = []
    for index, part in enumerate(loc):
        last = index == len(loc) - 1
        if isinstance(tree, Map) and isinstance(part, str):
            if part not in tree:
                return (*path, part) if last else tuple(path)
            tree = tree[part]
            path.append(part)
        elif isinstance(tree, Seq) and isinstance(part, int) and part < len(tree):
            tree = tree[part]
            path.append(part)
    return tuple(path)


def _complaint(detail: ErrorDetails, path: Path, tree: Any) -> Problem:
    kind, name = detail["type"], str(path[-1]) if path else "the plan"
    if kind == "extra_forbidden":
        model = _model_at(path)
        known = {field.alias or key for key, field in model.model_fields.items()} if model else set()
        return _unknown_field(name, known, path, tree)
    if kind == "missing":
        said = f"'{name}' is missing{_of(path, tree)}"
        return Problem(message=said, suggestion=f"Add `{name}:`", position=position(tree, path), code="missing")
    message, suggestion = _sentence(detail, path)
    place = position(tree, path)
    return Problem(message=message + _of(path, tree), suggestion=suggestion, position=place, code="wrong-value")


def _sentence(detail: ErrorDetails, path: Path) -> tuple[str, str]:
    kind, value = detail["type"], detail["input"]
    name = _dotted(path)
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
        return f"{shown} is no id: {rule}", f"Write `{fit}`" if fit else ""
    if kind == "string_pattern_mismatch":
        known = re.findall(r"[a-z]+", str(detail.get("ctx", {}).get("pattern", "")))
        return f"'{name}' is {shown}", did_you_mean(str(value), known)
    if kind in ("tuple_type", "list_type"):
        return f"'{name}' must be a list, not {shown}", f"Write `{path[-1] if path else name}: [...]`"
    if kind in ("model_type", "dict_type", "model_attributes_type"):
        return f"'{name}' must be fields (`key: value`), not {shown}", ""
    said = detail["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
    return f"'{name}' must be {said}, not {shown}", ""


def _dotted(path: Path) -> str:
    """Return the part of a path within its step."""
    start = 0
    for index, part in enumerate(path):
        if part == "steps" and index + 1 < len(path) - 1:
            start = index + 2
    return ".".join(str(part) for part in path[start:]) or "the plan"


def _of(path: Path, tree: Any) -> str:
    """Return which step a path is in, by its id."""
    owner = ""
    for index, part in enumerate(path):
        if isinstance(tree, Map) and part in tree:
            tree = tree[str(part)]
        elif isinstance(tree, Seq) and isinstance(part, int) and part < len(tree):
            tree = tree[part]
            if index and path[index - 1] == "steps" and isinstance(tree, Map):
                owner = f" in step '{tree.get('id', part)}'"
        else:
            break
    return owner


def _shown(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "empty"}[value]
    if isinstance(value, dict | list | tuple):
        return "fields" if isinstance(value, dict) else "a list"
    text = f"'{value}'" if isinstance(value, str) else str(value)
    return text if len(text) <= VALUE_CHARACTERS else f"{text[:VALUE_CHARACTERS]}...'"


def _model_at(path: Path) -> type[BaseModel] | None:
    """Return the model whose field the last part of a path is."""
    model: type[BaseModel] | None = Plan
    for part in path[:-1]:
        if isinstance(part, int) or model is None:
            continue
        field = next((one for key, one in model.model_fields.items() if part in (key, one.alias)), None)
        model = _model_of(field.annotation) if field else None
    return model


def _model_of(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for inner in get_args(annotation) if (found := _model_of(inner)) is not None), None)
