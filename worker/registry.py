"""What other episodes are doing, asked of Temporal from an activity's thread."""

import asyncio

from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

ANSWER_SECONDS = 10.0


class EndedEpisodes:
    """Tells whether an episode that holds a workspace has ended."""

    def __init__(self, client: Client) -> None:
        """Remember the event loop that the client belongs to: call it from there."""
        self._client = client
        self._loop = asyncio.get_running_loop()

    def has_ended(self, episode_id: str) -> bool:
        """Return True if the episode is closed or unknown to Temporal. Blocking; for activity threads."""
        return asyncio.run_coroutine_threadsafe(self._ask(episode_id), self._loop).result(ANSWER_SECONDS)

    async def _ask(self, episode_id: str) -> bool:
        try:
            description = await self._client.get_workflow_handle(episode_id).describe()
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                return True
            raise
        except ValueError:
            # The SDK does not know status 8 (paused by Temporal itself): such an episode is open.
            return False
        return description.status is not WorkflowExecutionStatus.RUNNING
