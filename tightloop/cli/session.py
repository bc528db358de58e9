"""What the commands share: settings, the connection, and the words of the person who types."""

import asyncio
import contextlib
import getpass
import logging
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import typer
from pydantic import ValidationError
from temporalio.client import Interceptor

from tightloop.client import EpisodeSummary, TightloopClient
from tightloop.client.plans import Plans
from tightloop.client.starting import LAST
from tightloop.episode import EpisodeStatus
from tightloop.errors import EpisodeNotFoundError, InvalidRequestError, ServiceUnavailableError, SettingsError
from tightloop.host import load_settings
from tightloop.settings import Settings

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it (128 + SIGINT)."""
COMPLETION_SECONDS = 2.0
FLUSH_SECONDS = 1.0
"""How long a command that is done waits for a collector."""

T = TypeVar("T")


@dataclass(frozen=True)
class Session:
    """The global options, and what follows from them."""

    settings_file: Path | None = None
    address: str | None = None
    namespace: str | None = None

    @property
    def settings(self) -> Settings:
        """The settings in force: files, environment, global options.

        Raises:
            SettingsError: a setting is unknown or not allowed.
        """
        settings = load_settings(self.settings_file)
        given = {"address": self.address, "namespace": self.namespace}
        changes = {name: value for name, value in given.items() if value is not None}
        try:
            temporal = type(settings.temporal).model_validate(dict(settings.temporal) | changes)
        except ValidationError as error:
            name = error.errors()[0]["loc"][0]
            raise SettingsError(f"--{name} is {changes.get(str(name))!r}. For example: 127.0.0.1:7233") from error
        return settings.model_copy(update={"temporal": temporal})

    def run(self, work: Callable[[TightloopClient], Awaitable[T]]) -> T:
        """Connect and do one thing; Ctrl-C ends it without a word.

        Raises:
            TightloopError: as the client does.
        """
        settings = self.settings

        async def connected() -> T:
            with _traced(settings) as tracing:
                interceptors = () if tracing is None else (tracing,)
                return await work(await TightloopClient.connect(settings, interceptors=interceptors))

        try:
            return asyncio.run(connected())
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None

    def on(self, reference: str, work: Callable[[TightloopClient, str], Awaitable[T]]) -> T:
        """Do one thing with the episode that `reference` means."""

        async def resolved(client: TightloopClient) -> T:
            try:
                key = await client.resolve(reference)
            except EpisodeNotFoundError:
                await _refuse(client.plans, reference, "a plan, not an episode. See: tightloop plan status")
                raise
            return await work(client, key)

        return self.run(resolved)

    def on_plan(self, reference: str, work: Callable[[Plans, str], Awaitable[T]]) -> T:
        """Do one thing with the plan that `reference` means."""

        async def resolved(client: TightloopClient) -> T:
            try:
                key = await client.plans.resolve(reference)
            except EpisodeNotFoundError:
                await _refuse(client, reference, "an episode, not a plan. See: tightloop status")
                raise
            return await work(client.plans, key)

        return self.run(resolved)


async def _refuse(others: TightloopClient | Plans, reference: str, what: str) -> None:
    """Say so where one of the other kind is meant."""
    if reference == LAST:
        return
    try:
        other = await others.resolve(reference)
    except (EpisodeNotFoundError, InvalidRequestError):
        return
    raise InvalidRequestError(f"{other} is {what} {other}")


async def within(seconds: float, work: Awaitable[T]) -> T | None:
    """Return what comes of a wait; None where nothing comes in time, or nobody answers."""
    with contextlib.suppress(TimeoutError, ServiceUnavailableError):
        async with asyncio.timeout(seconds):
            return await work
    return None


def _traced(settings: Settings) -> AbstractContextManager[Interceptor | None]:
    """Trace the calls of one command where telemetry is on; `doctor` tells if its packages are missing."""
    endpoint = settings.telemetry.endpoint(os.environ)
    if not endpoint:
        return nullcontext()
    try:
        from tightloop.client.tracing import exporting
    except ImportError:
        return nullcontext()
    # A collector that does not answer is no reason to fill the terminal, nor to keep a person waiting.
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
    return exporting(endpoint, settings.telemetry.service_name, seconds=FLUSH_SECONDS)


def session_of(context: typer.Context) -> Session:
    """Return the session that the global options made."""
    found = context.find_object(Session)
    return found or Session()


def operator() -> str:
    """Return who is at the keyboard, for the audit trail."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "operator"


def exit_code(status: EpisodeStatus) -> int:
    """Return 0 for an episode that succeeded or is still open, 1 for any other end."""
    return 0 if status.status in ("succeeded", "running", "paused") else 1


def complete_episode(incomplete: str) -> list[tuple[str, str]]:
    """Offer episode ids to the shell; silent when Temporal does not answer at once."""
    return _completions(incomplete, "the newest episode", lambda client: client.list())


def complete_plan(incomplete: str) -> list[tuple[str, str]]:
    """Offer plan ids to the shell; silent when Temporal does not answer at once."""
    return _completions(incomplete, "the newest plan", lambda client: client.plans.list())


def _completions(
    incomplete: str, newest: str, listed: Callable[[TightloopClient], Awaitable[Sequence[EpisodeSummary]]]
) -> list[tuple[str, str]]:
    async def rows() -> list[tuple[str, str]]:
        async with asyncio.timeout(COMPLETION_SECONDS):
            client = await TightloopClient.connect(load_settings())
            return [(row.id, f"{row.status}: {row.goal[:60]}") for row in await listed(client)]

    try:
        found = [(LAST, newest), *asyncio.run(rows())]
    except Exception:  # noqa: BLE001 - a shell that completes must never see an error
        return []
    return [pair for pair in found if pair[0].startswith(incomplete)]


def on_terminal() -> bool:
    """Tell whether a person looks at the output."""
    return sys.stdout.isatty()
