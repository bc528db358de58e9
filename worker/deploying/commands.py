"""`tightloop deploy`: what is said and checked before new workflows go to another build."""

from collections.abc import Sequence

from temporalio.client import Client

from tightloop.settings import Settings
from tightloop.value import counted
from worker.deploying.deployment import UNVERSIONED, Build, Deployment, find_deployment

_BACK = "workers without a version get new workflows again"


async def status(client: Client, settings: Settings) -> str:
    """Return the builds of the deployment as lines: which are in use, what is open on them, who works.

    Raises:
        SettingsError: the settings name no deployment, and none has the task queue.
    """
    deployment = await find_deployment(client, settings, unversioned=not settings.worker.deployment)
    builds = await deployment.builds()
    rows = [("BUILD", "STATE", "OPEN", "WORKERS"), *map(_row, builds)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    lines.append(_installation(deployment, builds))
    for one in builds:
        if one.open_workflows and not one.workers and one.build_id != UNVERSIONED:
            lines.append(_left(one))
            if one.build_id != deployment.build_id:
                lines.append(f"  what fits this build moves by: {deployment.move_command(one.build_id)}")
    return "\n".join(lines)


def _installation(deployment: Deployment, builds: Sequence[Build]) -> str:
    if deployment.build_id:
        note = "" if any(one.build_id == deployment.build_id for one in builds) else ", which has no workers yet"
        return f"deployment {deployment.name}; this installation is build {deployment.build_id}{note}"
    line = f"deployment {deployment.name}; the workers of this installation have no version (worker.deployment)"
    if any(one.state == "current" and one.build_id != UNVERSIONED for one in builds):
        line += "\nThey get no new workflows. Send these back to them: tightloop deploy promote --unversioned"
    return line


async def promote(client: Client, settings: Settings, days: int, *, unversioned: bool = False) -> str:
    """Let new workflows start on the build of this installation, or on workers without a version.

    Raises:
        InvalidRequestError: it has no live workers on a task queue, or does not fit a history; nothing was changed.
    """
    deployment = await find_deployment(client, settings, unversioned=unversioned)
    told = await _checked(deployment, days)
    await deployment.make_current()
    if unversioned:
        # A build that is promoted ends the ramp by itself.
        await deployment.ramp(0)
    new = f"{deployment.version} is current: new workflows start on it" if deployment.version else _BACK
    return "\n".join([told, new, await _drain(deployment)])


async def ramp(client: Client, settings: Settings, percent: float, days: int) -> str:
    """Let a share of new workflows start on the build of this installation, checked as for `promote`; 0 ends that.

    Raises:
        InvalidRequestError: as for `promote`; nothing was changed.
    """
    deployment = await find_deployment(client, settings)
    told = await _checked(deployment, days) if percent else "no build is ramping any more"
    await deployment.ramp(percent)
    return f"{told}\n{percent:g} % of new workflows start on {deployment.version}" if percent else told


async def _checked(deployment: Deployment, days: int) -> str:
    await deployment.need_workers()
    told = await deployment.need_fitting_histories(days)
    # The replay may have taken minutes.
    await deployment.need_workers()
    return told


async def _drain(deployment: Deployment) -> str:
    """Return what is still open on other builds, and how it gets away from there."""
    own = deployment.build_id or UNVERSIONED
    left = [one for one in await deployment.builds() if one.build_id != own and one.open_workflows]
    if not left:
        return "nothing is open on other builds: their workers may stop"
    lines = [_left(one) for one in left]
    lines.append(
        "They end there, or move when a new run of theirs follows, at the latest after the iteration that runs. Keep "
        "the workers of these builds until tightloop deploy status shows 0. What cannot wait fits this build:"
    )
    lines += [f"  {deployment.move_command(one.build_id)}" for one in left]
    return "\n".join(lines)


def _left(build: Build) -> str:
    orphaned = "" if build.workers else ", which has no live workers: they stand still until it has"
    return f"{counted(build.open_workflows, 'workflow')} still open on {build.build_id}{orphaned}"


def _row(build: Build) -> tuple[str, str, str, str]:
    return build.build_id, build.state, str(build.open_workflows), str(build.workers)
