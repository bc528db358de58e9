"""Private files, and the tokens, tickets and sessions derived from them.

This module only uses the standard library, so that a command can query the gateway without loading the Temporal client.
"""

import contextlib
import hashlib
import hmac
import json
import os
import secrets
import stat
from collections.abc import Mapping
from pathlib import Path

from tightloop.errors import SettingsError
from tightloop.host import private_folder, state_home

SHORTEST = 16
"""Minimum token length in characters. Shorter tokens could be guessed."""
_MAC_CHARACTERS = 32
_LISTENS = "0A"
_HERE = {"0100007F", "00000000", "0" * 32, f"{'0' * 24}01000000", f"{'0' * 16}FFFF00000100007F"}
"""127.0.0.1, 0.0.0.0, ::, ::1 and ::ffff:127.0.0.1 as in /proc/net/tcp on a little-endian machine."""
_PAGE_FILE, _NOTE = "page-key", "gateway.json"


def read_private(path: Path, what: str, fix: str) -> str:
    """Read a private file and return its text.

    Args:
        path: path of the file.
        what: description of the file for messages.
        fix: advice to show if others can read the file.

    Raises:
        FileNotFoundError: the file is missing.
        SettingsError: the file cannot be read, belongs to another user, or is readable by others.
    """
    try:
        # Check the open file instead of its name, which could refer to another file a moment later.
        with path.open(encoding="utf-8") as file:
            status, text = os.fstat(file.fileno()), file.read()
    except FileNotFoundError:
        raise
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"the {what} {path} cannot be read: {error}") from None
    # Root may act for the owner, as in a container.
    if status.st_uid != os.geteuid() and os.geteuid() != 0:
        raise SettingsError(f"the {what} {path} belongs to another user. Use a file that you own")
    mode = stat.S_IMODE(status.st_mode)
    if mode & 0o077:
        raise SettingsError(f"other users can read the {what} {path} (mode {mode:04o}). {fix}")
    return text


def write_private(path: Path, content: str | bytes, *, replace: bool = False) -> None:
    """Write a file atomically. Only this user can read the file. Text is encoded as UTF-8.

    Raises:
        FileExistsError: the file exists and `replace` is not set.
        OSError: the file cannot be written.
    """
    private_folder(path.parent)
    # In the same folder, because a rename is atomic only within one file system.
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    try:
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            # Before the rename: a power loss must not leave an empty file under the final name.
            os.fsync(file.fileno())
        if replace:
            temporary.replace(path)
        else:
            # A hard link does not overwrite: if two processes create the first file at once, one of them wins.
            path.hardlink_to(temporary)
    finally:
        temporary.unlink(missing_ok=True)


def write_over(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write files into a checkout. Files and folders that are in the way are removed.

    No programs may be running in the checkout.
    """
    for path, content in files.items():
        *parents, name = path.split("/")
        target = folder
        for parent in parents:
            target /= parent
            # A delivered link could lead out of the checkout.
            if target.is_symlink() or target.is_file():
                target.unlink()
            target.mkdir(exist_ok=True)
        target /= name
        if target.is_dir() and not target.is_symlink():
            # Imported here, because every client imports this module, and few ever replace a folder.
            from shutil import rmtree

            rmtree(target)
        target.unlink(missing_ok=True)
        target.write_bytes(content)


def token_in(path: Path) -> str:
    """Return the token stored in a file. The file is created if it is missing.

    Raises:
        SettingsError: others can read the file, or the token is too short.
    """
    try:
        # Two processes may start at once; the first one's token wins.
        with contextlib.suppress(FileExistsError):
            write_private(path, secrets.token_urlsafe(32))
        text = read_private(path, "token file", "Delete the file. A new one will be created on the next start")
    except OSError as error:
        raise SettingsError(f"the token file {path} cannot be used: {error}") from None
    token = text.strip()
    if len(token) < SHORTEST or not token.isascii() or not token.isprintable() or " " in token:
        raise SettingsError(
            f"the token file {path} does not contain a valid token. Use at least {SHORTEST} ASCII characters "
            "without spaces, for example the output of: openssl rand -hex 32"
        )
    return token


def ticket(token: str, purpose: str, at_ms: int) -> str:
    """Create a ticket for a purpose and a time in ms since 1970.

    Only a holder of the token can create a valid ticket.
    """
    content = f"{at_ms:x}.{secrets.token_urlsafe(9)}"
    return f"{content}.{_mac(token, purpose, content)}"


def ticket_time(token: str, purpose: str, text: str) -> int | None:
    """Return the time of a ticket, or None if the ticket is not valid for this purpose."""
    content, _, mac = text.rpartition(".")
    # Encoded, because `compare_digest` raises for text that is not ASCII, and a ticket comes from outside.
    actual, expected = mac.encode("utf-8", "replace"), _mac(token, purpose, content).encode()
    return int(content.partition(".")[0], 16) if hmac.compare_digest(actual, expected) else None


def _mac(token: str, purpose: str, content: str) -> str:
    text = f"tightloop {purpose}\0{content}".encode("utf-8", "replace")
    return hmac.new(token.encode(), text, hashlib.sha256).hexdigest()[:_MAC_CHARACTERS]


def page_key(home: Path | None = None) -> str:
    """Return the key for this host's links and sessions. The key file is created if it is missing.

    The key differs from the token of the Temporal Web UI, because that token may be shared with people
    who read payloads.

    Raises:
        SettingsError: others can read the file, or the key is too short.
    """
    return token_in((home or state_home()) / _PAGE_FILE)


def session_purpose(host: str, subject: str) -> str:
    """Return the ticket purpose that binds a session to a host name and a user."""
    return f"session {host.lower()} {subject}"


def cookie_name(host: str) -> str:
    """Return the name of the session cookie.

    The name contains the port, because all ports of a host share their cookies.
    """
    return f"tightloop_{host.rpartition(':')[2] if ':' in host else 'ui'}"


def session_of(secret: str, host: str, subject: str, expires_ms: int) -> str:
    """Return the value of the session cookie. The value contains no secret.

    Args:
        secret: signing key, such as `page_key`.
        host: Host header of the requests.
        subject: name of the signed-in user. It must not contain a dot.
        expires_ms: expiry in ms since 1970.
    """
    return f"{subject}.{ticket(secret, session_purpose(host, subject), expires_ms)}"


def check_listener(port: int) -> None:
    """Check that no other user is listening on a local port before a secret is sent.

    The check is performed only on Linux.

    Raises:
        SettingsError: the port belongs to another user.
    """
    # Both tables, because a socket bound to :: also accepts IPv4 connections.
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(table).read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            continue
        for fields in map(str.split, lines):
            (host, _, number), state, user = fields[1].partition(":"), fields[3], int(fields[7])
            if state == _LISTENS and host in _HERE and int(number, 16) == port and user not in (0, os.geteuid()):
                raise SettingsError(
                    f"another user of this machine (uid {user}) is listening on port {port} and would receive "
                    "your token. Choose another port in temporal.ui_url or codec.listen"
                )


def note_gateway(address: str, host: str, settings_digest: str) -> None:
    """Record the address, host name and settings digest of this host's gateway."""
    content = json.dumps({"address": address, "host": host, "settings": settings_digest})
    write_private(state_home() / _NOTE, content, replace=True)


def read_note() -> dict[str, str] | None:
    """Return the gateway's record, or None if the record is missing or cannot be trusted.

    The gateway may have stopped since it wrote the record.
    """
    try:
        note = json.loads(read_private(state_home() / _NOTE, "note", "Delete it"))
    except (OSError, ValueError, SettingsError):
        return None
    return note if isinstance(note, dict) else None
