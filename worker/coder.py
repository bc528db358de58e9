"""Composes the built-in coder."""

import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from activities.artifacts.port import ArtifactStores
from activities.checks.port import CheckRunner
from activities.coder.activity import CoderActivities
from activities.coder.calls.equipment import Equipment
from activities.coder.calls.toolbox import Toolbox
from activities.coder.executor import CoderExecutor
from activities.coder.port import CoderMemory, TurnModel, TurnModels
from activities.coder.reviewing import CodeReviewer
from activities.coder.testing import ChangedTests
from activities.coder.tools import make_tools
from activities.coder.turns.taking import TurnTaker
from activities.executor.choose import ExecutorRegistry, Surroundings, executors
from activities.executor.port import Outboxes
from activities.memory.spared import Memories
from activities.memory.telling import ToldMemory
from activities.model.calling import load_client
from activities.model.service import OPENAI_URL, ModelService
from activities.safety.code import CodeScanner
from activities.sandbox.port import Sandbox
from activities.testing.port import TestGate
from activities.workspace.port import Workspaces
from activities.workspace.scope import EpisodeScope
from tightloop.coder.model import CODER, Bounds
from tightloop.coder.role import Role, known_roles
from tightloop.safety.prompt_privacy import PromptPrivacy
from tightloop.settings import CoderSettings, Settings


def coder_service(settings: Settings, environ: Mapping[str, str]) -> ModelService:
    """Return the model service of the coder: the planner's, or one of its own."""
    coder, planner = settings.coder, settings.planner
    variable = coder.api_key_env or ("" if coder.base_url else planner.api_key_env)
    return ModelService(
        api_key=environ.get(variable, ""),
        base_url=coder.base_url or planner.base_url or environ.get("OPENAI_BASE_URL", "") or OPENAI_URL,
        models=coder.models or planner.models,
        api=planner.api if coder.api == "auto" and not coder.base_url else coder.api,
        timeout_s=coder.timeout_s,
        silence_s=coder.silence_s,
        strictest_privacy=settings.privacy.strictest,
    )


def coder_executor(settings: Settings, sandbox: Sandbox) -> CoderExecutor:
    """Return the executor that hands deliveries over to the coder."""
    service = coder_service(settings, os.environ)

    def problem() -> str:
        if not service.configured:
            variable = settings.coder.api_key_env or settings.planner.api_key_env
            return f"no model can be asked: set {variable}, or coder.base_url to a service that needs no key"
        return sandbox.probe()

    return CoderExecutor(problem, (*settings.sandbox.network, *settings.sandbox.write))


def host_executors(settings: Settings, around: Surroundings) -> ExecutorRegistry:
    """Return the executors of this host, the coder among them."""
    return executors(around, {CODER: coder_executor(settings, around.sandbox)})


def coder_bounds(coder: CoderSettings) -> Bounds:
    """Return what one delivery may take."""
    return Bounds(
        max_turns=coder.max_turns,
        max_tokens=coder.max_tokens,
        rounds=coder.rounds,
        planning=coder.planning,
        testing=coder.testing,
        turns_of={name: coder.role(name).max_turns for name in known_roles()},
    )


def coder_models(service: ModelService) -> TurnModels:
    """Return who makes the model of a role; the SDK is imported with the first turn."""

    @cache
    def made() -> TurnModels:
        from activities.coder.turns.model import turn_models

        return turn_models(service)

    def model_of(role: Role, session: str, prompt_privacy: PromptPrivacy) -> TurnModel:
        return made()(role, session, prompt_privacy)

    return model_of


def load_early(settings: Settings, sandbox: Sandbox) -> None:
    """Load what a first turn and a first command need, so that a worker that takes over does not wait for it."""
    service = coder_service(settings, os.environ)
    if service.configured:
        sandbox.probe()
        coder_models(service)(settings.coder.role(CODER), "", PromptPrivacy.FULL)
        load_client(service)


def coder_activities(
    settings: Settings,
    *,
    models: TurnModels,
    workspaces: Workspaces,
    stores: ArtifactStores,
    outboxes: Outboxes,
    checks: CheckRunner,
    gate: TestGate,
    memories: Memories,
) -> CoderActivities:
    """Return what a worker does for the coder."""

    def memory_of(scope: EpisodeScope) -> CoderMemory | None:
        memory = memories(Path(scope.workspace))
        return ToldMemory(memory, scope.holder) if memory.wanted else None

    rules = settings.alignment.code_rules()
    reviewer = CodeReviewer(rules, CodeScanner(rules))
    toolbox = Toolbox(make_tools(Equipment(runner=checks, rubric=settings.alignment.rubric)), review=reviewer.review)
    return CoderActivities(
        workspaces=workspaces,
        stores=stores,
        outboxes=outboxes,
        turns=TurnTaker(models=models, tools=toolbox, settings=settings.coder, privacy=settings.privacy),
        toolbox=toolbox,
        tests=ChangedTests(gate, reviewer.review),
        reviewer=reviewer,
        checks=checks,
        memory_of=memory_of,
        bounds=coder_bounds(settings.coder),
    )
