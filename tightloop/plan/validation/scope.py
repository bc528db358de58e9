"""What the rules of validation share: one list of steps, and where to tell about it."""

from collections.abc import Collection
from dataclasses import dataclass, field, replace

from tightloop.plan.model import Plan, Step
from tightloop.plan.problem import Position, Problem, Severity, did_you_mean
from tightloop.plan.text.marked import Path
from tightloop.plan.text.reading import ReadPlan

SUGGESTIONS_LIMIT = 25
"""Looking for the closest of many ids takes milliseconds; a plan with more misspelt ids has another trouble."""


@dataclass
class Report:
    """Collects problems with their places."""

    read: ReadPlan
    problems: list[Problem] = field(default_factory=list)
    suggested: int = 0

    def closest(self, name: str, known: Collection[str]) -> str:
        """Return a suggestion for a misspelt id; empty after `SUGGESTIONS_LIMIT` of them."""
        self.suggested += 1
        return did_you_mean(name, known) if self.suggested <= SUGGESTIONS_LIMIT else ""

    def error(self, code: str, path: Path, message: str, suggestion: str = "") -> None:
        """Tell what must not be."""
        self._add(Severity.ERROR, code, path, message, suggestion)

    def warning(self, code: str, path: Path, message: str, suggestion: str = "") -> None:
        """Tell what is odd."""
        self._add(Severity.WARNING, code, path, message, suggestion)

    def at_column(self, code: str, path: Path, message: str, suggestion: str, column: int) -> None:
        """Tell what must not be at a column of a text; a text of several lines is pointed to as a whole."""
        self._add(Severity.ERROR, code, path, message, suggestion)
        place = self.problems[-1].position
        if place.line:
            moved = Position(place.line, place.column + column - 1)
            self.problems[-1] = replace(self.problems[-1], position=moved)

    def _add(self, severity: Severity, code: str, path: Path, message: str, suggestion: str) -> None:
        self.problems.append(
            Problem(
                message=message,
                suggestion=suggestion,
                severity=severity,
                position=self.read.where(path),
                code=code,
                file=self.read.name,
            )
        )


@dataclass(frozen=True, kw_only=True)
class Scope:
    """Steps that know each other: those of a plan, of a subplan, or of one alternative."""

    plan: Plan
    """The whole plan."""
    steps: tuple[Step, ...]
    path: Path
    """Way to `steps`."""
    depth: int
    inputs: frozenset[str]
    """Names that `${plan.<name>}` may have."""
    report: Report
    capabilities: frozenset[str] | None = None
    """What can be done; None: everything."""
    index: dict[str, int] = field(default_factory=dict)
    """Place of each id in `steps`; of a double id, the first one."""

    def at(self, step: int, *fields: str | int) -> Path:
        """Return the way to a field of a step."""
        return (*self.path, step, *fields)
