"""Parts of the composition root: coder, plans, project plans, memory and copies."""

import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from types import MethodType
from typing import Any

from pydantic import ValidationError
from temporalio.client import Client

from activities.alerts.activity import AlertDelivery
from activities.artifacts.port import ArtifactStores
from activities.artifacts.stores import open_local_store
from activities.checks.runner import CheckRunner
from activities.checks.setup import SandboxedSetups
from activities.coder.activity import CoderActivities
from activities.coder.calls import ToolExecutor
from activities.coder.executor import CoderExecutor
from activities.coder.port import CoderMemory, TurnModel
from activities.coder.reviewing import ChangedTests, CodeReviewer
from activities.coder.tools import make_tools
from activities.coder.turns import TurnTaker
from activities.executor.choose import ExecutorDependencies, ExecutorRegistry, executors
from activities.executor.port import Executors, Outboxes
from activities.loop.inspection import InspectionActivities
from activities.loop.project import ProjectRunner, grown_plan, last_commits, open_packets
from activities.loop.tasks import TaskPlanners
from activities.memory.embedders import choose_embedder
from activities.memory.port import BestEffortMemories, Memories, TextMemory, no_memories
from activities.model.client import OPENAI_URL, ModelService, load_client
from activities.plan.activity import STEP_ACTIVITIES, PlanActivities, PlanPorts
from activities.plan.attempts.trees import Trees
from activities.plan.children import StepChildren
from activities.plan.plan_writer import PlannerOptions, PlanWriter
from activities.plan.port import Runner
from activities.plan.runners.decision import CheckpointRunner, DecisionRunner, MilestoneRunner
from activities.plan.runners.edit import EditRunner
from activities.plan.runners.gate import GateRunner
from activities.plan.runners.git import GitRunner
from activities.plan.runners.http import HttpRunner
from activities.plan.runners.model import ModelRunner, PlanModel
from activities.plan.runners.search import SearchRunner
from activities.plan.runners.shell import ShellRunner
from activities.planner.activity import Planners
from activities.planner.reflection import Reflectors
from activities.planner.writers import CheckWriters, ScenarioWriters
from activities.proof.checkouts import LocalCheckouts
from activities.proof.reviewer import Reviewers
from activities.remote.activity import Copies
from activities.remote.s3 import EncryptedBucket, S3Bucket, probe
from activities.safety.code import CodeScanner
from activities.safety.gate import AlignmentChecker
from activities.sandbox.port import Sandbox
from activities.testing import SandboxedTestGate
from activities.workspace.differ import Differ
from activities.workspace.port import OpenEpisodes
from activities.workspace.scope import EpisodeScope, Ledgers
from activities.workspace.store.writer import PackedTrees
from activities.workspace.working_tree import Workspaces
from tightloop.client.sealing import SealingCodec
from tightloop.coder.model import CODER, Bounds, known_roles
from tightloop.database.memory.store import MemoryStore, memory_database, open_memory
from tightloop.errors import InvalidRequestError
from tightloop.host import state_folder
from tightloop.host.identity import host_identity
from tightloop.memory import Kind, Query
from tightloop.plan.step import Capability
from tightloop.safety.drift import PromptPrivacy
from tightloop.settings import SandboxSettings, Settings
from tightloop.value import Document, Value, first_problem


def coder_service(settings: Settings, environ: Mapping[str, str]) -> ModelService:
    """Return the coder's model service. Settings that the coder lacks are taken from the planner."""
    coder, planner = settings.coder, settings.planner
    # A base URL of the coder's own may belong to another provider, who must not get the planner's key.
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
    service = coder_service(settings, os.environ)

    def problem() -> str:
        if not service.configured:
            variable = settings.coder.api_key_env or settings.planner.api_key_env
            return f"no model is available: set {variable}, or set coder.base_url to a service that needs no key"
        return sandbox.probe()

    return CoderExecutor(problem, (*settings.sandbox.network, *settings.sandbox.write))


def host_executors(settings: Settings, host_surroundings: ExecutorDependencies) -> ExecutorRegistry:
    """Return the executors that this host offers, including the coder."""
    return executors(host_surroundings, {CODER: coder_executor(settings, host_surroundings.sandbox)})


def load_early(settings: Settings, sandbox: Sandbox) -> None:
    """Preload the model client and probe the sandbox, so that the first turn or command is not delayed."""
    service = coder_service(settings, os.environ)
    if service.configured:
        sandbox.probe()
        load_client(service)


@dataclass(frozen=True, kw_only=True)
class PlanAdapters:
    """The ports of the plan activities. Episodes also use most of them."""

    workspaces: Workspaces
    stores: ArtifactStores
    ledgers: Ledgers
    checks: CheckRunner
    sandbox: Sandbox
    """Sandbox in which the shell steps of plans run."""
    sandbox_settings: SandboxSettings
    differ: Differ
    has_ended: OpenEpisodes
    plan_runners: Mapping[Capability, Runner] = field(default_factory=dict)
    """Additional runners by capability. They override the built-in runners."""
    bench: LocalCheckouts = field(default_factory=LocalCheckouts)
    """Runs proofs of success, and trial runs of the checks that were found."""
    settings: Settings = field(default_factory=Settings)
    """Defaults for `episode` steps."""
    plan_children: StepChildren | None = None
    """Replacement for the built-in preparation and settlement of child workflows."""
    plan_writer: PlanWriter | None = None
    """Plan writer. If it is None, every plan must be provided as text or as a file."""
    task_planners: TaskPlanners | None = None
    """Task planners. None disables project planning."""
    plan_secrets: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The worker's environment variables, with the hosts that plans may send them to."""

    @property
    def setups(self) -> SandboxedSetups:
        """Runner for the setup commands of projects, which run in the sandbox."""
        return SandboxedSetups(self.sandbox, self.sandbox_settings, self.settings.workspace)


def plan_activities(use: PlanAdapters) -> PlanActivities:
    trees, shell = Trees(), ShellRunner(use.sandbox, use.sandbox_settings)
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
    if use.task_planners is not None:
        privacy_of = use.settings.privacy.prompt_privacy_of
        runners[Capability.PROJECT] = ProjectRunner(_inspection(use), use.task_planners, privacy_of)
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
            run_command=shell.run,
            has_ended=use.has_ended,
            grow=partial(grown_plan, use.stores),
            setups=use.setups,
        )
    )


def activities_of(plans: PlanActivities) -> list[Callable[..., Any]]:
    """Return the plan activities that a workspace worker registers."""
    return [
        plans.open_plan,
        plans.load_plan,
        plans.revise_plan,
        *(MethodType(method, plans) for method in STEP_ACTIVITIES.values()),
        plans.leave_workspace,
        plans.enter_workspace,
        plans.pass_milestone,
        plans.prepare_children,
        plans.settle_children,
        plans.compensate_step,
        plans.verify_plan,
        plans.close_plan,
    ]


def model_runners(service: ModelService, prompt_privacy_of: Callable[[str], PromptPrivacy]) -> dict[Capability, Runner]:
    """Return the runners for `model` and `decision` steps. They apply the prompt privacy of each workspace."""
    model = PlanModel(service, prompt_privacy_of)
    return {Capability.MODEL: ModelRunner(model), Capability.DECISION: DecisionRunner(model)}


def plan_writer(service: ModelService, settings: Settings) -> PlanWriter:
    """Return the plan writer. It refuses to write plans if `plans.agent_planning` is off."""
    plans = settings.plans
    longer = replace(service, max_output_tokens=max(service.max_output_tokens, plans.max_output_tokens))
    return PlanWriter(
        PlannerOptions(
            service=longer,
            caution=plans.caution(settings.executor.programs, settings.alignment.rubric),
            prompt_privacy_of=settings.privacy.prompt_privacy_of,
            enabled=plans.agent_planning,
        )
    )


@dataclass(frozen=True, kw_only=True)
class Adapters(PlanAdapters):
    """The ports of all activities. Tests and embedding programs can replace individual fields."""

    outboxes: Outboxes
    executors: Executors
    planners: Planners
    check_writers: CheckWriters = lambda _planner: None
    scenario_writers: ScenarioWriters = lambda _planner: None
    reviewers: Reviewers = lambda _planner: None
    reflectors: Reflectors
    post: AlertDelivery = field(default_factory=AlertDelivery)
    """Alert channels."""
    gate: AlignmentChecker = field(default_factory=AlignmentChecker)
    """Alignment rubric."""
    coder_model: TurnModel
    memories: Memories = no_memories
    copies: Copies | None = None
    """Copies in the remote store. None if no remote store is configured."""
    programs: tuple[str, ...] = ()
    command_takes_whole_plans: bool = False


def coder_activities(use: Adapters, settings: Settings) -> CoderActivities:
    """Return the activities that the coder needs."""

    def memory_of(scope: EpisodeScope) -> CoderMemory | None:
        memory = use.memories(Path(scope.workspace))
        return TextMemory(memory, scope.holder) if memory.is_enabled else None

    rules, coder = settings.alignment.code_rules(), settings.coder
    reviewer = CodeReviewer(rules, CodeScanner(rules))
    toolbox = ToolExecutor(make_tools(use.checks, settings.alignment.rubric), review=reviewer.review)
    gate = SandboxedTestGate(use.sandbox, use.sandbox_settings, use.bench)
    return CoderActivities(
        workspaces=use.workspaces,
        stores=use.stores,
        outboxes=use.outboxes,
        turns=TurnTaker(model=use.coder_model, tools=toolbox, settings=coder, privacy=settings.privacy),
        tool_executor=toolbox,
        tests=ChangedTests(gate, reviewer.review),
        reviewer=reviewer,
        checks=use.checks,
        memory_of=memory_of,
        bounds=Bounds.of(coder, turns_of={name: coder.role(name).max_turns for name in known_roles()}),
    )


def _inspection(use: PlanAdapters) -> InspectionActivities:
    return InspectionActivities(
        workspaces=use.workspaces,
        stores=use.stores,
        ledgers=use.ledgers,
        differ=use.differ,
        runner=use.checks,
        checkouts=use.bench,
        history=last_commits,
        packets=open_packets,
        project=lambda workspace: state_folder(workspace).name,
        settings=use.settings.gates.for_project,
    )


class Recall(Document):
    """Request to search the project memory."""

    project: str
    """The project's id in the memory database."""
    text: str
    kind: Kind = Kind.FAILURE
    limit: int = 5


def memories(settings: Settings, service: ModelService) -> Memories:
    """Return a function that opens project memories.

    Failures of a memory are not raised to its caller.
    """
    if not settings.memory.enabled:
        return no_memories

    # Cached, so that a local embedding model is loaded only once.
    embedder = cache(lambda: choose_embedder(settings.memory, service))

    def open_workspace_memory(workspace: Path) -> MemoryStore:
        level = settings.privacy.prompt_privacy_of(str(workspace.resolve()))
        # A failing line may quote any file, so at this privacy level no text goes to a remote embedder.
        leaves = settings.memory.embedder == "openai" and level is PromptPrivacy.SUMMARY
        return open_memory(settings, None if leaves else embedder())

    return BestEffortMemories(
        open_workspace_memory, lambda workspace: state_folder(workspace).name, max_recollections=settings.memory.shown
    )


def print_recollections(settings: Settings, service: ModelService) -> None:
    """Read a `Recall` as JSON from standard input and print the hits as JSON.

    Raises:
        InvalidRequestError: the input is invalid.
        SettingsError: the configured embedder cannot be used.
    """
    try:
        request = Recall.model_validate_json(sys.stdin.buffer.read())
    except ValidationError as error:
        raise InvalidRequestError(f"recall: {first_problem(error)}") from None
    memory = MemoryStore(memory_database(settings), choose_embedder(settings.memory, service), settings.memory)
    hits: tuple[Value, ...]
    if request.kind is Kind.FAILURE:
        hits = memory.recall(
            request.project, Query(text=request.text, limit=request.limit, solved=False, in_words=True)
        )
    else:
        hits = memory.search(request.project, request.text, kind=request.kind, limit=request.limit)
    print(json.dumps([hit.model_dump(mode="json") for hit in hits]))


def copies_of(settings: Settings, client: Client) -> Copies | None:
    """Return the checkpoint copies in the configured bucket, or None if no bucket is configured.

    Raises:
        SettingsError: the required library is not installed.
    """
    if not settings.remote.bucket:
        return None
    bucket, codec = S3Bucket(settings.remote), client.data_converter.payload_codec
    # Copies leave the host, so they are protected with the same keys as payloads.
    sealed = EncryptedBucket(bucket, codec.keys) if isinstance(codec, SealingCodec) else bucket
    return Copies(sealed, host_identity(settings).queues(settings), PackedTrees(), open_local_store)


def need_bucket(settings: Settings) -> None:
    """Check that the configured bucket works. Do nothing if no bucket is configured.

    Raises:
        SettingsError: the bucket's server ignores conditional writes.
        ServiceUnavailableError: the server does not respond, or denies access.
    """
    if settings.remote.bucket:
        bucket = S3Bucket(settings.remote)
        probe(bucket, str(bucket))
