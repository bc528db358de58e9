"""The gateway between an agent and its model provider, over real sockets."""

import http.client
import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from activities.model.gateway.server import CALLS_AT_ONCE
from activities.model.gateway.wire import Cassette, GatewayCounters, GatewaySpec, Wire
from tests.support.fake_model import FakeModel, Fault, say
from tests.support.fake_model.exchange import Tokens
from tests.support.model_gateway_client import (
    KEY,
    KEY_HEADERS,
    PATHS,
    STREAMS,
    TEXT,
    ask,
    assert_soon,
    body_of,
    client_of,
    open_gateway,
    provider,
    send,
    spec_of,
)
from tightloop.errors import ExecutorError
from tightloop.executor.model import Usage


@pytest.mark.parametrize("wire", Wire)
@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_passes_unchanged_and_its_tokens_are_counted(wire: Wire, stream: bool) -> None:
    path, body = (STREAMS if stream else PATHS)[wire], body_of(wire, stream=stream)
    with FakeModel(say(TEXT), tokens=Tokens(input=1000, output=100, cached=400)) as model:
        direct = send(model.base_url(wire), path, body)
        with open_gateway(spec_of(model, wire)) as gateway:
            through = ask(gateway, path, body)
            seen = gateway.read_counters()
    assert (through[0], through[2]) == (direct[0], direct[2]) == (200, direct[2])
    assert through[1]["content-type"] == direct[1]["content-type"]
    assert (seen.calls, seen.statuses, seen.limit, seen.waiting) == (1, {200: 1}, None, False)
    assert seen.usage == Usage(input_tokens=1000, cached_tokens=400, output_tokens=100)


@pytest.mark.parametrize("wire", Wire)
def test_the_provider_gets_the_real_key_and_the_agent_never_sees_it(wire: Wire) -> None:
    with FakeModel(say(TEXT)) as model, open_gateway(spec_of(model, wire)) as gateway:
        token = gateway.token
        ways: list[tuple[str, dict[str, str]]] = [
            ("", {"authorization": f"Bearer {token}"}),
            ("", {"x-api-key": token}),
            ("", {"x-goog-api-key": token}),
            (f"?key={token}", {}),
        ]
        answers = [send(gateway.base_url, PATHS[wire] + query, body_of(wire), headers=way) for query, way in ways]
        assert [answer[0] for answer in answers] == [200] * 4
        name, value = KEY_HEADERS[wire]
        for asked in model.requests:
            assert asked.headers[name] == value
            assert token not in json.dumps([asked.path, dict(asked.headers)])
    assert KEY not in repr(answers)
    assert KEY not in repr(gateway)
    assert KEY not in repr(spec_of(model, wire))


@pytest.mark.parametrize("wire", Wire)
def test_another_token_or_none_is_refused_without_asking_the_provider(wire: Wire) -> None:
    with FakeModel(say(TEXT)) as model, open_gateway(spec_of(model, wire)) as gateway:
        for headers in ({}, {"authorization": "Bearer guess"}, {"x-api-key": KEY}, {"x-goog-api-key": ""}):
            status, _, body = send(gateway.base_url, PATHS[wire], body_of(wire), headers=headers)
            assert status == 401
            assert "token" in json.loads(body)["error"]["message"]
        assert model.calls == 0
        assert gateway.read_counters() == GatewayCounters()


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/../admin"),
        ("POST", "/v1/files"),
        ("POST", "/v1/responses/%2e%2e/files"),
        ("DELETE", "/v1/models/m"),
        ("POST", "/v1evil/responses"),
        ("GET", "/"),
        ("GET", "http://elsewhere.invalid/v1/models"),
    ],
)
def test_a_path_that_is_no_model_call_is_refused(method: str, path: str) -> None:
    with FakeModel(say(TEXT)) as model, open_gateway(spec_of(model)) as gateway:
        host = gateway.base_url.removesuffix("/v1")
        headers = {"authorization": f"Bearer {gateway.token}"}
        parts = urlsplit(host)
        with closing(http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)) as connection:
            connection.request(method, path, b"{}", headers)
            answer = connection.getresponse()
            assert answer.status == 404
            assert "neither a model call" in json.loads(answer.read())["error"]["message"]
        assert (model.requests, model.others) == ([], [])


def test_listings_and_token_counts_pass_uncounted() -> None:
    with FakeModel(say(TEXT)) as model:
        with open_gateway(spec_of(model)) as gateway:
            assert [item.id for item in client_of(gateway).models.list()]
            assert gateway.read_counters().calls == 0
        with open_gateway(spec_of(model, Wire.MESSAGES, max_calls=0)) as gateway:
            status, _, body = ask(gateway, "/v1/messages/count_tokens", body_of(Wire.MESSAGES))
            assert (status, json.loads(body)) == (200, {"input_tokens": 1000})


def test_openai_package_streams_through_both_of_its_apis() -> None:
    with FakeModel(say(TEXT)) as model, open_gateway(spec_of(model)) as gateway:
        with client_of(gateway) as client:
            with client.responses.stream(model="m", input="hello") as stream:
                assert stream.get_final_response().output_text == TEXT
            turns: Any = [{"role": "user", "content": "hello"}]
            chunks = client.chat.completions.create(
                model="m", messages=turns, stream=True, stream_options={"include_usage": True}
            )
            assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == TEXT
        seen = gateway.read_counters()
    assert (seen.calls, seen.usage.input_tokens, seen.usage.output_tokens) == (2, 2000, 200)


def test_an_event_is_passed_on_before_the_next_one_is_made() -> None:
    passed = threading.Event()

    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.send_header("content-type", "text/event-stream")
        request.send_header("transfer-encoding", "chunked")
        request.end_headers()
        request.wfile.write(b"d\r\ndata: first\n\n\r\n")
        came = passed.wait(60)
        request.wfile.write(b"6\r\nsecond\r\n0\r\n\r\n" if came else b"4\r\nlate\r\n0\r\n\r\n")

    with provider(answer) as url, open_gateway(GatewaySpec(wire=Wire.CHAT, upstream=url)) as gateway:
        parts = urlsplit(gateway.base_url)
        with closing(http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)) as connection:
            headers = {"authorization": f"Bearer {gateway.token}"}
            connection.request("POST", "/v1/chat/completions", b"{}", headers)
            stream = connection.getresponse()
            assert stream.read1(1000) == b"data: first\n\n"
            assert gateway.read_counters().waiting
            passed.set()
            assert stream.read() == b"second"
        assert_soon(lambda: not gateway.read_counters().waiting)


def test_a_provider_that_is_not_there_gives_502_in_json() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    spec = GatewaySpec(wire=Wire.RESPONSES, upstream=f"http://127.0.0.1:{port}/v1", key=KEY)
    with open_gateway(spec) as gateway:
        status, headers, body = ask(gateway, "/responses", body_of(Wire.RESPONSES))
        assert (status, headers["content-type"]) == (502, "application/json")
        assert "127.0.0.1 did not respond (ConnectError" in json.loads(body)["error"]["message"]
        assert gateway.read_counters().statuses == {0: 1}
        assert (gateway.read_counters().calls, gateway.read_counters().waiting) == (1, False)


def test_an_answer_that_breaks_off_breaks_off_for_the_agent_too() -> None:
    with FakeModel(say(TEXT * 20), fault=Fault.cut_stream(times=1)) as model, open_gateway(spec_of(model)) as gateway:
        with pytest.raises((http.client.IncompleteRead, ConnectionError)):
            ask(gateway, "/responses", body_of(Wire.RESPONSES, stream=True))
        assert_soon(lambda: not gateway.read_counters().waiting)
        assert ask(gateway, "/responses", body_of(Wire.RESPONSES, stream=True))[0] == 200


def test_twenty_streams_at_once_pass_unharmed() -> None:
    texts = [f"{n}: " + TEXT * 50 for n in range(20)]

    def answer(request: BaseHTTPRequestHandler) -> None:
        number = int(request.headers["x-number"])
        request.send_response(200)
        request.send_header("content-type", "text/event-stream")
        request.send_header("transfer-encoding", "chunked")
        request.end_headers()
        together.wait(60)
        for piece in texts[number].split(" "):
            data = f"data: {piece}\n\n".encode()
            request.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        request.wfile.write(b"0\r\n\r\n")

    together = threading.Barrier(20)
    with (
        ThreadPoolExecutor(20) as pool,
        provider(answer) as url,
        open_gateway(GatewaySpec(wire=Wire.CHAT, upstream=url)) as gateway,
    ):

        def one(number: int) -> bytes:
            headers = {"x-number": str(number), "authorization": f"Bearer {gateway.token}"}
            return send(gateway.base_url, "/chat/completions", {}, headers=headers)[2]

        bodies = list(pool.map(one, range(20)))
        seen = gateway.read_counters()
    assert bodies == ["".join(f"data: {piece}\n\n" for piece in text.split(" ")).encode() for text in texts]
    assert (seen.calls, seen.statuses, seen.waiting) == (20, {200: 20}, False)


def test_no_more_calls_than_the_bound_are_with_the_provider_at_once() -> None:
    enough, lock = threading.Event(), threading.Lock()
    active: list[int] = [0]
    most: list[int] = [0]

    def answer(request: BaseHTTPRequestHandler) -> None:
        with lock:
            active[0] += 1
            most[0] = max(most[0], active[0])
        enough.wait(60)
        with lock:
            active[0] -= 1
        request.send_response(200)
        request.send_header("content-length", "2")
        request.end_headers()
        request.wfile.write(b"{}")

    more = CALLS_AT_ONCE + 8
    with (
        ThreadPoolExecutor(more) as pool,
        provider(answer) as url,
        open_gateway(GatewaySpec(wire=Wire.CHAT, upstream=url)) as gateway,
    ):
        asked = [pool.submit(ask, gateway, "/chat/completions", {}) for _ in range(more)]
        assert_soon(lambda: gateway.read_counters().calls == more and active[0] == CALLS_AT_ONCE)
        enough.set()
        assert [call.result(60)[0] for call in asked] == [200] * more
    assert most[0] == CALLS_AT_ONCE


def test_a_provider_that_hangs_does_not_keep_the_door_open() -> None:
    with FakeModel(fault=Fault.hang()) as model, ThreadPoolExecutor(5) as pool:
        with open_gateway(spec_of(model)) as gateway:
            asked = [pool.submit(ask, gateway, "/responses", body_of(Wire.RESPONSES)) for _ in range(5)]
            model.wait_for_calls(5)
            assert gateway.read_counters().waiting
            begun = time.monotonic()
        assert time.monotonic() - begun < 30, "the provider answers never, the agents wait for 60 s"
        assert not gateway.read_counters().waiting
        for call in asked:
            with pytest.raises((ConnectionError, http.client.HTTPException)):
                call.result(60)
        with pytest.raises(ConnectionError):
            ask(gateway, "/responses", body_of(Wire.RESPONSES))
    assert_soon(lambda: not [one for one in threading.enumerate() if one.name.startswith("model-gateway")])


def test_the_call_of_an_agent_that_hangs_up_is_given_up() -> None:
    asked, gone = threading.Event(), threading.Event()

    def answer(request: BaseHTTPRequestHandler) -> None:
        asked.set()
        if request.connection.recv(1) == b"":
            gone.set()
        request.close_connection = True

    with provider(answer) as url, open_gateway(GatewaySpec(wire=Wire.CHAT, upstream=url)) as gateway:
        parts = urlsplit(gateway.base_url)
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)
        connection.request("POST", "/v1/chat/completions", b"{}", {"authorization": f"Bearer {gateway.token}"})
        # An agent that hangs up before the provider is reached is given up too, and the provider never hears of it.
        assert asked.wait(60)
        assert gateway.read_counters().waiting
        connection.close()
        assert gone.wait(60)
        assert_soon(lambda: not gateway.read_counters().waiting)


def test_a_request_above_the_bound_is_refused() -> None:
    with FakeModel(say(TEXT)) as model, open_gateway(spec_of(model)) as gateway:
        parts = urlsplit(gateway.base_url)
        with closing(http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)) as connection:
            connection.putrequest("POST", "/v1/responses")
            connection.putheader("content-length", str(64 * 2**20 + 1))
            connection.endheaders()
            answer = connection.getresponse()
            assert answer.status == 413
            assert "64 MB" in json.loads(answer.read())["error"]["message"]
        assert model.calls == 0


def test_many_large_requests_at_once_do_not_fill_the_memory_and_the_next_ones_pass() -> None:
    """Not even one who has the token: the bodies are read before they are answered."""
    part = b"x" * (60 * 2**20)
    with FakeModel(say(TEXT)) as model, open_gateway(spec_of(model)) as gateway, ExitStack() as stack:
        place = urlsplit(gateway.base_url)
        head = f"POST {place.path}/responses HTTP/1.1\r\nhost: x\r\ncontent-length: {len(part) + 1}\r\n\r\n"
        senders = []
        for _ in range(4):
            sender = stack.enter_context(socket.create_connection(("127.0.0.1", place.port or 0), 60))
            sender.sendall(head.encode() + part)
            senders.append(sender)
        # Each of them lacks one byte; the fifth finds no room.
        assert_soon(lambda: send(gateway.base_url, "/responses", part)[0] == 413)
        for sender in senders:
            sender.close()
        assert_soon(lambda: ask(gateway, "/responses", {"input": "x" * len(part), "model": "m"})[0] == 200)


def test_a_large_request_passes_whole() -> None:
    with FakeModel(say(TEXT)) as model, open_gateway(spec_of(model)) as gateway:
        text = "x" * (8 * 2**20)
        assert ask(gateway, "/responses", body_of(Wire.RESPONSES, text=text))[0] == 200
        assert model.requests[0].body["input"][0]["content"] == text


def test_a_connection_serves_one_call_after_the_other() -> None:
    with FakeModel(say(TEXT)) as model, open_gateway(spec_of(model)) as gateway:
        parts = urlsplit(gateway.base_url)
        headers = {"authorization": f"Bearer {gateway.token}"}
        with closing(http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)) as connection:
            connection.connect()
            own = connection.sock.getsockname()
            for _ in range(3):
                connection.request("POST", "/v1/responses", json.dumps(body_of(Wire.RESPONSES, stream=True)), headers)
                assert connection.getresponse().read().endswith(b"\n\n")
                assert connection.sock.getsockname() == own


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"upstream": "api.openai.com/v1"}, "base URL"),
        ({"upstream": "https://u:p@h/v1"}, "base URL"),
        ({"key": "sk-1\n"}, "line break"),
        ({"cassette": Cassette.RECORD}, "requires a file"),
        ({"cassette": Cassette.REPLAY, "recording": Path("/nowhere/at/all.jsonl")}, "Create the recording first"),
    ],
)
def test_a_door_that_cannot_work_is_not_opened(changes: dict[str, Any], said: str) -> None:
    fields: dict[str, Any] = {"wire": Wire.CHAT, "upstream": "http://127.0.0.1:9/v1", **changes}
    with pytest.raises(ExecutorError, match=said), open_gateway(GatewaySpec(**fields)):
        pass
