"""What a step promises: conditions before it, criteria after it, and the ways to fail that it knows."""

from collections.abc import Iterable
from typing import Any

from activities.plan.attempts.references import References
from activities.plan.port import RunnerResult
from tightloop.errors import ExpressionError, ReferenceMissingError
from tightloop.plan.document.failing import FailureClass, FailureMode
from tightloop.plan.document.step import Prose, Step
from tightloop.plan.language.expression import parse_expression
from tightloop.plan.result import REASON_CHARACTERS, StepFailure
from tightloop.value import abridge, shorten
from tightloop.value.scrub import scrub


def make_failure(reason: str, failure_class: FailureClass = FailureClass.LOGIC) -> StepFailure:
    """Return a failure whose reason may go into the history."""
    # Scrubbed before it is cut: what is left of a cut secret has no form to know it by.
    return StepFailure(failure_class=failure_class, reason=abridge(scrub(reason), REASON_CHARACTERS))


def fail_step(reason: str, failure_class: FailureClass = FailureClass.LOGIC, **found: Any) -> RunnerResult:
    """Return the result of a step that failed, with the fields of what it did until then."""
    return RunnerResult(failure=make_failure(reason, failure_class), **found)


def find_unmet(rules: Iterable[str | Prose], lookup: References, what: str) -> str:
    """Return a sentence on the first expression that does not hold, or ""; it begins with `what`. Prose is skipped."""
    for rule in rules:
        if isinstance(rule, Prose):
            continue
        try:
            if not parse_expression(rule).holds(lookup):
                seen = ", ".join(f"{name} = {shorten(repr(value), 80)}" for name, value in lookup.used(rule).items())
                return f"{what} does not hold: {rule}" + (f" ({seen})" if seen else "")
        except (ExpressionError, ReferenceMissingError) as error:
            return f"{what} cannot be judged: {rule}: {error.message}"
    return ""


def classify_failure(step: Step, found: StepFailure | None, lookup: References) -> StepFailure | None:
    """Return the failure of an attempt: the mode that is recognised, or as it was found."""
    mode = next((mode for mode in step.failure_modes if _recognised(mode, found, lookup)), None)
    if mode is None:
        return found
    reason = found.reason if found is not None else f"it left what is a failure: {mode.detect}"
    # A mode that stands for any failure does not make a wrong result of a time limit or of a refusal.
    keeps = found is not None and not mode.detect and found.failure_class is not FailureClass.LOGIC
    kind = found.failure_class if found is not None and keeps else mode.failure_class
    text = f"{mode.name}: {reason}" + (f" ({mode.advice})" if mode.advice else "")
    return make_failure(text, kind).evolve(mode=mode.name, recover=mode.recover)


def _recognised(mode: FailureMode, found: StepFailure | None, lookup: References) -> bool:
    if not mode.detect:
        return found is not None
    try:
        return parse_expression(mode.detect).holds(lookup)
    except (ExpressionError, ReferenceMissingError):
        # The results that it looks at are not there: it is another failure.
        return False
