"""Payload keys: a key ring in a private file or an environment variable."""

import base64
import binascii
import contextlib
import json
import os
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from tightloop.errors import SettingsError
from tightloop.host import state_home
from tightloop.host.access import read_private, write_private

if TYPE_CHECKING:
    from tightloop.settings import PrivacySettings, Settings

KEY_FILE = "keys.json"
KEY_BYTES = 32
_KEY_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_MAKE_ONE = "Create one: tightloop keys new"


@dataclass(frozen=True)
class KeyRing:
    """Keys by id. The `current` key seals payloads. The other keys only open older payloads."""

    current: str
    # Not in the repr, which ends up in logs and tracebacks.
    keys: Mapping[str, bytes] = field(repr=False)
    """Keys with 256 bits each."""

    @property
    def ids(self) -> tuple[str, ...]:
        """Key ids, starting with the current one.

        The other ids follow, newest first if they start with a date.
        """
        return (self.current, *sorted((key for key in self.keys if key != self.current), reverse=True))

    def with_new_key(self) -> "KeyRing":
        """Return a copy of the ring with a new current key. The old keys are kept."""
        generated = new_ring()
        return KeyRing(generated.current, {**self.keys, **generated.keys})

    def as_json(self) -> str:
        """Return the ring as the JSON content of a key file, including the secret keys."""
        keys = {key_id: base64.b64encode(self.keys[key_id]).decode() for key_id in self.ids}
        return json.dumps({"current": self.current, "keys": keys}, indent=1) + "\n"


def new_ring() -> KeyRing:
    """Return a ring with one random key. The key's id starts with today's date."""
    key_id = f"{datetime.now(UTC):%Y%m%d}-{secrets.token_hex(3)}"
    return KeyRing(key_id, {key_id: secrets.token_bytes(KEY_BYTES)})


def key_file(privacy: "PrivacySettings", home: Path | None = None) -> Path:
    """Return the path of the key file. The file may not exist."""
    path = Path(privacy.keys_file).expanduser() if privacy.keys_file else Path(KEY_FILE)
    return path if path.is_absolute() else (home or state_home()) / path


def ring_of(settings: "Settings", home: Path | None = None) -> KeyRing:
    """Read the keys.

    On the server's host, missing keys are created unless `privacy.encrypt` is on.

    Raises:
        SettingsError: the keys cannot be read, or are missing and must be copied or created.
    """
    privacy, path = settings.privacy, key_file(settings.privacy, home)
    # With `privacy.encrypt` a missing file is an error: a fresh key could not open what the lost one sealed.
    if privacy.encrypt or privacy.keys_env or path.exists():
        return read_ring(privacy, home)
    if not settings.temporal.loopback:
        raise SettingsError(
            f"the key file {path} is missing. The workers and clients of {settings.temporal.address} must share one "
            "key file. Copy the file from a host that has one, or create the first one: tightloop keys new. If the "
            "cluster authenticates its users, set temporal.authenticate: false"
        )
    # Two processes may start at once; the first one's keys win.
    with contextlib.suppress(FileExistsError):
        _write(path, new_ring(), replace=False)
    return read_ring(privacy, home)


def present_ring(settings: "Settings", home: Path | None = None) -> KeyRing:
    """Return the existing keys without creating new ones.

    The ring is empty if the keys will be created on first use.

    Raises:
        SettingsError: see `ring_of`.
    """
    privacy = settings.privacy
    has_keys = privacy.encrypt or privacy.keys_env or key_file(privacy, home).exists()
    return ring_of(settings, home) if has_keys or not settings.temporal.loopback else KeyRing("", {})


def read_ring(privacy: "PrivacySettings", home: Path | None = None) -> KeyRing:
    """Read the keys from the configured environment variable, or from the key file by default.

    Raises:
        SettingsError: the keys are missing, readable by others, or invalid.
    """
    if privacy.keys_env:
        text = os.environ.get(privacy.keys_env, "")
        if not text:
            raise SettingsError(
                f"{_format_reason(privacy)}the variable {privacy.keys_env} named by privacy.keys_env is empty. Set the "
                f"variable to the contents of a key file. {_MAKE_ONE}"
            )
        return _parse_ring(text, f"the variable {privacy.keys_env}")
    path = key_file(privacy, home)
    try:
        text = read_private(path, "key file", f"Restrict access to the file: chmod 600 {path}")
    except FileNotFoundError:
        raise SettingsError(f"{_format_reason(privacy)}the key file {path} is missing. {_MAKE_ONE}") from None
    return _parse_ring(text, f"the key file {path}")


def _format_reason(privacy: "PrivacySettings") -> str:
    return "privacy.encrypt is on, but " if privacy.encrypt else ""


def write_ring(path: Path, ring: KeyRing, *, replace: bool = False) -> None:
    """Write the key file atomically. Only this user can read it.

    Raises:
        SettingsError: the file cannot be written, or it exists and `replace` is not set.
    """
    try:
        _write(path, ring, replace=replace)
    except FileExistsError:
        raise SettingsError(
            f"the key file {path} already exists. Without its keys, encrypted data cannot be read. To add a new key to "
            "the file, run: tightloop keys rotate"
        ) from None


def _write(path: Path, ring: KeyRing, *, replace: bool) -> None:
    try:
        write_private(path, ring.as_json(), replace=replace)
    # Before OSError, its base class: both callers handle an existing file themselves.
    except FileExistsError:
        raise
    except OSError as error:
        raise SettingsError(f"the key file {path} cannot be written: {error.strerror or error}") from None


def _parse_ring(text: str, where: str) -> KeyRing:
    try:
        document = json.loads(text)
        current, encoded_keys = document["current"], document["keys"]
        if not isinstance(current, str):
            raise TypeError(current)
        # Without `validate`, other characters are dropped, and a typing error gives another key.
        keys = {str(key_id): base64.b64decode(value, validate=True) for key_id, value in encoded_keys.items()}
    except (ValueError, KeyError, TypeError, AttributeError, binascii.Error):
        # Do not show the text, which contains keys.
        raise SettingsError(
            f'{where} does not contain valid keys: expected {{"current": ID, "keys": {{ID: BASE64}}}}. {_MAKE_ONE}'
        ) from None
    for key_id, key in keys.items():
        if not _KEY_ID.fullmatch(key_id) or len(key) != KEY_BYTES:
            raise SettingsError(
                f"{where}: key {key_id[:64]!r} is {len(key)} bytes, but AES-256 requires {KEY_BYTES}. A key id may "
                "contain only letters, digits, dots, dashes and underscores"
            )
    if current not in keys:
        raise SettingsError(f"{where}: the current key {current[:64]!r} is missing from `keys`")
    return KeyRing(current, keys)
