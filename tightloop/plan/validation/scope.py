"""What the rules of validation share: one list of steps, and the report of its problems."""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace

from tightloop.errors import Problem, Severity, did_you_mean
from tightloop.plan.document.plan import Plan
from tightloop.plan.document.step import Step
from tightloop.plan.text.located import Path, place_in
from tightloop.plan.text.reading import ReadPlan

SUGGESTIONS_LIMIT = 25
"""Looking for the closest of many ids takes milliseconds; more misspelt ids have another cause."""


def repeated(names: Iterable[str]) -> Iterator[tuple[int, str]]:
    """Yield the place and the name of each that occurred before."""
    seen: set[str] = set()
    for number, name in enumerate(names):
        if name in seen:
            yield number, name
        seen.add(name)


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
        """Report an error."""
        place = self.read.where(path)
        found = Problem(message=message, suggestion=suggestion, position=place, code=code, file=self.read.name)
        self.problems.append(found)

    def warning(self, code: str, path: Path, message: str, suggestion: str = "") -> None:
        """Report a warning."""
        self.error(code, path, message, suggestion)
        self.problems[-1] = replace(self.problems[-1], severity=Severity.WARNING)

    def within(self, code: str, path: Path, at: tuple[str, int], message: str, suggestion: str) -> None:
        """Report an error at a place within a text, given with the text."""
        self.error(code, path, message, suggestion)
        self.problems[-1] = replace(self.problems[-1], position=place_in(*at, self.problems[-1].position))


@dataclass(frozen=True, kw_only=True)
class Scope:
    """Steps that know each other: those of a plan, of a subplan, or of one alternative."""

    plan: Plan
    """The whole plan."""
    steps: tuple[Step, ...]
    path: Path = ("steps",)
    """Way to `steps`."""
    depth: int = 1
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
