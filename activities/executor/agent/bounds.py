"""The bounds of one delivery to an agent, and the outcome at each of them."""

import time
from enum import StrEnum

from activities.executor.ending import (
    cancelled_outcome,
    failed_outcome,
    idle_outcome,
    limited_outcome,
    timeout_outcome,
)
from activities.model.gateway.port import Gateway
from tightloop.executor.limit import LimitKind
from tightloop.executor.model import SUMMARY_CHARACTERS, ErrorKind, ExecutorChoice, ExecutorOutcome, LimitHit
from tightloop.value import clip

LONGEST_WAIT_S = 20.0
"""An agent that waits longer for its provider is ended: the workflow waits for less, and can be paused."""


class Stop(StrEnum):
    """Why we ended an agent."""

    CANCELLED = "cancelled"
    WALL_LIMIT = "wall_limit"
    IDLE_LIMIT = "idle_limit"
    LIMIT = "limit"
    EVENTS = "events"
    MODEL_CALLS = "model_calls"
    QUESTION = "question"
    """A person has to be asked first."""
    FINISHED = "finished"
    """It said that it is done, and did not go."""
    GONE = "gone"
    """It went in the middle of its turn."""


class Bounds:
    """Keeps the time, silence, events, model calls and provider waits of a delivery within its bounds."""

    def __init__(self, choice: ExecutorChoice, gateway: Gateway | None) -> None:
        self.events = 0
        self.limit: LimitHit | None = None
        """The limit for which it was ended."""
        self._choice = choice
        self._gateway = gateway
        self._begun = self._alive = time.monotonic()

    def note_life(self) -> None:
        """Note that the agent is at work: it said or computed something."""
        self._alive = time.monotonic()

    def check(self) -> Stop | None:
        """Return which bound is reached, if any."""
        now = time.monotonic()
        if now - self._begun >= self._choice.wall_limit_s:
            return Stop.WALL_LIMIT
        if self.events > self._choice.max_events:
            return Stop.EVENTS
        if self._gateway is not None:
            seen = self._gateway.seen()
            if seen.budget_spent:
                return Stop.MODEL_CALLS
            # An answer of the model is a sign of life, too: agents are silent while it comes.
            self._alive = max(self._alive, seen.moved)
            if seen.limit is not None and _is_long(seen.limit):
                self.limit = seen.limit
                return Stop.LIMIT
        # opencode waits in silence when a quota is spent or for a retry-after of an hour: nothing else ends that.
        return Stop.IDLE_LIMIT if now - self._alive >= self._choice.idle_limit_s else None


def _is_long(limit: LimitHit) -> bool:
    """Return whether an agent would wait for this limit longer than it may."""
    if limit.retry_after is None:
        return limit.kind == LimitKind.USAGE_EXHAUSTED
    return limit.retry_after.total_seconds() > LONGEST_WAIT_S


def stopped_outcome(stop: Stop, choice: ExecutorChoice, limit: LimitHit | None) -> ExecutorOutcome | None:
    """Return the outcome of a delivery that we ended; None where what the agent said decides."""
    match stop:
        case Stop.CANCELLED:
            return cancelled_outcome()
        case Stop.WALL_LIMIT:
            return timeout_outcome(choice)
        case Stop.IDLE_LIMIT:
            return idle_outcome(choice, "sign of life")
        case Stop.LIMIT if limit is not None:
            return limit_outcome(limit, "ended: the agent would have waited for its provider without a word")
        case Stop.EVENTS:
            events = f"more than {choice.max_events} events, as if it ran in circles"
            return failed_outcome(f"{events}: ended. Raise executor.max_events or plan less.", ErrorKind.BUDGET)
        case Stop.MODEL_CALLS:
            calls = f"all {choice.max_model_calls} model calls of this delivery are spent"
            return failed_outcome(f"{calls}: ended. Raise executor.max_model_calls or plan less.", ErrorKind.BUDGET)
        case _:
            return None


def limit_outcome(limit: LimitHit, said: str) -> ExecutorOutcome:
    """Return the outcome of a delivery that a limit ended."""
    text = f"{limit.evidence}: {said}" if limit.evidence and limit.evidence not in said else said
    return limited_outcome(limit, clip(text, SUMMARY_CHARACTERS))
