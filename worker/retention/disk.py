"""Watches how full the state home and its disk are, and has a collection made where a bound is reached."""

import asyncio
import logging
import shutil
from datetime import timedelta

from temporalio.client import Client
from temporalio.common import MetricMeter
from temporalio.service import RPCError

from activities.tracking.leftovers import size_on_disk
from tightloop.host import state_home
from tightloop.settings import Settings
from tightloop.settings.retention import RetentionSettings
from tightloop.telemetry import METRICS
from worker.retention.schedule import collect_now

logger = logging.getLogger("tightloop")

LOOK = timedelta(minutes=5)
"""A look at a state home of 100 000 files takes about a second."""
AGAIN = timedelta(hours=1)
"""Between two collections for a bound that stays reached: so long what is open or kept cannot be freed."""
NEAR = 0.8
"""Of a bound: people are told from here on; so is the rule `DiskNearBound` of deploy/prometheus/alerts.yml."""
SHARE = "tightloop_disk_used_share"


def used_share(settings: RetentionSettings) -> float:
    """Return how much of the nearer bound is used on this host; 0 without bounds."""
    if not settings.is_bounded:
        return 0.0
    home = state_home()
    disk = shutil.disk_usage(home)
    held = size_on_disk(home) if settings.max_gb is not None else 0
    return settings.used_share(held_bytes=held, free_bytes=disk.free, disk_bytes=disk.total)


async def watch_disk(client: Client, settings: Settings, every: timedelta = LOOK) -> None:
    """Look again and again, until cancelled: tell the share as a metric, warn near the bound, collect at it."""
    if not settings.retention.is_bounded:
        return
    runtime = client.service_client.config.runtime
    meter = MetricMeter.noop if runtime is None else runtime.metric_meter
    gauge = meter.create_gauge_float(SHARE, METRICS[SHARE])
    clock = asyncio.get_running_loop().time
    before, due = 0.0, clock()
    while True:
        share = await asyncio.to_thread(used_share, settings.retention)
        gauge.set(share)
        if share >= NEAR > before:
            logger.warning(
                "%s uses %.0f %% of what retention.max_gb or retention.min_free_gb leaves it. See what goes: "
                "tightloop gc --dry-run; free more with --older-than, or raise the bound",
                state_home(),
                share * 100,
            )
        if share >= 1 and clock() >= due:
            try:
                await collect_now(client, settings)
                due = clock() + AGAIN.total_seconds()
            except RPCError as error:
                logger.warning("the disk is full, and Temporal did not start a collection: %s", error.message)
        before = share
        await asyncio.sleep(every.total_seconds())
