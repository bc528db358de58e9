"""Positions and problems in a plan file."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Self

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from tightloop.errors import Position, Problem, did_you_mean
from tightloop.plan import action, document, failing, step
from tightloop.plan.document import Policy
from tightloop.plan.step import ID_CHARACTERS
from tightloop.value import UNITS

Path = tuple[str | int, ...]
"""Path to a value, consisting of field names and item indexes."""


HALF_PAIR = "the text is not valid Unicode: it contains half of a surrogate pair"


class TextError(ValueError):
    """Text cannot be parsed as data."""

    def __init__(self, message: str, position: Position = Position(), suggestion: str = "") -> None:
        super().__init__(message)
        self.message, self.position, self.suggestion = message, position, suggestion


class Block(str):
    """Text whose lines correspond to lines of the source, such as a YAML block scalar (`|`)."""

    at: Position
    """Position of the first line of the text."""

    @classmethod
    def of(cls, text: str, at: Position) -> Self:
        """Create a block from text and the position of its first line."""
        block = cls(text)
        block.at = at
        return block


def place_in(text: str, offset: int, start: Position) -> Position:
    """Return the position of a character in a text that begins at `start`.

    For folded text, the result is `start`, because other positions are not known.
    """
    if isinstance(text, Block):
        line_start = text.rfind("\n", 0, offset) + 1
        return Position(text.at.line + text.count("\n", 0, offset), text.at.column + offset - line_start)
    return start if "\n" in text or not start.line else Position(start.line, start.column + offset)


class Map(dict[str, Any]):
    """A mapping whose keys and values have positions."""

    def __init__(self, at: Position = Position()) -> None:
        super().__init__()
        self.at = at
        self.keys_at: dict[str, Position] = {}
        self.values_at: dict[str, Position] = {}
        self.written: dict[str, str] = {}
        """Mapping of renamed fields to the author's spelling."""

    def put(self, key: str, value: Any, *, at: Position | None = None, key_at: Position | None = None) -> Self:
        """Set a value with its position and return the mapping.

        The default position is the position of the mapping.
        """
        self[key] = value
        self.values_at[key] = at or key_at or self.at
        self.keys_at[key] = key_at or at or self.at
        return self

    def put_new(self, key: str, value: Any, *, at: Position, key_at: Position) -> None:
        """Set the value of a new key while a document is being read.

        Raises:
            TextError: the key already exists.
        """
        if key in self:
            first = self.keys_at[key].line
            raise TextError(f"duplicate field '{key}' (first on line {first})", key_at, "Remove one")
        self.put(key, value, at=at, key_at=key_at)

    def take(self, key: str) -> tuple[Any, Position, Position]:
        """Remove a key. Return the value, its position and the position of the key."""
        return self.pop(key), self.values_at.pop(key, self.at), self.keys_at.pop(key, self.at)

    def move(self, old: str, new: str, *, unit: str = "") -> None:
        """Move a value to a different field, unless that field already exists.

        Args:
            old: current field. Nested fields are separated by dots.
            new: new field. Missing parent mappings are created.
            unit: unit to append to a number.
        """
        *above, name = old.split(".")
        source: Any = self
        for part in above:
            source = source.get(part) if isinstance(source, Map) else None
        if not isinstance(source, Map) or name not in source:
            return
        value, at, key_at = source.take(name)
        # The new field may have the name of the emptied parent: `memory.keys` becomes `memory`.
        if above and not source:
            self.take(above[0])
        *above, field = new.split(".")
        target: Any = self
        for part in above:
            if target.get(part) is None:
                target.put(part, Map(at), at=at, key_at=key_at)
            target = target[part]
        if isinstance(target, Map) and field not in target:
            number = unit and isinstance(value, int | float)
            target.put(field, f"{value}{unit}" if number else value, at=at, key_at=key_at)
            target.written[field] = old
        else:
            # Both spellings are given: put it back, so that it is reported instead of lost.
            source.put(name, value, at=at, key_at=key_at)


class Seq(list[Any]):
    """A list whose items have positions."""

    def __init__(self, at: Position = Position()) -> None:
        super().__init__()
        self.at = at
        self.items_at: list[Position] = []

    def add(self, value: Any, at: Position) -> None:
        """Append an item with its position."""
        self.append(value)
        self.items_at.append(at)


def seq(values: Iterable[Any], at: Position) -> Seq:
    """Create a list whose items all have the same position."""
    items = Seq(at)
    for value in values:
        items.add(value, at)
    return items


def entries(values: Any, at: Position) -> Iterator[tuple[Any, Position]]:
    """Yield the items of a list with their positions. A single value is treated as a list with one item."""
    if isinstance(values, Seq):
        yield from zip(values, values.items_at, strict=True)
    elif values is not None:
        yield values, at


def plain(value: Any) -> Any:
    """Convert data with positions to plain data."""
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [plain(inner) for inner in value]
    return str(value) if isinstance(value, Block) else value


def position(tree: Any, path: Sequence[str | int], *, key: bool = False) -> Position:
    """Return the position of the value at `path`.

    If the value does not exist, return the position of its nearest parent.

    Args:
        tree: the parsed data.
        path: path to the value. Unknown parts are skipped.
        key: True to return the position of the field name instead of the value.
    """
    nearest = tree.at if isinstance(tree, Map | Seq) else Position()
    for part in path:
        if isinstance(tree, Map) and part in tree:
            name = str(part)
            # A nested value begins with its first field, often a line below the name that a reader looks for.
            nested = isinstance(tree[name], dict | list)
            nearest = (tree.keys_at if nested or key else tree.values_at).get(name, nearest)
            tree = tree[name]
        elif isinstance(tree, Seq) and isinstance(part, int) and 0 <= part < len(tree):
            nearest, tree = tree.items_at[part], tree[part]
    return nearest


def texts(tree: Any, *, without: frozenset[Path] = frozenset(), path: Path = ()) -> Iterator[tuple[Path, str]]:
    """Yield all texts in a value with their paths.

    Texts below the paths in `without` are skipped.
    """
    if path in without:
        return
    if isinstance(tree, str):
        yield path, tree
    elif isinstance(tree, dict):
        for key, inner in tree.items():
            yield from texts(inner, without=without, path=(*path, key))
    elif isinstance(tree, list | tuple):
        for index, inner in enumerate(tree):
            yield from texts(inner, without=without, path=(*path, index))


# Readers fix the first ones and run again.
PROBLEMS_LIMIT = 50
VALUE_CHARACTERS = 60
_TYPES = frozenset({"str", "Prose", "tuple[str, ...]", "tuple[any, ...]"})
"""Names that pydantic uses for the alternatives of a field that accepts text or another type."""
_WORDS = {
    "string": "a string", "int": "a whole number", "float": "a number", "finite": "a number", "bool": "true or false",
}  # fmt: skip
_BOUNDS = {
    "greater_than": ("greater than", "gt"),
    "greater_than_equal": ("at least", "ge"),
    "less_than": ("less than", "lt"),
    "less_than_equal": ("at most", "le"),
}
_AMOUNT = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]+)")
_BETWEEN = re.compile(r"\s+|,|\band\b")
_EXPECTED = re.compile(r"'([^']*)'")
_UNFIT = re.compile(r"[^A-Za-z0-9._-]+")


def diagnose(error: ValidationError, tree: Any) -> list[Problem]:
    """Return one problem for each invalid value, at most `PROBLEMS_LIMIT`.

    Unknown fields are handled by `normalize`.
    """
    problems: dict[Path, Problem] = {}
    for detail in error.errors(include_url=False):
        # `normalize` has reported it, with a suggestion and the author's spelling.
        if detail["type"] == "extra_forbidden":
            continue
        path, where = _real_path(detail["loc"], tree)
        message, suggestion = _sentence(detail, path, tree)
        code = "missing" if detail["type"] == "missing" else "wrong-value"
        at = position(tree, path)
        # pydantic reports one error per alternative of a union; one per value is enough.
        problems.setdefault(path, Problem(message=message + where, suggestion=suggestion, position=at, code=code))
        if len(problems) >= PROBLEMS_LIMIT:
            break
    # For text-or-fields values: if fields inside are wrong, drop the message that it could have been text.
    return [
        problem
        for path, problem in problems.items()
        if not any(path != other and path == other[: len(path)] for other in problems)
    ]


def _real_path(loc: Sequence[str | int], tree: Any) -> tuple[Path, str]:
    """Return the path without type names.

    If the path leads into a step, also return ` in step '<id>'`.
    """
    path: list[str | int] = []
    owner = ""
    for index, part in enumerate(loc):
        if isinstance(tree, Map) and isinstance(part, str):
            # For a union, pydantic adds the name of the alternative to the location.
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
    name, value_text, last = _name(path, tree), _format_value(value), path[-1] if path else ""
    if kind in ("enum", "literal_error"):
        options = _EXPECTED.findall(str(detail.get("ctx", {}).get("expected", "")))
        return f"invalid value for {name}: {value_text}", did_you_mean(str(value), options)
    if (str(last).endswith("_s") or kind.startswith("time_delta")) and not kind.endswith(("than", "equal")):
        return f"{name} is not a valid duration: {value_text}", _duration(value)
    if kind == "string_pattern_mismatch" and last == "id":
        fit = _UNFIT.sub("-", str(value)).strip("-._")[:ID_CHARACTERS]
        rule = (
            f"an id has at most {ID_CHARACTERS} letters, digits, '.', '_' and '-', starts with a letter or digit, and "
            "may end with '*'"
        )
        return f"{value_text} is not a valid id: {rule}", f"Write `{fit}`" if fit else ""
    if kind == "string_pattern_mismatch":
        options = re.findall(r"[a-z]+", str(detail.get("ctx", {}).get("pattern", "")))
        return f"invalid value for {name}: {value_text}", did_you_mean(str(value), options)
    if kind in _BOUNDS:
        comparison, limit = _BOUNDS[kind]
        return f"{name} must be {comparison} {detail.get('ctx', {}).get(limit):g}, got {value_text}", ""
    return _of_type(detail, name, value_text, str(last))


def _of_type(detail: ErrorDetails, name: str, value_text: str, last: str) -> tuple[str, str]:
    kind, value = detail["type"], detail["input"]
    if kind == "string_type" and isinstance(value, bool | int | float):
        return f"{name} must be a string, not {value_text}", f'Put the value in quotes: "{value_text}"'
    if kind in ("tuple_type", "list_type"):
        are_steps = last == "steps" and isinstance(value, dict)
        fix = "Start each step with `- id: NAME`" if are_steps else f"Write `{last or name}: [...]`"
        return f"{name} must be a list, not {value_text}", fix
    if kind in ("model_type", "dict_type", "model_attributes_type"):
        return f"{name} must be a mapping (`key: value`), not {value_text}", ""
    if kind == "value_error":
        return f"{name}: {detail.get('ctx', {}).get('error')}", ""
    expected = next((noun for start, noun in _WORDS.items() if kind.startswith(start)), "")
    return (f"{name} must be {expected}, not {value_text}", "") if expected else (f"{name} cannot be {value_text}", "")


def _name(path: Path, tree: Any) -> str:
    """Return the name of a field as the author wrote it, relative to its step."""
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
    rule = "Write a duration as a number of seconds, or like `90s`, `5m`, `2h` or `1d`"
    parts = _AMOUNT.findall(value) if isinstance(value, str) else []
    whole = "".join(f"{number}{unit}" for number, unit in parts).lower()
    units = [UNITS.get(unit[:1].lower() if unit.lower() != "ms" else "") for _, unit in parts]
    if not parts or None in units or len(whole) != len(_BETWEEN.sub("", value.lower())):
        return rule
    if len(parts) == 1:
        return f"Write `{parts[0][0]}{parts[0][1][:1].lower()}`. {rule}"
    seconds = sum(float(number) * (unit or 0) for (number, _), unit in zip(parts, units, strict=True))
    return f"Write `{seconds:g}s`. {rule}"


def _format_value(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "empty"}[value]
    if isinstance(value, dict | list | tuple):
        return "a mapping" if isinstance(value, dict) else "a list"
    text = f"'{value}'" if isinstance(value, str) else str(value)
    return text if len(text) <= VALUE_CHARACTERS else f"{text[:VALUE_CHARACTERS]}...'"


RENAMED: Mapping[type[BaseModel], Mapping[str, str]] = {
    document.Plan: {"plan_id": "id", "nodes": "steps", "tasks": "steps", "policies": "policy", "memory.keys": "memory"},
    step.Step: {
        "depends_on": "needs",
        "dependsOn": "needs",
        "input": "inputs",
        "success_criteria": "expect",
        "validation": "expect",
        "rollback": "compensate",
        "timeout": "timeout_s",
        "timebox": "timebox_s",
        "estimate": "estimate_s",
        "budget.timeMin": "timebox_s",
        "checks": "gate.checks",
    },
    document.PlanBudget: {"time": "max_wall_s", "timeMin": "max_wall_s", "costUSD": "max_cost_usd"},
    step.StepBudget: {"costUSD": "max_cost_usd"},
    document.ArtifactDeclaration: {"from": "from_step"},
}
"""Mapping of alternative names to fields of the model. A dot leads to a nested field. Numbers in `...Min` are minutes.
"""
COMMAND_NAMES = ("run", "command")
"""Names for the command of `shell` that can be used directly in a step."""
_RUN_STATE = {"status": "the run tracks its state", "state": "the run tracks its state"}
_FOR_EACH = "Write `for_each: [...]` in a step with an id such as `build-*`, and use `${item}` for the current item"
GONE: Mapping[type[BaseModel], Mapping[str, str]] = {
    document.Plan: {"name": "Write `id:`, or `title:` for a display name", "plan": "Write `id:`"},
    step.Step: {
        "name": "Write `id:`, or `title:` for a display name",
        "if": "Write `when:` with an expression",
        "cmd": "Write `run:`",
        "script": "Write `run:`",
        "env": "Write `shell: {run: ..., environment: {NAME: value}}`",
        "environment": "Write `shell: {run: ..., environment: {NAME: value}}`",
        "cwd": "Write `shell: {run: ..., folder: ...}`",
        "folder": "Write `shell: {run: ..., folder: ...}`",
        "depends": "Write `needs:`",
        "dependencies": "Write `needs:`",
        "continue_on_error": "Write `failure_modes: [{name: any, recover: continue}]`",
        "matrix": _FOR_EACH,
        "loop": _FOR_EACH,
        "fetch": "Write `http: {urls: [...]}`",
        "using": "Remove the field and name the action: `shell: make`, `model: ...`, `search: ...`",
    },
    document.PlanBudget: {"max_steps": "Write `max_attempts`"},
    action.ShellAction: {"env": "Write `environment`", "cwd": "Write `folder`", "cmd": "Write `run`"},
    action.Rule: {"if": "Write `when`", "then": "Write `to`"},
}
"""Fields that are rejected, with their replacements."""
IGNORED: Mapping[type[BaseModel], Mapping[str, str]] = {
    document.Plan: {"version": "the run counts revisions", **_RUN_STATE},
    step.Step: _RUN_STATE,
    Policy: {"requireGateForProd": "steps of kind deploy wait for a person unless `approve` specifies otherwise"},
}
"""Fields that are dropped with a warning, with the reason."""
MAIN_FIELD: Mapping[type[BaseModel], str] = {
    action.ShellAction: "run",
    action.ModelAction: "prompt",
    action.SearchAction: "query",
    action.HttpAction: "url",
    action.EpisodeAction: "goal",
    action.CheckpointAction: "name",
    step.SubplanAction: "file",
    action.Approval: "role",
    failing.OnFailure: "to",
    failing.Compensation: "run",
    document.Hypothesis: "id",
}
"""Field to which a bare text is assigned, for example in `shell: make`."""
ID_LISTS = frozenset({(step.Step, "needs"), (step.Step, "on_success"), (failing.OnFailure, "compensate")})
"""Lists that may be written as `a b` or `a, b`. In any other list, a bare text is the only item."""
