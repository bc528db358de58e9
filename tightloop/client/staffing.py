"""Workers and waiting steps by task queue."""

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple

import temporalio.api.taskqueue.v1 as taskqueue
import temporalio.api.workflowservice.v1 as service
from temporalio.api.enums.v1 import TaskQueueType

from tightloop.client.calls import Calls
from tightloop.client.connection import CALL_TIMEOUT
from tightloop.client.workers import Poller, alive, read_heartbeats, read_workers
from tightloop.errors import TightloopError
from tightloop.run.core import Queues, Urgency
from tightloop.value import Value, format_count
from tightloop.wording import span

if TYPE_CHECKING:
    from tightloop.settings import Settings


async def workers_on(calls: Calls, queue: str) -> tuple[Poller, ...]:
    """Return the live workers of a task queue; see `read_workers`."""
    return await read_workers(calls.client, calls.bound_call, queue)


async def count_open(calls: Calls, version: str) -> int:
    """Count the open workflows of a worker version."""
    query = f'TemporalWorkerDeploymentVersion = "{version}" AND ExecutionStatus = "Running"'
    async with calls.bound_call("", CALL_TIMEOUT):
        return (await calls.client.count_workflows(query)).count


@dataclass(frozen=True)
class Backlog:
    """The steps that are waiting on a task queue. The counts are approximate and a few seconds old."""

    count: int
    oldest: timedelta
    by_priority: Mapping[int, int]

    def of(self, urgency: Urgency) -> int:
        """Return the number of waiting steps with this urgency."""
        return self.by_priority.get(urgency, 0)

    def __str__(self) -> str:
        """Return the number of waiting steps, the longest wait and the order of the steps as text."""
        names = {Urgency.PERSON_WAITS: "that a person waits for", Urgency.RUNNING: "running", Urgency.NEW: "new"}
        kinds = [f"{self.of(key)} {name}" for key, name in names.items() if self.of(key)]
        waiting = f"{format_count(self.count, 'step')}, the oldest for {span(self.oldest.total_seconds())}"
        return f"{waiting}, in this order: {', '.join(kinds)}" if kinds else waiting


async def backlog_of(calls: Calls, queue: str) -> Backlog:
    """Return the steps that are waiting for a free slot on a task queue.

    The result is empty if the server does not count waiting steps.
    """
    request = service.DescribeTaskQueueRequest(
        namespace=calls.client.namespace,
        task_queue=taskqueue.TaskQueue(name=queue),
        task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY,
        report_stats=True,
    )
    async with calls.bound_call("", CALL_TIMEOUT):
        answer = await calls.client.workflow_service.describe_task_queue(request, timeout=CALL_TIMEOUT)
    kinds = {key: stats.approximate_backlog_count for key, stats in answer.stats_by_priority_key.items()}
    oldest = answer.stats.approximate_backlog_age.ToTimedelta()
    return Backlog(answer.stats.approximate_backlog_count, oldest, kinds)


async def queues_with(calls: Calls, prefix: str) -> tuple[str, ...]:
    """Return the task queues with this prefix that have a worker.

    The result is empty if the server does not list workers.
    """
    beats = await read_heartbeats(calls.client, calls.bound_call, f"TaskQueue STARTS_WITH '{prefix}'")
    return tuple(sorted({beat.task_queue for beat in alive(beats)}))


# A query occupies a worker, so these bounds keep `doctor` short and the workers free.
ASKED_MOST = 100
ASKED_AT_ONCE = 10
ASK_SECONDS = 15.0


class UnservedHost(NamedTuple):
    """A host without a worker, with the open work that only this host can do."""

    queue: str
    """Task queue of the host."""
    ids: tuple[str, ...]


class _RequestQueues(Value):
    """The task queues in the request of any kind of run. Other fields are ignored."""

    queues: Queues = Queues.model_construct()


async def find_unserved_hosts(calls: Calls, settings: "Settings") -> tuple[UnservedHost, ...]:
    """Return the hosts that have open work but no worker.

    Only a workflow knows its host, so the first `ASKED_MOST` workflows in Temporal's list are queried.
    Workflows that do not respond within `ASK_SECONDS` are omitted.

    Raises:
        ServiceUnavailableError: Temporal does not respond. Retryable.
    """
    main = settings.temporal.task_queue
    ids: list[str] = []
    async with contextlib.aclosing(calls.listing.executions(only_open=True)) as executions:
        async for run in executions:
            if run.task_queue == main and not run.frozen:
                ids.append(run.id)
            if len(ids) == ASKED_MOST:
                break
    homes: defaultdict[str, list[str]] = defaultdict(list)
    free = asyncio.Semaphore(ASKED_AT_ONCE)

    async def ask(workflow_id: str) -> None:
        async with free:
            with contextlib.suppress(TightloopError):
                request = await calls.query(workflow_id, "request", _RequestQueues)
                homes[request.queues.home].append(workflow_id)

    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(ASK_SECONDS):
            await asyncio.gather(*map(ask, ids))
    homes.pop("", None)
    # Read last, so that a worker that started in the meantime is not reported as missing.
    served = await queues_with(calls, f"{main}-workspace-")
    return tuple(
        [
            UnservedHost(queue, tuple(sorted(waiting)))
            for queue, waiting in sorted(homes.items())
            if queue not in served and not await workers_on(calls, queue)
        ]
    )
