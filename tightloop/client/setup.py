"""Namespace setup, comparison of keys with the workers, and the topology of an installation."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

import temporalio.api.taskqueue.v1 as taskqueue
import temporalio.api.workflowservice.v1 as service
from google.protobuf.duration_pb2 import Duration
from temporalio.api.enums.v1 import IndexedValueType, TaskQueueType
from temporalio.api.namespace.v1 import NamespaceConfig
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest, ListSearchAttributesRequest
from temporalio.api.workflowservice.v1 import (
    DescribeNamespaceRequest,
    RegisterNamespaceRequest,
    UpdateNamespaceRequest,
)
from temporalio.service import RPCError, RPCStatusCode

from tightloop.client.calls import Calls
from tightloop.client.connection import CALL_TIMEOUT, connect
from tightloop.client.encryption import PLAIN_CONVERTER, has_seals
from tightloop.client.execution import KINDS, SEALS, SEARCH_ATTRIBUTES, TEMPORAL, moment, registration_command
from tightloop.client.sealing import SealingCodec
from tightloop.client.staffing import Backlog, backlog_of, queues_with, workers_on
from tightloop.client.workers import Idle, Poller, explain_idle, is_fresh, is_live
from tightloop.errors import SettingsError
from tightloop.host.identity import read_identity

if TYPE_CHECKING:
    from tightloop.settings import Settings

DENIED = (RPCStatusCode.PERMISSION_DENIED, RPCStatusCode.UNAUTHENTICATED, RPCStatusCode.UNIMPLEMENTED)
"""Statuses returned by a server that denies access to its operator API."""
KNOWN_SECONDS = 30.0
CLOUD_HOSTS = (".tmprl.cloud", ".api.temporal.io")
"""Temporal Cloud hosts: those for client certificates, and the regional ones for API keys."""
_TYPE = "INDEXED_VALUE_TYPE_"


class SetupOutcome(StrEnum):
    """Result of a setup step."""

    EXISTING = "already set up"
    CREATED = "set up"
    PLANNED = "would be set up"


class SetupStep(NamedTuple):
    """Setup step with its result."""

    name: str
    outcome: SetupOutcome
    detail: str = ""


class NotAllowedError(SettingsError):
    """Error for a connection that lacks the permissions needed for setup.

    The message contains the command that an administrator can run.
    """


async def connect_and_set_up(
    settings: "Settings", *, create: bool = False, retention: timedelta | None = None, dry_run: bool = False
) -> tuple[SetupStep, ...]:
    """Set up the configured namespace over a new connection; see `set_up`."""
    calls = Calls(await connect(settings, PLAIN_CONVERTER))
    return await set_up(calls, create=create, retention=retention, dry_run=dry_run)


async def set_up(
    calls: Calls, *, create: bool = False, retention: timedelta | None = None, dry_run: bool = False
) -> tuple[SetupStep, ...]:
    """Set up the namespace of a connection and return the result of each step. Idempotent.

    Args:
        calls: calls over the connection.
        create: create a missing namespace.
        retention: retention period for closed workflows. None keeps the current period.
        dry_run: only check the namespace, without changing anything.

    Raises:
        SettingsError: the namespace does not exist, or one of its search attributes has a different type
            than expected.
        NotAllowedError: Temporal denies permission.
    """
    namespace_part = await _namespace(calls, create, retention, dry_run)
    # A namespace that does not exist yet cannot be asked for its attributes.
    if namespace_part.outcome is SetupOutcome.PLANNED:
        return (namespace_part, SetupStep("search attributes", SetupOutcome.PLANNED, ", ".join(SEARCH_ATTRIBUTES)))
    parts = [namespace_part, await _attributes(calls, dry_run)]
    if retention is not None and namespace_part.outcome is SetupOutcome.EXISTING:
        parts.append(await _retention(calls, retention, dry_run))
    return tuple(parts)


async def wrong_search_attributes(calls: Calls) -> dict[str, str]:
    """Return tightloop's search attributes that are missing or have the wrong type.

    The value of each attribute is the wrong type, or "" if the attribute is missing.

    Raises:
        NotAllowedError: Temporal denies permission.
    """
    request = ListSearchAttributesRequest(namespace=calls.client.namespace)
    async with translate_denial(calls, "list search attributes", *_by_hand(calls)):
        answer = await calls.client.operator_service.list_search_attributes(request, timeout=CALL_TIMEOUT)
    return _wrong({name: IndexedValueType.Name(kind) for name, kind in answer.custom_attributes.items()})


def _wrong(registered: Mapping[str, str]) -> dict[str, str]:
    kinds = {name: registered.get(name, "").removeprefix(_TYPE).capitalize() for name in SEARCH_ATTRIBUTES}
    return {name: kind for name, kind in kinds.items() if kind != SEARCH_ATTRIBUTES[name]}


async def _attributes(calls: Calls, dry_run: bool) -> SetupStep:
    name, wrong = "search attributes", await wrong_search_attributes(calls)
    where = (calls.address, calls.client.namespace)
    mistyped = {name: kind for name, kind in wrong.items() if kind}
    # Never replaced automatically, because that deletes the values of all runs.
    if mistyped:
        has = ", ".join(f"{name} is {kind} instead of {SEARCH_ATTRIBUTES[name]}" for name, kind in mistyped.items())
        raise SettingsError(
            f"tightloop's search attributes in the namespace {where[1]!r} have the wrong type: {has}. Replacing the "
            f"attributes deletes their stored values. To replace them, run: {registration_command(*where, wrong)}"
        )
    if not wrong or dry_run:
        names = ", ".join(wrong or SEARCH_ATTRIBUTES)
        return SetupStep(name, SetupOutcome.PLANNED if wrong else SetupOutcome.EXISTING, names)
    types = {name: IndexedValueType.Value(f"{_TYPE}{SEARCH_ATTRIBUTES[name].upper()}") for name in wrong}
    request = AddSearchAttributesRequest(namespace=where[1], search_attributes=types)
    async with translate_denial(calls, f"add the search attributes {', '.join(wrong)}", *_by_hand(calls, wrong)):
        try:
            await calls.client.operator_service.add_search_attributes(request, timeout=CALL_TIMEOUT)
        except RPCError as error:
            # Another process added them at the same moment.
            if error.status is not RPCStatusCode.ALREADY_EXISTS:
                raise
    return SetupStep(name, SetupOutcome.CREATED, ", ".join(wrong))


async def _namespace(calls: Calls, create: bool, retention: timedelta | None, dry_run: bool) -> SetupStep:
    name, namespace = "namespace", calls.client.namespace
    try:
        async with calls.bound_call("", CALL_TIMEOUT):
            await find_namespace(calls)
        return SetupStep(name, SetupOutcome.EXISTING, namespace)
    except SettingsError:
        if not create:
            raise
    if dry_run:
        return SetupStep(name, SetupOutcome.PLANNED, namespace)
    period = retention or timedelta(days=30)
    request = RegisterNamespaceRequest(namespace=namespace, workflow_execution_retention_period=_duration(period))
    arguments = f"operator namespace create --address {calls.address} --retention {period.days}d -n {namespace}"
    # The suffix after the dot is the account.
    there = f"--namespace {namespace.rpartition('.')[0] or namespace} --region REGION"
    tcld = f"namespace create {there} --retention-days {period.days} --ca-certificate-file FILE"
    async with translate_denial(calls, f"create the namespace {namespace}", f"{TEMPORAL} {arguments}", tcld):
        await calls.client.workflow_service.register_namespace(request, timeout=CALL_TIMEOUT)
    # The services of a server learn about a namespace one by one, within some seconds.
    until = asyncio.get_running_loop().time() + KNOWN_SECONDS
    while True:
        try:
            await wrong_search_attributes(calls)
            break
        # A denial shows that the namespace is known by now; the next step reports it.
        except NotAllowedError:
            break
        except SettingsError:
            if asyncio.get_running_loop().time() >= until:
                raise
        await asyncio.sleep(0.5)
    return SetupStep(name, SetupOutcome.CREATED, f"{namespace}, histories are retained for {period.days} days")


async def find_namespace(calls: Calls) -> timedelta:
    """Return the namespace's retention period for closed workflows.

    Raises:
        RPCError: the namespace does not exist, or access is denied.
    """
    request = DescribeNamespaceRequest(namespace=calls.client.namespace)
    answer = await calls.client.workflow_service.describe_namespace(request, timeout=CALL_TIMEOUT)
    return answer.config.workflow_execution_retention_ttl.ToTimedelta()


async def _retention(calls: Calls, period: timedelta, dry_run: bool) -> SetupStep:
    name, namespace = "retention", calls.client.namespace
    async with calls.bound_call("", CALL_TIMEOUT):
        current = await find_namespace(calls)
    if current == period:
        return SetupStep(name, SetupOutcome.EXISTING, f"{period.days} days")
    detail = f"{period.days} days instead of {current.days}"
    if dry_run:
        return SetupStep(name, SetupOutcome.PLANNED, detail)
    config = NamespaceConfig(workflow_execution_retention_ttl=_duration(period))
    arguments = f"operator namespace update --address {calls.address} --retention {period.days}d -n {namespace}"
    tcld = f"namespace retention set --namespace {namespace} --retention-days {period.days}"
    async with translate_denial(calls, "change the retention", f"{TEMPORAL} {arguments}", tcld):
        await calls.client.workflow_service.update_namespace(
            UpdateNamespaceRequest(namespace=namespace, config=config), timeout=CALL_TIMEOUT
        )
    return SetupStep(name, SetupOutcome.CREATED, detail)


@asynccontextmanager
async def translate_denial(calls: Calls, what: str, command: str, tcld: str) -> AsyncIterator[None]:
    """Translate a permission error into one that gives the command an administrator should run.

    Args:
        calls: calls over the connection.
        what: action to name in the message.
        command: shell command for a self-hosted server.
        tcld: tcld arguments for Temporal Cloud.
    """
    cloud = f"tcld {tcld}" if is_cloud(calls.address) else ""
    async with calls.bound_call("", CALL_TIMEOUT):
        try:
            yield
        except RPCError as error:
            if error.status not in DENIED:
                raise
            # Temporal Cloud manages these in its own API.
            who = "With an authorized account," if cloud else "Ask an administrator to"
            raise NotAllowedError(
                f"Temporal at {calls.address} does not allow this client to {what} ({error.message}). "
                f"{who} run: {cloud or command}"
            ) from error


def is_cloud(address: str) -> bool:
    """Return whether a server is Temporal Cloud.

    Temporal Cloud has a different API for namespaces and search attributes.
    """
    return address.rpartition(":")[0].endswith(CLOUD_HOSTS)


def _by_hand(calls: Calls, wrong: Mapping[str, str] | None = None) -> tuple[str, str]:
    """Return the commands that add search attributes, for a self-hosted server and for Temporal Cloud."""
    namespace = calls.client.namespace
    names = SEARCH_ATTRIBUTES if wrong is None else wrong
    added = " ".join(f"--search-attribute {name}={SEARCH_ATTRIBUTES[name]}" for name in names)
    tcld = f"namespace search-attributes add --namespace {namespace} {added}"
    return registration_command(calls.address, namespace, wrong), tcld


def _duration(value: timedelta) -> Duration:
    duration = Duration()
    duration.FromTimedelta(value)
    return duration


async def refuse_unreadable_start(calls: Calls, task_queue: str) -> None:
    """Refuse a start if the workers of a task queue could not read it or would not accept it.

    The start is refused if the workers encrypt payloads but this client does not, or if their keys
    differ. The identity of a worker contains the id of its key. If no worker is polling, the queue's
    newest run is checked instead. A queue without runs cannot be checked.

    Raises:
        SettingsError: the start was refused. Nothing was sent.
    """
    workers = await workers_on(calls, task_queue)
    if not calls.is_plain:
        _refuse_stranger(calls, workers, task_queue)
        return
    if any(SEALS in worker.identity for worker in workers) or (
        not workers and await _has_sealed_memo(calls, task_queue)
    ):
        raise SettingsError(
            f"the workers of task queue {task_queue!r} encrypt what Temporal stores, but this client would send "
            "data in plain text, so nothing was sent. Connect with the workers' settings (temporal.authenticate, "
            "privacy) and their key file: await TightloopClient.connect()"
        )


async def refuse_other_keys(calls: Calls, task_queue: str) -> None:
    """Refuse to connect if a worker on a task queue uses a key that this client does not have.

    The check takes one call and never creates a key. It is skipped for roles that may only start and
    steer runs.

    Raises:
        SettingsError: neither side could read the other's payloads.
    """
    if not isinstance(calls.client.data_converter.payload_codec, SealingCodec):
        return
    request = service.DescribeTaskQueueRequest(
        namespace=calls.client.namespace,
        task_queue=taskqueue.TaskQueue(name=task_queue),
        task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW,
    )
    async with calls.bound_call("", CALL_TIMEOUT):
        try:
            answer = await calls.client.workflow_service.describe_task_queue(request, timeout=CALL_TIMEOUT)
        except RPCError as error:
            if error.status in (RPCStatusCode.PERMISSION_DENIED, RPCStatusCode.UNIMPLEMENTED):
                return
            raise
    # Temporal lists pollers for a while after their end; the key of a former worker must not prevent a connection.
    workers = [Poller(poller.identity, moment(poller.last_access_time)) for poller in answer.pollers]
    _refuse_stranger(calls, filter(is_fresh, workers), task_queue)


def _refuse_stranger(calls: Calls, workers: Iterable[Poller], task_queue: str) -> None:
    if stranger := find_stranger(calls, workers):
        raise SettingsError(
            f"{stranger}. Nothing was sent, because the worker on task queue {task_queue!r} could not decrypt data "
            "from this client. Copy the workers' key file (keys.json) to this host, or set privacy.keys_file to the "
            "path of the key file"
        )


def find_stranger(calls: Calls, workers: Iterable[Poller]) -> str:
    """Describe a worker whose key is missing on this host, as the beginning of a sentence.

    Return "" if there is no such worker.
    """
    codec = calls.client.data_converter.payload_codec
    if not isinstance(codec, SealingCodec):
        return ""
    for worker in workers:
        key_id = worker.identity.partition(f"{SEALS}:")[2]
        # An unknown id rereads the key file, so a key that was just copied counts.
        try:
            if key_id:
                codec.keys.cipher(key_id)
        except SettingsError:
            return f"worker {worker.process} encrypts with key {key_id!r}, which is not one of the keys on this host"
    return ""


async def _has_sealed_memo(calls: Calls, task_queue: str) -> bool:
    types = ", ".join(f'"{name}"' for name in KINDS)
    queue = task_queue.replace("\\", "\\\\").replace('"', '\\"')
    request = service.ListWorkflowExecutionsRequest(
        namespace=calls.client.namespace, page_size=1, query=f'WorkflowType IN ({types}) AND TaskQueue="{queue}"'
    )
    async with calls.bound_call("", CALL_TIMEOUT):
        page = await calls.client.workflow_service.list_workflow_executions(request, retry=True, timeout=CALL_TIMEOUT)
    return any(has_seals(info.memo) for info in page.executions)


@dataclass(frozen=True)
class Topology:
    """The workers of an installation, grouped by task queue."""

    main_queue: str
    main: tuple[Poller, ...]
    """Workers on the task queue for episodes."""
    homes: tuple[str, ...]
    """Task queues of the hosts with a workspace worker."""
    here: tuple[str, ...]
    """This host's task queues, its own first, or an empty tuple if no worker has ever run here."""
    named: Mapping[str, tuple[Poller, ...]]
    """Workers by task queue, for the queues named in the settings and the queues for screens."""
    backlogs: Mapping[str, Backlog]
    """Waiting steps by queue. Queues without waiting steps are omitted."""
    idle: Mapping[str, Idle]
    """Reasons by queue, for queues that have workers but none that gets new work."""
    stranger: str = ""
    """Beginning of a sentence about a worker on the main queue whose key is missing here, or "" if there is none."""

    @property
    def workflows(self) -> tuple[Poller, ...]:
        """Workers that run workflows."""
        return tuple(poller for poller in self.main if poller.runs_workflows)

    @property
    def missing(self) -> tuple[str, ...]:
        """Sentences about missing workers, each with the command to start the worker."""
        problems = []
        if not self.workflows:
            problems.append(
                f"no worker is running workflows on task queue {self.main_queue!r}. Start a worker with the role "
                "workflows or all"
            )
        if not self.homes:
            problems.append(
                "no workspace worker is running. Start a worker with the 'workspace' or 'all' role on the host "
                "that contains the workspaces"
            )
        problems += [
            f"no worker is polling task queue {queue!r}, which the settings list under queues. Start a worker for this "
            "queue, or remove the queue from the settings"
            for queue, pollers in self.named.items()
            if not pollers
        ]
        return (*problems, *map(str, self.idle.values()))


async def topology_of(calls: Calls, settings: "Settings") -> Topology:
    """Find the workers of all task queues."""
    main, identity = settings.temporal.task_queue, await asyncio.to_thread(read_identity, settings)
    local_queues = identity.queues(settings) if identity else ()
    homes = await queues_with(calls, f"{main}-workspace-")
    # A server without a worker list still knows the pollers of a task queue.
    homes += tuple([home for home in local_queues if home not in homes and await workers_on(calls, home)])
    named_queues = (settings.queues.workspace, settings.queues.llm, settings.queues.executor)
    other_queues = {queue for queue in named_queues if queue and queue != main}
    other_queues |= set(await queues_with(calls, f"{main}-gui-"))
    by_queue = dict(await asyncio.gather(*(_live_on(calls, queue) for queue in (main, *homes, *sorted(other_queues)))))
    there, named = by_queue[main], {queue: by_queue[queue] for queue in sorted(other_queues)}
    queues = dict.fromkeys((main, *homes, *named))
    backlogs = {queue: backlog for queue in queues if (backlog := await backlog_of(calls, queue)).count}
    idle = {queue: why for queue, workers in by_queue.items() if (why := explain_idle(queue, workers))}
    return Topology(main, there, homes, local_queues, named, backlogs, idle, find_stranger(calls, there))


async def _live_on(calls: Calls, queue: str) -> tuple[str, tuple[Poller, ...]]:
    return queue, tuple(filter(is_live, await workers_on(calls, queue)))
