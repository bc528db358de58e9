"""Replays many histories against the code of this installation, in processes beside each other."""

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

from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from tightloop.client.encryption import data_converter
from tightloop.errors import InvalidRequestError, ServiceUnavailableError, SettingsError
from tightloop.settings import Settings
from tightloop.value import counted
from worker.connect import connect
from worker.replay import foreign_type, replay
from worker.specs import WORKFLOW_TYPES

BATCH = 10
"""Histories that a process gets at a time."""
SHOWN = 20
"""Further failures are only counted; the junit file has all."""
_UNPRINTABLE = {code: "?" for code in range(32) if chr(code) not in "\t\n\r"}
"""XML has no place for them."""


class Run(NamedTuple):
    """A run of a workflow."""

    workflow_id: str
    run_id: str
    workflow_type: str


@dataclass(frozen=True)
class Outcome:
    """How the replay of a run ended."""

    run: Run
    events: int
    seconds: float
    failure: str = ""
    """Why the code does not fit the history, or why it could not be read."""

    @property
    def skipped(self) -> bool:
        """Whether it was left out, because no worker of this installation runs its type."""
        return self.run.workflow_type not in WORKFLOW_TYPES


def query_of(settings: Settings, query: str = "", days: int | None = None) -> str:
    """Return Temporal's query for the runs of a query that are open or ended in the last days.

    Args:
        settings: those in force.
        query: empty: all workflows on the task queues of the installation.
        days: None: however long ago they ended.
    """
    queue = settings.temporal.task_queue
    # Others may share the namespace. The coder and the retention run on the queues of hosts.
    ours = f"TaskQueue = '{queue}' OR TaskQueue STARTS_WITH '{queue}-workspace-'"
    asked = f"({query or ours})"
    if days is None:
        return asked
    since = (datetime.now(UTC) - timedelta(days=days)).strftime("%Y-%m-%dT%H:%M:%SZ")
    return f"{asked} AND (ExecutionStatus = 'Running' OR CloseTime >= '{since}')"


async def find_runs(client: Client, query: str) -> list[Run]:
    """Return the runs that a query finds.

    Raises:
        InvalidRequestError: Temporal does not understand it.
        ServiceUnavailableError: Temporal does not answer.
    """
    try:
        return [Run(one.id, one.run_id, one.workflow_type) async for one in client.list_workflows(query)]
    except RPCError as error:
        if error.status is RPCStatusCode.INVALID_ARGUMENT:
            raise InvalidRequestError(f"Temporal does not understand the query {query!r}: {error.message}") from error
        raise ServiceUnavailableError(f"Temporal cannot be asked for histories: {error.message}") from error


def replay_runs(settings: Settings, runs: Sequence[Run]) -> list[Outcome]:
    """Replay the histories of runs, and return those that Temporal still had; skip foreign types."""
    batches = [runs[start : start + BATCH] for start in range(0, len(runs), BATCH)]
    processes = min(len(batches), os.cpu_count() or 1)
    if not processes:
        return []
    # A replay has a runtime of native threads, which a fork would not have.
    with ProcessPoolExecutor(processes, get_context("spawn"), _leave_quietly) as pool:
        return [outcome for done in pool.map(_replay_batch, [settings] * len(batches), batches) for outcome in done]


def _leave_quietly() -> None:
    # The native threads of the SDK can abort the interpreter while it finalizes.
    atexit.register(lambda: (sys.stdout.flush(), sys.stderr.flush(), os._exit(0)))


def _replay_batch(settings: Settings, runs: Sequence[Run]) -> list[Outcome]:
    return asyncio.run(_replay_each(settings, runs))


async def _replay_each(settings: Settings, runs: Sequence[Run]) -> list[Outcome]:
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
            done = await replay(history, converter, namespace=client.namespace)
            events, failure = done.events, done.failure
        except SettingsError as error:
            events, failure = 0, error.message
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                continue  # its retention has passed meanwhile
            raise ServiceUnavailableError(
                f"the history of {run.workflow_id} cannot be read: {error.message}"
            ) from error
        outcomes.append(Outcome(run, events, time.monotonic() - began, failure))
    return outcomes


def failed(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """Return those that this code must not go on with."""
    return [outcome for outcome in outcomes if outcome.failure]


def account_of(outcomes: Sequence[Outcome]) -> str:
    """Return what did not fit and why, and how many did."""
    bad = failed(outcomes)
    lines = []
    for outcome in bad[:SHOWN]:
        run = outcome.run
        lines += [f"{run.workflow_type} {run.workflow_id} (run {run.run_id}) does not fit:", outcome.failure, ""]
    if len(bad) > SHOWN:
        lines += [f"... and {len(bad) - SHOWN} more", ""]
    skipped = Counter(outcome.run.workflow_type for outcome in outcomes if outcome.skipped)
    lines += [f"skipped {_histories(count)}: {foreign_type(name)}" for name, count in sorted(skipped.items())]
    events, replayed = sum(outcome.events for outcome in outcomes), len(outcomes) - skipped.total()
    total = f"replayed {_histories(replayed)} of {counted(events, 'event')}"
    if not bad:
        return "\n".join([*lines, f"{total}: the current code fits" if replayed else "no history was found to replay"])
    lines.append(f"{total}: the current code does not fit {len(bad)} of them")
    lines.append("Guard the change with workflow.patched(), or let them end with the code that recorded them.")
    return "\n".join(lines)


def _histories(count: int) -> str:
    return f"{count} {'history' if count == 1 else 'histories'}"


def write_junit(outcomes: Sequence[Outcome], file: Path) -> None:
    """Write the outcomes as a report of tests, as build servers read it.

    Raises:
        InvalidRequestError: the file cannot be written.
    """
    spent = sum(outcome.seconds for outcome in outcomes)
    suite = ElementTree.Element(
        "testsuite",
        name="replay",
        tests=str(len(outcomes)),
        failures=str(len(failed(outcomes))),
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
            ElementTree.SubElement(case, "failure", message="the current code does not fit").text = text
        if outcome.skipped:
            ElementTree.SubElement(case, "skipped", message=foreign_type(run.workflow_type))
    try:
        ElementTree.ElementTree(suite).write(file, encoding="utf-8", xml_declaration=True)
    except OSError as error:
        raise InvalidRequestError(f"the report cannot be written to {file}: {error.strerror or error}") from None
