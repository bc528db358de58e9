"""Hypotheses: what the end of a step says about them, how sure evidence makes us, and which one is the best supported.

The odds of a hypothesis are multiplied by a Bayes factor for each note that supports it, and divided by it for each
that refutes it: weak 1.5, moderate 3, strong 10. These follow the steps of Kass and Raftery, Bayes Factors (1995),
section 3.2 ("not worth more than a bare mention", "positive", "strong"). Confidence stays within 0.01 and 0.99, so that
later evidence can always turn it.
"""

from collections.abc import Iterable, Sequence

from tightloop.errors import ExpressionError, ReferenceMissingError
from tightloop.plan.document.plan import Hypothesis
from tightloop.plan.document.step import Step
from tightloop.plan.language.expression import parse_expression
from tightloop.plan.language.reference import Lookup
from tightloop.plan.result import Belief, EvidenceNote
from tightloop.value import shorten

BAYES_FACTORS = {"weak": 1.5, "moderate": 3.0, "strong": 10.0}
# At 0 or 1 the odds are 0 or endless, and no evidence changes them.
LEAST_CONFIDENCE = 0.01
MOST_CONFIDENCE = 0.99
UNDECIDED = 0.5
"""Confidence in a hypothesis that the plan does not declare."""
NOTE_CHARACTERS = 200
# Products of Bayes factors in another order differ in their last bits.
_EQUAL = 1e-9


def initial_beliefs(hypotheses: Iterable[Hypothesis]) -> tuple[Belief, ...]:
    """Return what a plan believes before any evidence."""
    return tuple(Belief(hypothesis=one.id, confidence=_clipped(one.prior)) for one in hypotheses)


def update_beliefs(beliefs: Sequence[Belief], notes: Iterable[EvidenceNote]) -> tuple[Belief, ...]:
    """Return the beliefs after more evidence, in the same order; hypotheses that are new stand last."""
    known = {belief.hypothesis: belief for belief in beliefs}
    for note in notes:
        belief = known.get(note.hypothesis) or Belief(hypothesis=note.hypothesis, confidence=UNDECIDED)
        confidence, factor = belief.confidence, BAYES_FACTORS.get(note.strength, 1.0)
        if note.verdict in ("supports", "refutes"):
            before = _clipped(confidence)
            odds = before / (1 - before) * (factor if note.verdict == "supports" else 1 / factor)
            confidence = _clipped(odds / (1 + odds))
        known[note.hypothesis] = belief.evolve(confidence=confidence, evidence=belief.evidence + 1)
    return tuple(known.values())


def _clipped(confidence: float) -> float:
    return min(max(confidence, LEAST_CONFIDENCE), MOST_CONFIDENCE)


def find_best_supported(beliefs: Iterable[Belief], among: Iterable[str], min_confidence: float) -> str | None:
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


def collect_evidence(step: Step, lookup: Lookup, *, completed: bool = True) -> tuple[EvidenceNote, ...]:
    """Return what the end of an attempt says about hypotheses.

    A rule without `when` counts when the step completed. One whose expression cannot be evaluated leaves a neutral
    note that says why, so that the gap is seen. `lookup` must know the step's own results too.
    """
    notes: list[EvidenceNote] = []
    for rule in step.evidence:
        verdict, text = rule.verdict, rule.note or rule.when
        try:
            counts = parse_expression(rule.when).holds(lookup) if rule.when else completed
        except (ExpressionError, ReferenceMissingError) as error:
            counts, verdict, text = True, "neutral", f"not judged: {error.message}"
        if counts:
            text = shorten(text, NOTE_CHARACTERS)
            notes.append(
                EvidenceNote(
                    hypothesis=rule.hypothesis, verdict=verdict, strength=rule.strength, step=step.id, note=text
                )
            )
    return tuple(notes)
