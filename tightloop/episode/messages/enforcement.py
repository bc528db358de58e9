"""Enforces the template (EP-2): what an incomplete plan message lacks, and how often it is sent back."""

from tightloop.errors import MessageError
from tightloop.executor.messages.message import PlanMessage, parse_plan, render_plan
from tightloop.value import shorten

CORRECTIONS = 2
"""Times a message is sent back before a person is asked."""
LETTER_CHARACTERS = 4_000
_SENTENCE_CHARACTERS = 400


def gaps_of_plan(message: PlanMessage) -> str:
    """Return what a plan message lacks, with an example, as its author is told; empty when it is in order."""
    # A model's answer comes as JSON: rendered, it is held to the same rules as a message that a person wrote.
    try:
        parse_plan(render_plan(message))
    except MessageError as error:
        return shorten(error.message, LETTER_CHARACTERS)
    return ""


def given_up(name: str, told: str, *, returned: int) -> str:
    """Return the sentence for the person after a message was sent back in vain."""
    lacks = "; ".join(line.removeprefix("- ") for line in told.split("\n") if line.startswith("- ["))
    return shorten(
        f"the {name} was sent back {returned} times and is still wrong: {lacks}. "
        "Fix what writes it, or resume to ask once more",
        _SENTENCE_CHARACTERS,
    )
