"""What a policy says of an act."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Stance(StrEnum):
    """Whether an act may be done, from lenient to strict."""

    ALLOW = "allow"
    ASK = "ask"
    """A person has to approve first."""
    DENY = "deny"


_ORDER = tuple(Stance)


@dataclass(frozen=True)
class Verdict:
    """The answer, and the rule that gave it."""

    stance: Stance = Stance.ALLOW
    rule: str = ""
    """Such as `policy.protect`; empty: no rule was about the act."""
    reason: str = ""
    """A sentence for a person, with what would make the act right."""


def strictest(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the strictest; of equal ones the first."""
    return max(verdicts, key=lambda verdict: _ORDER.index(verdict.stance), default=Verdict())
