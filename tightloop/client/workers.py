"""Workers on a task queue, as known to Temporal: liveness, versions and routing."""

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
"""Time after its last poll for which a worker counts as present. A poll lasts up to 60 s. A worker that has not polled
for longer is gone, although Temporal still lists it.
"""
MISSED_HEARTBEATS = 3
"""Number of missed heartbeats after which a worker is considered dead. Temporal still lists it for minutes."""
LEAST_PATIENCE = timedelta(seconds=3)
# Servers before 1.29 have no worker list, and a role may lack permission to read it.
_NO_LIST = (RPCStatusCode.UNIMPLEMENTED, RPCStatusCode.PERMISSION_DENIED, RPCStatusCode.INVALID_ARGUMENT)


@dataclass(frozen=True)
class Routing:
    """The worker versions that receive new work from a task queue. Empty for unversioned workers."""

    current: str = ""
    ramping: str | None = None
    """Version that gets a share of new work, or None if there is none."""

    def reaches(self, version: str) -> bool:
        """Return whether workers of a version receive new work."""
        return version in (self.current, self.ramping)


@dataclass(frozen=True)
class Poller:
    """A worker process that polls a task queue."""

    identity: str
    last_seen: datetime | None
    free_slots: int | None = None
    """Number of free activity slots, or None if not reported."""
    runs_workflows: bool = False
    version: str = ""
    """Deployment version as `name:build`, or "" if there is none."""
    heartbeat: timedelta | None = None
    """Heartbeat interval, or None if the worker only polls."""
    routing: Routing = Routing()
    """Routing of the task queue."""

    @property
    def process(self) -> str:
        """Process id and machine."""
        return self.identity.partition(SEALS)[0].partition("/")[0]

    @property
    def tenure(self) -> str:
        """The tenure in the worker's identity, or "" if there is none. See `worker.hosting.tenure`."""
        return self.identity.partition(SEALS)[0].partition("/")[2].rpartition(".")[0]

    @property
    def gets_new_work(self) -> bool:
        """True if the worker's version receives new work. Otherwise, the worker only continues open work."""
        return self.routing.reaches(self.version)


def is_fresh(worker: Poller) -> bool:
    """Return whether a worker has polled recently enough to count as present."""
    return worker.last_seen is not None and worker.last_seen > datetime.now(UTC) - POLLER_FRESH


def is_live(worker: Poller) -> bool:
    """Return whether a worker is alive, based on its heartbeats.

    If the worker sends no heartbeats, its last poll is used.
    """
    patience = max(MISSED_HEARTBEATS * worker.heartbeat, LEAST_PATIENCE) if worker.heartbeat else POLLER_FRESH
    return worker.last_seen is not None and worker.last_seen > datetime.now(UTC) - patience


class Idle(NamedTuple):
    """Explains why no worker of a task queue receives new work.

    The workers may still continue open work that belongs to their version.
    """

    reason: str
    fix: str
    """Advice on how to fix this, phrased as the end of a sentence."""

    def __str__(self) -> str:
        """Return the reason and the advice as sentences."""
        return f"{self.reason}. Either {self.fix}"


def explain_idle(queue: str, workers: Sequence[Poller]) -> Idle | None:
    """Explain why the workers of a task queue receive no new work.

    Return None if a worker receives new work, or if there are no workers.
    """
    if not workers or any(worker.gets_new_work for worker in workers):
        return None
    # The routing belongs to the task queue, so that of any worker will do.
    current, versions = workers[0].routing.current, sorted({worker.version for worker in workers})
    ways = [f"start {workers_of(current)}"]
    ways += [
        f"send new work to {workers_of(version)}: tightloop deploy promote{'' if version else ' --unversioned'}"
        for version in versions
    ]
    alternatives = " or ".join(map(workers_of, versions))
    return Idle(
        f"Temporal sends new work on task queue {queue!r} to {workers_of(current)}, not to {alternatives}",
        ", or ".join(ways),
    )


def workers_of(version: str) -> str:
    """Return a phrase for the workers of a version, such as `workers without a version`."""
    return f"workers of {version}" if version else "workers without a version"


def explain_silence(execution: Execution, workers: Iterable[Poller], requested_at: datetime) -> str:
    """Explain why no worker responded for a workflow, and give advice.

    Args:
        execution: execution of the workflow.
        workers: workers of the workflow's task queue.
        requested_at: time of the request. A worker that was seen after this time is busy, not missing.
    """
    version, queue = execution.version, execution.task_queue
    there = [worker for worker in workers if worker.runs_workflows and is_live(worker)]
    # A pinned run waits for its version; any other run goes where new work goes.
    able = [worker for worker in there if (worker.version == version if version else worker.gets_new_work)]
    busy = [worker.process for worker in able if _was_there(worker, requested_at)]
    if busy:
        return (
            f"the worker of {execution.id} is busy and did not respond in time ({', '.join(sorted(busy))} on "
            f"task queue {queue!r}). Try again in a moment. If that fails, start another worker: tightloop worker run "
            "--role workflows"
        )
    if version and not able:
        return (
            f"no worker is responding for {execution.id}: the run is open on {version}, which has no live workers on "
            f"task queue {queue!r}. Restart these workers, or see how to move the run to other workers: tightloop "
            "deploy status"
        )
    silence = f"no worker is responding on task queue {queue!r} for {execution.id}"
    idle = None if able else explain_idle(queue, there)
    return f"{silence}. {idle or 'Start a worker: tightloop up'}"


def _was_there(worker: Poller, requested_at: datetime) -> bool:
    """Return whether a worker was seen after the request, or its next heartbeat is still to come."""
    soon = worker.heartbeat is not None and datetime.now(UTC) - requested_at < worker.heartbeat
    return soon or (worker.last_seen is not None and worker.last_seen > requested_at)


async def read_workers(client: Client, bounded: Bounded, queue: str) -> tuple[Poller, ...]:
    """Return the live workers of a task queue.

    A worker without a free slot does not poll, so Temporal stops listing it as a poller. Such a worker is
    found by its heartbeats.
    """
    # A process may have workers of two versions.
    pollers: dict[tuple[str, str], Poller] = {}
    routings = dict[bool, Routing]()
    # Workflow pollers last: they overwrite the entry of a worker that polls for both.
    for kind in (TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY, TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW):
        runs = kind is TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW
        answer = await _describe(client, bounded, queue, kind)
        routings[runs] = _routing(answer.versioning_info)
        for poller in answer.pollers:
            options = poller.deployment_options
            is_versioned = options.worker_versioning_mode == WorkerVersioningMode.WORKER_VERSIONING_MODE_VERSIONED
            version = version_name(options.deployment_name, options.build_id) if is_versioned else ""
            pollers[poller.identity, version] = Poller(
                poller.identity,
                moment(poller.last_access_time),
                runs_workflows=runs,
                version=version,
                routing=routings[runs],
            )
    pollers = {name: entry for name, entry in pollers.items() if is_fresh(entry)}
    beats = await read_heartbeats(client, bounded, f"TaskQueue = '{queue}'")
    for beat in beats:
        # A worker that is shutting down accepts no more work.
        if beat.status != WorkerStatus.WORKER_STATUS_RUNNING:
            pollers.pop((beat.worker_identity, _version_of(beat)), None)
    for beat in alive(beats):
        # A worker busy with workflow tasks does not poll for more.
        runs = beat.workflow_poller_info.current_pollers > 0 or beat.workflow_task_slots_info.current_used_slots > 0
        pollers[beat.worker_identity, _version_of(beat)] = Poller(
            beat.worker_identity,
            moment(beat.heartbeat_time),
            _free_slots(beat),
            runs,
            _version_of(beat),
            beat.elapsed_since_last_heartbeat.ToTimedelta(),
            routings[runs],
        )
    return tuple(pollers.values())


async def read_routing(client: Client, bounded: Bounded, queue: str) -> Routing:
    """Return the routing of new workflows on a task queue, even if no worker is live."""
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
    """Return the heartbeats of the workers that match a query.

    The result is empty if the server does not list workers.
    """
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
    # With resource-based slots the free number is unknown, and Temporal reports 0.
    return None if slots.slot_supplier_kind == "ResourceBased" else slots.current_available_slots


def alive(beats: Iterable[WorkerHeartbeat]) -> list[WorkerHeartbeat]:
    """Return the recent heartbeats from running workers."""
    oldest = datetime.now(UTC) - POLLER_FRESH
    return [
        beat
        for beat in beats
        if beat.status == WorkerStatus.WORKER_STATUS_RUNNING and (moment(beat.heartbeat_time) or oldest) > oldest
    ]
