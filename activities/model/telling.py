"""What an activity that asks a model tells while it does: how far it is, and what was wrong before.

The last word is the detail of its heartbeats: people see it, and the attempt after this one has it.
"""

import contextlib
from collections.abc import Sequence
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta

from pydantic import ValidationError
from temporalio import activity

from tightloop.episode.work import PROBLEM_CHARACTERS, Work
from tightloop.value import shorten
from tightloop.value.scrub import scrub

_NOTHING = Work()
_told: ContextVar[Work] = ContextVar("told", default=_NOTHING)


def begin(what: str, limit: timedelta) -> Work:
    """Tell that it begins, with what the attempts before left."""
    earlier = Work()
    for detail in activity.info().heartbeat_details:
        with contextlib.suppress(ValidationError):
            earlier = Work.model_validate(detail)
    begun = Work(
        what=what,
        since=datetime.now(UTC) - timedelta(seconds=earlier.spent_s),
        limit_s=limit.total_seconds(),
        spent_s=earlier.spent_s,
        problem=earlier.problem,
        answer_problem=earlier.answer_problem,
    )
    _send(begun)
    return begun


def tell(step: str, problems: Sequence[str] = ()) -> None:
    """Tell which step begins, and what was wrong with the one before; without a beginning nothing is told."""
    work = _told.get()
    if work.what:
        what = f"{work.what.partition(':')[0]}: {step}"
        told = shorten(scrub("; ".join(problems)), PROBLEM_CHARACTERS)
        _send(work.evolve(what=what, answer_problem=told or work.answer_problem))


def trouble() -> str:
    """Return why there is no answer yet."""
    return _told.get().trouble


def leave(spent: timedelta, problem: str) -> None:
    """Leave to the next attempt how long all of them took, and why this one failed."""
    text = shorten(scrub(problem), PROBLEM_CHARACTERS)
    _send(_told.get().evolve(spent_s=spent.total_seconds(), problem=text))


def _send(work: Work) -> None:
    _told.set(work)
    activity.heartbeat(work)
