"""`up --encrypt`: makes keys and changes the settings."""

from pathlib import Path
from typing import Any

import yaml

from tightloop.client.keys import key_file, new_ring, write_ring
from tightloop.errors import SettingsError
from tightloop.host import load_settings, user_file
from tightloop.settings import Settings
from tightloop.value.yaml_reading import load_yaml

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
        before = path.read_text(encoding="utf-8") if path.exists() else ""
        text = _with_encrypt(before)
        # A document in braces, one that ends with `...`, one that says `encrypt: false` takes no line.
        if _document(text) != _turned_on(_document(before)):
            raise SettingsError(f"{path} cannot be extended. Set privacy.encrypt to true in it")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise SettingsError(
            f"privacy.encrypt cannot be turned on in {path}: {error.strerror or error}. "
            "Set TIGHTLOOP_PRIVACY__ENCRYPT=true for workers and clients"
        ) from error


def _with_encrypt(text: str) -> str:
    lines = text.splitlines()
    head = next((number for number, line in enumerate(lines) if line.startswith("privacy:")), None)
    if head is None:
        return f"{text.rstrip()}\n\n{_LINES}" if text.strip() else _LINES
    if "{" in lines[head]:
        lines[head] = lines[head].replace("{", "{encrypt: true, ", 1)
    else:
        first = next((line for line in lines[head + 1 :] if line.strip() and not line.lstrip().startswith("#")), "")
        indent = first[: len(first) - len(first.lstrip())] or "  "
        lines.insert(head + 1, f"{indent}encrypt: true")
    return "\n".join(lines) + "\n"


def _document(text: str) -> Any:
    try:
        return load_yaml(text) or {}
    except yaml.YAMLError:
        return None


def _turned_on(document: Any) -> Any:
    return {**document, "privacy": {**(document.get("privacy") or {}), "encrypt": True}}
