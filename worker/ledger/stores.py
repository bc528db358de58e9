"""Enters what the stores of this host still hold of workflows that Temporal has forgotten."""

import json
import re
import sqlite3
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from pydantic import ValidationError

from activities.artifacts.local import LocalArtifactStore
from activities.plan.records.file_records import FileRecords
from activities.workspace.plain_git import store_git
from tightloop.database.ledger import Ledger
from tightloop.database.opening import open_state
from tightloop.episode.checkpoint import CheckpointRecord, checkpoint_id
from tightloop.episode.model import CheckpointFile
from tightloop.errors import TightloopError
from tightloop.executor.model import WorkOrder
from tightloop.ledger.model import UNKNOWN, StepRow, WorkflowSnapshot
from tightloop.plan.result import StepStatus
from tightloop.plan.stored import StoredPlan
from tightloop.value import counted, shorten
from tightloop.value.artifact import ArtifactRef

"""The status of a workflow whose end nobody remembers."""
TITLE = "found in the stores of this host"
GOAL_CHARACTERS = 200
READ_BYTES = 8_000_000
_CHECKPOINT = b'{"state":{'
"""How a stored `CheckpointFile` begins."""
_NUMBERED = re.compile(r"refs/tightloop/([^/]+)/(\d+)")
_REVISION = re.compile(r"revision-\d+")


@dataclass
class Recovered:
    """What was found."""

    workflows: int = 0
    checkpoints: int = 0
    states: int = 0
    """Checkpoints of them to which an episode can be restored."""
    steps: int = 0

    @property
    def sentence(self) -> str:
        """What came back, and what did not; empty where nothing was found."""
        if not self.workflows:
            return ""
        return (
            f"{counted(self.workflows, 'workflow')} that Temporal has forgotten found in the stores of this host: "
            f"{counted(self.checkpoints, 'checkpoint')} ({self.states} with their state) and "
            f"{counted(self.steps, 'step')} that ran. Their outcomes, costs, questions and trails do not come back"
        )


def recover(ledger: Ledger, home: Path, known: Collection[str]) -> Recovered:
    """Enter the workflows of all projects that are neither known to Temporal nor in the ledger. Idempotent."""
    found = Recovered()
    there = {*known, *_recorded(ledger)}
    for folder in sorted((home / "projects").glob("*")):
        if folder.is_dir():
            _Project(folder, found, there).recover()
    return found


def _recorded(ledger: Ledger) -> Iterator[str]:
    cursor = ""
    while True:
        page = ledger.workflows(cursor=cursor, limit=500)
        yield from (line.id for line in page.lines)
        if not (cursor := page.cursor):
            return


class _Project:
    def __init__(self, folder: Path, found: Recovered, there: Collection[str]) -> None:
        self._folder, self._found, self._there = folder, found, there
        self._artifacts = LocalArtifactStore(folder / "artifacts")
        self._ledger = open_state(folder)

    def recover(self) -> None:
        plans = dict(self._plans())
        trees = {name: kept for name, kept in self._trees().items() if name not in self._there and name not in plans}
        states = self._states() if trees else {}
        for episode, kept in trees.items():
            self._enter_episode(episode, kept, states)
        for plan_id, stored in plans.items():
            if plan_id not in self._there:
                self._enter_plan(plan_id, stored)

    def _enter_episode(
        self, episode: str, kept: Mapping[int, str], states: Mapping[str, list[tuple[ArtifactRef, CheckpointFile]]]
    ) -> None:
        rows: list[tuple[str, int, str, str]] = []
        for number, tree in sorted(kept.items()):
            # Another episode may have had the same tree: a state that is not certainly this one's is none.
            certain = states.get(tree, [])
            record = CheckpointRecord(id=checkpoint_id(number), iteration=0, tree=tree, title=TITLE)
            if len(certain) == 1:
                [(ref, file)] = certain
                record = record.evolve(
                    state=ref, iteration=file.state.iteration, branch=file.state.branch, checks=file.state.checks_text
                )
                self._found.states += 1
            rows.append((episode, number, f"recovered/{number}", record.model_dump_json()))
        self._ledger.adopt(rows, [])
        self._record(episode, "episode", self._goal(episode))
        self._found.checkpoints += len(rows)

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
                plan_id=plan_id, step=one.step, status=one.result.status.value, attempt=one.attempt,
                at=one.ended or one.started,
            )
            for one in ran
        )  # fmt: skip
        self._record(plan_id, "plan", stored.plan.title)
        self._found.steps += len({one.step for one in ran})

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
                details={"reason": "Temporal has forgotten its history"},
            )
        )
        self._found.workflows += 1

    # -- what the stores hold --------------------------------------------------------------------------

    def _trees(self) -> dict[str, dict[int, str]]:
        """Return the trees of checkpoints, by episode and number."""
        found: dict[str, dict[int, str]] = defaultdict(dict)
        if (self._folder / "trees" / "HEAD").exists():
            text = store_git(self._folder / "trees").run("for-each-ref", "--format=%(objectname) %(refname)")
            for line in text.decode("utf-8", "replace").splitlines():
                tree, _, name = line.partition(" ")
                if matched := _NUMBERED.fullmatch(name):
                    found[matched[1]][int(matched[2])] = tree
        return found

    def _states(self) -> dict[str, list[tuple[ArtifactRef, CheckpointFile]]]:
        """Return the stored states of checkpoints, by the tree that they are about."""
        found: dict[str, list[tuple[ArtifactRef, CheckpointFile]]] = defaultdict(list)
        for digest, (_, size) in self._artifacts.all().items():
            content = (self._artifacts.find(digest) or b"") if size <= READ_BYTES else b""
            if not content.startswith(_CHECKPOINT):
                continue
            try:
                file = CheckpointFile.model_validate_json(content)
            except ValidationError:
                continue
            ref = ArtifactRef(sha256=digest, size_bytes=len(content), media_type="application/json", name="checkpoint")
            found[file.state.tree].append((ref, file))
        return found

    def _goal(self, episode: str) -> str:
        """Return the goal of the newest delivery of an episode; empty where nothing was delivered."""
        path = self._folder / "outbox.db"
        try:
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
        """Yield the newest revision of each plan with its id."""
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
