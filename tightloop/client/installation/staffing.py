"""Who works on which task queue, as Temporal knows it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import temporalio.api.taskqueue.v1 as taskqueue
import temporalio.api.workflowservice.v1 as service
from temporalio.api.enums.v1 import TaskQueueType, WorkerStatus, WorkerVersioningMode
from temporalio.api.worker.v1 import WorkerHeartbeat
from temporalio.service import RPCError, RPCStatusCode

from tightloop.client.calls import Calls
from tightloop.client.connection import CALL_TIMEOUT
from tightloop.client.execution import SEALS, moment
from tightloop.episode.share import Urgency
from tightloop.episode.work import span
from tightloop.value import counted

POLLER_FRESH = timedelta(seconds=70)
"""A poll lasts up to 60 s; who did not poll for longer than this is gone, though Temporal still lists it."""
# Servers before 1.29 keep no list of workers, and a role may be forbidden to read it.
_NO_LIST = (RPCStatusCode.UNIMPLEMENTED, RPCStatusCode.PERMISSION_DENIED, RPCStatusCode.INVALID_ARGUMENT)


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

    @property
    def process(self) -> str:
        """Process id and host."""
        return self.identity.partition(SEALS)[0]


def version_name(deployment: str, build_id: str) -> str:
    """Return a version of a Worker Deployment as Temporal's search attributes name it; empty: there is none."""
    return f"{deployment}:{build_id}" if deployment else ""


def is_fresh(worker: Poller) -> bool:
    """Return whether a worker has polled lately."""
    return worker.last_seen is not None and worker.last_seen > datetime.now(UTC) - POLLER_FRESH


async def workers_on(calls: Calls, queue: str) -> tuple[Poller, ...]:
    """Return who works on a task queue, without those that are gone.

    A worker with all slots taken does not poll, so that Temporal forgets its polls; its heartbeats tell of it.
    """
    found: dict[str, Poller] = {}
    kinds = (TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY, TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW)
    for kind in kinds:
        request = service.DescribeTaskQueueRequest(
            namespace=calls.client.namespace, task_queue=taskqueue.TaskQueue(name=queue), task_queue_type=kind
        )
        async with calls.bounded("", CALL_TIMEOUT):
            answer = await calls.client.workflow_service.describe_task_queue(request, timeout=CALL_TIMEOUT)
        for poller in answer.pollers:
            runs = kind is TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW
            options = poller.deployment_options
            is_versioned = options.worker_versioning_mode == WorkerVersioningMode.WORKER_VERSIONING_MODE_VERSIONED
            found[poller.identity] = Poller(
                poller.identity,
                moment(poller.last_access_time),
                runs_workflows=runs,
                version=version_name(options.deployment_name, options.build_id) if is_versioned else "",
            )
    found = {name: one for name, one in found.items() if is_fresh(one)}
    beats = await _heartbeats(calls, f"TaskQueue = '{queue}'")
    for beat in beats:
        if beat.status != WorkerStatus.WORKER_STATUS_RUNNING:
            found.pop(beat.worker_identity, None)
    for beat in _alive(beats):
        found[beat.worker_identity] = Poller(
            beat.worker_identity,
            moment(beat.heartbeat_time),
            _free_slots(beat),
            beat.workflow_poller_info.current_pollers > 0,
            version_name(beat.deployment_version.deployment_name, beat.deployment_version.build_id),
            beat.elapsed_since_last_heartbeat.ToTimedelta(),
        )
    return tuple(found.values())


@dataclass(frozen=True)
class Backlog:
    """The steps that wait on a task queue. Temporal counts them roughly, and some seconds late."""

    count: int
    oldest: timedelta
    by_priority: Mapping[int, int]

    def of(self, urgency: Urgency) -> int:
        """Return how many of a kind wait."""
        return self.by_priority.get(urgency, 0)

    def __str__(self) -> str:
        """Return how many wait since when, and who goes first."""
        names = {Urgency.PERSON_WAITS: "where a person waits", Urgency.RUNNING: "running", Urgency.NEW: "new"}
        kinds = [f"{self.of(key)} {name}" for key, name in names.items() if self.of(key)]
        waiting = f"{counted(self.count, 'step')}, the oldest for {span(self.oldest.total_seconds())}"
        return f"{waiting}; in this order: {', '.join(kinds)}" if kinds else waiting


async def backlog_of(calls: Calls, queue: str) -> Backlog:
    """Return which steps wait on a task queue for a free slot; none where the server does not count them."""
    request = service.DescribeTaskQueueRequest(
        namespace=calls.client.namespace,
        task_queue=taskqueue.TaskQueue(name=queue),
        task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY,
        report_stats=True,
    )
    async with calls.bounded("", CALL_TIMEOUT):
        answer = await calls.client.workflow_service.describe_task_queue(request, timeout=CALL_TIMEOUT)
    kinds = {key: stats.approximate_backlog_count for key, stats in answer.stats_by_priority_key.items()}
    oldest = answer.stats.approximate_backlog_age.ToTimedelta()
    return Backlog(answer.stats.approximate_backlog_count, oldest, kinds)


async def queues_with(calls: Calls, prefix: str) -> tuple[str, ...]:
    """Return the task queues that begin so and have a worker; empty where the server keeps no list of workers."""
    beats = await _heartbeats(calls, f"TaskQueue STARTS_WITH '{prefix}'")
    return tuple(sorted({beat.task_queue for beat in _alive(beats)}))


async def _heartbeats(calls: Calls, query: str) -> list[WorkerHeartbeat]:
    request = service.ListWorkersRequest(namespace=calls.client.namespace, query=query, page_size=1_000)
    async with calls.bounded("", CALL_TIMEOUT):
        try:
            answer = await calls.client.workflow_service.list_workers(request, timeout=CALL_TIMEOUT)
        except RPCError as error:
            if error.status in _NO_LIST:
                return []
            raise
    return [info.worker_heartbeat for info in answer.workers_info]


def _free_slots(beat: WorkerHeartbeat) -> int | None:
    slots = beat.activity_task_slots_info
    # Where resources bound the slots, nobody knows how many are free, and Temporal has 0.
    return None if slots.slot_supplier_kind == "ResourceBased" else slots.current_available_slots


def _alive(beats: Iterable[WorkerHeartbeat]) -> list[WorkerHeartbeat]:
    oldest = datetime.now(UTC) - POLLER_FRESH
    return [
        beat
        for beat in beats
        if beat.status == WorkerStatus.WORKER_STATUS_RUNNING and (moment(beat.heartbeat_time) or oldest) > oldest
    ]
