"""Hypotheses: evidence moves confidence, and the best supported one is taken."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tightloop.errors import ReferenceMissingError
from tightloop.plan.child import Belief, EvidenceNote
from tightloop.plan.document import Hypothesis
from tightloop.plan.engine.state import collect_evidence, find_best_hypothesis, initial_beliefs, update_beliefs
from tightloop.plan.step import EvidenceRule, Step

NOTES = st.builds(
    EvidenceNote,
    hypothesis=st.sampled_from(["H1", "H2"]),
    verdict=st.sampled_from(["supports", "refutes", "neutral"]),
    strength=st.sampled_from(["weak", "moderate", "strong"]),
)


def supports(hypothesis: str, strength: str = "moderate", verdict: str = "supports") -> EvidenceNote:
    return EvidenceNote(hypothesis=hypothesis, verdict=verdict, strength=strength)


@pytest.mark.parametrize(
    ("strength", "verdict", "confidence"),
    [
        ("weak", "supports", 0.6),
        ("moderate", "supports", 0.75),
        ("strong", "supports", 10 / 11),
        ("moderate", "refutes", 0.25),
        ("strong", "neutral", 0.5),
    ],
)
def test_evidence_multiplies_the_odds_by_its_factor(strength: str, verdict: str, confidence: float) -> None:
    (belief,) = update_beliefs(initial_beliefs([Hypothesis(id="H1")]), [supports("H1", strength, verdict)])
    assert belief.confidence == pytest.approx(confidence)
    assert belief.evidence == 1


@given(st.lists(NOTES, max_size=30))
def test_confidence_stays_within_its_bounds_and_every_note_is_counted(notes: list[EvidenceNote]) -> None:
    beliefs = update_beliefs(initial_beliefs([Hypothesis(id="H1", prior=0.999)]), notes)
    assert all(0.01 <= belief.confidence <= 0.99 for belief in beliefs)
    assert sum(belief.evidence for belief in beliefs) == len(notes)


@given(st.lists(NOTES, max_size=12), NOTES)
def test_support_never_lowers_and_refutation_never_raises(before: list[EvidenceNote], note: EvidenceNote) -> None:
    start = initial_beliefs([Hypothesis(id="H1"), Hypothesis(id="H2")])
    earlier = {belief.hypothesis: belief.confidence for belief in update_beliefs(start, before)}
    later = {belief.hypothesis: belief.confidence for belief in update_beliefs(start, [*before, note])}
    change = later[note.hypothesis] - earlier[note.hypothesis]
    assert change >= -1e-12 if note.verdict == "supports" else change <= 1e-12


def test_best_is_taken_only_when_it_is_sure_and_alone() -> None:
    beliefs = (Belief(hypothesis="H1", confidence=0.7), Belief(hypothesis="H2", confidence=0.9))
    assert find_best_hypothesis(beliefs, ["H1", "H2"], 0.6) == "H2"
    assert find_best_hypothesis(beliefs, ["H1"], 0.6) == "H1"
    assert find_best_hypothesis(beliefs, ["H1", "H2"], 0.95) is None
    assert find_best_hypothesis((*beliefs, Belief(hypothesis="H3", confidence=0.9)), ["H2", "H3"], 0.6) is None
    assert find_best_hypothesis(beliefs, ["H9"], 0.0) is None


def test_step_says_what_its_end_means_for_a_hypothesis() -> None:
    step = Step(
        id="check-db",
        evidence=(
            EvidenceRule(hypothesis="H1", when="${exit_code} != 0", strength="strong"),
            EvidenceRule(hypothesis="H2", when="${exit_code} == 0", verdict="refutes"),
            EvidenceRule(hypothesis="H3"),
            EvidenceRule(hypothesis="H4", when="${gone.x} == 1"),
        ),
    )

    def lookup(name: str) -> Any:
        if name == "exit_code":
            return 1
        raise ReferenceMissingError(f"${{{name}}} has no value")

    failed = collect_evidence(step, lookup, completed=False)
    assert [(note.hypothesis, note.verdict) for note in failed] == [("H1", "supports"), ("H4", "neutral")]
    assert "not evaluated: ${gone.x} has no value" in failed[1].note
    assert [note.hypothesis for note in collect_evidence(step, lookup)] == ["H1", "H3", "H4"]
