"""Limits, errors and budgets at the gateway between an agent and its model provider."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from http.server import BaseHTTPRequestHandler

import pytest

from activities.model.gateway.wire import GatewaySpec, Wire
from tests.support.fake_model import FakeModel, Fault, say
from tests.support.model_gateway_client import (
    KEY,
    PATHS,
    STREAMS,
    TEXT,
    ask,
    assert_soon,
    body_of,
    open_gateway,
    provider,
    send,
    spec_of,
)
from tightloop.executor.limit import LimitKind
from tightloop.executor.model import Usage


@pytest.mark.parametrize(
    ("wire", "fault", "kind", "wait"),
    [
        (Wire.RESPONSES, Fault.rate_limited(retry_after_s=3600), LimitKind.RATE_LIMITED, 3600),
        (Wire.CHAT, Fault.rate_limited(retry_after_s=2.5), LimitKind.RATE_LIMITED, 2.5),
        (Wire.RESPONSES, Fault.usage_limit(resets_in_s=7200), LimitKind.USAGE_EXHAUSTED, 7200),
        (Wire.MESSAGES, Fault.usage_limit(resets_in_s=1800), LimitKind.USAGE_EXHAUSTED, 1800),
        (Wire.GEMINI, Fault.rate_limited(retry_after_s=20), LimitKind.RATE_LIMITED, 20),
        (Wire.GEMINI, Fault.usage_limit(resets_in_s=40000), LimitKind.USAGE_EXHAUSTED, 40000),
        (Wire.RESPONSES, Fault.quota(), LimitKind.USAGE_EXHAUSTED, None),
        (Wire.MESSAGES, Fault.quota(), LimitKind.USAGE_EXHAUSTED, None),
        (Wire.MESSAGES, Fault.overloaded(), LimitKind.OVERLOADED, None),
        (Wire.CHAT, Fault.unauthorized(), LimitKind.AUTH, None),
        (Wire.CHAT, Fault.context_full(), LimitKind.CONTEXT_FULL, None),
    ],
)
def test_a_limit_is_seen_with_its_time_and_passed_on_unchanged(
    wire: Wire, fault: Fault, kind: LimitKind, wait: float | None
) -> None:
    with FakeModel(fault=fault) as model, open_gateway(spec_of(model, wire)) as gateway:
        direct = send(model.base_url(wire), PATHS[wire], body_of(wire))
        through = ask(gateway, PATHS[wire], body_of(wire))
        limit = gateway.read_counters().limit
        assert gateway.read_counters().statuses == {direct[0]: 1}
    assert through[0] == direct[0]
    if "resets_at" not in direct[2].decode():
        assert through[2] == direct[2]
    assert {n: v for n, v in through[1].items() if n.startswith(("retry", "x-ratelimit", "x-codex"))} == {
        n: v for n, v in direct[1].items() if n.startswith(("retry", "x-ratelimit", "x-codex"))
    }
    assert limit is not None
    assert limit.kind == kind
    assert limit.evidence
    expected = None if wait is None else timedelta(seconds=wait)
    assert limit.retry_after == expected


def test_a_limit_is_seen_as_soon_as_the_headers_are_there() -> None:
    checked = threading.Event()

    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(429)
        request.send_header("retry-after", "3600")
        request.send_header("content-length", "2")
        request.end_headers()
        checked.wait(60)
        request.wfile.write(b"{}")

    spec = {"wire": Wire.RESPONSES, "key": KEY}
    with (
        ThreadPoolExecutor(1) as pool,
        provider(answer) as url,
        open_gateway(GatewaySpec(upstream=url, **spec)) as gateway,  # type: ignore[arg-type]
    ):
        asked = pool.submit(ask, gateway, "/responses", body_of(Wire.RESPONSES))
        assert_soon(lambda: gateway.read_counters().limit is not None)
        assert not asked.done()
        limit = gateway.read_counters().limit
        checked.set()
        assert asked.result(60)[1]["retry-after"] == "3600"
    assert limit is not None
    assert limit.retry_after == timedelta(hours=1)


@pytest.mark.parametrize("wire", [Wire.RESPONSES, Wire.CHAT, Wire.MESSAGES, Wire.GEMINI])
def test_an_error_within_a_stream_that_began_well_is_seen(wire: Wire) -> None:
    with FakeModel(say(TEXT), fault=Fault.sse_failure(times=1)) as model, open_gateway(spec_of(model, wire)) as gateway:
        ask(gateway, STREAMS[wire], body_of(wire, stream=True))
        limit = gateway.read_counters().limit
        assert limit is not None, gateway.read_counters()
        ask(gateway, STREAMS[wire], body_of(wire, stream=True))
        seen = gateway.read_counters()
    assert (seen.statuses, seen.limit) == ({200: 2}, None)


def test_a_good_call_after_a_limit_lifts_it() -> None:
    with (
        FakeModel(say(TEXT), fault=Fault.rate_limited(retry_after_s=1, times=1)) as model,
        open_gateway(spec_of(model, Wire.CHAT)) as gateway,
    ):
        ask(gateway, PATHS[Wire.CHAT], body_of(Wire.CHAT))
        assert gateway.read_counters().limit is not None
        ask(gateway, PATHS[Wire.CHAT], body_of(Wire.CHAT))
        assert gateway.read_counters().limit is None
        assert gateway.read_counters().statuses == {429: 1, 200: 1}


@pytest.mark.parametrize(
    ("wire", "kind"),
    [(Wire.RESPONSES, "insufficient_quota"), (Wire.CHAT, "insufficient_quota"), (Wire.MESSAGES, "rate_limit_error"),
     (Wire.GEMINI, "RESOURCE_EXHAUSTED")],
)  # fmt: skip
def test_a_spent_budget_of_calls_refuses_the_next_one_in_the_words_of_the_wire(wire: Wire, kind: str) -> None:
    with FakeModel(say(TEXT)) as model, open_gateway(spec_of(model, wire, max_calls=2)) as gateway:
        assert [ask(gateway, PATHS[wire], body_of(wire))[0] for _ in range(2)] == [200, 200]
        assert not gateway.read_counters().budget_spent
        status, headers, body = ask(gateway, PATHS[wire], body_of(wire))
        error = json.loads(body)["error"]
        assert (status, error.get("status") or error["type"], headers["x-should-retry"]) == (429, kind, "false")
        assert "2 of 2 model calls" in error["message"]
        assert (gateway.read_counters().budget_spent, gateway.read_counters().calls, model.calls) == (True, 2, 2)


def test_a_spent_budget_of_tokens_refuses_the_next_call() -> None:
    with FakeModel(say(TEXT)) as model, open_gateway(spec_of(model, max_tokens=2000)) as gateway:
        statuses = [ask(gateway, "/responses", body_of(Wire.RESPONSES, stream=True))[0] for _ in range(3)]
        assert statuses == [200, 200, 429]
        assert gateway.read_counters().budget_spent
        assert model.calls == 2


def test_tokens_that_are_not_reported_count_against_the_budget_by_an_estimate() -> None:
    body = body_of(Wire.CHAT, stream=True, text="word " * 2000) | {"stream_options": {}}
    with FakeModel(say(TEXT)) as model, open_gateway(spec_of(model, Wire.CHAT, max_tokens=2000)) as gateway:
        statuses = [ask(gateway, PATHS[Wire.CHAT], body)[0] for _ in range(2)]
        assert gateway.read_counters().usage == Usage()
    assert statuses == [200, 429]
