"""Records of step attempts as files: `<state folder>/plans/<plan>/steps/<step>/<attempt>.json`.

A record is never changed. One that another run of the plan replaces is kept beside it under its hash, and which
records of an attempt were taken back stands in a file of its own.
"""

import contextlib
import hashlib
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from activities.artifacts.durable import FULL, write_durably
from tightloop.errors import ArtifactCorruptError, StorageFullError
from tightloop.host import private_folder, state_folder
from tightloop.plan.result import StepRecord, StepStatus
from tightloop.plan.stored import DRY_RUN, file_name
from tightloop.value import Value
from tightloop.value.artifact import ArtifactRef

# A record that was replaced is `0001.<part of its hash>.json`.
_CURRENT = re.compile(r"\d+\.json")
_ANY = re.compile(r".*")
_BEGINNING = datetime.min.replace(tzinfo=UTC)
RUN_START = "begun"
M = TypeVar("M", bound=BaseModel)


class RunStart(Value):
    """When the newest run of a plan began."""

    at: datetime


class RevisionFact(Value):
    """Where a revision is stored."""

    plan: ArtifactRef


def revision_fact_name(number: int) -> str:
    """Return the name under which the place of a revision is kept."""
    return f"revision-{number:04d}"


class FileRecords:
    """Keeps records below one folder; safe for many threads and processes at once.

    What reads a record raises `ArtifactCorruptError` where one is damaged.
    """

    def __init__(self, folder: Path) -> None:
        """Use `folder`, which is made with the first record."""
        self._folder = folder

    def put(self, record: StepRecord) -> str:
        """Store a record durably (fsync, then rename) and return its sha256. An equal record is harmless.

        Raises:
            StorageFullError: no room is left; nothing was written.
        """
        content = record.evolve(undone=False).model_dump_json().encode()
        path = self._path(record.plan_id, record.step, record.attempt)
        with contextlib.suppress(FileNotFoundError):
            old = path.read_bytes()
            if old != content:
                _write(path.with_suffix(f".{_digest(old)[:12]}.json"), old)
        _write(path, content)
        return _digest(content)

    def attempt(self, plan_id: str, step: str, attempt: int) -> StepRecord | None:
        """Return the record of one attempt."""
        return _read(self._path(plan_id, step, attempt))

    def latest(self, plan_id: str, step: str) -> StepRecord | None:
        """Return the newest completed attempt of this run that was not undone: what references read."""
        since = self._begun(plan_id)
        found = [record for record in self._completed(plan_id, step, _CURRENT) if not record.undone]
        return max((record for record in found if _end(record)[0] >= since), key=_end, default=None)

    def same(self, plan_id: str, step: str, inputs_sha256: str) -> StepRecord | None:
        """Return the newest completed attempt of any run with these inputs; None where it was undone."""
        found = self._completed(plan_id, step, _ANY)
        newest = max((record for record in found if record.inputs_sha256 == inputs_sha256), key=_end, default=None)
        return None if newest is None or newest.undone else newest

    def all(self, plan_id: str) -> tuple[StepRecord, ...]:
        """Return all records of a plan, also replaced ones, in the order of their ends."""
        folder = self._plan(plan_id) / "steps"
        steps = sorted(folder.iterdir()) if folder.is_dir() else []
        found = (_read(path) for step in steps for path in _files(step))
        return tuple(sorted((record for record in found if record is not None), key=_end))

    def of_this_run(self, plan_id: str) -> tuple[StepRecord, ...]:
        """Return the records that were made since the plan began, in the order of their ends."""
        since = self._begun(plan_id)
        return tuple(record for record in self.all(plan_id) if _end(record)[0] >= since)

    def mark_undone(self, plan_id: str, step: str, attempt: int) -> None:
        """Note that an attempt was compensated. Idempotent."""
        path = self._path(plan_id, step, attempt)
        if path.exists():
            marked = {*_undone(path), _digest(path.read_bytes())}
            _write(path.with_suffix(".undone"), "\n".join(sorted(marked)).encode())

    def keep(self, plan_id: str, name: str, model: BaseModel) -> None:
        """Keep a small fact of a plan under a name, durably; the newest one counts.

        Raises:
            StorageFullError: no room is left; nothing was written.
        """
        _write(self._fact(plan_id, name), model.model_dump_json().encode())

    def kept(self, plan_id: str, name: str, kind: type[M]) -> M | None:
        """Return what `keep` was given last."""
        path = self._fact(plan_id, name)
        try:
            return kind.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            return None
        except ValidationError as error:
            raise _corrupt(path) from error

    def leave_note(self, plan_id: str, name: str, text: bytes) -> None:
        """Write a text for people into the folder of a plan.

        Raises:
            StorageFullError: no room is left; nothing was written.
        """
        _write(self._plan(plan_id) / name, text)

    def _begun(self, plan_id: str) -> datetime:
        begun = self.kept(plan_id, RUN_START, RunStart)
        return begun.at if begun is not None else _BEGINNING

    def _completed(self, plan_id: str, step: str, names: re.Pattern[str]) -> Iterator[StepRecord]:
        folder = self._plan(plan_id) / "steps" / file_name(step)
        found = (_read(path) for path in _files(folder) if names.fullmatch(path.name))
        return (record for record in found if record is not None and _counts(record))

    def _plan(self, plan_id: str) -> Path:
        return self._folder / file_name(plan_id)

    def _path(self, plan_id: str, step: str, attempt: int) -> Path:
        return self._plan(plan_id) / "steps" / file_name(step) / f"{attempt:04d}.json"

    def _fact(self, plan_id: str, name: str) -> Path:
        return self._plan(plan_id) / "facts" / f"{file_name(name)}.json"


def open_file_records(workspace: Path) -> FileRecords:
    """Return the records of the project in `workspace`."""
    return FileRecords(state_folder(workspace) / "plans")


def record_digest(record: StepRecord) -> str:
    """Return the hash under which a record is known: of its JSON, as `put` writes it."""
    return _digest(record.evolve(undone=False).model_dump_json().encode())


def _files(folder: Path) -> Iterator[Path]:
    if folder.is_dir():
        # `write_durably` gives its unfinished files a name that begins with a dot.
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
    """Return the hashes of the records of an attempt that were taken back; replaced ones have the same mark."""
    try:
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
    return ArtifactCorruptError(f"{path} is damaged: not a valid step record. Restore it from a backup, or remove it")


def _write(path: Path, content: bytes) -> None:
    try:
        private_folder(path.parent)
        write_durably(path, content)
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise StorageFullError(
            f"no room for {len(content)} bytes in {path.parent}: {error.strerror}. Free space there, then resume"
        ) from error
