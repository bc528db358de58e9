"""Watches one run of an agent: reads its events as they come, and says when it has to be ended."""

import time
from collections import deque
from collections.abc import Callable

from activities.executor.agent.bounds import Bounds, Stop
from activities.executor.agent.port import EventReader
from activities.executor.agent.record import NEEDED, Record, Redaction
from activities.executor.port import Control
from activities.model.gateway.port import Gateway
from activities.process.output import BoundedOutput, EventLines
from tightloop.executor.model import EventKind, ExecutorChoice, Progress, ResumeToken
from tightloop.value import shorten

FINISHED_S = 5.0
"""How long an agent may live on after it said that it is done."""
PROGRESS_EVERY_S = 1.0
CHECK_EVERY_S = 0.2
STATUS_LINES = 50
STATUS_CHARACTERS = 1_000


class Watch:
    """The state of a run in progress. Used by one thread."""

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
        """Take the bounds, the reader and the control; `token` makes a resume token of a session id."""
        self.stop: Stop | None = None
        self.bounds = Bounds(choice, gateway)
        self.resume = resume
        self.transcript = BoundedOutput()
        self.status_lines: deque[str] = deque(maxlen=STATUS_LINES)
        """Lines that it printed and that are not events."""
        self._reader = reader
        self._control = control
        self._record = record
        self._redaction = redaction
        self._token = token
        self._pid: int | None = None
        self._last: EventKind | None = None
        self._lines = EventLines()
        self._reported = self._checked = time.monotonic()
        self._finished: float | None = None

    def started(self, pid: int) -> None:
        """Note the process."""
        self._pid = pid
        self._control.own_process(pid)
        self._report()

    def take(self, chunk: bytes) -> None:
        """Read output."""
        self.bounds.note_life()
        for line in self._lines.feed(chunk):
            self._read(line)

    def close(self) -> None:
        """Read what is left of the output, and report the last progress."""
        self._read(self._lines.rest())
        self._report()

    def ended(self) -> bool:
        """Return whether the agent has to be ended; asked several times a second."""
        if self.stop is None and self._control.cancelled():
            self.stop = Stop.CANCELLED
        now = time.monotonic()
        if self.stop is None and now - self._checked >= CHECK_EVERY_S:
            self._checked = now
            if self._finished is None:
                self.stop = self.bounds.check()
            elif now - self._finished >= FINISHED_S:
                self.stop = Stop.FINISHED
        return self.stop is not None

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
            self._record.add(text, needed=not NEEDED.isdisjoint(kinds))
        self.transcript.add(f"{text}\n".encode("utf-8", "replace"))
        self.bounds.events += len(events)
        self._last = kinds[-1] if kinds else self._last
        if self._reader.finished and self._finished is None:
            self._finished = time.monotonic()
        sessions = [found.session_id for found in events if found.session_id]
        if sessions:
            self.resume = self._token(sessions[-1])
        if sessions or time.monotonic() - self._reported >= PROGRESS_EVERY_S:
            self._report()

    def _report(self) -> None:
        self._reported = time.monotonic()
        self._control.progress(Progress(events=self.bounds.events, last=self._last, resume=self.resume, pid=self._pid))
