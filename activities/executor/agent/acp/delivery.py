"""One delivery to an agent over the Agent Client Protocol: the talk, and the watch over it."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import psutil
from acp.exceptions import RequestError

from activities.executor.agent.acp.client import AcpClient
from activities.executor.agent.host import resume_preface
from activities.executor.agent.record import Bounds, RunRecord, Stop
from activities.executor.port import Control
from activities.model.gateway.wire import Gateway, GatewaySeen
from tightloop.errors import TightloopError
from tightloop.executor.asking import PermissionRequest, decide
from tightloop.executor.model import EventKind, ExecutorEvent, Progress, ResumeToken, WorkOrder
from tightloop.safety.rubric import Verdict
from tightloop.value import shorten

TICK_S = 0.2
CANCEL_S = 10.0
"""How long an agent may take to end a turn that is cancelled. Measured: opencode 2.3 s, the others 0.2 s."""
END_S = 3.0
"""The same for a turn that is over its limits, where the agent is perhaps out of order."""
# gemini reports a tool only once it is over: until then its processor time is the only sign of life.
LOOK_S = 2.0
PROGRESS_S = 1.0
BUSY_SHARE = 0.05
"""Share of a core that a working process tree uses; an idle agent stays under a tenth of it."""
DENIED_KEPT = 50
GONE_S = 1.0


_FIRM = frozenset({Stop.CANCELLED, Stop.QUESTION})
"""They hold whatever the agent says in the meantime."""


@dataclass(frozen=True, kw_only=True)
class Talk:
    """The result of a turn: exactly one of its fields is set."""

    stop: Stop | None = None
    answer: Mapping[str, Any] | None = None
    """To the prompt."""
    error: RequestError | TightloopError | ConnectionError | None = None


class Delivery:
    """Listens to one agent, answers what it asks, and ends its turn when that is due."""

    def __init__(
        self,
        order: WorkOrder,
        control: Control,
        record: RunRecord,
        gateway: Gateway | None,
        *,
        sign_in: tuple[str, ...] = (),
        session_meta: Mapping[str, Any] | None = None,
    ) -> None:
        self.client = AcpClient(self, sign_in=sign_in, session_meta=session_meta)
        self.denied: list[str] = []
        self.question: PermissionRequest | None = None
        self.warnings: list[str] = []
        self._order = order
        self._choice = order.executor
        self._control = control
        self._record = record
        self._gateway = gateway
        self.bounds = Bounds(order.executor, gateway)
        self._last: EventKind | None = None
        self._stop: Stop | None = None
        self._reported = 0.0
        self._process: Watched | None = None

    async def run(self, pipes: tuple[int, int], process: "Watched", *, resume: str, mode: str) -> Talk:
        """Talk until the turn is over or has to be ended; the agent's process is not ended here."""
        self._process = process
        talk = asyncio.create_task(self._talk(pipes, resume, mode))
        watch = asyncio.create_task(self._watch(process))
        try:
            await asyncio.wait({talk, watch}, return_when=asyncio.FIRST_COMPLETED)
            if watch.done():
                watch.result()
            # What the agent says after we told it to stop does not count: it may report success for half of the work.
            finished = talk.done()
            if not finished and self._stop is not Stop.GONE and await self.client.cancel():
                await asyncio.wait({talk}, timeout=CANCEL_S if self._stop in _FIRM else END_S)
            return talk.result() if finished and self._stop not in _FIRM else Talk(stop=self._stop)
        finally:
            for task in (talk, watch):
                task.cancel()
            await asyncio.gather(talk, watch, return_exceptions=True)
            await self.client.close()

    @property
    def seen(self) -> GatewaySeen:
        """What passed through the gateway so far; nothing without one."""
        return GatewaySeen() if self._gateway is None else self._gateway.seen()

    def line(self, arrow: str, text: str) -> None:
        """Take every line from the agent as a sign of life."""
        if arrow != ">":
            self.bounds.note_life()
        self._record.line(arrow, text)

    def event(self, event: ExecutorEvent) -> None:
        if self._stop is Stop.EVENTS:
            return
        self.bounds.events += 1
        self._last = event.kind
        self._record.event(event)
        if event.kind is EventKind.WARNING:
            self.warnings.append(event.text)
        if self.bounds.events > self._choice.max_events:
            self._end(Stop.EVENTS)
        if event.kind is EventKind.SESSION or time.monotonic() - self._reported >= PROGRESS_S:
            self._reported = time.monotonic()
            token, pid = (None, None) if self._process is None else (self._process.token(), self._process.pid)
            self._control.progress(Progress(events=self.bounds.events, last=self._last, resume=token, pid=pid))

    def decide(self, request: PermissionRequest) -> Verdict:
        """Answer by a person's earlier answers, the mode and the rule; where a person has to, the turn ends."""
        if self._stop is not None:
            return Verdict.ASK
        rule = decide(request, mode=self._choice.mode, rule=self._choice.permissions, grants=self._order.grants)
        wanted = request.command or request.title
        self.event(ExecutorEvent(kind=EventKind.PERMISSION, text=shorten(f"{rule.value}: {wanted}", 500)))
        if rule is Verdict.DENY and len(self.denied) < DENIED_KEPT:
            self.denied.append(wanted)
        if rule is Verdict.ASK:
            self.question = request
            self._end(Stop.QUESTION)
        return rule

    def _end(self, stop: Stop) -> None:
        self._stop = self._stop or stop

    async def _talk(self, pipes: tuple[int, int], resume: str, mode: str) -> Talk:
        try:
            await self.client.connect(*pipes)
            await self.client.open_session(self._order.root, resume=resume, mode=mode)
            preface = resume_preface() if self.client.resumed else ""
            return Talk(answer=await self.client.prompt(preface + self._order.prompt))
        except (RequestError, TightloopError, ConnectionError) as error:
            return Talk(error=error)

    async def _watch(self, process: "Watched") -> None:
        gone = 0.0
        next_look = time.monotonic() + LOOK_S
        while self._stop is None:
            now = time.monotonic()
            if now >= next_look:
                next_look = now + LOOK_S
                if process.busy():
                    self.bounds.note_life()
            if self._control.cancelled():
                self._end(Stop.CANCELLED)
            elif process.poll() is not None:
                # Its last words may still be in the pipe.
                gone = gone or now
                if now - gone >= GONE_S:
                    self._end(Stop.GONE)
            elif stop := self.bounds.check():
                self._end(stop)
            if self._stop is None:
                await asyncio.sleep(TICK_S)


class Watched:
    """The process of an agent, as far as the watch looks at it."""

    def __init__(self, pid: int, *, poll: Callable[[], int | None], token: Callable[[], ResumeToken | None]) -> None:
        self.token = token
        self.pid = pid
        self.poll = poll
        self._cpu_s = self._time_s = 0.0

    def busy(self) -> bool:
        """Return whether its tree computed since the last call: some agents are silent while a tool runs."""
        total = 0.0
        with contextlib.suppress(psutil.Error):
            leader = psutil.Process(self.pid)
            for process in (leader, *leader.children(recursive=True)):
                with contextlib.suppress(psutil.Error):
                    used = process.cpu_times()
                    total += used.user + used.system
        before, then = self._cpu_s, self._time_s
        self._cpu_s, self._time_s = total, time.monotonic()
        return then > 0 and total - before > BUSY_SHARE * (self._time_s - then)
