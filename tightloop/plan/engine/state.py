"""State of a plan, its approvals and hypotheses."""

import unicodedata
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from pydantic import Field

from tightloop.errors import ExpressionError, ReferenceMissingError
from tightloop.plan.action import Option
from tightloop.plan.child import Belief, EvidenceNote, StepStatus
from tightloop.plan.document import Hypothesis
from tightloop.plan.expression import parse_expression
from tightloop.plan.reference import Lookup
from tightloop.plan.step import Step, StepKind
from tightloop.run.question import Answer
from tightloop.run.question import Option as Choice
from tightloop.value import Value, shorten

# One letter for each step: 10 000 of them cross from run to run in 10 kB.
PENDING: Final = "p"
AGAIN: Final = "q"
"""Ready to go on with the same attempt: a person answered, or the run before was cut off."""
LATER: Final = "l"
"""Waits for its next attempt."""
RUNNING: Final = "r"
WAITING: Final = "w"
EXPANDED: Final = "x"
"""A template whose steps are under way."""
COMPLETED: Final = "c"
SKIPPED: Final = "s"
FAILED: Final = "f"
FAILED_OVER: Final = "F"
"""Failed, and the step that does the work instead may start."""
RECOVERED: Final = "v"
BLOCKED: Final = "b"
COMPENSATED: Final = "u"
ABANDONED: Final = "a"

STATUS_OF = {
    PENDING: StepStatus.PENDING,
    AGAIN: StepStatus.PENDING,
    LATER: StepStatus.PENDING,
    RUNNING: StepStatus.RUNNING,
    WAITING: StepStatus.WAITING,
    EXPANDED: StepStatus.RUNNING,
    COMPLETED: StepStatus.COMPLETED,
    SKIPPED: StepStatus.SKIPPED,
    FAILED: StepStatus.FAILED,
    FAILED_OVER: StepStatus.FAILED,
    RECOVERED: StepStatus.RECOVERED,
    BLOCKED: StepStatus.BLOCKED,
    COMPENSATED: StepStatus.COMPENSATED,
    ABANDONED: StepStatus.ABANDONED,
}
"""The codes of `ScheduleState.codes`. They are in histories: none is ever given another meaning."""


class UndoEntry(Value):
    """One attempt that left something which can be taken back."""

    step: str
    template: str = ""
    item: int | None = None
    attempt: int = 1


class ScheduleState(Value):
    """Where all steps of a plan stand, as one schedule saves it for the next."""

    codes: str = ""
    """One of `STATUS_OF` for each node in the order of the graph, then for each step made from a template."""
    tries: str = ""
    """Attempts so far, one character for each of `codes`: `chr(ord("0") + attempts)`."""
    expansions: tuple[tuple[int, int], ...] = ()
    """Template's index and number of steps, in the order in which they were made."""
    lengths: dict[str, int] = Field(default_factory=dict)
    """`<step>.<output>` -> length, of those that templates wait for."""
    chosen: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """Decision or gate -> steps that it let start."""


def initial_code(kind: StepKind) -> str:
    """Return the code with which a step begins: one that takes another back is not part of the way forward."""
    return SKIPPED if kind is StepKind.COMPENSATION else PENDING


def encode_tries(attempts: list[int]) -> str:
    """Return the attempts as `ScheduleState.tries`."""
    # Attempts are bounded by `Retry.attempts` (50) and reopened by hand: far below where `chr` meets surrogates.
    return "".join(chr(48 + number) for number in attempts)


def decode_tries(tries: str) -> list[int]:
    """Read `ScheduleState.tries`."""
    return [ord(letter) - 48 for letter in tries]


APPROVE, REJECT = "approve", "reject"


class Tally(NamedTuple):
    """How far a question is answered. The last word of each person counts."""

    rejection: Answer | None = None
    approved: bool = False
    option: Option | None = None
    by: tuple[str, ...] = ()
    """Who agreed."""
    rationale: str = ""
    note: str = ""
    """Why it is not decided yet, for the next person who reads the question."""


def choices(options: tuple[Option, ...] = ()) -> tuple[Choice, ...]:
    """Return what a person may answer: the options of a gate or `approve`, and `reject`."""
    own = tuple(
        Choice(
            name=option.name,
            effect=f"starts {', '.join(option.to)}" if option.to else "the plan goes on",
            pros="; ".join(option.pros),
            cons="; ".join(option.cons),
            cost=option.cost,
        )
        for option in options
    )
    if any(choice.name == REJECT for choice in own):
        return own
    approve = Choice(name=APPROVE, effect="the step goes on")
    reject = Choice(name=REJECT, effect="the step fails, with your text as the reason", at_once=True)
    return *(own or (approve,)), reject


def tally(answers: Iterable[Answer], count: int, options: tuple[Option, ...]) -> Tally:
    """Return the result: a rejection by anybody, or `count` different people who say the same.

    `answers` are in the order in which they were given. Without `options` the answer is yes or no.
    """
    # Later answers replace earlier ones of the same person.
    latest = {_person(answer.by): answer for answer in answers}
    named = {option.name: option for option in options}
    if REJECT not in named and (rejections := [answer for answer in latest.values() if answer.option == REJECT]):
        return Tally(rejection=rejections[0])
    votes: dict[str, list[Answer]] = {}
    for answer in latest.values():
        votes.setdefault(answer.option.strip() if options else "", []).append(answer)
    valid = {name: given for name, given in votes.items() if not options or name in named}
    for name, given in valid.items():
        if len(given) >= count:
            reasons = "; ".join(answer.text for answer in given if answer.text)
            return Tally(approved=True, option=named.get(name), by=tuple(one.by for one in given), rationale=reasons)
    return Tally(note=_note(votes, set(valid), count, options))


def _person(name: str) -> str:
    """Return one spelling of a name: case, blanks, marks that nobody sees and compositions make no other person."""
    # Twice: after case folding a text may not be in normal form any more.
    seen = "".join(letter for letter in unicodedata.normalize("NFKC", name) if unicodedata.category(letter) != "Cf")
    return " ".join(unicodedata.normalize("NFKC", seen.casefold()).split())


def _note(votes: dict[str, list[Answer]], valid: set[str], count: int, options: tuple[Option, ...]) -> str:
    if unknown := [name for name in votes if name not in valid]:
        names = ", ".join(option.name for option in options)
        return f"{unknown[0]!r} is not one of the options: choose one of {names}"
    given = sum(map(len, votes.values()))
    if not given:
        return ""
    differ = ", and they differ" if len(votes) > 1 else ""
    return f"{given} of {count} people have answered{differ}"


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
