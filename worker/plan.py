"""The plan activities of a worker, put together from what runs each capability."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from activities.artifacts.port import ArtifactStores
from activities.plan.activity import PlanActivities, PlanPorts
from activities.plan.children import ChildPorts, EpisodeDefaults, StepChildren
from activities.plan.guarding import PolicyGuard
from activities.plan.opening import NoPlanWriter
from activities.plan.port import Children, Guard, PlanWriter, Runner
from activities.plan.records import open_file_records
from activities.plan.runners.checkpoint import CheckpointRunner
from activities.plan.runners.edit import EditRunner
from activities.plan.runners.fetch import FetchRunner
from activities.plan.runners.gate import GateRunner
from activities.plan.runners.git import GitRunner
from activities.plan.runners.http import HttpRunner
from activities.plan.runners.milestone import MilestoneRunner
from activities.plan.runners.search import SearchRunner
from activities.plan.runners.shell import ShellRunner
from activities.plan.undo import GitTrees
from activities.sandbox.port import Sandbox
from activities.tracking.port import Differ, Ledgers
from activities.verification.port import CheckRunner
from activities.workspace.port import OpenEpisodes, Workspaces
from tightloop.plan.model import Capability
from tightloop.settings import SandboxSettings


@dataclass(frozen=True, kw_only=True)
class PlanParts:
    """What plans share with episodes, and what a worker may have besides."""

    workspaces: Workspaces
    stores: ArtifactStores
    ledgers: Ledgers
    checks: CheckRunner
    sandbox: Sandbox
    settings: SandboxSettings
    differ: Differ
    has_ended: OpenEpisodes
    runners: Mapping[Capability, Runner] = field(default_factory=dict)
    """In place of, or besides, those that need nothing more than this."""
    episodes: EpisodeDefaults = field(default_factory=EpisodeDefaults)
    """What `episode` steps have where they do not say."""
    children: Children | None = None
    """In place of what prepares and settles child workflows with the parts above."""
    writer: PlanWriter = field(default_factory=NoPlanWriter)
    guard: Guard = field(default_factory=PolicyGuard)


def plan_activities(parts: PlanParts) -> PlanActivities:
    """Return the plan activities of a worker."""
    trees, shell = GitTrees(), ShellRunner(parts.sandbox, parts.settings)
    runners: dict[Capability, Runner] = {
        Capability.NONE: MilestoneRunner(),
        Capability.SHELL: shell,
        Capability.EDIT: EditRunner(),
        Capability.GIT: GitRunner(open_file_records, trees),
        Capability.GATE: GateRunner(parts.checks, parts.differ, open_file_records, parts.guard),
        Capability.CHECKPOINT: CheckpointRunner(),
        Capability.HTTP: HttpRunner(),
        Capability.FETCH: FetchRunner(),
        Capability.SEARCH: SearchRunner(),
        **parts.runners,
    }
    return PlanActivities(
        PlanPorts(
            workspaces=parts.workspaces,
            stores=parts.stores,
            records=open_file_records,
            ledgers=parts.ledgers,
            trees=trees,
            guard=parts.guard,
            checks=parts.checks,
            runners=runners,
            children=parts.children or _children(parts, trees),
            writer=parts.writer,
            run_command=shell.run_command,
            has_ended=parts.has_ended,
        )
    )


def _children(parts: PlanParts, trees: GitTrees) -> StepChildren:
    return StepChildren(
        ChildPorts(
            workspaces=parts.workspaces,
            records=open_file_records,
            trees=trees,
            checks=parts.checks,
            defaults=parts.episodes,
        )
    )


def activities_of(plans: PlanActivities) -> list[Callable[..., Any]]:
    """Return what a worker of workspaces does for plans."""
    return [
        plans.open_plan,
        plans.load_plan,
        plans.revise_plan,
        plans.run_shell,
        plans.run_edit,
        plans.run_git,
        plans.run_http,
        plans.run_fetch,
        plans.run_search,
        plans.run_model,
        plans.run_gate,
        plans.run_decision,
        plans.take_checkpoint,
        plans.pass_milestone,
        plans.prepare_children,
        plans.settle_children,
        plans.compensate_step,
        plans.verify_plan,
        plans.close_plan,
    ]
