"""`up --encrypt`: makes keys, changes the settings and runs the codec server."""

import asyncio
import logging
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from tightloop.client.codec_token import token_file
from tightloop.client.keys import key_file, new_ring, read_ring, write_ring
from tightloop.errors import ServiceUnavailableError, SettingsError
from tightloop.host import load_settings, user_file
from tightloop.settings import Settings
from tightloop.settings.layers import sections_of
from worker.server import answers
from worker.supervise import end, supervised

logger = logging.getLogger("tightloop")

START_SECONDS = 30.0
_LINES = "privacy:\n  encrypt: true\n"


def turn_on(settings: Settings, settings_file: Path | None) -> Settings:
    """Turn encryption on for every worker and client with these settings, and make a first key if there is none.

    It is written into the settings file, so that the commands in other terminals encrypt, too.

    Args:
        settings: those in force.
        settings_file: the file they were read from; None: the user's own.

    Raises:
        SettingsError: the file cannot be changed, or something else says that encryption is off.
    """
    if not settings.privacy.encrypt:
        path = settings_file or user_file()
        _write_into(path)
        settings = load_settings(settings_file)
        if not settings.privacy.encrypt:
            raise SettingsError(
                f"{path} turns payload encryption on, but something that comes later turns it off. "
                "Look for TIGHTLOOP_PRIVACY__ENCRYPT in the environment"
            )
        print(f"Payload encryption is on from now on, for workers and clients: privacy.encrypt in {path}")
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
            f"payload encryption cannot be turned on in {path}: {error.strerror or error}. "
            "Set TIGHTLOOP_PRIVACY__ENCRYPT=true for workers and clients"
        ) from error


@asynccontextmanager
async def codec_server(settings: Settings, settings_file: Path | None = None) -> AsyncIterator[None]:
    """Run the codec server in a process of its own, where encryption is on; it ends with this one, however that ends.

    Raises:
        ServiceUnavailableError: it does not start.
    """
    if not settings.privacy.encrypt:
        yield
        return
    if await _taken(settings) and await answers(settings):
        logger.info("something listens at %s: taken to be the codec server of another `up`", settings.codec.listen)
        yield
        return
    async with supervised("the codec server", lambda: _launch(settings_file)):
        yield


async def _taken(settings: Settings) -> bool:
    host, _, port = settings.codec.listen.rpartition(":")
    try:
        _, writer = await asyncio.wait_for(asyncio.open_connection(host, int(port)), 5)
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True


async def _launch(settings_file: Path | None) -> asyncio.subprocess.Process:
    options = [] if settings_file is None else ["--settings", str(settings_file)]
    process = await asyncio.create_subprocess_exec(
        # Its standard input ends with this process, however that ends: the codec server watches it and ends too.
        # -P: a folder `gateway` in the current directory must not be taken for ours.
        *(sys.executable, "-P", "-m", "gateway.codec", "--with-stdin", *options),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdout is not None
    line = b""
    try:
        with suppress(TimeoutError):
            line = await asyncio.wait_for(process.stdout.readline(), START_SECONDS)
    finally:
        if not line:
            await end(process)
    if not line:
        raise ServiceUnavailableError("the codec server did not start; the line above says why")
    return process


def usage(settings: Settings) -> str:
    """Return how a person reads encrypted payloads, as lines to print; empty where encryption is off."""
    if not settings.privacy.encrypt:
        return ""
    codec = settings.codec
    lines = [f"Payloads are encrypted with key {read_ring(settings.privacy).current}.  Codec server: {codec.endpoint}"]
    flags, variables = f"--codec-endpoint {codec.endpoint}", f"TEMPORAL_CODEC_ENDPOINT={codec.endpoint}"
    if codec.require_token:
        token = f"${codec.token_env}" if codec.token_env else f"$(cat {token_file()})"
        variables += f' TEMPORAL_CODEC_AUTH="Bearer {token}"'
        lines.append(
            f"  Temporal Web UI: open {codec.endpoint}/ once in the browser and sign in; the page says the rest"
        )
    lines.append(f"  Temporal CLI:    export {variables}   (or {flags} ...)")
    return "\n".join(lines)
