"""Whether what a client sends would be stored in plain text although the workers encrypt."""

import temporalio.api.workflowservice.v1 as service

from tightloop.client.calls import CALL_TIMEOUT, Calls
from tightloop.client.encryption import has_seals
from tightloop.client.execution import KINDS, SEALS
from tightloop.client.installation.staffing import workers_on
from tightloop.errors import SettingsError


async def refuse_plain_start(calls: Calls, task_queue: str) -> None:
    """Refuse to start anything in plain text on a task queue whose workers encrypt.

    Workers say so in their identity. Where none polls, the newest episode or plan of the queue tells; a queue that
    never had either cannot tell.

    Raises:
        SettingsError: nothing was sent.
    """
    if not calls.is_plain:
        return
    workers = await workers_on(calls, task_queue)
    if any(worker.identity.endswith(SEALS) for worker in workers) or (
        not workers and await _newest_is_sealed(calls, task_queue)
    ):
        raise SettingsError(
            f"the workers of task queue {task_queue!r} encrypt what Temporal stores, and this client would send it in "
            "plain text; nothing was sent. Connect with the workers' settings (temporal.authenticate, privacy) and "
            "their key file: await TightloopClient.connect()"
        )


async def _newest_is_sealed(calls: Calls, task_queue: str) -> bool:
    types = ", ".join(f'"{name}"' for name in KINDS)
    queue = task_queue.replace("\\", "\\\\").replace('"', '\\"')
    request = service.ListWorkflowExecutionsRequest(
        namespace=calls.client.namespace, page_size=1, query=f'WorkflowType IN ({types}) AND TaskQueue="{queue}"'
    )
    async with calls.bounded("", CALL_TIMEOUT):
        page = await calls.client.workflow_service.list_workflow_executions(request, retry=True, timeout=CALL_TIMEOUT)
    return any(has_seals(info.memo) for info in page.executions)
