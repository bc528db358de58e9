"""What the rules of validation share: one list of steps, and the report of its problems."""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

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


_OF_A_STEP = frozenset({"template", "kind", "action", "two-actions", "empty-gate", "unreachable", "unknown-output"})
_OF_ITS_NAME = frozenset({"unknown-step", "unknown-reference", "not-needed", "no-output", "unused-compensation"})
_OF_THE_PLAN = {
    "inputs": frozenset({"unknown-input"}),
    "hypotheses": frozenset({"unknown-hypothesis", "unknown-input"}),
    "policy": frozenset({"no-network", "value", "no-approver"}),
    "budget": frozenset({"step-budget", "fan-out", "depth"}),
    "steps": frozenset({"no-steps", "unknown-step"}),
}
"""What follows from a field that could not be read: it is told once that is corrected."""


def _explains(left_out: Path, code: str, path: Path) -> bool:
    """Return whether a problem may only be there because a field could not be read."""
    if path[: len(left_out)] == left_out or left_out[: len(path)] == path:
        return True
    if len(left_out) == 1:
        return code in _OF_THE_PLAN.get(str(left_out[0]), ())
    # A whole step is missing: nobody knows what it was called, and what it left.
    whole = isinstance(left_out[-1], int)
    return code in _OF_A_STEP or (whole and code in _OF_ITS_NAME)


@dataclass
class Report:
    """Collects problems with their places."""

    read: ReadPlan
    problems: list[Problem] = field(default_factory=list)
    suggested: int = 0

    def closest(self, name: str, known: Collection[str], *, but: str = "") -> str:
        """Return a suggestion for a misspelt id, never the step `but`; empty after `SUGGESTIONS_LIMIT` of them."""
        self.suggested += 1
        if self.suggested > SUGGESTIONS_LIMIT:
            return ""
        if f"{name}-*" in known:
            return f"Did you mean '{name}-*'?"
        return did_you_mean(name, [one for one in known if one != but] if but else known)

    def error(self, code: str, path: Path, message: str, suggestion: str = "") -> None:
        """Report an error."""
        self._add(code, path, message, suggestion)

    def warning(self, code: str, path: Path, message: str, suggestion: str = "") -> None:
        """Report a warning."""
        self._add(code, path, message, suggestion, severity=Severity.WARNING)

    def within(self, code: str, path: Path, at: tuple[str, int], message: str, suggestion: str) -> None:
        """Report an error at a place within a text, given with the text."""
        self._add(code, path, message, suggestion, within=at)

    def _add(
        self,
        code: str,
        path: Path,
        message: str,
        suggestion: str,
        *,
        severity: Severity = Severity.ERROR,
        within: tuple[str, int] | None = None,
    ) -> None:
        if any(_explains(one, code, path) for one in self.read.left_out):
            return
        place = self.read.where(path)
        if within:
            place = place_in(*within, place)
        said = {"message": message, "suggestion": suggestion, "code": code, "file": self.read.name}
        self.problems.append(Problem(severity=severity, position=place, **said))


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
