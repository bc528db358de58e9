"""The typed client of episodes: for services, for the command line and for every other door.

It speaks to Temporal by workflow name, so that the `tightloop` wheel alone is enough:

    client = await TightloopClient.connect(settings)
    episode_id = await client.start(request)
    async for status in client.watch(episode_id):
        print(status.status, status.phase, status.iteration)
    result = await client.result(episode_id)
"""

from tightloop.client.answers import EpisodeSummary, Poller, registration_commands
from tightloop.client.episode_kind import CLOSED_STATUSES
from tightloop.client.episodes import TightloopClient
from tightloop.client.execution import OPEN_STATUSES

__all__ = ["CLOSED_STATUSES", "OPEN_STATUSES", "EpisodeSummary", "Poller", "TightloopClient", "registration_commands"]
