"""The codec over real HTTP, with the real codec, as the UI of a cluster and Temporal's CLI talk to it."""

import asyncio
import base64
import json
import logging
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from uuid import uuid4

import pytest
from temporalio.client import Client
from temporalio.testing import WorkflowEnvironment

from gateway.access.site import CONNECTIONS, LARGEST_BYTES, listening
from gateway.ui import application, codec_access
from tests.support.episodes import eventually
from tests.support.stack.stack import ROOT
from tests.support.ui_server import Answer, Served, ask, serving
from tightloop.client.encryption import sealing_converter
from tightloop.client.keys import KeyRing, new_ring
from tightloop.client.sealing import Keys, OperatorCodec, SealingCodec
from tightloop.client.sign_in import token_file, ui_token
from tightloop.errors import ServiceUnavailableError, SettingsError
from tightloop.settings import parse_settings
from worker.server import free_port, temporal_binary

TOKEN = "t0ken-of-the-tests-0123456789"
UI = "http://127.0.0.1:8233"
SECRET = "the line of a customer: zebra-crossing-42"


@contextmanager
def codec_server(codec: OperatorCodec, more: str = "") -> Iterator[Served]:
    address = f"127.0.0.1:{free_port()}"
    settings = parse_settings(f"temporal: {{ui_url: '{UI}'}}\ncodec: {{listen: '{address}'{more}}}", {})
    with serving(application(codec_access(settings, TOKEN), codec), address) as served:
        yield served


@pytest.fixture(scope="module")
def ring() -> KeyRing:
    return new_ring()


@pytest.fixture(scope="module")
def codec(ring: KeyRing) -> OperatorCodec:
    return OperatorCodec(SealingCodec(Keys(ring)))


@pytest.fixture(scope="module")
def server(codec: OperatorCodec) -> Iterator[Served]:
    with codec_server(codec) as running:
        yield running


def post(server: Served, path: str, body: Any = None, *, method: str = "POST", **headers: str) -> Answer:
    """One request with the token, unless `headers` say otherwise."""
    given = {"Authorization": f"Bearer {TOKEN}", "Content_Type": "application/json", "X_Namespace": "default"}
    return ask(server, path, body, method=method, **(given | headers))


def payload(text: str = SECRET, encoding: str = "json/plain", **metadata: str) -> dict[str, Any]:
    fields = {"encoding": encoding, **metadata}
    return {
        "metadata": {name: base64.b64encode(value.encode()).decode() for name, value in fields.items()},
        "data": base64.b64encode(text.encode()).decode(),
    }


def sealed(server: Served, *payloads: dict[str, Any]) -> list[dict[str, Any]]:
    answer = post(server, "/codec/encode", {"payloads": payloads})
    assert answer.status == 200, answer.text
    return list(answer.json["payloads"])


def test_what_is_encoded_cannot_be_read_and_decodes_to_the_same(server: Served, ring: KeyRing) -> None:
    one, two = payload(), payload('{"goal": "ü 🚀"}', messageType="x")
    hidden = sealed(server, one, two)
    for each in hidden:
        metadata = {name: base64.b64decode(value) for name, value in each["metadata"].items()}
        assert metadata == {"encoding": b"binary/encrypted", "encryption-key-id": ring.current.encode()}
        assert b"zebra" not in base64.b64decode(each["data"])
    for query in ("", "?preserveStorageRefs=true"):
        assert post(server, f"/codec/decode{query}", {"payloads": hidden}).json == {"payloads": [one, two]}
    assert post(server, "/codec/download", {"payloads": hidden[:1]}).json == {"payloads": [one]}


def test_payloads_that_are_not_ours_pass_through_decode(server: Served) -> None:
    reference = payload('{"driver":"x"}', "json/protobuf", messageType="temporal.api.sdk.v1.ExternalStorageReference")
    nothing = {"metadata": {"encoding": base64.b64encode(b"binary/null").decode()}}
    foreign = [payload(), payload("?", "binary/of-somebody"), reference, nothing]
    assert post(server, "/codec/decode?preserveStorageRefs=true", {"payloads": foreign}).json == {"payloads": foreign}
    assert post(server, "/codec/decode", {"payloads": []}).json == {}
    refused = post(server, "/codec/download", {"payloads": [reference]})
    assert refused.status == 422
    assert "external storage" in refused.json["error"]


def test_what_cannot_be_opened_stays_sealed_with_the_reason_beside_what_can(server: Served, ring: KeyRing) -> None:
    foreign = new_ring()
    with codec_server(OperatorCodec(SealingCodec(Keys(foreign)))) as other:
        [strange] = sealed(other, payload())
    [ours] = sealed(server, payload())
    changed = {**ours, "data": base64.b64encode(b"x" * 40).decode()}
    nameless = {"metadata": {"encoding": ours["metadata"]["encoding"]}, "data": ours["data"]}
    answer = post(server, "/codec/decode", {"payloads": [ours, strange, changed, nameless]}, Origin=UI)
    assert answer.status == 200
    opened, *others = answer.json["payloads"]
    assert opened == payload()
    for given, shown in zip([strange, changed, nameless], others, strict=True):
        why = base64.b64decode(shown["metadata"].pop("tightloop-unopened")).decode()
        assert shown == given
        assert "not one of the keys on this host" in why or "cannot be decrypted" in why


def test_a_browser_is_told_exactly_what_the_ui_may_send(server: Served) -> None:
    for origin in (UI, "http://127.0.0.1:8233"):
        asked = {"Origin": origin, "Access_Control_Request_Method": "POST", "Authorization": "", "Content_Type": ""}
        answer = post(server, "/codec/decode?preserveStorageRefs=true", method="OPTIONS", **asked)
        assert (answer.status, answer.text) == (204, "")
        assert answer.headers["access-control-allow-origin"] == origin
        assert answer.headers["access-control-allow-methods"] == "POST, OPTIONS"
        assert answer.headers["access-control-allow-headers"] == "authorization,content-type,x-namespace"
        assert answer.headers["access-control-allow-credentials"] == "true"
        assert "Origin" in answer.headers["vary"]


@pytest.mark.parametrize(
    "origin",
    ["http://127.0.0.1:8234", "http://127.0.0.1:82330", "https://127.0.0.1:8233", "http://evil.example", "null"],
)
def test_pages_of_other_origins_get_nothing(server: Served, origin: str) -> None:
    for method, body in (("OPTIONS", None), ("POST", {"payloads": [payload()]})):
        answer = post(server, "/codec/decode", body, method=method, Origin=origin)
        assert answer.status == 403
        assert not [name for name in answer.headers if name.startswith("access-control")]
        assert "codec.origins" in answer.json["error"]


def test_a_further_origin_is_let_in_where_the_settings_name_it(codec: OperatorCodec) -> None:
    with codec_server(codec, ", origins: ['https://temporal.example.com']") as server:
        answer = post(server, "/codec/decode", {"payloads": [payload()]}, Origin="https://temporal.example.com")
    assert (answer.status, answer.headers["access-control-allow-origin"]) == (200, "https://temporal.example.com")


@pytest.mark.parametrize("proof", ["", f"Bearer {TOKEN}x", f"Basic {TOKEN}", TOKEN, "Bearer", "Bearer \xff\xfe"])
def test_without_the_token_nothing_is_decrypted(server: Served, proof: str) -> None:
    answer = post(server, "/codec/decode", {"payloads": sealed(server, payload())}, Authorization=proof, Origin=UI)
    assert answer.status == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert "tightloop env" in answer.json["error"]


def test_a_name_that_somebody_let_point_here_is_refused(server: Served) -> None:
    port = server.address.rpartition(":")[2]
    for host in (f"evil.example:{port}", "127.0.0.1:1"):
        assert post(server, "/codec/decode", {"payloads": [payload()]}, Host=host).status == 421
    assert post(server, "/codec/decode", {"payloads": [payload()]}, Host=f"localhost:{port}").status == 200


def test_a_page_of_a_cluster_gets_in_by_a_cookie_after_a_sign_in(server: Served) -> None:
    form = {"Origin": server.url, "Content_Type": "application/x-www-form-urlencoded"}
    done = ask(server, "/", urlencode({"token": TOKEN}).encode(), method="POST", **form)
    assert done.status == 303
    cookie = done.headers["set-cookie"]
    # The cluster's page is another site.
    assert "HttpOnly; SameSite=None; Secure" in cookie
    body = {"payloads": sealed(server, payload())}
    through = {"Authorization": "", "Origin": UI, "Sec_Fetch_Site": "cross-site", "Cookie": cookie.partition(";")[0]}
    assert post(server, "/codec/decode", body, **through).status == 200
    assert post(server, "/codec/decode", body, **through | {"Origin": "http://evil.example"}).status == 403
    assert post(server, "/codec/decode", body, **through | {"Origin": ""}).status == 403
    page = ask(server, "/", Cookie=cookie.partition(";")[0], Accept="text/html")
    assert "This browser is signed in" in page.text


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
    ],
)
def test_bodies_that_are_no_payloads_are_refused_without_quoting_them(
    server: Served, body: bytes, headers: dict[str, str], status: int
) -> None:
    answer = post(server, "/codec/decode", body, **headers)
    assert answer.status == status
    assert answer.json["error"]
    assert "zebra" not in answer.text


def test_a_body_of_16_mb_is_taken_and_a_larger_one_is_refused_with_an_answer(server: Served) -> None:
    large = payload("x" * 11_000_000)
    assert post(server, "/codec/decode", {"payloads": [large]}).json == {"payloads": [large]}
    answer = post(server, "/codec/decode", b" " * (LARGEST_BYTES + 1))
    assert answer.status == 413
    assert "larger than 16777216 bytes" in answer.json["error"]


def test_other_paths_and_methods_are_answered_with_what_there_is(server: Served) -> None:
    for method, path in (("POST", "/codec/x"), ("GET", "/codec/decode"), ("PUT", "/codec/encode")):
        answer = post(server, path, b"{}" if method == "POST" else None, method=method)
        assert answer.status == 404
        assert "decode" in answer.json["error"]
    for path in ("/decode", "/codec/decode/x", "//["):
        assert post(server, path, b"{}").status == 404


def test_silent_connections_do_not_block_others(server: Served) -> None:
    host, _, port = server.address.rpartition(":")
    silent = [socket.create_connection((host, int(port)), 5) for _ in range(CONNECTIONS // 2)]
    try:
        assert post(server, "/codec/encode", {"payloads": [payload()]}).status == 200
    finally:
        for each in silent:
            each.close()


def test_nothing_of_a_payload_is_logged(server: Served, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        sealed(server, payload())
        post(server, "/codec/decode", {"payloads": [payload(SECRET, "binary/encrypted")]})
        post(server, "/codec/decode", f'{{"{SECRET}"'.encode())
        post(server, f"/{SECRET.replace(' ', '+')}", b"{}")
    assert "zebra" not in caplog.text


def test_a_taken_address_is_a_sentence(server: Served) -> None:
    with pytest.raises(ServiceUnavailableError, match=r"cannot listen on .*, or change codec\.listen"):
        listening(server.address, "codec.listen")


def test_the_token_file_is_made_once_for_this_user_alone(tmp_path: Path) -> None:
    made = ui_token(tmp_path)
    assert made == ui_token(tmp_path)
    assert token_file(tmp_path).stat().st_mode & 0o777 == 0o600
    token_file(tmp_path).chmod(0o644)
    with pytest.raises(SettingsError, match="other users can read"):
        ui_token(tmp_path)
    token_file(tmp_path).chmod(0o600)
    token_file(tmp_path).write_text("short")
    with pytest.raises(SettingsError, match="does not contain a valid token"):
        ui_token(tmp_path)


def test_a_codec_server_without_an_address_says_what_to_set(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "gateway.ui"],
        cwd=ROOT,
        env={**os.environ, "TIGHTLOOP_HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert done.returncode == 1
    assert (
        "codec.listen is not set. For a cluster, set codec.listen to an address, for example 127.0.0.1:8234"
        in done.stderr
    )


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
    temporal: WorkflowEnvironment, ring: KeyRing, server: Served
) -> None:
    address = temporal.client.service_client.config.target_host
    client = await Client.connect(address, data_converter=sealing_converter(SealingCodec(Keys(ring))))
    key = f"codec-{uuid4().hex[:8]}"
    handle = await client.start_workflow("Nobody", {"goal": SECRET}, id=key, task_queue=key, memo={"goal": SECRET})
    try:
        show = ("workflow", "show", "-w", key, "-o", "json")
        closed = await asyncio.to_thread(temporal_cli, address, *show)
        assert closed.returncode == 0, closed.stderr
        assert contents(closed.stdout).count(SECRET) == 0
        through = {"TEMPORAL_CODEC_ENDPOINT": f"{server.url}/codec", "TEMPORAL_CODEC_AUTH": f"Bearer {TOKEN}"}
        opened = await asyncio.to_thread(temporal_cli, address, *show, **through)
        assert contents(opened.stdout).count(SECRET) == 2, opened.stderr
        flags = ("--codec-endpoint", f"{server.url}/codec", "--codec-auth", f"Bearer {TOKEN}")
        signal = ("workflow", "signal", "-w", key, "--name", "pause", "--input", json.dumps(SECRET))
        sent = await asyncio.to_thread(temporal_cli, address, *signal, *flags)
        assert sent.returncode == 0, sent.stderr
        raw = await asyncio.to_thread(temporal_cli, address, *show)
        assert '"signalName": "pause"' in raw.stdout
        assert contents(raw.stdout).count(SECRET) == 0
        assert contents((await asyncio.to_thread(temporal_cli, address, *show, **through)).stdout).count(SECRET) == 3
    finally:
        await handle.terminate()


async def test_one_start_with_another_key_does_not_blind_the_list_of_the_temporal_cli(
    temporal: WorkflowEnvironment, ring: KeyRing, server: Served
) -> None:
    address, queue = temporal.client.service_client.config.target_host, f"codec-{uuid4().hex[:8]}"
    started = []
    for keys in (ring, new_ring()):
        client = await Client.connect(address, data_converter=sealing_converter(SealingCodec(Keys(keys))))
        key = f"{queue}-{len(started)}"
        started.append(await client.start_workflow("Nobody", id=key, task_queue=queue, memo={"goal": SECRET}))
    flags = ("--codec-endpoint", f"{server.url}/codec", "--codec-auth", f"Bearer {TOKEN}")
    query = ("workflow", "list", "--query", f'TaskQueue="{queue}"', "-o", "json")
    try:

        async def listed() -> list[str]:
            done = await asyncio.to_thread(temporal_cli, address, *query, *flags)
            assert done.returncode == 0, done.stderr
            ids = sorted(row["execution"]["workflowId"] for row in json.loads(done.stdout))
            return ids if len(ids) == len(started) else []

        assert await eventually(listed) == sorted(handle.id for handle in started)
        for handle in started:
            shown = await asyncio.to_thread(temporal_cli, address, "workflow", "show", "-w", handle.id, *flags)
            assert shown.returncode == 0, shown.stderr
    finally:
        for handle in started:
            await handle.terminate()
