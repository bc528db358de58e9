"""What several people said about a gate or a question, taken together."""

import unicodedata
from collections.abc import Iterable
from typing import NamedTuple

from tightloop.plan.action import Option
from tightloop.plan.result import PersonDecision


class Tally(NamedTuple):
    """How far a question is answered. The last word of each person counts."""

    rejection: PersonDecision | None = None
    approved: bool = False
    option: Option | None = None
    by: tuple[str, ...] = ()
    """Who agreed."""
    rationale: str = ""
    note: str = ""
    """Why it is not decided yet, for the next person who reads the question."""


def tally(decisions: Iterable[PersonDecision], count: int, options: tuple[Option, ...]) -> Tally:
    """Return the result: a rejection by anybody, or `count` different people who say the same.

    Args:
        decisions: in the order in which they were made.
        count: of different people.
        options: what may be chosen; empty: yes or no.
    """
    latest = {_person(decision.by): decision for decision in decisions}
    if rejections := [decision for decision in latest.values() if not decision.approved]:
        return Tally(rejection=rejections[0])
    votes: dict[str, list[PersonDecision]] = {}
    for decision in latest.values():
        votes.setdefault(decision.option.strip() if options else "", []).append(decision)
    named = {option.name: option for option in options}
    valid = {name: given for name, given in votes.items() if not options or name in named}
    for name, given in valid.items():
        if len(given) >= count:
            reasons = "; ".join(decision.rationale for decision in given if decision.rationale)
            return Tally(approved=True, option=named.get(name), by=tuple(one.by for one in given), rationale=reasons)
    return Tally(note=_note(votes, set(valid), count, options))


def _person(name: str) -> str:
    """Return one spelling of a name: case, blanks, marks that nobody sees and compositions make no other person."""
    seen = "".join(letter for letter in unicodedata.normalize("NFKC", name) if unicodedata.category(letter) != "Cf")
    return " ".join(unicodedata.normalize("NFKC", seen.casefold()).split())


def _note(votes: dict[str, list[PersonDecision]], valid: set[str], count: int, options: tuple[Option, ...]) -> str:
    if unknown := [name for name in votes if name not in valid]:
        names = ", ".join(option.name for option in options)
        return f"{unknown[0]!r} is none of the options: choose one of {names}"
    given = sum(map(len, votes.values()))
    if not given:
        return ""
    differ = ", and they differ" if len(votes) > 1 else ""
    return f"{given} of {count} people have answered{differ}"
