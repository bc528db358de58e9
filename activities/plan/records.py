"""Stored plans, step records and plan reports."""

import contextlib
import hashlib
import re
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from activities.artifacts.port import FULL, ArtifactStore, ArtifactStores, get_model, put_model, write_durably
from activities.plan.requests import ClosePlanRequest, PlanScope
from tightloop.episode.check import CheckReport
from tightloop.errors import ArtifactCorruptError, ArtifactMissingError, InvalidRequestError, StorageFullError
from tightloop.host import diff_command, private_folder, state_folder
from tightloop.plan.child import StepRecord, StepStatus
from tightloop.plan.document import DRY_RUN, Plan, PlanArchive, StoredPlan, file_name
from tightloop.plan.engine.graph import compile_graph
from tightloop.plan.request import PlanOutcome
from tightloop.plan.step import Step
from tightloop.run.question import Answer
from tightloop.value import ArtifactRef, Value, abridge, shorten
from tightloop.value.scrub import scrub

PLANS_KEPT = 8
# A quarter below the limit, because the graph travels together with the notes and the usage of the opened plan.
GRAPH_CHARACTERS = 1_500_000
"""Size limit of a packed graph.

Temporal rejects payloads above 2 MiB, so an activity with a larger result fails on every retry.
"""


@dataclass(frozen=True)
class LoadedPlan:
    """A stored plan with an index of its steps."""

    stored: StoredPlan

    @property
    def plan(self) -> Plan:
        return self.stored.plan

    @cached_property
    def steps(self) -> Mapping[str, Step]:
        """Steps by id. The ids of templates contain a `*`."""
        return {step.id: step for step in self.plan.steps}

    @cached_property
    def graph(self) -> str:
        """The packed graph for the scheduler. It is cached because every workflow run needs it.

        Raises:
            InvalidRequestError: the graph is too large for the workflow history.
        """
        packed = compile_graph(self.plan, self.stored.inputs).pack()
        if len(packed) > GRAPH_CHARACTERS:
            raise InvalidRequestError(
                f"the plan's {len(self.plan.steps)} steps need {len(packed)} characters in the history, but the limit "
                f"is {GRAPH_CHARACTERS}. Split the plan into subplans, or use templates (`name-*`)"
            )
        return packed

    def step(self, step: str, template: str = "") -> Step:
        """Return a step of the plan. A step generated from a template gets its own id.

        Raises:
            InvalidRequestError: the plan does not contain the step.
        """
        plan_step = self.steps.get(template or step)
        if plan_step is None:
            raise InvalidRequestError(
                f"plan {self.stored.plan_id} has no step {template or step!r} in revision {self.stored.revision}"
            )
        return plan_step.evolve(id=step) if template else plan_step


class PlanCache:
    """Reads stored plans. The last `PLANS_KEPT` plans stay in memory, keyed by workspace and hash."""

    def __init__(self, stores: ArtifactStores) -> None:
        self._stores = stores
        self._kept: OrderedDict[tuple[str, str], LoadedPlan] = OrderedDict()
        self._lock = threading.Lock()

    def find_cached_plan(self, scope: PlanScope) -> LoadedPlan | None:
        """Return the cached plan of a scope, or None if it is not in the cache. Never blocks."""
        # Called on the event loop, which must not wait while a thread parses a large plan.
        if scope.plan is None or not self._lock.acquire(blocking=False):
            return None
        try:
            return self._kept.get((scope.workspace, scope.plan.sha256))
        finally:
            self._lock.release()

    def put(self, workspace: str, stored: StoredPlan) -> tuple[ArtifactRef, LoadedPlan]:
        """Store a revision and add the plan to the cache.

        Raises:
            InvalidRequestError: the graph is too large for the workflow history. Nothing is stored.
        """
        content = stored.content()
        # Parsed from the stored bytes, so that the cached plan equals the one that another worker reads.
        loaded = LoadedPlan(StoredPlan.model_validate_json(content))
        # Compiled before anything is stored, so that a plan that is too large leaves nothing behind.
        _ = loaded.graph
        ref = self._stores(Path(workspace)).put(content, name=f"plan revision {stored.revision}")
        with self._lock:
            self._keep((workspace, ref.sha256), loaded)
        return ref, loaded

    def load(self, scope: PlanScope) -> LoadedPlan:
        """Load the plan of a scope.

        Raises:
            ArtifactMissingError: the scope has no plan, or the store does not contain it.
        """
        if scope.plan is None:
            raise ArtifactMissingError(f"plan {scope.episode_id} has no stored revision because it was never opened")
        key = (scope.workspace, scope.plan.sha256)
        # Under the lock: hundreds of first steps at once must not each parse a plan of 10 000 steps.
        with self._lock:
            if key not in self._kept:
                content = self._stores(Path(scope.workspace)).get(scope.plan)
                self._keep(key, LoadedPlan(StoredPlan.model_validate_json(content)))
            self._kept.move_to_end(key)
            return self._kept[key]

    def _keep(self, key: tuple[str, str], loaded: LoadedPlan) -> None:
        self._kept[key] = loaded
        if len(self._kept) > PLANS_KEPT:
            self._kept.popitem(last=False)


LINES_SHOWN = 200
LINE_CHARACTERS = 800
_SETTLED = frozenset({StepStatus.SKIPPED.value, StepStatus.COMPENSATED.value, StepStatus.RECOVERED.value})
"""Statuses of unfinished steps that do not need attention."""


def render_hand_off(archive: PlanArchive, plan: Plan, records: Sequence[StepRecord], workspace: Path) -> str:
    """Render the hand-off note in Markdown.

    It contains the outcome, completed and open steps, decisions and file locations.
    """
    titles = {step.id: step.title or step.id for step in plan.steps}
    completed = [record for record in records if record.result.status is StepStatus.COMPLETED and not record.undone]
    places = [f"records of all attempts: tightloop export {archive.plan_id} --out FOLDER"]
    if archive.base_tree and archive.tree:
        places.append(f"the whole change: {diff_command(workspace, archive.base_tree, archive.tree)}")
    parts = [
        f"# {archive.title}: {_outcome(archive)}",
        archive.reason,
        section("Steps", [f"{status}: {count}" for status, count in sorted(archive.counts.items())]),
        section("Done", [_line(record, titles) for record in completed]),
        section("Open", _steps(archive, titles, settled=False)),
        section("Skipped, undone or recovered", _steps(archive, titles, settled=True)),
        section(
            "Decisions",
            [describe_answer(step, answer) for step, answers in archive.answers.items() for answer in answers],
        ),
        section("Edits by people", archive.edits),
        section("Outputs", [f"{name}: {shorten(str(value), 200)}" for name, value in archive.artifacts.items()]),
        section("Assumptions", plan.assumptions),
        section("Risks", plan.risks),
        section("Where to look", places),
    ]
    return scrub("\n\n".join(part for part in parts if part) + "\n")


def render_postmortem(archive: PlanArchive, plan: Plan, records: Sequence[StepRecord]) -> str | None:
    """Render a report on failures and their consequences in Markdown. Return None if nothing failed."""
    failed = [record for record in records if record.result.status is StepStatus.FAILED]
    taken_back = [record for record in records if record.undone]
    if not failed and archive.outcome is PlanOutcome.COMPLETED:
        return None
    titles = {step.id: step.title or step.id for step in plan.steps}
    evidence = [
        f"{note.hypothesis}: {note.verdict} ({note.strength}), by {record.step}. {note.note}"
        for record in records
        for note in record.result.evidence
    ]
    parts = [
        f"# Postmortem: {archive.title}",
        f"Outcome: {_outcome(archive)}" + (f": {archive.reason}" if archive.reason else "."),
        section("What failed", [_failure(record, titles) for record in failed]),
        section("What was undone", [_line(record, titles) for record in taken_back]),
        section("Evidence", evidence),
        section("Revisions", [f"{len(archive.revisions)} in all"] if len(archive.revisions) > 1 else []),
        section("Left open", _steps(archive, titles, settled=False)),
    ]
    return scrub("\n\n".join(part for part in parts if part) + "\n")


def _outcome(archive: PlanArchive) -> str:
    return archive.outcome.value.lower() + (f", {archive.qualifier}" if archive.qualifier else "")


def _steps(archive: PlanArchive, titles: dict[str, str], *, settled: bool) -> list[str]:
    rows = ((step, at) for step, at in sorted(archive.statuses.items()) if (at in _SETTLED) is settled)
    return [f"{titles.get(step, step)} ({step}): {at}" for step, at in rows]


def section(title: str, lines: Iterable[str], limit: int = LINES_SHOWN) -> str:
    """Render a heading and a bullet list of at most `limit` items, or "" if the list is empty."""
    items = list(lines)
    if not items:
        return ""
    bullets = [f"- {abridge(' '.join(line.split()), LINE_CHARACTERS)}" for line in items[:limit]]
    more = [f"- and {len(items) - limit} more"] if len(items) > limit else []
    return "\n".join([f"## {title}", "", *bullets, *more])


def _line(record: StepRecord, titles: dict[str, str]) -> str:
    title = titles.get(record.step, record.step)
    name = title if title == record.step else f"{title} ({record.step})"
    return f"{name}: {record.result.summary}" if record.result.summary else name


def _failure(record: StepRecord, titles: dict[str, str]) -> str:
    failure = record.result.failure
    why = f"{failure.failure_class.value}: {failure.reason}" if failure is not None else "unknown reason"
    at = f", {record.ended:%Y-%m-%d %H:%M:%S} UTC" if record.ended is not None else ""
    return f"{titles.get(record.step, record.step)} ({record.step}), attempt {record.attempt}{at}: {why}"


def describe_answer(step: str, answer: Answer) -> str:
    """Describe an answer in one line. It names the step, the option and the person, and quotes their text."""
    return f"{step}: {answer.option} by {answer.by}. {answer.text}".rstrip()


# A replaced record is named `0001.<part of its hash>.json`.
_CURRENT = re.compile(r"\d+\.json")
_ANY = re.compile(r".*")
_BEGINNING = datetime.min.replace(tzinfo=UTC)
RUN_START = "begun"
M = TypeVar("M", bound=BaseModel)


class RunStart(Value):
    """The start time of a plan's latest run."""

    at: datetime


class RevisionFact(Value):
    """Location of a stored revision."""

    plan: ArtifactRef


def revision_fact_name(number: int) -> str:
    """Return the name of the fact that locates a revision."""
    return f"revision-{number:04d}"


class FileRecords:
    """Step records in one folder. Safe for concurrent threads and processes.

    Reading a damaged record raises `ArtifactCorruptError`.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, record: StepRecord) -> str:
        """Durably store a record (fsync, then rename) and return its SHA-256. Idempotent for equal records.

        Raises:
            StorageFullError: the disk is full. Nothing was written.
        """
        # Whether it was undone stands in the marker file, not in the record: marking must not change the digest.
        content = record.evolve(undone=False).model_dump_json().encode()
        path = self._path(record.plan_id, record.step, record.attempt)
        with contextlib.suppress(FileNotFoundError):
            old = path.read_bytes()
            # A re-run counts attempts from 1 again, and `same` reuses results of earlier runs: keep the old record.
            if old != content:
                _write(path.with_suffix(f".{_digest(old)[:12]}.json"), old)
        _write(path, content)
        return _digest(content)

    def find_attempt(self, plan_id: str, step: str, attempt: int) -> StepRecord | None:
        return _read(self._path(plan_id, step, attempt))

    def latest(self, plan_id: str, step: str) -> StepRecord | None:
        """Return the latest completed attempt of a step in this run, ignoring compensated attempts.

        References are resolved from this attempt.
        """
        since = self._run_start(plan_id)
        # Only this run: a step that reuses an earlier result records it again, so nothing is missed.
        completed = [record for record in self._completed_records(plan_id, step, _CURRENT) if not record.undone]
        return max((record for record in completed if _end(record)[0] >= since), key=_end, default=None)

    def find_equal_result(self, plan_id: str, step: str, inputs_sha256: str) -> StepRecord | None:
        """Return the latest completed attempt with these inputs from any run, or None if it was compensated."""
        completed = self._completed_records(plan_id, step, _ANY)
        # The newest decides alone: once it was compensated, an older equal result must not return.
        newest = max((record for record in completed if record.inputs_sha256 == inputs_sha256), key=_end, default=None)
        return None if newest is None or newest.undone else newest

    def all(self, plan_id: str) -> tuple[StepRecord, ...]:
        """Return all of a plan's records, including replaced ones, sorted by end time."""
        folder = self._plan(plan_id) / "steps"
        steps = sorted(folder.iterdir()) if folder.is_dir() else []
        records = (_read(path) for step in steps for path in _files(step))
        return tuple(sorted((record for record in records if record is not None), key=_end))

    def find_run_records(self, plan_id: str) -> tuple[StepRecord, ...]:
        """Return the records from the plan's current run, sorted by end time."""
        since = self._run_start(plan_id)
        return tuple(record for record in self.all(plan_id) if _end(record)[0] >= since)

    def mark_undone(self, plan_id: str, step: str, attempt: int) -> None:
        """Mark an attempt as compensated. Idempotent."""
        path = self._path(plan_id, step, attempt)
        if path.exists():
            # By digest, not by attempt: the next run writes another record under the same attempt number.
            marked = {*_undone(path), _digest(path.read_bytes())}
            _write(path.with_suffix(".undone"), "\n".join(sorted(marked)).encode())

    def write_fact(self, plan_id: str, name: str, model: BaseModel) -> None:
        """Durably store a small named fact about a plan, replacing any previous value.

        Raises:
            StorageFullError: the disk is full. Nothing was written.
        """
        _write(self._fact(plan_id, name), model.model_dump_json().encode())

    def read_fact(self, plan_id: str, name: str, kind: type[M]) -> M | None:
        """Return the fact that was last stored under a name, or None."""
        path = self._fact(plan_id, name)
        try:
            return kind.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            return None
        except ValidationError as error:
            raise _corrupt(path) from error

    def write_note(self, plan_id: str, name: str, text: bytes) -> None:
        """Write a human-readable note to a plan's folder.

        Raises:
            StorageFullError: the disk is full. Nothing was written.
        """
        _write(self._plan(plan_id) / name, text)

    def _run_start(self, plan_id: str) -> datetime:
        start = self.read_fact(plan_id, RUN_START, RunStart)
        return start.at if start is not None else _BEGINNING

    def _completed_records(self, plan_id: str, step: str, names: re.Pattern[str]) -> Iterator[StepRecord]:
        folder = self._plan(plan_id) / "steps" / file_name(step)
        records = (_read(path) for path in _files(folder) if names.fullmatch(path.name))
        return (record for record in records if record is not None and _counts(record))

    def _plan(self, plan_id: str) -> Path:
        return self._folder / file_name(plan_id)

    def _path(self, plan_id: str, step: str, attempt: int) -> Path:
        return self._plan(plan_id) / "steps" / file_name(step) / f"{attempt:04d}.json"

    def _fact(self, plan_id: str, name: str) -> Path:
        return self._plan(plan_id) / "facts" / f"{file_name(name)}.json"


def open_file_records(workspace: Path) -> FileRecords:
    """Open the step records of a workspace's project."""
    return FileRecords(state_folder(workspace) / "plans")


def record_digest(record: StepRecord) -> str:
    """Return the SHA-256 of a record's JSON, as written by `put`."""
    return _digest(record.evolve(undone=False).model_dump_json().encode())


def _files(folder: Path) -> Iterator[Path]:
    if folder.is_dir():
        # `write_durably` prefixes its temporary files with a dot.
        yield from sorted(path for path in folder.iterdir() if path.suffix == ".json" and path.name[0] != ".")


def _read(path: Path) -> StepRecord | None:
    try:
        content = path.read_bytes()
        record = StepRecord.model_validate_json(content)
    except FileNotFoundError:
        return None
    except ValidationError as error:
        raise _corrupt(path) from error
    return record.evolve(undone=_digest(content) in _undone(path))


def _undone(path: Path) -> list[str]:
    """Return the hashes of all compensated records of an attempt, including replaced records."""
    try:
        # Four digits of the attempt begin every file name, also `0001.<hash>.json`.
        return path.with_name(f"{path.name[:4]}.undone").read_text().split()
    except FileNotFoundError:
        return []


def _counts(record: StepRecord) -> bool:
    return record.result.status is StepStatus.COMPLETED and record.inputs_sha256 != DRY_RUN


def _end(record: StepRecord) -> tuple[datetime, str, int]:
    return record.ended or _BEGINNING, record.step, record.attempt


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _corrupt(path: Path) -> ArtifactCorruptError:
    return ArtifactCorruptError(
        f"{path} is not a valid step record. Restore the file from a backup, or remove the file"
    )


def _write(path: Path, content: bytes) -> None:
    try:
        # Inputs and outputs of steps can be confidential, so other users of the host must not read them.
        private_folder(path.parent)
        write_durably(path, content)
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise StorageFullError.of(path.parent, error.strerror, f"storing {len(content)} bytes") from error


class ChecksFact(Value):
    """The location of the latest report on the definition of done."""

    report: ArtifactRef


CHECKS_FACT = "definition-of-done"


def store_account(
    request: ClosePlanRequest, loaded: LoadedPlan, records: FileRecords, store: ArtifactStore
) -> ArtifactRef:
    """Store the plan's archive, write its hand-off note and return the archive's reference."""
    scope = request.scope
    # The archive covers every run, as an audit needs it; the notes for people only the run that ends now.
    every, now = records.all(scope.episode_id), records.find_run_records(scope.episode_id)
    lines = b"".join(record.model_dump_json().encode() + b"\n" for record in every)
    answers_by_step: dict[str, dict[Answer, None]] = {}
    for record in now:
        if record.answers:
            # Records of several attempts repeat the same answers; a dict drops duplicates and keeps the order.
            answers_by_step.setdefault(record.step, {}).update(dict.fromkeys(record.answers))
    for subject, answers in request.decisions.items():
        answers_by_step.setdefault(subject, {}).update(dict.fromkeys(answers))
    names = map(revision_fact_name, range(1, scope.revision + 1))
    revisions = (records.read_fact(scope.episode_id, name, RevisionFact) for name in names)
    archive = PlanArchive.of(
        request,
        plan_id=scope.episode_id,
        title=loaded.plan.title or loaded.plan.id,
        qualifier=request.snapshot.qualifier if request.snapshot is not None else "",
        closed=datetime.now(UTC),
        base_tree=scope.base_tree,
        tree=request.expected_tree,
        revisions=tuple(revision.plan for revision in revisions if revision is not None),
        records=store.put(lines, name="step records", media_type="application/jsonl"),
        answers={step: tuple(answers) for step, answers in answers_by_step.items()},
        checks=_checks(request, records, store),
        artifacts=_collect_artifacts(loaded, records, scope.episode_id),
    )
    note = render_hand_off(archive, loaded.plan, now, Path(scope.workspace)).encode()
    archive = archive.evolve(hand_off=store.put(note, name="hand-off note", media_type="text/markdown"))
    if (story := render_postmortem(archive, loaded.plan, now)) is not None:
        postmortem = store.put(story.encode(), name="postmortem", media_type="text/markdown")
        archive = archive.evolve(postmortem=postmortem)
    # A place where a person finds it without a program.
    records.write_note(scope.episode_id, "hand-off.md", note)
    return put_model(store, archive, name="plan account")


def _checks(request: ClosePlanRequest, records: FileRecords, store: ArtifactStore) -> ArtifactRef | None:
    """Return the report on the plan's final tree. Reports on other trees are from earlier runs."""
    fact = records.read_fact(request.scope.episode_id, CHECKS_FACT, ChecksFact)
    if fact is None or get_model(store, fact.report, CheckReport).tree != request.expected_tree:
        return None
    return fact.report


def _collect_artifacts(loaded: LoadedPlan, records: FileRecords, plan_id: str) -> dict[str, Any]:
    artifacts: dict[str, Any] = {}
    for declared in loaded.plan.artifacts:
        record = records.latest(plan_id, declared.from_step)
        name = declared.output or declared.name
        if record is not None and name in record.outputs:
            artifacts[declared.name] = record.outputs[name]
        elif record is not None and name in record.artifacts:
            artifacts[declared.name] = {"artifact": record.artifacts[name].model_dump(mode="json")}
        else:
            artifacts[declared.name] = {"missing": f"step {declared.from_step!r} did not produce {name!r}"}
    return artifacts
