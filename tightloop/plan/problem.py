"""What is wrong with a plan's text: where, what, and what to write instead."""

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum
from typing import NamedTuple

CANDIDATES_SHOWN = 8


class Position(NamedTuple):
    """A place in a text; both count from 1. Line 0: the problem has no place in the text."""

    line: int = 0
    column: int = 0


NOWHERE = Position()


class Severity(StrEnum):
    """Whether the plan may run."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One thing that is wrong, or odd."""

    message: str
    """What is wrong, with the value; without a full stop."""
    suggestion: str = ""
    """What to write instead; a sentence without a full stop."""
    severity: Severity = Severity.ERROR
    position: Position = NOWHERE
    code: str = ""
    """Stable name of the rule, such as `cycle`."""
    file: str = ""
    """Name of the text, as the caller gave it."""

    @property
    def is_error(self) -> bool:
        """Whether the plan must not run with it."""
        return self.severity is Severity.ERROR

    def __str__(self) -> str:
        """Return `file:line:column: what. suggestion.`, with what of it is known."""
        place = [self.file] if self.file else []
        place += [str(number) for number in self.position] if self.position.line else []
        said = "warning: " if self.severity is Severity.WARNING else ""
        parts = [part.rstrip(".") for part in (self.message, self.suggestion) if part]
        sentences = " ".join(part if part.endswith("?") else f"{part}." for part in parts)
        return f"{':'.join(place)}{': ' if place else ''}{said}{sentences}"


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return a suggestion for a misspelt word: the closest known one, or some that exist."""
    names = sorted(set(known))
    close = get_close_matches(word, names, n=1, cutoff=0.6) if len(names) <= 20_000 else []
    if close:
        return f"Did you mean '{close[0]}'?"
    if not names:
        return ""
    more = f" and {len(names) - CANDIDATES_SHOWN} more" if len(names) > CANDIDATES_SHOWN else ""
    return f"Known: {', '.join(names[:CANDIDATES_SHOWN])}{more}"
