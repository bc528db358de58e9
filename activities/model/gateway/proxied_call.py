"""Forwards one call of an agent to its provider, and the answer back."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus

from activities.model.gateway.agent_connection import AgentConnection
from activities.model.gateway.answer_reader import AnswerReader
from activities.model.gateway.exchange import Answer, Call, NoAnswerError, Source
from activities.model.gateway.meter import FAILED_FROM, Meter
from activities.model.gateway.observed_call import note_answer
from activities.model.gateway.port import GatewaySpec
from activities.model.gateway.wire import refusal
from activities.model.observed import Operation

TURN_S = 60.0
"""Longest wait for the calls before it, where too many are made at once."""
LARGEST_ERROR_BYTES = 256 * 2**10
"""Part of an error that is read before any of it is passed on."""
NO_RETRY = (("x-should-retry", "false"),)
"""Obeyed by the packages of OpenAI and Anthropic."""


class ProxiedCall:
    """One call on its way. Model calls are counted, other requests are not."""

    def __init__(self, spec: GatewaySpec, meter: Meter, agent: AgentConnection, call: Call) -> None:
        self._spec = spec
        self._meter = meter
        self._agent = agent
        self._call = call
        self._number = 0
        self._tokens = 0
        self._made: Operation | None = None

    async def go(self, source: Source, turns: asyncio.Semaphore, made: Operation | None = None) -> None:
        """Pass the call on; where none comes, give an answer that says why.

        Args:
            source: gives the answer.
            turns: bounds the calls at once.
            made: told what the answer says of itself; None: nobody observes it.

        Raises:
            AgentGoneError: the agent hung up.
            BrokenOffError: the provider broke off in the middle of its answer.
        """
        self._made = made
        if self._call.route.counted:
            self._number = self._meter.begin()
            if not self._number:
                await self._refuse(HTTPStatus.TOO_MANY_REQUESTS, self._meter.spent())
                return
        try:
            async with _turn(turns), source.answer(self._call) as answer:
                await self._pass(answer)
        except NoAnswerError as error:
            if self._number and error.asked:
                self._meter.unreached()
            self._end()
            await self._refuse(error.status, error.message)
        finally:
            self._end()

    def _end(self) -> None:
        """Note that the provider is done with this call, before the agent gets the end of the answer."""
        if self._number:
            self._meter.end(self._number, self._tokens)
            self._number = 0

    async def _refuse(self, status: int, message: str) -> None:
        self._note(status)
        headers = NO_RETRY if status < HTTPStatus.INTERNAL_SERVER_ERROR else ()
        await self._agent.answer(status, refusal(self._spec.wire, status, message), headers)

    async def _pass(self, answer: Answer) -> None:
        # Of equal names the last one stands.
        named = dict(answer.headers)
        if self._number:
            self._meter.headers(answer.status, named)
        if answer.status >= FAILED_FROM:
            self._note(answer.status)
            await self._pass_error(answer, named)
            return
        await self._agent.begin(answer.status, answer.headers)
        reader = AnswerReader(named)
        held = b""
        try:
            async for chunk in answer.chunks:
                reader.feed(chunk)
                # The end of a body without events is held back until it is read: the agent may act on it at once.
                ready, held = (chunk, b"") if reader.streamed else (held, chunk)
                self._hear(reader, named)
                await self._agent.write(ready)
            reader.end()
            self._hear(reader, named, ended=True)
        finally:
            self._tokens = reader.tokens(len(self._call.body))
            self._note(answer.status, reader)
        self._end()
        await self._agent.write(held)
        await self._agent.finish()

    def _note(self, status: int, reader: AnswerReader | None = None) -> None:
        if self._made is not None:
            note_answer(self._made, status, reader)

    def _hear(self, reader: AnswerReader, named: Mapping[str, str], *, ended: bool = False) -> None:
        if self._number:
            self._meter.heard(self._number, reader, named, ended=ended)

    async def _pass_error(self, answer: Answer, named: Mapping[str, str]) -> None:
        """Read an error first, then pass it on."""
        body = bytearray()
        begun = False
        try:
            async for chunk in answer.chunks:
                body += chunk
                if len(body) > LARGEST_ERROR_BYTES:
                    await self._send_error(answer, bytes(body), begun=begun)
                    begun = True
                    body.clear()
        finally:
            if self._number and not begun:
                decoded = None
                with suppress(ValueError, RecursionError):
                    decoded = json.loads(body)
                self._meter.failed(answer.status, named, decoded)
        self._end()
        await self._send_error(answer, bytes(body), begun=begun)
        await self._agent.finish()

    async def _send_error(self, answer: Answer, body: bytes, *, begun: bool) -> None:
        if not begun:
            await self._agent.begin(answer.status, answer.headers)
        await self._agent.write(body)


@asynccontextmanager
async def _turn(turns: asyncio.Semaphore) -> AsyncIterator[None]:
    try:
        await asyncio.wait_for(turns.acquire(), TURN_S)
    except TimeoutError:
        message = "too many model calls at once. Make fewer in parallel"
        raise NoAnswerError(HTTPStatus.SERVICE_UNAVAILABLE, message, asked=False) from None
    try:
        yield
    finally:
        turns.release()
