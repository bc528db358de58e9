"""Files that only their owner may read, and the secrets, tickets and sessions that come from them.

It loads the standard library alone, so that a command can ask the gateway without what it takes to ask Temporal.
"""

import contextlib
import hashlib
import hmac
import json
import os
import secrets
import stat
from pathlib import Path

from tightloop.errors import SettingsError
from tightloop.host import private_folder, state_home

SHORTEST = 16
"""Characters; a shorter token could be guessed."""
_MAC_CHARACTERS = 32
_LISTENS = "0A"
_HERE = {"0100007F", "00000000", "0" * 32, f"{'0' * 24}01000000", f"{'0' * 16}FFFF00000100007F"}
"""127.0.0.1, 0.0.0.0, ::, ::1 and ::ffff:127.0.0.1, as /proc/net/tcp shows them on a little-endian machine."""
_PAGE_FILE, _NOTE = "page-key", "gateway.json"


def read_private(path: Path, what: str, fix: str) -> str:
    """Return the text of a private file.

    Args:
        path: the file.
        what: it is, for messages.
        fix: what to do where others can read it.

    Raises:
        FileNotFoundError: the file is missing.
        SettingsError: it cannot be read, is another user's, or others can read it.
    """
    try:
        # The open file is examined, not its name: that could mean another one a moment later.
        with path.open(encoding="utf-8") as file:
            found, text = os.fstat(file.fileno()), file.read()
    except FileNotFoundError:
        raise
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"the {what} {path} cannot be read: {error}") from None
    if found.st_uid != os.geteuid() and os.geteuid() != 0:
        raise SettingsError(f"the {what} {path} belongs to another user. Use one of your own")
    mode = stat.S_IMODE(found.st_mode)
    if mode & 0o077:
        raise SettingsError(f"the {what} {path} can be read by others (mode {mode:04o}). {fix}")
    return text


def write_private(path: Path, text: str, *, replace: bool = False) -> None:
    """Write a file so that only this user can read it; all of it or nothing.

    Raises:
        FileExistsError: there is one already and `replace` is not set.
        OSError: it cannot be written.
    """
    private_folder(path.parent)
    fresh = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    try:
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        if replace:
            fresh.replace(path)
        else:
            # A link does not overwrite: two processes that make the first one at once end with one.
            path.hardlink_to(fresh)
    finally:
        fresh.unlink(missing_ok=True)


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


def _mac(token: str, purpose: str, content: str) -> str:
    text = f"tightloop {purpose}\0{content}".encode("utf-8", "replace")
    return hmac.new(token.encode(), text, hashlib.sha256).hexdigest()[:_MAC_CHARACTERS]


def page_key(home: Path | None = None) -> str:
    """Return the key of this host's links and sessions from its file, which is made if missing.

    It is not the token of the Temporal Web UI, which other people may be given to read payloads.

    Raises:
        SettingsError: others could read the file, or the key is too short.
    """
    return token_in((home or state_home()) / _PAGE_FILE)


def session_purpose(host: str, subject: str) -> str:
    """Return the purpose of the ticket of a session: it is of no use under another host name."""
    return f"session {host.lower()} {subject}"


def cookie_name(host: str) -> str:
    """Return the name of a session's cookie: two servers of one person must not overwrite each other's."""
    return f"tightloop_{host.rpartition(':')[2] if ':' in host else 'ui'}"


def session_of(secret: str, host: str, subject: str, expires_ms: int) -> str:
    """Return the value of a session's cookie: no secret itself.

    Args:
        secret: of the door, such as `page_key`.
        host: the Host header of the requests.
        subject: who signed in, without a dot.
        expires_ms: when it ends, in ms since 1970.
    """
    return f"{subject}.{ticket(secret, session_purpose(host, subject), expires_ms)}"


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


def note_gateway(address: str, host: str, mark: str) -> None:
    """Note where the gateway of this host listens, under which name, and with which settings."""
    content = json.dumps({"address": address, "host": host, "settings": mark})
    write_private(state_home() / _NOTE, content, replace=True)


def read_note() -> dict[str, str] | None:
    """Return the gateway's note; None if there is none, or it cannot be trusted. The gateway may have ended since."""
    try:
        found = json.loads(read_private(state_home() / _NOTE, "note", "Delete it"))
    except (OSError, ValueError, SettingsError):
        return None
    return found if isinstance(found, dict) else None
