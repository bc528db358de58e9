"""Frees what closed episodes left in the state folder of one project: references, trees, artifacts, deliveries.

Nothing newer than the first start of a workflow that is kept is touched, nor what such a workflow names, directly or
through an artifact. Rows go last, so that a collection that was ended in the middle is finished by the next one.
"""

import contextlib
import json
import os
import re
import shutil
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from activities.artifacts.sqlite import use_wal
from activities.tracking.sqlite_ledger import SqliteLedger
from activities.workspace.ownership import locked
from activities.workspace.plain_git import store_git
from activities.workspace.trail import FREED, TrailEvent
from tightloop.errors import WorkspaceLockedError
from tightloop.plan.stored import file_name

LOCK_WAIT = timedelta(seconds=2)
GIT_TIMEOUT = timedelta(minutes=30)
BUSY_S = 15.0
READ_BYTES = 8_000_000
"""Larger artifacts are outputs and patches: they name no others."""
_DIGEST = re.compile(rb"[0-9a-f]{64}")


@dataclass(frozen=True)
class Known:
    """What Temporal knows of a workflow, over all its runs."""

    id: str
    started: datetime
    closed: datetime | None
    """None: it is open."""


@dataclass
class Freed:
    """What was freed, or would be."""

    project: str
    episodes: list[str] = field(default_factory=list)
    artifacts: int = 0
    references: int = 0
    rows: int = 0
    size_bytes: int = 0
    busy: str = ""
    """Why trees were left as they are."""


def collect(folder: Path, known: Mapping[str, Known], *, older_than: timedelta, dry_run: bool) -> Freed:
    """Free what no open or kept workflow of a project needs, beside running workers.

    Args:
        folder: state folder of the project.
        known: everything that Temporal knows, by id, also of other projects.
        older_than: what closed later than this ago is kept.
        dry_run: only say what would be freed.
    """
    project = _Project(folder)
    before = _size(folder)
    active, claimed = project.last_activity(), project.claimed()
    here = {key: each for key, each in known.items() if key in active or key in claimed or project.has_plan(key)}
    gone, horizon = choose(active, here, claimed, datetime.now(UTC) - older_than)
    freed = Freed(folder.name, sorted(gone))
    refs = [ref for ref in project.references() if ref.split("/")[2] in gone]
    unneeded = project.unneeded_artifacts(gone, horizon)
    freed.references, freed.artifacts = len(refs), len(unneeded)
    if dry_run:
        freed.size_bytes = sum(size for _, size in unneeded)
        freed.rows = project.count_rows(gone)
        return freed
    freed.busy = project.free_trees(refs, horizon)
    for path, _ in unneeded:
        path.unlink(missing_ok=True)
    if not freed.busy:
        freed.rows = project.free_rows(gone)
    freed.size_bytes = max(before - _size(folder), 0)
    return freed


def choose(
    active: Mapping[str, datetime], known: Mapping[str, Known], claimed: frozenset[str], cutoff: datetime
) -> tuple[frozenset[str], datetime]:
    """Return which episodes of a project nobody needs, and the time before which their leftovers go.

    Args:
        active: when each episode of the project last did something on this host.
        known: what Temporal knows; an id that it does not know was closed, and its history is gone.
        claimed: episodes that hold a workspace: without Temporal's word they count as open.
        cutoff: what closed later is kept.
    """

    def ended(key: str) -> datetime | None:
        found = known.get(key)
        if found is not None:
            return None if found.closed is None else max(found.closed, active.get(key, found.closed))
        return None if key in claimed else active[key]

    ends = {key: ended(key) for key in {*active, *known}}
    horizon = cutoff
    while True:
        kept = [key for key, end in ends.items() if end is None or end >= horizon]
        starts = [known[key].started for key in kept if key in known]
        earliest = min([horizon, *starts])
        if earliest == horizon:
            return frozenset(active.keys() - set(kept)), horizon
        horizon = earliest


class _Project:
    """The state folder of one project."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._store = folder / "trees"

    def last_activity(self) -> dict[str, datetime]:
        """Return the last sign of each episode that still keeps something."""
        last: dict[str, datetime] = {}
        freed: set[str] = set()
        for (text,) in self._rows("ledger.db", "SELECT event FROM trail ORDER BY id"):
            event = TrailEvent.model_validate_json(text)
            if event.at is not None:
                last[event.episode_id] = event.at
            (freed.add if event.kind == FREED else freed.discard)(event.episode_id)
        for key, at in self._rows("outbox.db", "SELECT episode_id, max(queued_at) FROM delivery GROUP BY episode_id"):
            moment = datetime.fromtimestamp(float(at), UTC)
            last[key] = max(last.get(key, moment), moment)
        return {key: at for key, at in last.items() if key not in freed}

    def claimed(self) -> frozenset[str]:
        """Return the episodes that hold a working tree."""
        found: set[str] = set()
        for path in (self._folder / "claims").glob("*"):
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                found.add(str(json.loads(path.read_bytes())["episode"]))
        return frozenset(found)

    def has_plan(self, key: str) -> bool:
        """Return whether a workflow is a plan that has records here."""
        return (self._folder / "plans" / file_name(key)).exists()

    def references(self) -> list[str]:
        """Return the names of all references of the store."""
        if not (self._store / "HEAD").exists():
            return []
        done = self._git("for-each-ref", "--format=%(refname)", "refs/tightloop/")
        return done.decode("utf-8", "surrogateescape").splitlines()

    def unneeded_artifacts(self, gone: frozenset[str], horizon: datetime) -> list[tuple[Path, int]]:
        """Return the artifacts that are older than the horizon and that nothing kept names, with their sizes."""
        files = {
            f"{path.parent.name}{path.name}": path
            for path in (self._folder / "artifacts").glob("??/*")
            if not path.name.startswith(".")
        }
        marked: set[str] = set()
        todo = [digest for digest in self._named_by_kept(gone) if digest in files]
        while todo:
            digest = todo.pop()
            if digest in marked:
                continue
            marked.add(digest)
            path = files[digest]
            with contextlib.suppress(FileNotFoundError):
                if path.stat().st_size <= READ_BYTES:
                    todo += [each for each in _digests(path.read_bytes()) if each in files and each not in marked]
        found = []
        for digest in files.keys() - marked:
            with contextlib.suppress(FileNotFoundError):
                stat = files[digest].stat()
                # What was stored again is as new as that.
                if stat.st_mtime < horizon.timestamp():
                    found.append((files[digest], stat.st_size))
        return found

    def _named_by_kept(self, gone: frozenset[str]) -> Iterator[str]:
        for key, text in self._rows("ledger.db", "SELECT episode_id, record FROM checkpoint"):
            if key not in gone:
                yield from _digests(text.encode())
        query = "SELECT episode_id, order_ref || coalesce(report, '') FROM delivery"
        for key, text in self._rows("outbox.db", query):
            if key not in gone:
                yield from _digests(text.encode())
        for path in (self._folder / "plans").rglob("*"):
            with contextlib.suppress(OSError):
                if path.is_file():
                    yield from _digests(path.read_bytes())

    def free_trees(self, refs: list[str], horizon: datetime) -> str:
        """Remove references, then the objects that only they led to; pack the rest. Return why it could not be done.

        Nobody adds objects meanwhile: all working trees of the project are held, and none can be claimed.
        """
        if not (self._store / "HEAD").exists():
            return ""
        try:
            with ExitStack() as stack:
                for path in [self._folder / "claims" / "lock", *sorted((self._folder / "locks").glob("*.lock"))]:
                    stack.enter_context(locked(path, wait=LOCK_WAIT, what="a working tree of the project"))
                if refs:
                    commands = "".join(f"delete {ref}\n" for ref in refs)
                    self._git("update-ref", "--stdin", text=commands.encode("utf-8", "surrogateescape"))
                # They say which objects are there: the next snapshot reads every file again.
                shutil.rmtree(self._store / "states", ignore_errors=True)
                (self._store / "states").mkdir(mode=0o700, exist_ok=True)
                oldest = f"{int(horizon.timestamp())} +0000"
                self._git("pack-refs", "--all", "--prune")
                self._git("repack", "-A", "-d", "-q", f"--unpack-unreachable={oldest}")
                self._git("prune", f"--expire={oldest}")
        except WorkspaceLockedError:
            return "a working tree is in use; its trees are freed by a later run"
        return ""

    def count_rows(self, gone: Iterable[str]) -> int:
        """Return how many rows the episodes have."""
        return sum(1 for _ in self._of("ledger.db", "checkpoint", gone)) + sum(
            1 for _ in self._of("outbox.db", "delivery", gone)
        )

    def _of(self, name: str, table: str, gone: Iterable[str]) -> Iterator[object]:
        wanted = set(gone)
        return (key for (key,) in self._rows(name, f"SELECT episode_id FROM {table}") if key in wanted)  # noqa: S608

    def free_rows(self, gone: frozenset[str]) -> int:
        """Remove the rows of episodes; one line of the trail says that they were freed."""
        count = self.count_rows(gone)
        if not gone:
            return 0
        ledger = SqliteLedger(self._folder / "ledger.db")
        for key in sorted(gone):
            text = "what it kept on this host was freed: tightloop gc"
            ledger.add_event(TrailEvent(episode_id=key, kind=FREED, text=text, key=f"{FREED}/{datetime.now(UTC):%s}"))
            with self._writing("ledger.db") as connection:
                connection.execute("DELETE FROM checkpoint WHERE episode_id = ?", (key,))
                connection.execute(
                    "DELETE FROM trail WHERE episode_id = ? AND json_extract(event, '$.kind') <> ?", (key, FREED)
                )
            with self._writing("outbox.db") as connection:
                within = "key IN (SELECT key FROM delivery WHERE episode_id = ?)"
                connection.execute(f"DELETE FROM claim WHERE {within}", (key,))  # noqa: S608
                connection.execute("DELETE FROM delivery WHERE episode_id = ?", (key,))
        for name in ("ledger.db", "outbox.db"):
            with self._writing(name, transaction=False) as connection:
                connection.execute("VACUUM")
                # Workers keep the file open, and its log as long as it ever was.
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return count

    def _git(self, *arguments: str, text: bytes = b"") -> bytes:
        return store_git(self._store, timeout=GIT_TIMEOUT).run(*arguments, stdin=text)

    def _rows(self, name: str, query: str) -> list[tuple[str, ...]]:
        if not (self._folder / name).exists():
            return []
        with self._writing(name, transaction=False) as connection:
            try:
                return connection.execute(query).fetchall()
            except sqlite3.OperationalError as error:
                # Made, but nothing was ever written to it.
                if "no such table" in str(error):
                    return []
                raise

    @contextlib.contextmanager
    def _writing(self, name: str, *, transaction: bool = True) -> Iterator[sqlite3.Connection]:
        if not (self._folder / name).exists():
            yield sqlite3.connect(":memory:")
            return
        connection = sqlite3.connect(self._folder / name, timeout=BUSY_S, isolation_level=None)
        try:
            use_wal(connection, patience=timedelta(seconds=BUSY_S))
            if transaction:
                connection.execute("BEGIN IMMEDIATE")
            yield connection
            if transaction:
                connection.execute("COMMIT")
        finally:
            connection.close()


def _digests(content: bytes) -> Iterator[str]:
    return (found.decode() for found in _DIGEST.findall(content))


def _size(folder: Path) -> int:
    """Return the bytes that a folder takes on the disk."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += (Path(parent) / name).lstat().st_blocks * 512
    return total
