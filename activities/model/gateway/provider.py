"""Calls that the model gateway forwards to a provider, and screening of the provider's responses."""

import asyncio
import base64
import json
import logging
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus
from urllib.parse import quote

import httpx2

from activities.model.client import certificates
from activities.model.gateway.agent_connection import AgentConnection
from activities.model.gateway.fingerprint import (
    HOP_HEADERS,
    Answer,
    BrokenOffError,
    Call,
    Headers,
    NoAnswerError,
    Source,
)
from activities.model.gateway.meter import FAILED_FROM, AnswerReader, Meter, note_answer
from activities.model.gateway.wire import CREDENTIALS, GatewaySpec, key_header, refusal
from activities.model.observed import Operation
from activities.model.repair import AnswerError, Unpacker
from tightloop.safety.scope import is_loopback
from tightloop.value import shorten

LARGEST_ANSWER_BYTES = 64 * 2**20
"""Maximum size of a response, the same as for a request. It applies after decompression."""
SHORTEST_KEY = 8
"""Minimum length of a key to mask. Shorter keys are dummy words for services that accept any key, and masking them
would garble responses.
"""


class KeyMask:
    """Masks the key in a provider's responses."""

    def __init__(self, key: str) -> None:
        self._forms = sorted(forms(key), key=len, reverse=True) if len(key) >= SHORTEST_KEY else []
        self._key = re.compile(b"|".join(map(re.escape, self._forms))) if self._forms else None

    def headers(self, headers: Headers) -> Headers:
        """Return the response headers for the agent, without those that describe the compression.

        Raises:
            NoAnswerError: the declared size is too large or the encoding is unknown.
        """
        named = dict(headers)
        try:
            # An unknown encoding is refused here, before the agent has received a part of the answer.
            Unpacker(named.get("content-encoding", ""), 0)
        except AnswerError as error:
            raise NoAnswerError(HTTPStatus.BAD_GATEWAY, f"{error}. Check the model provider") from None
        declared = named.get("content-length", "")
        if declared.isdigit() and int(declared) > LARGEST_ANSWER_BYTES:
            size = LARGEST_ANSWER_BYTES // 2**20
            message = f"the response from the model provider is larger than {size} MiB. Request a shorter response"
            raise NoAnswerError(HTTPStatus.BAD_GATEWAY, message)
        packed = named.get("content-encoding", "identity").lower() != "identity"
        # The length of a compressed body is not that of what the agent receives.
        dropped = {"content-encoding", "content-length"} if packed else {"content-encoding"}
        return tuple((name, self._mask_text(value)) for name, value in headers if name not in dropped)

    async def body(self, headers: Headers, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """Yield the decompressed body. The key is masked in all its `forms` and the size is limited.

        Chunks are yielded immediately, except for a tail that may be the start of a key.

        Args:
            headers: the response's headers as received.
            chunks: the body as received.

        Raises:
            BrokenOffError: the body is too large or cannot be decompressed.
        """
        unpacker = Unpacker(dict(headers).get("content-encoding", ""), LARGEST_ANSWER_BYTES)
        tail = b""
        try:
            async for chunk in chunks:
                for part in unpacker.feed(chunk):
                    masked = self._mask(tail + part)
                    # A key may be split over two chunks: the longest tail that could be its start is held back.
                    end = len(masked)
                    for form in self._forms:
                        start = max(0, len(masked) - len(form) + 1)
                        while (start := masked.find(form[:1], start, end)) >= 0:
                            if form.startswith(masked[start:]):
                                end = start
                                break
                            start += 1
                    ready, tail = masked[:end], masked[end:]
                    if ready:
                        yield ready
        except AnswerError as error:
            raise BrokenOffError(str(error)) from None
        if tail:
            yield tail

    def _mask_text(self, text: str) -> str:
        return self._mask(text.encode("latin-1")).decode("latin-1")

    def _mask(self, data: bytes) -> bytes:
        # Same length, so that announced lengths stay correct.
        return self._key.sub(lambda found: b"*" * len(found[0]), data) if self._key else data


def forms(key: str) -> Iterator[bytes]:
    """Yield the forms in which a key may appear: plain, URL-quoted, hex, and base64 within other text."""
    raw = key.encode()
    yield from {raw, quote(key, safe="").encode(), raw.hex().encode(), raw.hex().upper().encode()}
    for before in range(3):
        text = base64.b64encode(bytes(before) + raw)
        # Characters at both ends share bits with the surrounding data.
        inner = text[-(-8 * before // 6) : 8 * (before + len(raw)) // 6]
        yield from {inner, inner.translate(bytes.maketrans(b"+/", b"-_"))}


# One line per call of an agent would drown the worker's own log.
logging.getLogger("httpx2").setLevel(logging.WARNING)

CONNECT_S = 10.0
# Same as in OpenAI's and Anthropic's packages; a model may think for minutes before its first token.
READ_IDLE_S = 600.0
KEEP_S = 4.0
"""Time in seconds after which idle connections are reopened, because many servers close theirs after 5 s."""
_TIMEOUT = httpx2.Timeout(READ_IDLE_S, connect=CONNECT_S, pool=READ_IDLE_S)
# Compression costs time here and saves none on the loopback link to the agent.
_REPLACED = HOP_HEADERS | CREDENTIALS | {"content-length", "accept-encoding", "cookie"}


class Provider:
    """The provider behind a gateway. It must be used from a single event loop."""

    def __init__(self, spec: GatewaySpec, *, at_once: int) -> None:
        """Create a provider without connecting to it. `at_once` is the maximum number of connections."""
        self._base = httpx2.URL(spec.upstream.rstrip("/"))
        self._key_mask = KeyMask(spec.key)
        self._key = key_header(spec.wire, spec.key) if spec.key else None
        # Proxies and certificates from the environment apply to external hosts only.
        self._client = httpx2.AsyncClient(
            verify=certificates() if self._base.scheme == "https" else False,
            trust_env=not is_loopback(self._base.host),
            limits=httpx2.Limits(max_connections=at_once, keepalive_expiry=KEEP_S),
        )

    @asynccontextmanager
    async def answer(self, call: Call) -> AsyncIterator[Answer]:
        try:
            response = await self._client.send(self._request(call), stream=True)
        except httpx2.TimeoutException as error:
            raise NoAnswerError(HTTPStatus.GATEWAY_TIMEOUT, self._silence(error)) from None
        except httpx2.RequestError as error:
            raise NoAnswerError(HTTPStatus.BAD_GATEWAY, self._silence(error)) from None
        try:
            came = tuple(
                (name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in response.headers.raw
            )
            headers = self._key_mask.headers(tuple(item for item in came if item[0] not in HOP_HEADERS))
            body = self._key_mask.body(came, _chunks(response))
            yield Answer(status=response.status_code, headers=headers, chunks=body)
        finally:
            await response.aclose()

    async def close(self) -> None:
        await self._client.aclose()

    def _request(self, call: Call) -> httpx2.Request:
        headers = [item for item in call.headers if item[0] not in _REPLACED]
        headers += [("accept-encoding", "identity"), *([self._key] if self._key else [])]
        raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
        path = self._base.raw_path.rstrip(b"/") + call.route.tail.encode("ascii")
        query = b"?" + call.route.query.encode("ascii") if call.route.query else b""
        return httpx2.Request(
            call.method,
            self._base.copy_with(raw_path=path + query),
            headers=raw,
            content=call.body,
            extensions={"timeout": _TIMEOUT.as_dict()},
        )

    def _silence(self, error: Exception) -> str:
        # After a request was sent, error texts of the library can contain parts of it.
        why = f": {error}" if isinstance(error, httpx2.ConnectError) else ""
        return (
            f"the model provider at {self._base.host} did not respond "
            f"({type(error).__name__}{shorten(why, 200)}). Check the base URL, and the network and "
            "certificates of the worker's host"
        )


async def _chunks(response: httpx2.Response) -> AsyncIterator[bytes]:
    try:
        async for chunk in response.aiter_raw():
            yield chunk
    except httpx2.RequestError as error:
        raise BrokenOffError(type(error).__name__) from None


TURN_S = 60.0
"""Longest wait for a free slot if too many calls are active."""
LARGEST_ERROR_BYTES = 256 * 2**10
"""Maximum number of bytes that are read of an error before any of it is passed on."""
NO_RETRY = (("x-should-retry", "false"),)
"""Headers that prevent a retry. The OpenAI and Anthropic packages honour them."""


class ProxiedCall:
    """A call in progress. Only model calls are metered."""

    def __init__(self, spec: GatewaySpec, meter: Meter, agent: AgentConnection, call: Call) -> None:
        self._spec = spec
        self._meter = meter
        self._agent = agent
        self._call = call
        self._number = 0
        self._tokens = 0
        self._span: Operation | None = None

    async def forward(self, source: Source, turns: asyncio.Semaphore, span: Operation | None = None) -> None:
        """Forward the call to the source. If there is no response, send the agent an error with the reason.

        Args:
            source: the source of the response.
            turns: limits the number of concurrent calls.
            span: receives the response metadata. None without telemetry.

        Raises:
            AgentGoneError: the agent hung up.
            BrokenOffError: the provider's response ended prematurely.
        """
        self._span = span
        if self._call.route.counted:
            self._number = self._meter.begin()
            if not self._number:
                await self._refuse(HTTPStatus.TOO_MANY_REQUESTS, self._meter.describe_spent_budget())
                return
        try:
            async with _turn(turns), source.answer(self._call) as answer:
                await self._forward_answer(answer)
        except NoAnswerError as error:
            if self._number and error.was_sent:
                self._meter.count_no_answer()
            self._end()
            await self._refuse(error.status, error.message)
        finally:
            self._end()

    def _end(self) -> None:
        """Stop metering this call. Call this before the end of the response is sent to the agent."""
        if self._number:
            self._meter.end(self._number, self._tokens)
            self._number = 0

    async def _refuse(self, status: int, message: str) -> None:
        self._note(status)
        # A failure of the gateway may pass; a spent budget does not.
        headers = NO_RETRY if status < HTTPStatus.INTERNAL_SERVER_ERROR else ()
        await self._agent.answer(status, refusal(self._spec.wire, status, message), headers)

    async def _forward_answer(self, answer: Answer) -> None:
        # Of duplicate headers the last one wins.
        named = dict(answer.headers)
        if self._number:
            self._meter.headers(answer.status, named)
        if answer.status >= FAILED_FROM:
            self._note(answer.status)
            await self._forward_error(answer, named)
            return
        await self._agent.begin(answer.status, answer.headers)
        reader = AnswerReader(named)
        pending = b""
        try:
            async for chunk in answer.chunks:
                reader.feed(chunk)
                # Hold back the end of an unstreamed body until it has been parsed: the agent may act on it immediately.
                ready, pending = (chunk, b"") if reader.streamed else (pending, chunk)
                self._meter_answer(reader, named)
                await self._agent.write(ready)
            reader.end()
            self._meter_answer(reader, named, ended=True)
        finally:
            self._tokens = reader.tokens(len(self._call.body))
            self._note(answer.status, reader)
        self._end()
        await self._agent.write(pending)
        await self._agent.finish()

    def _note(self, status: int, reader: AnswerReader | None = None) -> None:
        if self._span is not None:
            note_answer(self._span, status, reader)

    def _meter_answer(self, reader: AnswerReader, named: Mapping[str, str], *, ended: bool = False) -> None:
        if self._number:
            self._meter.record_answer(self._number, reader, named, ended=ended)

    async def _forward_error(self, answer: Answer, named: Mapping[str, str]) -> None:
        """Parse an error response and forward it to the agent."""
        body = bytearray()
        has_begun = False
        try:
            async for chunk in answer.chunks:
                body += chunk
                # No error object is that long: pass it on unparsed rather than hold it.
                if len(body) > LARGEST_ERROR_BYTES:
                    await self._send_error(answer, bytes(body), has_begun=has_begun)
                    has_begun = True
                    body.clear()
        finally:
            if self._number and not has_begun:
                decoded = None
                with suppress(ValueError, RecursionError):
                    decoded = json.loads(body)
                self._meter.note_error(answer.status, named, decoded)
        self._end()
        await self._send_error(answer, bytes(body), has_begun=has_begun)
        await self._agent.finish()

    async def _send_error(self, answer: Answer, body: bytes, *, has_begun: bool) -> None:
        if not has_begun:
            await self._agent.begin(answer.status, answer.headers)
        await self._agent.write(body)


@asynccontextmanager
async def _turn(turns: asyncio.Semaphore) -> AsyncIterator[None]:
    try:
        await asyncio.wait_for(turns.acquire(), TURN_S)
    except TimeoutError:
        message = "too many concurrent model calls. Make fewer calls in parallel"
        raise NoAnswerError(HTTPStatus.SERVICE_UNAVAILABLE, message, was_sent=False) from None
    try:
        yield
    finally:
        turns.release()
