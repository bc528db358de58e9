"""Connecting with wrong settings: each failure of the real connection is one sentence that says what to do."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode
from temporalio.testing import WorkflowEnvironment

from tests.support.nginx import NGINX, nginx_front
from tests.support.tls_front import Authority
from tightloop.client import TightloopClient
from tightloop.client.calls import Calls
from tightloop.client.setup import NotAllowedError, translate_denial
from tightloop.errors import TightloopError
from tightloop.settings import Settings, TemporalSettings
from worker.server import embedded_server

KEY = "key-of-the-tests-5f2c9a71"
NAME = "front.test"
needs_nginx = pytest.mark.skipif(NGINX is None, reason="nginx is not installed: apt install nginx")


@dataclass
class Fronts:
    """The addresses of one server, and files to connect with."""

    plain: str
    by_certificate: str
    by_key: str
    files: dict[str, str]


@pytest.fixture(scope="module")
def fronts(temporal: WorkflowEnvironment, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fronts]:
    folder, plain = tmp_path_factory.mktemp("fronts"), temporal.client.service_client.config.target_host
    ours, foe = Authority(folder, "ours"), Authority(folder, "foe")
    pairs = {"client": ours.issue("client"), "foreign": foe.issue("foreign")}
    files = {
        f"{name}_{kind}": str(file)
        for name, pair in pairs.items()
        for kind, file in zip(("cert", "key"), pair, strict=True)
    }
    (folder / "broken.key").write_text("-----BEGIN PRIVATE KEY-----\nabcd\n-----END PRIVATE KEY-----\n")
    files |= {"ca": str(ours.ca), "foe": str(foe.ca), "broken": str(folder / "broken.key")}
    server = ours.issue(NAME)
    with ExitStack() as stack:
        by_certificate = stack.enter_context(nginx_front(folder / "mtls", plain, server, clients_of=ours.ca))
        by_key = stack.enter_context(nginx_front(folder / "key", plain, server, key=KEY))
        yield Fronts(plain, by_certificate, by_key, files)


@needs_nginx
@pytest.mark.parametrize(
    ("front", "given", "sentence"),
    [
        ("by_certificate", {"tls_ca": "foe"}, "does not trust the authority that signed the server certificate"),
        ("by_certificate", {"tls_server_name": ""}, "the server certificate is for a different name. Set"),
        ("by_certificate", {"tls_key": "foreign_key"}, "temporal.tls_key does not match temporal.tls_cert"),
        ("by_certificate", {"tls_key": "client_cert"}, "temporal.tls_key contains no private key. Set it to"),
        ("by_certificate", {"tls_key": "broken"}, "contains a private key that cannot be read"),
        ("by_certificate", {"tls_cert": "", "tls_key": ""}, "If it requires a different client certificate"),
        ("by_certificate", {"tls_cert": "foreign_cert", "tls_key": "foreign_key"}, "If it requires a different client"),
        ("by_key", {"api_key": "wrong"}, "denied access. Set a valid temporal.api_key or TEMPORAL_API_KEY"),
        ("by_key", {}, "denied access. Set a valid temporal.api_key or TEMPORAL_API_KEY"),
        ("plain", {"api_key": KEY}, "because an API key or a certificate is set. Set temporal.tls: false"),
        ("by_key", {"tls": False}, "If Temporal requires TLS, set temporal.tls: true"),
        ("127.0.0.1:9", {"tls": False}, "reach Temporal at 127.0.0.1:9 (connection refused). Start it: tightloop up"),
        ("nowhere.invalid:7233", {"tls": False}, "(dns error). Change temporal.address, or ask Temporal's operator"),
        ("plain", {"tls": False, "namespace": "nope"}, "has no namespace 'nope'. Change temporal.namespace, or"),
    ],
)  # fmt: skip
async def test_wrong_setting_gets_one_sentence(
    fronts: Fronts, front: str, given: dict[str, Any], sentence: str
) -> None:
    address, files = getattr(fronts, front, front), fronts.files
    whole = {"tls_ca": "ca", "tls_cert": "client_cert", "tls_key": "client_key", "tls_server_name": NAME}
    values = {"address": address, **({} if given.get("tls") is False else whole), **given}
    found = TemporalSettings.model_validate({name: files.get(str(text), text) for name, text in values.items()})
    with pytest.raises(TightloopError) as refused:
        await TightloopClient.connect(settings=Settings(temporal=found.evolve(authenticate=False)))
    assert sentence in refused.value.message
    assert "\n" not in refused.value.message


@needs_nginx
async def test_metadata_goes_with_each_call(fronts: Fronts) -> None:
    values = {"address": fronts.by_key, "tls_ca": fronts.files["ca"], "tls_server_name": NAME}
    values |= {"metadata": {"authorization": f"Bearer {KEY}"}}
    client = await TightloopClient.connect(settings=Settings(temporal=TemporalSettings.model_validate(values)))
    assert await client.missing_search_attributes() == ()


async def test_variables_of_temporal_do_not_turn_the_embedded_server_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEMPORAL_ADDRESS", "cloud.example:7233")
    elsewhere = Settings(temporal=TemporalSettings(address="cloud.example:7233"))
    keyed = Settings(temporal=TemporalSettings.model_validate({"address": "127.0.0.1:9", "api_key": KEY}))
    for settings, sentence in (
        (elsewhere, "specifies the server cloud.example:7233"),
        (keyed, "because it does not support TLS"),
    ):
        with pytest.raises(TightloopError) as refused:
            async with embedded_server(settings, tmp_path):
                pass
        assert sentence in refused.value.message
        assert "TIGHTLOOP_TEMPORAL__PROFILE=none tightloop up" in refused.value.message


@pytest.mark.parametrize(
    ("address", "advice"),
    [
        ("shop.a1b2c.tmprl.cloud:7233", "With an authorized account, run: tcld namespace retention set"),
        ("us-west-2.aws.api.temporal.io:7233", "With an authorized account, run: tcld namespace retention set"),
        ("temporal.example.com:7233", "Ask an administrator to run: temporal operator"),
    ],
)
async def test_setup_names_the_command_of_the_place_that_denies_it(address: str, advice: str) -> None:
    calls = Calls(await Client.connect(address, lazy=True))
    denied = RPCError("not here", RPCStatusCode.PERMISSION_DENIED, b"")
    with pytest.raises(NotAllowedError) as refused:
        async with translate_denial(calls, "change the retention", "temporal operator", "namespace retention set"):
            raise denied
    assert (
        f"Temporal at {address} does not allow this client to change the retention (not here). {advice}"
        in refused.value.message
    )
