"""Setup of a namespace."""

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
"""How a server answers who may not use its operator API."""
KNOWN_SECONDS = 30.0
CLOUD_HOSTS = (".tmprl.cloud", ".api.temporal.io")
"""Of Temporal Cloud: with client certificates, and with API keys by region."""
_TYPE = "INDEXED_VALUE_TYPE_"


class Done(StrEnum):
    """What became of a part of the setup."""

    THERE = "there already"
    MADE = "made"
    WOULD = "would be made"


class Part(NamedTuple):
    """One part of the setup."""

    name: str
    done: Done
    detail: str = ""


class NotAllowedError(SettingsError):
    """Temporal refuses this connection the rights for the setup; the message has the command for who has them."""


async def connect_and_set_up(
    settings: "Settings", *, create: bool = False, retention: timedelta | None = None, dry_run: bool = False
) -> tuple[Part, ...]:
    """Set the namespace of the settings up over a connection of its own; see `set_up`."""
    calls = Calls(await connect(settings, PLAIN_CONVERTER))
    return await set_up(calls, create=create, retention=retention, dry_run=dry_run)


async def set_up(
    calls: Calls, *, create: bool = False, retention: timedelta | None = None, dry_run: bool = False
) -> tuple[Part, ...]:
    """Set the namespace of a connection up, and return what was done.

    Args:
        calls: the connection.
        create: make the namespace where it is missing.
        retention: how long histories of closed episodes are kept; None: as it is.
        dry_run: only look.

    Raises:
        SettingsError: the namespace is missing, or has an attribute of ours with another type.
        NotAllowedError: Temporal does not permit it.
    """
    made = await _namespace(calls, create, retention, dry_run)
    if made.done is Done.WOULD:
        return (made, Part("search attributes", Done.WOULD, ", ".join(SEARCH_ATTRIBUTES)))
    parts = [made, await _attributes(calls, dry_run)]
    if retention is not None and made.done is Done.THERE:
        parts.append(await _retention(calls, retention, dry_run))
    return tuple(parts)


async def wrong_search_attributes(calls: Calls) -> dict[str, str]:
    """Return the search attributes of ours that the namespace lacks, with the wrong type of each or an empty string.

    Raises:
        NotAllowedError: Temporal does not permit to look.
    """
    request = ListSearchAttributesRequest(namespace=calls.client.namespace)
    async with allowed(calls, "list search attributes", *_by_hand(calls)):
        answer = await calls.client.operator_service.list_search_attributes(request, timeout=CALL_TIMEOUT)
    return _wrong({name: IndexedValueType.Name(kind) for name, kind in answer.custom_attributes.items()})


def _wrong(found: Mapping[str, str]) -> dict[str, str]:
    kinds = {name: found.get(name, "").removeprefix(_TYPE).capitalize() for name in SEARCH_ATTRIBUTES}
    return {name: kind for name, kind in kinds.items() if kind != SEARCH_ATTRIBUTES[name]}


async def _attributes(calls: Calls, dry_run: bool) -> Part:
    name, wrong = "search attributes", await wrong_search_attributes(calls)
    where = (calls.address, calls.client.namespace)
    mistyped = {name: kind for name, kind in wrong.items() if kind}
    if mistyped:
        has = ", ".join(f"{name} is {kind} in place of {SEARCH_ATTRIBUTES[name]}" for name, kind in mistyped.items())
        raise SettingsError(
            f"the namespace {where[1]!r} has search attributes of ours with another type: {has}. Their stored "
            f"values are lost where you replace them: {registration_command(*where, wrong)}"
        )
    if not wrong or dry_run:
        shown = ", ".join(wrong or SEARCH_ATTRIBUTES)
        return Part(name, Done.WOULD if wrong else Done.THERE, shown)
    types = {name: IndexedValueType.Value(f"{_TYPE}{SEARCH_ATTRIBUTES[name].upper()}") for name in wrong}
    request = AddSearchAttributesRequest(namespace=where[1], search_attributes=types)
    async with allowed(calls, f"add the search attributes {', '.join(wrong)}", *_by_hand(calls, wrong)):
        try:
            await calls.client.operator_service.add_search_attributes(request, timeout=CALL_TIMEOUT)
        except RPCError as error:
            # Another process has added them at the same moment.
            if error.status is not RPCStatusCode.ALREADY_EXISTS:
                raise
    return Part(name, Done.MADE, ", ".join(wrong))


async def _namespace(calls: Calls, create: bool, retention: timedelta | None, dry_run: bool) -> Part:
    name, namespace = "namespace", calls.client.namespace
    try:
        async with calls.bounded("", CALL_TIMEOUT):
            await find_namespace(calls)
        return Part(name, Done.THERE, namespace)
    except SettingsError:
        if not create:
            raise
    if dry_run:
        return Part(name, Done.WOULD, namespace)
    kept = retention or timedelta(days=30)
    request = RegisterNamespaceRequest(namespace=namespace, workflow_execution_retention_period=_duration(kept))
    words = f"operator namespace create --address {calls.address} --retention {kept.days}d -n {namespace}"
    # What follows the dot is the account there.
    there = f"--namespace {namespace.rpartition('.')[0] or namespace} --region REGION"
    tcld = f"namespace create {there} --retention-days {kept.days} --ca-certificate-file FILE"
    async with allowed(calls, f"make the namespace {namespace}", f"{TEMPORAL} {words}", tcld):
        await calls.client.workflow_service.register_namespace(request, timeout=CALL_TIMEOUT)
    # The parts of a server learn of it one by one, within some seconds.
    until = asyncio.get_running_loop().time() + KNOWN_SECONDS
    while True:
        try:
            await wrong_search_attributes(calls)
            break
        except NotAllowedError:
            break
        except SettingsError:
            if asyncio.get_running_loop().time() >= until:
                raise
        await asyncio.sleep(0.5)
    return Part(name, Done.MADE, f"{namespace}, histories are kept for {kept.days} days")


async def find_namespace(calls: Calls) -> timedelta:
    """Return how long the namespace keeps histories of closed workflows.

    Raises:
        RPCError: it is missing, or access is refused.
    """
    request = DescribeNamespaceRequest(namespace=calls.client.namespace)
    answer = await calls.client.workflow_service.describe_namespace(request, timeout=CALL_TIMEOUT)
    return answer.config.workflow_execution_retention_ttl.ToTimedelta()


async def _retention(calls: Calls, wanted: timedelta, dry_run: bool) -> Part:
    name, namespace = "retention", calls.client.namespace
    async with calls.bounded("", CALL_TIMEOUT):
        found = await find_namespace(calls)
    if found == wanted:
        return Part(name, Done.THERE, f"{wanted.days} days")
    shown = f"{wanted.days} days in place of {found.days}"
    if dry_run:
        return Part(name, Done.WOULD, shown)
    config = NamespaceConfig(workflow_execution_retention_ttl=_duration(wanted))
    words = f"operator namespace update --address {calls.address} --retention {wanted.days}d -n {namespace}"
    tcld = f"namespace retention set --namespace {namespace} --retention-days {wanted.days}"
    async with allowed(calls, "change the retention", f"{TEMPORAL} {words}", tcld):
        await calls.client.workflow_service.update_namespace(
            UpdateNamespaceRequest(namespace=namespace, config=config), timeout=CALL_TIMEOUT
        )
    return Part(name, Done.MADE, shown)


@asynccontextmanager
async def allowed(calls: Calls, what: str, command: str, tcld: str) -> AsyncIterator[None]:
    """Say what was not done and who can do it, where Temporal does not permit it to us.

    Args:
        calls: the connection.
        what: is to be done.
        command: does it on a server of one's own.
        tcld: does it in Temporal Cloud.
    """
    cloud = f"tcld {tcld}" if is_cloud(calls.address) else ""
    async with calls.bounded("", CALL_TIMEOUT):
        try:
            yield
        except RPCError as error:
            if error.status not in DENIED:
                raise
            # Temporal Cloud has these in its own API.
            who = "With an account that may" if cloud else "Ask somebody who may to"
            raise NotAllowedError(
                f"Temporal at {calls.address} does not permit to {what} ({error.message}). "
                f"{who} run: {cloud or command}"
            ) from error


def is_cloud(address: str) -> bool:
    """Return whether a server is Temporal Cloud's: namespaces and search attributes are not made through it."""
    return address.rpartition(":")[0].endswith(CLOUD_HOSTS)


def _by_hand(calls: Calls, wrong: Mapping[str, str] | None = None) -> tuple[str, str]:
    """Return the commands that add search attributes: on a server of one's own, and in Temporal Cloud."""
    namespace = calls.client.namespace
    names = SEARCH_ATTRIBUTES if wrong is None else wrong
    added = " ".join(f"--search-attribute {name}={SEARCH_ATTRIBUTES[name]}" for name in names)
    tcld = f"namespace search-attributes add --namespace {namespace} {added}"
    return registration_command(calls.address, namespace, wrong), tcld


def _duration(value: timedelta) -> Duration:
    made = Duration()
    made.FromTimedelta(value)
    return made


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


@dataclass(frozen=True)
class Topology:
    """The workers of an installation."""

    main_queue: str
    main: tuple[Poller, ...]
    """On the task queue of the episodes."""
    homes: tuple[str, ...]
    """Task queues of the hosts with a worker for workspaces."""
    here: tuple[str, ...]
    """Task queues of this host, its own first; none where no worker has ever run."""
    named: Mapping[str, tuple[Poller, ...]]
    """Workers on the task queues that the settings name, and on those of screens, by queue."""
    backlogs: Mapping[str, Backlog]
    """Steps that wait for a free slot, by queue; only where some do."""
    idle: Mapping[str, Idle]
    """Why no worker of a queue gets new work, by queue; only where workers are there."""
    stranger: str = ""
    """Which worker of the main queue encrypts with a key that is not here, as the start of a sentence."""

    @property
    def workflows(self) -> tuple[Poller, ...]:
        """The workers that run workflows."""
        return tuple(poller for poller in self.main if poller.runs_workflows)

    @property
    def missing(self) -> tuple[str, ...]:
        """What an episode would wait for, each as a sentence that says what to start."""
        said = []
        if not self.workflows:
            said.append(
                f"nobody runs workflows on task queue {self.main_queue!r}. Start a worker of role workflows or all"
            )
        if not self.homes:
            said.append("no worker opens workspaces. Start one of role workspace or all on the host that has them")
        said += [
            f"nobody works on task queue {queue!r}, which the settings name under queues. Start a worker for it, or "
            "leave it out"
            for queue, pollers in self.named.items()
            if not pollers
        ]
        return (*said, *map(str, self.idle.values()))


async def topology_of(calls: Calls, settings: "Settings") -> Topology:
    """Return who works where."""
    main, identity = settings.temporal.task_queue, await asyncio.to_thread(read_identity, settings)
    here = identity.queues(settings) if identity else ()
    found = await queues_with(calls, f"{main}-workspace-")
    # A server that keeps no list of workers knows those of a task queue.
    found += tuple([home for home in here if home not in found and await workers_on(calls, home)])
    named_queues = (settings.queues.workspace, settings.queues.llm, settings.queues.executor)
    wanted = {queue for queue in named_queues if queue and queue != main}
    wanted |= set(await queues_with(calls, f"{main}-gui-"))
    by_queue = dict(await asyncio.gather(*(_live_on(calls, queue) for queue in (main, *found, *sorted(wanted)))))
    there, named = by_queue[main], {queue: by_queue[queue] for queue in sorted(wanted)}
    queues = dict.fromkeys((main, *found, *named))
    backlogs = {queue: backlog for queue in queues if (backlog := await backlog_of(calls, queue)).count}
    idle = {queue: why for queue, workers in by_queue.items() if (why := explain_idle(queue, workers))}
    return Topology(main, there, found, here, named, backlogs, idle, find_stranger(calls, there))


async def _live_on(calls: Calls, queue: str) -> tuple[str, tuple[Poller, ...]]:
    return queue, tuple(filter(is_live, await workers_on(calls, queue)))
