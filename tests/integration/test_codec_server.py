"""The codec server over real HTTP, with the real codec, as Temporal's UI and CLI talk to it."""

import asyncio
import base64
import http.client
import json
import logging
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode
from uuid import uuid4

import pytest
from temporalio.client import Client
from temporalio.testing import WorkflowEnvironment

from gateway.codec.payloads import LARGEST_BYTES
from gateway.codec.server import CONNECTIONS, CodecServer
from tests.support.stack.stack import ROOT
from tightloop.client.codec_token import codec_token, token_file
from tightloop.client.encryption import EncryptionCodec, encrypting_converter
from tightloop.client.keys import KeyRing, new_ring
from tightloop.errors import ServiceUnavailableError, SettingsError
from tightloop.settings import Settings, parse_settings
from worker.server import free_port, temporal_binary

TOKEN = "t0ken-of-the-tests-0123456789"
UI = "http://127.0.0.1:8233"
SECRET = "the line of a customer: zebra-crossing-42"


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    text: str

    @property
    def json(self) -> Any:
        return json.loads(self.text)


def settings_at(port: int = 0, more: str = "") -> Settings:
    return parse_settings(f"temporal: {{ui_url: '{UI}'}}\ncodec: {{listen: '127.0.0.1:{port}'{more}}}", {})


@contextmanager
def serving(codec: EncryptionCodec, token: str | None = TOKEN, more: str = "") -> Iterator[CodecServer]:
    with CodecServer(codec, settings_at(more=more), token) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join(10)


@pytest.fixture(scope="module")
def ring() -> KeyRing:
    return new_ring()


@pytest.fixture(scope="module")
def codec(ring: KeyRing) -> EncryptionCodec:
    return EncryptionCodec(ring)


@pytest.fixture(scope="module")
def server(codec: EncryptionCodec) -> Iterator[CodecServer]:
    with serving(codec) as running:
        yield running


@pytest.fixture(scope="module")
def open_server(codec: EncryptionCodec) -> Iterator[CodecServer]:
    with serving(codec, None) as running:
        yield running


def ask(server: CodecServer, path: str, body: Any = None, *, method: str = "POST", **headers: str) -> Answer:
    """One request as a client sends it; a header named `Content_Type` is sent as Content-Type, "" as absent."""
    given = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json", "X-Namespace": "default"}
    given |= {name.replace("_", "-"): value for name, value in headers.items()}
    data = body if isinstance(body, bytes | type(None)) else json.dumps(body).encode()
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=60)
    try:
        connection.request(method, path, data, {name: value for name, value in given.items() if value})
        answer = connection.getresponse()
        text = answer.read().decode()
        return Answer(answer.status, {name.lower(): value for name, value in answer.getheaders()}, text)
    finally:
        connection.close()


def payload(text: str = SECRET, encoding: str = "json/plain", **metadata: str) -> dict[str, Any]:
    fields = {"encoding": encoding, **metadata}
    return {
        "metadata": {name: base64.b64encode(value.encode()).decode() for name, value in fields.items()},
        "data": base64.b64encode(text.encode()).decode(),
    }


def sealed(server: CodecServer, *payloads: dict[str, Any]) -> list[dict[str, Any]]:
    answer = ask(server, "/encode", {"payloads": payloads})
    assert answer.status == 200, answer.text
    return list(answer.json["payloads"])


def test_what_is_encoded_cannot_be_read_and_decodes_to_the_same(server: CodecServer, ring: KeyRing) -> None:
    one, two = payload(), payload('{"goal": "ü 🚀"}', messageType="x")
    hidden = sealed(server, one, two)
    for each in hidden:
        metadata = {name: base64.b64decode(value) for name, value in each["metadata"].items()}
        assert metadata == {"encoding": b"binary/encrypted", "encryption-key-id": ring.current.encode()}
        assert b"zebra" not in base64.b64decode(each["data"])
    for query in ("", "?preserveStorageRefs=true"):
        assert ask(server, f"/decode{query}", {"payloads": hidden}).json == {"payloads": [one, two]}
    assert ask(server, "/download", {"payloads": hidden[:1]}).json == {"payloads": [one]}


def test_payloads_that_are_not_ours_pass_through_decode(server: CodecServer) -> None:
    reference = payload('{"driver":"x"}', "json/protobuf", messageType="temporal.api.sdk.v1.ExternalStorageReference")
    nothing = {"metadata": {"encoding": base64.b64encode(b"binary/null").decode()}}
    foreign = [payload(), payload("?", "binary/of-somebody"), reference, nothing]
    assert ask(server, "/decode?preserveStorageRefs=true", {"payloads": foreign}).json == {"payloads": foreign}
    assert ask(server, "/decode", {"payloads": []}).json == {}
    refused = ask(server, "/download", {"payloads": [reference]})
    assert refused.status == 422
    assert "external storage" in refused.json["error"]


def test_a_missing_key_is_named_in_a_sentence(server: CodecServer) -> None:
    with serving(EncryptionCodec(new_ring())) as other:
        answer = ask(other, "/decode", {"payloads": sealed(server, payload())}, Origin=UI)
    assert answer.status == 422
    assert "was encrypted with key" in answer.json["error"]
    assert answer.headers["access-control-allow-origin"] == UI


def test_a_browser_is_told_exactly_what_the_ui_may_send(server: CodecServer, open_server: CodecServer) -> None:
    for origin in (UI, "http://localhost:8233"):
        asked = {"Origin": origin, "Access_Control_Request_Method": "POST", "Authorization": "", "Content_Type": ""}
        answer = ask(server, "/decode?preserveStorageRefs=true", method="OPTIONS", **asked)
        assert (answer.status, answer.text) == (204, "")
        assert answer.headers["access-control-allow-origin"] == origin
        assert answer.headers["access-control-allow-methods"] == "POST, OPTIONS"
        assert answer.headers["access-control-allow-headers"] == "authorization,content-type,x-namespace"
        assert answer.headers["access-control-allow-credentials"] == "true"
        assert answer.headers["vary"] == "Origin"
    answer = ask(open_server, "/decode", {"payloads": [payload()]}, Origin=UI, Authorization="")
    assert answer.headers["access-control-allow-origin"] == UI
    assert "access-control-allow-credentials" not in answer.headers


@pytest.mark.parametrize(
    "origin",
    ["http://127.0.0.1:8234", "http://127.0.0.1:82330", "https://127.0.0.1:8233", "http://evil.example", "null"],
)
def test_pages_of_other_origins_get_nothing(server: CodecServer, origin: str) -> None:
    for method, body in (("OPTIONS", None), ("POST", {"payloads": [payload()]})):
        answer = ask(server, "/decode", body, method=method, Origin=origin)
        assert answer.status == 403
        assert not [name for name in answer.headers if name.startswith("access-control")]
        assert "codec.origins" in answer.json["error"]


def test_a_further_origin_is_let_in_where_the_settings_name_it(codec: EncryptionCodec) -> None:
    with serving(codec, more=", origins: ['https://temporal.example.com']") as server:
        answer = ask(server, "/decode", {"payloads": [payload()]}, Origin="https://temporal.example.com")
    assert (answer.status, answer.headers["access-control-allow-origin"]) == (200, "https://temporal.example.com")


@pytest.mark.parametrize("proof", ["", f"Bearer {TOKEN}x", f"Basic {TOKEN}", TOKEN, "Bearer", "Bearer \xff\xfe"])
def test_without_the_token_nothing_is_decrypted(server: CodecServer, proof: str) -> None:
    answer = ask(server, "/decode", {"payloads": sealed(server, payload())}, Authorization=proof, Origin=UI)
    assert answer.status == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert "TEMPORAL_CODEC_AUTH" in answer.json["error"]


def test_a_name_that_somebody_let_point_here_is_refused(open_server: CodecServer) -> None:
    port = open_server.server_address[1]
    for host in (f"evil.example:{port}", "127.0.0.1:1"):
        assert ask(open_server, "/decode", {"payloads": [payload()]}, Host=host).status == 421
    assert ask(open_server, "/decode", {"payloads": [payload()]}, Host=f"localhost:{port}").status == 200


def test_the_sign_in_leaves_a_cookie_that_lets_the_ui_in_and_is_not_the_token(server: CodecServer) -> None:
    own = {"Origin": server.endpoint, "Content_Type": "application/x-www-form-urlencoded", "Authorization": ""}
    page = ask(server, "/", method="GET", Authorization="", Content_Type="")
    assert "Not signed in" in page.text
    assert "frame-ancestors 'none'" in page.headers["content-security-policy"]
    wrong = ask(server, "/sign-in", urlencode({"token": "x" * 20}).encode(), **own)
    assert (wrong.status, "set-cookie" in wrong.headers) == (403, False)
    foreign = ask(server, "/sign-in", urlencode({"token": TOKEN}).encode(), **{**own, "Origin": UI})
    assert (foreign.status, "set-cookie" in foreign.headers) == (403, False)
    done = ask(server, "/sign-in", urlencode({"token": TOKEN}).encode(), **own)
    assert done.status == 200
    cookie = done.headers["set-cookie"]
    assert "HttpOnly; SameSite=Strict" in cookie
    assert TOKEN not in cookie
    body = {"payloads": sealed(server, payload())}
    assert ask(server, "/decode", body, Authorization="", Origin=UI, Cookie=cookie.partition(";")[0]).status == 200
    assert ask(server, "/decode", body, Authorization="", Origin=UI, Cookie="tightloop_codec=00").status == 401


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b"{", {}, 422),
        (b'{"payloads": [{"data": 5}]}', {}, 422),
        (b'{"payloads": "zebra-crossing-42"}', {}, 422),
        (b"[" * 100_000, {}, 422),
        (b"\xff\xfe", {}, 422),
        (b"{}", {"Content_Type": "text/plain"}, 415),
        (b"{}", {"Content_Type": ""}, 415),
        (b"{}", {"Transfer_Encoding": "chunked"}, 411),
    ],
)
def test_bodies_that_are_no_payloads_are_refused_without_quoting_them(
    server: CodecServer, body: bytes, headers: dict[str, str], status: int
) -> None:
    answer = ask(server, "/decode", body, **headers)
    assert answer.status == status
    assert answer.json["error"]
    assert "zebra" not in answer.text


def test_a_body_of_16_mb_is_taken_and_a_larger_one_is_refused_with_an_answer(server: CodecServer) -> None:
    large = payload("x" * 11_000_000)
    assert ask(server, "/decode", {"payloads": [large]}).json == {"payloads": [large]}
    answer = ask(server, "/decode", b" " * (LARGEST_BYTES + 1))
    assert answer.status == 413
    assert "16777216 are allowed" in answer.json["error"]


def test_other_paths_and_methods_are_answered_with_what_there_is(server: CodecServer) -> None:
    for method, path in (("POST", "/"), ("POST", "/decode/x"), ("GET", "/decode"), ("POST", "//[")):
        answer = ask(server, path, b"{}" if method == "POST" else None, method=method)
        assert answer.status == 404
        assert "/decode" in answer.json["error"]


def test_a_connection_is_kept_for_many_requests_and_silent_ones_do_not_block_others(server: CodecServer) -> None:
    address = ("127.0.0.1", server.server_address[1])
    silent = [socket.create_connection(address, 5) for _ in range(CONNECTIONS // 2)]
    connection = http.client.HTTPConnection(*address, timeout=60)
    try:
        headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
        body = json.dumps({"payloads": [payload()]})
        began, used = time.monotonic(), set()
        for _ in range(200):
            connection.request("POST", "/encode", body, headers)
            assert connection.getresponse().read()
            used.add(connection.sock.getsockname())
        print(f"\n  {(time.monotonic() - began) / 200 * 1000:.2f} ms for a request")
        assert len(used) == 1
    finally:
        connection.close()
        for each in silent:
            each.close()


def test_nothing_of_a_payload_is_logged(server: CodecServer, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        sealed(server, payload())
        ask(server, "/decode", {"payloads": [payload(SECRET, "binary/encrypted")]})
        ask(server, "/decode", f'{{"{SECRET}"'.encode())
        ask(server, f"/{SECRET.replace(' ', '+')}", b"{}")
    assert "zebra" not in caplog.text


def test_a_taken_address_is_a_sentence(server: CodecServer, codec: EncryptionCodec) -> None:
    with pytest.raises(ServiceUnavailableError, match=r"cannot listen at .* choose another codec\.listen"):
        CodecServer(codec, settings_at(server.server_address[1]), TOKEN)


# -- settings and token -------------------------------------------------------------------------


def test_only_loopback_may_do_without_a_token() -> None:
    assert codec_token(settings_at(more=", require_token: false").codec) is None
    with pytest.raises(SettingsError, match=r"only on 127\.0\.0\.1, not on 0\.0\.0\.0:80"):
        parse_settings("codec: {listen: '0.0.0.0:80', require_token: false}", {})


def test_the_token_file_is_made_once_for_this_user_alone(tmp_path: Path) -> None:
    codec = settings_at().codec
    made = codec_token(codec, tmp_path)
    assert made is not None
    assert made == codec_token(codec, tmp_path)
    assert token_file(tmp_path).stat().st_mode & 0o777 == 0o600
    token_file(tmp_path).chmod(0o644)
    with pytest.raises(SettingsError, match="can be read by others"):
        codec_token(codec, tmp_path)


def test_a_token_of_a_variable_must_be_one(monkeypatch: pytest.MonkeyPatch) -> None:
    codec = settings_at(more=", token_env: THE_CODEC_TOKEN").codec
    monkeypatch.setenv("THE_CODEC_TOKEN", f" {TOKEN}\n")
    assert codec_token(codec) == TOKEN
    for wrong in ("", "short", "with a space in it 0123456789", "ümlaut-0123456789-0123"):
        monkeypatch.setenv("THE_CODEC_TOKEN", wrong)
        with pytest.raises(SettingsError, match="THE_CODEC_TOKEN"):
            codec_token(codec)


# -- the process --------------------------------------------------------------------------------


def codec_process(home: Path, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "gateway.codec", "--with-stdin"],
        cwd=ROOT,
        env={**os.environ, "TIGHTLOOP_HOME": str(home), "XDG_CONFIG_HOME": str(home), **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_the_process_ends_with_the_one_that_started_it(tmp_path: Path, ring: KeyRing) -> None:
    settings = {"PRIVACY__ENCRYPT": "true", "PRIVACY__KEYS_ENV": "KEYS", "CODEC__LISTEN": f"127.0.0.1:{free_port()}"}
    environment = {f"TIGHTLOOP_{name}": value for name, value in settings.items()} | {"KEYS": ring.as_json()}
    with codec_process(tmp_path, **environment) as process:
        assert process.stdout is not None
        assert "listens at http://127.0.0.1:" in process.stdout.readline()
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(90) == 0


def test_the_process_says_why_it_does_not_start(tmp_path: Path) -> None:
    with codec_process(tmp_path) as process:
        said = process.communicate(timeout=90)[1]
    assert process.returncode == 1
    assert "error: the codec server has nothing to do: privacy.encrypt is off" in said
    with codec_process(tmp_path, TIGHTLOOP_PRIVACY__ENCRYPT="true") as process:
        said = process.communicate(timeout=90)[1]
    assert "there is no key file" in said


# -- Temporal's own command line ----------------------------------------------------------------


def temporal_cli(address: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [str(temporal_binary()), *arguments, "--address", address]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("TEMPORAL_")}
    return subprocess.run(
        command, env={**clean, **environment}, capture_output=True, text=True, timeout=60, check=False
    )


def contents(history: str) -> str:
    """A history as JSON, with its payloads as text: the CLI shows them in base64."""
    found = re.findall(r'"data": "([^"]*)"', history)
    return history + "".join(base64.b64decode(data).decode("utf-8", "replace") for data in found)


async def test_the_temporal_cli_reads_and_writes_through_it(
    temporal: WorkflowEnvironment, codec: EncryptionCodec, server: CodecServer
) -> None:
    address = temporal.client.service_client.config.target_host
    client = await Client.connect(address, data_converter=encrypting_converter(codec))
    key = f"codec-{uuid4().hex[:8]}"
    handle = await client.start_workflow("Nobody", {"goal": SECRET}, id=key, task_queue=key, memo={"goal": SECRET})
    try:
        show = ("workflow", "show", "-w", key, "-o", "json")
        closed = await asyncio.to_thread(temporal_cli, address, *show)
        assert closed.returncode == 0, closed.stderr
        assert contents(closed.stdout).count(SECRET) == 0
        through = {"TEMPORAL_CODEC_ENDPOINT": server.endpoint, "TEMPORAL_CODEC_AUTH": f"Bearer {TOKEN}"}
        opened = await asyncio.to_thread(temporal_cli, address, *show, **through)
        assert contents(opened.stdout).count(SECRET) == 2, opened.stderr
        flags = ("--codec-endpoint", server.endpoint, "--codec-auth", f"Bearer {TOKEN}")
        signal = ("workflow", "signal", "-w", key, "--name", "pause", "--input", json.dumps(SECRET))
        sent = await asyncio.to_thread(temporal_cli, address, *signal, *flags)
        assert sent.returncode == 0, sent.stderr
        raw = await asyncio.to_thread(temporal_cli, address, *show)
        assert '"signalName": "pause"' in raw.stdout
        assert contents(raw.stdout).count(SECRET) == 0
        assert contents((await asyncio.to_thread(temporal_cli, address, *show, **through)).stdout).count(SECRET) == 3
    finally:
        await handle.terminate()
