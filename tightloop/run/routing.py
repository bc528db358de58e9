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
"""Workflow task timeout, including a replay."""
ABSENCE_S = 60.0
"""Default of `temporal.absence_s`."""
Weight = Annotated[float, Field(ge=0.001, le=1000)]
"""Share of a project when several compete. The bounds are Temporal's."""


class Queues(CallerInput):
    """Task queues by capability. Empty: the episode's own task queue (then activities start eagerly)."""

    workspace: str = ""
    llm: str = ""
    executor: str = ""
    home: str = ""
    """Task queue of the host and state home that own the workspace, as printed by `tightloop doctor`. Empty: determined
    when the workspace is opened. Work that arrives at another host is forwarded to it.
    """
    weight: Weight = 1.0
    """Fairness weight of the project. The settings override the request's value."""
    absence_s: float = ABSENCE_S
    """Seconds without Temporal before running work is abandoned. The settings override the request's value."""


ATTENTION_SPAN = timedelta(minutes=10)
"""Time after a message during which the sender is assumed to wait for its effect."""


class Urgency(IntEnum):
    """Temporal priority keys, applied across projects. Lower runs first; 3 is the default."""

    PERSON_WAITS = 1
    RUNNING = 3
    NEW = 5


def urgency(*, last_message_at: datetime | None, now: datetime, is_new: bool) -> Urgency:
    """Return the urgency of a workflow's steps.

    Args:
        last_message_at: time of the last message from a person in this run; None if there was none.
        now: current time.
        is_new: True if no work has been done yet.
    """
    if last_message_at is not None and now - last_message_at < ATTENTION_SPAN:
        return Urgency.PERSON_WAITS
    return Urgency.NEW if is_new else Urgency.RUNNING


def project_of(workspace: str) -> str:
    """Return the default project name: the last folder of the workspace."""
    return workspace.rstrip("/").rpartition("/")[2]


def fairness_key(project: str) -> str:
    """Return the fairness key of a project: a digest, because Temporal stores the key in plain text."""
    # "replace": a path with undecodable bytes holds lone surrogates, which strict UTF-8 refuses.
    return "project-" + hashlib.sha256(project.encode("utf-8", "replace")).hexdigest()[:12] if project else ""
