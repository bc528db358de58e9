"""Usage metering in the model gateway."""

import functools
import json
import re
import threading
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any

from activities.model.gateway.fingerprint import Call
from activities.model.gateway.wire import GatewayCounters, GatewaySpec, Wire
from activities.model.observed import OBSERVER, ModelAnswer, Operation, operation
from tightloop import telemetry
from tightloop.executor.limit import LimitSignal, detect
from tightloop.executor.model import Usage

LARGEST_EVENT_BYTES = 8 * 2**20
"""Maximum size of an event or body to parse. Larger ones are passed on without being parsed."""
BYTES_PER_TOKEN = 4
_LAST = re.compile(rb'"type": ?"(?:response\.completed|message_stop)"')
_RELEVANT_MARKERS = (b'"usage', b'"error"', b'"finish_reason":"', b'"finish_reason": "')
"""Strings that mark the events to parse. Most events only contain a piece of text."""


class AnswerReader:
    """Parses a provider's response chunk by chunk."""

    def __init__(self, headers: Mapping[str, str]) -> None:
        self.streamed = headers.get("content-type", "").lower().startswith("text/event-stream")
        self._readable = True
        self._held = bytearray()
        self._data = bytearray()
        self._counts: dict[str, int] = {}
        self._size = 0
        self._events = 0
        self.finished = False
        """True after the event that ends a successful response. Not every wire format has such an event."""
        self.error: Any = None
        """The body of an error that ended a stream after it had started successfully."""
        self.model = ""
        self.response_id = ""
        self.finish_reason = ""

    def feed(self, chunk: bytes) -> None:
        self._size += len(chunk)
        if not self._readable:
            return
        self._held += chunk
        if self.streamed and b"\n" in self._held:
            self._lines()
        if len(self._held) > LARGEST_EVENT_BYTES:
            self._held.clear()
            # A stream can be read again from its next event on; a body has no further one.
            self._readable = self.streamed

    def end(self) -> None:
        """Parse the data that remains after the last chunk."""
        if self.streamed:
            # The last event of a stream may lack its empty line.
            self._held += b"\n"
            self._lines()
            self._event()
        elif self._readable:
            self._body(bytes(self._held))

    def usage(self) -> Usage:
        return Usage(**self._counts)

    def tokens(self, request_bytes: int) -> int:
        """Return the total of input and output tokens, for use in the budget.

        Counts that were not reported are estimated on the high side: one token per `BYTES_PER_TOKEN` of the
        request or response body, or one token per streamed event.
        """
        reported = self.usage()
        input_tokens, output_tokens = reported.input_tokens, reported.output_tokens
        if input_tokens is None:
            input_tokens = request_bytes // BYTES_PER_TOKEN
        if output_tokens is None:
            output_tokens = self._events if self.streamed else self._size // BYTES_PER_TOKEN
        return input_tokens + output_tokens

    def _lines(self) -> None:
        # A lone carriage return also ends a line by the standard; no provider sends one.
        *lines, rest = bytes(self._held).split(b"\n")
        self._held = bytearray(rest)
        for line in lines:
            stripped = line.rstrip(b"\r")
            if not stripped:
                self._event()
            elif stripped.startswith(b"data:") and len(self._data) < LARGEST_EVENT_BYTES:
                self._data += stripped[5:] + b"\n"

    def _event(self) -> None:
        data = bytes(self._data)
        self._data.clear()
        self._events += bool(data)
        self.finished = self.finished or data.strip() == b"[DONE]" or bool(_LAST.search(data))
        if any(marker in data for marker in _RELEVANT_MARKERS):
            self._body(data)

    def _body(self, data: bytes) -> None:
        try:
            decoded = json.loads(data)
        except (ValueError, RecursionError):
            return
        for item in decoded if isinstance(decoded, list) else [decoded]:
            if isinstance(item, dict):
                # Counts within a stream are cumulative: a later report replaces the earlier one.
                self._counts.update(token_counts(item))
                self.error = error_in(item) or self.error
                # Each wire format has its own name for these fields.
                choices = item.get("choices") or item.get("candidates")
                first = choices[0] if isinstance(choices, list) and choices else None
                holders: tuple[Any, ...] = (item, item.get("response"), item.get("message"), item.get("delta"), first)
                for holder in holders:
                    if not isinstance(holder, dict):
                        continue
                    self.model = _text(holder, "model", "modelVersion") or self.model
                    # Items of a stream have their own ids.
                    if holder is not first:
                        self.response_id = self.response_id or _text(holder, "id", "responseId")
                    reason = _text(holder, "finish_reason", "stop_reason", "finishReason", "status")
                    self.finish_reason = reason or self.finish_reason


def error_in(event: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the error in an event or a body as an object with `error`, or None."""
    inner = event.get("response")
    holder = inner if isinstance(inner, dict) and inner.get("error") else event
    if event.get("type") == "error" and not event.get("error"):
        return {"error": {key: event.get(key) for key in ("code", "message")}}
    return {"error": holder["error"]} if holder.get("error") else None


def token_counts(event: Mapping[str, Any]) -> dict[str, int]:
    """Return the token counts in an event or a body of any wire format, as the fields of `Usage`.

    Anthropic's input count excludes tokens read from and written to the cache. The other formats include
    them.
    """
    for holder in (event, event.get("response"), event.get("message")):
        if not isinstance(holder, dict):
            continue
        counts = _counts(holder.get("usageMetadata"), holder.get("usage"))
        if counts is not None:
            names = ("input_tokens", "cached_tokens", "output_tokens")
            return {name: count for name, count in zip(names, counts, strict=True) if count is not None}
    return {}


def _counts(google: Any, usage: Any) -> tuple[int | None, int | None, int | None] | None:
    """Read the input, cached and output tokens in any wire format. Return None if no usage is reported."""
    if isinstance(google, dict):
        return (
            _sum(google, "promptTokenCount", "toolUsePromptTokenCount"),
            _number(google, "cachedContentTokenCount"),
            _sum(google, "candidatesTokenCount", "thoughtsTokenCount"),
        )
    if not isinstance(usage, dict):
        return None
    if "prompt_tokens" in usage:
        cached = _number(usage.get("prompt_tokens_details"), "cached_tokens")
        return _number(usage, "prompt_tokens"), cached, _number(usage, "completion_tokens")
    cached = _number(usage.get("input_tokens_details"), "cached_tokens")
    input_tokens = None
    if _number(usage, "input_tokens") is not None:
        input_tokens = _sum(usage, "input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
    served = _number(usage, "cache_read_input_tokens") if cached is None else cached
    return input_tokens, served, _number(usage, "output_tokens")


def _text(holder: Mapping[str, Any], *names: str) -> str:
    return next((value for name in names if isinstance(value := holder.get(name), str) and value), "")


def _number(holder: Any, name: str) -> int | None:
    value = holder.get(name) if isinstance(holder, dict) else None
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _sum(holder: Mapping[str, Any], *names: str) -> int | None:
    counts = [count for name in names if (count := _number(holder, name)) is not None]
    return sum(counts) if counts else None


UNREACHED = 0
"""The status that is counted if the provider did not respond."""
FAILED_FROM = 400


class Meter:
    """A gateway's counters. Thread-safe."""

    def __init__(self, spec: GatewaySpec) -> None:
        self._spec = spec
        self._lock = threading.Lock()
        self._counters = GatewayCounters()
        self._statuses: Counter[int] = Counter()
        self._finished = Usage()
        self._running: dict[int, Usage] = {}
        self._tokens = 0

    def read_counters(self) -> GatewayCounters:
        with self._lock:
            return self._counters

    def begin(self) -> int:
        """Count a model call and return its number, starting at 1.

        If the budget is exhausted, return 0 and do not count the call.
        """
        with self._lock:
            if self._describe_spent_budget():
                self._note(budget_spent=True)
                return 0
            number = self._counters.calls + 1
            self._running[number] = Usage()
            self._note(calls=number, waiting=True, moved=time.monotonic())
            return number

    def describe_spent_budget(self) -> str:
        """Return a sentence that explains why the budget is exhausted, or "" if it is not."""
        with self._lock:
            return self._describe_spent_budget()

    def headers(self, status: int, headers: Mapping[str, str]) -> None:
        """Record the start of a response.

        If the headers report a limit, it is recorded before the agent sees them.
        """
        with self._lock:
            self._count(status)
            self._note(moved=time.monotonic())
            if status >= FAILED_FROM:
                self._note_limit(LimitSignal(status_code=status, headers=headers))

    def note_error(self, status: int, headers: Mapping[str, str], body: Any) -> None:
        """Record the body of an error. The body is more specific than the headers."""
        with self._lock:
            self._note_limit(LimitSignal(status_code=status, headers=headers, body=body))

    def count_no_answer(self) -> None:
        with self._lock:
            self._count(UNREACHED)

    def record_answer(
        self, number: int, reader: AnswerReader, headers: Mapping[str, str], *, ended: bool = False
    ) -> None:
        """Record the part of a response received so far.

        Call this before passing the part on to the agent, which may act on it.
        """
        usage = reader.usage()
        with self._lock:
            self._note(moved=time.monotonic())
            # Most chunks report nothing new, so the sum is only computed on a change.
            if usage != self._running[number]:
                self._running[number] = usage
                self._note(usage=functools.reduce(add_usage, self._running.values(), self._finished))
            if reader.error is not None:
                self._note_limit(LimitSignal(headers=headers, body=reader.error))
            elif (ended or reader.finished) and self._counters.limit is not None:
                # Only at the end: an answer can begin well and still hit a limit.
                self._note(limit=None)

    def end(self, number: int, tokens: int) -> None:
        """Record the end of a call, successful or not, and deduct its tokens from the budget."""
        with self._lock:
            self._tokens += tokens
            self._finished = add_usage(self._finished, self._running.pop(number))
            self._note(waiting=bool(self._running), moved=time.monotonic())

    def _count(self, status: int) -> None:
        self._statuses[status] += 1
        self._note(statuses=dict(self._statuses))

    def _describe_spent_budget(self) -> str:
        # Calls count when they begin; their tokens are known only at the end.
        for used, most, what in (
            (self._counters.calls, self._spec.max_calls, "model calls"),
            (self._tokens, self._spec.max_tokens, "tokens"),
        ):
            if most is not None and used >= most:
                return f"this delivery has spent its budget: {used} of {most} {what}. Raise the budget or end the work"
        return ""

    def _note_limit(self, signal: LimitSignal) -> None:
        limit = detect(signal, now=datetime.now(UTC))
        if limit is None:
            return
        if self._spec.key:
            # Some providers quote the key in their errors.
            limit = limit.evolve(evidence=limit.evidence.replace(self._spec.key, "***"))
        self._note(limit=limit)

    def _note(self, **changes: Any) -> None:
        self._counters = replace(self._counters, **changes)


def add_usage(total: Usage, more: Usage) -> Usage:
    """Return the sum of two usages. A field stays None if neither usage reports it."""
    first, second = (usage.model_dump(exclude_none=True) for usage in (total, more))
    return Usage(**{name: first.get(name, 0) + second.get(name, 0) for name in first | second})


PROVIDERS = {
    Wire.RESPONSES: "openai",
    Wire.CHAT: "openai",
    Wire.MESSAGES: "anthropic",
    Wire.GEMINI: "gcp.gemini",
}
"""The names of these formats' services in the telemetry conventions."""
UNKNOWN = "unknown"
_IN_PATH = re.compile(r"/models/([^/:?]+)")


def observed_call(wire: Wire, call: Call) -> AbstractContextManager[Operation]:
    """Record a model call for telemetry while the block runs."""
    model = _model(call) if OBSERVER.get() is not None else UNKNOWN
    return operation(telemetry.CHAT, model, {telemetry.PROVIDER: PROVIDERS[wire], telemetry.REQUEST_MODEL: model})


def note_answer(span: Operation, status: int, reader: AnswerReader | None) -> None:
    """Record the metadata of a response for telemetry. Also record the status of a failed call."""
    if reader is not None:
        span.record_answer(
            ModelAnswer(
                usage=reader.usage(),
                model=reader.model,
                response_id=reader.response_id,
                finish_reason=reader.finish_reason,
            )
        )
    if status >= HTTPStatus.BAD_REQUEST or (reader is not None and reader.error is not None):
        span.note({telemetry.ERROR: str(status)})


def _model(call: Call) -> str:
    """Return the requested model from the body or, for Gemini, from the path."""
    if match := _IN_PATH.search(call.target):
        return match[1]
    try:
        body = json.loads(call.body)
    except (ValueError, RecursionError):
        return UNKNOWN
    return str(body.get("model") or UNKNOWN) if isinstance(body, dict) else UNKNOWN
