"""Watches one run of an agent: reads its events as they come, and says when it has to be ended."""

import time
from collections import deque
from collections.abc import Callable
from enum import StrEnum

from activities.execution.agent.port import EventReader
from activities.execution.agent.record import Record, Redaction
from activities.execution.port import Control
from activities.model_gateway.port import Gateway
from activities.process_output import BoundedOutput, EventLines
from tightloop.executor import EventKind, ExecutorChoice, LimitHit, Progress, ResumeToken
from tightloop.limit import LimitKind
from tightloop.value import shorten

LONGEST_WAIT_S = 20.0
"""An agent that waits longer for its provider is ended: the workflow waits for less, and can be paused."""
FINISHED_S = 5.0
"""How long an agent may live on after it said that it is done."""
TOLD_EVERY_S = 1.0
LOOKED_EVERY_S = 0.2
STATUS_LINES = 50
STATUS_CHARACTERS = 1_000

_NEEDED = frozenset({EventKind.SESSION, EventKind.FINISHED})


class Stop(StrEnum):
    """Why an agent was ended."""

    CANCELLED = "cancelled"
    WALL = "wall"
    IDLE = "idle"
    LIMIT = "limit"
    EVENTS = "events"
    MODEL_CALLS = "model_calls"
    FINISHED = "finished"
    """It said that it is done, and did not go."""


class Watch:
    """What is known of a run while it lasts. Used by one thread."""

    def __init__(
        self,
        choice: ExecutorChoice,
        reader: EventReader,
        control: Control,
        *,
        record: Record,
        redaction: Redaction,
        gateway: Gateway | None,
        token: Callable[[str], ResumeToken],
        resume: ResumeToken | None,
    ) -> None:
        """Take the bounds, who reads, who is told; `token` makes a resume token of a session id."""
        self.stop: Stop | None = None
        self.limit: LimitHit | None = None
        """The limit for which it was ended."""
        self.resume = resume
        self.transcript = BoundedOutput()
        self.status_lines: deque[str] = deque(maxlen=STATUS_LINES)
        """What it printed that was no event."""
        self._choice = choice
        self._reader = reader
        self._control = control
        self._record = record
        self._redaction = redaction
        self._gateway = gateway
        self._token = token
        self._pid: int | None = None
        self._events = 0
        self._last: EventKind | None = None
        self._lines = EventLines()
        self._begun = self._alive = self._told = self._looked = time.monotonic()
        self._finished: float | None = None

    def started(self, pid: int) -> None:
        """Note the process."""
        self._pid = pid
        self._control.own_process(pid)
        self._tell()

    def take(self, chunk: bytes) -> None:
        """Read output."""
        self._alive = time.monotonic()
        for line in self._lines.feed(chunk):
            self._read(line)

    def close(self) -> None:
        """Read what is left of the output, and tell the last progress."""
        self._read(self._lines.rest())
        self._tell()

    def ended(self) -> bool:
        """Return whether the agent has to go; asked several times a second."""
        if self.stop is None and self._control.cancelled():
            self.stop = Stop.CANCELLED
        now = time.monotonic()
        if self.stop is None and now - self._looked >= LOOKED_EVERY_S:
            self._looked = now
            self.stop = self._bound_reached(now)
        return self.stop is not None

    def _bound_reached(self, now: float) -> Stop | None:
        if self._finished is not None:
            return Stop.FINISHED if now - self._finished >= FINISHED_S else None
        if now - self._begun >= self._choice.wall_limit_s:
            return Stop.WALL
        if self._events > self._choice.max_events:
            return Stop.EVENTS
        if stop := self._gateway_says():
            return stop
        return Stop.IDLE if now - self._alive >= self._choice.idle_limit_s else None

    def _gateway_says(self) -> Stop | None:
        if self._gateway is None:
            return None
        seen = self._gateway.seen()
        if seen.budget_spent:
            return Stop.MODEL_CALLS
        self._alive = max(self._alive, seen.moved)
        if seen.limit is not None and _lasts(seen.limit):
            self.limit = seen.limit
            return Stop.LIMIT
        return None

    def _read(self, line: str) -> None:
        text = self._redaction(line)
        if not text.strip():
            return
        if not text.lstrip().startswith("{"):
            self.status_lines.append(shorten(text, STATUS_CHARACTERS))
        events = self._reader.feed(text)
        kinds = [found.kind for found in events]
        if self.stop in (None, Stop.FINISHED):
            # Told to go, some agents say that all went well: the attempt after this one must not believe it.
            self._record.add(text, needed=not _NEEDED.isdisjoint(kinds))
        self.transcript.add(f"{text}\n".encode("utf-8", "replace"))
        self._events += len(events)
        self._last = kinds[-1] if kinds else self._last
        if self._reader.finished and self._finished is None:
            self._finished = time.monotonic()
        sessions = [found.session_id for found in events if found.session_id]
        if sessions:
            self.resume = self._token(sessions[-1])
        if sessions or time.monotonic() - self._told >= TOLD_EVERY_S:
            self._tell()

    def _tell(self) -> None:
        self._told = time.monotonic()
        self._control.progress(Progress(events=self._events, last=self._last, resume=self.resume, pid=self._pid))


def _lasts(limit: LimitHit) -> bool:
    """Return whether an agent would wait for this limit longer than it may."""
    if limit.retry_after is None:
        return limit.kind == LimitKind.USAGE_EXHAUSTED
    return limit.retry_after.total_seconds() > LONGEST_WAIT_S
