"""From a plan's text (YAML, JSON or the text form) to a `Plan`, with the place of everything that is wrong."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import ValidationError

from tightloop.errors import PlanError, Position, Problem
from tightloop.plan.document.plan import Plan
from tightloop.plan.document.step import ID_CHARACTERS, ID_PATTERN
from tightloop.plan.text.diagnostics import PROBLEMS_LIMIT, diagnose
from tightloop.plan.text.dsl import is_dsl, parse_dsl
from tightloop.plan.text.json_text import parse_json
from tightloop.plan.text.located import HALF_PAIR, Map, Path, TextError, plain, position
from tightloop.plan.text.normalize import normalize
from tightloop.plan.text.yaml_text import parse_yaml
from tightloop.value.yaml_reading import Bounds

# Read from a file on the host; what goes through Temporal has the lower bound `SOURCE_BYTES`.
TEXT_BYTES = 8 * 1024 * 1024
# A value may hide another one that is wrong.
_ROUNDS = 5
_EMPTY = "Write `id:` and `steps:`"


@dataclass(frozen=True)
class ReadPlan:
    """A plan and where everything in it stood."""

    plan: Plan
    warnings: tuple[Problem, ...] = ()
    name: str = ""
    """Name of the text, for messages."""
    tree: Any = field(default=None, repr=False)
    """The data after all renaming, with positions."""
    left_out: frozenset[Path] = frozenset()
    """What the plan lacks because it could not be read."""

    def where(self, path: Sequence[str | int], *, key: bool = False) -> Position:
        """Return where the value of a field stood, such as `("steps", 2, "needs", 0)`, or what is around it."""
        return position(self.tree, path, key=key)

    @classmethod
    def of(cls, plan: Plan) -> "ReadPlan":
        """Return a plan that was made by a program: nothing in it has a place."""
        return cls(plan, tree=plan.model_dump(mode="json", by_alias=True, exclude_defaults=True))


def read_plan(text: str, *, name: str = "") -> ReadPlan:
    """Read a plan; the form is detected.

    Args:
        text: at most `TEXT_BYTES`. JSON begins with `{`, the text form with a `plan` or `task` header.
        name: of the file, for messages.

    Raises:
        PlanError: with all problems, each with line, column and suggestion.
    """
    read, problems = read_parts(text, name=name)
    errors = [problem for problem in problems if problem.is_error]
    if read is None or errors:
        raise PlanError(tuple(sorted(errors, key=lambda one: one.position)[:PROBLEMS_LIMIT]))
    return read


def read_parts(text: str, *, name: str = "") -> tuple[ReadPlan | None, tuple[Problem, ...]]:
    """Return what of a plan can be read, and what is wrong; None where nothing can be.

    Fields with wrong values are left out, so that all else can be checked at the same time.
    """
    slips: list[TextError] = []
    try:
        tree = _tree(text, slips)
    except TextError as error:
        return None, tuple(replace(_syntax(one), file=name) for one in (*slips, error))
    problems = [replace(problem, file=name) for problem in (*map(_syntax, slips), *normalize(tree))]
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
    """Return the text of a plan file.

    Raises:
        PlanError: it is not UTF-8.
    """
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        before = content[: error.start].decode("utf-8", "replace")
        at = Position(before.count("\n") + 1, len(before) - before.rfind("\n"))
        said = f"the byte 0x{content[error.start]:02x} is not UTF-8"
        if content[:2] in (b"\xff\xfe", b"\xfe\xff"):
            said = "the file is UTF-16, not UTF-8"
        problem = Problem(message=said, suggestion="Save the file as UTF-8", position=at, code="encoding", file=name)
        raise PlanError((problem,)) from error


def _syntax(error: TextError) -> Problem:
    return Problem(message=error.message, suggestion=error.suggestion, position=error.position, code="syntax")


def _without(tree: Map, error: ValidationError) -> tuple[Plan | None, frozenset[Path]]:
    """Return the plan without the fields that are wrong, and those fields: of a step, else of the plan."""
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
    """Take a field out of the innermost step that a place lies in, or of the plan; return its path."""
    place = max(
        (at + 2 for at, part in enumerate(loc[:-1]) if part == "steps" and isinstance(loc[at + 1], int)), default=0
    )
    owner, path = data, loc[:place]
    for part in path[:-1]:
        owner = owner[part]
    if place and (len(loc) == place or loc[place] == "id" or not isinstance(owner[path[-1]], dict)):
        # Others may name it: a step that does nothing stands in its place.
        found = owner[path[-1]]
        known = found.get("id") if isinstance(found, dict) else None
        fits = isinstance(known, str) and re.fullmatch(ID_PATTERN, known)
        owner[path[-1]] = {"id": known if fits else f"unread-{path[-1]}"}
        return path
    if place:
        owner = owner[path[-1]]
    if loc[place] == "id" or (loc[place] == "steps" and not place):
        owner[loc[place]] = "unread" if loc[place] == "id" else []
    else:
        owner.pop(loc[place], None)
    return (*path, loc[place])


def _tree(text: str, slips: list[TextError]) -> Map:
    # Editors on Windows put a byte order mark in front.
    text = text.removeprefix("\ufeff")
    if len(text) > TEXT_BYTES or _size(text) > TEXT_BYTES:
        raise TextError(f"the plan is larger than {TEXT_BYTES} bytes", suggestion="Split it into subplans with `file:`")
    if text.lstrip().startswith("{"):
        tree = parse_json(text, slips=slips)
    elif is_dsl(text):
        tree = parse_dsl(text, slips=slips)
    else:
        tree = parse_yaml(text, bounds=Bounds(), slips=slips)
    if tree is None:
        raise TextError("the plan is empty", suggestion=_EMPTY)
    if not isinstance(tree, Map):
        raise TextError("a plan must be a mapping of fields, not a list or a text", Position(1, 1), _EMPTY)
    return tree


def _size(text: str) -> int:
    try:
        return len(text.encode())
    except UnicodeEncodeError as error:
        before = text[: error.start]
        at = Position(before.count("\n") + 1, len(before) - before.rfind("\n"))
        raise TextError(HALF_PAIR, at) from error
