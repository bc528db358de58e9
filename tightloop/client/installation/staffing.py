"""Who works on which task queue, and how much waits there."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

import temporalio.api.taskqueue.v1 as taskqueue
import temporalio.api.workflowservice.v1 as service
from temporalio.api.enums.v1 import TaskQueueType

from tightloop.client.calls import Calls
from tightloop.client.connection import CALL_TIMEOUT
from tightloop.client.workers import Poller, alive, read_heartbeats, read_workers
from tightloop.episode.share import Urgency
from tightloop.episode.work import span
from tightloop.value import counted


async def workers_on(calls: Calls, queue: str) -> tuple[Poller, ...]:
    """Return who works on a task queue, without those that are gone; see `read_workers`."""
    return await read_workers(calls.client, calls.bounded, queue)


async def count_open(calls: Calls, version: str) -> int:
    """Return how many workflows are open on a version."""
    query = f'TemporalWorkerDeploymentVersion = "{version}" AND ExecutionStatus = "Running"'
    async with calls.bounded("", CALL_TIMEOUT):
        return (await calls.client.count_workflows(query)).count


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
    beats = await read_heartbeats(calls.client, calls.bounded, f"TaskQueue STARTS_WITH '{prefix}'")
    return tuple(sorted({beat.task_queue for beat in alive(beats)}))
