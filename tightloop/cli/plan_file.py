"""Reading plan files from the command line: their text, their problems, and the values of their inputs."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tightloop.errors import InvalidRequestError, PlanError
from tightloop.plan.problem import Problem, did_you_mean
from tightloop.plan.text.reading import TEXT_BYTES, ReadPlan, read_plan
from tightloop.plan.validation.validate import validate

STDIN = "-"
STDIN_NAME = "stdin"


@dataclass(frozen=True)
class Examined:
    """A plan's text and what is wrong or odd about it."""

    name: str
    text: str
    read: ReadPlan | None
    """None where the text cannot be read as a plan."""
    problems: tuple[Problem, ...]

    @property
    def errors(self) -> tuple[Problem, ...]:
        """The problems with which the plan must not run."""
        return tuple(problem for problem in self.problems if problem.is_error)

    @property
    def warnings(self) -> tuple[Problem, ...]:
        """What is odd."""
        return tuple(problem for problem in self.problems if not problem.is_error)


def read_text(file: str) -> tuple[str, str]:
    """Return the name and the text of a plan file; `-` is the standard input.

    Raises:
        InvalidRequestError: it cannot be read.
    """
    if file == STDIN:
        return STDIN_NAME, sys.stdin.read(TEXT_BYTES + 1)
    path = Path(file).expanduser()
    try:
        if path.stat().st_size > TEXT_BYTES:
            raise InvalidRequestError(f"{file} is larger than {TEXT_BYTES} bytes. Split it into subplans with `file:`")
        return file, path.read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidRequestError(f"the plan file {file} cannot be read: {error.strerror}. Name a file") from error
    except UnicodeDecodeError as error:
        raise InvalidRequestError(f"the plan file {file} is no UTF-8 text (byte {error.start})") from error


def examine(file: str) -> Examined:
    """Read a plan file and find everything that is wrong with it."""
    name, text = read_text(file)
    try:
        read = read_plan(text, name=name)
    except PlanError as error:
        return Examined(name, text, None, error.problems)
    problems = (*read.warnings, *validate(read))
    return Examined(name, text, read, tuple(sorted(problems, key=lambda one: one.position)))


def examine_any(file: str) -> Examined:
    """Examine a file; one that cannot be read is a problem like any other."""
    try:
        return examine(file)
    except InvalidRequestError as error:
        return Examined(file, "", None, (Problem(message=error.message, code="unreadable", file=file),))


def accepted(file: str) -> tuple[Examined, ReadPlan]:
    """Return a plan that may run.

    Raises:
        PlanError: with all problems, each with its place.
    """
    found = examine(file)
    if found.read is None or found.errors:
        raise PlanError(found.errors)
    return found, found.read


def problem_line(problem: Problem) -> str:
    """Return `file:line:column: error: what. suggestion.`, as compilers do."""
    text = str(problem)
    if not problem.is_error:
        return text
    place = f"{problem.file}:{problem.position.line}:{problem.position.column}: " if problem.position.line else ""
    place = place or (f"{problem.file}: " if problem.file else "")
    return f"{place}error: {text.removeprefix(place)}"


def read_inputs(pairs: list[str], known: dict[str, Any] | None) -> dict[str, Any]:
    """Read `name=value` pairs.

    A value is the text itself where the plan's own value is a text (version 1.10 is no number), else JSON, or text
    where it is none.

    Args:
        pairs: as they were typed.
        known: the inputs of the plan; None where they cannot be known here.

    Raises:
        InvalidRequestError: there is no `=`, or the plan has no such input.
    """
    values: dict[str, Any] = {}
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not separator or not name:
            raise InvalidRequestError(f"--set {pair!r} is not name=value. For example: --set target=staging")
        if known is not None and name not in known:
            hint = did_you_mean(name, known) or "The plan has no inputs: write them under `inputs:`"
            raise InvalidRequestError(f"--set {name}: the plan has no input of this name. {hint}")
        values[name] = value if known is not None and isinstance(known[name], str) else _value(value)
    return values


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text
