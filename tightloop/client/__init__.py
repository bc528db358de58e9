"""The typed client of episodes and plans: for services, for the command line and for every other door.

It speaks to Temporal by workflow name, so that the `tightloop` wheel alone is enough:

    client = await TightloopClient.connect()
    episode_id = await client.start(request)
    async for status in client.watch(episode_id):
        print(status.status, status.phase, status.iteration)
    result = await client.result(episode_id)
"""

from tightloop.client.client import TightloopClient
from tightloop.client.execution import CLOSED_STATUSES, OPEN_STATUSES, Kind, Run, Summary, registration_command
from tightloop.client.following.events import Event
from tightloop.client.following.status import Result, Status
from tightloop.client.installation.staffing import Poller
from tightloop.client.sync import SyncTightloopClient
from tightloop.episode.budget import Budget
from tightloop.episode.check import Check
from tightloop.episode.model import EpisodeRequest, EpisodeResult, EpisodeStatus
from tightloop.executor.model import ExecutorChoice
from tightloop.plan.request import PlanRequest, PlanResult, PlanStatus

__all__ = [
    "CLOSED_STATUSES",
    "OPEN_STATUSES",
    "Budget",
    "Check",
    "EpisodeRequest",
    "EpisodeResult",
    "EpisodeStatus",
    "Event",
    "ExecutorChoice",
    "Kind",
    "PlanRequest",
    "PlanResult",
    "PlanStatus",
    "Poller",
    "Result",
    "Run",
    "Status",
    "Summary",
    "SyncTightloopClient",
    "TightloopClient",
    "registration_command",
]
