"""Reading plan files from the command line: their text, their problems, and the values of their inputs."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tightloop.cli.request import json_or_text, read_pairs
from tightloop.errors import InvalidRequestError, PlanError, Problem
from tightloop.plan.text.reading import TEXT_BYTES, ReadPlan, decode
from tightloop.plan.validation.files import find_file_cycles, find_missing, find_unknown_inputs
from tightloop.plan.validation.inputs import check_inputs
from tightloop.plan.validation.validate import check_text

STDIN = "-"
STDIN_NAME = "stdin"


@dataclass(frozen=True)
class Examined:
    """The text of a plan with its errors and warnings."""

    name: str
    text: str
    read: ReadPlan | None
    """None where the text cannot be read as a plan; with errors, what can be read of it."""
    problems: tuple[Problem, ...]

    @property
    def errors(self) -> tuple[Problem, ...]:
        """Problems that keep the plan from running."""
        return tuple(problem for problem in self.problems if problem.is_error)

    @property
    def warnings(self) -> tuple[Problem, ...]:
        """Problems that do not keep the plan from running."""
        return tuple(problem for problem in self.problems if not problem.is_error)


def read_text(file: str) -> tuple[str, str]:
    """Return the name and the text of a plan file; `-` is the standard input.

    Raises:
        InvalidRequestError: it cannot be read; a `PlanError` where it is not UTF-8.
    """
    if file == STDIN:
        # One more than allowed shows that the text is too long, however much there is.
        return STDIN_NAME, decode(sys.stdin.buffer.read(TEXT_BYTES + 1), name=STDIN_NAME)
    path = Path(file).expanduser()
    try:
        if path.stat().st_size > TEXT_BYTES:
            raise InvalidRequestError(f"{file} is larger than {TEXT_BYTES} bytes. Split it into subplans with `file:`")
        return file, decode(path.read_bytes(), name=file)
    except OSError as error:
        raise InvalidRequestError(f"the plan file {file} cannot be read: {error.strerror}. Name a file") from error


def examine(file: str) -> Examined:
    """Read a plan file and find every problem."""
    name, text = read_text(file)
    read, problems = check_text(text, name=name)
    if read is not None and file != STDIN:
        problems = (*problems, *_file_problems(read, Path(file).expanduser().resolve()))
    return Examined(name, text, read, tuple(sorted(problems, key=lambda one: one.position)))


def _file_problems(read: ReadPlan, file: Path) -> tuple[Problem, ...]:
    # Files of subplans are named from the root of the tree.
    root = next((folder for folder in file.parents if (folder / ".git").exists()), file.parent)

    def load(name: str) -> str | None:
        place = (root / name).resolve()
        if not place.is_relative_to(root) or not place.is_file() or place.stat().st_size > TEXT_BYTES:
            return None
        try:
            return decode(place.read_bytes())
        except (OSError, PlanError):
            return None

    def names(folder: str) -> list[str] | None:
        place = (root / folder).resolve()
        if not place.is_relative_to(root) or not place.is_dir():
            return None
        try:
            return [one.name for one in place.iterdir()]
        except OSError:
            return None

    own = file.relative_to(root).as_posix()
    return (*find_file_cycles(read, own, load), *find_missing(read, names), *find_unknown_inputs(read, load))


def examine_any(file: str) -> Examined:
    """Examine a file; a file that cannot be read is reported as a problem."""
    try:
        return examine(file)
    except PlanError as error:
        return Examined(file, "", None, error.problems)
    except InvalidRequestError as error:
        return Examined(file, "", None, (Problem(message=error.message, code="unreadable", file=file),))


def accepted(file: str) -> tuple[Examined, ReadPlan]:
    """Return the text of a plan that can run.

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

    A value is the text itself where the plan's own value is a text (version 1.10 is not a number), else JSON, or else
    text.

    Args:
        pairs: as they were typed.
        known: the inputs of the plan; None where they cannot be known here.

    Raises:
        InvalidRequestError: the `=` is missing, or the plan has no such input.
    """
    values = read_pairs("--set", pairs, "target=staging")
    if known is not None:
        check_inputs(values, known)
    # Else `--set version=1.10` would become the number 1.1.
    texts = {name for name, value in (known or {}).items() if isinstance(value, str)}
    return {name: value if name in texts else json_or_text(value) for name, value in values.items()}
