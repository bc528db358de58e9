"""From a plan's text (YAML, JSON or the text form) to a `Plan`, with the place of everything that is wrong."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import ValidationError

from tightloop.errors import PlanError, Position, Problem
from tightloop.plan.document.plan import Plan
from tightloop.plan.text.diagnostics import PROBLEMS_LIMIT, diagnose
from tightloop.plan.text.dsl import is_dsl, parse_dsl
from tightloop.plan.text.json_text import parse_json
from tightloop.plan.text.located import HALF_PAIR, Map, TextError, plain, position
from tightloop.plan.text.normalize import normalize
from tightloop.plan.text.yaml_text import parse_yaml

# Read from a file on the host; what goes through Temporal has the lower bound `SOURCE_BYTES`.
TEXT_BYTES = 8 * 1024 * 1024
# What follows walks the data by recursion, and Python stops at 1 000 frames by default.
DEPTH_LIMIT = 100
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
    try:
        tree = _tree(text)
    except TextError as error:
        problem = Problem(message=error.message, suggestion=error.suggestion, position=error.position, code="syntax")
        raise PlanError((replace(problem, file=name),)) from error
    problems = [replace(problem, file=name) for problem in normalize(tree)]
    if "id" not in tree and isinstance(tree.get("steps"), list):
        stem = name.replace("\\", "/").rsplit("/", 1)[-1].split(".", 1)[0]
        tree.put("id", re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip("-._")[:63] or "plan", at=tree.at)
    errors = [problem for problem in problems if problem.is_error]
    try:
        plan = Plan.model_validate(plain(tree))
    except ValidationError as error:
        errors += [replace(problem, file=name) for problem in diagnose(error, tree)]
        plan = None
    if plan is None or errors:
        raise PlanError(tuple(sorted(errors, key=lambda one: one.position)[:PROBLEMS_LIMIT]))
    return ReadPlan(plan, tuple(problems), name, tree)


def _tree(text: str) -> Map:
    # Editors on Windows put a byte order mark in front.
    text = text.removeprefix("\ufeff")
    if len(text) > TEXT_BYTES or _size(text) > TEXT_BYTES:
        raise TextError(f"the plan is larger than {TEXT_BYTES} bytes", suggestion="Split it into subplans with `file:`")
    if text.lstrip().startswith("{"):
        tree = parse_json(text, depth_limit=DEPTH_LIMIT)
    elif is_dsl(text):
        tree = parse_dsl(text, depth_limit=DEPTH_LIMIT)
    else:
        tree = parse_yaml(text, depth_limit=DEPTH_LIMIT)
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
