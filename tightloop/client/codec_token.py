"""The token of the codec server: who has it may have payloads decrypted."""

import contextlib
import os
import secrets
from pathlib import Path

from tightloop.client.private_file import read_private, write_private
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
        # Two processes may start at once: the first one's token counts.
        with contextlib.suppress(FileExistsError):
            write_private(path, secrets.token_urlsafe(32))
        text = read_private(path, "token file", "Delete it; a new one is made at the next start")
    except OSError as error:
        raise SettingsError(f"the token file {path} cannot be used: {error}") from None
    return _checked(text, f"the token file {path}")


def _checked(text: str, where: str) -> str:
    token = text.strip()
    if len(token) < SHORTEST or not token.isascii() or not token.isprintable() or " " in token:
        raise SettingsError(
            f"{where} does not hold a token: at least {SHORTEST} ASCII characters without spaces. "
            "For example the output of: openssl rand -hex 32"
        )
    return token
