"""Which workers a role runs, and which adapters stand behind the activities."""

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any

from temporalio.client import Client
from temporalio.worker import Worker
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

from activities.alerts.activity import AlertActivities
from activities.alerts.choose import post_of
from activities.alerts.port import Post
from activities.alerts.trail import TrailMemory
from activities.alignment.choose import judges
from activities.alignment.gate import Gate
from activities.artifacts.local import open_local_store
from activities.artifacts.port import ArtifactStores
from activities.execution.activity import ExecutionActivities
from activities.execution.choose import FenceWhenNeeded, Surroundings, executors, open_gateway
from activities.execution.port import Executors, Outboxes
from activities.execution.sqlite_outbox import open_sqlite_outbox
from activities.model.service import OPENAI_URL, ModelService
from activities.plan.activity import PlanActivities
from activities.plan.opening import NoPlanWriter
from activities.plan.port import PlanWriter, Runner
from activities.planning.activity import PlanningActivities
from activities.planning.choose import KINDS, planners
from activities.planning.port import Planners
from activities.reflexion.activity import ReflexionActivities
from activities.reflexion.choose import reflectors
from activities.reflexion.port import Reflectors
from activities.sandbox.choose import choose_sandbox
from activities.sandbox.port import Sandbox
from activities.tracking.activity import TrackingActivities
from activities.tracking.git_differ import GitDiffer
from activities.tracking.port import Differ, Ledgers
from activities.tracking.sqlite_ledger import open_sqlite_ledger
from activities.verification.activity import VerificationActivities
from activities.verification.port import CheckRunner
from activities.verification.runner import ProcessCheckRunner
from activities.workspace.activity import WorkspaceActivities
from activities.workspace.git import GitWorkspaces
from activities.workspace.port import OpenEpisodes, Workspaces
from tightloop.egress import Egress
from tightloop.episode import EpisodeRequest
from tightloop.errors import InvalidRequestError
from tightloop.host import host_queue, state_home
from tightloop.plan.model import Capability
from tightloop.settings import PlannerSettings, Settings
from worker.edge import ActivityEdge
from worker.metrics import measuring
from worker.plan import PlanParts, activities_of, plan_activities
from worker.plan_model import episode_defaults, model_runners, plan_writer
from worker.registry import EndedEpisodes
from workflows.episode import EpisodeWorkflow
from workflows.plan import PlanWorkflow

WORKFLOWS: list[type] = [EpisodeWorkflow, PlanWorkflow]
PASSED_THROUGH = (
    "tightloop",
    "activities",
    "pydantic",
    "pydantic_core",
    "annotated_types",
    "typing_inspection",
    "yaml",
)
"""Modules that workflows share with the worker: re-importing the models costs 97 ms and 1.3 MB a workflow."""


class Role(StrEnum):
    """What a worker process is for."""

    ALL = "all"
    WORKFLOWS = "workflows"
    WORKSPACE = "workspace"
    LLM = "llm"
    GUI = "gui"


@dataclass(frozen=True)
class Station:
    """One task queue and what is done there."""

    queue: str
    workflows: Sequence[type]
    activities: Sequence[Callable[..., Any]]
    slots: int


def workflow_runner() -> SandboxedWorkflowRunner:
    """Return the sandbox in which workflow code runs, also in replay."""
    return SandboxedWorkflowRunner(restrictions=SandboxRestrictions.default.with_passthrough_modules(*PASSED_THROUGH))


def queues(settings: Settings) -> dict[Role, str]:
    """Return the task queue of each role."""
    main = settings.temporal.task_queue
    return {
        Role.ALL: main,
        Role.WORKFLOWS: main,
        Role.WORKSPACE: settings.queues.workspace or host_queue(f"{main}-workspace"),
        Role.LLM: settings.queues.llm or f"{main}-llm",
        Role.GUI: settings.queues.executor or f"{main}-gui-{'macos' if os.uname().sysname == 'Darwin' else 'linux'}",
    }


@dataclass(frozen=True)
class Adapters:
    """What stands behind the ports of the activities; tests and embedders replace single fields."""

    workspaces: Workspaces
    stores: ArtifactStores
    ledgers: Ledgers
    outboxes: Outboxes
    differ: Differ
    runner: CheckRunner
    executors: Executors
    planners: Planners
    reflectors: Reflectors
    has_ended: OpenEpisodes
    post: Post = field(default_factory=Post)
    """Where alerts go."""
    gate: Gate = field(default_factory=Gate)
    """The alignment rubric."""
    sandbox: Sandbox | None = None
    """Where shell steps of plans run; None: the one that the settings choose."""
    plan_runners: Mapping[Capability, Runner] = field(default_factory=dict)
    """Runners of plan steps, besides those that need nothing of these adapters."""
    plan_writer: PlanWriter = field(default_factory=NoPlanWriter)
    programs: tuple[str, ...] = ()
    command_takes_whole_plans: bool = False


def model_service(
    planner: PlannerSettings, environ: Mapping[str, str], strictest: Egress = Egress.FULL
) -> ModelService:
    """Return the model service of the settings; the SDK's own `OPENAI_BASE_URL` is honoured."""
    return ModelService(
        api_key=environ.get(planner.api_key_env, ""),
        base_url=planner.base_url or environ.get("OPENAI_BASE_URL", "") or OPENAI_URL,
        models=planner.models,
        api=planner.api,
        timeout_s=planner.timeout_s,
        max_output_tokens=planner.max_output_tokens,
        corrections=planner.corrections,
        context_characters=planner.context_characters,
        strictest_egress=strictest,
    )


def surroundings(settings: Settings) -> Surroundings:
    """Return what the executors of this host share."""
    return Surroundings(
        settings=settings,
        homes=agent_homes(),
        sandbox=choose_sandbox(settings.sandbox),
        fence=FenceWhenNeeded(settings.sandbox),
        gateways=open_gateway,
    )


def agent_homes() -> Path:
    """Return where agents have their homes on this host."""
    return state_home() / "homes"


def build_adapters(client: Client, settings: Settings) -> Adapters:
    """Return the adapters that the settings ask for. Call it from the event loop of the client."""
    service = model_service(settings.planner, os.environ, settings.privacy.strictest)
    choose_planner, choose_reflector = planners(service), reflectors(service)
    choose_judge = judges(service, enabled=settings.alignment.judge)
    around = surroundings(settings)

    def kind(asked: str) -> str:
        return settings.planner.kind if asked == "auto" else asked

    return Adapters(
        workspaces=GitWorkspaces(),
        stores=open_local_store,
        ledgers=open_sqlite_ledger,
        outboxes=open_sqlite_outbox,
        differ=GitDiffer(),
        runner=ProcessCheckRunner(around.sandbox, settings.sandbox),
        sandbox=around.sandbox,
        executors=executors(around),
        planners=lambda asked: choose_planner(kind(asked)),
        reflectors=lambda asked: choose_reflector(kind(asked)),
        has_ended=EndedEpisodes(client).has_ended,
        post=post_of(settings, os.environ),
        plan_runners=model_runners(service, settings.privacy.egress_of),
        plan_writer=plan_writer(service, settings),
        gate=Gate(settings.alignment.rubric, lambda asked: choose_judge(kind(asked)), settings.privacy.egress_of),
        programs=settings.executor.programs,
        command_takes_whole_plans=bool(settings.executor.argv),
    )


def build_workers(
    client: Client, settings: Settings, role: Role = Role.ALL, adapters: Adapters | None = None
) -> list[Worker]:
    """Return the workers of a role, not yet running: one for each task queue.

    The role `all` also serves the queues that the settings name for single capabilities.
    """
    stations = _stations(settings, role, adapters or build_adapters(client, settings))
    return [_worker(client, settings, station) for station in stations]


def _stations(settings: Settings, role: Role, use: Adapters) -> list[Station]:
    slots = settings.worker.max_concurrent_activities
    workspace = WorkspaceActivities(
        use.workspaces, use.stores, use.ledgers, use.differ, use.has_ended, _names_known_to(use)
    )
    verification = VerificationActivities(use.workspaces, use.stores, use.runner)
    tracking = TrackingActivities(use.workspaces, use.stores, use.ledgers, use.differ, gate=use.gate)
    execution = ExecutionActivities(use.workspaces, use.stores, use.outboxes, use.executors)
    planning = PlanningActivities(
        use.stores,
        use.planners,
        use.programs,
        command_takes_whole_plans=use.command_takes_whole_plans,
        egress=settings.privacy.egress_of,
        gate=use.gate,
    )
    reflexion = ReflexionActivities(use.stores, use.reflectors, settings.privacy.egress_of)
    # The workers of workflows can alert too: they are there even where no other worker is.
    alerting: list[Callable[..., Any]] = [AlertActivities(use.post, TrailMemory(use.ledgers)).send_alerts]
    executing: list[Callable[..., Any]] = [execution.hand_off, execution.execute]
    thinking: list[Callable[..., Any]] = [planning.next_plan, reflexion.reflect]
    handling: list[Callable[..., Any]] = [
        workspace.open_workspace,
        workspace.adopt_workspace,
        workspace.restore_checkpoint,
        workspace.reconcile_reset,
        workspace.amend_request,
        workspace.close_workspace,
        verification.verify,
        tracking.track_iteration,
        *activities_of(_plans(settings, use)),
        *alerting,
    ]
    by_role = queues(settings)
    if role is Role.WORKFLOWS:
        return [Station(by_role[role], WORKFLOWS, alerting, slots)]
    if role is Role.WORKSPACE:
        return [Station(by_role[role], [], [*handling, *executing], slots)]
    if role is Role.LLM:
        return [Station(by_role[role], [], thinking, slots)]
    if role is Role.GUI:
        return [Station(by_role[role], [], executing, 1)]
    main = Station(by_role[Role.ALL], WORKFLOWS, [*handling, *executing, *thinking], slots)
    named = {
        settings.queues.workspace: [*handling, *executing],
        settings.queues.llm: thinking,
        settings.queues.executor: executing,
    }
    others = [Station(queue, [], work, slots) for queue, work in named.items() if queue and queue != main.queue]
    return [main, *others]


def _plans(settings: Settings, use: Adapters) -> PlanActivities:
    return plan_activities(
        PlanParts(
            workspaces=use.workspaces,
            stores=use.stores,
            ledgers=use.ledgers,
            checks=use.runner,
            sandbox=use.sandbox or choose_sandbox(settings.sandbox),
            settings=settings.sandbox,
            differ=use.differ,
            has_ended=use.has_ended,
            runners=use.plan_runners,
            writer=use.plan_writer,
            episodes=episode_defaults(settings),
        )
    )


def _names_known_to(use: Adapters) -> Callable[[EpisodeRequest], None]:
    """Return what refuses a request with a mistyped executor or planner, as far as these workers serve it."""

    def refuse(episode: EpisodeRequest) -> None:
        if not episode.queues.executor:
            for name in (episode.executor.name, *episode.executor.fallback):
                use.executors(name)
        if not episode.queues.llm and episode.planner not in KINDS:
            raise InvalidRequestError(f"there is no planner {episode.planner!r}. Choose one of: {', '.join(KINDS)}")

    return refuse


def _worker(client: Client, settings: Settings, station: Station) -> Worker:
    return Worker(
        client,
        task_queue=station.queue,
        workflows=station.workflows,
        activities=station.activities,
        activity_executor=ThreadPoolExecutor(station.slots, thread_name_prefix=station.queue),
        workflow_runner=workflow_runner(),
        # Measured inside of the edge, where errors still have their own classes.
        interceptors=[ActivityEdge(), *measuring(client)],
        max_cached_workflows=settings.worker.max_cached_workflows,
        max_concurrent_activities=station.slots,
        sticky_queue_schedule_to_start_timeout=timedelta(seconds=settings.worker.sticky_timeout_s),
        graceful_shutdown_timeout=timedelta(seconds=settings.worker.graceful_shutdown_s),
        max_heartbeat_throttle_interval=timedelta(seconds=1),
        default_heartbeat_throttle_interval=timedelta(seconds=1),
    )
