"""Which task queues the workers of a role serve, and what is done on each."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from tightloop.host.identity import home_queue, host_identity
from tightloop.settings import Settings
from workflows.coder.workflow import CoderWorkflow
from workflows.episode.workflow import EpisodeWorkflow
from workflows.loop.workflow import LoopWorkflow
from workflows.plan.workflow import PlanWorkflow
from workflows.retention.workflow import RetentionWorkflow

ON_HOST: list[type] = [CoderWorkflow, RetentionWorkflow]
"""Workflows of one host: the tools of the coder are local activities, where the workspace is."""
WORKFLOWS: list[type] = [EpisodeWorkflow, PlanWorkflow, LoopWorkflow, *ON_HOST]
WORKFLOW_TYPES = tuple(one.__name__ for one in WORKFLOWS)
"""As Temporal names them."""


class Role(StrEnum):
    """Purpose of a worker process."""

    ALL = "all"
    WORKFLOWS = "workflows"
    WORKSPACE = "workspace"
    LLM = "llm"
    GUI = "gui"


@dataclass(frozen=True)
class WorkerSpec:
    """One task queue and what is done there."""

    queue: str
    workflows: Sequence[type]
    activities: Sequence[Callable[..., Any]]
    slots: int


@dataclass(frozen=True)
class Work:
    """All activities, by what they need."""

    handling: list[Callable[..., Any]]
    """The workspace."""
    executing: list[Callable[..., Any]]
    """An executor."""
    thinking: list[Callable[..., Any]]
    """A model, perhaps."""

    @property
    def all(self) -> list[Callable[..., Any]]:
        """All of them."""
        return [*self.handling, *self.executing, *self.thinking]


def queues(settings: Settings) -> dict[Role, str]:
    """Return the task queue of each role."""
    main = settings.temporal.task_queue
    return {
        Role.ALL: main,
        Role.WORKFLOWS: main,
        Role.WORKSPACE: settings.queues.workspace or home_queue(settings),
        Role.LLM: settings.queues.llm or f"{main}-llm",
        Role.GUI: settings.queues.executor or f"{main}-gui-{'macos' if os.uname().sysname == 'Darwin' else 'linux'}",
    }


def worker_specs(settings: Settings, role: Role, work: Work) -> list[WorkerSpec]:
    """Return the task queues of a role."""
    slots = settings.worker.max_concurrent_activities
    by_role, homes = queues(settings), host_identity(settings).queues(settings)
    if role is Role.WORKFLOWS:
        # All activities: what comes here for want of a queue of its own is sent on to the host that has the workspace.
        return [WorkerSpec(by_role[role], WORKFLOWS, work.all, slots)]
    if role is Role.WORKSPACE:
        served = dict.fromkeys((*homes, by_role[role]))
        return [WorkerSpec(queue, ON_HOST if queue in homes else [], work.all, slots) for queue in served]
    if role is Role.LLM:
        return [WorkerSpec(by_role[role], [], work.thinking, slots)]
    if role is Role.GUI:
        # One at a time: there is one screen.
        return [WorkerSpec(by_role[role], [], work.executing, 1)]
    main = WorkerSpec(by_role[Role.ALL], WORKFLOWS, work.all, slots)
    named = {
        **dict.fromkeys(homes, work.all),
        settings.queues.workspace: [*work.handling, *work.executing],
        settings.queues.llm: work.thinking,
        settings.queues.executor: work.executing,
    }
    others = [
        WorkerSpec(queue, ON_HOST if queue in homes else [], done, slots)
        for queue, done in named.items()
        if queue and queue != main.queue
    ]
    return [main, *others]
