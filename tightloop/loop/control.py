"""The arguments of the updates of a project's plan, read leniently and refused with a sentence."""

from typing import Any

from tightloop.episode.control import read_argument
from tightloop.errors import InvalidRequestError
from tightloop.loop.model import PARALLEL_LIMIT
from tightloop.value import Document, shorten

NAME_CHARACTERS = 80


class DispatchWord(Document):
    """Start the tasks."""

    parallel: int | bool | None = None
    """Tasks at the same time; true and None: as the request says; false: one after the other."""
    by: str = "operator"


class VerifyWord(Document):
    """Run the gates."""

    by: str = "operator"


class CancelWord(Document):
    """End the plan."""

    reason: str = ""
    by: str = "operator"


def read_dispatch(value: Any) -> DispatchWord:
    """Read the argument of `dispatch`: nothing, or an object.

    Raises:
        InvalidRequestError: a field is misspelt or out of range.
    """
    word = read_argument(value or {}, DispatchWord, what="dispatch", example='{"parallel": 4, "by": "ada"}')
    given = word.parallel
    if given is not None and not isinstance(given, bool) and not 1 <= given <= PARALLEL_LIMIT:
        raise InvalidRequestError(f"dispatch: parallel is {given}; it must be 1 to {PARALLEL_LIMIT}")
    return word.evolve(by=_name(word.by))


def read_verify(value: Any) -> VerifyWord:
    """Read the argument of `verify`: nothing, or an object.

    Raises:
        InvalidRequestError: a field is misspelt.
    """
    word = read_argument(value or {}, VerifyWord, what="verify", example='{"by": "ada"}')
    return word.evolve(by=_name(word.by))


def read_cancel(value: Any) -> CancelWord:
    """Read the argument of the update `cancel`: nothing, the reason, or an object.

    Raises:
        InvalidRequestError: a field is misspelt.
    """
    value = {"reason": value} if isinstance(value, str) else value or {}
    word = read_argument(value, CancelWord, what="cancel", example='{"reason": "not needed", "by": "ada"}')
    return word.evolve(by=_name(word.by), reason=shorten(word.reason, 500))


def parallel_wanted(word: DispatchWord, asked: int) -> int:
    """Return how many tasks run at the same time."""
    if word.parallel is None or word.parallel is True:
        return asked
    return 1 if word.parallel is False else word.parallel


def _name(by: str) -> str:
    return shorten(by.strip() or "operator", NAME_CHARACTERS)
