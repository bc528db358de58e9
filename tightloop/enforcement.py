"""Enforcing the template (EP-2): what the author of a message is told when it lacks something, and how often.

A message comes as Markdown (an agent, a person) or as a value (our own planners); both are held to the same rules.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from tightloop.errors import MessageError
from tightloop.message import (
    PlanMessage,
    PlanRequestMessage,
    parse_plan,
    parse_plan_request,
    render_plan,
    render_plan_request,
)
from tightloop.value import shorten

CORRECTIONS = 2
"""How often a message is sent back before a person is asked."""
LETTER_CHARACTERS = 4_000
_SENTENCE_CHARACTERS = 400

M = TypeVar("M", PlanMessage, PlanRequestMessage)


@dataclass(frozen=True, kw_only=True)
class Received(Generic[M]):
    """What became of a message: taken, sent back to its author, or given up for a person to look at."""

    message: M | None = None
    sent_back: str = ""
    """What it lacks, with an example; for its author."""
    gave_up: str = ""
    """Why no further message is asked for; a sentence for a person."""


def receive_plan(text: str, *, returned: int = 0) -> Received[PlanMessage]:
    """Take in the Markdown of a plan message.

    Args:
        text: what the author wrote.
        returned: how often this message was sent back before.
    """
    return _receive(parse_plan, text, returned=returned, name="plan message")


def receive_plan_request(text: str, *, returned: int = 0) -> Received[PlanRequestMessage]:
    """Take in the Markdown of a plan request; the arguments are those of `receive_plan`."""
    return _receive(parse_plan_request, text, returned=returned, name="plan request")


def gaps_of_plan(message: PlanMessage) -> str:
    """Return what a plan message lacks, with an example, as its author is told; empty when it is in order."""
    return _gaps(parse_plan, render_plan(message))


def gaps_of_plan_request(message: PlanRequestMessage) -> str:
    """Return what a plan request lacks, with an example; empty when it is in order."""
    return _gaps(parse_plan_request, render_plan_request(message))


def given_up(name: str, told: str, *, returned: int) -> str:
    """Return the sentence for the person after a message was sent back in vain."""
    lacks = "; ".join(line.removeprefix("- ") for line in told.split("\n") if line.startswith("- ["))
    return shorten(
        f"the {name} was sent back {returned} times and is still wrong: {lacks}. "
        "Mend what writes it, or resume to ask once more",
        _SENTENCE_CHARACTERS,
    )


def _receive(parse: Callable[[str], M], text: str, *, returned: int, name: str) -> Received[M]:
    try:
        return Received(message=parse(text))
    except MessageError as error:
        if returned >= CORRECTIONS:
            return Received(gave_up=given_up(name, error.message, returned=returned))
        return Received(sent_back=shorten(error.message, LETTER_CHARACTERS))


def _gaps(parse: Callable[[str], PlanMessage] | Callable[[str], PlanRequestMessage], text: str) -> str:
    try:
        parse(text)
    except MessageError as error:
        return shorten(error.message, LETTER_CHARACTERS)
    return ""
