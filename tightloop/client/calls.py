"""Calls to Temporal: each bounded in time, each failure a sentence."""

import asyncio
import contextlib
import difflib
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, TypeVar, cast

import temporalio.api.common.v1 as common
import temporalio.api.operatorservice.v1 as operatorservice
import temporalio.api.taskqueue.v1 as taskqueue
import temporalio.api.workflow.v1 as workflow
import temporalio.api.workflowservice.v1 as service
from pydantic import BaseModel
from temporalio.api.enums.v1 import TaskQueueType
from temporalio.client import (
    Client,
    Interceptor,
    WorkflowContinuedAsNewError,
    WorkflowFailureError,
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
from temporalio.converter import DataConverter, decode_typed_search_attributes
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RetryConfig, RPCError, RPCStatusCode

from tightloop.client.answers import (
    ITERATION,
    PAUSE_KIND,
    PAUSED,
    RUNNING,
    STATUS,
    Execution,
    Poller,
    moment,
    refused_call,
    refused_update,
    result_of_failure,
    status_word,
)
from tightloop.client.encryption import open_all
from tightloop.episode import WORKFLOW_TYPE, EpisodeResult
from tightloop.errors import (
    EpisodeNotFoundError,
    InvalidRequestError,
    ServiceUnavailableError,
    SettingsError,
    TightloopError,
)
from tightloop.settings import Settings
from tightloop.value import shorten

CONNECT_TIMEOUT = timedelta(seconds=5)
CALL_TIMEOUT = timedelta(seconds=10)
QUERY_TIMEOUT = timedelta(seconds=5)
"""Above the sticky timeout of our workers (2 s): a query right after a crash still finds the next worker."""
UPDATE_TIMEOUT = timedelta(seconds=20)
_STARTING = "not healthy yet"
"""A server that has just started says so."""
_STARTING_WAIT = timedelta(milliseconds=100)
_TASK_LOST = "unexpected workflow task failure"
_TASK_LOST_WAIT = timedelta(milliseconds=200)
HISTORY_TIMEOUT = timedelta(seconds=120)
POLLER_FRESH = timedelta(seconds=70)
"""A poll lasts up to 60 s; who did not poll for longer than this is gone, though Temporal still lists it."""

_PAGE = 200
# Fewer retries than the SDK's default: it logs from the fifth on, and `watch` has patience of its own.
_RETRY_SECONDS = 3
_RETRY = RetryConfig(max_retries=4, max_elapsed_time_millis=_RETRY_SECONDS * 1_000)

_FIRST_ATTRIBUTES = TypedSearchAttributes(
    [
        SearchAttributePair(SearchAttributeKey.for_keyword(STATUS), "running"),
        SearchAttributePair(SearchAttributeKey.for_int(ITERATION), 0),
    ]
)

T = TypeVar("T")


async def connect(
    settings: Settings, data_converter: DataConverter, interceptors: Sequence[Interceptor] = ()
) -> Client:
    """Connect to Temporal, within `CONNECT_TIMEOUT`.

    Raises:
        ServiceUnavailableError: nobody answers at the address, or not as Temporal.
    """
    temporal = settings.temporal
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT.total_seconds()):
            while True:
                try:
                    return await Client.connect(
                        temporal.address,
                        namespace=temporal.namespace,
                        data_converter=data_converter,
                        tls=temporal.tls,
                        api_key=temporal.api_key.get_secret_value() or None,
                        retry_config=_RETRY,
                        interceptors=interceptors,
                    )
                except RuntimeError as error:
                    if _STARTING not in str(error):
                        raise
                await asyncio.sleep(_STARTING_WAIT.total_seconds())
    except (RuntimeError, ValueError, TimeoutError, RPCError) as error:
        raise ServiceUnavailableError(
            f"Temporal does not answer at {temporal.address} ({_reason(error)}). Start it: tightloop up"
        ) from error


def _reason(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {CONNECT_TIMEOUT.total_seconds():g} s"
    text = str(error)
    for known in ("Connection refused", "dns error", "tls handshake", "Network is unreachable"):
        if known.lower() in text.lower():
            return known.lower()
    return text.removeprefix("Failed client connect: ")[:160]


class Calls:
    """The calls of one connection, about workflows of one type."""

    workflow_type: ClassVar[str] = WORKFLOW_TYPE
    noun: ClassVar[str] = "episode"
    show: ClassVar[str] = "tightloop status"
    """Command that shows one of them."""

    def __init__(self, client: Client, query_timeout: timedelta = QUERY_TIMEOUT) -> None:
        """Use an open connection."""
        self.client = client
        self._query_timeout = query_timeout

    @property
    def address(self) -> str:
        """Where Temporal listens."""
        return self.client.service_client.config.target_host

    # -- one episode ----------------------------------------------------------------------------

    async def describe(self, episode_id: str) -> Execution:
        """Return what Temporal knows of the newest run.

        Raises:
            EpisodeNotFoundError: no episode has this id.
            ServiceUnavailableError: Temporal does not answer.
        """
        request = service.DescribeWorkflowExecutionRequest(
            namespace=self.client.namespace, execution=common.WorkflowExecution(workflow_id=episode_id)
        )
        async with self._bounded(episode_id, CALL_TIMEOUT):
            answer = await self.client.workflow_service.describe_workflow_execution(
                request, retry=True, timeout=CALL_TIMEOUT
            )
        if answer.workflow_execution_info.type.name != self.workflow_type:
            raise await self.not_found(episode_id)
        pause = answer.workflow_extended_info.pause_info
        return await self._execution(answer.workflow_execution_info, pause.reason)

    async def start(self, episode_id: str, request: BaseModel, *, task_queue: str, memo: dict[str, str]) -> None:
        """Start a workflow.

        Raises:
            InvalidRequestError: an open one has this id.
        """
        try:
            async with self._bounded(episode_id, CALL_TIMEOUT):
                await self.client.start_workflow(
                    self.workflow_type,
                    request,
                    id=episode_id,
                    task_queue=task_queue,
                    id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
                    id_conflict_policy=WorkflowIDConflictPolicy.FAIL,
                    memo=memo,
                    static_summary=shorten(str(memo.get("goal", "")).partition("\n")[0], 150),
                    search_attributes=_FIRST_ATTRIBUTES,
                    rpc_timeout=CALL_TIMEOUT,
                )
        except WorkflowAlreadyStartedError as error:
            raise InvalidRequestError(
                f"the {self.noun} {episode_id} is already open. Choose another id, or look at it: "
                f"{self.show} {episode_id}"
            ) from error

    async def end_of_run(self, seen: Execution) -> None:
        """Wait until a run ends, however it does; returns early when Temporal cannot be reached."""
        handle = self.client.get_workflow_handle(seen.episode_id, run_id=seen.run_id)
        with contextlib.suppress(WorkflowFailureError, WorkflowContinuedAsNewError, RPCError):
            await handle.result(follow_runs=False)

    async def outcome(self, seen: Execution) -> EpisodeResult:
        """Return what a closed run left behind, however it ended."""
        handle = self.client.get_workflow_handle(seen.episode_id, run_id=seen.run_id, result_type=EpisodeResult)
        try:
            async with self._bounded(seen.episode_id, CALL_TIMEOUT):
                return cast(EpisodeResult, await handle.result(follow_runs=False, rpc_timeout=CALL_TIMEOUT))
        except WorkflowFailureError as error:
            return result_of_failure(error.cause, seen.iteration)

    async def query(self, episode_id: str, name: str, result_type: type[T], *arguments: Any) -> T:
        """Ask the workflow, which needs a worker.

        Raises:
            ServiceUnavailableError: no worker answers, or Temporal does not.
        """
        handle = self.client.get_workflow_handle(episode_id)
        try:
            async with self._bounded(episode_id, self._query_timeout, worker=True):
                answer: T = await handle.query(
                    name, args=arguments, result_type=result_type, rpc_timeout=self._query_timeout
                )
        except WorkflowQueryFailedError as error:
            raise ServiceUnavailableError(
                f"the worker cannot answer {name!r} for {episode_id}: {error.message}. "
                "If its code is older or newer than the episode, restart it: tightloop up"
            ) from error
        except ValueError as error:
            raise await self._frozen(episode_id, error) from error
        return answer

    async def signal(self, episode_id: str, name: str, argument: Any) -> None:
        """Send a signal; Temporal keeps it until a worker takes it.

        Raises:
            InvalidRequestError: the episode is closed.
        """
        handle = self.client.get_workflow_handle(episode_id)
        async with self._bounded(episode_id, CALL_TIMEOUT):
            await handle.signal(name, argument, rpc_timeout=CALL_TIMEOUT)

    async def update(self, episode_id: str, name: str, argument: Any, *, timeout: timedelta = UPDATE_TIMEOUT) -> str:
        """Send an update and return the workflow's sentence.

        Raises:
            InvalidRequestError: the workflow refuses, with its own sentence; or the episode is closed.
            ServiceUnavailableError: no worker answers.
        """
        try:
            async with self._bounded(episode_id, timeout, worker=True):
                answer = await self._update(episode_id, name, argument, timeout)
        except WorkflowUpdateFailedError as error:
            raise refused_update(error.cause, episode_id) from error
        except WorkflowUpdateRPCTimeoutOrCancelledError as error:
            raise await self._no_worker(episode_id) from error
        return answer

    async def _update(self, episode_id: str, name: str, argument: Any, timeout: timedelta) -> str:
        """Send an update; again under the same id where the workflow task that carried it was thrown away.

        Temporal throws a task away when an event comes in while its last command closes the run.
        """
        handle, update_id = self.client.get_workflow_handle(episode_id), str(uuid.uuid4())
        while True:
            try:
                answer: str = await handle.execute_update(
                    name, argument, id=update_id, result_type=str, rpc_timeout=timeout
                )
            except RPCError as error:
                if error.status is not RPCStatusCode.FAILED_PRECONDITION or _TASK_LOST not in error.message:
                    raise
                await asyncio.sleep(_TASK_LOST_WAIT.total_seconds())
            else:
                return answer

    async def history(self, episode_id: str) -> str:
        """Return the newest run's history as JSON, as Temporal's own tools write it, decrypted."""
        handle = self.client.get_workflow_handle(episode_id)
        async with self._bounded(episode_id, HISTORY_TIMEOUT):
            history = await handle.fetch_history(rpc_timeout=CALL_TIMEOUT)
            if codec := self.client.data_converter.payload_codec:
                for event in history.events:
                    await open_all(event, codec)
        return await asyncio.to_thread(history.to_json)

    # -- all episodes ---------------------------------------------------------------------------

    async def executions(self, *, only_open: bool = False) -> AsyncGenerator[Execution]:
        """Yield the newest run of each episode: open ones first, then the last closed.

        A run that continued as new is no episode of its own, and a restored episode is listed once.
        """
        query = f'WorkflowType="{self.workflow_type}" AND ExecutionStatus!="ContinuedAsNew"'
        query += " AND CloseTime IS NULL" if only_open else ""
        seen: set[str] = set()
        token = b""
        while True:
            request = service.ListWorkflowExecutionsRequest(
                namespace=self.client.namespace, page_size=_PAGE, next_page_token=token, query=query
            )
            async with self._bounded("", CALL_TIMEOUT):
                page = await self.client.workflow_service.list_workflow_executions(
                    request, retry=True, timeout=CALL_TIMEOUT
                )
            for info in page.executions:
                if info.execution.workflow_id not in seen:
                    seen.add(info.execution.workflow_id)
                    yield await self._execution(info)
            token = page.next_page_token
            if not token:
                return

    async def not_found(self, episode_id: str) -> EpisodeNotFoundError:
        """Return the error that names the nearest known ids."""
        known: list[str] = []
        async for row in self.executions():
            known.append(row.episode_id)
            if len(known) >= _PAGE:
                break
        nearest = difflib.get_close_matches(episode_id, known, n=3, cutoff=0.5) or known[:3]
        hint = (
            f"Known are {', '.join(nearest)}; see all with: tightloop list"
            if nearest
            else 'There is none yet. Start one: tightloop start "make the tests pass" --done "pytest -q"'
        )
        return EpisodeNotFoundError(f"there is no episode {episode_id!r}. {hint}")

    def closed(self, episode_id: str) -> str:
        """Return the sentence for a message to one that has ended."""
        return (
            f"the episode {episode_id} is closed and takes no more messages. Go on from one of its "
            f"checkpoints with: tightloop restore {episode_id} CKPT, or tightloop fork {episode_id} CKPT"
        )

    # -- the installation -----------------------------------------------------------------------

    async def search_attributes(self) -> frozenset[str]:
        """Return the names of the search attributes that the namespace knows."""
        request = operatorservice.ListSearchAttributesRequest(namespace=self.client.namespace)
        async with self._bounded("", CALL_TIMEOUT):
            answer = await self.client.operator_service.list_search_attributes(request, timeout=CALL_TIMEOUT)
        return frozenset(answer.custom_attributes)

    async def pollers(self, queue: str) -> tuple[Poller, ...]:
        """Return who polls a task queue for workflows or activities, without those that are gone."""
        found: dict[str, Poller] = {}
        for kind in (TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW, TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY):
            request = service.DescribeTaskQueueRequest(
                namespace=self.client.namespace, task_queue=taskqueue.TaskQueue(name=queue), task_queue_type=kind
            )
            async with self._bounded("", CALL_TIMEOUT):
                answer = await self.client.workflow_service.describe_task_queue(request, timeout=CALL_TIMEOUT)
            for poller in answer.pollers:
                found[poller.identity] = Poller(poller.identity, moment(poller.last_access_time))
        oldest = datetime.now(UTC) - POLLER_FRESH
        return tuple(p for p in found.values() if p.last_seen is not None and p.last_seen > oldest)

    # -- translation ----------------------------------------------------------------------------

    @asynccontextmanager
    async def _bounded(self, episode_id: str, limit: timedelta, *, worker: bool = False) -> AsyncIterator[None]:
        try:
            # The SDK retries an unreachable server for 3 s; the deadline here only backs that up.
            async with asyncio.timeout(limit.total_seconds() + _RETRY_SECONDS):
                yield
        except TimeoutError as error:
            if worker:
                # Where Temporal itself answers, it is the worker that does not; else this says so.
                raise await self._no_worker(episode_id) from error
            raise self._silent("no answer in time") from error
        except RPCError as error:
            raise await self._explained(error, episode_id, worker=worker) from error
        except (RuntimeError, KeyError) as error:
            # Only the data converter raises this here: a codec that we lack, or a payload of another program.
            raise SettingsError(
                f"Temporal's answer about {episode_id} cannot be decoded ({error}). "
                "Use the same tightloop release and the same payload encryption as the workers"
            ) from error

    def _silent(self, why: str) -> ServiceUnavailableError:
        return ServiceUnavailableError(f"Temporal does not answer at {self.address} ({why}). Start it: tightloop up")

    async def _explained(self, error: RPCError, episode_id: str, *, worker: bool = False) -> TightloopError:
        """Return the project's error for one of Temporal's."""
        message = error.message
        match error.status:
            case RPCStatusCode.NOT_FOUND:
                return await self._nothing_there(message, episode_id)
            case RPCStatusCode.CANCELLED | RPCStatusCode.DEADLINE_EXCEEDED if worker:
                return await self._no_worker(episode_id)
            case RPCStatusCode.FAILED_PRECONDITION if "paused" in message:
                return await self._frozen(episode_id, error)
            case RPCStatusCode.FAILED_PRECONDITION if worker:
                return await self._no_worker(episode_id)
            case RPCStatusCode.INVALID_ARGUMENT:
                return refused_call(message)
            case RPCStatusCode.PERMISSION_DENIED | RPCStatusCode.UNAUTHENTICATED:
                return SettingsError(f"Temporal at {self.address} refuses access: {message}. Check temporal.api_key")
            case RPCStatusCode.UNAVAILABLE | RPCStatusCode.CANCELLED | RPCStatusCode.DEADLINE_EXCEEDED:
                return self._silent(message)
            case _:
                return ServiceUnavailableError(f"Temporal answers {error.status.name}: {message}")

    async def _nothing_there(self, message: str, episode_id: str) -> TightloopError:
        if message.startswith("Namespace"):
            return SettingsError(
                f"Temporal at {self.address} has no namespace {self.client.namespace!r}. "
                "Correct temporal.namespace, or create it: temporal operator namespace create -n NAME"
            )
        if "already completed" in message:
            return InvalidRequestError(self.closed(episode_id))
        return await self.not_found(episode_id)

    async def _no_worker(self, episode_id: str) -> ServiceUnavailableError:
        seen = await self.describe(episode_id)
        return ServiceUnavailableError(
            f"no worker answers on task queue {seen.task_queue!r} for {episode_id}. Start one: tightloop up"
        )

    async def _frozen(self, episode_id: str, error: BaseException) -> TightloopError:
        seen = await self.describe(episode_id)
        if seen.frozen is None:
            return ServiceUnavailableError(f"Temporal's answer about {episode_id} cannot be read: {error}")
        return InvalidRequestError(f"{episode_id} is {seen.frozen}. {seen.unfreeze}")

    async def _execution(self, info: workflow.WorkflowExecutionInfo, pause_reason: str = "") -> Execution:
        attributes = {pair.key.name: pair.value for pair in decode_typed_search_attributes(info.search_attributes)}
        frozen = f"paused by Temporal itself{f': {pause_reason}' if pause_reason else ''}"
        return Execution(
            episode_id=info.execution.workflow_id,
            run_id=info.execution.run_id,
            status=status_word(info.status, str(attributes.get(STATUS, ""))),
            is_open=info.status in (RUNNING, PAUSED),
            frozen=frozen if info.status == PAUSED else None,
            task_queue=info.task_queue,
            iteration=int(attributes.get(ITERATION, 0)),
            pause_kind=str(attributes.get(PAUSE_KIND, "")),
            goal=await self._memo(info, "goal"),
            workspace=await self._memo(info, "workspace"),
            executor=await self._memo(info, "executor"),
            started=moment(info.start_time),
            closed=moment(info.close_time) if info.HasField("close_time") else None,
        )

    async def _memo(self, info: workflow.WorkflowExecutionInfo, name: str) -> str:
        payload = info.memo.fields.get(name)
        if payload is None:
            return ""
        try:
            [value] = await self.client.data_converter.decode([payload])
        except (RuntimeError, ValueError, KeyError, SettingsError):
            return "(not readable here: encrypted or written by another program)"
        return str(value)
