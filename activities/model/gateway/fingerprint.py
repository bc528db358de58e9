"""Recorded model calls, and the fingerprint that identifies a request."""

import base64
import hashlib
import json
import re
import tomllib
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any, Protocol

from activities.model.gateway.wire import GatewaySpec, Route, Wire
from tightloop.errors import ExecutorError

HOP_HEADERS = frozenset({
    "connection", "keep-alive", "proxy-connection", "proxy-authenticate", "proxy-authorization", "te", "trailer",
    "transfer-encoding", "upgrade", "host", "expect",
})  # fmt: skip
"""Headers that apply to a single connection only (RFC 9110, 7.6.1)."""

Headers = tuple[tuple[str, str], ...]


class NoAnswerError(Exception):
    """Raised if the provider did not respond.

    `status` is set by the gateway. `was_sent` is False if no request was sent.
    """

    def __init__(self, status: int, message: str, *, was_sent: bool = True) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.was_sent = was_sent


class BrokenOffError(Exception):
    """Raised if a response ended before it was complete."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """A complete request from an agent."""

    method: str
    target: str
    """The path and query as they were sent."""
    headers: Headers = field(repr=False)
    """The headers as they were sent, with lower-case names."""
    body: bytes = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class Call(Request):
    """A request that may be sent to the provider."""

    route: Route


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A response whose headers have arrived. The body is streamed."""

    status: int
    headers: Headers
    """The headers with lower-case names, without hop-by-hop headers."""
    chunks: AsyncIterator[bytes]
    """Body of the response. Iterating may raise `BrokenOffError`."""


class Source(Protocol):
    """A source of responses: either the provider or a recording."""

    def answer(self, call: Call) -> AbstractAsyncContextManager[Answer]:
        """Respond to a call. Leaving the context aborts the call.

        Raises:
            NoAnswerError: the provider did not respond.
        """
        ...

    async def close(self) -> None:
        """Close all connections and files."""


_CALLER_FIELDS = ("client_metadata", "metadata", "prompt_cache_key", "safety_identifier", "user")
"""Top-level fields that identify the caller rather than the question."""
_RULES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))["pattern"]
_PATTERNS = tuple((re.compile(rule["text"], re.IGNORECASE), rule["mark"]) for rule in _RULES)


def fingerprint(wire: Wire, call: Call, volatile: Sequence[str]) -> str:
    """Return the hex SHA-256 that identifies a call.

    The hash covers the wire format, method, path, query and normalised body. `volatile` lists the file paths
    that differ between runs, in a fixed order.
    """
    try:
        body = json.loads(call.body) if call.body else None
        if isinstance(body, dict):
            body = {name: value for name, value in body.items() if name not in _CALLER_FIELDS}
        # With sorted keys, whose order may differ between two runs of an agent.
        text = json.dumps(normalise(body, volatile), sort_keys=True, separators=(",", ":"))
    except (ValueError, RecursionError):
        text = hashlib.sha256(call.body).hexdigest()
    canonical = "\n".join((wire, call.method, call.route.tail, call.route.query, text))
    return hashlib.sha256(canonical.encode("utf-8", "surrogatepass")).hexdigest()


def normalise(value: Any, volatile: Sequence[str]) -> Any:
    """Replace ids, dates, durations, counts and the given paths in decoded JSON with placeholders."""
    if isinstance(value, dict):
        return {_plain(key, volatile): normalise(item, volatile) for key, item in value.items()}
    if isinstance(value, list):
        return [normalise(item, volatile) for item in value]
    return _plain(value, volatile) if isinstance(value, str) else value


def marks(volatile: Sequence[str]) -> list[tuple[str, str]]:
    """Return each path with its placeholder. Longer paths come first, because they may contain shorter ones."""
    pairs = [(path.rstrip("/"), f"<volatile-{number}>") for number, path in enumerate(volatile)]
    return sorted((pair for pair in pairs if pair[0]), key=lambda pair: -len(pair[0]))


def _plain(text: str, volatile: Sequence[str]) -> str:
    for path, placeholder in marks(volatile):
        text = text.replace(path, placeholder)
    for pattern, placeholder in _PATTERNS:
        text = pattern.sub(placeholder, text)
    return text


LARGEST_BODY_BYTES = 32 * 2**20
"""Maximum size of a recorded body. Larger responses are passed on but not recorded."""
_RECORDED_HEADERS = ("content-type", "retry-after", "x-ratelimit-", "anthropic-ratelimit-", "x-codex-",
         "x-should-retry", "request-id", "x-request-id")  # fmt: skip


class Recorder:
    """A source that records the responses of another source."""

    def __init__(self, spec: GatewaySpec, source: Source, path: Path) -> None:
        """Open the recording for appending.

        Raises:
            ExecutorError: the file cannot be written.
        """
        self._spec = spec
        self._source = source
        self._marks = marks(spec.volatile)
        self._broken = ""
        try:
            # Private: a recording contains whole prompts, including code.
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.touch(mode=0o600)
            # Unbuffered: a process that is killed then leaves only whole lines.
            self._file = path.open("ab", buffering=0)
        except OSError as error:
            raise ExecutorError(f"cannot write recording {path}: {error.strerror}. Choose another file") from None

    @asynccontextmanager
    async def answer(self, call: Call) -> AsyncIterator[Answer]:
        """Respond to a call and record the response. Nothing is recorded if the agent aborts the call.

        See `Source`.
        """
        if self._broken:
            raise NoAnswerError(HTTPStatus.INSUFFICIENT_STORAGE, self._broken, was_sent=False)
        try:
            async with self._source.answer(call) as answer:
                yield Answer(status=answer.status, headers=answer.headers, chunks=self._record_chunks(call, answer))
        except NoAnswerError as error:
            self._write(call, {"status": error.status, "silent": error.message})
            raise

    async def close(self) -> None:
        """Close the file and the source."""
        self._file.close()
        await self._source.close()

    async def _record_chunks(self, call: Call, answer: Answer) -> AsyncIterator[bytes]:
        chunks: list[bytes] = []
        size = 0
        line: dict[str, Any] = {
            "status": answer.status,
            "headers": [
                (name, self._text(value.encode()))
                for name, value in answer.headers
                if name.startswith(_RECORDED_HEADERS)
            ],
        }
        try:
            async for chunk in answer.chunks:
                size += len(chunk)
                if size <= LARGEST_BODY_BYTES:
                    chunks.append(chunk)
                yield chunk
        except BrokenOffError:
            # Recorded, so that a replay breaks off at the same place.
            self._write(call, {**line, "cut": True, "chunks": [self._text(chunk) for chunk in chunks]})
            raise
        if size <= LARGEST_BODY_BYTES:
            self._write(call, {**line, "chunks": [self._text(chunk) for chunk in chunks]})

    def _write(self, call: Call, answer: Mapping[str, Any]) -> None:
        hash_ = fingerprint(self._spec.wire, call, self._spec.volatile)
        line = {"hash": hash_, "wire": self._spec.wire, "method": call.method, "path": call.route.tail, **answer}
        try:
            self._file.write(json.dumps(line).encode() + b"\n")
        except OSError as error:
            self._broken = f"cannot write the recording: {error.strerror}. Free some space, or turn off recording"

    def _text(self, chunk: bytes) -> str | dict[str, str]:
        hidden = chunk
        for text, placeholder in self._marks:
            hidden = hidden.replace(text.encode(), placeholder.encode())
        try:
            return hidden.decode()
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(hidden).decode()}


class Player:
    """A source that only replays recorded responses.

    The responses to equal calls are replayed in the order in which they were recorded.
    """

    def __init__(self, spec: GatewaySpec, path: Path) -> None:
        """Load the recording file.

        Raises:
            ExecutorError: the recording is missing or incomplete.
        """
        self._spec = spec
        self._path = path
        self._marks = marks(spec.volatile)
        self._lines: defaultdict[str, deque[dict[str, Any]]] = defaultdict(deque)
        try:
            lines = [json.loads(line) for line in path.read_bytes().splitlines()]
        except OSError as error:
            raise ExecutorError(f"cannot read recording {path}: {error.strerror}. Create the recording first") from None
        except ValueError:
            raise ExecutorError(f"recording {path} is incomplete. Record it again") from None
        for line in lines:
            self._lines[line["hash"]].append(line)
        self._recorded, self._played = len(lines), 0

    @asynccontextmanager
    async def answer(self, call: Call) -> AsyncIterator[Answer]:
        hash_ = fingerprint(self._spec.wire, call, self._spec.volatile)
        # Before the look-up, because a defaultdict would then contain the hash.
        is_recorded = hash_ in self._lines
        if not self._lines[hash_]:
            what = "was sent more often than in" if is_recorded else "is not in"
            message = (
                f"{call.method} {call.route.tail} with hash {hash_[:12]} {what} the recording {self._path.name} "
                f"({self._played} of {self._recorded} recorded exchanges were replayed). Create the recording again"
            )
            raise NoAnswerError(HTTPStatus.CONFLICT, message, was_sent=False)
        self._played += 1
        line = self._lines[hash_].popleft()
        if "silent" in line:
            raise NoAnswerError(line["status"], line["silent"])
        headers = tuple((name, value) for name, value in line["headers"])
        yield Answer(status=line["status"], headers=headers, chunks=self._chunks(line))

    async def close(self) -> None:
        """Do nothing. No file is kept open."""

    async def _chunks(self, line: Mapping[str, Any]) -> AsyncIterator[bytes]:
        for chunk in line["chunks"]:
            data = chunk.encode() if isinstance(chunk, str) else base64.b64decode(chunk["base64"])
            for path, placeholder in self._marks:
                data = data.replace(placeholder.encode(), path.encode())
            yield data
        if line.get("cut"):
            raise BrokenOffError("the recording contains only the first part of this answer")
