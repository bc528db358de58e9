"""Makes the ledger of this host again from what Temporal knows."""

import asyncio
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from tightloop.client.encryption import data_converter
from tightloop.client.execution import Execution
from tightloop.database.ledger import Ledger
from tightloop.database.opening import local_ledger, open_project
from tightloop.database.order import put_in_order
from tightloop.host import state_folder, state_home
from tightloop.host.identity import HostIdentity, host_identity
from tightloop.settings import Settings
from tightloop.value import counted
from worker.connect import known_workflows
from worker.ledger.ends import enter_end
from worker.ledger.entries import MAKERS
from worker.ledger.history import Made, calls_of
from worker.ledger.stores import recover


async def rebuild(client: Client, settings: Settings) -> str:
    """Enter everything that Temporal knows of the projects of this host; what is in the ledger already stays.

    Safe beside running workers. Of what ended so long ago that Temporal has forgotten it comes back what the stores of
    this host hold; see `stores.py`.

    Returns:
        What was read, as a sentence.

    Raises:
        ServiceUnavailableError: Temporal does not answer.
        SettingsError: a key is missing here.
    """
    ledger = local_ledger()
    is_new = await asyncio.to_thread(ledger.last_event) == 0
    converter, identity = data_converter(settings), host_identity(settings)
    runs = _by_workflow(await known_workflows(client))
    entered: list[tuple[int, int, float]] = []
    count = 0
    for workflow_id, known in runs.items():
        found = 0
        for run in known:
            try:
                calls = [made async for made in calls_of(client, workflow_id, run.run_id, converter)]
            except RPCError as error:
                if error.status is RPCStatusCode.NOT_FOUND:  # it was removed meanwhile
                    continue
                raise
            for made in calls:
                if await asyncio.to_thread(_enter, ledger, made, settings, identity, entered):
                    found += 1
        if found:
            count += 1
            await asyncio.to_thread(enter_end, ledger, known[-1])
    if is_new:
        await asyncio.to_thread(put_in_order, ledger.database, entered)
    told = f"{counted(count, 'workflow')} of this host entered, of {len(runs)} that Temporal knows"
    forgotten = await asyncio.to_thread(recover, ledger, state_home(), frozenset(runs))
    return "; ".join(filter(None, (told, forgotten.sentence)))


def _by_workflow(runs: Iterable[Execution]) -> dict[str, list[Execution]]:
    found: dict[str, list[Execution]] = defaultdict(list)
    for run in sorted(runs, key=lambda run: (run.started is not None, run.started)):
        found[run.id].append(run)
    return found


def _enter(
    ledger: Ledger, made: Made, settings: Settings, identity: HostIdentity, entered: list[tuple[int, int, float]]
) -> bool:
    """Enter a call, if it was made on this host; note which lines of the trail it added."""
    home, here = made.scope.home or getattr(made.result, "home", ""), identity.queues(settings)
    if (home and home not in here) or not state_folder(Path(made.scope.workspace)).is_dir():
        return False
    before = ledger.last_event()
    MAKERS[made.activity].enter(
        open_project(Path(made.scope.workspace), identity.name), made.request, made.result, made.call
    )
    after = ledger.last_event()
    if after > before:
        entered.append((before + 1, after, made.ended.timestamp()))
    return True
