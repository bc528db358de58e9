"""Enters the ends of workflows that could not tell of them: terminated, timed out, or ended without their workspace."""

import asyncio
import logging
from datetime import UTC, datetime, timedelta

from temporalio.client import Client

from tightloop.client.execution import CONTINUED, Execution
from tightloop.database.ledger import Ledger
from tightloop.database.opening import local_ledger
from tightloop.errors import EpisodeNotFoundError, TightloopError
from tightloop.ledger.model import WorkflowSnapshot
from worker.connect import known_workflows

logger = logging.getLogger("tightloop")

LOOK = timedelta(seconds=30)
OVERLAP = timedelta(minutes=2)
"""Visibility learns of an end later than it was; what is looked at twice is entered once."""
WEEK = timedelta(days=7)


async def enter_ends(client: Client, every: timedelta = LOOK) -> None:
    """Look again and again what has ended, until cancelled; at first what ended in the last week."""
    since = datetime.now(UTC) - WEEK
    while True:
        begun = datetime.now(UTC)
        try:
            ended = await known_workflows(
                client, f"ExecutionStatus != 'Running' AND CloseTime > '{since.isoformat().replace('+00:00', 'Z')}'"
            )
            await asyncio.to_thread(_enter_all, ended)
            since = begun - OVERLAP
        except TightloopError as error:
            logger.debug("ends of workflows: %s", error.message)
        await asyncio.sleep(every.total_seconds())


def enter_end(ledger: Ledger, run: Execution) -> None:
    """Enter that a run has ended, unless the ledger knows, or a newer run of the workflow."""
    if run.refused or run.status == CONTINUED:
        return
    try:
        line = ledger.workflow(run.id)
    except EpisodeNotFoundError:
        return
    if run.closed is None or line.closed is not None or line.at > run.closed:
        return
    # What was used since it last told of itself is not known.
    unknown = {"cost_known": False, "tokens": None, "worked_s": None, "interventions": None}
    ended = WorkflowSnapshot.of(line, status=run.status, at=run.closed, closed=run.closed, questions=(), **unknown)
    ledger.of(line.project).record(ended)


def _enter_all(ended: tuple[Execution, ...]) -> None:
    ledger = local_ledger()
    newest: dict[str, Execution] = {}
    for run in sorted((run for run in ended if run.closed is not None), key=lambda run: str(run.closed)):
        newest[run.id] = run
    for run in newest.values():
        enter_end(ledger, run)
