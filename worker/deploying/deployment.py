"""The Worker Deployment of the settings: its builds, and to which of them new workflows go."""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import temporalio.api.deployment.v1 as deployments
import temporalio.api.workflowservice.v1 as service
from temporalio.api.enums.v1 import WorkerDeploymentVersionStatus
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from tightloop.client.calls import Calls
from tightloop.client.connection import CALL_TIMEOUT
from tightloop.client.execution import version_name
from tightloop.client.installation.staffing import count_open, workers_on
from tightloop.client.installation.topology import topology_of
from tightloop.client.workers import Poller, is_live, read_routing, workers_of
from tightloop.errors import InvalidRequestError, SettingsError
from tightloop.settings import Settings
from worker.deploying.histories import account_of, failed, find_runs, query_of, replay_runs
from worker.hosting.build_id import build_id_of

DRAINED = WorkerDeploymentVersionStatus.WORKER_DEPLOYMENT_VERSION_STATUS_DRAINED


@dataclass(frozen=True)
class Build:
    """A build of the deployment, as Temporal knows it."""

    build_id: str
    state: str
    """`current`, `ramping at 30 %`, `draining`, `drained` or `not in use`."""
    open_workflows: int
    workers: int
    """Processes that live, on all task queues."""


UNVERSIONED = "unversioned"
"""Stands for a build where workers have no version."""


class Deployment:
    """Looks at the builds of a deployment, and sends new workflows to one of them or to workers without a version."""

    def __init__(self, client: Client, settings: Settings, name: str, build_id: str) -> None:
        """Take what `find_deployment` found; an empty build stands for workers without a version."""
        self.name, self.build_id = name, build_id
        self._client, self._settings, self._calls = client, settings, Calls(client)

    @property
    def version(self) -> str:
        """The build of this installation, as Temporal names it; empty: its workers have none."""
        return version_name(self.name, self.build_id) if self.build_id else ""

    @property
    def target(self) -> str:
        """How a sentence calls those who are to get new workflows."""
        return self.version or workers_of("")

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
                    await count_open(self._calls, name),
                    len(processes),
                )
            )
        # On queues of their own, such as those of screens, workers need no version.
        if unversioned := {one.process for one in workers[self._settings.temporal.task_queue] if not one.version}:
            state = "not in use" if routing.current_deployment_version.build_id else "current"
            found.append(Build(UNVERSIONED, state, await self._count_unversioned(), len(unversioned)))
        return sorted(found, key=lambda one: (one.state != "current", "ramping" not in one.state))

    async def _count_unversioned(self) -> int:
        query = f"({query_of(self._settings)}) AND TemporalWorkerDeploymentVersion IS NULL"
        async with self._calls.bounded("", CALL_TIMEOUT):
            return (await self._client.count_workflows(f"{query} AND ExecutionStatus = 'Running'")).count

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

    def move_command(self, build_id: str) -> str:
        """Return the command that moves what is open on another build to this one at once."""
        query = f'TemporalWorkerDeploymentVersion="{version_name(self.name, build_id)}" AND ExecutionStatus="Running"'
        to = (
            f"one_time --versioning-override-deployment-name {self.name} --versioning-override-build-id {self.build_id}"
            if self.build_id
            else "auto_upgrade"
        )
        return f"temporal workflow update-options --query '{query}' --versioning-override-behavior {to} --yes"

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
                f"no worker {f'of {self.version}' if self.version else 'without a version'} lives on "
                f"{_listed(missing)}: new workflows would wait there. Start such workers beside those that are there, "
                "then try again"
            )

    async def need_fitting_histories(self, days: int) -> str:
        """Replay what is open or ended in the last days against the code of this installation, and return how it went.

        Raises:
            InvalidRequestError: the code does not fit; the message says which workflow, and why.
        """
        runs = await find_runs(self._client, query_of(self._settings, days=days))
        outcomes = await asyncio.to_thread(replay_runs, self._settings, runs)
        if failed(outcomes):
            raise InvalidRequestError(f"no new workflow goes to {self.target}:\n\n{account_of(outcomes)}")
        return account_of(outcomes)

    # -- what is changed --------------------------------------------------------------------------------

    async def make_current(self) -> None:
        """Let new workflows start there, and pinned ones move there as a new run of theirs follows."""
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


async def find_deployment(client: Client, settings: Settings, *, unversioned: bool = False) -> Deployment:
    """Return the deployment that the settings name.

    Args:
        client: of the server.
        settings: those in force.
        unversioned: for workers without a version. Where the settings name no deployment, it is the one whose workers
            are on the task queue of the episodes, or whom Temporal sends their work.

    Raises:
        SettingsError: there is none.
    """
    name, build_id = settings.worker.deployment, "" if unversioned else build_id_of(settings.worker)
    if not name and unversioned:
        calls, queue = Calls(client), settings.temporal.task_queue
        routing = await read_routing(client, calls.bounded, queue)
        versions = [routing.current, *(one.version for one in await workers_on(calls, queue))]
        name = next(filter(None, versions), "").partition(":")[0]
    if not name:
        raise SettingsError(
            "worker.deployment is not set, so workers have no versions. Give the deployment a name in the settings "
            "of all workers: worker.deployment: tightloop"
        )
    return Deployment(client, settings, name, build_id)


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
