"""The Worker Deployment of the settings: its builds, and to which of them new workflows go."""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import temporalio.api.deployment.v1 as deployments
import temporalio.api.workflowservice.v1 as service
from temporalio.api.enums.v1 import WorkerDeploymentVersionStatus
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from tightloop.client.calls import Calls
from tightloop.client.connection import CALL_TIMEOUT
from tightloop.client.installation.staffing import POLLER_FRESH, Poller, version_name, workers_on
from tightloop.client.installation.topology import topology_of
from tightloop.errors import InvalidRequestError, SettingsError
from tightloop.settings import Settings
from worker.deploying.histories import account_of, failed, find_runs, query_of, replay_runs
from worker.hosting.build_id import build_id_of

MISSED_HEARTBEATS = 3
"""After so many a worker counts as dead. Temporal lists it for minutes."""
DRAINED = WorkerDeploymentVersionStatus.WORKER_DEPLOYMENT_VERSION_STATUS_DRAINED
LEAST_PATIENCE = timedelta(seconds=3)


@dataclass(frozen=True)
class Build:
    """A build of the deployment, as Temporal knows it."""

    build_id: str
    state: str
    """`current`, `ramping at 30 %`, `draining`, `drained` or `not in use`."""
    open_workflows: int
    workers: int
    """Processes that live, on all task queues."""


class Deployment:
    """Looks at the builds of the deployment, and sends new workflows to that of this installation."""

    def __init__(self, client: Client, settings: Settings) -> None:
        """Take the deployment that the settings name.

        Raises:
            SettingsError: they name none.
        """
        self.name, self.build_id = settings.worker.deployment, build_id_of(settings.worker)
        if not self.name:
            raise SettingsError(
                "worker.deployment is not set, so workers have no versions. Give the deployment a name in the settings "
                "of all workers: worker.deployment: tightloop"
            )
        self._client, self._settings, self._calls = client, settings, Calls(client)

    @property
    def version(self) -> str:
        """The build of this installation, as Temporal names it."""
        return version_name(self.name, self.build_id)

    # -- what is there ----------------------------------------------------------------------------------

    async def builds(self) -> list[Build]:
        """Return the builds that Temporal knows, the one for new workflows first."""
        answer = await self._describe()
        routing = answer.worker_deployment_info.routing_config
        summaries = answer.worker_deployment_info.version_summaries
        in_use = [one.deployment_version.build_id for one in summaries if one.status != DRAINED]
        workers = await self._live_workers(await self._queues(in_use))
        found = []
        for summary in summaries:
            name = version_name(self.name, summary.deployment_version.build_id)
            processes = {one.process for each in workers.values() for one in each if one.version == name}
            found.append(
                Build(
                    summary.deployment_version.build_id,
                    _state(summary, routing),
                    await self._count_open(name),
                    len(processes),
                )
            )
        return sorted(found, key=lambda one: (one.state != "current", "ramping" not in one.state))

    async def _describe(self) -> service.DescribeWorkerDeploymentResponse:
        request = service.DescribeWorkerDeploymentRequest(namespace=self._client.namespace, deployment_name=self.name)
        async with self._calls.bounded("", CALL_TIMEOUT):
            try:
                return await self._client.workflow_service.describe_worker_deployment(request, timeout=CALL_TIMEOUT)
            except RPCError as error:
                if error.status is not RPCStatusCode.NOT_FOUND or error.message.startswith("Namespace"):
                    raise
        raise InvalidRequestError(
            f"Temporal knows no worker of deployment {self.name!r}. Start the workers of this build with "
            f"worker.deployment: {self.name}"
        )

    async def _queues(self, build_ids: Iterable[str]) -> tuple[str, ...]:
        """Return the task queues that matter: where somebody works, and those of builds."""
        there = await topology_of(self._calls, self._settings)
        queues = dict.fromkeys((there.main_queue, *there.homes, *there.named))
        for build_id in build_ids:
            version = deployments.WorkerDeploymentVersion(deployment_name=self.name, build_id=build_id)
            request = service.DescribeWorkerDeploymentVersionRequest(
                namespace=self._client.namespace, deployment_version=version
            )
            async with self._calls.bounded("", CALL_TIMEOUT):
                answer = await self._client.workflow_service.describe_worker_deployment_version(
                    request, timeout=CALL_TIMEOUT
                )
            queues |= dict.fromkeys(one.name for one in answer.version_task_queues)
        return tuple(queues)

    async def _live_workers(self, queues: Sequence[str]) -> dict[str, list[Poller]]:
        found = await asyncio.gather(*(workers_on(self._calls, queue) for queue in queues))
        return {queue: [one for one in each if is_live(one)] for queue, each in zip(queues, found, strict=True)}

    async def _count_open(self, version: str) -> int:
        query = f'TemporalWorkerDeploymentVersion = "{version}" AND ExecutionStatus = "Running"'
        async with self._calls.bounded("", CALL_TIMEOUT):
            return (await self._client.count_workflows(query)).count

    def move_command(self, build_id: str) -> str:
        """Return the command that moves what is open on another build to this one at once."""
        query = f'TemporalWorkerDeploymentVersion="{version_name(self.name, build_id)}" AND ExecutionStatus="Running"'
        return (
            f"temporal workflow update-options --query '{query}' --versioning-override-behavior one_time "
            f"--versioning-override-deployment-name {self.name} --versioning-override-build-id {self.build_id} --yes"
        )

    # -- what has to hold -------------------------------------------------------------------------------

    async def need_workers(self) -> None:
        """Look for live workers of this build wherever new workflows would need them.

        Raises:
            InvalidRequestError: some are missing; Temporal itself would let the workflows wait for them.
        """
        current = (await self._describe()).worker_deployment_info.routing_config.current_deployment_version.build_id
        queues = await self._queues([current] if current else [])
        main = self._settings.temporal.task_queue
        missing = [
            queue
            for queue, workers in (await self._live_workers(queues)).items()
            if not any(one.version == self.version for one in workers)
            # Work for a queue without versions goes to whoever is there.
            and (queue == main or any(one.version for one in workers))
        ]
        if missing:
            raise InvalidRequestError(
                f"no worker of {self.version} lives on {_listed(missing)}: new workflows would wait there. Start its "
                "workers beside the older ones, then try again"
            )

    async def need_fitting_histories(self, days: int) -> str:
        """Replay what is open or ended in the last days against the code of this installation, and return how it went.

        Raises:
            InvalidRequestError: the code does not fit; the message says which workflow, and why.
        """
        runs = await find_runs(self._client, query_of(self._settings, days=days))
        outcomes = await asyncio.to_thread(replay_runs, self._settings, runs)
        if failed(outcomes):
            raise InvalidRequestError(f"no new workflow goes to {self.version}:\n\n{account_of(outcomes)}")
        return account_of(outcomes)

    # -- what is changed --------------------------------------------------------------------------------

    async def make_current(self) -> None:
        """Let new workflows start on this build, and pinned ones move to it as a new run of theirs follows."""
        known = await self._describe()
        request = service.SetWorkerDeploymentCurrentVersionRequest(
            namespace=self._client.namespace,
            deployment_name=self.name,
            build_id=self.build_id,
            conflict_token=known.conflict_token,
            identity=self._client.identity,
        )
        async with self._calls.bounded("", CALL_TIMEOUT):
            await self._client.workflow_service.set_worker_deployment_current_version(request, timeout=CALL_TIMEOUT)

    async def ramp(self, percent: float) -> None:
        """Let a share of new workflows, and of new runs, start on this build; 0 ends that."""
        known = await self._describe()
        if not percent and not known.worker_deployment_info.routing_config.ramping_deployment_version.build_id:
            return
        request = service.SetWorkerDeploymentRampingVersionRequest(
            namespace=self._client.namespace,
            deployment_name=self.name,
            build_id=self.build_id if percent else "",
            percentage=percent,
            conflict_token=known.conflict_token,
            identity=self._client.identity,
        )
        async with self._calls.bounded("", CALL_TIMEOUT):
            await self._client.workflow_service.set_worker_deployment_ramping_version(request, timeout=CALL_TIMEOUT)


def is_live(worker: Poller) -> bool:
    """Return whether a worker lives, as far as its heartbeats tell, or its last poll where it sends none."""
    patience = max(MISSED_HEARTBEATS * worker.heartbeat, LEAST_PATIENCE) if worker.heartbeat else POLLER_FRESH
    return worker.last_seen is not None and worker.last_seen > datetime.now(UTC) - patience


def _state(
    summary: deployments.WorkerDeploymentInfo.WorkerDeploymentVersionSummary, routing: deployments.RoutingConfig
) -> str:
    match summary.status:
        case WorkerDeploymentVersionStatus.WORKER_DEPLOYMENT_VERSION_STATUS_CURRENT:
            return "current"
        case WorkerDeploymentVersionStatus.WORKER_DEPLOYMENT_VERSION_STATUS_RAMPING:
            return f"ramping at {routing.ramping_version_percentage:g} %"
        case WorkerDeploymentVersionStatus.WORKER_DEPLOYMENT_VERSION_STATUS_DRAINING:
            return "draining"
    return "drained" if summary.status == DRAINED else "not in use"


def _listed(queues: Sequence[str]) -> str:
    names = ", ".join(map(repr, queues))
    return f"task queue {names}" if len(queues) == 1 else f"task queues {names}"
