"""Composes the plan activities of a worker from the runners of each capability."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from activities.artifacts.port import ArtifactStores
from activities.checks.port import CheckRunner
from activities.model.service import ModelService
from activities.plan.activity import PlanActivities, PlanPorts
from activities.plan.attempts.git_trees import GitTrees
from activities.plan.children.step_children import StepChildren
from activities.plan.opening.plan_writer import ModelPlanWriter, PlannerOptions
from activities.plan.port import Children, PlanWriter, Runner
from activities.plan.runners.checkpoint import CheckpointRunner
from activities.plan.runners.decision import DecisionRunner
from activities.plan.runners.files.edit import EditRunner
from activities.plan.runners.gate.runner import GateRunner
from activities.plan.runners.git.runner import GitRunner
from activities.plan.runners.milestone import MilestoneRunner
from activities.plan.runners.model.question import PlanModel
from activities.plan.runners.model.runner import ModelRunner
from activities.plan.runners.search import SearchRunner
from activities.plan.runners.shell.runner import ShellRunner
from activities.plan.runners.web.http import HttpRunner
from activities.sandbox.port import Sandbox
from activities.workspace.port import OpenEpisodes, Workspaces
from activities.workspace.trail import Differ, Ledgers
from tightloop.plan.document.step import Capability
from tightloop.safety.prompt_privacy import PromptPrivacy
from tightloop.settings import SandboxSettings, Settings


@dataclass(frozen=True, kw_only=True)
class PlanAdapters:
    """Implementations of the ports of the plan activities; most of them are those of episodes, too."""

    workspaces: Workspaces
    stores: ArtifactStores
    ledgers: Ledgers
    checks: CheckRunner
    sandbox: Sandbox
    """Runs shell steps of plans."""
    sandbox_settings: SandboxSettings
    differ: Differ
    has_ended: OpenEpisodes
    plan_runners: Mapping[Capability, Runner] = field(default_factory=dict)
    """In place of, or besides, those that need nothing more than this."""
    settings: Settings = field(default_factory=Settings)
    """They give `episode` steps what these leave open."""
    plan_children: Children | None = None
    """In place of what prepares and settles child workflows with the parts above."""
    plan_writer: PlanWriter | None = None
    """None: every plan has to be given as text or as a file."""
    plan_secrets: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Variables of the worker -> hosts that plans may send them to."""


def plan_activities(use: PlanAdapters) -> PlanActivities:
    """Return the plan activities of a worker."""
    trees, shell = GitTrees(), ShellRunner(use.sandbox, use.sandbox_settings)
    runners: dict[Capability, Runner] = {
        Capability.NONE: MilestoneRunner(),
        Capability.SHELL: shell,
        Capability.EDIT: EditRunner(),
        Capability.GIT: GitRunner(),
        Capability.GATE: GateRunner(use.checks, use.differ),
        Capability.CHECKPOINT: CheckpointRunner(),
        Capability.HTTP: HttpRunner(use.plan_secrets),
        Capability.SEARCH: SearchRunner(),
        **use.plan_runners,
    }
    return PlanActivities(
        PlanPorts(
            workspaces=use.workspaces,
            stores=use.stores,
            ledgers=use.ledgers,
            trees=trees,
            differ=use.differ,
            checks=use.checks,
            runners=runners,
            children=use.plan_children or StepChildren(use.workspaces, use.checks, use.settings),
            writer=use.plan_writer,
            run_command=shell.run_command,
            has_ended=use.has_ended,
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


def model_runners(service: ModelService, prompt_privacy_of: Callable[[str], PromptPrivacy]) -> dict[Capability, Runner]:
    """Return what does `model` and `decision` steps with this service, at the prompt privacy of each workspace."""
    model = PlanModel(service, prompt_privacy_of)
    return {Capability.MODEL: ModelRunner(model), Capability.DECISION: DecisionRunner(model)}


def plan_writer(service: ModelService, settings: Settings) -> ModelPlanWriter:
    """Return who writes plans; it refuses where the settings say so."""
    plans = settings.plans
    longer = replace(service, max_output_tokens=max(service.max_output_tokens, plans.max_output_tokens))
    return ModelPlanWriter(
        PlannerOptions(
            service=longer,
            caution=plans.caution(settings.executor.programs, settings.alignment.rubric),
            prompt_privacy_of=settings.privacy.prompt_privacy_of,
            enabled=plans.agent_planning,
        )
    )
