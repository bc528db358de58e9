"""Allow, ask or deny: the answer of every rule about an act, and the rule that gave it."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """Whether an act is allowed, from lenient to strict."""

    ALLOW = "allow"
    ASK = "ask"
    """A person has to approve it first; for a finding of the rubric a model may do so."""
    DENY = "deny"
    """Forbidden; for a finding of the rubric only a person can allow it."""


_STRICTNESS = tuple(Verdict)


@dataclass(frozen=True)
class Ruling:
    """A verdict, and the rule that gave it."""

    verdict: Verdict = Verdict.ALLOW
    rule: str = ""
    """Such as `policy.protect`; empty: no rule applied."""
    reason: str = ""
    """One sentence for a person: the rule, and what to do instead."""


def strictest(rulings: Iterable[Ruling]) -> Ruling:
    """Return the strictest ruling; of equally strict ones the first."""
    return max(rulings, key=lambda ruling: _STRICTNESS.index(ruling.verdict), default=Ruling())
