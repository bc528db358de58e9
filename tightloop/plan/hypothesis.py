"""Hypotheses: what the end of a step says about them, how sure evidence makes us, and which one is the best supported.

The odds of a hypothesis are multiplied by a Bayes factor for each note that supports it, and divided by it for each
that refutes it: weak 1.5, moderate 3, strong 10. These follow the steps of Kass and Raftery, Bayes Factors (1995),
section 3.2 ("not worth more than a bare mention", "positive", "strong"). Confidence stays within 0.01 and 0.99, so that
later evidence can always turn it.
"""

from collections.abc import Iterable, Sequence

from tightloop.errors import ExpressionError, ReferenceMissingError
from tightloop.plan.language.expression import parse_expression
from tightloop.plan.language.reference import Lookup
from tightloop.plan.model import EvidenceRule, Hypothesis, Step
from tightloop.plan.result import Belief, EvidenceNote
from tightloop.value import shorten

BAYES_FACTORS = {"weak": 1.5, "moderate": 3.0, "strong": 10.0}
LEAST_CONFIDENCE = 0.01
MOST_CONFIDENCE = 0.99
UNDECIDED = 0.5
"""Confidence in a hypothesis that the plan does not declare."""
NOTE_CHARACTERS = 200
_EQUAL = 1e-9


def initial(hypotheses: Iterable[Hypothesis]) -> tuple[Belief, ...]:
    """Return what a plan believes before any evidence."""
    return tuple(Belief(hypothesis=one.id, confidence=_clipped(one.prior)) for one in hypotheses)


def updated(beliefs: Sequence[Belief], notes: Iterable[EvidenceNote]) -> tuple[Belief, ...]:
    """Return the beliefs after more evidence, in the same order; hypotheses that are new stand last."""
    known = {belief.hypothesis: belief for belief in beliefs}
    for note in notes:
        belief = known.get(note.hypothesis) or Belief(hypothesis=note.hypothesis, confidence=UNDECIDED)
        known[note.hypothesis] = belief.model_copy(
            update={"confidence": _weighed(belief.confidence, note), "evidence": belief.evidence + 1}
        )
    return tuple(known.values())


def _weighed(confidence: float, note: EvidenceNote) -> float:
    factor = BAYES_FACTORS.get(note.strength, 1.0)
    if note.verdict not in ("supports", "refutes"):
        return confidence
    before = _clipped(confidence)
    odds = before / (1 - before) * (factor if note.verdict == "supports" else 1 / factor)
    return _clipped(odds / (1 + odds))


def _clipped(confidence: float) -> float:
    return min(max(confidence, LEAST_CONFIDENCE), MOST_CONFIDENCE)


def best(beliefs: Iterable[Belief], among: Iterable[str], min_confidence: float) -> str | None:
    """Return the best supported hypothesis of `among`.

    Returns:
        None where none reaches `min_confidence`, or where two are equally good.
    """
    asked = set(among)
    ranked = sorted((belief for belief in beliefs if belief.hypothesis in asked), key=lambda belief: -belief.confidence)
    if not ranked or ranked[0].confidence < min_confidence - _EQUAL:
        return None
    if len(ranked) > 1 and ranked[0].confidence - ranked[1].confidence < _EQUAL:
        return None
    return ranked[0].hypothesis


def notes_of(step: Step, lookup: Lookup, *, completed: bool = True) -> tuple[EvidenceNote, ...]:
    """Return what the end of an attempt says about hypotheses.

    A rule without `when` speaks when the step completed. One whose expression cannot be judged leaves a neutral note
    that says why, so that the gap is seen.

    Args:
        step: its `evidence` holds the rules.
        lookup: knows the step's own results besides what its texts may refer to.
        completed: whether the attempt completed.
    """
    notes = (_note(step.id, rule, lookup, completed) for rule in step.evidence)
    return tuple(note for note in notes if note is not None)


def _note(step: str, rule: EvidenceRule, lookup: Lookup, completed: bool) -> EvidenceNote | None:
    note = EvidenceNote(
        hypothesis=rule.hypothesis,
        verdict=rule.verdict,
        strength=rule.strength,
        step=step,
        note=shorten(rule.note or rule.when, NOTE_CHARACTERS),
    )
    if not rule.when:
        return note if completed else None
    try:
        return note if parse_expression(rule.when).holds(lookup) else None
    except (ExpressionError, ReferenceMissingError) as error:
        why = shorten(f"not judged: {error.message}", NOTE_CHARACTERS)
        return note.model_copy(update={"verdict": "neutral", "note": why})
