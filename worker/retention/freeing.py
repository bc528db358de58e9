"""Frees what closed episodes and plans left in all projects of this host."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from temporalio.client import Client

from activities.retention.activity import Collected
from activities.tracking.retention import GRACE, Freed, Known, collect
from tightloop.client.execution import Execution
from tightloop.database.memory.opening import memory_database, open_memory
from tightloop.host import state_home
from tightloop.settings import Settings
from tightloop.value import counted
from worker.connect import known_workflows
from worker.remote import copies_of
from worker.retention.disk import used_share


@dataclass(frozen=True)
class Collecting:
    """Collects as the settings of this host say."""

    client: Client
    settings: Settings

    async def collect(self) -> Collected:
        """Free what is old enough; where a bound of the disk is reached, what ended longest ago is freed earlier.

        Nothing that is open, kept, or ended within the last hour goes.

        Raises:
            ServiceUnavailableError: Temporal cannot be asked.
        """
        age = timedelta(days=self.settings.server.retention_days)
        done = await self._collect(age)
        while done.used_share >= 1 and age > GRACE:
            age = max(age / 2, GRACE)
            # A look costs less than packing all trees again for nothing.
            if total(await free(self.client, self.settings, age, dry_run=True)).workflows:
                done += await self._collect(age)
        return done

    async def _collect(self, age: timedelta) -> Collected:
        found = await free(self.client, self.settings, age)
        forgotten = await asyncio.to_thread(forget_failures, self.settings, [one.project for one in found])
        share = await asyncio.to_thread(used_share, self.settings.retention)
        return total(found).evolve(failures=forgotten, used_share=share)


async def free(client: Client, settings: Settings, older_than: timedelta, *, dry_run: bool = False) -> list[Freed]:
    """Free what episodes and plans left in every project of this host that ended longer ago than that, copies included.

    Raises:
        ServiceUnavailableError: Temporal cannot be asked what is open; nothing was freed. Or the remote store does not
            answer; what is left is freed the next time.
    """
    copies = copies_of(settings, client)
    forget = None if copies is None else copies.forget
    asked = datetime.now(UTC)
    known = merged_runs(await known_workflows(client))
    return [
        await asyncio.to_thread(
            collect, folder, known, older_than=older_than, dry_run=dry_run, asked=asked, forget=forget
        )
        for folder in sorted((state_home() / "projects").glob("*/"))
    ]


def forget_failures(settings: Settings, projects: Iterable[str]) -> int:
    """Remove from the memory what did not come again for `retention.memory_days`; return how many failures."""
    days = settings.retention.memory_days
    if days is None or not settings.memory.enabled:
        return 0
    before, memory = datetime.now(UTC) - timedelta(days=days), open_memory(settings, None)
    forgotten = sum(memory.forget_unseen(project, before) for project in projects)
    if forgotten:
        memory_database(settings).shrink()
    return forgotten


def total(found: Iterable[Freed]) -> Collected:
    """Return what was freed of all projects together."""
    done = Collected()
    for one in found:
        done = Collected(
            workflows=done.workflows + len(one.episodes),
            artifacts=done.artifacts + one.artifacts,
            trees=done.trees + one.references,
            files=done.files + len(one.files),
            rows=done.rows + one.rows,
            size_bytes=done.size_bytes + one.size_bytes,
            marked=done.marked + one.marked,
            busy=done.busy + bool(one.busy),
        )
    return done


def account(found: Iterable[Freed], older_than: timedelta, *, dry_run: bool) -> list[str]:
    """Return what was freed, as lines to print."""
    lines, projects = list[str](), list(found)
    would = "would be freed" if dry_run else "freed"
    for freed in projects:
        if not (freed.episodes or freed.artifacts or freed.references or freed.files or freed.rows or freed.busy):
            continue
        parts = [counted(len(freed.episodes), "workflow"), counted(freed.artifacts, "artifact")]
        parts += [counted(freed.references, "tree"), counted(len(freed.files), "other item")]
        parts += [counted(freed.rows, "row"), f"{freed.size_bytes / 1e6:.1f} MB"]
        lines.append(f"{freed.project}: {', '.join(parts)} {would}" + (f"; {freed.busy}" if freed.busy else ""))
        lines += [f"  {episode}" for episode in freed.episodes]
    done, days = total(projects), older_than / timedelta(days=1)
    marked = f"marked with tightloop keep ({done.marked}), " if done.marked else ""
    age = f"{days:g} days ago" if days >= 1 else f"{days * 24:g} h ago"
    size = f"{done.size_bytes / 1e6:.1f} MB {would}"
    return [*lines, f"{size}; kept is what is open, {marked}younger than an hour, or ended less than {age}"]


def merged_runs(runs: Iterable[Execution]) -> dict[str, Known]:
    """Return what Temporal knows of each workflow over all its runs."""
    found: dict[str, Known] = {}
    for run in runs:
        other = found.get(run.id)
        started = run.started or datetime.now(UTC)
        closed = None if run.is_open else run.closed
        if other is not None:
            started = min(started, other.started)
            closed = max(closed, other.closed) if closed and other.closed else None
        found[run.id] = Known(run.id, started, closed)
    return found
