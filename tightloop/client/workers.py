"""The workers of a task queue as Temporal knows them: who lives, and to whom it sends work."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import temporalio.api.taskqueue.v1 as taskqueue
import temporalio.api.workflowservice.v1 as service
from temporalio.api.enums.v1 import TaskQueueType, WorkerStatus, WorkerVersioningMode
from temporalio.api.worker.v1 import WorkerHeartbeat
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from tightloop.client.connection import CALL_TIMEOUT, Bounded
from tightloop.client.execution import SEALS, Execution, moment, version_name

POLLER_FRESH = timedelta(seconds=70)
"""A poll lasts up to 60 s; who did not poll for longer than this is gone, though Temporal still lists it."""
MISSED_HEARTBEATS = 3
"""After so many a worker counts as dead. Temporal lists it for minutes."""
LEAST_PATIENCE = timedelta(seconds=3)
# Servers before 1.29 keep no list of workers, and a role may be forbidden to read it.
_NO_LIST = (RPCStatusCode.UNIMPLEMENTED, RPCStatusCode.PERMISSION_DENIED, RPCStatusCode.INVALID_ARGUMENT)


@dataclass(frozen=True)
class Routing:
    """The versions of workers to which Temporal sends the new work of a task queue; empty: those without a version."""

    current: str = ""
    ramping: str | None = None
    """Gets a share of it; None: no version does."""

    def reaches(self, version: str) -> bool:
        """Return whether workers of a version get new work."""
        return version in (self.current, self.ramping)


@dataclass(frozen=True)
class Poller:
    """A worker process on a task queue."""

    identity: str
    last_seen: datetime | None
    free_slots: int | None = None
    """For activities; None where the worker does not say."""
    runs_workflows: bool = False
    version: str = ""
    """Its deployment and build, as `name:build`; empty: it has none."""
    heartbeat: timedelta | None = None
    """How often it says that it lives; None where it only polls."""
    routing: Routing = Routing()
    """Of the task queue."""

    @property
    def process(self) -> str:
        """Process id and machine."""
        return self.identity.partition(SEALS)[0].partition("/")[0]

    @property
    def tenure(self) -> str:
        """Tenure of its host's name, see `worker.hosting.tenure`; empty: it has none."""
        return self.identity.partition(SEALS)[0].partition("/")[2].rpartition(".")[0]

    @property
    def gets_new_work(self) -> bool:
        """Whether Temporal sends new work to its version; else only what is open on that version."""
        return self.routing.reaches(self.version)


def is_fresh(worker: Poller) -> bool:
    """Return whether a worker has polled lately."""
    return worker.last_seen is not None and worker.last_seen > datetime.now(UTC) - POLLER_FRESH


def is_live(worker: Poller) -> bool:
    """Return whether a worker lives, as far as its heartbeats tell, or its last poll where it sends none."""
    patience = max(MISSED_HEARTBEATS * worker.heartbeat, LEAST_PATIENCE) if worker.heartbeat else POLLER_FRESH
    return worker.last_seen is not None and worker.last_seen > datetime.now(UTC) - patience


class Idle(NamedTuple):
    """Why the workers of a task queue get no new work; they may still work on what is open on their version."""

    reason: str
    fix: str
    """As the end of a sentence."""

    def __str__(self) -> str:
        """Return both as sentences."""
        return f"{self.reason}. Either {self.fix}"


def explain_idle(queue: str, workers: Sequence[Poller]) -> Idle | None:
    """Return why all workers of a task queue get no new work; None: one gets some, or none is there."""
    if not workers or any(one.gets_new_work for one in workers):
        return None
    current, versions = workers[0].routing.current, sorted({one.version for one in workers})
    ways = [f"start {workers_of(current)}"]
    ways += [
        f"send it to {workers_of(version)}: tightloop deploy promote{'' if version else ' --unversioned'}"
        for version in versions
    ]
    others = " or ".join(map(workers_of, versions))
    return Idle(
        f"Temporal sends the new work of task queue {queue!r} to {workers_of(current)}, not to {others}",
        ", or ".join(ways),
    )


def workers_of(version: str) -> str:
    """Return how a sentence calls the workers of a version."""
    return f"workers of {version}" if version else "workers without a version"


def explain_silence(execution: Execution, workers: Iterable[Poller], asked: datetime) -> str:
    """Return why no worker answered for a workflow, and what to do.

    Args:
        execution: of the workflow.
        workers: of its task queue.
        asked: when the question was sent. Who has said since then that it lives is busy, not missing.
    """
    version, queue = execution.version, execution.task_queue
    there = [one for one in workers if one.runs_workflows and is_live(one)]
    able = [one for one in there if (one.version == version if version else one.gets_new_work)]
    busy = [one.process for one in able if _was_there(one, asked)]
    if busy:
        return (
            f"the worker of {execution.id} lives but is busy, and did not answer in time ({', '.join(sorted(busy))} on "
            f"task queue {queue!r}). Try again in a moment. If that goes on, start another one: tightloop worker run "
            "--role workflows"
        )
    if version and not able:
        return (
            f"no worker answers for {execution.id}: it is open on {version}, which has no live workers on task queue "
            f"{queue!r}. Start them again, or see how it moves to others: tightloop deploy status"
        )
    silence = f"no worker answers on task queue {queue!r} for {execution.id}"
    idle = None if able else explain_idle(queue, there)
    return f"{silence}. {idle or 'Start one: tightloop up'}"


def _was_there(worker: Poller, asked: datetime) -> bool:
    """Return whether a worker was heard of after a moment, or could not be yet."""
    soon = worker.heartbeat is not None and datetime.now(UTC) - asked < worker.heartbeat
    return soon or (worker.last_seen is not None and worker.last_seen > asked)


async def read_workers(client: Client, bounded: Bounded, queue: str) -> tuple[Poller, ...]:
    """Return who works on a task queue, without those that are gone.

    A worker with all slots taken does not poll, so that Temporal forgets its polls; its heartbeats tell of it.
    """
    # A process may have workers of two versions.
    found: dict[tuple[str, str], Poller] = {}
    routings = dict[bool, Routing]()
    for kind in (TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY, TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW):
        runs = kind is TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW
        answer = await _describe(client, bounded, queue, kind)
        routings[runs] = _routing(answer.versioning_info)
        for poller in answer.pollers:
            options = poller.deployment_options
            is_versioned = options.worker_versioning_mode == WorkerVersioningMode.WORKER_VERSIONING_MODE_VERSIONED
            version = version_name(options.deployment_name, options.build_id) if is_versioned else ""
            found[poller.identity, version] = Poller(
                poller.identity,
                moment(poller.last_access_time),
                runs_workflows=runs,
                version=version,
                routing=routings[runs],
            )
    found = {name: one for name, one in found.items() if is_fresh(one)}
    beats = await read_heartbeats(client, bounded, f"TaskQueue = '{queue}'")
    for beat in beats:
        if beat.status != WorkerStatus.WORKER_STATUS_RUNNING:
            found.pop((beat.worker_identity, _version_of(beat)), None)
    for beat in alive(beats):
        # One that is busy with workflow tasks does not poll for them.
        runs = beat.workflow_poller_info.current_pollers > 0 or beat.workflow_task_slots_info.current_used_slots > 0
        found[beat.worker_identity, _version_of(beat)] = Poller(
            beat.worker_identity,
            moment(beat.heartbeat_time),
            _free_slots(beat),
            runs,
            _version_of(beat),
            beat.elapsed_since_last_heartbeat.ToTimedelta(),
            routings[runs],
        )
    return tuple(found.values())


async def read_routing(client: Client, bounded: Bounded, queue: str) -> Routing:
    """Return to whom Temporal sends the new workflows of a task queue, whether somebody is there or not."""
    answer = await _describe(client, bounded, queue, TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW)
    return _routing(answer.versioning_info)


async def _describe(
    client: Client, bounded: Bounded, queue: str, kind: TaskQueueType.ValueType
) -> service.DescribeTaskQueueResponse:
    request = service.DescribeTaskQueueRequest(
        namespace=client.namespace, task_queue=taskqueue.TaskQueue(name=queue), task_queue_type=kind
    )
    async with bounded("", CALL_TIMEOUT):
        return await client.workflow_service.describe_task_queue(request, timeout=CALL_TIMEOUT)


def _routing(info: taskqueue.TaskQueueVersioningInfo) -> Routing:
    current, ramping = info.current_deployment_version, info.ramping_deployment_version
    share = info.ramping_version_percentage
    return Routing(
        version_name(current.deployment_name, current.build_id),
        version_name(ramping.deployment_name, ramping.build_id) if share else None,
    )


async def read_heartbeats(client: Client, bounded: Bounded, query: str) -> list[WorkerHeartbeat]:
    """Return what the workers that a query finds have told; empty where the server keeps no list of workers."""
    request = service.ListWorkersRequest(namespace=client.namespace, query=query, page_size=1_000)
    async with bounded("", CALL_TIMEOUT):
        try:
            answer = await client.workflow_service.list_workers(request, timeout=CALL_TIMEOUT)
        except RPCError as error:
            if error.status in _NO_LIST:
                return []
            raise
    return [info.worker_heartbeat for info in answer.workers_info]


def _version_of(beat: WorkerHeartbeat) -> str:
    return version_name(beat.deployment_version.deployment_name, beat.deployment_version.build_id)


def _free_slots(beat: WorkerHeartbeat) -> int | None:
    slots = beat.activity_task_slots_info
    # Where resources bound the slots, nobody knows how many are free, and Temporal has 0.
    return None if slots.slot_supplier_kind == "ResourceBased" else slots.current_available_slots


def alive(beats: Iterable[WorkerHeartbeat]) -> list[WorkerHeartbeat]:
    """Return the heartbeats of those that run, and were heard of lately."""
    oldest = datetime.now(UTC) - POLLER_FRESH
    return [
        beat
        for beat in beats
        if beat.status == WorkerStatus.WORKER_STATUS_RUNNING and (moment(beat.heartbeat_time) or oldest) > oldest
    ]
