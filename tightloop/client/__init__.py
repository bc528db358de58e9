"""Typed client for episodes and plans, used by services, the command line and the gateway.

The client refers to workflows by name, so only the `tightloop` wheel needs to be installed:

    client = await TightloopClient.connect()
    episode_id = await client.start(request)
    async for status in client.watch(episode_id):
        print(status.status, status.phase, status.iteration)
    result = await client.result(episode_id)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tightloop.client.client import TightloopClient
from tightloop.client.events import Event
from tightloop.client.execution import CLOSED_STATUSES, OPEN_STATUSES, Kind, Run, Summary, registration_command
from tightloop.client.setup import Topology
from tightloop.client.sync import SyncTightloopClient
from tightloop.client.workers import Poller
from tightloop.errors import (
    EpisodeNotFoundError,
    IdTakenError,
    InvalidRequestError,
    PlanError,
    ServiceUnavailableError,
    SettingsError,
    TightloopError,
    WrongStateError,
)
from tightloop.run.core import Queues, RunResult, RunStatus
from tightloop.run.question import Option, Question, QuestionKind

if TYPE_CHECKING:
    from tightloop.episode.budget import Budget, Spent, TopUp
    from tightloop.episode.check import Check
    from tightloop.episode.checkpoint import CheckpointRecord
    from tightloop.episode.control import ExecutorAmendment
    from tightloop.episode.model import EpisodeOutcome, EpisodePhase, EpisodeRequest, EpisodeResult, EpisodeStatus
    from tightloop.episode.scenarios import HiddenScenarios
    from tightloop.executor.model import ExecutorChoice
    from tightloop.loop.model import LoopRequest, LoopResult, LoopState, LoopStatus, LoopTask, TaskState
    from tightloop.plan.request import PlanOutcome, PlanPhase, PlanRequest, PlanResult, PlanStatus, StepLine
    from tightloop.settings import Settings

__all__ = [
    "CLOSED_STATUSES",
    "OPEN_STATUSES",
    "Budget",
    "Check",
    "CheckpointRecord",
    "EpisodeNotFoundError",
    "EpisodeOutcome",
    "EpisodePhase",
    "EpisodeRequest",
    "EpisodeResult",
    "EpisodeStatus",
    "Event",
    "ExecutorAmendment",
    "ExecutorChoice",
    "HiddenScenarios",
    "IdTakenError",
    "InvalidRequestError",
    "Kind",
    "LoopRequest",
    "LoopResult",
    "LoopState",
    "LoopStatus",
    "LoopTask",
    "Option",
    "PlanError",
    "PlanOutcome",
    "PlanPhase",
    "PlanRequest",
    "PlanResult",
    "PlanStatus",
    "Poller",
    "Question",
    "QuestionKind",
    "Queues",
    "Run",
    "RunResult",
    "RunStatus",
    "ServiceUnavailableError",
    "Settings",
    "SettingsError",
    "Spent",
    "StepLine",
    "Summary",
    "SyncTightloopClient",
    "TaskState",
    "TightloopClient",
    "TightloopError",
    "TopUp",
    "Topology",
    "WrongStateError",
    "registration_command",
]

# Loaded on demand: a program that starts episodes uses no plan models, and one that only watches uses none. All of them
# together take longer to import than the client.
_LATER = {
    "tightloop.episode.budget": ("Budget", "Spent", "TopUp"),
    "tightloop.episode.check": ("Check",),
    "tightloop.episode.checkpoint": ("CheckpointRecord",),
    "tightloop.episode.control": ("ExecutorAmendment",),
    "tightloop.episode.model": ("EpisodeOutcome", "EpisodePhase", "EpisodeRequest", "EpisodeResult", "EpisodeStatus"),
    "tightloop.episode.scenarios": ("HiddenScenarios",),
    "tightloop.executor.model": ("ExecutorChoice",),
    "tightloop.loop.model": ("LoopRequest", "LoopResult", "LoopState", "LoopStatus", "LoopTask", "TaskState"),
    "tightloop.plan.request": ("PlanOutcome", "PlanPhase", "PlanRequest", "PlanResult", "PlanStatus", "StepLine"),
    "tightloop.settings": ("Settings",),
}
_MODULES = {name: module for module, names in _LATER.items() for name in names}

# Hidden from type checkers, which would otherwise accept any name as one of the client's.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Import a model on first access."""
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(_MODULES[name]), name)
        return value
