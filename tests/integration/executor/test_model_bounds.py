"""Answers of a model that are too large, and keys that a provider repeats: neither gets through."""

import base64
import gzip
import json
import zlib
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from urllib.parse import quote

import pytest

from activities.model.gateway.provider import LARGEST_ANSWER_BYTES
from activities.model.gateway.wire import Cassette, GatewaySpec, Wire
from tests.support.huge_answer import asked_apart, huge_provider
from tests.support.model_gateway_client import KEY, ask, body_of, open_gateway, provider

MOST_BYTES = 260_000_000
"""Of a whole process that refuses an answer of 300 MB. Before, it was 2.2 GB."""


@pytest.mark.parametrize("kind", ["plain", "packed"])
def test_a_huge_answer_to_the_planner_is_refused_while_it_comes(kind: str) -> None:
    with huge_provider(kind) as url:
        found = asked_apart("client", url)
    assert found["said"].startswith("PlannerError: model m: the response is larger than 16 MiB")
    assert found["largest"] < MOST_BYTES, found


@pytest.mark.parametrize("kind", ["plain", "streamed", "packed", "announced"])
def test_a_huge_answer_to_an_agent_ends_at_the_bound(kind: str) -> None:
    with huge_provider(kind) as url:
        found = asked_apart("gateway", url)
    if kind == "announced":
        assert found["status"] == 502
        assert "the response from the model provider is larger than 64 MiB" in found["said"]
    else:
        assert 0 < found["came"] <= LARGEST_ANSWER_BYTES
        # Broken off, not ended: half an answer must not look like a whole one.
        assert found["said"] == "IncompleteRead"
    assert found["largest"] < MOST_BYTES, found


@pytest.mark.parametrize("packing", ["", "gzip", "deflate"])
@pytest.mark.parametrize("status", [200, 401])
def test_a_key_in_an_answer_reaches_nobody_however_it_is_written_and_cut(
    tmp_path: Path, packing: str, status: int
) -> None:
    basic = base64.b64encode(f"user:{KEY}".encode()).decode()
    told = {"said": f"your key is {KEY}, {quote(KEY)}, {KEY.encode().hex()} or {basic}"}
    content = json.dumps({**told, "choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 2}}).encode()
    sent = {"gzip": gzip.compress, "deflate": zlib.compress}.get(packing, bytes)(content)

    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(status)
        request.send_header("content-type", "application/json")
        request.send_header("x-echo", f"Bearer {KEY}")
        if packing:
            request.send_header("content-encoding", packing)
        request.send_header("transfer-encoding", "chunked")
        request.end_headers()
        for at in range(0, len(sent), 7):
            part = sent[at : at + 7]
            request.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
            request.wfile.flush()
        request.wfile.write(b"0\r\n\r\n")

    recording = tmp_path / "cassette.jsonl"
    with provider(answer) as url:
        spec = GatewaySpec(wire=Wire.CHAT, upstream=url, key=KEY, cassette=Cassette.RECORD, recording=recording)
        with open_gateway(spec) as gateway:
            got, headers, body = ask(gateway, "/chat/completions", body_of(Wire.CHAT))
            seen = gateway.read_counters()
    assert got == status
    assert "content-encoding" not in headers
    assert headers["x-echo"] == "Bearer " + "*" * len(KEY)
    said = json.loads(body)["said"]
    assert said.startswith(f"your key is {'*' * len(KEY)}, {'*' * len(KEY)}, {'*' * 2 * len(KEY)} or ")
    whole = "".join(json.loads(recording.read_text())["chunks"])
    for place in (body.decode(), whole, repr(seen)):
        assert not any(form in place for form in (KEY, KEY.encode().hex(), basic[8:-4])), place
    if status == 200:
        assert (seen.usage.input_tokens, seen.usage.output_tokens) == (7, 2)


def test_an_answer_in_an_unknown_packing_is_refused_with_what_to_look_at() -> None:
    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.send_header("content-encoding", "br")
        request.send_header("content-length", "3")
        request.end_headers()
        request.wfile.write(b"\x0b\x01\x80")

    with provider(answer) as url, open_gateway(GatewaySpec(wire=Wire.CHAT, upstream=url, key=KEY)) as gateway:
        status, _, body = ask(gateway, "/chat/completions", body_of(Wire.CHAT))
    assert status == 502
    assert "the response uses encoding 'br', but identity was requested. Check the model provider" in body.decode()
