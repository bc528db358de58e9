"""Worker deployments: replay checks, promotion, ramp and status."""

import asyncio
import atexit
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

import temporalio.api.deployment.v1 as deployments
import temporalio.api.workflowservice.v1 as service
from temporalio.api.enums.v1 import WorkerDeploymentVersionStatus
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from tightloop.client.calls import Calls
from tightloop.client.connection import CALL_TIMEOUT
from tightloop.client.encryption import data_converter
from tightloop.client.execution import version_name
from tightloop.client.setup import topology_of
from tightloop.client.staffing import count_open, workers_on
from tightloop.client.workers import Poller, is_live, read_routing, workers_of
from tightloop.errors import InvalidRequestError, ServiceUnavailableError, SettingsError
from tightloop.settings import Settings
from tightloop.value import format_count
from worker.build import WORKFLOW_TYPES
from worker.connect import connect
from worker.hosting.startup import build_id_of
from worker.replay import foreign_type, replay

BATCH = 10
"""Number of histories per batch in a replay process."""
SHOWN = 20
"""Maximum number of failures in the printed report. The JUnit file contains all of them."""
_UNPRINTABLE = {code: "?" for code in range(32) if chr(code) not in "\t\n\r"}
"""Control characters that XML does not allow."""


class Run(NamedTuple):
    """A workflow run."""

    workflow_id: str
    run_id: str
    workflow_type: str


@dataclass(frozen=True)
class Outcome:
    """A run's replay result."""

    run: Run
    events: int
    seconds: float
    failure: str = ""
    """Reason why the code does not match the history, or why the history could not be read."""

    @property
    def skipped(self) -> bool:
        """True if the run was skipped because none of this installation's workers supports its workflow type."""
        return self.run.workflow_type not in WORKFLOW_TYPES


def query_of(settings: Settings, query: str = "", days: int | None = None) -> str:
    """Return a visibility query for runs that are open or ended in the last `days` days.

    Args:
        settings: effective settings.
        query: base query. If empty, the query matches all workflows on the installation's task queues.
        days: number of days. None includes all runs that have ended.
    """
    queue = settings.temporal.task_queue
    # Others may share the namespace. Coder and retention workflows run on the queues of hosts.
    ours = f"TaskQueue = '{queue}' OR TaskQueue STARTS_WITH '{queue}-workspace-'"
    condition = f"({query or ours})"
    if days is None:
        return condition
    since = (datetime.now(UTC) - timedelta(days=days)).strftime("%Y-%m-%dT%H:%M:%SZ")
    return f"{condition} AND (ExecutionStatus = 'Running' OR CloseTime >= '{since}')"


async def find_runs(client: Client, query: str) -> list[Run]:
    """Return the runs that match a query.

    Raises:
        InvalidRequestError: Temporal rejects the query.
        ServiceUnavailableError: Temporal does not respond.
    """
    try:
        return [
            Run(execution.id, execution.run_id, execution.workflow_type)
            async for execution in client.list_workflows(query)
        ]
    except RPCError as error:
        if error.status is RPCStatusCode.INVALID_ARGUMENT:
            raise InvalidRequestError(f"Temporal rejected the query {query!r}: {error.message}") from error
        raise ServiceUnavailableError(f"cannot list the workflows: {error.message}") from error


def replay_runs(settings: Settings, runs: Sequence[Run]) -> list[Outcome]:
    """Replay the histories of runs in parallel processes.

    Runs of unsupported workflow types are reported as skipped. Expired runs are omitted.
    """
    batches = [runs[start : start + BATCH] for start in range(0, len(runs), BATCH)]
    processes = min(len(batches), os.cpu_count() or 1)
    if not processes:
        return []
    # Spawn, because the replayer's native threads do not survive a fork.
    with ProcessPoolExecutor(processes, get_context("spawn"), _exit_quietly) as pool:
        return [
            outcome
            for batch_outcomes in pool.map(_replay_batch, [settings] * len(batches), batches)
            for outcome in batch_outcomes
        ]


def _exit_quietly() -> None:
    # The SDK's native threads can abort the interpreter during finalization.
    atexit.register(lambda: (sys.stdout.flush(), sys.stderr.flush(), os._exit(0)))


def _replay_batch(settings: Settings, runs: Sequence[Run]) -> list[Outcome]:
    return asyncio.run(_replay_each(settings, runs))


async def _replay_each(settings: Settings, runs: Sequence[Run]) -> list[Outcome]:
    # This runs in a spawned process, which cannot inherit the parent's connection.
    client, converter = await connect(settings), data_converter(settings)
    outcomes = []
    for run in runs:
        began = time.monotonic()
        outcome = Outcome(run, 0, 0.0)
        if outcome.skipped:
            outcomes.append(outcome)
            continue
        try:
            history = await client.get_workflow_handle(run.workflow_id, run_id=run.run_id).fetch_history()
            result = await replay(history, converter, namespace=client.namespace)
            events, failure = result.events, result.failure
        except SettingsError as error:
            # Without the key nobody can tell whether the code fits, so the run counts as a failure.
            events, failure = 0, error.message
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                continue  # its retention has passed meanwhile
            raise ServiceUnavailableError(f"cannot read the history of {run.workflow_id}: {error.message}") from error
        outcomes.append(Outcome(run, events, time.monotonic() - began, failure))
    return outcomes


def failed_outcomes(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """Return the outcomes of runs whose replay failed. The current code must not continue these runs."""
    return [outcome for outcome in outcomes if outcome.failure]


def format_outcomes(outcomes: Sequence[Outcome]) -> str:
    """Return a printable report with the failures, skipped types and totals."""
    bad = failed_outcomes(outcomes)
    lines = []
    for outcome in bad[:SHOWN]:
        run = outcome.run
        lines += [f"{run.workflow_type} {run.workflow_id} (run {run.run_id}) is not compatible:", outcome.failure, ""]
    if len(bad) > SHOWN:
        lines += [f"... and {len(bad) - SHOWN} more", ""]
    skipped = Counter(outcome.run.workflow_type for outcome in outcomes if outcome.skipped)
    lines += [f"skipped {_histories(count)}: {foreign_type(name)}" for name, count in sorted(skipped.items())]
    events, replayed = sum(outcome.events for outcome in outcomes), len(outcomes) - skipped.total()
    total = f"replayed {_histories(replayed)} of {format_count(events, 'event')}"
    if not bad:
        verdict = f"{total}: the current code is compatible" if replayed else "found no history to replay"
        return "\n".join([*lines, verdict])
    lines.append(f"{total}, and {len(bad)} of them are not compatible with the current code")
    lines.append("Let these workflows finish on the build that recorded them, or undo the change.")
    return "\n".join(lines)


def _histories(count: int) -> str:
    return f"{count} {'history' if count == 1 else 'histories'}"


def write_junit(outcomes: Sequence[Outcome], file: Path) -> None:
    """Write the outcomes as a JUnit report.

    Raises:
        InvalidRequestError: the file cannot be written.
    """
    spent = sum(outcome.seconds for outcome in outcomes)
    suite = ElementTree.Element(
        "testsuite",
        name="replay",
        tests=str(len(outcomes)),
        failures=str(len(failed_outcomes(outcomes))),
        skipped=str(sum(outcome.skipped for outcome in outcomes)),
        time=f"{spent:.3f}",
    )
    for outcome in outcomes:
        run = outcome.run
        name = f"{run.workflow_id} (run {run.run_id})"
        case = ElementTree.SubElement(
            suite, "testcase", classname=run.workflow_type, name=name, time=f"{outcome.seconds:.3f}"
        )
        if outcome.failure:
            text = outcome.failure.translate(_UNPRINTABLE)
            ElementTree.SubElement(case, "failure", message="the current code is not compatible").text = text
        if outcome.skipped:
            ElementTree.SubElement(case, "skipped", message=foreign_type(run.workflow_type))
    try:
        ElementTree.ElementTree(suite).write(file, encoding="utf-8", xml_declaration=True)
    except OSError as error:
        raise InvalidRequestError(f"cannot write the report to {file}: {error.strerror or error}") from None


DRAINED = WorkerDeploymentVersionStatus.WORKER_DEPLOYMENT_VERSION_STATUS_DRAINED


@dataclass(frozen=True)
class Build:
    """A build of the deployment, as reported by Temporal."""

    build_id: str
    state: str
    """`current`, `ramping at 30 %`, `draining`, `drained` or `not in use`."""
    open_workflows: int
    workers: int
    """Number of live processes across all task queues."""


UNVERSIONED = "unversioned"
"""Build id that is shown for workers without a version."""


class Deployment:
    """The builds of a deployment, and the routing of new workflows to them."""

    def __init__(self, client: Client, settings: Settings, name: str, build_id: str) -> None:
        """Use the deployment `name`. An empty build id stands for workers without a version.

        Callers usually use `find_deployment` instead.
        """
        self.name, self.build_id = name, build_id
        self._client, self._settings, self._calls = client, settings, Calls(client)

    @property
    def version(self) -> str:
        """Version name of this installation's build in Temporal. Empty if the build has no version."""
        return version_name(self.name, self.build_id) if self.build_id else ""

    @property
    def target(self) -> str:
        """Display name of the workers that will receive new workflows."""
        return self.version or workers_of("")

    # -- builds -----------------------------------------------------------------------------------------

    async def builds(self) -> list[Build]:
        """Return the known builds. The current build comes first, followed by ramping builds."""
        answer = await self._describe()
        routing = answer.worker_deployment_info.routing_config
        summaries = answer.worker_deployment_info.version_summaries
        in_use = [
            version_summary.deployment_version.build_id
            for version_summary in summaries
            if version_summary.status != DRAINED
        ]
        workers = await self._live_workers(await self._queues(in_use))
        all_builds = []
        for summary in summaries:
            name = version_name(self.name, summary.deployment_version.build_id)
            processes = {poller.process for pollers in workers.values() for poller in pollers if poller.version == name}
            all_builds.append(
                Build(
                    summary.deployment_version.build_id,
                    _state(summary, routing),
                    await count_open(self._calls, name),
                    len(processes),
                )
            )
        # Workers on queues of their own, such as those of screens, need no version.
        if unversioned := {
            poller.process for poller in workers[self._settings.temporal.task_queue] if not poller.version
        }:
            state = "not in use" if routing.current_deployment_version.build_id else "current"
            all_builds.append(Build(UNVERSIONED, state, await self._count_unversioned_runs(), len(unversioned)))
        return sorted(all_builds, key=lambda one: (one.state != "current", "ramping" not in one.state))

    async def _count_unversioned_runs(self) -> int:
        query = f"({query_of(self._settings)}) AND TemporalWorkerDeploymentVersion IS NULL"
        async with self._calls.bound_call("", CALL_TIMEOUT):
            return (await self._client.count_workflows(f"{query} AND ExecutionStatus = 'Running'")).count

    async def _describe(self) -> service.DescribeWorkerDeploymentResponse:
        request = service.DescribeWorkerDeploymentRequest(namespace=self._client.namespace, deployment_name=self.name)
        async with self._calls.bound_call("", CALL_TIMEOUT):
            try:
                return await self._client.workflow_service.describe_worker_deployment(request, timeout=CALL_TIMEOUT)
            except RPCError as error:
                # A missing namespace has the same status as a missing deployment; only the message differs.
                if error.status is not RPCStatusCode.NOT_FOUND or error.message.startswith("Namespace"):
                    raise
        raise InvalidRequestError(
            f"Temporal has no workers for deployment {self.name!r}. Start this build's workers with "
            f"worker.deployment: {self.name}"
        )

    async def _queues(self, build_ids: Iterable[str]) -> tuple[str, ...]:
        """Return the task queues that this installation or one of the builds serves."""
        there = await topology_of(self._calls, self._settings)
        queues = dict.fromkeys((there.main_queue, *there.homes, *there.named))
        for build_id in build_ids:
            version = deployments.WorkerDeploymentVersion(deployment_name=self.name, build_id=build_id)
            request = service.DescribeWorkerDeploymentVersionRequest(
                namespace=self._client.namespace, deployment_version=version
            )
            async with self._calls.bound_call("", CALL_TIMEOUT):
                answer = await self._client.workflow_service.describe_worker_deployment_version(
                    request, timeout=CALL_TIMEOUT
                )
            queues |= dict.fromkeys(task_queue.name for task_queue in answer.version_task_queues)
        return tuple(queues)

    async def _live_workers(self, queues: Sequence[str]) -> dict[str, list[Poller]]:
        pollers = await asyncio.gather(*(workers_on(self._calls, queue) for queue in queues))
        return {
            queue: [poller for poller in queue_pollers if is_live(poller)]
            for queue, queue_pollers in zip(queues, pollers, strict=True)
        }

    def move_command(self, build_id: str) -> str:
        """Return the command that moves open workflows from another build to this one."""
        query = f'TemporalWorkerDeploymentVersion="{version_name(self.name, build_id)}" AND ExecutionStatus="Running"'
        to = (
            f"one_time --versioning-override-deployment-name {self.name} --versioning-override-build-id {self.build_id}"
            if self.build_id
            else "auto_upgrade"
        )
        return f"temporal workflow update-options --query '{query}' --versioning-override-behavior {to} --yes"

    # -- checks before a change -------------------------------------------------------------------------

    async def need_workers(self) -> None:
        """Check that this build has live workers on every task queue that new workflows need.

        Raises:
            InvalidRequestError: workers are missing. New workflows would wait for these workers.
        """
        current = (await self._describe()).worker_deployment_info.routing_config.current_deployment_version.build_id
        queues = await self._queues([current] if current else [])
        main = self._settings.temporal.task_queue
        missing = [
            queue
            for queue, workers in (await self._live_workers(queues)).items()
            if not any(worker.version == self.version for worker in workers)
            # A queue without versioned workers gives its tasks to any worker.
            and (queue == main or any(worker.version for worker in workers))
        ]
        if missing:
            queues_text = f"task queue{'s' if len(missing) > 1 else ''} {', '.join(map(repr, missing))}"
            raise InvalidRequestError(
                f"no worker {f'of {self.version}' if self.version else 'without a version'} is running on "
                f"{queues_text}, so new workflows would not be picked up. Start the missing workers in addition "
                "to the existing workers, then try again"
            )

    async def need_fitting_histories(self, days: int) -> str:
        """Replay recent workflows with the installed code, and return a report.

        A workflow is recent if it is open or ended in the last `days` days.

        Raises:
            InvalidRequestError: the code does not match a history. The message names the workflow and the
                reason.
        """
        runs = await find_runs(self._client, query_of(self._settings, days=days))
        outcomes = await asyncio.to_thread(replay_runs, self._settings, runs)
        if failed_outcomes(outcomes):
            raise InvalidRequestError(f"cannot route new workflows to {self.target}:\n\n{format_outcomes(outcomes)}")
        return format_outcomes(outcomes)

    # -- changes ----------------------------------------------------------------------------------------

    async def make_current(self) -> None:
        """Make this build current.

        New workflows start on it, and pinned workflows move to it when they continue as new.
        """
        description = await self._describe()
        request = service.SetWorkerDeploymentCurrentVersionRequest(
            namespace=self._client.namespace,
            deployment_name=self.name,
            build_id=self.build_id,
            # With the token Temporal refuses the change if somebody else changed the routing since `_describe`.
            conflict_token=description.conflict_token,
            identity=self._client.identity,
        )
        async with self._calls.bound_call("", CALL_TIMEOUT):
            await self._client.workflow_service.set_worker_deployment_current_version(request, timeout=CALL_TIMEOUT)

    async def ramp(self, percent: float) -> None:
        """Route a percentage of new workflows and runs to this build. 0 ends the ramp."""
        description = await self._describe()
        if not percent and not description.worker_deployment_info.routing_config.ramping_deployment_version.build_id:
            return
        request = service.SetWorkerDeploymentRampingVersionRequest(
            namespace=self._client.namespace,
            deployment_name=self.name,
            build_id=self.build_id if percent else "",
            percentage=percent,
            conflict_token=description.conflict_token,
            identity=self._client.identity,
        )
        async with self._calls.bound_call("", CALL_TIMEOUT):
            await self._client.workflow_service.set_worker_deployment_ramping_version(request, timeout=CALL_TIMEOUT)


async def find_deployment(client: Client, settings: Settings, *, unversioned: bool = False) -> Deployment:
    """Return the deployment that the settings name.

    Args:
        client: connection to Temporal.
        settings: effective settings.
        unversioned: select workers without a version. If the settings do not name a deployment, use the one that
            Temporal routes workflows to, or that has workers on the episodes' task queue.

    Raises:
        SettingsError: there is no deployment.
    """
    name, build_id = settings.worker.deployment, "" if unversioned else build_id_of(settings.worker)
    if not name and unversioned:
        calls, queue = Calls(client), settings.temporal.task_queue
        routing = await read_routing(client, calls.bound_call, queue)
        versions = [routing.current, *(worker.version for worker in await workers_on(calls, queue))]
        name = next(filter(None, versions), "").partition(":")[0]
    if not name:
        raise SettingsError(
            "worker.deployment is not set, so workers have no versions. Set worker.deployment in the settings of "
            "all workers, for example worker.deployment: tightloop"
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


_BACK = "new workflows start on workers without a version again"


async def status(client: Client, settings: Settings) -> str:
    """Return a printable table of the builds with their state, open workflows and workers.

    Raises:
        SettingsError: the settings do not name a deployment, and the task queue has none.
    """
    deployment = await find_deployment(client, settings, unversioned=not settings.worker.deployment)
    builds = await deployment.builds()
    rows = [("BUILD", "STATE", "OPEN", "WORKERS")]
    rows += [(build.build_id, build.state, str(build.open_workflows), str(build.workers)) for build in builds]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    lines.append(_installation(deployment, builds))
    for build in builds:
        if build.open_workflows and not build.workers and build.build_id != UNVERSIONED:
            lines.append(_describe_open_work(build))
            if build.build_id != deployment.build_id:
                lines.append(f"  move compatible workflows to this build: {deployment.move_command(build.build_id)}")
    return "\n".join(lines)


def _installation(deployment: Deployment, builds: Sequence[Build]) -> str:
    if deployment.build_id:
        note = "" if any(build.build_id == deployment.build_id for build in builds) else ", which has no workers yet"
        return f"deployment {deployment.name}, this installation is build {deployment.build_id}{note}"
    line = f"deployment {deployment.name}, the workers of this installation have no version (worker.deployment)"
    if any(build.state == "current" and build.build_id != UNVERSIONED for build in builds):
        line += (
            "\nNew workflows do not start on these workers. To start new workflows on them: tightloop deploy "
            "promote --unversioned"
        )
    return line


async def promote(client: Client, settings: Settings, days: int, *, unversioned: bool = False) -> str:
    """Make this installation's build current.

    With `unversioned`, make the workers without a version current instead.

    Raises:
        InvalidRequestError: live workers are missing on a task queue, or the code does not match a
            history. Nothing was changed.
    """
    deployment = await find_deployment(client, settings, unversioned=unversioned)
    report = await _check_deployment(deployment, days)
    await deployment.make_current()
    if unversioned:
        # Promoting a build ends a ramp by itself; promoting unversioned workers does not.
        await deployment.ramp(0)
    new = f"{deployment.version} is current: new workflows start on this build" if deployment.version else _BACK
    return "\n".join([report, new, await _drain(deployment)])


async def ramp(client: Client, settings: Settings, percent: float, days: int) -> str:
    """Route a percentage of new workflows to this installation's build. 0 ends the ramp.

    This first runs the same checks as `promote`.

    Raises:
        InvalidRequestError: see `promote`. Nothing was changed.
    """
    deployment = await find_deployment(client, settings)
    report = await _check_deployment(deployment, days) if percent else "no build is ramping anymore"
    await deployment.ramp(percent)
    return f"{report}\n{percent:g} % of new workflows start on {deployment.version}" if percent else report


async def _check_deployment(deployment: Deployment, days: int) -> str:
    await deployment.need_workers()
    report = await deployment.need_fitting_histories(days)
    # Checked again, because the replay may have taken minutes.
    await deployment.need_workers()
    return report


async def _drain(deployment: Deployment) -> str:
    """List the workflows that are still open on other builds, with the commands that move them."""
    own_build = deployment.build_id or UNVERSIONED
    left = [build for build in await deployment.builds() if build.build_id != own_build and build.open_workflows]
    if not left:
        return "other builds have no open workflows, so you can stop their workers"
    lines = [_describe_open_work(build) for build in left]
    lines.append(
        "These workflows finish on their build or move to this build on their next run, no later than the end of "
        "the current iteration. Keep the workers for these builds running until tightloop deploy status shows 0. "
        "The workflows are compatible with this build. To move them now:"
    )
    lines += [f"  {deployment.move_command(build.build_id)}" for build in left]
    return "\n".join(lines)


def _describe_open_work(build: Build) -> str:
    orphaned = "" if build.workers else ", which has no live workers. The workflows wait until a worker starts"
    return f"{format_count(build.open_workflows, 'workflow')} still open on {build.build_id}{orphaned}"
