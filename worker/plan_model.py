"""What plans take from the settings: the capabilities that ask a model, who writes plans, what episodes have."""

from collections.abc import Callable
from dataclasses import replace

from activities.model.service import ModelService
from activities.plan.children import EpisodeDefaults
from activities.plan.planner import ModelPlanWriter, Planning
from activities.plan.port import Runner
from activities.plan.runners.decision import DecisionRunner
from activities.plan.runners.model import ModelRunner
from activities.plan.runners.question import PlanModel
from tightloop.egress import Egress
from tightloop.executor import ExecutorChoice
from tightloop.plan.model import Capability
from tightloop.settings import Settings


def model_runners(service: ModelService, egress_of: Callable[[str], Egress]) -> dict[Capability, Runner]:
    """Return what does `model` and `decision` steps with this service, at the egress level of each workspace."""
    model = PlanModel(service, egress_of)
    return {Capability.MODEL: ModelRunner(model), Capability.DECISION: DecisionRunner(model)}


def plan_writer(service: ModelService, settings: Settings) -> ModelPlanWriter:
    """Return who writes plans; it refuses where the settings say so."""
    plans = settings.plans
    longer = replace(service, max_output_tokens=max(service.max_output_tokens, plans.max_output_tokens))
    return ModelPlanWriter(
        Planning(
            service=longer,
            caution=plans.caution(settings.executor.programs),
            egress_of=settings.privacy.egress_of,
            enabled=plans.agent_planning,
        )
    )


def episode_defaults(settings: Settings) -> EpisodeDefaults:
    """Return what `episode` steps have where they do not say."""
    chosen = settings.executor
    executor = ExecutorChoice(
        name=chosen.default,
        fallback=chosen.fallback,
        wall_limit_s=chosen.wall_limit_s,
        idle_limit_s=chosen.idle_limit_s,
    )
    return EpisodeDefaults(executor=executor, planner=settings.planner.kind, budget=settings.budget.as_budget())
