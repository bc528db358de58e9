"""Rewrites a document into the fields of `Plan` by the tables in `spelling`, and finds the fields that do not exist."""

import re
from difflib import get_close_matches
from functools import cache
from typing import Any, get_args, get_origin

from pydantic import BaseModel

from tightloop.errors import Position, Problem, Severity, did_you_mean
from tightloop.plan.document.action import GateCheck
from tightloop.plan.document.plan import Plan
from tightloop.plan.document.step import Step, SubplanAction
from tightloop.plan.text.located import Map, Seq, entries, seq
from tightloop.plan.text.spelling import COMMAND_NAMES, GONE, ID_LISTS, IGNORED, MAIN_FIELD, RENAMED
from tightloop.value.duration import read_seconds

HINTS_LIMIT = 25
"""Finding the closest name takes milliseconds; a text with more unknown fields than this is not a plan."""


def normalize(plan: Map) -> list[Problem]:
    """Rewrite a plan in place; positions are kept, and wrong values are left for the model to refuse.

    Returns:
        Unknown fields as errors, and what is dropped or does nothing as warnings.
    """
    normalizer = _Normalizer()
    normalizer.fields(plan, Plan, "")
    return normalizer.problems


class _Normalizer:
    """Walks over a document, each mapping with the model that it is meant for."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []

    def _unknown(self, message: str, at: Position, word: str, known: set[str], hint: str = "") -> None:
        hint = hint or (did_you_mean(word, known) if len(self.problems) < HINTS_LIMIT else "")
        self.problems.append(Problem(message=message, suggestion=hint, position=at, code="unknown-field"))

    def _warn(self, message: str, at: Position, suggestion: str, code: str) -> None:
        problem = Problem(message=message, suggestion=suggestion, severity=Severity.WARNING, position=at, code=code)
        self.problems.append(problem)

    def fields(self, fields: Map, owner: type[BaseModel], where: str) -> None:
        """Rewrite the fields of one model and of the models within; `where` ends every message."""
        names, ignored, shapes = RENAMED.get(owner, {}), IGNORED.get(owner, {}), _shapes(owner)
        for name, new in names.items():
            fields.move(name, new, unit="m" if name.endswith("Min") else "")
        if owner is Plan:
            # Before the steps are walked: they are given fields here.
            self._merge_gates(fields)
        if owner is Step:
            where = f" in step '{fields['id']}'" if "id" in fields else ""
            _normalize_step(fields)
        for name in list(fields):
            if name in shapes:
                self._value(fields, name, owner, where)
            elif name in ignored:
                at = fields.take(name)[2]
                self._warn(f"'{name}' is not read{where}", at, f"Remove it: {ignored[name]}", "ignored")
            else:
                commands = COMMAND_NAMES if owner is Step else ()
                known = {*shapes, *commands, *(one for one in names if "." not in one)}
                hint = GONE.get(owner, {}).get(name) or self._place_within(name, owner, known)
                self._unknown(f"unknown field '{name}'{where}", fields.keys_at[name], name, known, hint)

    def _place_within(self, name: str, owner: type[BaseModel], known: set[str]) -> str:
        """Return where a field belongs that one of the parts of a model has, or has nearly; empty: nowhere nearer."""
        if len(self.problems) >= HINTS_LIMIT:
            return ""
        inside = _inside(owner)
        [nearest] = get_close_matches(name, {*known, *inside}, n=1, cutoff=0.6) or [name]
        return "" if nearest in known or nearest not in inside else f"Write `{inside[nearest]}: {{{nearest}: ...}}`"

    def _merge_gates(self, plan: Map) -> None:
        """Give what stands under `gates:` to the steps with the same ids."""
        gates, at, _ = plan.take("gates") if "gates" in plan else (None, plan.at, plan.at)
        steps = {str(one.get("id")): one for one, _ in entries(plan.get("steps"), at) if isinstance(one, Map)}
        for gate, gate_at in entries(gates, at):
            name, name_at, _ = gate.take("id") if isinstance(gate, Map) and "id" in gate else ("", gate_at, gate_at)
            step = steps.get(str(name))
            if step is None:
                self._unknown(f"'{name}' under 'gates' is not a step", name_at, str(name), set(steps))
                continue
            for field in list(gate):
                value, value_at, key_at = gate.take(field)
                step.put(field, value, at=value_at, key_at=key_at)

    def _value(self, fields: Map, name: str, owner: type[BaseModel], where: str) -> None:
        value, at, (inner, is_list) = fields[name], fields.values_at[name], _shapes(owner)[name]
        if isinstance(value, str) and name.endswith("_s") and (seconds := read_seconds(value)) is not None:
            fields[name] = seconds
        elif isinstance(value, str) and is_list and inner is not Step:
            fields[name] = value = _ids(value, at) if (owner, name) in ID_LISTS else seq([value], at)
        if inner is None or (is_list and isinstance(value, Map)):
            return
        if is_list and isinstance(value, Seq):
            for number, item_at in enumerate(value.items_at):
                value[number] = self._expand(value[number], inner, item_at, number + 1)
        elif not is_list:
            fields[name] = value = self._expand(value, inner, at, 1)
        for one, _ in entries(value, at):
            if isinstance(one, Map):
                self.fields(one, inner, where)

    def _expand(self, value: Any, inner: type[BaseModel], at: Position, number: int) -> Any:
        """Return the fields that a bare value stands for: `{run: make}` for `make`."""
        if isinstance(value, Seq) and inner is SubplanAction:
            return Map(at).put("steps", value, at=at)
        if not isinstance(value, str):
            return value
        if inner is GateCheck:
            return Map(at).put("invariant", value, at=at)
        if inner is Step:
            hint = "Write a step with `run:`, or `episode: {goal: ...}` to have an agent do it"
            self._warn(f"'{value[:80]}' is prose; nothing is done for it", at, hint, "prose-step")
            return Map(at).put("id", f"part-{number}", at=at).put("title", value, at=at)
        return Map(at).put(MAIN_FIELD[inner], value, at=at) if inner in MAIN_FIELD else value


def _normalize_step(step: Map) -> None:
    """Move commands into the action that they are for, and name outputs that are only a list of files."""
    for name in COMMAND_NAMES:
        step.move(name, "shell.run")
    if isinstance(outputs := step.get("outputs"), Seq):
        made = Map(outputs.at)
        for path, at in entries(outputs, outputs.at):
            made.put(re.sub(r"[^A-Za-z0-9_]+", "-", str(path)).strip("-"), f"file:{path}", at=at)
        step.put("outputs", made, at=step.values_at["outputs"], key_at=step.keys_at["outputs"])


def _ids(text: str, at: Position) -> Seq:
    made = Seq(at)
    for word in re.finditer(r"[^\s,]+", text):
        # Where lines were folded the column of a word is not known: that of the text stands for it.
        made.add(word[0], Position(at.line, at.column + (0 if "\n" in text else word.start())))
    return made


@cache
def _shapes(owner: type[BaseModel]) -> dict[str, tuple[type[BaseModel] | None, bool]]:
    """Return for each field of a model the model of its values, and whether it is a list."""
    return {
        field.alias or name: (_model_in(field.annotation), get_origin(field.annotation) is tuple)
        for name, field in owner.model_fields.items()
    }


@cache
def _inside(owner: type[BaseModel]) -> dict[str, str]:
    """Return for each field of the parts of a model the first part that has it."""
    parts = [(name, inner) for name, (inner, is_list) in _shapes(owner).items() if inner and not is_list]
    return {field: part for part, inner in reversed(parts) for field in _shapes(inner)}


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for inner in get_args(annotation) if (found := _model_in(inner))), None)
