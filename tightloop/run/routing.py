"""Workflow types, task queues and priorities of runs."""

import hashlib
from datetime import datetime, timedelta
from enum import IntEnum
from typing import Annotated

from pydantic import Field

from tightloop.value import CallerInput

EPISODE_WORKFLOW_TYPE = "EpisodeWorkflow"
PLAN_WORKFLOW_TYPE = "PlanWorkflow"
LOOP_WORKFLOW_TYPE = "LoopWorkflow"
CODER_WORKFLOW_TYPE = "CoderWorkflow"
# Temporal's default is 10 s; an episode waits that long when its worker is killed in the middle of a task.
TASK_TIMEOUT = timedelta(seconds=5)
"""Timeout of a workflow task, including a replay."""
ABSENCE_S = 60.0
"""Default value of `temporal.absence_s`."""
Weight = Annotated[float, Field(ge=0.001, le=1000)]
"""Weight of a project when several projects compete. The limits are defined by Temporal."""


class Queues(CallerInput):
    """Task queues by capability.

    If a field is empty, the episode's own task queue is used, and activities are started eagerly.
    """

    workspace: str = ""
    llm: str = ""
    executor: str = ""
    home: str = ""
    """Task queue of the host and state home that own the workspace, as printed by `tightloop doctor`. If empty, it is
    determined when the workspace is opened. If work arrives at another host, it is forwarded to this queue.
    """
    weight: Weight = 1.0
    """Fairness weight of the project. The value from the settings overrides the value of the request."""
    absence_s: float = ABSENCE_S
    """Time in seconds without Temporal after which running work is abandoned. The value from the settings overrides the
    value of the request.
    """


ATTENTION_SPAN = timedelta(minutes=10)
"""Time after a message during which we assume that the sender is waiting for it to take effect."""


class Urgency(IntEnum):
    """Temporal priority keys, which apply across projects. Lower values run first, and the default is 3."""

    PERSON_WAITS = 1
    RUNNING = 3
    NEW = 5


def urgency(*, last_message_at: datetime | None, now: datetime, is_new: bool) -> Urgency:
    """Return how urgent the steps of a workflow are.

    Args:
        last_message_at: time of the last message from a person in this run, or None if there was none.
        now: the current time.
        is_new: whether no work has been done yet.
    """
    if last_message_at is not None and now - last_message_at < ATTENTION_SPAN:
        return Urgency.PERSON_WAITS
    return Urgency.NEW if is_new else Urgency.RUNNING


def project_of(workspace: str) -> str:
    """Return the default project name, which is the name of the workspace's folder."""
    return workspace.rstrip("/").rpartition("/")[2]


def fairness_key(project: str) -> str:
    """Return the fairness key of a project. It is a digest, because Temporal stores the key in plain text."""
    # "replace": a path with undecodable bytes holds lone surrogates, which strict UTF-8 refuses.
    return "project-" + hashlib.sha256(project.encode("utf-8", "replace")).hexdigest()[:12] if project else ""
