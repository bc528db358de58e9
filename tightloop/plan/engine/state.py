"""Step codes, and calculations for approvals and hypotheses."""

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
from tightloop.run.question import Answer, OptionGroup
from tightloop.run.question import Option as Choice
from tightloop.value import Value, shorten

# One letter per step: 10 000 steps carried to the next run take 10 kB.
PENDING: Final = "p"
AGAIN: Final = "q"
"""Code of a step that is ready to continue the same attempt, because a person answered or the run was interrupted."""
LATER: Final = "l"
"""Code of a step that waits for its next attempt."""
RUNNING: Final = "r"
WAITING: Final = "w"
EXPANDED: Final = "x"
"""Code of a template whose instances have not all ended yet."""
COMPLETED: Final = "c"
SKIPPED: Final = "s"
FAILED: Final = "f"
FAILED_OVER: Final = "F"
"""Code of a failed step whose alternate may start."""
TOLERATED: Final = "t"
"""Code of a failed step after which the steps that need it start as if it had completed."""
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
    TOLERATED: StepStatus.FAILED,
    RECOVERED: StepStatus.RECOVERED,
    BLOCKED: StepStatus.BLOCKED,
    COMPENSATED: StepStatus.COMPENSATED,
    ABANDONED: StepStatus.ABANDONED,
}
"""Status for each code in `ScheduleState.codes`. Codes are stored in histories, so a code must never be reused with a
different meaning.
"""


class UndoEntry(Value):
    """An attempt whose effects can be undone."""

    step: str
    template: str = ""
    item: int | None = None
    attempt: int = 1


class ScheduleState(Value):
    """State of all steps of a plan, as saved by a schedule."""

    codes: str = ""
    """One code from `STATUS_OF` for each node in graph order, followed by one for each template instance."""
    tries: str = ""
    """Number of attempts, with one character for each code: `chr(ord("0") + attempts)`."""
    expansions: tuple[tuple[int, int], ...] = ()
    """Pairs of template index and number of instances, in order of creation."""
    lengths: dict[str, int] = Field(default_factory=dict)
    """Mapping of `<step>.<output>` to the length of the output, for outputs that determine the size of templates."""
    chosen: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """Mapping of decisions and gates to the steps that they started."""


def initial_code(kind: StepKind) -> str:
    """Return the initial code of a step. Compensation steps are SKIPPED, because they run only on demand."""
    return SKIPPED if kind is StepKind.COMPENSATION else PENDING


def encode_tries(attempts: list[int]) -> str:
    """Encode the attempt numbers for `ScheduleState.tries`."""
    # `Retry.attempts` is at most 50 and reopening is manual, so counts stay far below the surrogate range of `chr`.
    return "".join(chr(48 + number) for number in attempts)


def decode_tries(tries: str) -> list[int]:
    """Decode `ScheduleState.tries`."""
    return [ord(letter) - 48 for letter in tries]


APPROVE, REJECT = "approve", "reject"


class VoteResult(NamedTuple):
    """The result of a vote. For each person, only the last answer counts."""

    rejection: Answer | None = None
    approved: bool = False
    option: Option | None = None
    by: tuple[str, ...] = ()
    """Names of the people who approved."""
    rationale: str = ""
    note: str = ""
    """Reason why the question is still open, to show to the next person who answers."""


def choices(options: tuple[Option, ...] = ()) -> tuple[Choice, ...]:
    """Return the possible answers to a gate.

    These are the options of the gate or `approve`, followed by `reject`.
    """
    offered = tuple(
        Choice(
            name=option.name,
            effect=f"starts {', '.join(option.to)}" if option.to else f"the plan continues with {option.name}",
            pros="; ".join(option.pros),
            cons="; ".join(option.cons),
            cost=option.cost,
            group=OptionGroup.STOP if option.name == REJECT else OptionGroup.ACCEPT,
        )
        for option in options
    )
    if any(choice.name == REJECT for choice in offered):
        return offered
    approve = Choice(name=APPROVE, effect="the step continues", group=OptionGroup.ACCEPT)
    reject = Choice(
        name=REJECT,
        effect="the step fails, and your explanation is recorded as the reason",
        group=OptionGroup.STOP,
        at_once=True,
    )
    return *(offered or (approve,)), reject


def count_votes(answers: Iterable[Answer], count: int, options: tuple[Option, ...]) -> VoteResult:
    """Return the result of a vote.

    A single rejection is decisive. Otherwise, `count` different people must agree. `answers` must be in chronological
    order. Without `options`, the question is a yes-no question.
    """
    # A later answer of the same person replaces an earlier one.
    latest = {_person(answer.by): answer for answer in answers}
    named = {option.name: option for option in options}
    # A gate may define `reject` as an ordinary option that leads to other steps.
    if REJECT not in named and (rejections := [answer for answer in latest.values() if answer.option == REJECT]):
        return VoteResult(rejection=rejections[0])
    votes: dict[str, list[Answer]] = {}
    for answer in latest.values():
        # Without options every answer that is not a rejection is an approval; its wording does not matter.
        votes.setdefault(answer.option.strip() if options else "", []).append(answer)
    valid = {name: group for name, group in votes.items() if not options or name in named}
    for name, group in valid.items():
        if len(group) >= count:
            reasons = "; ".join(answer.text for answer in group if answer.text)
            return VoteResult(
                approved=True, option=named.get(name), by=tuple(vote.by for vote in group), rationale=reasons
            )
    return VoteResult(note=_note(votes, set(valid), count, options))


def _person(name: str) -> str:
    """Return a person's name in a normalized form.

    Case, blanks, invisible marks and Unicode composition are ignored.
    """
    # Normalised twice, because case folding can leave a text outside normal form.
    visible = "".join(letter for letter in unicodedata.normalize("NFKC", name) if unicodedata.category(letter) != "Cf")
    return " ".join(unicodedata.normalize("NFKC", visible.casefold()).split())


def _note(votes: dict[str, list[Answer]], valid: set[str], count: int, options: tuple[Option, ...]) -> str:
    if unknown := [name for name in votes if name not in valid]:
        names = ", ".join(option.name for option in options)
        return f"{unknown[0]!r} is not a valid option. Choose one of: {names}"
    answer_count = sum(map(len, votes.values()))
    if not answer_count:
        return ""
    differ = ", and their answers differ" if len(votes) > 1 else ""
    return f"{answer_count} of {count} people have answered{differ}"


BAYES_FACTORS = {"weak": 1.5, "moderate": 3.0, "strong": 10.0}
# At 0 or 1 the odds are zero or infinite, and no evidence could change them.
LEAST_CONFIDENCE = 0.01
MOST_CONFIDENCE = 0.99
UNDECIDED = 0.5
"""Initial confidence in a hypothesis that the plan does not declare."""
NOTE_CHARACTERS = 200
# Floating point: products of the same Bayes factors in another order differ in their last bits.
_EQUAL = 1e-9


def initial_beliefs(hypotheses: Iterable[Hypothesis]) -> tuple[Belief, ...]:
    """Return the initial confidence in each hypothesis, before there is any evidence."""
    return tuple(Belief(hypothesis=hypothesis.id, confidence=_clip(hypothesis.prior)) for hypothesis in hypotheses)


def update_beliefs(beliefs: Sequence[Belief], notes: Iterable[EvidenceNote]) -> tuple[Belief, ...]:
    """Return the updated beliefs in the same order. New hypotheses are appended."""
    by_hypothesis = {belief.hypothesis: belief for belief in beliefs}
    for note in notes:
        belief = by_hypothesis.get(note.hypothesis) or Belief(hypothesis=note.hypothesis, confidence=UNDECIDED)
        confidence, factor = belief.confidence, BAYES_FACTORS.get(note.strength, 1.0)
        if note.verdict in ("supports", "refutes"):
            before = _clip(confidence)
            odds = before / (1 - before) * (factor if note.verdict == "supports" else 1 / factor)
            confidence = _clip(odds / (1 + odds))
        by_hypothesis[note.hypothesis] = belief.evolve(confidence=confidence, evidence=belief.evidence + 1)
    return tuple(by_hypothesis.values())


def _clip(confidence: float) -> float:
    return min(max(confidence, LEAST_CONFIDENCE), MOST_CONFIDENCE)


def find_best_hypothesis(beliefs: Iterable[Belief], among: Iterable[str], min_confidence: float) -> str | None:
    """Return the best supported hypothesis in `among`.

    Returns:
        The hypothesis, or None if its confidence is below `min_confidence` or if there is a tie.
    """
    candidates = set(among)
    ranked = sorted(
        (belief for belief in beliefs if belief.hypothesis in candidates), key=lambda belief: -belief.confidence
    )
    if not ranked or ranked[0].confidence < min_confidence - _EQUAL:
        return None
    if len(ranked) > 1 and ranked[0].confidence - ranked[1].confidence < _EQUAL:
        return None
    return ranked[0].hypothesis


def collect_evidence(step: Step, lookup: Lookup, *, completed: bool = True) -> tuple[EvidenceNote, ...]:
    """Return the evidence that a finished attempt provides for or against hypotheses.

    A rule without `when` applies if the step completed. If the expression of a rule cannot be evaluated,
    the result is a neutral note that states the reason. `lookup` must also resolve the step's own
    results.
    """
    notes: list[EvidenceNote] = []
    for rule in step.evidence:
        verdict, text = rule.verdict, rule.note or rule.when
        try:
            counts = parse_expression(rule.when).holds(lookup) if rule.when else completed
        except (ExpressionError, ReferenceMissingError) as error:
            counts, verdict, text = True, "neutral", f"not evaluated: {error.message}"
        if counts:
            text = shorten(text, NOTE_CHARACTERS)
            notes.append(
                EvidenceNote(
                    hypothesis=rule.hypothesis, verdict=verdict, strength=rule.strength, step=step.id, note=text
                )
            )
    return tuple(notes)
