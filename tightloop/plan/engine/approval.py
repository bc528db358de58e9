"""Counts what several people answered to a gate or a question."""

import unicodedata
from collections.abc import Iterable
from typing import NamedTuple

from tightloop.plan.document.action import Option
from tightloop.question import Answer
from tightloop.question import Option as Choice

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
