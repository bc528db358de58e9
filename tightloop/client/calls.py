"""Calls to Temporal: each is bounded in time, and each failure is one sentence."""

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
from tightloop.run.routing import CODER_WORKFLOW_TYPE, TASK_TIMEOUT
from tightloop.safety.seal import SealKind
from tightloop.value import shorten

QUERY_TIMEOUT = timedelta(seconds=5)
"""Above the sticky timeout of our workers (2 s): a query right after a crash still finds the next worker."""
UPDATE_TIMEOUT = timedelta(seconds=20)
MESSAGE_BYTES = 1_500_000
"""Temporal takes values of up to 2 MB. It passes a larger update on, but the worker cannot accept it then, and the
workflow stands still until Temporal forgets the update, about a minute later."""
LEVELS_LIMIT = 100
"""Of lists and objects within each other. Workflows carry values some levels deeper than they were sent."""
_TASK_LOST = "unexpected workflow task failure"
"""Temporal's words: the status alone, FAILED_PRECONDITION, has other causes too, such as no worker."""
_TASK_LOST_WAIT = timedelta(milliseconds=200)

_GO_ON = {
    Kind.EPISODE: "Go on from one of its checkpoints: tightloop restore {id} CKPT, or tightloop fork {id} CKPT",
    Kind.PLAN: "Run it again, with what is done taken over: tightloop plan run --again {id}",
    Kind.LOOP: "Make another plan: tightloop loop plan --workspace PATH",
}
_ARTICLE = {Kind.EPISODE: "an", Kind.PLAN: "a"}
_REPLACE = "; or start again under it, with its checkpoints and timeline kept: --replace"

_FIRST_ATTRIBUTES = TypedSearchAttributes(
    [
        SearchAttributePair(SearchAttributeKey.for_keyword(STATUS), "running"),
        SearchAttributePair(SearchAttributeKey.for_int(ITERATION), 0),
    ]
)

T = TypeVar("T")


class Calls:
    """The calls of one connection.

    Attributes:
        listing: what Temporal lists; its calls are bounded and translated as these are.
        history: what Temporal has recorded of a run, likewise.
    """

    def __init__(self, client: Client, query_timeout: timedelta = QUERY_TIMEOUT) -> None:
        self.client = client
        self.listing = Listing(client, self.bounded)
        self.history = History(client, self.bounded)
        self._query_timeout = query_timeout

    @property
    def address(self) -> str:
        """Where Temporal listens."""
        return self.client.service_client.config.target_host

    @property
    def is_plain(self) -> bool:
        """Whether Temporal would store what is sent as it is."""
        return self.client.data_converter.payload_codec is None

    async def check_namespace(self) -> None:
        """Ask for the namespace, which a connection alone does not.

        Raises:
            SettingsError: it is missing.
        """
        request = service.DescribeNamespaceRequest(namespace=self.client.namespace)
        async with self.bounded("", CALL_TIMEOUT):
            try:
                await self.client.workflow_service.describe_namespace(request, timeout=CALL_TIMEOUT)
            except RPCError as error:
                # Who may only start and steer cannot ask; the first call tells them.
                if error.status not in (RPCStatusCode.PERMISSION_DENIED, RPCStatusCode.UNIMPLEMENTED):
                    raise

    async def _refuse_plain(self, workflow_id: str) -> None:
        """Refuse a message in plain text to a workflow that is stored encrypted, which would drop it."""
        if self.is_plain and (await self.describe(workflow_id)).sealed:
            raise SettingsError(
                f"{workflow_id} is stored encrypted, and this client would send its message in plain text; nothing was "
                "sent. Connect with the workers' settings and key file: await TightloopClient.connect()"
            )

    # -- one workflow ---------------------------------------------------------------------------

    async def describe(self, workflow_id: str) -> Execution:
        """Return what Temporal knows of the newest run.

        Raises:
            EpisodeNotFoundError: no episode and no plan has this id.
            ServiceUnavailableError: Temporal does not answer.
        """
        request = service.DescribeWorkflowExecutionRequest(
            namespace=self.client.namespace, execution=common.WorkflowExecution(workflow_id=workflow_id)
        )
        async with self.bounded(workflow_id, CALL_TIMEOUT):
            # Not the SDK's `describe`: it (1.35) raises ValueError for a workflow that Temporal itself has paused.
            answer = await self.client.workflow_service.describe_workflow_execution(
                request, retry=True, timeout=CALL_TIMEOUT
            )
        info, pause = answer.workflow_execution_info, answer.workflow_extended_info.pause_info
        if info.type.name not in KINDS:
            raise await self.listing.not_found(workflow_id)
        converter = converter_for(self.client, info.execution.workflow_id)
        seen = await read_execution(info, converter, pause.reason, answer.pending_activities)
        coders = (one.workflow_id for one in answer.pending_children if one.workflow_type_name == CODER_WORKFLOW_TYPE)
        work = await read_work(answer.pending_activities, self.client.data_converter)
        return seen.evolve(work=work, coder=next(coders, ""))

    async def parent_of(self, workflow_id: str) -> str:
        """Return the id of the workflow that started the newest run of another, of whatever type; empty without one.

        Raises:
            ServiceUnavailableError: Temporal does not answer.
        """
        request = service.DescribeWorkflowExecutionRequest(
            namespace=self.client.namespace, execution=common.WorkflowExecution(workflow_id=workflow_id)
        )
        async with self.bounded(workflow_id, CALL_TIMEOUT):
            try:
                answer = await self.client.workflow_service.describe_workflow_execution(
                    request, retry=True, timeout=CALL_TIMEOUT
                )
            except RPCError as error:
                # Removed since it was met. A missing namespace is NOT_FOUND, too.
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
        """Start a workflow; only with `replace` under the id of a closed one that had begun.

        A request that names itself in the memo is started once: sent again, it finds its workflow.

        Raises:
            IdTakenError: another request started a workflow with this id.
            InvalidRequestError: the request is nested too deeply.
        """
        checked_json("start", request)
        origin = memo.get(REQUEST, "")
        # `replace` would start over what this request started, once that has ended.
        if replace and origin and await self._is_started_by(origin, workflow_id):
            return

        async def start(reuse: WorkflowIDReusePolicy) -> None:
            async with self.bounded(workflow_id, CALL_TIMEOUT):
                with sealing_as(SealKind.START):
                    await self.client.start_workflow(
                        workflow_type,
                        request,
                        id=workflow_id,
                        task_queue=task_queue,
                        id_reuse_policy=reuse,
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
                raise await self._taken(workflow_id) from error
        else:
            return
        try:
            # Should another one begin meanwhile and end well, this does not hide it.
            await start(WorkflowIDReusePolicy.ALLOW_DUPLICATE_FAILED_ONLY)
        except WorkflowAlreadyStartedError as error:
            raise await self._taken(workflow_id) from error

    async def _is_started_by(self, origin: str, workflow_id: str) -> bool:
        try:
            newest = await self.describe(workflow_id)
        except EpisodeNotFoundError:
            return False
        return origin in (newest.request, (await self.listing.that_counts(newest)).request)

    async def _is_free(self, workflow_id: str) -> bool:
        """Return whether nothing ever began under an id that is known."""
        try:
            return (await self.listing.that_counts(await self.describe(workflow_id))).refused
        except EpisodeNotFoundError:
            return False

    async def _taken(self, workflow_id: str) -> TightloopError:
        try:
            seen = await self.listing.that_counts(await self.describe(workflow_id))
        except EpisodeNotFoundError:
            return IdTakenError(f"{workflow_id} is the id of a workflow of another program. Choose another id")
        what = f"{workflow_id} exists: {seen.kind.noun}"
        if seen.is_open:
            return IdTakenError(
                f"{what}, {seen.status}. Choose another id, or end it first: tightloop cancel {workflow_id}. "
                f"Look at it: tightloop status {workflow_id}"
            )
        ended = f" {seen.closed:%Y-%m-%d %H:%M} UTC" if seen.closed else ""
        goal = f", {shorten(seen.goal.partition(chr(10))[0], 80)!r}" if seen.goal else ""
        go_on = _GO_ON[seen.kind].format(id=workflow_id) + (_REPLACE if seen.kind is Kind.EPISODE else "")
        return IdTakenError(f"{what}, {seen.status}{ended}{goal}. Choose another id. {go_on}")

    async def query(self, workflow_id: str, name: str, result_type: type[T], *arguments: Any, run_id: str = "") -> T:
        """Ask the workflow, or one of its runs, which needs a worker.

        Raises:
            ServiceUnavailableError: no worker answers, or Temporal does not.
        """
        handle = self.client.get_workflow_handle(workflow_id, run_id=run_id or None)
        try:
            async with self.bounded(workflow_id, self._query_timeout, worker=True):
                answer: T = await handle.query(
                    name, args=arguments, result_type=result_type, rpc_timeout=self._query_timeout
                )
        except WorkflowQueryFailedError as error:
            raise ServiceUnavailableError(
                f"the worker cannot answer {name!r} for {workflow_id}: {error.message}. "
                f"If its code is older or newer than the workflow, restart it: tightloop up"
            ) from error
        except ValueError as error:
            raise await self._frozen(workflow_id, error) from error
        return answer

    async def signal(self, workflow_id: str, name: str, argument: Any) -> None:
        """Send a signal; Temporal keeps it until a worker takes it.

        Raises:
            InvalidRequestError: the workflow is closed, or the argument is too large.
        """
        _check_size(name, argument)
        await self._refuse_plain(workflow_id)
        handle = self.client.get_workflow_handle(workflow_id)
        async with self.bounded(workflow_id, CALL_TIMEOUT):
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
        """Send an update and return the workflow's sentence.

        Args:
            workflow_id: the workflow.
            name: of the update.
            argument: of the update.
            timeout: for the answer.
            message_id: sent again under the same id, it is answered as at first; empty: under a new one.

        Raises:
            InvalidRequestError: the workflow refuses, with its own sentence; it is closed; the argument is too large.
            ServiceUnavailableError: no worker answers.
        """
        _check_size(name, argument)
        await self._refuse_plain(workflow_id)
        asked = datetime.now(UTC)
        try:
            async with self.bounded(workflow_id, timeout, worker=True):
                answer = await self._update(workflow_id, name, argument, timeout, message_id or str(uuid.uuid4()))
        except EpisodeNotFoundError as error:
            # A run that closes at that moment does not find the update.
            seen = await self.describe(workflow_id)
            raise error if seen.is_open else self._closed(workflow_id, seen) from error
        except WorkflowUpdateFailedError as error:
            raise _refused_update(error.cause, workflow_id) from error
        except WorkflowUpdateRPCTimeoutOrCancelledError as error:
            # The SDK raises this for a caller that is cancelled, too.
            caller = asyncio.current_task()
            if caller is not None and caller.cancelling():
                raise asyncio.CancelledError from error
            raise await self._no_worker(workflow_id, asked) from error
        return answer

    async def _update(self, workflow_id: str, name: str, argument: Any, timeout: timedelta, update_id: str) -> str:
        """Send an update; again under the same id where the workflow task that carried it was thrown away.

        Temporal throws a task away when an event comes in while its last command closes the run.
        """
        # Temporal answers an id that it has seen with the first result, so sending it twice is safe.
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
    async def bounded(self, workflow_id: str, limit: timedelta, *, worker: bool = False) -> AsyncIterator[None]:
        """Bound a call in time and translate its failure.

        Args:
            workflow_id: the workflow that is called; empty where none is.
            limit: after which the call counts as not answered.
            worker: a worker has to answer, not Temporal alone.
        """
        asked = datetime.now(UTC)
        try:
            # The SDK retries an unreachable server for 3 s; the deadline here only backs that up.
            async with asyncio.timeout(limit.total_seconds() + RETRY_SECONDS):
                yield
        except TimeoutError as error:
            if worker:
                # Where Temporal itself answers, it is the worker that does not; else this says so.
                raise await self._no_worker(workflow_id, asked) from error
            raise no_answer(self.address, "no answer in time") from error
        except RPCError as error:
            raise await self._explained(error, workflow_id, asked if worker else None) from error
        except (RuntimeError, KeyError, ApplicationError) as error:
            # Only the data converter raises this here: a codec that we lack, or a payload of another program.
            raise SettingsError(
                f"Temporal's answer about {workflow_id} cannot be decoded ({error}). "
                "Use the tightloop release, the key file of the workers, and their temporal.authenticate"
            ) from error

    async def _explained(self, error: RPCError, workflow_id: str, asked: datetime | None) -> TightloopError:
        """Return the project's error for one of Temporal's.

        Args:
            error: of Temporal.
            workflow_id: the workflow that was called; empty where none was.
            asked: when a worker was asked; None: only Temporal had to answer.
        """
        message = error.message
        match error.status:
            case RPCStatusCode.NOT_FOUND:
                if message.startswith("Namespace"):
                    return SettingsError(
                        f"Temporal at {self.address} has no namespace {self.client.namespace!r}. "
                        "Correct temporal.namespace, or create it: "
                        f"{setup_command(self.address, self.client.namespace)}"
                    )
                if "already completed" in message:
                    return self._closed(workflow_id, await self.describe(workflow_id))
                return await self.listing.not_found(workflow_id)
            case RPCStatusCode.CANCELLED | RPCStatusCode.DEADLINE_EXCEEDED if asked:
                return await self._no_worker(workflow_id, asked)
            case RPCStatusCode.FAILED_PRECONDITION if "paused" in message:
                return await self._frozen(workflow_id, error)
            case RPCStatusCode.FAILED_PRECONDITION if asked:
                return await self._no_worker(workflow_id, asked)
            case RPCStatusCode.INVALID_ARGUMENT:
                return self._refused_call(message)
            case RPCStatusCode.PERMISSION_DENIED | RPCStatusCode.UNAUTHENTICATED:
                return SettingsError(f"Temporal at {self.address} refuses access: {message}. Check temporal.api_key")
            case RPCStatusCode.UNAVAILABLE | RPCStatusCode.CANCELLED | RPCStatusCode.DEADLINE_EXCEEDED:
                return no_answer(self.address, message)
            case _:
                return ServiceUnavailableError(f"Temporal answers {error.status.name}: {message}")

    @staticmethod
    def _closed(workflow_id: str, seen: Execution) -> WrongStateError:
        go_on = _GO_ON[seen.kind].format(id=workflow_id)
        return WrongStateError(f"{workflow_id} is closed and takes no more messages. {go_on}", seen.status)

    def _refused_call(self, message: str) -> TightloopError:
        """Return the error for a call that Temporal itself refuses."""
        if "search attribute" not in message.lower():
            return InvalidRequestError(f"Temporal refuses the request: {message}")
        where = (self.address, self.client.namespace)
        return SettingsError(
            f"Temporal refuses: {message}. The search attributes of tightloop are not registered in the namespace "
            f"{self.client.namespace!r}. Add them once: {setup_command(*where)}; or by hand: "
            f"{registration_command(*where)}"
        )

    async def _no_worker(self, workflow_id: str, asked: datetime) -> ServiceUnavailableError:
        seen = await self.describe(workflow_id)
        try:
            workers = await read_workers(self.client, self.bounded, seen.task_queue)
        except SettingsError:
            workers = ()  # who may only start and steer cannot ask who is there
        return ServiceUnavailableError(explain_silence(seen, workers, asked))

    async def _frozen(self, workflow_id: str, error: BaseException) -> TightloopError:
        seen = await self.describe(workflow_id)
        if not seen.frozen:
            return ServiceUnavailableError(f"Temporal's answer about {workflow_id} cannot be read: {error}")
        return WrongStateError(f"{workflow_id} is {seen.frozen}. {seen.unfreeze}", seen.status)


def _check_size(name: str, argument: Any) -> None:
    size = len(checked_json(name, argument))
    if size > MESSAGE_BYTES:
        raise InvalidRequestError(
            f"{name}: the message has {size} bytes; the maximum is {MESSAGE_BYTES}. "
            "Put long material into a file of the workspace and name it"
        )


def checked_json(name: str, argument: Any) -> bytes:
    """Return an argument as JSON.

    Raises:
        InvalidRequestError: it is nested more deeply than a worker could read it again.
    """
    too_deep = InvalidRequestError(f"{name}: a value is nested deeper than {LEVELS_LIMIT} levels. Make it flatter")
    try:
        content = to_json(argument)
        inner = [from_json(content)]
    except ValueError:
        # Its own bounds are about 250 levels to write and 200 to read.
        raise too_deep from None
    for _ in range(LEVELS_LIMIT + 1):
        inner = [each for value in inner for each in _within(value)]
    if inner:
        raise too_deep
    return content


def _within(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def _refused_update(cause: BaseException, workflow_id: str) -> TightloopError:
    """Return the error for an update that failed; a validator's own sentence is kept."""
    if not isinstance(cause, ApplicationError):
        return ServiceUnavailableError(f"{workflow_id} could not answer: {cause}")
    if cause.type == "AcceptedUpdateCompletedWorkflow":
        return ServiceUnavailableError(
            f"{workflow_id} took the message, but its run ended before it could answer. "
            f"See what became of it: tightloop timeline {workflow_id}"
        )
    if cause.type == WorkspaceBusyError.__name__:
        return WorkspaceBusyError(cause.message)
    return InvalidRequestError(cause.message)
