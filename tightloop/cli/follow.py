"""Live view of the events, questions and progress of an episode or a plan until it ends."""

import asyncio
import contextlib
import time

import click
from rich.live import Live
from rich.text import Text

from tightloop.cli import INTERRUPTED
from tightloop.cli.session import Session, wait_at_most
from tightloop.cli.terminal import console, on_terminal, plain, print_note, show
from tightloop.cli.views import end_lines, event_line, status_line, todo_lines
from tightloop.client import CLOSED_STATUSES, Event, RunStatus, TightloopClient
from tightloop.episode.model import EpisodeOutcome
from tightloop.errors import ServiceUnavailableError
from tightloop.plan.request import PlanOutcome

UNSHOWN = frozenset({"alert"})
"""Events that are only shown in the timeline."""
UNSHOWN_DRY = UNSHOWN | {"opened", "completed", "closed"}
FIRST_EVENTS = 80
"""Maximum number of earlier events shown at the start. `tightloop timeline` shows all events."""
SILENCE_S = 60.0
LAST_EVENTS_S = 10.0
"""Maximum time to wait for the last events of a workflow that has ended."""


def follow(
    session: Session, workflow_id: str, *, as_json: bool, dry_run: bool = False, wait: bool | None = None
) -> RunStatus | None:
    """Follow an episode or a plan and return its last status. Ctrl-C does not stop the run.

    Without `wait`, also return when the run cannot continue without a person. `wait` is off by default if
    the output is not a terminal.
    """
    waits = on_terminal() if wait is None else wait
    try:
        return session.run(
            lambda client: Follower(client, workflow_id, dry_run=dry_run, waits=waits).run(as_json=as_json)
        )
    # `Session.run` turns Ctrl-C into this exit.
    except click.exceptions.Exit as left:
        if left.exit_code == INTERRUPTED:
            print_note(
                f"{workflow_id} is still running. Follow it: tightloop watch {workflow_id}   "
                f"Stop it: tightloop cancel {workflow_id}"
            )
        raise


def _last_line(last: RunStatus | None) -> Text:
    return Text(status_line(last) if last is not None else "", "cyan", no_wrap=True, overflow="ellipsis")


class Follower:
    """Prints everything that happens in a workflow until the workflow ends. Each item is printed once."""

    def __init__(self, client: TightloopClient, workflow_id: str, *, dry_run: bool = False, waits: bool = True) -> None:
        self._waits = waits
        self._client = client
        self._id = workflow_id
        self._dry_run = dry_run
        self._cursor = ""
        self._todo: list[str] = []
        self._silence, self._last_report_s = "", 0.0

    async def run(self, *, as_json: bool) -> RunStatus | None:
        """Print lines until the workflow ends, and return the last status.

        On a terminal, a status line is updated in place.
        """
        last: RunStatus | None = None
        out = console()
        # Refreshed once a second, because the age of running work changes without an event.
        display = Live(get_renderable=lambda: _last_line(last), console=out, refresh_per_second=1, transient=True)
        live = display if on_terminal() and not as_json else None
        changes = self._client.watch(self._id, on_silence=self._report_silence)
        # An early return would otherwise leave the polling generator open until garbage collection.
        async with contextlib.aclosing(changes):
            with live or contextlib.nullcontext():
                async for last in changes:
                    # The next silence is a new one, which is reported at once.
                    self._silence = ""
                    if as_json:
                        click.echo(last.model_dump_json())
                    else:
                        for line in await self._news(last):
                            out.print(line, soft_wrap=True)
                    if not self._waits and last.needs_person:
                        print_note(
                            f"{self._id} is waiting for a person. Answer its question, then run: tightloop watch "
                            f"{self._id}"
                        )
                        return last
                    if live is not None:
                        live.refresh()
        # The workspace is released a moment after the workflow reports its end.
        await wait_at_most(LAST_EVENTS_S, self._client.result(self._id))
        if last is not None and not as_json:
            for line in await self._news(last):
                out.print(line, soft_wrap=True)
            if not (self._dry_run and last.list_status == "completed"):
                show(*end_lines(last))
        return last

    def _report_silence(self, error: ServiceUnavailableError) -> None:
        """Report that a service does not respond.

        The service is polled twice a second, so the same message is repeated at most once a minute.
        """
        now = time.monotonic()
        if error.message != self._silence or now - self._last_report_s >= SILENCE_S:
            self._silence, self._last_report_s = error.message, now
            print_note(f"{error.message} - still trying ...")

    async def _news(self, status: RunStatus) -> list[Text]:
        lines: list[Text] = []
        # The timeline needs a worker; without one the status and its questions are still shown.
        with contextlib.suppress(TimeoutError, ServiceUnavailableError):
            async with asyncio.timeout(LAST_EVENTS_S if status.list_status in CLOSED_STATUSES else None):
                # Unlimited after the first batch, so that no event is skipped.
                limit = None if self._cursor else FIRST_EVENTS
                events = await self._client.timeline(self._id, after=self._cursor, limit=limit)
                self._cursor = events[-1].cursor if events else self._cursor
                lines += [event_line(event) for event in events if self._is_shown(event)]
        todo = todo_lines(status)
        if todo != self._todo:
            lines += [Text(plain(f"          {line}"), "yellow") for line in todo]
        self._todo = todo
        return lines

    def _is_shown(self, event: Event) -> bool:
        if event.kind == "closed" and event.text.startswith((*PlanOutcome, *EpisodeOutcome)):
            return False  # reported by the last lines
        return event.kind not in (UNSHOWN_DRY if self._dry_run else UNSHOWN)
