"""Connection and options of a command."""

import asyncio
import contextlib
import getpass
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import click

from tightloop.cli import FAILED, INTERRUPTED, LOG, NEEDS_PERSON
from tightloop.client import CLOSED_STATUSES, Kind, RunStatus, TightloopClient
from tightloop.client.connection import traced
from tightloop.errors import ServiceUnavailableError
from tightloop.host import load_settings
from tightloop.settings import Settings

FLUSH_SECONDS = 1.0
"""How long a command that is done waits for a collector."""

T = TypeVar("T")


@dataclass(frozen=True)
class Session:
    """The global options, and what follows from them."""

    settings_file: Path | None = None
    address: str | None = None
    namespace: str | None = None

    @cached_property
    def settings(self) -> Settings:
        """The settings in force: files, environment, global options. Files are read once for a command.

        Raises:
            SettingsError: a setting is unknown or not allowed.
        """
        return load_settings(self.settings_file).at(self.address, self.namespace)

    def run(self, work: Callable[[TightloopClient], Awaitable[T]], *, compare_keys: bool = True) -> T:
        """Connect and do one thing; Ctrl-C ends it without a word.

        Args:
            work: what to do.
            compare_keys: refuse it where the workers encrypt with keys that are not here.

        Raises:
            TightloopError: as the client does.
        """
        settings = self.settings

        async def connected() -> T:
            with traced(settings, FLUSH_SECONDS) as tracing:
                interceptors = () if tracing is None else (tracing,)
                return await work(
                    await TightloopClient.connect(
                        settings=settings, interceptors=interceptors, compare_keys=compare_keys
                    )
                )

        try:
            return asyncio.run(connected())
        except KeyboardInterrupt:
            raise click.exceptions.Exit(INTERRUPTED) from None

    def on(self, reference: str, work: Callable[[TightloopClient, str], Awaitable[T]], kind: Kind | None = None) -> T:
        """Do one thing with the episode or plan that `reference` means."""

        async def resolved(client: TightloopClient) -> T:
            return await work(client, await client.resolve(reference, kind=kind))

        return self.run(resolved)


async def within(seconds: float, work: Awaitable[T]) -> T | None:
    """Return the result of a wait; None where it takes longer, or nobody answers."""
    with contextlib.suppress(TimeoutError, ServiceUnavailableError):
        async with asyncio.timeout(seconds):
            return await work
    return None


def session_of(context: click.Context) -> Session:
    """Return the session that the global options made; from here on warnings are shown."""
    context.meta.pop(LOG, lambda: None)()
    return Session(**(context.obj or {}))


def operator() -> str:
    """Return who is at the keyboard, for the audit trail."""
    try:
        # In a container the user id may have no name.
        return getpass.getuser()
    except (KeyError, OSError):
        return "operator"


def leave(last: RunStatus | None) -> None:
    """End with exit code 1 where an episode or a plan ended without success, with 3 where it waits for a person."""
    if last is None or last.word in ("succeeded", "completed", "verified"):
        return
    raise click.exceptions.Exit(FAILED if last.word in CLOSED_STATUSES else NEEDS_PERSON)
