"""The token of the codec server: who has it may have payloads decrypted."""

import os
import secrets
import stat
from pathlib import Path

from tightloop.errors import SettingsError
from tightloop.host import state_home
from tightloop.settings import CodecSettings

_FILE = "codec-token"
SHORTEST = 16
"""Characters; a shorter one could be guessed."""


def token_file(home: Path | None = None) -> Path:
    """Return where the token is, or would be, when no variable holds it."""
    return (home or state_home()) / _FILE


def codec_token(codec: CodecSettings, home: Path | None = None) -> str | None:
    """Return the token, from the variable that the settings name, else from its file, which is made if missing.

    Returns:
        None where the settings ask for none.

    Raises:
        SettingsError: the variable is empty, others could read the file, or the token is too short.
    """
    if not codec.require_token:
        return None
    if codec.token_env:
        return _checked(
            os.environ.get(codec.token_env, ""), f"the variable {codec.token_env} that codec.token_env names"
        )
    path = token_file(home)
    try:
        _make(path)
        with path.open(encoding="ascii") as file:
            found = os.fstat(file.fileno())
            text = file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"the token file {path} cannot be used: {error}") from None
    if stat.S_IMODE(found.st_mode) & 0o077:
        raise SettingsError(
            f"the token file {path} can be read by others. Delete it; a new one is made at the next start"
        )
    return _checked(text, f"the token file {path}")


def _make(path: Path) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fresh = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    try:
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
            file.write(secrets.token_urlsafe(32))
        # A link does not overwrite, and nobody ever sees half a token.
        path.hardlink_to(fresh)
    except FileExistsError:
        return
    finally:
        fresh.unlink(missing_ok=True)


def _checked(text: str, where: str) -> str:
    token = text.strip()
    if len(token) < SHORTEST or not token.isascii() or not token.isprintable() or " " in token:
        raise SettingsError(
            f"{where} does not hold a token: at least {SHORTEST} ASCII characters without spaces. "
            "For example the output of: openssl rand -hex 32"
        )
    return token
