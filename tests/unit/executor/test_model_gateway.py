"""What the model gateway reads out of answers, lets through, and takes for the same call."""

import asyncio
import base64
import json
import re
from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from activities.model.gateway.fingerprint import Call, fingerprint
from activities.model.gateway.meter import LARGEST_EVENT_BYTES, AnswerReader, Meter, add_usage, error_in, token_counts
from activities.model.gateway.provider import KeyMask, forms
from activities.model.gateway.wire import GatewaySpec, Route, Wire, credentials, find_route, refusal
from tightloop.executor.model import Usage

SSE = {"content-type": "text/event-stream; charset=utf-8"}
STREAMS: dict[Wire, list[dict[str, Any] | str]] = {
    Wire.RESPONSES: [
        {"type": "response.created", "response": {"usage": None, "error": None}},
        {"type": "response.output_text.delta", "delta": 'it says "usage": {"input_tokens": 5} – ü'},
        {
            "type": "response.completed",
            "response": {
                "error": None,
                "usage": {"input_tokens": 90, "input_tokens_details": {"cached_tokens": 30}, "output_tokens": 7},
            },
        },
    ],
    Wire.CHAT: [
        {"choices": [{"delta": {"content": "hi"}}], "usage": None},
        {
            "choices": [],
            "usage": {
                "prompt_tokens": 90,
                "prompt_tokens_details": {"cached_tokens": 30},
                "completion_tokens": 7,
            },
        },
        "[DONE]",
    ],
    Wire.MESSAGES: [
        {
            "type": "message_start",
            "message": {
                "usage": {
                    "input_tokens": 50,
                    "cache_creation_input_tokens": 10,
                    "cache_read_input_tokens": 30,
                    "output_tokens": 1,
                }
            },
        },
        {"type": "message_delta", "delta": {}, "usage": {"output_tokens": 7}},
        {"type": "message_stop"},
    ],
    Wire.GEMINI: [
        {"usageMetadata": {"promptTokenCount": 90, "candidatesTokenCount": 1}},
        {
            "usageMetadata": {
                "promptTokenCount": 90,
                "cachedContentTokenCount": 30,
                "candidatesTokenCount": 4,
                "thoughtsTokenCount": 3,
            }
        },
    ],
}
USAGE = Usage(input_tokens=90, cached_tokens=30, output_tokens=7)


def stream(wire: Wire, end: str = "\n") -> bytes:
    texts = [event if isinstance(event, str) else json.dumps(event) for event in STREAMS[wire]]
    return "".join(f"event: x{end}data: {text}{end}{end}" for text in texts).encode()


def read(chunks: list[bytes], headers: dict[str, str]) -> AnswerReader:
    reader = AnswerReader(headers)
    for chunk in chunks:
        reader.feed(chunk)
    reader.end()
    return reader


@given(st.sampled_from(list(Wire)), st.sampled_from(["\n", "\r\n"]), st.lists(st.integers(0, 800), max_size=20))
def test_usage_of_a_stream_does_not_depend_on_how_it_is_cut(wire: Wire, end: str, cuts: list[int]) -> None:
    data = stream(wire, end)
    places = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    reader = read([data[a:b] for a, b in pairwise(places)], SSE)
    assert reader.usage() == USAGE
    assert reader.error is None
    assert reader.finished == (wire is not Wire.GEMINI)


@given(st.binary(max_size=300), st.sampled_from(["text/event-stream", "application/json", ""]))
def test_no_answer_is_too_strange_to_be_read(data: bytes, kind: str) -> None:
    assert read([data, b"data: [1, {}, null]\n\n"], {"content-type": kind}).usage() == Usage()


@pytest.mark.parametrize("wire", Wire)
def test_usage_of_a_whole_body_is_read(wire: Wire) -> None:
    events = [event for event in STREAMS[wire] if isinstance(event, dict)]
    last = events[-1]
    if wire is Wire.MESSAGES:
        last = {"usage": events[0]["message"]["usage"] | {"output_tokens": 7}}
    body = json.dumps(last.get("response", last)).encode()
    assert read([body], {"content-type": "application/json"}).usage() == USAGE


def test_what_is_not_reported_is_estimated_for_the_budget_only() -> None:
    reader = read([b"data: {}\n\n" * 50], SSE)
    assert reader.usage() == Usage()
    assert reader.tokens(400) == 150
    assert read([stream(Wire.CHAT)], SSE).tokens(10**6) == 97


def test_an_event_above_the_bound_is_passed_over_and_the_next_one_read() -> None:
    giant = b'data: {"error": "' + b"x" * (LARGEST_EVENT_BYTES // 2) + b'"}\n\n'
    lines = b"data: " + b"y" * (LARGEST_EVENT_BYTES // 2)
    reader = read([lines + b"\n", lines + b"\n", lines + b"\n\n", stream(Wire.CHAT)], SSE)
    assert reader.usage() == USAGE
    assert read([giant], SSE).error is not None


@pytest.mark.parametrize(
    ("event", "error"),
    [
        (
            {"type": "response.failed", "response": {"error": {"code": "rate_limit_exceeded"}}},
            {"error": {"code": "rate_limit_exceeded"}},
        ),
        (
            {"type": "error", "code": "server_error", "message": "m"},
            {"error": {"code": "server_error", "message": "m"}},
        ),
        ({"type": "error", "error": {"type": "overloaded_error"}}, {"error": {"type": "overloaded_error"}}),
        ({"type": "response.completed", "response": {"error": None}, "error": None}, None),
    ],
)
def test_errors_within_a_stream_are_found(event: dict[str, Any], error: dict[str, Any] | None) -> None:
    assert error_in(event) == error


def test_token_counts_that_are_no_numbers_are_not_taken() -> None:
    assert token_counts({"usage": {"input_tokens": "5", "output_tokens": -1, "cached": True}}) == {}


@pytest.mark.parametrize(
    ("wire", "method", "target", "expected"),
    [
        (Wire.RESPONSES, "POST", "/v1/responses", Route("/responses", "", True)),
        (Wire.RESPONSES, "POST", "/v1/responses/compact", Route("/responses/compact", "", True)),
        (Wire.CHAT, "GET", "/v1/models?limit=2", Route("/models", "limit=2", False)),
        (Wire.CHAT, "POST", "/v1/files", None),
        (Wire.CHAT, "POST", "/v2/chat/completions", None),
        (Wire.CHAT, "GET", "/v1/models/../files", None),
        (Wire.CHAT, "GET", "/v1/models/%2e%2e/files", None),
        (Wire.CHAT, "GET", "/v1/models/a/b-c.d:e", None),
        (Wire.CHAT, "GET", "/v1/models/org/model-1.5", Route("/models/org/model-1.5", "", False)),
        (Wire.CHAT, "DELETE", "/v1/models/m", None),
    ],
)
def test_only_what_an_agent_needs_of_its_provider_goes_through(
    wire: Wire, method: str, target: str, expected: Route | None
) -> None:
    assert find_route(wire, method, target, "/v1") == expected


@pytest.mark.parametrize(
    ("wire", "target", "counted"),
    [
        (Wire.MESSAGES, "/v1/messages?beta=true", True),
        (Wire.MESSAGES, "/v1/messages/count_tokens", False),
        (Wire.GEMINI, "/v1beta/models/gemini-x:streamGenerateContent?alt=sse&key=abc", True),
        (Wire.GEMINI, "/v1beta/models/gemini-x:countTokens", False),
    ],
)
def test_model_calls_are_told_from_countings(wire: Wire, target: str, counted: bool) -> None:
    route = find_route(wire, "POST", target, "")
    assert route is not None
    assert route.counted is counted
    assert "abc" not in route.query
    assert route.query == {"/v1/messages?beta=true": "beta=true"}.get(target, "alt=sse" if "alt=sse" in target else "")


def test_a_key_is_found_wherever_agents_put_it() -> None:
    headers = {"authorization": "Bearer  t1 ", "x-api-key": "t2", "x-goog-api-key": "t3"}
    assert set(credentials(headers, "/models?a=b&key=t4")) == {"t1", "t2", "t3", "t4"}


@pytest.mark.parametrize("wire", Wire)
@pytest.mark.parametrize("status", [401, 404, 409, 413, 429, 502, 503, 504])
def test_refusals_name_their_reason_in_every_wire(wire: Wire, status: int) -> None:
    body = json.loads(refusal(wire, status, "because"))
    assert body["error"]["message"] == "because"
    assert (body.get("type") == "error") is (wire is Wire.MESSAGES)


def call(body: Any, tail: str = "/responses") -> Call:
    return Call(method="POST", target=tail, route=Route(tail, "", True), headers=(), body=json.dumps(body).encode())


SAME = [
    ("in /home/a/tree/x.py", "in /srv/b/tree/x.py"),
    ("id 0198c2f0-53a1-7e63-9a5c-2b7e3a4f5d60", "id 0198c2f0-ffff-7e63-9a5c-2b7e3a4f5d60"),
    ("call_a1b2c3d4e5", "call_ffffffff99"),
    ("it is 2026-11-21", "it is 2026-11-22"),
    ("at 2026-11-21T03:19:29.5Z", "at 2025-01-02T03:04:05Z"),
    ("Process Group PGID: 4242", "Process Group PGID: 51"),
    ("Wall time: 0.0512 seconds", "Wall time: 1.5 seconds"),
    ("Original token count: 7\nOutput:\n/home/a/tree", "Original token count: 8\nOutput:\n/srv/b/tree"),
    ("Today is Saturday, November 21, 2026", "Today is Sunday, November 22, 2026"),
    ('{"started":1795232439281}', '{"started":1795232439040}'),
]


@pytest.mark.parametrize(("first", "second"), SAME)
def test_ids_times_and_folders_do_not_make_another_call(first: str, second: str) -> None:
    one = fingerprint(Wire.RESPONSES, call({"input": [first], "prompt_cache_key": "a"}), ("/home/a/tree",))
    two = fingerprint(Wire.RESPONSES, call({"prompt_cache_key": "b", "input": [second]}), ("/srv/b/tree",))
    assert one == two


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("fix line 10", "fix line 11"),
        ("user_message is lost", "user_messages is lost"),
        ("version 1.2", "version 1.3"),
    ],
)
def test_other_words_make_another_call(first: str, second: str) -> None:
    assert fingerprint(Wire.CHAT, call({"input": first}), ()) != fingerprint(Wire.CHAT, call({"input": second}), ())


def test_wire_and_path_are_part_of_a_call() -> None:
    prints = {fingerprint(wire, call({}, tail), ()) for wire in (Wire.CHAT, Wire.RESPONSES) for tail in ("/a", "/b")}
    assert len(prints) == 4


def test_what_was_never_reported_is_not_added_as_zero() -> None:
    total = add_usage(Usage(), Usage(input_tokens=3))
    assert total == Usage(input_tokens=3)
    assert add_usage(total, Usage(input_tokens=4, output_tokens=1)) == Usage(input_tokens=7, output_tokens=1)


@given(st.integers(0, 5), st.lists(st.booleans(), max_size=12))
def test_a_budget_of_calls_lets_exactly_so_many_through(most: int, ends: list[bool]) -> None:
    meter = Meter(GatewaySpec(wire=Wire.CHAT, upstream="http://h/v1", max_calls=most))
    numbers = []
    for end in ends:
        numbers.append(number := meter.begin())
        if number and end:
            meter.end(number, 1)
    assert [number for number in numbers if number] == list(range(1, min(most, len(ends)) + 1))
    assert meter.read_counters().budget_spent is (len(ends) > most)
    assert bool(meter.describe_spent_budget()) is (min(most, len(ends)) >= most)


@given(st.data())
def test_no_cut_lets_a_key_through_and_nothing_else_is_changed(data: st.DataObject) -> None:
    key = "sk-sks-9+/ä=k"
    parts = st.sampled_from(
        [key, key[:5], key[3:], "s", "sk-", "sk-sk", "x", "\n", quote(key, safe=""), key.encode().hex()]
    )
    text = "".join(data.draw(st.lists(parts, max_size=12)))
    whole = text.encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=8)))
    pieces = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]

    async def came() -> AsyncIterator[bytes]:
        for piece in pieces:
            yield piece

    async def screened() -> bytes:
        return b"".join([part async for part in KeyMask(key).body((), came())])

    got = asyncio.run(screened())
    assert len(got) == len(whole)
    assert not any(form in got for form in forms(key))
    masked = re.sub(b"|".join(re.escape(form) for form in sorted(set(forms(key)), key=len, reverse=True)),
                    lambda found: b"*" * len(found[0]), whole)  # fmt: skip
    assert got == masked


@given(st.binary(max_size=20), st.binary(max_size=20))
def test_a_key_is_known_in_base64_whatever_stands_around_it(before: bytes, after: bytes) -> None:
    key = "sk-real-5f2c9a71d3"
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        assert any(form in encode(before + key.encode() + after) for form in forms(key))
