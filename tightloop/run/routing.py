"""Workflow types and task queues of runs, and which of several runs goes first."""

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
# Temporal's default is 10 s: an episode whose worker is killed in the middle of a task waits so long.
TASK_TIMEOUT = timedelta(seconds=5)
"""How long a worker may take for one task of a workflow, a replay included."""
ABSENCE_S = 60.0
"""Default of `temporal.absence_s`."""
Weight = Annotated[float, Field(ge=0.001, le=1000)]
"""Share of a project where several wait. The bounds are Temporal's."""


class Queues(CallerInput):
    """Task queues of the capabilities. Empty: the episode's own task queue (then activities start eagerly)."""

    workspace: str = ""
    llm: str = ""
    executor: str = ""
    home: str = ""
    """Task queue of the one host and state home that have the workspace, as `tightloop doctor` names it. Empty: it is
    found out when the workspace is opened. What comes to another host goes there."""
    weight: Weight = 1.0
    """Fairness weight of the project. The settings override what a request says."""
    absence_s: float = ABSENCE_S
    """Seconds without Temporal before running work is given up. The settings override this, too."""


PERSON_LOOKS = timedelta(minutes=10)
"""Time after a message during which a person is assumed to wait for its effect."""


class Urgency(IntEnum):
    """Temporal's priority keys, across projects. Lower goes first; 3 is the default."""

    PERSON_WAITS = 1
    RUNNING = 3
    NEW = 5


def urgency(*, heard: datetime | None, now: datetime, is_new: bool) -> Urgency:
    """Return the urgency of a workflow's steps.

    Args:
        heard: when a person last told it something; None: nobody did in this run.
        now: the time.
        is_new: nothing of it has been done yet.
    """
    if heard is not None and now - heard < PERSON_LOOKS:
        return Urgency.PERSON_WAITS
    return Urgency.NEW if is_new else Urgency.RUNNING


def project_of(workspace: str) -> str:
    """Return the name of a project that was given none."""
    return workspace.rstrip("/").rpartition("/")[2]


def fairness_key(project: str) -> str:
    """Return the fairness key of a project: a digest, because Temporal stores the key in plain text."""
    return "project-" + hashlib.sha256(project.encode("utf-8", "replace")).hexdigest()[:12] if project else ""
