"""Retention workflow."""

from datetime import timedelta

from temporalio import workflow

from activities.retention import CollectionTotals, RetentionActivities
from workflows.run.activities import RETRIES, new_activity_id

COLLECT_TIMEOUT = timedelta(hours=6)
HEARTBEAT_TIMEOUT = timedelta(minutes=1)
"""Heartbeat timeout. It is generous because heartbeats may be late while the disk is busy with deletions."""


@workflow.defn
class RetentionWorkflow:
    """Deletes data on this host as configured in the retention settings.

    The result lists the freed data.
    """

    @workflow.run
    async def run(self) -> CollectionTotals:
        """Run garbage collection on this host."""
        return await workflow.execute_activity_method(
            RetentionActivities.collect_leftovers,
            activity_id=new_activity_id(),
            start_to_close_timeout=COLLECT_TIMEOUT,
            heartbeat_timeout=HEARTBEAT_TIMEOUT,
            retry_policy=RETRIES,
            summary="free data that is no longer needed",
        )
