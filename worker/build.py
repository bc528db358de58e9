"""A role's workers, and the adapters behind their activities."""

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any

from temporalio.client import Client
from temporalio.plugin import SimplePlugin
from temporalio.worker import Worker, WorkflowRunner
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

from activities.alerts.activity import AlertActivities
from activities.alerts.channels import SentAlerts, make_alert_delivery
from activities.artifacts.stores import open_local_store
from activities.checks.activity import VerificationActivities
from activities.checks.runner import CheckRunner
from activities.coder.model import OpenAIModel
from activities.executor.activity import ExecutionActivities
from activities.executor.choose import ExecutorDependencies, LazyAgentSandbox, open_gateway
from activities.executor.outbox import open_outbox
from activities.loop.tasks import task_planners
from activities.model.client import OPENAI_URL, ModelService
from activities.planner.activity import PlanningActivities
from activities.planner.planners import ProjectRuff, planners
from activities.planner.reflection import ReflectionActivities
from activities.planner.reflectors import reflectors
from activities.planner.writers import ScenarioWriter, check_writers, scenario_writers
from activities.proof.activity import ProofActivities, ReviewActivities
from activities.proof.reviewer import reviewers
from activities.remote.activity import RemoteActivities
from activities.retention import RetentionActivities
from activities.safety.code import judges
from activities.safety.gate import AlignmentChecker
from activities.sandbox.choose import UnsafeLocal, choose_sandbox
from activities.staffing import WorkerCheckActivities
from activities.tracking.activity import RecordActivities, TrackingActivities
from activities.workspace.activity import WorkspaceActivities
from activities.workspace.differ import Differ
from activities.workspace.working_tree import Workspaces
from tightloop.client.execution import KINDS, SEALS
from tightloop.client.scenarios import ScenarioStore
from tightloop.client.sealing import SealingCodec
from tightloop.database.ledger import open_project
from tightloop.episode.exit_status import BASH, has_pipe, refuse_masked
from tightloop.episode.model import EpisodeRequest
from tightloop.errors import InvalidRequestError
from tightloop.host import state_home
from tightloop.host.identity import home_queue, host_identity
from tightloop.safety.drift import PromptPrivacy
from tightloop.settings import PlannerSettings, Settings
from tightloop.value import build_models, shorten
from worker.composition import (
    Adapters,
    activities_of,
    coder_activities,
    coder_service,
    copies_of,
    host_executors,
    memories,
    model_runners,
    plan_activities,
    plan_writer,
)
from worker.connect import ended_episodes
from worker.hosting.interceptor import ActivityInterceptor
from worker.hosting.presence import Presence, WorkerQueries
from worker.hosting.startup import LeanRunner, deployment_config, tuner_of, version_of
from worker.hosting.tenure import HostScope
from worker.retention import GarbageCollector
from worker.telemetry import measuring
from workflows.coder import CoderWorkflow
from workflows.episode.workflow import EpisodeWorkflow
from workflows.plan.project import ProjectWorkflow
from workflows.plan.workflow import PlanWorkflow
from workflows.retention import RetentionWorkflow

ON_HOST: list[type] = [CoderWorkflow, RetentionWorkflow]
"""Workflows that must run on one particular host. The coder needs the workspace's host, because its tools are local
activities."""
WORKFLOWS: list[type] = [EpisodeWorkflow, PlanWorkflow, ProjectWorkflow, *ON_HOST]
WORKFLOW_TYPES = (*KINDS, *(workflow_type.__name__ for workflow_type in ON_HOST))
"""Workflow type names in Temporal."""


class Role(StrEnum):
    """Purpose of a worker process."""

    ALL = "all"
    WORKFLOWS = "workflows"
    WORKSPACE = "workspace"
    LLM = "llm"
    GUI = "gui"


@dataclass(frozen=True)
class WorkerSpec:
    """A task queue with its workflows and activities."""

    queue: str
    workflows: Sequence[type]
    activities: Sequence[Callable[..., Any]]
    slots: int


@dataclass(frozen=True)
class Work:
    """All activities, grouped by their requirements."""

    handling: list[Callable[..., Any]]
    """Activities that need the workspace."""
    executing: list[Callable[..., Any]]
    """Activities that need an executor."""
    thinking: list[Callable[..., Any]]
    """Activities that may call a model."""

    @property
    def all(self) -> list[Callable[..., Any]]:
        return [*self.handling, *self.executing, *self.thinking]


def queues(settings: Settings) -> dict[Role, str]:
    main = settings.temporal.task_queue
    return {
        Role.ALL: main,
        Role.WORKFLOWS: main,
        Role.WORKSPACE: settings.queues.workspace or home_queue(settings),
        Role.LLM: settings.queues.llm or f"{main}-llm",
        Role.GUI: settings.queues.executor or f"{main}-gui-{'macos' if os.uname().sysname == 'Darwin' else 'linux'}",
    }


def worker_specs(settings: Settings, role: Role, work: Work) -> list[WorkerSpec]:
    """Return the task queues that a worker with this role serves, each with its workflows and activities."""
    slots = settings.worker.max_concurrent_activities
    by_role, homes = queues(settings), host_identity(settings).queues(settings)
    if role is Role.WORKFLOWS:
        # All activities: a task without a queue of its own arrives here and is redirected to its host.
        return [WorkerSpec(by_role[role], WORKFLOWS, work.all, slots)]
    if role is Role.WORKSPACE:
        served = dict.fromkeys((*homes, by_role[role]))
        return [WorkerSpec(queue, ON_HOST if queue in homes else [], work.all, slots) for queue in served]
    if role is Role.LLM:
        return [WorkerSpec(by_role[role], [], work.thinking, slots)]
    if role is Role.GUI:
        # One slot, because there is one screen.
        return [WorkerSpec(by_role[role], [], work.executing, 1)]
    main = WorkerSpec(by_role[Role.ALL], WORKFLOWS, work.all, slots)
    named = {
        **dict.fromkeys(homes, work.all),
        settings.queues.workspace: [*work.handling, *work.executing],
        settings.queues.llm: work.thinking,
        settings.queues.executor: work.executing,
    }
    other_specs = [
        WorkerSpec(queue, ON_HOST if queue in homes else [], activities, slots)
        for queue, activities in named.items()
        if queue and queue != main.queue
    ]
    return [main, *other_specs]


PASSED_THROUGH = (
    "tightloop",
    "activities",
    "pydantic",
    "pydantic_core",
    "annotated_types",
    "typing_inspection",
    "yaml",
)
"""Modules that are shared with the worker. Re-importing the models costs 97 ms and 1.3 MB per workflow."""


PRODUCTION_RUNNER = LeanRunner()
"""Runner that loads workflow modules once instead of once per workflow.

Tests and replay use the sandbox, which detects nondeterminism.
"""


def workflow_runner() -> SandboxedWorkflowRunner:
    """Return the sandboxed runner for workflow code. Replay uses the same runner."""
    build_models()
    return SandboxedWorkflowRunner(restrictions=SandboxRestrictions.default.with_passthrough_modules(*PASSED_THROUGH))


def model_service(
    planner: PlannerSettings, environ: Mapping[str, str], strictest: PromptPrivacy = PromptPrivacy.FULL
) -> ModelService:
    """Return the planner's model service. `OPENAI_BASE_URL` is used if the settings have no base URL."""
    return ModelService(
        api_key=environ.get(planner.api_key_env, ""),
        base_url=planner.base_url or environ.get("OPENAI_BASE_URL", "") or OPENAI_URL,
        models=planner.models,
        api=planner.api,
        timeout_s=planner.timeout_s,
        max_output_tokens=planner.max_output_tokens,
        corrections=planner.corrections,
        context_characters=planner.context_characters,
        strictest_privacy=strictest,
        planner=planner.kind,
    )


def build_executor_dependencies(settings: Settings) -> ExecutorDependencies:
    """Build the objects that all executors on this host share."""
    return ExecutorDependencies(
        settings=settings,
        homes=agent_homes(),
        sandbox=choose_sandbox(settings.sandbox),
        agent_sandbox=LazyAgentSandbox(settings.sandbox),
        gateways=open_gateway,
    )


def agent_homes() -> Path:
    """Return the folder that contains the agents' home directories."""
    return state_home() / "homes"


def build_adapters(client: Client, settings: Settings) -> Adapters:
    """Build the adapters that the settings configure. Must be called from the client's event loop."""
    service = model_service(settings.planner, os.environ, settings.privacy.strictest)
    host_surroundings = build_executor_dependencies(settings)
    judging = judges(service, enabled=settings.alignment.judge)
    return Adapters(
        workspaces=Workspaces(settings=settings.workspace),
        stores=open_local_store,
        ledgers=partial(open_project, host=host_identity(settings).name),
        outboxes=open_outbox,
        differ=Differ(),
        checks=CheckRunner(host_surroundings.sandbox, settings.sandbox),
        sandbox=host_surroundings.sandbox,
        sandbox_settings=settings.sandbox,
        executors=host_executors(settings, host_surroundings),
        coder_model=OpenAIModel(coder_service(settings, os.environ)),
        check_writers=check_writers(service),
        scenario_writers=scenario_writers(service),
        reviewers=reviewers(service),
        planners=planners(service, ProjectRuff(host_surroundings.sandbox, settings.sandbox)),
        reflectors=reflectors(service),
        task_planners=task_planners(service),
        has_ended=ended_episodes(client),
        post=make_alert_delivery(settings, os.environ),
        plan_runners=model_runners(service, settings.privacy.prompt_privacy_of),
        plan_writer=plan_writer(service, settings),
        plan_secrets=settings.plans.secrets,
        settings=settings,
        gate=AlignmentChecker(settings.alignment.rubric, judging, settings.privacy.prompt_privacy_of),
        memories=memories(settings, service),
        copies=copies_of(settings, client),
        programs=settings.executor.programs,
        command_takes_whole_plans=bool(settings.executor.argv),
    )


def build_workers(
    client: Client,
    settings: Settings,
    role: Role = Role.ALL,
    adapters: Adapters | None = None,
    *,
    runner: WorkflowRunner | None = None,
    tenure: str = "",
) -> list[Worker]:
    """Build a worker for each task queue that a role serves, without starting the workers.

    The roles `all` and `workspace` serve the queue of this host and state home. The role `all` also
    serves the queues that the settings define for individual capabilities.

    Args:
        client: connection to Temporal.
        settings: effective settings.
        role: the process's role.
        adapters: adapters to use. By default, the adapters are built from the settings.
        runner: workflow runner. The default is the sandboxed runner. `PRODUCTION_RUNNER` needs less
            memory.
        tenure: id of the lease on the host's name. All processes of a state home share the lease. See
            `hosting.tenure`.
    """
    use = adapters or build_adapters(client, settings)
    specs = worker_specs(settings, role, _work(client, settings, use))
    staff = WorkerQueries(client, settings.temporal.task_queue, version_of(settings.worker))
    mine = host_identity(settings).queues(settings)
    home = HostScope(mine, role is not Role.WORKFLOWS, staff.homes, use.copies)
    patience = (timedelta(seconds=settings.worker.no_worker_wait_s), timedelta(seconds=settings.worker.busy_wait_s))
    move_after = settings.remote.move_after_s
    allowed = timedelta(seconds=move_after) if move_after is not None else None
    staffing = WorkerCheckActivities(staff, *patience, allowed)
    presence = Presence(state_home() / "workers", client, tenure, _key_of(client))
    version = deployment_config(settings.worker)
    return [
        Worker(
            client,
            task_queue=spec.queue,
            identity=presence.identity,
            deployment_config=version,
            workflows=spec.workflows,
            # Workflows look for workers in local activities, so these run wherever workflows do.
            activities=[*spec.activities, *staffing.definitions] if spec.workflows else spec.activities,
            # Activities that use blocking libraries are plain functions, which need one thread per slot.
            activity_executor=ThreadPoolExecutor(spec.slots, thread_name_prefix=spec.queue),
            workflow_runner=runner or workflow_runner(),
            # Innermost, because the other interceptor converts errors to `ApplicationError`.
            interceptors=[ActivityInterceptor(home, client, presence), *measuring(client)],
            plugins=[SimplePlugin("tightloop presence", run_context=presence.alive)],
            max_cached_workflows=settings.worker.max_cached_workflows,
            tuner=tuner_of(settings.worker, spec.slots),
            # Delay before another worker gets the workflows of a dead one: 10.05 s by default, 2.07 s with 2 s.
            sticky_queue_schedule_to_start_timeout=timedelta(seconds=settings.worker.sticky_timeout_s),
            graceful_shutdown_timeout=timedelta(seconds=settings.worker.graceful_shutdown_s),
            # An activity learns of its cancellation through a heartbeat. By default the SDK throttles heartbeats to 0.8
            # of the heartbeat timeout, which is as long as the server may be unreachable.
            max_heartbeat_throttle_interval=timedelta(seconds=1),
            default_heartbeat_throttle_interval=timedelta(seconds=1),
        )
        for spec in specs
    ]


def _key_of(client: Client) -> str:
    """Return the part of a worker's identity that identifies its encryption key.

    A key is created if there is none. Call this only after comparing the keys with those of other workers.
    """
    codec = client.data_converter.payload_codec
    return f"{SEALS}:{codec.keys.current}" if isinstance(codec, SealingCodec) else ""


def _work(client: Client, settings: Settings, use: Adapters) -> Work:
    scenarios = ScenarioStore(settings)
    workspace = WorkspaceActivities(
        use.workspaces,
        use.stores,
        use.ledgers,
        use.differ,
        use.has_ended,
        _refusal_by(use, scenarios, has_bash=bool(settings.sandbox.image) or Path(BASH).exists()),
        use.setups,
    )
    verification = VerificationActivities(use.workspaces, use.stores, use.checks)
    proof = ProofActivities(
        use.workspaces,
        use.stores,
        use.checks,
        use.bench,
        use.differ,
        scenarios,
        twice_limit_s=settings.tracking.tests_twice_s,
    )
    tracking = TrackingActivities(use.workspaces, use.stores, use.ledgers, use.differ, use.gate, use.memories)
    execution = ExecutionActivities(use.workspaces, use.stores, use.outboxes, use.executors)
    planning = PlanningActivities(
        use.stores,
        use.planners,
        use.programs,
        command_takes_whole_plans=use.command_takes_whole_plans,
        prompt_privacy=settings.privacy.prompt_privacy_of,
        timeout=timedelta(seconds=settings.planner.plan_timeout_s),
        gate=use.gate,
        memories=use.memories,
        check_writers=use.check_writers,
        scenario_writers=lambda planner: _writer_of(use, planner),
        store_scenarios=scenarios.store,
    )
    reviewing = ReviewActivities(use.stores, use.differ, use.reviewers, settings.privacy.prompt_privacy_of)
    reflection = ReflectionActivities(
        use.stores, use.reflectors, settings.privacy.prompt_privacy_of, memories=use.memories
    )
    remote = RemoteActivities(use.copies, use.workspaces, use.ledgers, use.has_ended)
    # Workers of workflows send alerts too, because they may be the only ones running.
    alerting = AlertActivities(use.post, SentAlerts(use.ledgers))
    handling: list[Callable[..., Any]] = [
        workspace.open_workspace,
        workspace.set_up,
        workspace.adopt_workspace,
        workspace.restore_checkpoint,
        workspace.reconcile_reset,
        workspace.amend_request,
        workspace.close_workspace,
        verification.verify,
        proof.find_checks,
        proof.begin,
        proof.prove,
        proof.accept_proof,
        tracking.track_iteration,
        RecordActivities(use.ledgers).record,
        remote.copy_checkpoint,
        remote.take_over,
        RetentionActivities(GarbageCollector(client, settings).collect).collect_leftovers,
        *activities_of(plan_activities(use)),
        alerting.send_alerts,
    ]
    coder = coder_activities(use, settings)
    return Work(
        # The coder asks a model in `take_turn`, but its journal and tools need the workspace, so all of it is here.
        handling=[
            *handling,
            coder.begin_coding,
            coder.take_turn,
            coder.use_tool,
            coder.check_work,
            coder.judge_tests,
            coder.try_check,
        ],
        executing=[execution.hand_off, execution.execute, execution.conclude],
        thinking=[
            planning.next_plan,
            planning.write_check,
            planning.draft_scenarios,
            reviewing.review_proof,
            reflection.reflect,
        ],
    )


def _writer_of(use: Adapters, planner: str) -> ScenarioWriter | None:
    # Without a sandbox, agents could read the scenarios, and what a model wrote would run with the worker's rights.
    return use.scenario_writers(planner) if use.sandbox.name != UnsafeLocal.name else None


def _refusal_by(use: Adapters, scenarios: ScenarioStore, *, has_bash: bool) -> Callable[[EpisodeRequest], None]:
    """Return a function that raises an error for requests that this worker cannot carry out.

    The function rejects checks that cannot fail, checks that need bash if bash is missing, and hidden
    scenarios that are not on this host. It also rejects unknown executors, unless another queue serves
    executors.
    """

    def refuse(episode: EpisodeRequest) -> None:
        refuse_masked(episode.definition_of_done)
        piped = next((check.run for check in episode.definition_of_done if has_pipe(check.run)), "")
        if piped and not has_bash:
            raise InvalidRequestError(
                f"the check {shorten(piped, 80)!r} uses a pipe, which requires {BASH}. Other shells detect a "
                "failure only in the last command of a pipeline. Install bash on this host, or write the check "
                "without a pipe"
            )
        if not episode.queues.executor:
            for name in (episode.executor.name, *episode.executor.fallback):
                use.executors(name)
        if episode.scenarios is not None and episode.scenarios.count:
            scenarios.load(episode.scenarios)

    return refuse
