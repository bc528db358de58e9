"""Sign-in links for the page and the Temporal Web UI, and Temporal's environment variables."""

import os
import shlex
import time
from pathlib import Path
from urllib.parse import urlencode

from tightloop.host import state_home
from tightloop.host.access import check_listener, page_key, ticket, token_in
from tightloop.host.profile import profile_values
from tightloop.settings import LOOPBACK_HOSTS, PEM, Settings

UI_LINK = "link"
"""Ticket purpose for sign-in links. The ticket's time is the time when the link was created."""
UI_LINK_SECONDS = 3_600
PARAMETER = "token"
"""Query parameter used in sign-in links."""
_UI_FILE = "ui-token"
_TLS_VARIABLES = {
    "tls_ca": "TLS_SERVER_CA_CERT_PATH",
    "tls_cert": "TLS_CLIENT_CERT_PATH",
    "tls_key": "TLS_CLIENT_KEY_PATH",
}


def token_file(home: Path | None = None) -> Path:
    """Return the path of the token file. The file may not exist."""
    return (home or state_home()) / _UI_FILE


def ui_token(home: Path | None = None) -> str:
    """Return the token for the Temporal Web UI. Create the token file if it is missing.

    The token grants access to the UI and to decrypted payloads.

    Raises:
        SettingsError: others can read the file, or the token is too short.
    """
    return token_in(token_file(home))


def has_sign_in(settings: Settings) -> bool:
    """Return whether the Web UI belongs to the embedded server. Its users have to sign in."""
    return settings.temporal.address.rpartition(":")[0] in LOOPBACK_HOSTS


def signed_in(settings: Settings, url: str) -> str:
    """Return a single-use link that opens a Web UI page and signs the browser in.

    The link is valid for `UI_LINK_SECONDS`. A cluster's UI has its own login, so links to it are returned
    unchanged.

    Raises:
        SettingsError: the token cannot be used, or the port belongs to another user.
    """
    if not has_sign_in(settings):
        return url
    # Before the link exists: whoever listens on the port would get it with the first request.
    check_listener(settings.temporal.ui_port)
    token = ticket(ui_token(), UI_LINK, time.time_ns() // 1_000_000)
    return f"{url}{'' if url.count('/') > 2 else '/'}?{urlencode({PARAMETER: token})}"


def temporal_variables(settings: Settings) -> dict[str, str]:
    """Return environment variables that configure Temporal's command line to match the settings.

    The values are quoted for a shell. Secrets are referenced, not included. Temporal reads secrets from its own
    configuration.

    Raises:
        SettingsError: the codec's port belongs to another user.
    """
    temporal, codec = settings.temporal, settings.codec
    values = {"ADDRESS": temporal.address, "NAMESPACE": temporal.namespace}
    if temporal.encrypted:
        # Inline PEM text has no path; Temporal's tools read it from the profile it came from.
        files = {_TLS_VARIABLES[name]: file for name, file in temporal.tls_files.items() if not file.startswith(PEM)}
        values |= {"TLS": "true", **{name: str(Path(file).expanduser().absolute()) for name, file in files.items()}}
        values |= {"TLS_SERVER_NAME": temporal.tls_server_name} if temporal.tls_server_name else {}
    if codec.listen or has_sign_in(settings):
        # Not the host of `ui_url`: a browser may resolve names that this program cannot.
        listen = codec.listen or f"127.0.0.1:{temporal.ui_port}"
        check_listener(int(listen.rpartition(":")[2]))
        values["CODEC_ENDPOINT"] = f"http://{listen}/codec"
    variables = {f"TEMPORAL_{name}": shlex.quote(value) for name, value in values.items()}
    if "TEMPORAL_CODEC_ENDPOINT" in variables:
        # Expanded by the shell on use, so that the token itself is not printed.
        variables["TEMPORAL_CODEC_AUTH"] = f'"Bearer $(cat {shlex.quote(str(token_file()))})"'
    key = temporal.api_key.get_secret_value()
    if key and key != profile_values(temporal.profile, os.environ).get("api_key"):
        variables["TEMPORAL_API_KEY"] = '"$TIGHTLOOP_TEMPORAL__API_KEY"'
    return variables


LINK = "page link"
"""Ticket purpose for sign-in links. The ticket's time is the time when the link was created."""
LINK_SECONDS = 60
PATH = "/login"


def page_link(settings: Settings, path: str = "/") -> str:
    """Return a single-use link that opens a page and signs the browser in.

    The link is valid for `LINK_SECONDS`.

    Raises:
        SettingsError: the key cannot be used, or the port belongs to another user.
    """
    check_listener(int(settings.gateway.address(settings.temporal).rpartition(":")[2]))
    token = ticket(page_key(), LINK, time.time_ns() // 1_000_000)
    query = {PARAMETER: token} | ({"next": path} if path != "/" else {})
    return f"{settings.gateway.page(settings.temporal)}{PATH}?{urlencode(query)}"
