"""Sessions of the page and of the Temporal Web UI."""

import contextlib
import hashlib
import hmac
import os
import secrets
import shlex
import time
from pathlib import Path
from urllib.parse import urlencode

from tightloop.errors import SettingsError
from tightloop.host import state_home
from tightloop.host.identity import read_private, write_private
from tightloop.host.profile import profile_values
from tightloop.settings import LOOPBACK_HOSTS, PEM, Settings

UI_LINK = "link"
"""Purpose of the tickets in sign-in links; their time is when they were made."""
UI_LINK_SECONDS = 3_600
PARAMETER = "token"
"""Of the query of a sign-in link."""
SHORTEST = 16
"""Characters; a shorter token could be guessed."""
_UI_FILE = "ui-token"
_MAC_CHARACTERS = 32
_LISTENS = "0A"
_HERE = {"0100007F", "00000000", "0" * 32, f"{'0' * 24}01000000", f"{'0' * 16}FFFF00000100007F"}
"""127.0.0.1, 0.0.0.0, ::, ::1 and ::ffff:127.0.0.1, as /proc/net/tcp shows them on a little-endian machine."""
_TLS_VARIABLES = {
    "tls_ca": "TLS_SERVER_CA_CERT_PATH",
    "tls_cert": "TLS_CLIENT_CERT_PATH",
    "tls_key": "TLS_CLIENT_KEY_PATH",
}


def token_file(home: Path | None = None) -> Path:
    """Return where the token is, or will be."""
    return (home or state_home()) / _UI_FILE


def ui_token(home: Path | None = None) -> str:
    """Return the token from its file, which is made if missing: who has it uses the UI and may have payloads decrypted.

    Raises:
        SettingsError: others could read the file, or the token is too short.
    """
    return token_in(token_file(home))


def token_in(path: Path) -> str:
    """Return the token in a file, which is made if missing.

    Raises:
        SettingsError: others could read the file, or the token is too short.
    """
    try:
        # Two processes may start at once: the first one's token counts.
        with contextlib.suppress(FileExistsError):
            write_private(path, secrets.token_urlsafe(32))
        text = read_private(path, "token file", "Delete it; a new one is made at the next start")
    except OSError as error:
        raise SettingsError(f"the token file {path} cannot be used: {error}") from None
    token = text.strip()
    if len(token) < SHORTEST or not token.isascii() or not token.isprintable() or " " in token:
        raise SettingsError(
            f"the token file {path} does not hold a token: at least {SHORTEST} ASCII characters without spaces. "
            "For example the output of: openssl rand -hex 32"
        )
    return token


def ticket(token: str, purpose: str, at_ms: int) -> str:
    """Return a text that only who has the token can make: for one purpose, with one time (ms since 1970) in it."""
    content = f"{at_ms:x}.{secrets.token_urlsafe(9)}"
    return f"{content}.{_mac(token, purpose, content)}"


def ticket_time(token: str, purpose: str, text: str) -> int | None:
    """Return the time in a ticket; None where it is none, or one for another purpose."""
    content, _, mac = text.rpartition(".")
    given, wanted = mac.encode("utf-8", "replace"), _mac(token, purpose, content).encode()
    return int(content.partition(".")[0], 16) if hmac.compare_digest(given, wanted) else None


def has_sign_in(settings: Settings) -> bool:
    """Tell whether the Web UI is that of the embedded server, which asks for a sign-in."""
    return settings.temporal.address.rpartition(":")[0] in LOOPBACK_HOSTS


def signed_in(settings: Settings, url: str) -> str:
    """Return a link to a page of the Web UI that signs one browser in, once and within `LINK_SECONDS`.

    A cluster's own UI has a login of its own: links to it stay as they are.

    Raises:
        SettingsError: the token cannot be used, or another user has the port.
    """
    if not has_sign_in(settings):
        return url
    check_listener(settings.temporal.ui_port)
    made = ticket(ui_token(), UI_LINK, time.time_ns() // 1_000_000)
    return f"{url}{'' if url.count('/') > 2 else '/'}?{urlencode({PARAMETER: made})}"


def check_listener(port: int) -> None:
    """Refuse to send a secret to a port of this machine at which another user listens, where that can be seen (Linux).

    Raises:
        SettingsError: another user has the port.
    """
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(table).read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            continue
        for fields in map(str.split, lines):
            (host, _, number), state, user = fields[1].partition(":"), fields[3], int(fields[7])
            if state == _LISTENS and host in _HERE and int(number, 16) == port and user not in (0, os.geteuid()):
                raise SettingsError(
                    f"another user of this machine (uid {user}) listens at port {port}, and would get your token. "
                    "Set temporal.ui_url, or codec.listen, to another port"
                )


def temporal_variables(settings: Settings) -> dict[str, str]:
    """Return the variables with which Temporal's own command line reads and sends what tightloop does, as shell words.

    Secrets are not among them, but where to find them; those of Temporal's own configuration it finds itself.

    Raises:
        SettingsError: another user has the port of the codec.
    """
    temporal, codec = settings.temporal, settings.codec
    words = {"ADDRESS": temporal.address, "NAMESPACE": temporal.namespace}
    if temporal.encrypted:
        files = {_TLS_VARIABLES[name]: file for name, file in temporal.tls_files.items() if not file.startswith(PEM)}
        words |= {"TLS": "true", **{name: str(Path(file).expanduser().absolute()) for name, file in files.items()}}
        words |= {"TLS_SERVER_NAME": temporal.tls_server_name} if temporal.tls_server_name else {}
    if codec.listen or has_sign_in(settings):
        # Not the name in `ui_url`: a browser may know it where this program does not.
        listen = codec.listen or f"127.0.0.1:{temporal.ui_port}"
        check_listener(int(listen.rpartition(":")[2]))
        words["CODEC_ENDPOINT"] = f"http://{listen}/codec"
    found = {f"TEMPORAL_{name}": shlex.quote(word) for name, word in words.items()}
    if "TEMPORAL_CODEC_ENDPOINT" in found:
        found["TEMPORAL_CODEC_AUTH"] = f'"Bearer $(cat {shlex.quote(str(token_file()))})"'
    key = temporal.api_key.get_secret_value()
    if key and key != profile_values(temporal.profile, os.environ).get("api_key"):
        found["TEMPORAL_API_KEY"] = '"$TIGHTLOOP_TEMPORAL__API_KEY"'
    return found


def _mac(token: str, purpose: str, content: str) -> str:
    text = f"tightloop {purpose}\0{content}".encode("utf-8", "replace")
    return hmac.new(token.encode(), text, hashlib.sha256).hexdigest()[:_MAC_CHARACTERS]


LINK = "page link"
"""Purpose of the tickets in sign-in links; their time is when they were made."""
LINK_SECONDS = 60
PATH = "/login"
_FILE = "page-key"


def page_key(home: Path | None = None) -> str:
    """Return the key of this host's links and sessions from its file, which is made if missing.

    It is not the token of the Temporal Web UI, which other people may be given to read payloads.

    Raises:
        SettingsError: others could read the file, or the key is too short.
    """
    return token_in((home or state_home()) / _FILE)


def page_link(settings: Settings, path: str = "/") -> str:
    """Return a link to the page that signs one browser in, once and within `LINK_SECONDS`.

    Raises:
        SettingsError: the key cannot be used, or another user has the port.
    """
    check_listener(int(settings.gateway.address(settings.temporal).rpartition(":")[2]))
    made = ticket(page_key(), LINK, time.time_ns() // 1_000_000)
    words = {PARAMETER: made} | ({"next": path} if path != "/" else {})
    return f"{settings.gateway.page(settings.temporal)}{PATH}?{urlencode(words)}"
