"""Calls to Temporal with a time limit. Failures are translated to tightloop errors."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import temporalio.api.common.v1 as common
import temporalio.api.workflowservice.v1 as service
from pydantic import BaseModel
from pydantic_core import from_json, to_json
from temporalio.client import (
    Client,
    WorkflowQueryFailedError,
    WorkflowUpdateFailedError,
    WorkflowUpdateRPCTimeoutOrCancelledError,
)
from temporalio.common import (
    SearchAttributeKey,
    SearchAttributePair,
    TypedSearchAttributes,
    WorkflowIDConflictPolicy,
    WorkflowIDReusePolicy,
)
from temporalio.exceptions import ApplicationError, WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from tightloop.client.connection import CALL_TIMEOUT, RETRY_SECONDS, converter_for, no_answer
from tightloop.client.execution import (
    ITERATION,
    KINDS,
    REQUEST,
    STATUS,
    Execution,
    Kind,
    read_execution,
    read_work,
    registration_command,
    setup_command,
)
from tightloop.client.records import History, Listing
from tightloop.client.sealing import sealing_as
from tightloop.client.workers import explain_silence, read_workers
from tightloop.errors import (
    EpisodeNotFoundError,
    IdTakenError,
    InvalidRequestError,
    ServiceUnavailableError,
    SettingsError,
    TightloopError,
    WorkspaceBusyError,
    WrongStateError,
)
from tightloop.run.core import CODER_WORKFLOW_TYPE, TASK_TIMEOUT
from tightloop.safety.seal import SealKind
from tightloop.value import shorten

QUERY_TIMEOUT = timedelta(seconds=5)
"""Timeout of a query. It is longer than our workers' sticky timeout, so that a query sent right after a crash reaches
the next worker.
"""
UPDATE_TIMEOUT = timedelta(seconds=20)
MESSAGE_BYTES = 1_500_000
"""Maximum size of a message in bytes. Temporal accepts values up to 2 MB. A larger update is delivered, but the worker
cannot accept it. The workflow then hangs until Temporal drops the update, about a minute later.
"""
LEVELS_LIMIT = 100
"""Maximum nesting depth of lists and objects. Workflows wrap values in a few more levels than the sender did."""
_TASK_LOST = "unexpected workflow task failure"
"""Message with which Temporal reports a discarded workflow task.

The status FAILED_PRECONDITION alone also has other causes, such as a missing worker.
"""
# Temporal schedules a new workflow task at once; the wait only prevents a busy loop.
_TASK_LOST_WAIT = timedelta(milliseconds=200)

_GO_ON = {
    Kind.EPISODE: "Continue from a checkpoint: tightloop restore {id} CKPT, or tightloop fork {id} CKPT",
    Kind.PLAN: "Run it again and reuse the finished steps: tightloop plan run --again {id}",
    Kind.LOOP: "Create another plan: tightloop loop plan --workspace PATH",
}
_ARTICLE = {Kind.EPISODE: "an", Kind.PLAN: "a"}
_REPLACE = ". To reuse the id and keep its checkpoints and timeline, add --replace"

# Set by the start itself, because lists filter by them before a worker has run the first workflow task.
_FIRST_ATTRIBUTES = TypedSearchAttributes(
    [
        SearchAttributePair(SearchAttributeKey.for_keyword(STATUS), "running"),
        SearchAttributePair(SearchAttributeKey.for_int(ITERATION), 0),
    ]
)

T = TypeVar("T")


class Calls:
    """Calls to Temporal over one connection, with time limits and error translation.

    Attributes:
        listing: lists workflows, with the same time limits and error translation.
        history: reads recorded runs, with the same time limits and error translation.
    """

    def __init__(self, client: Client, query_timeout: timedelta = QUERY_TIMEOUT) -> None:
        self.client = client
        self.listing = Listing(client, self.bound_call)
        self.history = History(client, self.bound_call)
        self._query_timeout = query_timeout

    @property
    def address(self) -> str:
        """Temporal's address."""
        # The address of the open connection, not of the settings: a caller may pass a client of its own.
        return self.client.service_client.config.target_host

    @property
    def is_plain(self) -> bool:
        """True if payloads are sent unencrypted."""
        return self.client.data_converter.payload_codec is None

    async def check_namespace(self) -> None:
        """Check that the namespace exists. Connecting does not check this.

        Raises:
            SettingsError: the namespace does not exist.
        """
        request = service.DescribeNamespaceRequest(namespace=self.client.namespace)
        async with self.bound_call("", CALL_TIMEOUT):
            try:
                await self.client.workflow_service.describe_namespace(request, timeout=CALL_TIMEOUT)
            except RPCError as error:
                # A role that may only start and steer cannot ask; its first call reports a missing namespace.
                if error.status not in (RPCStatusCode.PERMISSION_DENIED, RPCStatusCode.UNIMPLEMENTED):
                    raise

    async def _refuse_plain(self, workflow_id: str) -> None:
        """Raise an error instead of sending a plain-text message to an encrypted workflow.

        The workflow would drop such a message.
        """
        if self.is_plain and (await self.describe(workflow_id)).sealed:
            raise SettingsError(
                f"{workflow_id} is encrypted, but this client would send the message in plain text, so nothing was "
                "sent. Connect with the workers' settings and key file: await TightloopClient.connect()"
            )

    # -- one workflow ---------------------------------------------------------------------------

    async def describe(self, workflow_id: str) -> Execution:
        """Return Temporal's description of a workflow's newest run. This does not need a worker.

        Raises:
            EpisodeNotFoundError: there is no episode or plan with this id.
            ServiceUnavailableError: Temporal does not respond. Retryable.
        """
        request = service.DescribeWorkflowExecutionRequest(
            namespace=self.client.namespace, execution=common.WorkflowExecution(workflow_id=workflow_id)
        )
        async with self.bound_call(workflow_id, CALL_TIMEOUT):
            # Not the SDK's `describe`: version 1.35 raises ValueError for a workflow that Temporal itself has paused.
            answer = await self.client.workflow_service.describe_workflow_execution(
                request, retry=True, timeout=CALL_TIMEOUT
            )
        info, pause = answer.workflow_execution_info, answer.workflow_extended_info.pause_info
        # The namespace may also hold other programs' workflows, and those of the coder.
        if info.type.name not in KINDS:
            raise await self.listing.not_found(workflow_id)
        converter = converter_for(self.client, info.execution.workflow_id)
        execution = await read_execution(info, converter, pause.reason, answer.pending_activities)
        coders = (
            child.workflow_id for child in answer.pending_children if child.workflow_type_name == CODER_WORKFLOW_TYPE
        )
        work = await read_work(answer.pending_activities, self.client.data_converter)
        return execution.evolve(work=work, coder=next(coders, ""))

    async def parent_of(self, workflow_id: str) -> str:
        """Return the id of the workflow that started this workflow's newest run, or "" if there is none.

        The parent may be a workflow of any type.

        Raises:
            ServiceUnavailableError: Temporal does not respond. Retryable.
        """
        request = service.DescribeWorkflowExecutionRequest(
            namespace=self.client.namespace, execution=common.WorkflowExecution(workflow_id=workflow_id)
        )
        async with self.bound_call(workflow_id, CALL_TIMEOUT):
            try:
                answer = await self.client.workflow_service.describe_workflow_execution(
                    request, retry=True, timeout=CALL_TIMEOUT
                )
            except RPCError as error:
                # Deleted in the meantime. A missing namespace is NOT_FOUND, too.
                if error.status is RPCStatusCode.NOT_FOUND and not error.message.startswith("Namespace"):
                    return ""
                raise
        return str(answer.workflow_execution_info.parent_execution.workflow_id)

    async def start(
        self,
        workflow_id: str,
        workflow_type: str,
        request: BaseModel,
        *,
        task_queue: str,
        memo: dict[str, str],
        replace: bool = False,
    ) -> None:
        """Start a workflow.

        The id of a closed workflow is reused only if `replace` is set, or if the closed workflow was rejected
        when it started.

        Requests with an origin in the memo are idempotent. Repeating such a request does not start another
        workflow.

        Raises:
            IdTakenError: another request already started a workflow with this id.
            InvalidRequestError: the request is nested too deeply.
        """
        # A worker that cannot parse its input repeats the workflow task forever: the run would hang without an error.
        checked_json("start", request)
        origin = memo.get(REQUEST, "")
        # With `replace`, a repeated request would restart its own workflow once that has ended.
        if replace and origin and await self._is_started_by(origin, workflow_id):
            return

        async def start(reuse: WorkflowIDReusePolicy) -> None:
            async with self.bound_call(workflow_id, CALL_TIMEOUT):
                with sealing_as(SealKind.START):
                    await self.client.start_workflow(
                        workflow_type,
                        request,
                        id=workflow_id,
                        task_queue=task_queue,
                        id_reuse_policy=reuse,
                        # Not USE_EXISTING: the caller must learn that an open run has the id.
                        id_conflict_policy=WorkflowIDConflictPolicy.FAIL,
                        memo=memo,
                        static_summary=shorten(str(memo.get("goal", "")).partition("\n")[0], 150),
                        search_attributes=_FIRST_ATTRIBUTES,
                        task_timeout=TASK_TIMEOUT,
                        rpc_timeout=CALL_TIMEOUT,
                    )

        reuse = WorkflowIDReusePolicy.ALLOW_DUPLICATE if replace else WorkflowIDReusePolicy.REJECT_DUPLICATE
        try:
            await start(reuse)
        except WorkflowAlreadyStartedError as error:
            if origin and await self._is_started_by(origin, workflow_id):
                return
            if not await self._is_free(workflow_id):
                raise await self._explain_taken_id(workflow_id) from error
        else:
            return
        try:
            # Does not replace a workflow that starts in the meantime and succeeds.
            await start(WorkflowIDReusePolicy.ALLOW_DUPLICATE_FAILED_ONLY)
        except WorkflowAlreadyStartedError as error:
            raise await self._explain_taken_id(workflow_id) from error

    async def _is_started_by(self, origin: str, workflow_id: str) -> bool:
        try:
            newest = await self.describe(workflow_id)
        except EpisodeNotFoundError:
            return False
        # A rejected run may be newer than the one that the request started.
        return origin in (newest.request, (await self.listing.find_newest_accepted(newest)).request)

    async def _is_free(self, workflow_id: str) -> bool:
        """Return whether an id can be reused because all of its runs were rejected when they started."""
        try:
            return (await self.listing.find_newest_accepted(await self.describe(workflow_id))).refused
        except EpisodeNotFoundError:
            return False

    async def _explain_taken_id(self, workflow_id: str) -> TightloopError:
        try:
            execution = await self.listing.find_newest_accepted(await self.describe(workflow_id))
        except EpisodeNotFoundError:
            return IdTakenError(
                f"the id {workflow_id} is already used by another program's workflow. Choose another id"
            )
        what = f"{workflow_id} already exists: {execution.kind.noun}"
        if execution.is_open:
            return IdTakenError(
                f"{what}, {execution.status}. Choose another id, or cancel it first: tightloop cancel "
                f"{workflow_id}. Show its status: tightloop status {workflow_id}"
            )
        ended = f" {execution.closed:%Y-%m-%d %H:%M} UTC" if execution.closed else ""
        goal = f", {shorten(execution.goal.partition(chr(10))[0], 80)!r}" if execution.goal else ""
        go_on = _GO_ON[execution.kind].format(id=workflow_id) + (_REPLACE if execution.kind is Kind.EPISODE else "")
        return IdTakenError(f"{what}, {execution.status}{ended}{goal}. Choose another id. {go_on}")

    async def query(self, workflow_id: str, name: str, result_type: type[T], *arguments: Any, run_id: str = "") -> T:
        """Query a workflow or one of its runs. This needs a worker.

        Raises:
            ServiceUnavailableError: no worker responds, or Temporal does not respond. Retryable.
        """
        handle = self.client.get_workflow_handle(workflow_id, run_id=run_id or None)
        try:
            async with self.bound_call(workflow_id, self._query_timeout, worker=True):
                answer: T = await handle.query(
                    name, args=arguments, result_type=result_type, rpc_timeout=self._query_timeout
                )
        except WorkflowQueryFailedError as error:
            raise ServiceUnavailableError(
                f"the worker cannot answer {name!r} for {workflow_id}: {error.message}. If the worker's code is "
                "older or newer than the workflow, restart the worker: tightloop up"
            ) from error
        # The SDK (1.35) cannot parse the rejection of a query whose workflow Temporal itself has paused.
        except ValueError as error:
            raise await self._explain_frozen_run(workflow_id, error) from error
        return answer

    async def signal(self, workflow_id: str, name: str, argument: Any) -> None:
        """Send a signal. Temporal stores it until a worker processes it.

        Raises:
            InvalidRequestError: the workflow is closed, or the argument is too large.
        """
        _check_size(name, argument)
        # A signal has no reply: a worker drops a plain-text one, and the sender would never know.
        await self._refuse_plain(workflow_id)
        handle = self.client.get_workflow_handle(workflow_id)
        async with self.bound_call(workflow_id, CALL_TIMEOUT):
            with sealing_as(SealKind.MESSAGE):
                await handle.signal(name, argument, rpc_timeout=CALL_TIMEOUT)

    async def update(
        self,
        workflow_id: str,
        name: str,
        argument: Any,
        *,
        timeout: timedelta = UPDATE_TIMEOUT,
        message_id: str = "",
    ) -> str:
        """Send an update and return the workflow's reply.

        Args:
            workflow_id: id of the workflow.
            name: name of the update.
            argument: argument of the update.
            timeout: time limit for the reply.
            message_id: idempotency key. A repeated update returns the first reply. If empty, a key is
                generated.

        Raises:
            InvalidRequestError: the workflow is closed, the argument is too large, or the workflow rejects
                the update. In the last case, the message contains the reason.
            ServiceUnavailableError: no worker responds. Retryable.
        """
        _check_size(name, argument)
        await self._refuse_plain(workflow_id)
        requested_at = datetime.now(UTC)
        try:
            async with self.bound_call(workflow_id, timeout, worker=True):
                answer = await self._update(workflow_id, name, argument, timeout, message_id or str(uuid.uuid4()))
        except EpisodeNotFoundError as error:
            # The run closed at the same moment and does not know the update.
            execution = await self.describe(workflow_id)
            raise error if execution.is_open else self._closed_error(workflow_id, execution) from error
        except WorkflowUpdateFailedError as error:
            raise _refused_update(error.cause, workflow_id) from error
        except WorkflowUpdateRPCTimeoutOrCancelledError as error:
            # The SDK also raises this if the caller is cancelled.
            caller = asyncio.current_task()
            if caller is not None and caller.cancelling():
                raise asyncio.CancelledError from error
            raise await self._no_worker(workflow_id, requested_at) from error
        return answer

    async def _update(self, workflow_id: str, name: str, argument: Any, timeout: timedelta, update_id: str) -> str:
        """Send an update. If its workflow task was discarded, retry with the same id.

        Temporal discards a task if a new event arrives while the task is closing the run.
        """
        # Safe to repeat: Temporal returns the first result for a known id.
        handle = self.client.get_workflow_handle(workflow_id)
        while True:
            try:
                with sealing_as(SealKind.MESSAGE):
                    answer: str = await handle.execute_update(
                        name, argument, id=update_id, result_type=str, rpc_timeout=timeout
                    )
            except RPCError as error:
                if error.status is not RPCStatusCode.FAILED_PRECONDITION or _TASK_LOST not in error.message:
                    raise
                await asyncio.sleep(_TASK_LOST_WAIT.total_seconds())
            else:
                return answer

    # -- translation ----------------------------------------------------------------------------

    @asynccontextmanager
    async def bound_call(self, workflow_id: str, limit: timedelta, *, worker: bool = False) -> AsyncIterator[None]:
        """Limit the duration of a call, and translate its errors to tightloop errors.

        Args:
            workflow_id: id of the target workflow; empty if there is none.
            limit: timeout.
            worker: True if the call needs a response from a worker, not only from Temporal.
        """
        requested_at = datetime.now(UTC)
        try:
            # The SDK retries an unreachable server for 3 s; this deadline is a fallback.
            async with asyncio.timeout(limit.total_seconds() + RETRY_SECONDS):
                yield
        except TimeoutError as error:
            if worker:
                # If Temporal itself responds, the worker is missing; otherwise this call raises the right error.
                raise await self._no_worker(workflow_id, requested_at) from error
            raise no_answer(self.address, "timed out") from error
        except RPCError as error:
            raise await self._translate_error(error, workflow_id, requested_at if worker else None) from error
        except (RuntimeError, KeyError, ApplicationError) as error:
            # Only the data converter raises these: an unknown codec, or a payload of another program.
            raise SettingsError(
                f"cannot decode Temporal's response for {workflow_id} ({error}). Use the same tightloop release, "
                "key file and temporal.authenticate as the workers"
            ) from error

    async def _translate_error(
        self, error: RPCError, workflow_id: str, requested_at: datetime | None
    ) -> TightloopError:
        """Translate an error from Temporal to a tightloop error.

        Args:
            error: error raised by Temporal.
            workflow_id: id of the target workflow. Empty if there was none.
            requested_at: time when a worker was asked. None if only Temporal had to respond.
        """
        message = error.message
        match error.status:
            case RPCStatusCode.NOT_FOUND:
                # A missing namespace, a closed run and an unknown id share this status; only the text tells them apart.
                if message.startswith("Namespace"):
                    return SettingsError(
                        f"Temporal at {self.address} has no namespace {self.client.namespace!r}. "
                        "Change temporal.namespace, or create the namespace: "
                        f"{setup_command(self.address, self.client.namespace)}"
                    )
                if "already completed" in message:
                    return self._closed_error(workflow_id, await self.describe(workflow_id))
                return await self.listing.not_found(workflow_id)
            # Before the general case below: Temporal is reachable here, and it is the worker that does not respond.
            case RPCStatusCode.CANCELLED | RPCStatusCode.DEADLINE_EXCEEDED if requested_at:
                return await self._no_worker(workflow_id, requested_at)
            # Before the next case, whose advice would be to start a worker.
            case RPCStatusCode.FAILED_PRECONDITION if "paused" in message:
                return await self._explain_frozen_run(workflow_id, error)
            case RPCStatusCode.FAILED_PRECONDITION if requested_at:
                return await self._no_worker(workflow_id, requested_at)
            case RPCStatusCode.INVALID_ARGUMENT:
                return self._refused_call(message)
            case RPCStatusCode.PERMISSION_DENIED | RPCStatusCode.UNAUTHENTICATED:
                return SettingsError(f"Temporal at {self.address} denied access: {message}. Check temporal.api_key")
            case RPCStatusCode.UNAVAILABLE | RPCStatusCode.CANCELLED | RPCStatusCode.DEADLINE_EXCEEDED:
                return no_answer(self.address, message)
            case _:
                return ServiceUnavailableError(f"Temporal returned {error.status.name}: {message}")

    @staticmethod
    def _closed_error(workflow_id: str, execution: Execution) -> WrongStateError:
        go_on = _GO_ON[execution.kind].format(id=workflow_id)
        return WrongStateError(f"{workflow_id} is closed and no longer accepts messages. {go_on}", execution.status)

    def _refused_call(self, message: str) -> TightloopError:
        """Return the tightloop error for a call that Temporal rejected."""
        if "search attribute" not in message.lower():
            return InvalidRequestError(f"Temporal rejected the request: {message}")
        where = (self.address, self.client.namespace)
        return SettingsError(
            f"Temporal rejected the request: {message}. tightloop's search attributes are not registered in the "
            f"namespace {self.client.namespace!r}. Register them: {setup_command(*where)}; or by hand: "
            f"{registration_command(*where)}"
        )

    async def _no_worker(self, workflow_id: str, requested_at: datetime) -> ServiceUnavailableError:
        execution = await self.describe(workflow_id)
        try:
            workers = await read_workers(self.client, self.bound_call, execution.task_queue)
        except SettingsError:
            workers = ()  # a role that may only start and steer cannot list workers
        return ServiceUnavailableError(explain_silence(execution, workers, requested_at))

    async def _explain_frozen_run(self, workflow_id: str, error: BaseException) -> TightloopError:
        execution = await self.describe(workflow_id)
        if not execution.frozen:
            return ServiceUnavailableError(f"cannot read Temporal's response for {workflow_id}: {error}")
        return WrongStateError(f"{workflow_id} is {execution.frozen}. {execution.unfreeze}", execution.status)


def _check_size(name: str, argument: Any) -> None:
    size = len(checked_json(name, argument))
    if size > MESSAGE_BYTES:
        raise InvalidRequestError(
            f"{name}: the message is {size} bytes, but the limit is {MESSAGE_BYTES}. Put long text in a workspace "
            "file and refer to that file"
        )


def checked_json(name: str, argument: Any) -> bytes:
    """Convert the argument of a message to JSON.

    Raises:
        InvalidRequestError: the argument is nested too deeply for a worker to parse.
    """
    too_deep = InvalidRequestError(f"{name}: a value is nested more than {LEVELS_LIMIT} levels deep. Flatten the value")
    try:
        content = to_json(argument)
        inner = [from_json(content)]
    except ValueError:
        # pydantic's own limits are about 250 levels for writing and 200 for reading.
        raise too_deep from None
    # A loop, because a recursive check would itself fail on the values that it has to reject.
    for _ in range(LEVELS_LIMIT + 1):
        inner = [part for value in inner for part in _children_of(value)]
    if inner:
        raise too_deep
    return content


def _children_of(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def _refused_update(cause: BaseException, workflow_id: str) -> TightloopError:
    """Translate the error of a failed update, and keep the validator's message."""
    if not isinstance(cause, ApplicationError):
        return ServiceUnavailableError(f"{workflow_id} could not respond: {cause}")
    if cause.type == "AcceptedUpdateCompletedWorkflow":
        return ServiceUnavailableError(
            f"{workflow_id} accepted the message, but the run ended before it could reply. To see whether it took "
            f"effect, run: tightloop timeline {workflow_id}"
        )
    # The class has to survive the update, which carries only its name: callers retry this error later.
    if cause.type == WorkspaceBusyError.__name__:
        return WorkspaceBusyError(cause.message)
    return InvalidRequestError(cause.message)
