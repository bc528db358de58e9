"""Activities that decompose a goal into tasks."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pydantic import Field
from temporalio import activity

from activities.artifacts.port import ArtifactStores, get_model, put_text
from activities.plan.attempts.outputs import unpack
from activities.plan.records import open_file_records
from activities.workspace.scope import EpisodeScope
from tightloop.episode.check import Check
from tightloop.executor.model import Usage
from tightloop.loop.model import CONFLICT, MESSAGE_CHARACTERS, Conflict, LoopTask, Packet
from tightloop.loop.tasks import TaskResult
from tightloop.plan.child import StepStatus, child_id
from tightloop.safety.drift import PromptPrivacy
from tightloop.value import Value, abridge
from tightloop.value.artifact import ArtifactRef


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


class PlanTasksRequest(Value):
    """A packet that is to become tasks."""

    scope: EpisodeScope
    packet: ArtifactRef
    checks: tuple[Check, ...] = ()
    planner: str = "auto"
    model: str = ""


class PlannedTasks(Value):
    """The tasks, or why there are none."""

    tasks: tuple[LoopTask, ...] = ()
    problem: str = ""
    model: str = ""
    usage: Usage | None = None
    transcript: ArtifactRef | None = None


class ReadResultsRequest(Value):
    """The tasks of a round that has ended."""

    scope: EpisodeScope
    plan_id: str
    """Of the `PlanWorkflow` that carried the round out."""
    tasks: tuple[str, ...]


class TaskResults(Value):
    """What became of them."""

    results: tuple[TaskResult, ...] = ()


@dataclass(frozen=True)
class TaskActivities:
    """Writes tasks and reads what became of them."""

    stores: ArtifactStores
    planners: TaskPlanners
    prompt_privacy: Callable[[str], PromptPrivacy] = lambda _workspace: PromptPrivacy.FULL
    """Returns what prompts about a workspace may contain."""

    @activity.defn
    async def plan_tasks(self, request: PlanTasksRequest) -> PlannedTasks:
        """Make tasks of a packet. Not idempotent: a retry asks a model, and pays, again.

        Raises:
            PlannerError: the model service refuses; not retryable.
            PlannerUnavailableError: it is busy or down; retryable.
        """
        workspace = Path(request.scope.workspace)
        store = self.stores(workspace)
        packet = await asyncio.to_thread(get_model, store, request.packet, Packet)
        briefing = TaskBriefing(
            packet=packet, checks=request.checks, prompt_privacy=self.prompt_privacy(str(workspace.resolve()))
        )
        answer = await self.planners(request.planner, request.model).plan(briefing)
        transcript = await asyncio.to_thread(put_text, store, answer.transcript, name="planner transcript")
        return PlannedTasks(
            tasks=answer.tasks,
            problem=answer.problem,
            model=answer.model,
            usage=answer.usage,
            transcript=transcript,
        )

    @activity.defn(no_thread_cancel_exception=True)
    def read_results(self, request: ReadResultsRequest) -> TaskResults:
        """Return what became of the tasks of a round, as its plan has recorded it."""
        workspace = Path(request.scope.workspace)
        store, records = self.stores(workspace), open_file_records(workspace)
        newest = {record.step: record for record in records.all(request.plan_id)}
        found = []
        for name in request.tasks:
            record = newest.get(name)
            if record is None:
                found.append(TaskResult(task_id=name))
                continue
            failure, conflict = record.result.failure, record.outputs.get(CONFLICT)
            found.append(
                TaskResult(
                    task_id=name,
                    completed=record.result.status is StepStatus.COMPLETED,
                    run_id=child_id(request.plan_id, name, record.attempt),
                    reason=abridge(failure.reason, MESSAGE_CHARACTERS) if failure is not None else "",
                    conflict=None if conflict is None else Conflict.model_validate(unpack(conflict, store)),
                )
            )
        return TaskResults(results=tuple(found))
