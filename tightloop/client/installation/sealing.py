"""Whether clients and workers can read each other: all encrypt or none does, and they have each other's keys."""

from collections.abc import Iterable

import temporalio.api.taskqueue.v1 as taskqueue
import temporalio.api.workflowservice.v1 as service
from temporalio.api.enums.v1 import TaskQueueType
from temporalio.service import RPCError, RPCStatusCode

from tightloop.client.calls import Calls
from tightloop.client.connection import CALL_TIMEOUT
from tightloop.client.encryption import has_seals
from tightloop.client.execution import KINDS, SEALS, moment
from tightloop.client.installation.staffing import workers_on
from tightloop.client.sealing import SealingCodec
from tightloop.client.workers import Poller, is_fresh
from tightloop.errors import SettingsError


async def refuse_unreadable_start(calls: Calls, task_queue: str) -> None:
    """Refuse to start in plain text what the workers of a task queue encrypt, or with a key that is not theirs.

    Workers say in their identity whether they encrypt, and with which key. Where none polls, the newest episode or
    plan of the queue tells whether they do; a queue that never had either cannot tell.

    Raises:
        SettingsError: nothing was sent.
    """
    workers = await workers_on(calls, task_queue)
    if not calls.is_plain:
        _refuse_stranger(calls, workers, task_queue)
        return
    if any(SEALS in worker.identity for worker in workers) or (
        not workers and await _newest_is_sealed(calls, task_queue)
    ):
        raise SettingsError(
            f"the workers of task queue {task_queue!r} encrypt what Temporal stores, and this client would send it in "
            "plain text; nothing was sent. Connect with the workers' settings (temporal.authenticate, privacy) and "
            "their key file: await TightloopClient.connect()"
        )


async def refuse_other_keys(calls: Calls, task_queue: str) -> None:
    """Refuse to connect where a worker of a task queue encrypts with a key that is not here; no key is made.

    One call, which a role that may only start and steer is spared.

    Raises:
        SettingsError: neither side could read the other.
    """
    if not isinstance(calls.client.data_converter.payload_codec, SealingCodec):
        return
    request = service.DescribeTaskQueueRequest(
        namespace=calls.client.namespace,
        task_queue=taskqueue.TaskQueue(name=task_queue),
        task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW,
    )
    async with calls.bounded("", CALL_TIMEOUT):
        try:
            answer = await calls.client.workflow_service.describe_task_queue(request, timeout=CALL_TIMEOUT)
        except RPCError as error:
            if error.status in (RPCStatusCode.PERMISSION_DENIED, RPCStatusCode.UNIMPLEMENTED):
                return
            raise
    workers = [Poller(one.identity, moment(one.last_access_time)) for one in answer.pollers]
    _refuse_stranger(calls, filter(is_fresh, workers), task_queue)


def _refuse_stranger(calls: Calls, workers: Iterable[Poller], task_queue: str) -> None:
    if stranger := find_stranger(calls, workers):
        raise SettingsError(
            f"{stranger}, and works on task queue {task_queue!r}: it could not read what this client sends; "
            "nothing was sent. Copy the key file of the workers (keys.json), or name it: privacy.keys_file"
        )


def find_stranger(calls: Calls, workers: Iterable[Poller]) -> str:
    """Return which worker seals with a key that is not here, as the start of a sentence; empty: none does."""
    codec = calls.client.data_converter.payload_codec
    if not isinstance(codec, SealingCodec):
        return ""
    for worker in workers:
        key_id = worker.identity.partition(f"{SEALS}:")[2]
        try:
            if key_id:
                codec.keys.cipher(key_id)
        except SettingsError:
            return f"worker {worker.process} encrypts with key {key_id!r}, which is not among the keys here"
    return ""


async def _newest_is_sealed(calls: Calls, task_queue: str) -> bool:
    types = ", ".join(f'"{name}"' for name in KINDS)
    queue = task_queue.replace("\\", "\\\\").replace('"', '\\"')
    request = service.ListWorkflowExecutionsRequest(
        namespace=calls.client.namespace, page_size=1, query=f'WorkflowType IN ({types}) AND TaskQueue="{queue}"'
    )
    async with calls.bounded("", CALL_TIMEOUT):
        page = await calls.client.workflow_service.list_workflow_executions(request, retry=True, timeout=CALL_TIMEOUT)
    return any(has_seals(info.memo) for info in page.executions)
