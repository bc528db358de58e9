"""The schedule of Temporal by which this host frees what nobody needs any more."""

import logging
from datetime import timedelta

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
from temporalio.service import RPCError, RPCStatusCode

from tightloop.host.identity import home_queue, host_identity, queue_of
from tightloop.settings import Settings
from workflows.retention.workflow import RetentionWorkflow

logger = logging.getLogger("tightloop")

CATCH_UP = timedelta(hours=1)
"""What a server that was down missed longer ago than this is not made up for: the next collection frees the same."""
JITTER_SHARE = 10
"""Hosts begin within a tenth of the interval, not all at once."""


def schedule_id(settings: Settings) -> str:
    """Return the id of the schedule of this host."""
    return f"{home_queue(settings)}-gc"


async def keep_schedule(client: Client, settings: Settings) -> None:
    """Make the schedule as the settings have it, change it to that, or remove it where they name none.

    Those of adopted hosts go: this one's frees what they left, too. A pause by an operator stays. Where Temporal does
    not permit it a warning says so, and the worker works.
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
            "the schedule %s was not set up (%s): nothing is freed on this host until somebody runs tightloop gc",
            schedule_id(settings),
            error.message,
        )


async def collect_now(client: Client, settings: Settings) -> None:
    """Have a collection made now, unless one is under way.

    Raises:
        RPCError: there is no schedule, or Temporal does not answer.
    """
    await client.get_schedule_handle(schedule_id(settings)).trigger(overlap=ScheduleOverlapPolicy.SKIP)


async def _make(client: Client, settings: Settings) -> None:
    wanted = _schedule(settings)

    def changed(found: ScheduleUpdateInput) -> ScheduleUpdate:
        wanted.state = found.description.schedule.state
        return ScheduleUpdate(wanted)

    try:
        await client.create_schedule(schedule_id(settings), wanted)
    except ScheduleAlreadyRunningError:
        await client.get_schedule_handle(schedule_id(settings)).update(changed)


async def _remove(client: Client, name: str) -> None:
    try:
        await client.get_schedule_handle(name).delete()
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise


def _schedule(settings: Settings) -> Schedule:
    every = settings.retention.every
    assert every is not None, "only hosts with retention.every_h have a schedule"
    action = ScheduleActionStartWorkflow(
        RetentionWorkflow.run, id=schedule_id(settings), task_queue=home_queue(settings)
    )
    return Schedule(
        action=action,
        spec=ScheduleSpec(intervals=[ScheduleIntervalSpec(every=every)], jitter=every / JITTER_SHARE),
        policy=SchedulePolicy(overlap=ScheduleOverlapPolicy.SKIP, catchup_window=CATCH_UP),
    )
