"""Temporal over TLS: a real server behind a TLS front whose wire is recorded."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.temporal_server import connect_to_server, server_address
from tests.support.tls_front import Authority, Front, tls_front
from tightloop.cli.session import Session
from tightloop.client import TightloopClient
from tightloop.client.connection import tls_of
from tightloop.client.sign_in import temporal_variables
from tightloop.errors import ServiceUnavailableError, SettingsError
from tightloop.settings import Settings, parse_settings
from worker.connect import connect as connect_worker
from worker.server import temporal_binary

KEY = "key-of-the-tests-5f2c9a71"
NAME = "temporal.test"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"), "authority")


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("stranger"), "stranger")


@asynccontextmanager
async def temporal_behind(authority: Authority, *, mutual: bool = False) -> AsyncIterator[Front]:
    await connect_to_server()
    upstream = await asyncio.to_thread(server_address)
    async with tls_front(upstream, authority.issue(NAME), clients_of=authority.ca if mutual else None) as front:
        yield front


def settings_for(address: str, **temporal: Any) -> Settings:
    settings = Settings()
    checked = type(settings.temporal).model_validate({"address": address, "tls_server_name": NAME, **temporal})
    return settings.evolve(temporal=checked)


async def test_a_key_goes_over_tls_alone_and_reaches_the_server(authority: Authority) -> None:
    async with temporal_behind(authority) as front:
        settings = settings_for(front.address, api_key=KEY, tls_ca=str(authority.ca))
        client = await TightloopClient.connect(settings=settings)
        assert await client.missing_search_attributes() == ()
        await connect_worker(settings)
    assert front.wire[:1] == b"\x16", "a TLS handshake"
    assert KEY.encode() not in front.wire
    assert b"PRI * HTTP/2.0" in front.clear


async def test_both_sides_can_ask_for_a_certificate(authority: Authority) -> None:
    certificate, private = authority.issue("client")
    mine = {"tls_ca": str(authority.ca), "tls_cert": str(certificate), "tls_key": str(private)}
    async with temporal_behind(authority, mutual=True) as front:
        await TightloopClient.connect(settings=settings_for(front.address, **mine))
        await connect_worker(settings_for(front.address, **mine))
        with pytest.raises(SettingsError, match=r"temporal\.tls_cert"):
            await TightloopClient.connect(settings=settings_for(front.address, tls_ca=str(authority.ca), api_key=KEY))
    assert KEY.encode() not in front.wire


async def test_a_server_that_nobody_vouches_for_gets_no_key(authority: Authority, stranger: Authority) -> None:
    async with temporal_behind(authority) as front:
        for wrong in ({"tls_ca": str(stranger.ca)}, {}, {"tls_ca": str(authority.ca), "tls_server_name": "other.test"}):
            with pytest.raises(SettingsError, match=r"temporal\.tls_"):
                await TightloopClient.connect(settings=settings_for(front.address, **{"api_key": KEY, **wrong}))
    assert KEY.encode() not in front.wire + front.clear


async def test_the_variables_for_temporals_own_command_line_use_the_same_files(authority: Authority) -> None:
    certificate, private = authority.issue("cli")
    mine = {"tls_ca": str(authority.ca), "tls_cert": str(certificate), "tls_key": str(private)}
    async with temporal_behind(authority, mutual=True) as front:
        variables = temporal_variables(settings_for(front.address, **mine))
        exports = "".join(f"export {name}={value}\n" for name, value in variables.items() if "CODEC" not in name)
        script = f"{exports}exec {temporal_binary()} operator cluster health"
        done = await asyncio.create_subprocess_exec("sh", "-c", script, stdout=asyncio.subprocess.PIPE)
        said, _ = await asyncio.wait_for(done.communicate(), 60)
    assert said.decode().strip() == "SERVING"
    assert front.wire[:1] == b"\x16"


async def test_a_listener_without_tls_never_sees_the_key() -> None:
    seen = bytearray()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.extend(await reader.read(65_536))
        writer.close()

    async with await asyncio.start_server(listen, "127.0.0.1", 0) as server:
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        settings = parse_settings("", {"TIGHTLOOP_TEMPORAL__API_KEY": KEY, "TIGHTLOOP_TEMPORAL__ADDRESS": address})
        for opened in (TightloopClient.connect(settings=settings), connect_worker(settings)):
            with pytest.raises(ServiceUnavailableError, match="cannot reach Temporal"):
                await opened
    assert seen[:1] == b"\x16"
    assert KEY.encode() not in seen


@pytest.mark.parametrize(
    ("temporal", "sentence"),
    [
        ({"tls": "false"}, "api_key would be sent unencrypted to temporal.example.com. Remove tls: false"),
        ({"tls": "false", "tls_ca": "ca.pem", "api_key": ""}, "tls is false, so tls_ca would be ignored"),
        ({"tls_key": "client.key"}, "tls_cert and tls_key must be set together"),
    ],
)
def test_settings_that_would_give_a_key_away_are_refused(temporal: dict[str, str], sentence: str) -> None:
    given = {"address": "temporal.example.com:7233", "api_key": KEY, **temporal}
    variables = {f"TIGHTLOOP_TEMPORAL__{name.upper()}": value for name, value in given.items()}
    with pytest.raises(SettingsError) as refused:
        parse_settings("", variables)
    assert sentence in refused.value.message
    assert KEY not in refused.value.message


def test_an_address_of_the_command_line_is_judged_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIGHTLOOP_TEMPORAL__API_KEY", KEY)
    monkeypatch.setenv("TIGHTLOOP_TEMPORAL__TLS", "false")
    assert not Session().settings.temporal.encrypted, "on loopback it is the user's choice"
    with pytest.raises(SettingsError, match=r"^temporal: api_key would be sent unencrypted to cloud\.example"):
        _ = Session(address="cloud.example:7233").settings


def test_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"temporal\.tls_ca .*missing\.pem cannot be read: No such file"):
        tls_of(settings_for("127.0.0.1:1", tls_ca=str(tmp_path / "missing.pem")).temporal)
    (tmp_path / "text.pem").write_text("hello")
    with pytest.raises(SettingsError, match=r"text\.pem is not a PEM file"):
        tls_of(settings_for("127.0.0.1:1", tls_ca=str(tmp_path / "text.pem")).temporal)
