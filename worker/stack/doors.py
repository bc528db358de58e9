"""Starts the processes through which people come in, beside the workers: the sign-in of the Web UI, the gateway."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from tightloop.client.sign_in.page_session import page_link
from tightloop.errors import ServiceUnavailableError
from tightloop.host import module_arguments
from tightloop.host.programs import own_environment, own_python
from tightloop.settings import Settings
from worker.stack.supervise import end, supervised

START_SECONDS = 60.0


async def launch_door(module: str, settings_file: Path | None, first_line: str = "") -> asyncio.subprocess.Process:
    """Start a door, and wait until it listens; it ends with this process.

    Args:
        module: what to run, such as `gateway.ui`.
        settings_file: in place of those in force.
        first_line: of its standard input. Not an argument, nor a variable: others could read those in the list of
            processes.

    Raises:
        ServiceUnavailableError: it does not start.
    """
    options = [] if settings_file is None else ["--settings", str(settings_file)]
    arguments = module_arguments(module)
    assert arguments is not None
    process = await asyncio.create_subprocess_exec(
        # Its standard input ends with this process, however that ends: the door watches it and ends too.
        *own_python().command(*arguments, "--embedded", *options),
        env=own_environment(),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    line = b""
    try:
        process.stdin.write(f"{first_line}\n".encode())
        with suppress(TimeoutError):
            line = await asyncio.wait_for(process.stdout.readline(), START_SECONDS)
    finally:
        if not line:
            await end(process)
    if not line:
        raise ServiceUnavailableError(f"{module} did not start; the line above says why")
    return process


@asynccontextmanager
async def gateway_up(settings: Settings, settings_file: Path | None) -> AsyncIterator[None]:
    """Run the page and the HTTP API while the block runs, unless they are off, or answer already.

    Raises:
        ServiceUnavailableError: they do not start.
    """
    if not settings.gateway.enabled or await _is_taken_by_another(settings):
        yield
        return
    async with supervised({"the gateway": lambda: launch_door("gateway", settings_file)}):
        yield


async def _is_taken_by_another(settings: Settings) -> bool:
    """Return whether a gateway of another `up` listens already."""
    host, _, port = settings.gateway.address(settings.temporal).rpartition(":")
    try:
        reader, writer = await asyncio.wait_for(asyncio.open_connection(host, int(port)), START_SECONDS)
    except OSError:
        return False
    try:
        writer.write(f"GET /live HTTP/1.0\r\nHost: {host}:{port}\r\n\r\n".encode())
        answer = await asyncio.wait_for(reader.read(4096), START_SECONDS)
    except (OSError, TimeoutError):
        return False
    finally:
        writer.close()
    return b'"live": true' in answer


def page_line(settings: Settings, *, private: bool) -> str:
    """Return the line that says where the page is.

    Args:
        settings: those in force.
        private: only the person who started this reads it. A log may be read by others, and a link signs in whoever
            has it.
    """
    page = settings.gateway.page(settings.temporal)
    if not private:
        return f"Page: {page}   (sign in: tightloop open)"
    return f"Page: {page_link(settings)}   (signs in once, within a minute; another link: tightloop open)"
