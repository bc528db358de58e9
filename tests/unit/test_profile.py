"""The connection from Temporal's own configuration: what wins, and a sentence for each mistake."""

from pathlib import Path

import pytest

from tightloop.errors import SettingsError
from tightloop.host.profile import fill_from_profile
from tightloop.settings import Settings, parse_settings

PEM = "-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----\n"
CONFIGURATION = """
[profile.prod]
address = "front.example.com:7233"
namespace = "agents"
api_key = "key-of-prod"
[profile.prod.tls]
server_name = "front.test"
server_ca_cert_path = "ca.pem"
[profile.prod.grpc_meta]
x-team = "blue"
[profile.plain]
address = "127.0.0.1:9"
api_key = "key-of-plain"
[profile.plain.tls]
disabled = true
server_ca_cert_path = "ca.pem"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "temporal.toml"
    path.write_text(CONFIGURATION)
    return path


def filled(file: Path, text: str = "", **variables: str) -> Settings:
    environ = {"TEMPORAL_CONFIG_FILE": str(file), **variables}
    return fill_from_profile(parse_settings(text, environ), environ)


def test_profile_gives_the_whole_connection(file: Path) -> None:
    found = filled(file, TEMPORAL_PROFILE="prod").temporal
    assert (found.address, found.namespace, found.tls_server_name) == ("front.example.com:7233", "agents", "front.test")
    assert (found.api_key.get_secret_value(), found.tls_ca, found.encrypted) == ("key-of-prod", "ca.pem", True)
    assert found.metadata["x-team"].get_secret_value() == "blue"


def test_own_settings_win_and_the_profile_gives_the_rest(file: Path) -> None:
    text = "temporal: {profile: prod, namespace: mine}"
    found = filled(file, text, TEMPORAL_NAMESPACE="other", TIGHTLOOP_TEMPORAL__API_KEY="own").temporal
    assert (found.address, found.namespace) == ("front.example.com:7233", "mine")
    assert found.api_key.get_secret_value() == "own"


def test_variables_of_temporal_win_over_its_file(file: Path) -> None:
    found = filled(file, TEMPORAL_PROFILE="prod", TEMPORAL_ADDRESS="b:2", TEMPORAL_GRPC_META_X_TEAM="red").temporal
    assert (found.address, found.metadata["x-team"].get_secret_value()) == ("b:2", "red")


def test_profile_none_leaves_temporals_configuration_out(file: Path) -> None:
    text = "temporal: {profile: none}"
    assert filled(file, text, TEMPORAL_PROFILE="prod", TEMPORAL_API_KEY="k") == parse_settings(text, {})


def test_tls_that_is_off_drops_what_else_is_said_of_it(file: Path) -> None:
    assert filled(file, TEMPORAL_PROFILE="plain").temporal.encrypted is False
    local = {"TIGHTLOOP_TEMPORAL__TLS": "false", "TIGHTLOOP_TEMPORAL__ADDRESS": "127.0.0.1:1"}
    assert filled(file, TEMPORAL_PROFILE="prod", **local).temporal.tls_ca == ""


def test_certificates_may_be_texts_and_a_key_is_never_shown(tmp_path: Path) -> None:
    key = PEM.replace("CERTIFICATE", "PRIVATE KEY").replace("x", "secret-of-the-key")
    variables = {"TEMPORAL_TLS_CLIENT_CERT_DATA": PEM, "TEMPORAL_TLS_CLIENT_KEY_DATA": key, "TEMPORAL_API_KEY": "k-7"}
    (tmp_path / "temporal.toml").touch()
    found = filled(tmp_path / "temporal.toml", **variables, TEMPORAL_GRPC_META_TOKEN="secret-of-meta")
    assert (found.temporal.tls_cert, found.temporal.tls_key) == (PEM, key)
    for shown in (found.as_yaml(), found.model_dump_json(), repr(found)):
        assert not any(secret in shown for secret in ("secret-of", "k-7"))


@pytest.mark.parametrize(
    ("content", "variables", "sentence"),
    [
        (None, {}, "TEMPORAL_CONFIG_FILE names @, which is not a file. Fix or unset the variable"),
        ('[profile.default]\nadress = "a:1"', {}, "unknown field `adress`, expected one of `address`"),
        ('[profile.default]\naddress = "a:1', {}, "invalid basic string, expected `\"`. Fix the configuration"),
        ("", {"TEMPORAL_PROFILE": "nope"}, "(@, profile 'nope'): Profile 'nope' not found. Fix the configuration"),
        ("", {"TIGHTLOOP_TEMPORAL__PROFILE": "own"}, "(@, profile 'own'): Profile 'own' not found"),
        ("", {"TEMPORAL_TLS": "maybe"}, "TEMPORAL_TLS must be true or false, got 'maybe'"),
        ("", {"TEMPORAL_TLS_CLIENT_CERT_PATH": "a", "TEMPORAL_TLS_CLIENT_CERT_DATA": "b"}, "Cannot specify both"),
        ("", {"TEMPORAL_TLS_CLIENT_CERT_PATH": "a"}, "tls_cert and tls_key must be set together. Set both"),
        ("", {"TEMPORAL_ADDRESS": "cloud"}, "temporal.address is not allowed"),
        ("", {"TEMPORAL_ADDRESS": "c.example:1", "TEMPORAL_API_KEY": "k", "TEMPORAL_TLS": "false"},
         "api_key would be sent unencrypted to c.example. Remove tls: false"),
    ],
)  # fmt: skip
def test_wrong_configuration_gets_one_sentence(
    tmp_path: Path, content: str | None, variables: dict[str, str], sentence: str
) -> None:
    file = tmp_path / "temporal.toml"
    if content is not None:
        file.write_text(content)
    with pytest.raises(SettingsError) as refused:
        filled(file, **variables)
    assert sentence.replace("@", str(file)) in refused.value.message
    assert "\n" not in refused.value.message
