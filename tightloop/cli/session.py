"""A command's global options and connection."""

import asyncio
import contextlib
import getpass
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import click

from tightloop.cli import INTERRUPTED, LOG
from tightloop.client import CLOSED_STATUSES, Kind, RunStatus, TightloopClient
from tightloop.client.connection import trace_calls
from tightloop.errors import ServiceUnavailableError
from tightloop.host import load_settings
from tightloop.run.outcome import PLAIN, exit_code
from tightloop.settings import Settings

FLUSH_SECONDS = 1.0
"""Maximum time in seconds to wait for a collector after a command has finished."""

T = TypeVar("T")


@dataclass(frozen=True)
class Session:
    """The global options, with the settings and the connection that they define."""

    settings_file: Path | None = None
    address: str | None = None
    namespace: str | None = None

    @cached_property
    def settings(self) -> Settings:
        """The effective settings from files, the environment and global options.

        The files are read once per command.

        Raises:
            SettingsError: a setting is unknown or invalid.
        """
        return load_settings(self.settings_file).at(self.address, self.namespace)

    def run(self, work: Callable[[TightloopClient], Awaitable[T]], *, compare_keys: bool = True) -> T:
        """Connect and run a coroutine. Ctrl-C exits silently.

        Args:
            work: function that takes the client and returns the coroutine.
            compare_keys: fail if the workers encrypt with keys that this host does not have.

        Raises:
            TightloopError: any error raised by the client.
        """
        settings = self.settings

        async def connect_and_run() -> T:
            # Exports pending spans here, because `main` leaves with `os._exit`, which skips exit hooks.
            with trace_calls(settings, FLUSH_SECONDS) as tracing:
                interceptors = () if tracing is None else (tracing,)
                return await work(
                    await TightloopClient.connect(
                        settings=settings, interceptors=interceptors, compare_keys=compare_keys
                    )
                )

        try:
            return asyncio.run(connect_and_run())
        except KeyboardInterrupt:
            raise click.exceptions.Exit(INTERRUPTED) from None

    def on(self, reference: str, work: Callable[[TightloopClient, str], Awaitable[T]], kind: Kind | None = None) -> T:
        """Resolve a reference to an id, and run a coroutine with the id."""

        async def resolve_and_run(client: TightloopClient) -> T:
            return await work(client, await client.resolve(reference, kind=kind))

        return self.run(resolve_and_run)


async def wait_at_most(seconds: float, work: Awaitable[T]) -> T | None:
    """Wait for a result for a limited time. Return None on a timeout or if no service responds."""
    with contextlib.suppress(TimeoutError, ServiceUnavailableError):
        async with asyncio.timeout(seconds):
            return await work
    return None


def session_of(context: click.Context) -> Session:
    """Set up logging and return the session for the global options."""
    # Removed when called, so that logging is set up once per command.
    context.meta.pop(LOG, lambda: None)()
    return Session(**(context.obj or {}))


def operator() -> str:
    """Return the name of the current user, as recorded in the timeline."""
    try:
        # In a container the user id may have no name.
        return getpass.getuser()
    except (KeyError, OSError):
        return "operator"


def exit_with_status(last: RunStatus | None) -> None:
    """Exit with the code for a run's outcome, as defined in `tightloop/run/outcome.py`.

    Return normally if the exit code is 0.
    """
    if last is None:
        return
    code = exit_code(last.list_status, last.qualifier, is_closed=last.list_status in CLOSED_STATUSES)
    if code != PLAIN:
        raise click.exceptions.Exit(code)
