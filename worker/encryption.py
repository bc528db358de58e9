"""`up --encrypt`: makes keys and changes the settings."""

from pathlib import Path

from tightloop.client.keys import key_file, new_ring, write_ring
from tightloop.errors import SettingsError
from tightloop.host import load_settings, user_file
from tightloop.settings import Settings
from tightloop.settings.layers import sections_of

_LINES = "privacy:\n  encrypt: true\n"


def turn_on(settings: Settings, settings_file: Path | None) -> Settings:
    """Turn `privacy.encrypt` on for every worker and client with these settings, and make the first key if needed.

    It is written into the settings file, for the commands in other terminals.

    Args:
        settings: those in force.
        settings_file: the file they were read from; None: the user's own.

    Raises:
        SettingsError: the file cannot be changed, or something else turns it off.
    """
    if not settings.privacy.encrypt:
        path = settings_file or user_file()
        _write_into(path)
        settings = load_settings(settings_file)
        if not settings.privacy.encrypt:
            raise SettingsError(
                f"{path} turns privacy.encrypt on, but something that comes later turns it off. "
                "Look for TIGHTLOOP_PRIVACY__ENCRYPT in the environment"
            )
        print(f"Content is kept out of logs from now on: privacy.encrypt in {path}")
    path = key_file(settings.privacy)
    if not settings.privacy.keys_env and not path.exists():
        ring = new_ring()
        write_ring(path, ring)
        print(f"Made key {ring.current} in {path}. Keep a copy: without it the histories it encrypted cannot be read")
    return settings


def _write_into(path: Path) -> None:
    try:
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        if "privacy" in sections_of(str(path), text):
            raise SettingsError(f"{path} has a section 'privacy' already. Add the line `encrypt: true` to it")
        text = f"{text.rstrip()}\n\n{_LINES}" if text.strip() else _LINES
        # A document in braces, or one that ends with `...`, takes no more lines.
        if "privacy" not in sections_of(str(path), text):
            raise SettingsError(f"{path} cannot be extended. Add privacy.encrypt: true to it")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise SettingsError(
            f"privacy.encrypt cannot be turned on in {path}: {error.strerror or error}. "
            "Set TIGHTLOOP_PRIVACY__ENCRYPT=true for workers and clients"
        ) from error
