"""Worker start-up: memory, search attributes, keys, slots and build id."""

import asyncio
import ctypes
import hashlib
import logging
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar, cast

from google.protobuf.message import Message
from temporalio.api.common.v1 import Payload
from temporalio.bridge.proto.workflow_activation import InitializeWorkflow
from temporalio.client import Client
from temporalio.common import VersioningBehavior, WorkerDeploymentVersion
from temporalio.worker import (
    FixedSizeSlotSupplier,
    ResourceBasedSlotConfig,
    ResourceBasedSlotSupplier,
    ResourceBasedTunerConfig,
    UnsandboxedWorkflowRunner,
    WorkerDeploymentConfig,
    WorkerTuner,
    WorkflowInstance,
    WorkflowInstanceDetails,
)

# Private modules of the SDK: tests/unit/test_sdk_internals.py checks what is used here for each pinned version.
from temporalio.worker._interceptor import ExecuteWorkflowInput
from temporalio.worker._workflow_instance import _WorkflowInstanceImpl

from tightloop.client.calls import Calls
from tightloop.client.execution import SEALS, registration_command, setup_command, version_name
from tightloop.client.setup import NotAllowedError, find_stranger, topology_of, wrong_search_attributes
from tightloop.client.staffing import workers_on
from tightloop.errors import ServiceUnavailableError, SettingsError
from tightloop.host import state_home
from tightloop.host.identity import home_queue
from tightloop.settings import Settings, WorkerSettings

TRIM_S = 60.0

M = TypeVar("M", bound=Message)


class _Instance(_WorkflowInstanceImpl):
    """A workflow instance that copies the parts of the activation message that it needs.

    A reference to part of a protobuf message keeps the whole message in memory, including its decoded
    payloads. This would take 19 kB per workflow.
    """

    def __init__(self, det: WorkflowInstanceDetails) -> None:
        info = replace(det.info, raw_memo=_copies(det.info.raw_memo), headers=_copies(det.info.headers))
        super().__init__(replace(det, info=info, last_completion_result=_copy(det.last_completion_result)))

    def _make_workflow_input(self, init_job: InitializeWorkflow) -> ExecuteWorkflowInput:
        # The base class takes the headers from the message and so would keep all of it in memory.
        return replace(super()._make_workflow_input(init_job), headers=self._info.headers)


class LeanRunner(UnsandboxedWorkflowRunner):
    """Runs workflows without the sandbox. Activation messages are not kept in memory."""

    def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
        instance: WorkflowInstance = cast("Any", _Instance)(det)
        return instance


def _copies(payloads: Mapping[str, Payload]) -> dict[str, Payload]:
    return {name: _copy(payload) for name, payload in payloads.items()}


def _copy(message: M) -> M:
    return type(message).FromString(message.SerializeToString())


async def give_memory_back(every: float = TRIM_S) -> None:
    """Return freed memory to the operating system periodically.

    This is necessary because glibc keeps free blocks that are below used blocks.
    """
    while True:
        await asyncio.sleep(every)
        await asyncio.to_thread(trim)


def trim() -> None:
    """Return freed memory to the operating system if the C library supports this."""
    # `CDLL(None)` is the running program. Only glibc has the function; musl and macOS do not.
    release = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if release is not None:
        release(0)


logger = logging.getLogger("tightloop")

LOOK_SECONDS = 1.0


async def verify_search_attributes(client: Client) -> None:
    """Check that the namespace defines the required search attributes.

    If permissions do not allow the check, only log a warning.

    Raises:
        SettingsError: attributes are missing or have the wrong type, so no workflow could start.
    """
    calls = Calls(client)
    where = (calls.address, client.namespace)
    try:
        wrong = await wrong_search_attributes(calls)
    except NotAllowedError as error:
        logger.warning("cannot check the search attributes: %s", error.message)
        return
    if wrong:
        raise SettingsError(
            f"the namespace {client.namespace!r} is missing the search attributes {', '.join(wrong)}, or has them "
            f"with a different type. Set up the namespace once with: {setup_command(*where)}. Alternatively, "
            f"register the attributes by hand: {registration_command(*where, wrong)}"
        )


async def need_common_keys(client: Client, settings: Settings) -> None:
    """Raise an error if workers on the same task queue use a different encryption key.

    The workers would take each other's tasks, and episodes would fail.

    Raises:
        SettingsError: another worker on the task queue uses a key that is missing here, or only one of
            the two workers encrypts.
    """
    calls, queue = Calls(client), settings.temporal.task_queue
    pollers = await workers_on(calls, queue)
    conflict = find_stranger(calls, pollers)
    # Workers show whether they seal in their identity, the only thing that Temporal lists about them.
    unlike = [poller.process for poller in pollers if (SEALS in poller.identity) is calls.is_plain]
    if unlike:
        conflict = f"worker {unlike[0]} {'encrypts' if calls.is_plain else 'does not encrypt'}"
    if conflict:
        raise SettingsError(
            f"{conflict}, and both workers use task queue {queue!r}, so each worker would cause the other "
            "worker's episodes to fail. Copy the other worker's key file (keys.json) and use the same settings "
            "(temporal.authenticate, privacy), give this worker a different queue (temporal.task_queue) or server "
            "(temporal.address), or stop the other worker. Temporal may still list a worker for a minute after the "
            "worker was killed"
        )


async def need_workspaces(client: Client, settings: Settings, role: str) -> None:
    """Wait up to `worker.start_wait_s` until a workspace worker for this host and state home is running.

    Planners and executors read and write files in the state home.

    Raises:
        ServiceUnavailableError: no such worker started in time.
    """
    home, limit = home_queue(settings), settings.worker.start_wait_s
    try:
        # The workers of a host are often started at the same moment, in any order.
        async with asyncio.timeout(limit):
            waits = False
            while not await workers_on(Calls(client), home):
                if not waits:
                    logger.info("role '%s' is waiting up to %g s for a worker on task queue %s", role, limit, home)
                waits = True
                await asyncio.sleep(LOOK_SECONDS)
    except TimeoutError:
        raise ServiceUnavailableError(
            f"role {role!r} needs a workspace worker on the same host, but none that uses the state home "
            f"{state_home()} is running here. Start one on this host with --role workspace or --role all and the "
            "same TIGHTLOOP_HOME, or start this worker on a host that already has a workspace worker. To use a "
            "model on another host, set planner.base_url instead"
        ) from None


async def warn_of_missing(client: Client, settings: Settings, *, without: str = "") -> None:
    """Log a warning for each kind of worker that episodes need but that is not running."""
    for sentence in (await topology_of(Calls(client), settings)).missing:
        if not without or without not in sentence:
            logger.warning("episodes will have to wait: %s", sentence)


TASKS = 100
"""Number of slots for local activities and Nexus tasks. This is the SDK's default."""
WORKFLOW_TASKS = 5
"""Number of slots for workflow tasks, of which Python runs one at a time. With the SDK's default of 100, the tasks of
500 open workflows delayed each other beyond the 10 s that Temporal allows, and were repeated. A local activity occupies
its workflow task's slot."""


def tuner_of(settings: WorkerSettings, slots: int) -> WorkerTuner:
    """Build the tuner for a task queue's slots.

    Activity slots are either fixed or limited by memory and CPU usage.

    Args:
        settings: Activities are accepted until usage reaches the fractions `target_memory` and `target_cpu`.
        slots: number of activity slots, or the maximum number if targets are set. A single slot is always
            fixed, e.g. for a screen.
    """
    fixed, workflows = FixedSizeSlotSupplier(TASKS), FixedSizeSlotSupplier(WORKFLOW_TASKS)
    activities: FixedSizeSlotSupplier | ResourceBasedSlotSupplier = FixedSizeSlotSupplier(slots)
    if settings.is_tuned and slots > 1:
        activities = ResourceBasedSlotSupplier(
            ResourceBasedSlotConfig(minimum_slots=1, maximum_slots=slots),
            ResourceBasedTunerConfig(
                target_memory_usage=settings.target_memory or 1.0, target_cpu_usage=settings.target_cpu or 1.0
            ),
        )
    return WorkerTuner.create_composite(
        workflow_supplier=workflows, activity_supplier=activities, local_activity_supplier=fixed, nexus_supplier=fixed
    )


PACKAGES = ("workflows", "activities", "tightloop", "worker")


def deployment_config(settings: WorkerSettings) -> WorkerDeploymentConfig | None:
    """Return the deployment config for this installation's workers, or None if workers are not versioned."""
    if not settings.deployment:
        return None
    return WorkerDeploymentConfig(
        version=WorkerDeploymentVersion(settings.deployment, build_id_of(settings)),
        use_worker_versioning=True,
        # An episode may run for days. It stays on its build and moves when it continues as new.
        default_versioning_behavior=VersioningBehavior.PINNED,
    )


def version_of(settings: WorkerSettings) -> str:
    """Return the workers' version in Temporal's notation, or "" if workers are not versioned."""
    return version_name(settings.deployment, build_id_of(settings)) if settings.deployment else ""


def build_id_of(settings: WorkerSettings) -> str:
    return settings.build_id or f"{_version()}-{_code_digest()}"


def _version() -> str:
    try:
        return version("tightloop")
    except PackageNotFoundError:
        return "unknown"


# Cached, because the files may change later while the loaded code stays the same.
@cache
def _code_digest() -> str:
    """Return a digest of the installed code. It is the same on all hosts that have the same code."""
    digest = hashlib.sha256()
    for package in PACKAGES:
        spec = find_spec(package)
        assert spec is not None
        assert spec.origin is not None
        folder = Path(spec.origin).parent
        # Sorted, because file systems list folders in different orders.
        for path in sorted(folder.rglob("*.py")):
            digest.update(f"{package}/{path.relative_to(folder)}\0".encode())
            # The separators make a text that moves from one file to the next change the digest.
            digest.update(path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]
