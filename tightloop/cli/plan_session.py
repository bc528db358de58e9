"""What the plan commands share: the plan that a person means, and where its text and its records are."""

from pathlib import Path
from typing import Annotated

import typer

from tightloop.cli.plan_store import PlanStore
from tightloop.cli.session import complete_plan
from tightloop.client.plans import Plans
from tightloop.errors import InvalidRequestError, WorkspaceError
from tightloop.plan.model import Plan
from tightloop.plan.request import PlanStatus
from tightloop.plan.stored import StoredPlan
from tightloop.plan.text.reading import read_plan

PlanId = Annotated[
    str, typer.Argument(metavar="ID", help="Plan id, its beginning, or 'last'.", autocompletion=complete_plan)
]
FileOrId = Annotated[
    str, typer.Argument(metavar="FILE|ID", help="Plan file, or the id of a plan.", autocompletion=complete_plan)
]


def is_file(what: str) -> bool:
    """Return whether a word names a plan file, and not a plan."""
    return what == "-" or Path(what).expanduser().is_file() or "/" in what or Path(what).suffix != ""


async def newest(plans: Plans, status: PlanStatus) -> StoredPlan:
    """Return the newest revision: from this host, or (the first one) from the request that started the plan.

    Raises:
        WorkspaceError: it is only on the host of the workspace.
    """
    store = PlanStore(Path(status.workspace), status.plan_id)
    if store.is_here and (revisions := store.revisions()):
        return revisions[-1]
    request = await plans.request(status.plan_id)
    if status.revision == 1 and request.source:
        return StoredPlan(
            plan_id=status.plan_id, plan=read_plan(request.source).plan, inputs=request.inputs, source=request.source
        )
    if store.workspace.is_dir():
        raise InvalidRequestError(f"{status.plan_id} has stored no plan: it was not opened. {status.reason}".rstrip())
    store.require()
    raise WorkspaceError(f"{status.plan_id} has stored no revision in {store.folder}")


async def plan_with_states(plans: Plans, plan_id: str) -> tuple[Plan, PlanStatus]:
    """Return the newest revision of a plan, and its status."""
    status = await plans.status(plan_id)
    return (await newest(plans, status)).plan, status
