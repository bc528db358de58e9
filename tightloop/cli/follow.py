"""Follows an episode until it ends: lines, a panel that changes, or JSON (which plans have, too)."""

import contextlib
from collections.abc import AsyncGenerator
from datetime import datetime

import typer
from rich.live import Live

from tightloop.cli import render
from tightloop.client.kind import StatusT
from tightloop.episode import EpisodeStatus, Pause
from tightloop.errors import ServiceUnavailableError


def remark_silence(error: ServiceUnavailableError) -> None:
    """Tell that nobody answers just now."""
    render.remark(f"{error.message} - still trying ...")


async def follow_as_json(changes: AsyncGenerator[StatusT]) -> StatusT | None:
    """Print the status at each change, one JSON document a line; return the last one."""
    last = None
    async with contextlib.aclosing(changes):
        async for last in changes:
            typer.echo(last.model_dump_json())
    return last


async def follow_lines(changes: AsyncGenerator[EpisodeStatus]) -> EpisodeStatus | None:
    """Print a line at each change; return the last status."""
    last: EpisodeStatus | None = None
    waits: Pause | None = None
    async with contextlib.aclosing(changes):
        async for last in changes:
            render.show(f"{datetime.now():%H:%M:%S}  {render.status_line(last)}")
            if last.pause is not None and last.pause != waits:
                render.show(*render.what_to_do(last.episode_id, last.pause))
            waits = last.pause
    return last


async def follow_live(changes: AsyncGenerator[EpisodeStatus]) -> EpisodeStatus | None:
    """Show a panel that changes, on a terminal; return the last status."""
    last = None
    with Live(console=render.console(), auto_refresh=False, transient=False) as live:
        async with contextlib.aclosing(changes):
            async for last in changes:
                live.update(render.status_panel(last), refresh=True)
    return last
