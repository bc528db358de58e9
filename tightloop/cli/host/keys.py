"""The commands about the keys of payloads. A key itself is never shown."""

import typer

from tightloop.cli.render.terminal import show, show_json
from tightloop.cli.session import AsJson, session_of
from tightloop.client.keys import key_file, new_ring, read_ring, write_ring
from tightloop.errors import SettingsError
from tightloop.settings import PrivacySettings

_KEEP = "Keep a copy of it in a safe place: without it the histories it encrypted cannot be read"


def new(context: typer.Context) -> None:
    privacy = _of_a_file(session_of(context).settings.privacy)
    path, ring = key_file(privacy), new_ring()
    write_ring(path, ring)
    show(f"made key {ring.current} in {path}. {_KEEP}")


def list_keys(context: typer.Context, as_json: AsJson = False) -> None:
    ring = read_ring(session_of(context).settings.privacy)
    if as_json:
        show_json([{"id": key_id, "current": key_id == ring.current} for key_id in ring.ids])
        return
    for key_id in ring.ids:
        show(f"{key_id}{'  current' if key_id == ring.current else ''}")


def rotate(context: typer.Context) -> None:
    privacy = _of_a_file(session_of(context).settings.privacy)
    path, ring = key_file(privacy), read_ring(privacy).rotated()
    write_ring(path, ring, replace=True)
    show(
        f"key {ring.current} is current now, {len(ring.keys) - 1} older kept in {path}. {_KEEP}. "
        "Copy the file to the other hosts, then restart the workers: until then they encrypt with the old key"
    )


def _of_a_file(privacy: PrivacySettings) -> PrivacySettings:
    if privacy.keys_env:
        raise SettingsError(
            f"the keys come from the variable {privacy.keys_env} (privacy.keys_env), which this command cannot change. "
            "Change them where it is set, or leave privacy.keys_env empty and use a key file"
        )
    return privacy
