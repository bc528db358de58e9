"""One delivery to an agent over the Agent Client Protocol: the talk, and the watch over it."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from importlib import resources
from typing import Any

import psutil
from acp.exceptions import RequestError

from activities.execution.agent.acp_client import AcpClient
from activities.execution.agent.acp_record import RunRecord
from activities.execution.agent.watch import LONGEST_WAIT_S
from activities.execution.port import Control
from activities.model_gateway.port import Gateway, GatewaySeen
from tightloop.errors import TightloopError
from tightloop.executor import EventKind, ExecutorEvent, PermissionRule, Progress, ResumeToken, WorkOrder
from tightloop.permission import PermissionRequest, decide
from tightloop.value import shorten

TICK_S = 0.2
CANCEL_S = 10.0
"""How long an agent may take to end a turn that is cancelled; opencode needs 2 s."""
END_S = 3.0
"""The same for a turn that is over its limits, where the agent is perhaps out of order."""
LOOK_S = 2.0
PROGRESS_S = 1.0
BUSY_SHARE = 0.05
"""Share of a core that a working process tree uses; an idle agent stays under a tenth of it."""
DENIED_KEPT = 50
GONE_S = 1.0


class Stop(StrEnum):
    """Why we ended a turn."""

    CANCELLED = "cancelled"
    WALL_LIMIT = "wall_limit"
    IDLE_LIMIT = "idle_limit"
    EVENTS = "events"
    CALLS = "calls"
    LIMIT = "limit"
    QUESTION = "question"
    GONE = "gone"


_RESUMING = resources.files("activities.execution.agent") / "prompts" / "resume.md"
_FIRM = frozenset({Stop.CANCELLED, Stop.QUESTION})
"""They hold whatever the agent says in the meantime."""


@dataclass(frozen=True, kw_only=True)
class Talk:
    """What came of a turn: exactly one of its fields is set."""

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
    ) -> None:
        """Take what to do, who may stop it, where it is recorded and the door to the model, if there is one."""
        self.client = AcpClient(self, sign_in=sign_in)
        self.denied: list[str] = []
        self.question: PermissionRequest | None = None
        self.warnings: list[str] = []
        self._order = order
        self._choice = order.executor
        self._control = control
        self._record = record
        self._gateway = gateway
        self._events = 0
        self._last: EventKind | None = None
        self._stop: Stop | None = None
        self._told = 0.0
        self._process: Watched | None = None
        self._begun = self._alive = time.monotonic()

    async def run(self, pipes: tuple[int, int], process: "Watched", *, resume: str, mode: str) -> Talk:
        """Talk until the turn is over or has to be ended; the agent's process is not ended here."""
        self._process = process
        self._begun = self._alive = time.monotonic()
        talk = asyncio.create_task(self._talk(pipes, resume, mode))
        watch = asyncio.create_task(self._watch(process))
        try:
            await asyncio.wait({talk, watch}, return_when=asyncio.FIRST_COMPLETED)
            if watch.done():
                watch.result()
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
        """What passed through the gateway so far; nothing where there is none."""
        return GatewaySeen() if self._gateway is None else self._gateway.seen()

    def line(self, arrow: str, text: str) -> None:
        """Take every line from the agent as a sign of life."""
        if arrow != ">":
            self._alive = time.monotonic()
        self._record.line(arrow, text)

    def event(self, event: ExecutorEvent) -> None:
        """Count and record an event, and tell how far the work is."""
        if self._stop is Stop.EVENTS:
            return
        self._events += 1
        self._last = event.kind
        self._record.event(event)
        if event.kind is EventKind.WARNING:
            self.warnings.append(event.text)
        if self._events > self._choice.max_events:
            self._end(Stop.EVENTS)
        if event.kind is EventKind.SESSION or time.monotonic() - self._told >= PROGRESS_S:
            self._tell()

    def decide(self, request: PermissionRequest) -> PermissionRule:
        """Answer by a person's earlier answers, the mode and the rule; where a person has to, the turn ends."""
        if self._stop is not None:
            return PermissionRule.ASK
        rule = decide(request, mode=self._choice.mode, rule=self._choice.permissions, grants=self._order.grants)
        wanted = request.command or request.title
        self.event(ExecutorEvent(kind=EventKind.PERMISSION, text=shorten(f"{rule.value}: {wanted}", 500)))
        if rule is PermissionRule.DENY and len(self.denied) < DENIED_KEPT:
            self.denied.append(wanted)
        if rule is PermissionRule.ASK:
            self.question = request
            self._end(Stop.QUESTION)
        return rule

    def _tell(self) -> None:
        self._told = time.monotonic()
        token, pid = (None, None) if self._process is None else (self._process.token(), self._process.pid)
        self._control.progress(Progress(events=self._events, last=self._last, resume=token, pid=pid))

    def _end(self, stop: Stop) -> None:
        self._stop = self._stop or stop

    async def _talk(self, pipes: tuple[int, int], resume: str, mode: str) -> Talk:
        try:
            await self.client.connect(*pipes)
            await self.client.open_session(self._order.root, resume=resume, mode=mode)
            preface = _RESUMING.read_text(encoding="utf-8") if self.client.resumed else ""
            return Talk(answer=await self.client.prompt(preface + self._order.prompt))
        except (RequestError, TightloopError, ConnectionError) as error:
            return Talk(error=error)

    async def _watch(self, process: "Watched") -> None:
        gone = 0.0
        next_look = self._begun + LOOK_S
        while self._stop is None:
            now = time.monotonic()
            if self._control.cancelled():
                self._end(Stop.CANCELLED)
            elif now - self._begun >= self._choice.wall_limit_s:
                self._end(Stop.WALL_LIMIT)
            elif process.gone():
                # Its last words may still be in the pipe.
                gone = gone or now
                if now - gone >= GONE_S:
                    self._end(Stop.GONE)
            self._look_at_model()
            if now >= next_look:
                next_look = now + LOOK_S
                if process.busy():
                    self._alive = now
            if now - self._alive >= self._choice.idle_limit_s:
                self._end(Stop.IDLE_LIMIT)
            if self._stop is None:
                await asyncio.sleep(TICK_S)

    def _look_at_model(self) -> None:
        seen = self.seen
        self._alive = max(self._alive, seen.moved)
        if seen.budget_spent:
            self._end(Stop.CALLS)
        wait = None if seen.limit is None else seen.limit.retry_after
        if wait is not None and wait.total_seconds() > LONGEST_WAIT_S:
            self._end(Stop.LIMIT)


class Watched:
    """The process of an agent, as far as the watch looks at it."""

    def __init__(self, pid: int, *, poll: Callable[[], int | None], token: Callable[[], ResumeToken | None]) -> None:
        """Take the pid of the outermost process, what asks for its exit code, and what makes a resume token."""
        self.token = token
        self.pid = pid
        self._poll = poll
        self._cpu_s = self._time_s = 0.0

    def gone(self) -> bool:
        """Return whether the process has exited."""
        return self._poll() is not None

    def busy(self) -> bool:
        """Return whether its tree computed since the last call: some agents are silent while a tool runs."""
        before, then = self._cpu_s, self._time_s
        self._cpu_s, self._time_s = _cpu_s(self.pid), time.monotonic()
        return then > 0 and self._cpu_s - before > BUSY_SHARE * (self._time_s - then)


def _cpu_s(pid: int) -> float:
    total = 0.0
    with contextlib.suppress(psutil.Error):
        leader = psutil.Process(pid)
        for process in (leader, *leader.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                used = process.cpu_times()
                total += used.user + used.system
    return total
