"""Retention on a host: schedule, disk monitoring and garbage collection."""

import asyncio
import logging
import shutil
import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from sqlalchemy.exc import SQLAlchemyError
from temporalio.client import (
    Client,
    Schedule,
    ScheduleActionStartWorkflow,
    ScheduleAlreadyRunningError,
    ScheduleIntervalSpec,
    ScheduleOverlapPolicy,
    SchedulePolicy,
    ScheduleSpec,
    ScheduleUpdate,
    ScheduleUpdateInput,
)
from temporalio.common import MetricMeter
from temporalio.service import RPCError, RPCStatusCode

from activities.checks.setup import free_cache
from activities.retention import CollectionTotals
from activities.tracking.retention import GRACE, CollectionResult, KnownWorkflow, collect, size_on_disk
from tightloop.client.execution import Execution
from tightloop.database.memory.store import memory_database, open_memory
from tightloop.errors import ServiceUnavailableError, TightloopError
from tightloop.host import state_home
from tightloop.host.identity import home_queue, host_identity, queue_of
from tightloop.settings import Settings
from tightloop.settings.services import RetentionSettings
from tightloop.telemetry import METRICS
from tightloop.value import format_count
from worker.composition import copies_of
from worker.connect import known_workflows
from workflows.retention import RetentionWorkflow

logger = logging.getLogger("tightloop")

CATCH_UP = timedelta(hours=1)
"""Maximum delay with which a missed collection is made up for. After that, the next collection frees the same data."""
JITTER_SHARE = 10
"""Divisor of the interval. Hosts start at different times within a tenth of it, not all at once."""


def schedule_id(settings: Settings) -> str:
    return f"{home_queue(settings)}-gc"


async def keep_schedule(client: Client, settings: Settings) -> None:
    """Create, update or remove the schedule according to the settings.

    Schedules of adopted hosts are removed, because this host frees their leftovers too. If an operator has paused the
    schedule, it stays paused. If Temporal denies access, a warning is logged and the worker continues.
    """
    try:
        for name in host_identity(settings).adopted:
            await _remove(client, f"{queue_of(settings, name)}-gc")
        if settings.retention.every is None:
            await _remove(client, schedule_id(settings))
        else:
            await _make(client, settings)
    except RPCError as error:
        logger.warning(
            "cannot set up the schedule %s (%s). Nothing will be freed on this host until you run tightloop gc",
            schedule_id(settings),
            error.message,
        )


async def collect_now(client: Client, settings: Settings) -> None:
    """Trigger a collection now unless one is already running.

    Raises:
        RPCError: there is no schedule, or Temporal does not respond.
    """
    await client.get_schedule_handle(schedule_id(settings)).trigger(overlap=ScheduleOverlapPolicy.SKIP)


async def _make(client: Client, settings: Settings) -> None:
    every = settings.retention.every
    assert every is not None, "only hosts with retention.every_h have a schedule"
    schedule = Schedule(
        action=ScheduleActionStartWorkflow(
            RetentionWorkflow.run, id=schedule_id(settings), task_queue=home_queue(settings)
        ),
        spec=ScheduleSpec(intervals=[ScheduleIntervalSpec(every=every)], jitter=every / JITTER_SHARE),
        policy=SchedulePolicy(overlap=ScheduleOverlapPolicy.SKIP, catchup_window=CATCH_UP),
    )

    def update_schedule(update_input: ScheduleUpdateInput) -> ScheduleUpdate:
        # Keeps a pause set by an operator.
        schedule.state = update_input.description.schedule.state
        return ScheduleUpdate(schedule)

    try:
        await client.create_schedule(schedule_id(settings), schedule)
    except ScheduleAlreadyRunningError:
        await client.get_schedule_handle(schedule_id(settings)).update(update_schedule)


async def _remove(client: Client, name: str) -> None:
    try:
        await client.get_schedule_handle(name).delete()
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise


LOOK = timedelta(minutes=5)
"""Interval between two disk measurements. Measuring a state home with 100 000 files takes about a second."""
AGAIN = timedelta(hours=1)
"""Interval between collections while the disk stays full. It may stay full because open and kept work cannot be
freed."""
NEAR = 0.8
"""Fraction of a limit at which people are warned. The rule `DiskNearBound` in deploy/prometheus/alerts.yml also uses
it."""
SHARE = "tightloop_disk_used_share"


def used_share(settings: RetentionSettings) -> float:
    """Return the used fraction of the disk limit, or 0 if there is no limit.

    If there are several limits, return the largest fraction.
    """
    if not settings.is_bounded:
        return 0.0
    home = state_home()
    disk = shutil.disk_usage(home)
    held_bytes = size_on_disk(home) if settings.max_gb is not None else 0
    return settings.used_share(held_bytes=held_bytes, free_bytes=disk.free, disk_bytes=disk.total)


async def watch_disk(client: Client, settings: Settings, every: timedelta = LOOK) -> None:
    """Monitor the disk until cancelled.

    Report the disk usage, warn near the limit, and collect garbage at the limit.
    """
    if not settings.retention.is_bounded:
        return
    runtime = client.service_client.config.runtime
    meter = MetricMeter.noop if runtime is None else runtime.metric_meter
    gauge = meter.create_gauge_float(SHARE, METRICS[SHARE])
    clock = asyncio.get_running_loop().time
    before, next_collection = 0.0, clock()
    while True:
        share = await asyncio.to_thread(used_share, settings.retention)
        gauge.set(share)
        # Warn only when the bound is crossed, not at every check.
        if share >= NEAR > before:
            logger.warning(
                "%s uses %.0f%% of the space that retention.max_gb or retention.min_free_gb allows. List what "
                "would be freed with: tightloop gc --dry-run. To free more, use --older-than, or raise the limit",
                state_home(),
                share * 100,
            )
        if share >= 1 and clock() >= next_collection:
            try:
                await collect_now(client, settings)
                next_collection = clock() + AGAIN.total_seconds()
            except RPCError as error:
                logger.warning("the disk is full, but Temporal did not start a cleanup: %s", error.message)
        before = share
        await asyncio.sleep(every.total_seconds())


@dataclass(frozen=True)
class GarbageCollector:
    """Collects garbage according to this host's settings."""

    client: Client
    settings: Settings

    async def collect(self) -> CollectionTotals:
        """Free leftovers that are older than the retention time.

        When a disk limit is reached, newer leftovers are also freed, oldest first. Open work, kept work and work that
        ended within the last hour are never freed.

        Raises:
            ServiceUnavailableError: Temporal does not respond.
        """
        age = timedelta(days=self.settings.server.retention_days)
        collected = await self._collect(age)
        while collected.used_share >= 1 and age > GRACE:
            # In halves, so that younger work is freed only if older work was not enough.
            age = max(age / 2, GRACE)
            # A dry run costs less than repacking all trees for nothing.
            if total(await free(self.client, self.settings, age, dry_run=True)).workflows:
                collected += await self._collect(age)
        return collected

    async def _collect(self, age: timedelta) -> CollectionTotals:
        freed_projects = await free(self.client, self.settings, age)
        forgotten = await asyncio.to_thread(forget_failures, self.settings, [entry.project for entry in freed_projects])
        freed_bytes = await asyncio.to_thread(free_packages, self.settings)
        share = await asyncio.to_thread(used_share, self.settings.retention)
        totals = total(freed_projects)
        return totals.evolve(failures=forgotten, used_share=share, size_bytes=totals.size_bytes + freed_bytes)


async def free(
    client: Client, settings: Settings, older_than: timedelta, *, dry_run: bool = False
) -> list[CollectionResult]:
    """Free the leftovers and copies of old episodes and plans in all projects.

    An episode or plan is old if it ended more than `older_than` ago. A project whose data is damaged is
    reported as busy.

    Raises:
        ServiceUnavailableError: Temporal is not responding and nothing was freed, or the remote store is not
            responding and the next collection will free the rest.
    """
    copies = copies_of(settings, client)
    forget = None if copies is None else copies.delete_copies
    # Taken before the query: what starts later is unknown to it, and must not be freed as forgotten work.
    asked_at = datetime.now(UTC)
    workflows = merged_runs(await known_workflows(client))

    def collect_project(folder: Path) -> CollectionResult:
        try:
            return collect(
                folder, workflows, older_than=older_than, dry_run=dry_run, queried_at=asked_at, forget=forget
            )
        except ServiceUnavailableError:
            raise
        except (OSError, SQLAlchemyError, sqlite3.Error, TightloopError) as error:
            # A damaged project must not keep the others' data.
            return CollectionResult(folder.name, busy=f"some data was not freed because it could not be read: {error}")

    folders = sorted((state_home() / "projects").glob("*/"))
    return [await asyncio.to_thread(collect_project, folder) for folder in folders]


def free_packages(settings: Settings, *, dry_run: bool = False) -> int:
    """Delete packages from setup commands that no worktree uses. Return the number of bytes freed."""
    return free_cache(settings.workspace.cached_environments_mb * 1_000_000, dry_run=dry_run)[1]


def forget_failures(settings: Settings, projects: Iterable[str]) -> int:
    """Delete failures that have not been seen for `retention.memory_days`. Return their number."""
    days = settings.retention.memory_days
    if days is None or not settings.memory.enabled:
        return 0
    before, memory = datetime.now(UTC) - timedelta(days=days), open_memory(settings, None)
    forgotten = sum(memory.forget_unseen(project, before) for project in projects)
    if forgotten:
        memory_database(settings).shrink()
    return forgotten


def total(freed_projects: Iterable[CollectionResult]) -> CollectionTotals:
    """Add up the totals of all projects."""
    collected = CollectionTotals()
    for entry in freed_projects:
        collected = CollectionTotals(
            workflows=collected.workflows + len(entry.episodes),
            artifacts=collected.artifacts + entry.artifacts,
            trees=collected.trees + entry.references,
            files=collected.files + len(entry.files),
            rows=collected.rows + entry.rows,
            size_bytes=collected.size_bytes + entry.size_bytes,
            marked=collected.marked + entry.marked,
            busy=collected.busy + bool(entry.busy),
        )
    return collected


def format_freed_items(
    freed_projects: Iterable[CollectionResult], older_than: timedelta, *, dry_run: bool
) -> list[str]:
    """Format the freed items as printable lines."""
    lines, projects = list[str](), list(freed_projects)
    would = "would be freed" if dry_run else "freed"
    for freed in projects:
        if not (freed.episodes or freed.artifacts or freed.references or freed.files or freed.rows or freed.busy):
            continue
        parts = [format_count(len(freed.episodes), "workflow"), format_count(freed.artifacts, "artifact")]
        parts += [format_count(freed.references, "tree"), format_count(len(freed.files), "other item")]
        parts += [format_count(freed.rows, "row"), f"{freed.size_bytes / 1e6:.1f} MB"]
        lines.append(f"{freed.project}: {', '.join(parts)} {would}" + (f"; {freed.busy}" if freed.busy else ""))
        lines += [f"  {episode}" for episode in freed.episodes]
    collected, days = total(projects), older_than / timedelta(days=1)
    marked = f"marked with tightloop keep ({collected.marked}), " if collected.marked else ""
    age = f"{days:g} days ago" if days >= 1 else f"{days * 24:g} h ago"
    size = f"{collected.size_bytes / 1e6:.1f} MB {would}"
    return [*lines, f"{size}. Not freed: work that is open, {marked}younger than an hour, or ended less than {age}"]


def merged_runs(runs: Iterable[Execution]) -> dict[str, KnownWorkflow]:
    """Return each workflow with its start and end across all runs."""
    workflows: dict[str, KnownWorkflow] = {}
    for run in runs:
        other = workflows.get(run.id)
        started = run.started or datetime.now(UTC)
        closed = None if run.is_open else run.closed
        if other is not None:
            started = min(started, other.started)
            closed = max(closed, other.closed) if closed and other.closed else None
        workflows[run.id] = KnownWorkflow(run.id, started, closed)
    return workflows
