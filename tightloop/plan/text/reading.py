"""Parser for plan files."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import cache
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError

from tightloop.errors import PlanError, Position, Problem, Severity, did_you_mean
from tightloop.plan.action import GateCheck
from tightloop.plan.document import Plan
from tightloop.plan.step import ID_CHARACTERS, ID_PATTERN, Step, SubplanAction
from tightloop.plan.text.documents import parse_json, parse_yaml, plain_scalar
from tightloop.plan.text.located import (
    COMMAND_NAMES,
    GONE,
    HALF_PAIR,
    ID_LISTS,
    IGNORED,
    MAIN_FIELD,
    PROBLEMS_LIMIT,
    RENAMED,
    Map,
    Path,
    Seq,
    TextError,
    diagnose,
    entries,
    plain,
    position,
    seq,
)
from tightloop.value import read_seconds
from tightloop.value.documents import Bounds

HINTS_LIMIT = 25
"""Maximum number of suggestions. Each one takes milliseconds, and a text with more unknown fields is not a plan."""


def normalize(plan: Map) -> list[Problem]:
    """Normalise a plan in place. Positions are kept.

    Invalid values are left for the model to report.

    Returns:
        Errors for unknown fields, and warnings for fields that are dropped or have no effect.
    """
    normalizer = _Normalizer()
    normalizer.fields(plan, Plan, "")
    return normalizer.problems


class _Normalizer:
    """Converts the fields of a document to the model's field names, one mapping at a time."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []

    def _unknown(self, message: str, at: Position, name: str, known_names: set[str], hint: str = "") -> None:
        hint = hint or (did_you_mean(name, known_names) if len(self.problems) < HINTS_LIMIT else "")
        self.problems.append(Problem(message=message, suggestion=hint, position=at, code="unknown-field"))

    def _warn(self, message: str, at: Position, suggestion: str, code: str) -> None:
        problem = Problem(message=message, suggestion=suggestion, severity=Severity.WARNING, position=at, code=code)
        self.problems.append(problem)

    def fields(self, fields: Map, owner: type[BaseModel], where: str) -> None:
        """Normalise the fields of a model and its nested models. `where` is appended to every message."""
        names, ignored, shapes = RENAMED.get(owner, {}), IGNORED.get(owner, {}), _shapes(owner)
        for name, new in names.items():
            fields.move(name, new, unit="m" if name.endswith("Min") else "")
        if owner is Plan:
            # Before visiting the steps, because this adds fields to them.
            self._merge_gates(fields)
        if owner is Step:
            where = f" in step '{fields['id']}'" if "id" in fields else ""
            _normalize_step(fields)
        for name in list(fields):
            if name in shapes:
                self._value(fields, name, owner, where)
            elif name in ignored:
                at = fields.take(name)[2]
                self._warn(f"'{name}' is ignored{where}", at, f"Remove the field: {ignored[name]}", "ignored")
            else:
                commands = COMMAND_NAMES if owner is Step else ()
                known_names = {*shapes, *commands, *(old_name for old_name in names if "." not in old_name)}
                hint = GONE.get(owner, {}).get(name) or self._place_within(name, owner, known_names)
                self._unknown(f"unknown field '{name}'{where}", fields.keys_at[name], name, known_names, hint)

    def _place_within(self, name: str, owner: type[BaseModel], known_names: set[str]) -> str:
        """Return a hint that names the nested model that has this field or a similar one, or ""."""
        if len(self.problems) >= HINTS_LIMIT:
            return ""
        inside = _inside(owner)
        [nearest] = get_close_matches(name, {*known_names, *inside}, n=1, cutoff=0.6) or [name]
        return (
            "" if nearest in known_names or nearest not in inside else f"Write `{inside[nearest]}: {{{nearest}: ...}}`"
        )

    def _merge_gates(self, plan: Map) -> None:
        """Merge the entries of `gates:` into the steps that have the same IDs."""
        gates, at, _ = plan.take("gates") if "gates" in plan else (None, plan.at, plan.at)
        steps = {str(entry.get("id")): entry for entry, _ in entries(plan.get("steps"), at) if isinstance(entry, Map)}
        for gate, gate_at in entries(gates, at):
            name, name_at, _ = gate.take("id") if isinstance(gate, Map) and "id" in gate else ("", gate_at, gate_at)
            step = steps.get(str(name))
            if step is None:
                self._unknown(f"'{name}' under 'gates' is not a step", name_at, str(name), set(steps))
                continue
            for name in list(gate):
                value, value_at, key_at = gate.take(name)
                step.put(name, value, at=value_at, key_at=key_at)

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
        for entry, _ in entries(value, at):
            if isinstance(entry, Map):
                self.fields(entry, inner, where)

    def _expand(self, value: Any, inner: type[BaseModel], at: Position, number: int) -> Any:
        """Expand an abbreviated value, such as `make` to `{run: make}`."""
        if isinstance(value, Seq) and inner is SubplanAction:
            return Map(at).put("steps", value, at=at)
        if not isinstance(value, str):
            return value
        if inner is GateCheck:
            return Map(at).put("invariant", value, at=at)
        if inner is Step:
            hint = "Write a step with `run:`, or `episode: {goal: ...}` to have an agent do it"
            self._warn(f"'{value[:80]}' is only a string and does nothing", at, hint, "prose-step")
            return Map(at).put("id", f"part-{number}", at=at).put("title", value, at=at)
        return Map(at).put(MAIN_FIELD[inner], value, at=at) if inner in MAIN_FIELD else value


def _normalize_step(step: Map) -> None:
    """Move a step's commands into its actions, and convert a list of output files to named outputs."""
    for name in COMMAND_NAMES:
        step.move(name, "shell.run")
    if isinstance(outputs := step.get("outputs"), Seq):
        named_outputs = Map(outputs.at)
        for path, at in entries(outputs, outputs.at):
            named_outputs.put(re.sub(r"[^A-Za-z0-9_]+", "-", str(path)).strip("-"), f"file:{path}", at=at)
        step.put("outputs", named_outputs, at=step.values_at["outputs"], key_at=step.keys_at["outputs"])


def _ids(text: str, at: Position) -> Seq:
    ids = Seq(at)
    for match in re.finditer(r"[^\s,]+", text):
        # The column of a word in folded lines is unknown; use that of the text.
        ids.add(match[0], Position(at.line, at.column + (0 if "\n" in text else match.start())))
    return ids


@cache
def _shapes(owner: type[BaseModel]) -> dict[str, tuple[type[BaseModel] | None, bool]]:
    """Describe the fields of a model.

    Return the nested model of each field, and whether the field is a list.
    """
    return {
        field.alias or name: (_model_in(field.annotation), get_origin(field.annotation) is tuple)
        for name, field in owner.model_fields.items()
    }


@cache
def _inside(owner: type[BaseModel]) -> dict[str, str]:
    """Map each field of a nested model to the first field of `owner` that contains the model."""
    parts = [(name, inner) for name, (inner, is_list) in _shapes(owner).items() if inner and not is_list]
    # Reversed, because the last entry of a dictionary wins.
    return {field: part for part, inner in reversed(parts) for field in _shapes(inner)}


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((model for inner in get_args(annotation) if (model := _model_in(inner))), None)


RIGHT_HEADER = 'task build "Build it" kind:tool'
_HEADER = re.compile(r'(?P<word>plan|task)[ \t]+(?P<id>[^\s"]+)(?P<title>[ \t]+"(?:[^"\\]|\\.)*")?(?P<rest>.*)')
_ATTRIBUTE = re.compile(r"(?P<key>[A-Za-z_]+):(?P<value>\S+)")
_ARROW = re.compile(r"\s+on[ _](?P<end>\w+)\s*->\s*(?P<to>[^#]*?)\s*(?:#.*)?")
_SIGNIFICANT = re.compile(r"\s*[^\s#]")


@dataclass
class _Block:
    """Header of a DSL block, with the lines of its body."""

    line: int
    header: str
    body: list[str] = field(default_factory=list)


def is_dsl(text: str) -> bool:
    """Return True if the first word of the text is `plan` or `task`."""
    first = next((line for line in text.splitlines() if _SIGNIFICANT.match(line)), "")
    # Not `plan:` or `task :`, which begin a YAML mapping.
    return re.match(r"(plan|task)[ \t]+[^\s:]", first) is not None


def parse_dsl(text: str, *, slips: list[TextError]) -> Map:
    """Parse a plan in DSL format. Fields keep the author's spelling.

    `slips` is used as in `parse_yaml`.

    Raises:
        TextError: the text is invalid. The error contains the line and the column.
    """
    # Shared by all blocks, so that they cannot exceed the limit of a single text together.
    bounds = Bounds()
    plan = Map(Position(1, 1))
    steps = Seq(Position(1, 1))
    for block in _blocks(text):
        header = _HEADER.fullmatch(block.header)
        if header is None:
            is_field = re.match(r"[a-z_]+:|on[ _]\w+\s*->", block.header) is not None
            fix = "Indent the line: fields belong below their header" if is_field else f"Write `{RIGHT_HEADER}`"
            raise TextError(f"expected a header, got: {block.header[:60]}", Position(block.line, 1), fix)
        fields = _fields(block, header, bounds, slips)
        if header["word"] == "task":
            steps.add(fields, fields.at)
        elif plan:
            raise TextError("duplicate `plan` header", Position(block.line, 1), "Write only one plan per file")
        elif steps:
            raise TextError(
                "the `plan` header comes after a task", Position(block.line, 1), "Move the header to the top"
            )
        else:
            plan = fields
    for step in steps:
        if not isinstance(plan.get("steps"), Seq):
            plan.put("steps", Seq(steps.at), at=steps.items_at[0])
        plan["steps"].add(step, step.at)
    return plan


def _blocks(text: str) -> list[_Block]:
    blocks: list[_Block] = []
    # `splitlines` splits at more characters than YAML does, which would shift line numbers.
    for number, line in enumerate(text.split("\n"), start=1):
        line = line.removesuffix("\r")
        if line[:1].strip() and not line.startswith("#"):
            blocks.append(_Block(number, line.rstrip()))
        elif blocks:
            blocks[-1].body.append(line)
        elif _SIGNIFICANT.match(line):
            raise TextError("indented line without a header above it", Position(number, 1), "Start with a header")
    return blocks


def _fields(block: _Block, header: re.Match[str], bounds: Bounds, slips: list[TextError]) -> Map:
    fields = Map(Position(block.line, 1))
    fields.put("id", header["id"], at=Position(block.line, header.start("id") + 1))
    if header["title"]:
        at = Position(block.line, header.end("title") - len(header["title"].lstrip()) + 2)
        try:
            fields.put("title", str(json.loads(header["title"])), at=at)
        except ValueError as error:
            message = f"the title {header['title'].strip()[:60]} is not a valid JSON string"
            raise TextError(message, at, "Write \\\\ for a backslash") from error
    _attributes(fields, block.line, header["rest"], header.start("rest"))
    arrows = _arrows(block)
    body = parse_yaml("\n".join(block.body), bounds=bounds, slips=slips, first_line=block.line + 1)
    if body is not None and not isinstance(body, Map):
        at = Position(block.line + 1, 1)
        raise TextError(f"expected fields below '{block.header[:60]}'", at, "Write `key: value` lines")
    for source in (body or Map(), arrows):
        for key, value in source.items():
            fields.put_new(key, value, at=source.values_at[key], key_at=source.keys_at[key])
    return fields


def _attributes(fields: Map, line: int, rest: str, start: int) -> None:
    for match in re.finditer(r"\S+", rest):
        if match[0].startswith("#"):
            return
        at = Position(line, start + match.start() + 1)
        if match[0].startswith('"'):
            raise TextError("the title has no closing quote", at, f"Write `{RIGHT_HEADER}`")
        attribute = _ATTRIBUTE.fullmatch(match[0])
        if attribute is None:
            raise TextError(
                f"'{match[0][:60]}' in the header is not in the form `key:value`", at, f"Write `{RIGHT_HEADER}`"
            )
        if attribute["key"] in fields:
            raise TextError(f"duplicate '{attribute['key']}' in the header", at, "Remove one")
        value_at = Position(line, at.column + attribute.start("value"))
        fields.put(attribute["key"], plain_scalar(attribute["value"]), at=value_at, key_at=at)


def _arrows(block: _Block) -> Map:
    """Remove the `on failure ->` and `on success ->` lines from the body and return them."""
    arrows = Map(Position(block.line, 1))
    # Deeper lines may belong to a block scalar, such as a shell script.
    indent = next((len(line) - len(line.lstrip()) for line in block.body if _SIGNIFICANT.match(line)), 0)
    for index, line in enumerate(block.body):
        match = _ARROW.fullmatch(line)
        if match is None or len(line) - len(line.lstrip()) != indent:
            continue
        at = Position(block.line + 1 + index, match.start("to") + 1)
        key, key_at = f"on_{match['end']}", Position(at.line, indent + 1)
        if match["end"] not in ("success", "failure"):
            hint = did_you_mean(match["end"], ("success", "failure"))
            raise TextError(f"'on {match['end']}' is not a valid step outcome", key_at, hint)
        if not match["to"]:
            raise TextError(f"missing step id after 'on {match['end']} ->'", key_at, "Add a step id after the arrow")
        if key in arrows:
            raise TextError(f"duplicate 'on {match['end']}'", key_at, "List all steps on one line: `on success -> a b`")
        arrows.put(key, match["to"], at=at, key_at=key_at)
        # Blanked instead of removed, so that the following lines keep their numbers.
        block.body[index] = ""
    return arrows


# For files on the host; texts sent through Temporal are limited to `SOURCE_BYTES`.
TEXT_BYTES = 8 * 1024 * 1024
# One invalid value may hide another.
_ROUNDS = 5
_EMPTY = "Write `id:` and `steps:`"


@dataclass(frozen=True)
class ReadPlan:
    """A parsed plan, with the positions in its source."""

    plan: Plan
    warnings: tuple[Problem, ...] = ()
    name: str = ""
    """Name of the text for use in messages."""
    tree: Any = field(default=None, repr=False)
    """Data with positions, after all fields have been renamed."""
    left_out: frozenset[Path] = frozenset()
    """Paths that were dropped because they could not be read."""

    def where(self, path: Sequence[str | int], *, key: bool = False) -> Position:
        """Return the position of a field such as `("steps", 2, "needs", 0)`, or of its nearest parent."""
        return position(self.tree, path, key=key)

    @classmethod
    def of(cls, plan: Plan) -> "ReadPlan":
        """Wrap a plan that was created by a program and has no positions."""
        return cls(plan, tree=plan.model_dump(mode="json", by_alias=True, exclude_defaults=True))


def read_plan(text: str, *, name: str = "") -> ReadPlan:
    """Parse a plan. The format is detected automatically.

    Args:
        text: text of the plan, at most `TEXT_BYTES`. JSON begins with `{`, and the DSL begins with a
            `plan` or `task` header.
        name: name of the file for use in messages.

    Raises:
        PlanError: the plan is invalid. The error lists every problem with its line, column and a suggestion.
    """
    read, problems = read_parts(text, name=name)
    errors = [problem for problem in problems if problem.is_error]
    if read is None or errors:
        raise PlanError(tuple(sorted(errors, key=lambda one: one.position)[:PROBLEMS_LIMIT]))
    return read


def read_parts(text: str, *, name: str = "") -> tuple[ReadPlan | None, tuple[Problem, ...]]:
    """Parse a plan. Return its readable part, or None, followed by all problems.

    Fields with invalid values are dropped, so that the rest of the plan can be checked in the same pass.
    """
    slips: list[TextError] = []
    try:
        tree = _tree(text, slips)
    except TextError as error:
        return None, tuple(replace(_syntax(slip), file=name) for slip in (*slips, error))
    problems = [replace(problem, file=name) for problem in (*map(_syntax, slips), *normalize(tree))]
    # After `normalize`, which renames other spellings such as `plan_id` and `nodes`.
    if "id" not in tree and isinstance(tree.get("steps"), list):
        stem = name.replace("\\", "/").rsplit("/", 1)[-1].split(".", 1)[0]
        tree.put("id", re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip("-._")[:ID_CHARACTERS] or "plan", at=tree.at)
    plan: Plan | None
    left_out: frozenset[Path] = frozenset()
    try:
        plan = Plan.model_validate(plain(tree))
    except ValidationError as error:
        problems += [replace(problem, file=name) for problem in diagnose(error, tree)]
        plan, left_out = _without(tree, error)
    if plan is None:
        return None, tuple(problems)
    warnings = tuple(problem for problem in problems if not problem.is_error)
    return ReadPlan(plan, warnings, name, tree, left_out), tuple(problems)


def decode(content: bytes, *, name: str = "") -> str:
    """Decode the bytes of a plan file.

    Raises:
        PlanError: the content is not valid UTF-8.
    """
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        before = content[: error.start].decode("utf-8", "replace")
        at = Position(before.count("\n") + 1, len(before) - before.rfind("\n"))
        message = f"byte 0x{content[error.start]:02x} is not valid UTF-8"
        # The byte order marks of UTF-16, which some Windows editors call "Unicode".
        if content[:2] in (b"\xff\xfe", b"\xfe\xff"):
            message = "the file is UTF-16, not UTF-8"
        problem = Problem(message=message, suggestion="Save the file as UTF-8", position=at, code="encoding", file=name)
        raise PlanError((problem,)) from error


def _syntax(error: TextError) -> Problem:
    return Problem(message=error.message, suggestion=error.suggestion, position=error.position, code="syntax")


def _without(tree: Map, error: ValidationError) -> tuple[Plan | None, frozenset[Path]]:
    """Remove the invalid fields from a plan.

    Return the plan and the paths of the removed fields. The paths are relative to the innermost step or
    the plan.
    """
    data, left_out = plain(tree), set[Path]()
    for _ in range(_ROUNDS):
        for detail in error.errors(include_url=False, include_context=False):
            left_out.add(_drop(data, detail["loc"]))
        try:
            return Plan.model_validate(data), frozenset(left_out)
        except ValidationError as again:
            error = again
    return None, frozenset(left_out)


def _drop(data: Any, loc: tuple[int | str, ...]) -> Path:
    """Remove a field and return its path, relative to the innermost step or the plan."""
    # The innermost step: without the outer one, the problems of its other nested steps would be hidden.
    depth = max(
        (at + 2 for at, part in enumerate(loc[:-1]) if part == "steps" and isinstance(loc[at + 1], int)), default=0
    )
    owner, path = data, loc[:depth]
    for part in path[:-1]:
        owner = owner[part]
    if depth and (len(loc) == depth or loc[depth] == "id" or not isinstance(owner[path[-1]], dict)):
        # Other steps may name it, so replace it by a step without an action.
        step = owner[path[-1]]
        step_id = step.get("id") if isinstance(step, dict) else None
        fits = isinstance(step_id, str) and re.fullmatch(ID_PATTERN, step_id)
        owner[path[-1]] = {"id": step_id if fits else f"unread-{path[-1]}"}
        return path
    if depth:
        owner = owner[path[-1]]
    if loc[depth] == "id" or (loc[depth] == "steps" and not depth):
        owner[loc[depth]] = "unread" if loc[depth] == "id" else []
    else:
        owner.pop(loc[depth], None)
    return (*path, loc[depth])


def _tree(text: str, slips: list[TextError]) -> Map:
    # Editors on Windows prepend a byte order mark.
    text = text.removeprefix("\ufeff")
    # Characters first: a text has at least as many bytes, and encoding a huge one only to measure it takes memory.
    if len(text) > TEXT_BYTES or _size(text) > TEXT_BYTES:
        raise TextError(
            f"the plan is larger than {TEXT_BYTES} bytes", suggestion="Split the plan into subplans with `file:`"
        )
    if text.lstrip().startswith("{"):
        tree = parse_json(text, slips=slips)
    elif is_dsl(text):
        tree = parse_dsl(text, slips=slips)
    else:
        tree = parse_yaml(text, bounds=Bounds(), slips=slips)
    if tree is None:
        raise TextError("the plan is empty", suggestion=_EMPTY)
    if not isinstance(tree, Map):
        raise TextError("a plan must be a mapping, not a list or a string", Position(1, 1), _EMPTY)
    return tree


def _size(text: str) -> int:
    try:
        return len(text.encode())
    except UnicodeEncodeError as error:
        before = text[: error.start]
        at = Position(before.count("\n") + 1, len(before) - before.rfind("\n"))
        raise TextError(HALF_PAIR, at) from error
