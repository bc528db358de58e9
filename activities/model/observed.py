"""Telemetry for model calls, and progress reports for planning activities."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import NamedTuple, Protocol

from pydantic import ValidationError
from temporalio import activity

from tightloop import telemetry
from tightloop.executor.model import Usage
from tightloop.run.core import PROBLEM_CHARACTERS, Work
from tightloop.value import shorten
from tightloop.value.scrub import scrub
from tightloop.wording import work_problems

Value = str | int | tuple[str, ...]


class ProposedCall(NamedTuple):
    """A tool call as the model wrote it."""

    id: str
    """The provider's id, which is unique within its response."""
    tool: str
    arguments: str
    """Unparsed JSON."""


class ModelAnswer(NamedTuple):
    """A model service's unmodified response."""

    text: str = ""
    calls: tuple[ProposedCall, ...] = ()
    truncated: bool = False
    """True if the response was cut off. If so, a valid object in it may be incomplete."""
    refusal: str = ""
    usage: Usage = Usage()
    model: str = ""
    response_id: str = ""
    finish_reason: str = ""


@dataclass
class Operation:
    """A running call that is being observed."""

    kind: str
    """One of `telemetry.OPERATIONS`."""
    name: str
    """The name of the model, the agent or the tool."""
    attributes: dict[str, Value] = field(default_factory=dict)

    def note(self, attributes: Mapping[str, Value | None]) -> None:
        """Add attributes to the observed call. None and empty values are ignored."""
        self.attributes |= {name: value for name, value in attributes.items() if value not in (None, "", ())}

    def record_answer(self, answer: ModelAnswer) -> None:
        self.note({
            telemetry.RESPONSE_MODEL: answer.model,
            telemetry.RESPONSE_ID: answer.response_id,
            telemetry.FINISH_REASONS: (answer.finish_reason,) if answer.finish_reason else (),
            telemetry.INPUT_TOKENS: answer.usage.input_tokens,
            telemetry.OUTPUT_TOKENS: answer.usage.output_tokens,
            telemetry.CACHED_TOKENS: answer.usage.cached_tokens,
        })  # fmt: skip


class Observer(Protocol):
    """Observes calls."""

    def observe(self, operation: Operation) -> AbstractContextManager[None]:
        """Observe a call while the block runs."""
        ...


OBSERVER: ContextVar[Observer | None] = ContextVar("OBSERVER", default=None)
"""The running activity's observer. None if telemetry is off."""


@contextmanager
def operation(kind: str, name: str, attributes: Mapping[str, Value | None]) -> Iterator[Operation]:
    span, observer = Operation(kind, name, {telemetry.OPERATION: kind}), OBSERVER.get()
    span.note(attributes)
    if observer is None:
        yield span
        return
    with observer.observe(span):
        yield span


_NOTHING = Work()
_progress: ContextVar[Work] = ContextVar("progress", default=_NOTHING)


def begin(what: str, limit: timedelta) -> Work:
    """Start reporting progress. The elapsed time includes the time spent by earlier attempts."""
    earlier = Work()
    # Details of an older release may not fit the model; the report then starts from zero.
    for detail in activity.info().heartbeat_details:
        with contextlib.suppress(ValidationError):
            earlier = Work.model_validate(detail)
    work = Work(
        what=what,
        since=datetime.now(UTC) - timedelta(seconds=earlier.spent_s),
        limit_s=limit.total_seconds(),
        spent_s=earlier.spent_s,
        problem=earlier.problem,
        answer_problem=earlier.answer_problem,
    )
    _send(work)
    return work


def report_step(step: str, problems: Sequence[str] = ()) -> None:
    """Report the next step and the problems of the previous one. Do nothing before `begin` is called."""
    work = _progress.get()
    if work.what:
        what = f"{work.what.partition(':')[0]}: {step}"
        problem = shorten(scrub("; ".join(problems)), PROBLEM_CHARACTERS)
        _send(work.evolve(what=what, answer_problem=problem or work.answer_problem))


def describe_problem() -> str:
    """Return a sentence that explains why there is no answer yet."""
    return work_problems(_progress.get())


def record_failure(spent: timedelta, problem: str) -> None:
    """Save the problem and the total time spent for the next attempt, using the heartbeat."""
    text = shorten(scrub(problem), PROBLEM_CHARACTERS)
    _send(_progress.get().evolve(spent_s=spent.total_seconds(), problem=text))


def _send(work: Work) -> None:
    _progress.set(work)
    # Sent for every step: the SDK throttles heartbeats by itself.
    activity.heartbeat(work)
