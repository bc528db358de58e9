"""Activities that decompose a goal into tasks."""

from collections.abc import Callable
from typing import Protocol

from pydantic import Field

from tightloop.episode.check import Check
from tightloop.executor.model import Usage
from tightloop.loop.model import LoopTask, Packet
from tightloop.safety.drift import PromptPrivacy
from tightloop.value import Value


class TaskBriefing(Value):
    """Everything that the planner may know."""

    packet: Packet
    checks: tuple[Check, ...] = ()
    """The gates of the project."""
    prompt_privacy: PromptPrivacy = PromptPrivacy.FULL


class TaskAnswer(Value):
    """The tasks, or why there are none."""

    tasks: tuple[LoopTask, ...] = ()
    problem: str = ""
    """Why there are none."""
    model: str = ""
    usage: Usage | None = None
    transcript: bytes = Field(default=b"", repr=False)


class TaskPlanner(Protocol):
    """Makes tasks of a packet."""

    async def plan(self, briefing: TaskBriefing) -> TaskAnswer:
        """Return tasks without circles, or why there are none.

        Raises:
            PlannerError: the model service refuses; not retryable.
            PlannerUnavailableError: it is busy or down; retryable.
        """
        ...


TaskPlanners = Callable[[str, str], TaskPlanner]
"""Returns the planner for a kind (`auto`, `openai`, `heuristic`) and a model (empty: as the settings say)."""
