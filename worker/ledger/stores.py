"""Forwards this host's ledger to a central database, and rebuilds the ledger."""

import asyncio
import contextlib
import json
import logging
import re
import sqlite3
from collections import defaultdict
from collections.abc import AsyncIterator, Collection, Iterable, Iterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from pydantic import ValidationError
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from activities.artifacts.stores import LocalArtifactStore
from activities.plan.records import FileRecords
from activities.workspace.git_command import store_git
from tightloop.client.encryption import data_converter
from tightloop.client.execution import Execution
from tightloop.database.engine import postgres_database
from tightloop.database.forwarding import Forwarder
from tightloop.database.ledger import Ledger, local_database, local_ledger, open_project, open_state
from tightloop.database.rows import put_in_order
from tightloop.episode.checkpoint import CheckpointRecord, checkpoint_id
from tightloop.episode.model import CheckpointFile
from tightloop.errors import TightloopError
from tightloop.executor.model import WorkOrder
from tightloop.host import state_folder, state_home
from tightloop.host.identity import HostIdentity, host_identity
from tightloop.ledger.model import UNKNOWN, StepRow, WorkflowSnapshot
from tightloop.plan.child import StepStatus
from tightloop.plan.document import StoredPlan
from tightloop.settings import Settings
from tightloop.value import ArtifactRef, format_count, shorten
from worker.connect import known_workflows
from worker.ledger.entries import MAKERS, STEPS, RecordedCall, calls_of, enter_end

TITLE = "found in the stores of this host"
GOAL_CHARACTERS = 200
READ_BYTES = 8_000_000
_CHECKPOINT = b'{"state":{'
"""Prefix of a stored `CheckpointFile`."""
_NUMBERED = re.compile(r"refs/tightloop/([^/]+)/(\d+)")
_REVISION = re.compile(r"revision-\d+")


@dataclass
class RecoveryCounts:
    """The number of recovered entries of each kind."""

    workflows: int = 0
    checkpoints: int = 0
    states: int = 0
    """Number of recovered checkpoints that include their state, so they can be restored."""
    steps: int = 0

    @property
    def sentence(self) -> str:
        """Human-readable summary. Empty if nothing was recovered."""
        if not self.workflows:
            return ""
        return (
            f"recovered {format_count(self.workflows, 'workflow')} from this host's stores after Temporal deleted "
            f"them: {format_count(self.checkpoints, 'checkpoint')} ({self.states} with their state) and "
            f"{format_count(self.steps, 'step')} that ran. Their outcomes, costs, questions and timelines are lost"
        )


def recover(ledger: Ledger, home: Path, known_ids: Collection[str]) -> RecoveryCounts:
    """Add workflows that are only in the project stores to the ledger. Idempotent."""
    recovered = RecoveryCounts()
    there = {*known_ids, *_list_workflow_ids(ledger)}
    for folder in sorted((home / "projects").glob("*")):
        if folder.is_dir():
            _Project(folder, recovered, there).recover()
    return recovered


def _list_workflow_ids(ledger: Ledger) -> Iterator[str]:
    cursor = ""
    while True:
        page = ledger.workflows(cursor=cursor, limit=500)
        yield from (line.id for line in page.lines)
        if not (cursor := page.cursor):
            return


class _Project:
    def __init__(self, folder: Path, recovered: RecoveryCounts, there: Collection[str]) -> None:
        self._folder, self._counts, self._there = folder, recovered, there
        self._artifacts = LocalArtifactStore(folder / "artifacts")
        self._ledger = open_state(folder)

    def recover(self) -> None:
        plans = dict(self._plans())
        trees = {
            name: numbered_trees
            for name, numbered_trees in self._trees().items()
            if name not in self._there and name not in plans
        }
        states = self._states() if trees else {}
        for episode, numbered_trees in trees.items():
            rows: list[tuple[str, int, str, str]] = []
            for number, tree in sorted(numbered_trees.items()):
                # Several episodes may share a tree, so a state is used only if it is the only one for the tree.
                certain = states.get(tree, [])
                record = CheckpointRecord(id=checkpoint_id(number), iteration=0, tree=tree, title=TITLE)
                if len(certain) == 1:
                    [(ref, file)] = certain
                    record = record.evolve(
                        state=ref,
                        iteration=file.state.iteration,
                        branch=file.state.branch,
                        checks=file.state.checks_text,
                    )
                    self._counts.states += 1
                rows.append((episode, number, f"recovered/{number}", record.model_dump_json()))
            self._ledger.adopt(rows)
            self._record(episode, "episode", self._goal(episode))
            self._counts.checkpoints += len(rows)
        for plan_id, stored in plans.items():
            if plan_id not in self._there:
                self._enter_plan(plan_id, stored)

    def _enter_plan(self, plan_id: str, stored: StoredPlan) -> None:
        steps = stored.plan.steps
        self._ledger.add_steps(
            StepRow(
                plan_id=plan_id, step=step.id, status=StepStatus.PENDING.value, needs=step.needs, title=step.title,
                order=number,
            )
            for number, step in enumerate(steps)
        )  # fmt: skip
        ran = FileRecords(self._folder / "plans").all(plan_id)
        self._ledger.record_steps(
            StepRow(
                plan_id=plan_id, step=record.step, status=record.result.status.value, attempt=record.attempt,
                at=record.ended or record.started,
            )
            for record in ran
        )  # fmt: skip
        self._record(plan_id, "plan", stored.plan.title)
        self._counts.steps += len({record.step for record in ran})

    def _record(self, workflow_id: str, kind: str, goal: str) -> None:
        now = datetime.now(UTC)
        self._ledger.record(
            WorkflowSnapshot(
                id=workflow_id,
                kind=kind,
                status=UNKNOWN,
                goal=shorten(goal, GOAL_CHARACTERS),
                run=0,
                at=now,
                closed=now,
                details={"reason": "Temporal has deleted the workflow history"},
            )
        )
        self._counts.workflows += 1

    # -- contents of the stores ------------------------------------------------------------------------

    def _trees(self) -> dict[str, dict[int, str]]:
        """Return the trees of all checkpoints, by episode and number."""
        trees: dict[str, dict[int, str]] = defaultdict(dict)
        if (self._folder / "trees" / "HEAD").exists():
            text = store_git(self._folder / "trees").run("for-each-ref", "--format=%(objectname) %(refname)")
            for line in text.decode("utf-8", "replace").splitlines():
                tree, _, name = line.partition(" ")
                if matched := _NUMBERED.fullmatch(name):
                    trees[matched[1]][int(matched[2])] = tree
        return trees

    def _states(self) -> dict[str, list[tuple[ArtifactRef, CheckpointFile]]]:
        """Return the stored checkpoint states, by tree."""
        states: dict[str, list[tuple[ArtifactRef, CheckpointFile]]] = defaultdict(list)
        for digest, (_, size) in self._artifacts.all().items():
            content = (self._artifacts.find(digest) or b"") if size <= READ_BYTES else b""
            # Most artifacts are something else; comparing the prefix is much cheaper than parsing all of them.
            if not content.startswith(_CHECKPOINT):
                continue
            try:
                file = CheckpointFile.model_validate_json(content)
            except ValidationError:
                continue
            ref = ArtifactRef(sha256=digest, size_bytes=len(content), media_type="application/json", name="checkpoint")
            states[file.state.tree].append((ref, file))
        return states

    def _goal(self, episode: str) -> str:
        """Return the goal in an episode's newest delivery, or "" if nothing was delivered."""
        path = self._folder / "outbox.db"
        try:
            # Read-only: a worker may be writing to it, and a missing file must not be created.
            with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
                query = "SELECT order_ref FROM delivery WHERE episode_id = ? ORDER BY queued_at DESC LIMIT 1"
                row = connection.execute(query, (episode,)).fetchone()
            if row is None:
                return ""
            ref = ArtifactRef.model_validate_json(row[0])
            return WorkOrder.model_validate_json(self._artifacts.get(ref)).plan.goal
        except (sqlite3.Error, ValidationError, TightloopError, AttributeError):
            return ""

    def _plans(self) -> Iterator[tuple[str, StoredPlan]]:
        """Yield each plan's id and newest revision."""
        for folder in sorted((self._folder / "plans").glob("*")):
            facts = sorted(path for path in (folder / "facts").glob("*.json") if _REVISION.fullmatch(path.stem))
            if not facts:
                continue
            try:
                ref = ArtifactRef.model_validate(json.loads(facts[-1].read_bytes())["plan"])
                stored = StoredPlan.model_validate_json(self._artifacts.get(ref))
            except (OSError, ValueError, KeyError, TypeError, TightloopError):
                continue
            yield stored.plan_id, stored


logger = logging.getLogger("tightloop")

LOOK = timedelta(milliseconds=250)
LONGEST_WAIT = timedelta(seconds=30)
"""Maximum interval between two tries if the database does not respond."""
LAST_TRY = timedelta(seconds=5)
"""Time for forwarding the last rows when a worker stops. The remaining rows are forwarded after its next start."""


@asynccontextmanager
async def forwarding(settings: Settings) -> AsyncIterator[None]:
    """Forward new ledger rows to `database.url` during the block. Do nothing if the setting is empty."""
    url = settings.database.url.get_secret_value()
    if not url:
        yield
        return
    target = postgres_database(url)
    forwarder = Forwarder(local_database(), target, host_identity(settings).names)
    task = asyncio.create_task(_keep_forwarding(forwarder, str(target)))
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        with contextlib.suppress(TightloopError, TimeoutError):
            await asyncio.wait_for(_forward_all(forwarder), LAST_TRY.total_seconds())
        target.close()


async def _forward_all(forwarder: Forwarder) -> None:
    while await asyncio.to_thread(forwarder.forward):
        pass


async def _keep_forwarding(forwarder: Forwarder, name: str) -> None:
    failures = 0
    while True:
        try:
            await _forward_all(forwarder)
        except TightloopError as error:
            if not failures:
                logger.warning("%s. Records are saved on this host and forwarded later", error.message)
            failures += 1
        else:
            if failures:
                logger.info("the database %s is up to date again", name)
            failures = 0
        wait = LOOK if not failures else min(LOOK * 2**failures, LONGEST_WAIT)
        await asyncio.sleep(wait.total_seconds())


async def rebuild(client: Client, settings: Settings) -> str:
    """Rebuild this host's ledger from the workflows in Temporal. Existing entries are kept.

    This is safe while workers are running. Workflows that Temporal has deleted are recovered from this
    host's stores if possible. See `recover`.

    Returns:
        Human-readable summary.

    Raises:
        ServiceUnavailableError: Temporal does not respond.
        SettingsError: a key is missing on this host.
    """
    ledger = local_ledger()
    is_new = await asyncio.to_thread(ledger.last_event) == 0
    converter, identity = data_converter(settings), host_identity(settings)
    runs = _by_workflow(await known_workflows(client))
    entered: list[tuple[int, int, float]] = []
    count = 0
    for workflow_id, workflow_runs in runs.items():
        call_count = 0
        for run in workflow_runs:
            try:
                calls = [entry async for entry in calls_of(client, workflow_id, run.run_id, converter)]
            except RPCError as error:
                if error.status is RPCStatusCode.NOT_FOUND:  # it was removed meanwhile
                    continue
                raise
            for entry in calls:
                if await asyncio.to_thread(_enter, ledger, entry, settings, identity, entered):
                    call_count += 1
        if call_count:
            count += 1
            # A run that was terminated or timed out has no activity call that records its end.
            await asyncio.to_thread(enter_end, ledger, workflow_runs[-1])
    if is_new:
        # Numbers of events serve as cursors, so an existing ledger must not be renumbered.
        await asyncio.to_thread(put_in_order, ledger.database, entered)
    summary = f"recorded {format_count(count, 'workflow')} of this host, out of {len(runs)} in Temporal"
    forgotten = await asyncio.to_thread(recover, ledger, state_home(), frozenset(runs))
    return "; ".join(filter(None, (summary, forgotten.sentence)))


def _by_workflow(runs: Iterable[Execution]) -> dict[str, list[Execution]]:
    runs_by_id: dict[str, list[Execution]] = defaultdict(list)
    for run in sorted(runs, key=lambda run: (run.started is not None, run.started)):
        runs_by_id[run.id].append(run)
    return runs_by_id


def _enter(
    ledger: Ledger,
    entry: RecordedCall,
    settings: Settings,
    identity: HostIdentity,
    entered: list[tuple[int, int, float]],
) -> bool:
    """Add the ledger entries of an activity call on this host, and record the ids of new events."""
    home, host_queues = entry.scope.home or getattr(entry.result, "home", ""), identity.queues(settings)
    # Calls before the workspace was bound name no host; then the project's folder on this host decides.
    if (home and home not in host_queues) or not state_folder(Path(entry.scope.workspace)).is_dir():
        return False
    before = ledger.last_event()
    if entry.result is not None or entry.activity in STEPS:
        project = open_project(Path(entry.scope.workspace), identity.name)
        MAKERS[entry.activity].enter(project, entry.request, entry.result, entry.call)
    after = ledger.last_event()
    if after > before:
        entered.append((before + 1, after, entry.ended.timestamp()))
    return True
