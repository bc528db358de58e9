"""Retention workflow."""

from datetime import timedelta

from temporalio import workflow

from activities.retention import Collected, RetentionActivities
from workflows.run.activities import RETRIES, new_activity_id

COLLECT_TIMEOUT = timedelta(hours=6)
HEARTBEAT_TIMEOUT = timedelta(minutes=1)
"""A disk that is busy with it makes heartbeats late."""


@workflow.defn
class RetentionWorkflow:
    """Takes nothing: what may go, the host's own settings say. Its result is what was freed."""

    @workflow.run
    async def run(self) -> Collected:
        """Collect."""
        return await workflow.execute_activity_method(
            RetentionActivities.collect_leftovers,
            activity_id=new_activity_id(),
            start_to_close_timeout=COLLECT_TIMEOUT,
            heartbeat_timeout=HEARTBEAT_TIMEOUT,
            retry_policy=RETRIES,
            summary="free what nobody needs any more",
        )
