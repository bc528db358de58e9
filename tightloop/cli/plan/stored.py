"""The plan that a person means: the text of a file, or the newest revision of a plan that was started."""

from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from tightloop.cli.session import complete_id
from tightloop.client import Status, TightloopClient
from tightloop.client.records.store import Store
from tightloop.errors import InvalidRequestError, WorkspaceError
from tightloop.plan.request import PlanRequest, PlanStatus, StepLine
from tightloop.plan.result import StepStatus
from tightloop.plan.stored import StoredPlan
from tightloop.plan.text.reading import read_plan

FileOrId = Annotated[
    str, typer.Argument(metavar="FILE|ID", help="Plan file, or the id of a plan.", autocompletion=complete_id)
]


def is_file(what: str) -> bool:
    """Return whether a word names a plan file rather than a plan."""
    # What looks like a path is one even where it does not exist: the error is then about the file.
    return what == "-" or Path(what).expanduser().is_file() or "/" in what or Path(what).suffix != ""


async def plan_status(client: TightloopClient, plan_id: str) -> PlanStatus:
    """Return the status of a plan; the id was resolved as that of a plan."""
    status = await client.status(plan_id)
    assert isinstance(status, PlanStatus)
    return status


def with_records(status: Status) -> Status:
    """Return a status that no worker gave, with what the records of a plan on this host say of its steps."""
    if not isinstance(status, PlanStatus) or not status.workspace:
        return status
    store = Store(Path(status.workspace), status.plan_id)
    found = {record.step: record for record in store.records() if not record.undone} if store.is_here else {}
    counts = Counter(record.result.status.value for record in found.values())
    failed = tuple(
        StepLine(id=step, status=StepStatus.FAILED, attempt=record.attempt, failure=record.result.failure)
        for step, record in found.items()
        if record.result.status is StepStatus.FAILED
    )
    times = [moment for moment in (status.as_of, *(record.ended for record in found.values())) if moment is not None]
    return status.evolve(counts=dict(counts), failed=failed, as_of=max(times, default=None))


async def newest(client: TightloopClient, status: PlanStatus) -> StoredPlan:
    """Return the newest revision: from this host, or (the first one) from the request that started the plan.

    Raises:
        InvalidRequestError: the plan was refused before it was stored.
        WorkspaceError: the revision is only on the host of the workspace.
    """
    store = Store(Path(status.workspace), status.plan_id)
    if store.is_here and (revisions := store.revisions()):
        return revisions[-1]
    request = await client.request(status.plan_id)
    if status.revision == 1 and isinstance(request, PlanRequest) and request.source:
        return StoredPlan(
            plan_id=status.plan_id, plan=read_plan(request.source).plan, inputs=request.inputs, source=request.source
        )
    if store.workspace.is_dir():
        raise InvalidRequestError(f"{status.plan_id} has no stored plan: it was not opened. {status.reason}".rstrip())
    store.require()
    raise WorkspaceError(f"{status.plan_id} has no stored revision in {store.folder}")
