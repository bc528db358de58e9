"""`tightloop deploy`: what is said and checked before new workflows go to another build."""

from temporalio.client import Client

from tightloop.settings import Settings
from tightloop.value import counted
from worker.deploying.deployment import Build, Deployment


async def status(client: Client, settings: Settings) -> str:
    """Return the builds of the deployment as lines: which are in use, what is open on them, who works."""
    deployment = Deployment(client, settings)
    builds = await deployment.builds()
    rows = [("BUILD", "STATE", "OPEN", "WORKERS"), *map(_row, builds)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    note = "" if any(one.build_id == deployment.build_id for one in builds) else ", which has no workers yet"
    lines.append(f"deployment {deployment.name}; this installation is build {deployment.build_id}{note}")
    for one in builds:
        if one.open_workflows and not one.workers:
            lines.append(_left(one))
            if one.build_id != deployment.build_id:
                lines.append(f"  what fits this build moves by: {deployment.move_command(one.build_id)}")
    return "\n".join(lines)


async def promote(client: Client, settings: Settings, days: int) -> str:
    """Let new workflows start on the build of this installation, if it has workers and fits what is there.

    Raises:
        InvalidRequestError: it has no live workers on a task queue, or does not fit a history; nothing was changed.
    """
    deployment = Deployment(client, settings)
    told = await _checked(deployment, days)
    await deployment.make_current()
    return "\n".join([told, f"{deployment.version} is current: new workflows start on it", await _drain(deployment)])


async def ramp(client: Client, settings: Settings, percent: float, days: int) -> str:
    """Let a share of new workflows start on the build of this installation, checked as for `promote`; 0 ends that.

    Raises:
        InvalidRequestError: as for `promote`; nothing was changed.
    """
    deployment = Deployment(client, settings)
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
    left = [one for one in await deployment.builds() if one.build_id != deployment.build_id and one.open_workflows]
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
