"""Follows a plan in the terminal: what ends, what waits for a person, and how far it is."""

import asyncio
import contextlib
from collections.abc import Sequence

from rich.live import Live
from rich.text import Text

from tightloop.cli import plan_render, render
from tightloop.cli.follow import follow_as_json, remark_silence
from tightloop.cli.session import on_terminal, within
from tightloop.client import TightloopClient
from tightloop.client.plan_kind import PLAN_CLOSED_STATUSES
from tightloop.errors import ServiceUnavailableError
from tightloop.plan.display import counts_line
from tightloop.plan.request import PlanOutcome, PlanStatus
from tightloop.plan.state import PlanEvent

UNSHOWN = frozenset({"alert"})
"""Events that only the timeline shows."""
UNSHOWN_DRY = UNSHOWN | {"opened", "completed", "closed"}
LAST_EVENTS_S = 10.0
"""How long a plan that has ended is asked for its last lines."""


def new_events(shown: Sequence[PlanEvent], now: Sequence[PlanEvent]) -> tuple[Sequence[PlanEvent], bool]:
    """Return the events that were not shown yet, and whether some between are lost: a timeline has a bound."""
    if not shown:
        return now, False
    last = shown[-1]
    for place in range(len(now) - 1, -1, -1):
        if now[place] == last:
            return now[place + 1 :], False
    return now, True


async def follow_plan_as_json(client: TightloopClient, plan_id: str) -> PlanStatus | None:
    """Print the status at each change, one JSON document a line; return the last one."""
    last = await follow_as_json(client.plans.watch(plan_id, on_silence=remark_silence))
    await _closed(client, plan_id)
    return last


async def _closed(client: TightloopClient, plan_id: str) -> None:
    """Wait until the workspace is given back, too: a plan tells its end a moment before."""
    await within(LAST_EVENTS_S, client.plans.result(plan_id))


class Follower:
    """Shows what happens until a plan has ended, each thing once."""

    def __init__(self, client: TightloopClient, plan_id: str, *, dry_run: bool = False) -> None:
        """Follow one plan; of a dry run only what is not shown after it."""
        self._client = client
        self._plan_id = plan_id
        self._dry_run = dry_run
        self._events: Sequence[PlanEvent] = ()
        self._todo: list[str] = []

    async def run(self) -> PlanStatus | None:
        """Show lines, and on a terminal a last line that changes; return the last status."""
        last: PlanStatus | None = None
        out = render.console()
        live = Live(console=out, auto_refresh=False, transient=True) if on_terminal() else None
        with live or contextlib.nullcontext():
            async with contextlib.aclosing(
                self._client.plans.watch(self._plan_id, on_silence=remark_silence)
            ) as changes:
                async for last in changes:
                    for line in await self._news(last):
                        out.print(line)
                    if live is not None:
                        live.update(_state(last), refresh=True)
            if last is not None:
                await _closed(self._client, self._plan_id)
                for line in await self._news(last):
                    out.print(line)
        if last is not None and not (self._dry_run and last.status == "completed"):
            render.show(*plan_render.final_lines(last))
        return last

    async def _news(self, status: PlanStatus) -> list[Text]:
        closed = status.status in PLAN_CLOSED_STATUSES
        lines: list[Text] = []
        with contextlib.suppress(TimeoutError, ServiceUnavailableError):
            async with asyncio.timeout(LAST_EVENTS_S if closed else None):
                events = await self._client.plans.timeline(self._plan_id)
                fresh, lost = new_events(self._events, events)
                self._events = events or self._events
                if lost:
                    lines.append(Text("          ... some lines are left out: tightloop plan status ID --steps", "dim"))
                lines += [plan_render.event_line(event) for event in fresh if self._shows(event)]
        todo = plan_render.what_to_do(status)
        if todo and todo != self._todo:
            lines += [Text(render.plain(f"          {line}"), "yellow") for line in todo]
        self._todo = todo
        return lines

    def _shows(self, event: PlanEvent) -> bool:
        if event.event == "closed" and event.detail.startswith(tuple(PlanOutcome)):
            return False  # the end is told after it
        return event.event not in (UNSHOWN_DRY if self._dry_run else UNSHOWN)


def _state(status: PlanStatus) -> Text:
    running = ", ".join(line.id for line in status.running[:3])
    more = f" and {len(status.running) - 3} more" if len(status.running) > 3 else ""
    parts = [counts_line(status.counts), f"now: {running}{more}" if running else "", status.phase.value]
    return Text(render.plain("  ".join(part for part in parts if part)), "cyan", no_wrap=True, overflow="ellipsis")
