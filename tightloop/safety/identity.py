"""The form of the ids of episodes and plans, which become parts of paths and of git refs."""

import re

from tightloop.errors import InvalidRequestError

CHOSEN_CHARACTERS = 100
"""Bound of an id that a person chooses."""
LONGEST = 200
"""Ids of what the steps of plans start are longer."""
# An id becomes part of a git ref (refs/tightloop/<id>/<n>), whose rules are stricter than Temporal's.
_ID = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_-]|\.(?=[A-Za-z0-9_-]))*")


def is_id(text: str, longest: int = LONGEST) -> bool:
    """Return whether a text is the id of an episode or a plan."""
    return len(text) <= longest and _ID.fullmatch(text) is not None and not text.endswith(".lock")


def check_id(text: str) -> None:
    """Refuse what is not the id of an episode or a plan.

    Raises:
        InvalidRequestError: it could be taken for a path, or git would misread it.
    """
    if not is_id(text):
        raise InvalidRequestError(
            f"{text[:LONGEST]!r} cannot be the id of an episode or a plan: it needs a-z, A-Z, 0-9, '-', '_' or "
            "single '.', starting with a letter or digit. Start it under another id"
        )
