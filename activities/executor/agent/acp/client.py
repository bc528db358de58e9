"""Client for the Agent Client Protocol, and the supervisor of deliveries that use it."""

import asyncio
import contextlib
import json
import os
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import psutil
from acp.connection import Connection
from acp.exceptions import RequestError
from acp.meta import AGENT_METHODS, CLIENT_METHODS, PROTOCOL_VERSION

from activities.executor.agent.acp.events import AUTH_REQUIRED, Turn, mode_among, option_for, permission_of
from activities.executor.agent.host import resume_preface
from activities.executor.agent.program import decode_event, mapping, part, parts
from activities.executor.agent.record import Bounds, RunRecord, Stop
from activities.executor.port import Control
from activities.model.gateway.server import GatewayServer
from activities.model.gateway.wire import GatewayCounters
from activities.process.output import EventLines
from tightloop.errors import TightloopError
from tightloop.executor.asking import PermissionRequest, decide
from tightloop.executor.model import EventKind, ExecutorEvent, Progress, ResumeToken, WorkOrder
from tightloop.safety.rubric import Verdict
from tightloop.value import shorten

LINE_BYTES = 50_000_000
"""Maximum length of a line. Longer lines are truncated and not parsed. opencode's model list alone takes hundreds of
kilobytes.
"""
_CHUNK_BYTES = 65_536

Message = dict[str, Any]


class PipeTransport:
    """Line-delimited JSON transport for `acp.connection.Connection`.

    Lines that are not JSON objects are skipped, because agents and their child processes may print other
    text.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        source: asyncio.ReadTransport,
        came: Callable[[Message], bool],
        line: Callable[[str, str], None],
    ) -> None:
        self._reader = reader
        self._source = source
        self._writer = writer
        self._handle_first = came
        self._line = line
        self._lines = EventLines(LINE_BYTES)
        self._waiting: deque[str] = deque()

    @classmethod
    async def open(
        cls, stdin_fd: int, stdout_fd: int, *, came: Callable[[Message], bool], line: Callable[[str, str], None]
    ) -> Self:
        """Connect to the pipes of a process. The descriptors are duplicated.

        Args:
            stdin_fd: the program's standard input.
            stdout_fd: the program's standard output.
            came: called first with each message, in order of arrival. It returns True if it handled the message.
            line: called with each line, prefixed with `<` for input, `>` for output or `!` for input that is
                not a message.
        """
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=_CHUNK_BYTES)
        source, _ = await loop.connect_read_pipe(
            # Copies, because asyncio closes what it is given, and the process session still owns the pipes.
            lambda: asyncio.StreamReaderProtocol(reader),
            os.fdopen(os.dup(stdout_fd), "rb"),
        )
        # `StreamWriter.drain` needs flow control; the only public protocol with it is StreamReaderProtocol.
        pipe, protocol = await loop.connect_write_pipe(
            lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader()), os.fdopen(os.dup(stdin_fd), "wb")
        )
        return cls(reader, asyncio.StreamWriter(pipe, protocol, None, loop), source=source, came=came, line=line)

    async def send(self, message: Message) -> None:
        """Write one message. A response to an agent that has exited is dropped.

        Raises:
            ConnectionError: the agent has exited and `message` is not a response.
        """
        text = json.dumps(message, separators=(",", ":"))
        self._line(">", text)
        try:
            self._writer.write(text.encode() + b"\n")
            await self._writer.drain()
        except ConnectionError:
            # The end of the agent is then reported by the request that waits for it.
            if "method" in message:
                raise

    async def receive(self) -> Message | None:
        """Return the next message that `came` did not handle, or None at the end of the stream."""
        while True:
            while self._waiting:
                text = self._waiting.popleft().strip()
                message = decode_event(text)
                if text:
                    self._line("!" if message is None else "<", text)
                # Updates are handled here and not in `_answer`: the library runs each handler in a task of its own, so
                # updates could overtake each other, and the answer that ends the turn.
                if message is not None and not self._handle_first(message):
                    return message
            chunk = await self._reader.read(_CHUNK_BYTES)
            if not chunk:
                return None
            self._waiting.extend(self._lines.feed(chunk))

    async def close(self) -> None:
        """Close both pipes and discard unwritten data."""
        self._source.close()
        if not self._writer.transport.is_closing():
            self._writer.transport.abort()
        # The loop closes the pipes in its next iteration, which may be the last.
        await asyncio.sleep(0)


ANSWER_S = 60.0
"""Timeout for all requests except prompts, which the wall limit bounds."""
LOAD_S = 180.0
"""Timeout for loading a session. It is longer because the session is replayed message by message."""
_CLIENT_INFO = {"name": "tightloop", "title": "tightloop", "version": "0"}
# The protocol's answer to a request whose turn was cancelled.
_UNANSWERED = {"outcome": {"outcome": "cancelled"}}


class AcpError(TightloopError):
    """The agent violated the protocol."""


class SignInError(TightloopError):
    """Raised if a person has to sign in to the agent. Retrying does not help."""


class AcpClient:
    """A connection to an agent. It must be used from a single event loop.

    All calls except `prompt` have a timeout.
    """

    def __init__(
        self, listener: "Delivery", *, sign_in: tuple[str, ...] = (), session_meta: Mapping[str, Any] | None = None
    ) -> None:
        """Create a client that is not connected yet.

        Args:
            listener: the delivery that handles the agent's requests.
            sign_in: the sign-in methods that work without a person, best first.
            session_meta: the `_meta` value of sessions.
        """
        self.session_id = ""
        self.resumed = False
        self.version = ""
        self.turn = Turn()
        self._listener = listener
        self._sign_in = sign_in
        self._session_meta = session_meta or {}
        self._prompting = False
        self._connection: Connection | None = None
        self._offer: Mapping[str, Any] = {}

    async def connect(self, stdin_fd: int, stdout_fd: int) -> None:
        """Connect to the pipes of the agent's process and negotiate the protocol.

        Raises:
            AcpError: the agent does not support this version or does not respond in time.
            ConnectionError: the agent has exited.
            RequestError: the agent responded with an error.
        """
        transport = await PipeTransport.open(stdin_fd, stdout_fd, came=self._handle_update, line=self._listener.line)
        self._connection = Connection(self._answer, transport)
        # Agents then use their own file access inside the sandbox: through us they would bypass it.
        capabilities = {"fs": {"readTextFile": False, "writeTextFile": False}, "terminal": False}
        self._offer = await self._request(
            "initialize",
            {"protocolVersion": PROTOCOL_VERSION, "clientCapabilities": capabilities, "clientInfo": _CLIENT_INFO},
        )
        if self._offer.get("protocolVersion") != PROTOCOL_VERSION:
            raise AcpError(
                f"the agent uses version {self._offer.get('protocolVersion')!r} of the Agent Client Protocol, but "
                f"version {PROTOCOL_VERSION} is required. Install a compatible version of the agent"
            )
        self.version = str(part(self._offer, "agentInfo").get("version", ""))

    async def open_session(self, cwd: str, *, resume: str, mode: str) -> None:
        """Continue session `resume` if possible, or start a new one. Switch to `mode` if the agent supports it.

        Raises:
            SignInError: a person has to sign in. AcpError, ConnectionError, RequestError: as in `connect`.
        """
        session = await self._resume(cwd, resume) if resume else None
        self.resumed = session is not None
        if session is None:
            params = self._session_params(cwd)
            try:
                session = await self._request("session_new", params)
            except RequestError as error:
                if error.code != AUTH_REQUIRED:
                    raise
                await self._authenticate(error)
                session = await self._request("session_new", params)
            self.session_id = str(session.get("sessionId") or "")
        if not self.session_id:
            raise AcpError("the agent started a session without an ID. Install a different version of the agent")
        if switch := mode_among(session, mode):
            await self._request("session_set_mode", {"sessionId": self.session_id, "modeId": switch})
        self._listener.event(ExecutorEvent(kind=EventKind.SESSION, session_id=self.session_id))

    async def prompt(self, text: str) -> Mapping[str, Any]:
        """Send the task and return the agent's response at the end of the turn. This has no timeout.

        Raises:
            ConnectionError: the agent has exited.
            RequestError: the agent responded with an error.
        """
        self._prompting = True
        try:
            blocks = [{"type": "text", "text": text}]
            return await self._send("session_prompt", {"sessionId": self.session_id, "prompt": blocks})
        finally:
            self._prompting = False
            # The last message has no end of its own; the end of the turn completes it.
            for event in self.turn.flush():
                self._listener.event(event)

    async def cancel(self) -> bool:
        """Ask the agent to end the turn. Return True if the caller must wait for this."""
        if self._connection is None or not self._prompting:
            return False
        try:
            await asyncio.wait_for(
                # Bounded: an agent that does not read its input would block the write.
                self._connection.send_notification(AGENT_METHODS["session_cancel"], {"sessionId": self.session_id}),
                1.0,
            )
        except (ConnectionError, TimeoutError):
            return False
        return True

    async def close(self) -> None:
        """Disconnect from the agent and close its input."""
        if self._connection is not None:
            await self._connection.close()

    def _handle_update(self, message: Message) -> bool:
        """Handle session updates in the order in which they arrive."""
        if message.get("method") != CLIENT_METHODS["session_update"]:
            return False
        params = part(message, "params")
        # Updates before the prompt replay the history of a loaded session.
        if self._prompting and params.get("sessionId") == self.session_id:
            for event in self.turn.read(part(params, "update")):
                self._listener.event(event)
        return True

    async def _resume(self, cwd: str, session_id: str) -> Mapping[str, Any] | None:
        """Resume a session. Return None if the agent cannot resume sessions or no longer has this one."""
        offered = part(self._offer, "agentCapabilities")
        resumes = part(offered, "sessionCapabilities").get("resume") is not None
        # Resuming is preferred, because loading replays the whole session as updates.
        methods = [("session_resume", resumes), ("session_load", bool(offered.get("loadSession")))]
        params = {"sessionId": session_id, **self._session_params(cwd)}
        problems = []
        for method in (name for name, able in methods if able):
            try:
                session = await self._request(method, params, seconds=LOAD_S)
            except RequestError as error:
                if error.code == AUTH_REQUIRED:
                    await self._authenticate(error)
                # gemini 0.61.0 answers "Internal error" for a session whose first turn was cancelled.
                details = mapping(error.data).get("details")
                problems.append(f"{AGENT_METHODS[method]} failed: {details or error}")
                continue
            self.session_id = session_id
            return session
        warning = "; ".join([*problems, "cannot resume the earlier session, so a new session is started"])
        self._listener.event(ExecutorEvent(kind=EventKind.WARNING, text=shorten(warning, 500)))
        return None

    def _session_params(self, cwd: str) -> Message:
        meta = {"_meta": self._session_meta} if self._session_meta else {}
        return {"cwd": cwd, "mcpServers": [], **meta}

    async def _authenticate(self, error: RequestError) -> None:
        offered = [str(method.get("id")) for method in parts(self._offer, "authMethods")]
        method_id = next((method for method in self._sign_in if method in offered), None)
        if method_id is None:
            ways = ", ".join(offered) or "none"
            raise SignInError(
                f"the agent is not signed in ({error}), and none of its sign-in methods ({ways}) can be used unattended"
            )
        try:
            await self._request("authenticate", {"methodId": method_id})
        except RequestError as refused:
            raise SignInError(f"signing in with {method_id!r} failed: {refused}") from None

    async def _request(self, method: str, params: Message, *, seconds: float = ANSWER_S) -> Mapping[str, Any]:
        try:
            return await asyncio.wait_for(self._send(method, params), seconds)
        except TimeoutError:
            raise AcpError(f"the agent did not respond to {AGENT_METHODS[method]} within {seconds:g} s") from None

    async def _send(self, method: str, params: Message) -> Mapping[str, Any]:
        assert self._connection is not None
        return mapping(await self._connection.send_request(AGENT_METHODS[method], params))

    async def _answer(self, method: str, params: Any, is_notification: bool) -> Any:
        if is_notification:
            return None
        if method == CLIENT_METHODS["session_request_permission"]:
            # Outside of a turn there is no work that a permission could belong to.
            if not self._prompting:
                return _UNANSWERED
            rule = self._listener.decide(permission_of(mapping(params)))
            option = option_for(rule, mapping(params).get("options"))
            return {"outcome": {"outcome": "selected", "optionId": option}} if option else _UNANSWERED
        raise RequestError.method_not_found(method)


TICK_S = 0.2
CANCEL_S = 10.0
"""Time in seconds that an agent has to end a cancelled turn. opencode needed 2.3 s, the other agents 0.2 s."""
END_S = 3.0
"""Time in seconds to end a turn that exceeded its limits. It is short because the agent may be broken."""
# gemini reports a tool only after it has ended: until then its CPU time is the only sign of life.
LOOK_S = 2.0
PROGRESS_S = 1.0
BUSY_SHARE = 0.05
"""CPU share above which a process tree counts as working. An idle agent uses less than a tenth of this share."""
DENIED_KEPT = 50
EXIT_DRAIN_S = 1.0


_FINAL_STOPS = frozenset({Stop.CANCELLED, Stop.QUESTION})
"""Stop reasons that take precedence over anything that the agent reports in the meantime."""


@dataclass(frozen=True, kw_only=True)
class TurnResult:
    """The result of a turn. Exactly one of its fields is set."""

    stop: Stop | None = None
    answer: Mapping[str, Any] | None = None
    """The response to the prompt."""
    error: RequestError | TightloopError | ConnectionError | None = None


class Delivery:
    """Listens to one agent, responds to its requests, and ends its turn when necessary."""

    def __init__(
        self,
        order: WorkOrder,
        control: Control,
        record: RunRecord,
        gateway: GatewayServer | None,
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
        self._process: AgentProcess | None = None

    async def run(self, pipes: tuple[int, int], process: "AgentProcess", *, resume: str, mode: str) -> TurnResult:
        """Supervise the agent until its turn ends or must be stopped.

        This does not end the agent's process.
        """
        self._process = process
        # Two tasks, so that the limits also hold while the agent does not answer.
        talk = asyncio.create_task(self._run_turn(pipes, resume, mode))
        watch = asyncio.create_task(self._watch(process))
        try:
            await asyncio.wait({talk, watch}, return_when=asyncio.FIRST_COMPLETED)
            if watch.done():
                # An error of the watcher must not be lost: without it the delivery would have no limits.
                watch.result()
            # Ignore messages after a stop request: the agent may report success for unfinished work.
            finished = talk.done()
            if not finished and self._stop is not Stop.GONE and await self.client.cancel():
                await asyncio.wait({talk}, timeout=CANCEL_S if self._stop in _FINAL_STOPS else END_S)
            return talk.result() if finished and self._stop not in _FINAL_STOPS else TurnResult(stop=self._stop)
        finally:
            for task in (talk, watch):
                task.cancel()
            await asyncio.gather(talk, watch, return_exceptions=True)
            await self.client.close()

    @property
    def gateway_counters(self) -> GatewayCounters:
        """The gateway's current counters. Without a gateway, all counters are zero."""
        return GatewayCounters() if self._gateway is None else self._gateway.read_counters()

    def line(self, arrow: str, text: str) -> None:
        """Record a line of the conversation. A line from the agent is also recorded as a sign of activity."""
        if arrow != ">":
            self.bounds.note_life()
        self._record.line(arrow, text)

    def event(self, event: ExecutorEvent) -> None:
        # The pipe may still hold thousands of events.
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
        """Decide on a permission request.

        The decision is based on earlier answers, the mode and the rule. If a person has to decide, the turn
        ends.
        """
        if self._stop is not None:
            return Verdict.ASK
        rule = decide(request, mode=self._choice.mode, rule=self._choice.permissions, grants=self._order.grants)
        action = request.command or request.title
        self.event(ExecutorEvent(kind=EventKind.PERMISSION, text=shorten(f"{rule.value}: {action}", 500)))
        if rule is Verdict.DENY and len(self.denied) < DENIED_KEPT:
            self.denied.append(action)
        if rule is Verdict.ASK:
            self.question = request
            self._end(Stop.QUESTION)
        return rule

    def _end(self, stop: Stop) -> None:
        self._stop = self._stop or stop

    async def _run_turn(self, pipes: tuple[int, int], resume: str, mode: str) -> TurnResult:
        try:
            await self.client.connect(*pipes)
            await self.client.open_session(self._order.root, resume=resume, mode=mode)
            preface = resume_preface() if self.client.resumed else ""
            return TurnResult(answer=await self.client.prompt(preface + self._order.prompt))
        except (RequestError, TightloopError, ConnectionError) as error:
            return TurnResult(error=error)

    async def _watch(self, process: "AgentProcess") -> None:
        exited_at = 0.0
        # Listing all descendants costs milliseconds, so it is not done at every tick.
        next_look = time.monotonic() + LOOK_S
        while self._stop is None:
            now = time.monotonic()
            if now >= next_look:
                next_look = now + LOOK_S
                if process.busy():
                    self.bounds.note_life()
            if self._control.is_cancelled():
                self._end(Stop.CANCELLED)
            elif process.poll() is not None:
                # Its last output may still be in the pipe.
                exited_at = exited_at or now
                if now - exited_at >= EXIT_DRAIN_S:
                    self._end(Stop.GONE)
            elif stop := self.bounds.check():
                self._end(stop)
            if self._stop is None:
                await asyncio.sleep(TICK_S)


class AgentProcess:
    """A handle for supervising the agent's process."""

    def __init__(self, pid: int, *, poll: Callable[[], int | None], token: Callable[[], ResumeToken | None]) -> None:
        self.token = token
        self.pid = pid
        self.poll = poll
        self._cpu_s = self._time_s = 0.0

    def busy(self) -> bool:
        """Return True if the agent's process tree has used CPU time since the last call.

        An agent may be silent while a tool is running.
        """
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
