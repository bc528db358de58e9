"""Composes the activities of the project loop."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from activities.loop.gates.activity import GateActivities
from activities.loop.inspection.activity import InspectionActivities
from activities.loop.inspection.git_history import last_commits
from activities.loop.inspection.packet_files import open_packets
from activities.loop.tasks.activity import TaskActivities
from activities.loop.tasks.port import TaskPlanners
from tightloop.host import state_folder
from tightloop.settings import Settings
from worker.plan import PlanAdapters


@dataclass(frozen=True)
class LoopActivities:
    """What a worker does for loops."""

    inspection: InspectionActivities
    gates: GateActivities
    tasks: TaskActivities

    @property
    def on_host(self) -> list[Callable[..., Any]]:
        """What needs the workspace."""
        return [
            self.inspection.inspect_project,
            self.gates.find_gates,
            self.gates.run_project_gate,
            self.gates.leave_project,
            self.tasks.read_results,
        ]

    @property
    def thinking(self) -> list[Callable[..., Any]]:
        """What may ask a model."""
        return [self.tasks.plan_tasks]


def loop_activities(use: PlanAdapters, planners: TaskPlanners, settings: Settings) -> LoopActivities:
    """Return the activities of the loop with the adapters of a worker."""
    return LoopActivities(
        inspection=InspectionActivities(
            workspaces=use.workspaces,
            stores=use.stores,
            ledgers=use.ledgers,
            differ=use.differ,
            runner=use.checks,
            has_ended=use.has_ended,
            history=last_commits,
            packets=open_packets,
            project=_project_id,
            settings=settings.gates.for_project,
        ),
        gates=GateActivities(use.workspaces, use.stores, use.checks, use.has_ended, settings.gates.for_project),
        tasks=TaskActivities(use.stores, planners, settings.privacy.prompt_privacy_of),
    )


def _project_id(workspace: Path) -> str:
    return state_folder(workspace).name
