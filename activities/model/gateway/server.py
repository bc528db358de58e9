"""A loopback HTTP server between one agent and its model provider, for the duration of one delivery.

Responses, including the retry time, are streamed through unchanged. Claude Code, Copilot and the openai package stop at
once if the retry time is long. Agents that would sleep through it must be stopped by their executor, which sees the
limit before the agent does.
"""

import asyncio
import contextvars
import hmac
import secrets
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http import HTTPStatus
from urllib.parse import urlsplit

from activities.model.gateway.agent_connection import AgentConnection, AgentGoneError, ByteBudget, TooLargeError
from activities.model.gateway.fingerprint import BrokenOffError, Call, Player, Recorder, Request, Source
from activities.model.gateway.meter import Meter, observed_call
from activities.model.gateway.provider import NO_RETRY, Provider, ProxiedCall
from activities.model.gateway.wire import Cassette, GatewayCounters, GatewaySpec, credentials, find_route, refusal
from tightloop.errors import ExecutorError

CALLS_AT_ONCE = 32
CONNECTIONS = 128
TOO_LARGE = (
    "the request is larger than 64 MB, or all open requests together are larger than 256 MB. Send smaller requests"
)
SHUT_S = 0.4
"""Longest wait for pending work. It is applied twice in a row."""


@contextmanager
def serve_gateway(spec: GatewaySpec) -> "Iterator[GatewayServer]":
    """Open a gateway between an agent and its model; see `Gateways`.

    Raises:
        ExecutorError: the upstream, the key or the recording cannot be used.
    """
    gateway = GatewayServer(spec, _prefix(spec), _source(spec))
    gateway.open()
    try:
        yield gateway
    finally:
        gateway.close()


class GatewayServer:
    """An open gateway, which runs its own event loop in a thread."""

    def __init__(self, spec: GatewaySpec, prefix: str, source: Source) -> None:
        self._spec = spec
        self._prefix = prefix
        self._source = source
        self.token = f"tl-{secrets.token_urlsafe(32)}"
        """The key that the agent must send. It is valid only here, and only while the gateway is open."""
        self._meter = Meter(spec)
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=CONNECTIONS)
        # Bind the port now, so that no other program can ever listen on the address given to the agent.
        self._port = self._socket.getsockname()[1]
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._turns = asyncio.Semaphore(CALLS_AT_ONCE)
        self._budget = ByteBudget()
        self._tasks: set[asyncio.Task[None]] = set()
        # The delivery's observer also observes its calls.
        context = contextvars.copy_context()
        name = f"model-gateway-{self._port}"
        self._thread = threading.Thread(target=context.run, args=(self._run,), name=name, daemon=True)

    @property
    def base_url(self) -> str:
        """The loopback URL for the agent. It has the same path as the upstream URL."""
        return f"http://127.0.0.1:{self._port}{self._prefix}"

    def read_counters(self) -> GatewayCounters:
        """Return a copy of the current counters. This may be called from any thread."""
        return self._meter.read_counters()

    def open(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Abort all calls and release the port."""
        self._loop.call_soon_threadsafe(self._stop.set)
        # Bounded: the end of a delivery must not hang with this thread, which is a daemon.
        self._thread.join(4 * SHUT_S)

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        finally:
            # Do not wait for the loop's threads: a hanging name server would keep the gateway open.
            self._loop.close()

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._accept, sock=self._socket)
        await self._stop.wait()
        server.close()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=SHUT_S)
        with suppress(TimeoutError):
            await asyncio.wait_for(self._source.close(), SHUT_S)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._tasks) >= CONNECTIONS:
            writer.transport.abort()
            return
        # asyncio sets this only for sockets with an explicit protocol; without it each answer waits 40 ms for an ACK.
        writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        task = self._loop.create_task(self._serve_connection(AgentConnection(reader, writer, self._budget)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve_connection(self, agent: AgentConnection) -> None:
        try:
            while request := await agent.request():
                await agent.run_while_connected(self._answer(agent, request))
        except TooLargeError:
            with suppress(AgentGoneError):
                await self._refuse(agent, HTTPStatus.REQUEST_ENTITY_TOO_LARGE, TOO_LARGE)
                await agent.linger()
        except (AgentGoneError, BrokenOffError, asyncio.CancelledError):
            # CancelledError comes from `_serve` only, and the task ends here.
            agent.abort()
        finally:
            await agent.close()

    async def _answer(self, agent: AgentConnection, request: Request) -> None:
        keys = credentials(dict(request.headers), request.target)
        # Any process on the host can reach the port, so the token decides; compared in constant time.
        if not any(hmac.compare_digest(key.encode(), self.token.encode()) for key in keys):
            message = "the token is not valid for the model gateway of this delivery"
            # A client without a token may not keep the connection.
            await self._refuse(agent, HTTPStatus.UNAUTHORIZED, message, ("connection", "close"))
            return
        route = find_route(self._spec.wire, request.method, request.target, self._prefix)
        if route is None:
            path = request.target.partition("?")[0][:200]
            where = f"the {self._spec.wire} API under {self._prefix or '/'}"
            message = f"{request.method} {path} is neither a model call nor a model listing in {where}"
            await self._refuse(agent, HTTPStatus.NOT_FOUND, message)
            return
        call = Call(**vars(request), route=route)
        proxied = ProxiedCall(self._spec, self._meter, agent, call)
        if not route.counted:
            await proxied.forward(self._source, self._turns)
            return
        with observed_call(self._spec.wire, call) as span:
            await proxied.forward(self._source, self._turns, span)

    async def _refuse(self, agent: AgentConnection, status: int, message: str, *headers: tuple[str, str]) -> None:
        await agent.answer(status, refusal(self._spec.wire, status, message), (*NO_RETRY, *headers))


def _prefix(spec: GatewaySpec) -> str:
    """Return the path of the upstream URL without a trailing slash.

    Raises:
        ExecutorError: the upstream or the key cannot be used.
    """
    parts = urlsplit(spec.upstream)
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query or parts.username:
        raise ExecutorError(
            "the base URL of the model provider is invalid. It must look like https://api.openai.com/v1, "
            "without a query or a username"
        )
    if not spec.key.isascii() or not spec.key.isprintable() or spec.key != spec.key.strip():
        raise ExecutorError(
            "the model provider's API key contains invalid characters, such as a line break. Set the key again"
        )
    return parts.path.rstrip("/")


def _source(spec: GatewaySpec) -> Source:
    if spec.cassette is not Cassette.OFF and spec.recording is None:
        raise ExecutorError(f"cassette {spec.cassette!s} requires a file. Set `recording` to the path of a file")
    if spec.cassette is Cassette.REPLAY and spec.recording:
        return Player(spec, spec.recording)
    provider = Provider(spec, at_once=CALLS_AT_ONCE)
    if spec.cassette is Cassette.RECORD and spec.recording:
        return Recorder(spec, provider, spec.recording)
    return provider
