"""The share of a workflow at task queues on which other projects wait, too."""

from collections.abc import Callable

from temporalio import workflow
from temporalio.common import Priority

from tightloop.episode.model import EpisodeRequest
from tightloop.episode.share import Urgency, fairness_key, project_of, urgency
from tightloop.loop.model import LoopRequest
from tightloop.plan.request import PlanRequest
from workflows.shared.inbox import Inbox

Request = EpisodeRequest | PlanRequest | LoopRequest


class Share:
    """Says how Temporal orders the steps of a workflow. No part of determinism: replay does not compare it."""

    def __init__(self, request: Callable[[], Request], inbox: Inbox, is_new: Callable[[], bool]) -> None:
        """Take what is asked for, what people say, and whether nothing has been done yet."""
        self._request, self._inbox, self._is_new = request, inbox, is_new

    @property
    def priority(self) -> Priority:
        """What the next step is scheduled with."""
        heard, now = self._inbox.last_heard, workflow.now()
        return priority_of(self._request(), urgency(heard=heard, now=now, is_new=self._is_new()))


def priority_of(request: Request, urgent: Urgency) -> Priority:
    """Return the order in which Temporal hands out what belongs to a request."""
    project = request.project_name if isinstance(request, EpisodeRequest) else project_of(request.workspace)
    return Priority(
        priority_key=int(urgent), fairness_key=fairness_key(project) or None, fairness_weight=request.queues.weight
    )
