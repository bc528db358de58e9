"""What a step promises: conditions before it, criteria after it, and the ways to fail that it knows."""

from collections.abc import Iterable

from activities.plan.references import References
from tightloop.errors import ExpressionError, ReferenceMissingError
from tightloop.plan.language.expression import looks_like_expression, parse_expression
from tightloop.plan.model import FailureClass, FailureMode, Step
from tightloop.plan.result import REASON_CHARACTERS, StepFailure
from tightloop.scrub import scrub
from tightloop.value import shorten


def failure(reason: str, failure_class: FailureClass = FailureClass.LOGIC) -> StepFailure:
    """Return a failure whose reason may go into the history."""
    # Scrubbed before it is cut: what is left of a cut secret has no form to know it by.
    return StepFailure(failure_class=failure_class, reason=shorten(scrub(reason), REASON_CHARACTERS))


def wanted(step: Step, lookup: References) -> bool:
    """Return whether `when` lets the step start.

    Raises:
        ExpressionError: it cannot be evaluated.
        ReferenceMissingError: a value is missing.
    """
    return not step.when or parse_expression(step.when).holds(lookup)


def broken(rules: Iterable[str], lookup: References, what: str) -> str:
    """Return a sentence on the first expression that does not hold, or "". Prose is passed over.

    Args:
        rules: preconditions or success criteria.
        lookup: the values.
        what: `precondition` or `criterion`, for the sentence.
    """
    for rule in rules:
        if not looks_like_expression(rule):
            continue
        try:
            if not parse_expression(rule).holds(lookup):
                return f"{what} does not hold: {rule}{_values(rule, lookup)}"
        except (ExpressionError, ReferenceMissingError) as error:
            return f"{what} cannot be judged: {rule}: {error.message}"
    return ""


def unchecked(step: Step) -> int:
    """Return how many criteria are prose, which nobody checked."""
    return sum(not looks_like_expression(rule) for rule in (*step.preconditions, *step.expect))


def judged(step: Step, found: StepFailure | None, lookup: References) -> StepFailure | None:
    """Return the failure of an attempt: the mode that is recognised, or as it was found."""
    mode = next((mode for mode in step.failure_modes if _recognised(mode, found, lookup)), None)
    if mode is None:
        return found
    reason = found.reason if found is not None else f"it left what is a failure: {mode.detect}"
    # A mode that stands for any failure does not make a wrong result of a time limit or of a refusal.
    keeps = found is not None and not mode.detect and found.failure_class is not FailureClass.LOGIC
    kind = found.failure_class if found is not None and keeps else mode.failure_class
    text = f"{mode.name}: {reason}" + (f" ({mode.advice})" if mode.advice else "")
    return failure(text, kind).model_copy(update={"mode": mode.name, "recover": mode.recover})


def _recognised(mode: FailureMode, found: StepFailure | None, lookup: References) -> bool:
    if not mode.detect:
        return found is not None
    if not looks_like_expression(mode.detect):
        return False
    try:
        return parse_expression(mode.detect).holds(lookup)
    except (ExpressionError, ReferenceMissingError):
        # The results that it looks at are not there: it is another failure.
        return False


def _values(rule: str, lookup: References) -> str:
    """Return the values that an expression saw, for a person."""
    shown = (f"{name} = {shorten(repr(value), 80)}" for name, value in lookup.used(rule).items())
    text = ", ".join(shown)
    return f" ({text})" if text else ""
