"""Retention on one host: what closed episodes and plans left in a project's state folder, and how it is freed."""

import contextlib
import json
import os
import re
import shutil
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from activities.artifacts.port import file_stem
from activities.artifacts.stores import LocalArtifactStore
from activities.workspace.git_command import remove_worktree, store_git
from activities.workspace.ownership import locked, tree_key
from activities.workspace.user_repository import UserRepository
from tightloop.coder.model import place_of, session_of
from tightloop.database.engine import use_wal
from tightloop.database.ledger import open_state
from tightloop.errors import TightloopError, WorkspaceLockedError
from tightloop.plan.document import file_name

LOCK_WAIT = timedelta(seconds=2)
GIT_TIMEOUT = timedelta(minutes=30)
BUSY_S = 15.0
READ_BYTES = 8_000_000
"""Larger artifacts are outputs and patches: they name no others."""
DOOMED = ".freed-"
"""Begins the name of a folder that is being removed: what is half removed must not be taken for whole."""
_DIGEST = re.compile(rb"[0-9a-f]{64}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_ALTERNATIVE = re.compile(r".+\.\d+\..+")
"""What the id of an alternative of a branch has after that of its plan; see `child_id`."""


class Leftovers:
    """The state folder of one project."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._store = folder / "trees"
        self._artifacts = LocalArtifactStore(folder / "artifacts")
        self._ledger = open_state(folder)

    def last_activity(self, known: Iterable[str]) -> dict[str, datetime]:
        """Return the last sign of each episode and plan that still keeps something, by id.

        Args:
            known: ids of others; of plans that only their records remember, the name of these stands for the id.
        """
        last, freed = self._ledger.last_activity()
        for key, at in self._rows("outbox.db", "SELECT episode_id, max(queued_at) FROM delivery GROUP BY episode_id"):
            moment = datetime.fromtimestamp(float(at), UTC)
            last[key] = max(last.get(key, moment), moment)
        found = {key: at for key, at in last.items() if key not in freed}
        ids = {file_name(key): key for key in {*known, *last}}
        for records in self._plans():
            times = [0.0]
            for path in records.rglob("*"):
                with contextlib.suppress(OSError):
                    if path.is_file():
                        times.append(path.lstat().st_mtime)
            key, moment = ids.get(records.name, records.name), datetime.fromtimestamp(max(times), UTC)
            found[key] = max(found.get(key, moment), moment)
        return found

    def claimed(self) -> frozenset[str]:
        """Return the episodes that hold a working tree."""
        found: set[str] = set()
        for path in (self._folder / "claims").glob("*"):
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                found.add(str(json.loads(path.read_bytes())["episode"]))
        return frozenset(found)

    def marked(self) -> frozenset[str]:
        """Return the episodes and plans that a person keeps."""
        return self._ledger.marked()

    def references(self, gone: frozenset[str]) -> dict[str, str]:
        """Return the trees that are kept for episodes, by the names of their references."""
        return {name: tree for name, tree in self._references() if name.split("/")[2] in gone}

    def artifacts(self, gone: frozenset[str], horizon: datetime) -> dict[str, int]:
        """Return the artifacts that are older than the horizon and that nothing kept names, with their sizes."""
        there = self._artifacts.all()
        marked: set[str] = set()
        todo = [digest for digest in self._named_by_kept(gone) if digest in there]
        while todo:
            digest = todo.pop()
            if digest not in marked:
                marked.add(digest)
                content = self._artifacts.find(digest) or b""
                if len(content) <= READ_BYTES:
                    todo += [each for each in _digests(content) if each in there and each not in marked]
        # What was stored again is as new as that.
        return {
            digest: size
            for digest, (stored, size) in there.items()
            if digest not in marked and stored < horizon.timestamp()
        }

    def files(self, gone: frozenset[str], horizon: datetime) -> dict[Path, int]:
        """Return what agents and people left of deliveries, and documents that nobody fetched lately, with sizes."""
        found = [*self._folder.glob(f"*/{DOOMED}*")]
        # Documents that nobody fetched since the horizon; one that is missing is fetched again.
        named: set[str] = set()
        for path in self._folder.glob("cache/urls/*.json"):
            if path.stat().st_mtime < horizon.timestamp():
                found.append(path)
            else:
                named.update(_digests(path.read_bytes()))
        for path in self._folder.glob("cache/content/??/*"):
            if f"{path.parent.name}{path.name}" not in named and path.stat().st_mtime < horizon.timestamp():
                found.append(path)
        for key, episode in self._rows("outbox.db", "SELECT key, episode_id FROM delivery"):
            if episode in gone:
                stem = file_stem(key)
                found += [self._folder / "runs" / stem, self._folder / "inbox" / f"{stem}.md"]
                found += [self._folder / place_of(session_of(key))]
        found += [self._folder.parent.parent / "homes" / file_stem(key) for key in gone]
        return {path: size_on_disk(path) for path in found if path.exists()}

    def folders(self, gone: frozenset[str]) -> dict[Path, int]:
        """Return the records of plans, and worktrees in which they tried alternatives, with sizes."""
        trees = [path for path in self._folder.glob("worktrees/*") if self._is_alternative(path.name, gone)]
        records = [path for path in map(self._records, gone) if path.is_dir()]
        return {path: size_on_disk(path) for path in [*trees, *records]}

    def tree_bytes(self, references: Mapping[str, str]) -> int:
        """Return the bytes of objects to which only these references lead."""
        if not references:
            return 0
        kept = {tree for name, tree in self._references() if name not in references}
        lines = [*(set(references.values()) - kept), *(f"^{tree}" for tree in kept)]
        return int(self._git("rev-list", "--objects", "--disk-usage", "--stdin", text="\n".join(lines).encode()))

    def rows(self, gone: frozenset[str]) -> int:
        """Return how many rows the ledger and the outbox have of them."""
        deliveries = self._rows("outbox.db", "SELECT episode_id FROM delivery")
        return self._ledger.counted_rows(gone) + sum(key in gone for (key,) in deliveries)

    @contextlib.contextmanager
    def held(self) -> Iterator[tuple[int, ...]]:
        """Hold every working tree of the project, so that nobody adds objects or claims a tree; yield the locks.

        Raises:
            WorkspaceLockedError: somebody works in one.
        """
        with ExitStack() as stack:
            paths = [self._folder / "claims" / "lock", *sorted((self._folder / "locks").glob("*.lock"))]
            what = "a working tree of the project"
            yield tuple(stack.enter_context(locked(path, wait=LOCK_WAIT, what=what)) for path in paths)

    def free_artifacts(self, digests: Iterable[str], horizon: datetime) -> None:
        """Remove artifacts, but for those that were stored again meanwhile."""
        self._artifacts.remove(digests, before=horizon.timestamp())

    def free_files(self, paths: Iterable[Path]) -> None:
        """Remove files, and folders that nothing takes for whole."""
        for path in paths:
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)

    def free_trees(self, references: Iterable[str], horizon: datetime, locks: tuple[int, ...]) -> None:
        """Remove references, then the objects that only they led to; pack the rest, and what is younger than `horizon`.

        Whoever calls this holds all trees, by the locks that `held` yielded: git outlives a collection that is killed.
        """
        if not (self._store / "HEAD").exists():
            return
        # Of a collection, or of a worker, that was killed: everybody who could own them waits for us.
        objects = self._store / "objects"
        for pattern in (objects.glob("tmp_*"), objects.glob("pack/tmp_*"), objects.glob("pack/.tmp-*")):
            self.free_files(pattern)
        self.free_files([*(self._store / "refs").rglob("*.lock"), *self._store.glob("packed-refs.*")])
        commands = "".join(f"delete {name}\n" for name in references)
        if commands:
            self._git("update-ref", "--stdin", text=commands.encode("utf-8", "surrogateescape"), locks=locks)
        # They say which objects are there: the next snapshot reads every file again.
        self.free_files((self._store / "states").glob("*"))
        oldest = f"{int(horizon.timestamp())} +0000"
        self._git("pack-refs", "--all", "--prune", locks=locks)
        self._git("repack", "-A", "-d", "-q", f"--unpack-unreachable={oldest}", locks=locks)
        self._git("prune", f"--expire={oldest}", locks=locks)

    def free_folders(self, paths: Iterable[Path]) -> None:
        """Remove records and worktrees; whoever calls this holds all trees."""
        for path in paths:
            if path.parent.name == "worktrees":
                path.with_name(f"{path.name}.ready").unlink(missing_ok=True)
                key = tree_key(path)
                with contextlib.suppress(OSError, TightloopError):
                    workspace = Path(os.fsdecode((self._folder / "workspace").read_bytes()).rstrip("\n"))
                    remove_worktree(UserRepository(workspace), path)
                self.free_files([self._folder / "claims" / f"{key}.json", *(self._folder / "locks").glob(f"{key}.*")])
            doomed = path.with_name(f"{DOOMED}{path.name}")
            shutil.rmtree(doomed, ignore_errors=True)
            # What the user's git knew of a worktree went with it.
            if path.exists():
                path.rename(doomed)
                shutil.rmtree(doomed, ignore_errors=True)

    def free_rows(self, gone: frozenset[str]) -> None:
        """Remove the rows of episodes; one line of the trail says that they were freed."""
        if not gone:
            return
        if self._has("outbox.db", "delivery"):
            with self._opened("outbox.db") as connection:
                for key in sorted(gone):
                    connection.execute("BEGIN IMMEDIATE")
                    within = "key IN (SELECT key FROM delivery WHERE episode_id = ?)"
                    connection.execute(f"DELETE FROM claim WHERE {within}", (key,))  # noqa: S608
                    connection.execute("DELETE FROM delivery WHERE episode_id = ?", (key,))
                    connection.execute("COMMIT")
                connection.execute("VACUUM")
                # Workers keep the file open, and its log as long as it ever was.
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self._ledger.free(gone)

    def _plans(self) -> Iterator[Path]:
        for path in (self._folder / "plans").glob("*"):
            if path.is_dir() and path.name[0] != ".":
                yield path

    def _records(self, key: str) -> Path:
        """Return the records of a plan; see `last_activity` for what may stand for its id."""
        stands_for_itself = _NAME.fullmatch(key) and (self._folder / "plans" / key).is_dir()
        return self._folder / "plans" / (key if stands_for_itself else file_name(key))

    def _is_alternative(self, key: str, gone: frozenset[str]) -> bool:
        """Return whether a worktree was one of a branch; those of episodes and plans themselves hold their results."""
        if key not in gone or not self._records(key).is_dir():
            return False
        return any(
            key.startswith(f"{plan}.") and _ALTERNATIVE.fullmatch(key[len(plan) + 1 :]) and self._records(plan).is_dir()
            for plan in gone
        )

    def _named_by_kept(self, gone: frozenset[str]) -> Iterator[str]:
        for key, text in self._ledger.kept_records():
            if key not in gone:
                yield from _digests(text.encode())
        query = "SELECT episode_id, order_ref || coalesce(report, '') FROM delivery"
        for key, text in self._rows("outbox.db", query):
            if key not in gone:
                yield from _digests(text.encode())
        freed = {self._records(key).name for key in gone}
        for records in self._plans():
            if records.name not in freed:
                for path in records.rglob("*"):
                    with contextlib.suppress(OSError):
                        if path.is_file():
                            yield from _digests(path.read_bytes())

    def _references(self) -> list[tuple[str, str]]:
        if not (self._store / "HEAD").exists():
            return []
        done = self._git("for-each-ref", "--format=%(objectname) %(refname)", "refs/tightloop/")
        lines = done.decode("utf-8", "surrogateescape").splitlines()
        return [(name, tree) for tree, _, name in (line.partition(" ") for line in lines)]

    def _git(self, *arguments: str, text: bytes = b"", locks: tuple[int, ...] = ()) -> bytes:
        git = replace(store_git(self._store, timeout=GIT_TIMEOUT), inherit=locks)
        return git.run(*arguments, stdin=text)

    def _rows(self, name: str, query: str) -> list[tuple[str, ...]]:
        table = query.partition(" FROM ")[2].split()[0]
        if not self._has(name, table):
            return []
        with self._opened(name) as connection:
            return connection.execute(query).fetchall()

    def _has(self, name: str, table: str) -> bool:
        """Return whether a table is there: a file may be missing, or made and never written to."""
        if not (self._folder / name).exists():
            return False
        with self._opened(name) as connection:
            return bool(connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (table,)).fetchone())

    @contextlib.contextmanager
    def _opened(self, name: str) -> Iterator[sqlite3.Connection]:
        connection = sqlite3.connect(self._folder / name, timeout=BUSY_S, isolation_level=None)
        try:
            use_wal(connection, patience=timedelta(seconds=BUSY_S))
            yield connection
        finally:
            connection.close()


def size_on_disk(folder: Path) -> int:
    """Return the bytes that a file or a folder takes on the disk."""
    total = 0
    for path in (folder, *folder.rglob("*")) if folder.is_dir() else (folder,):
        with contextlib.suppress(OSError):
            total += path.lstat().st_blocks * 512
    return total


def _digests(content: bytes) -> Iterator[str]:
    return (found.decode() for found in _DIGEST.findall(content))


GRACE = timedelta(hours=1)
"""What is younger stays in any case: of a workflow that began while Temporal was asked, nobody knows yet."""


@dataclass(frozen=True)
class Known:
    """What Temporal knows of a workflow, over all its runs."""

    id: str
    started: datetime
    closed: datetime | None
    """None: it is open."""


@dataclass(frozen=True)
class Freed:
    """What was freed, or would be."""

    project: str
    episodes: tuple[str, ...] = ()
    """Plans, too."""
    artifacts: int = 0
    references: int = 0
    rows: int = 0
    files: tuple[Path, ...] = ()
    """Homes and records of agents, records of plans, worktrees of alternatives, cached documents."""
    size_bytes: int = 0
    """Of all but the rows."""
    marked: int = 0
    """How many a person keeps."""
    busy: str = ""
    """Why trees, rows and plans were left as they are."""


def collect(
    folder: Path,
    known: Mapping[str, Known],
    *,
    older_than: timedelta,
    dry_run: bool,
    asked: datetime | None = None,
    forget: Callable[[str], object] | None = None,
) -> Freed:
    """Free what no open or kept workflow of a project needs, beside running workers.

    Args:
        folder: state folder of the project.
        known: everything that Temporal knows, by id, also of other projects.
        older_than: what closed later than this ago is kept.
        dry_run: only say what would be freed.
        asked: when Temporal was asked; default: now.
        forget: removes what a workflow has elsewhere, such as its copies in the remote store. Idempotent.
    """
    left = Leftovers(folder)
    cutoff = (asked or datetime.now(UTC)) - max(older_than, GRACE)
    gone, horizon = _unneeded(left, known, cutoff)
    artifacts, files = left.artifacts(gone, horizon), left.files(gone, horizon)
    size = sum(artifacts.values()) + sum(files.values())
    freed = Freed(
        folder.name,
        artifacts=len(artifacts),
        files=tuple(sorted(files)),
        size_bytes=size,
        marked=len(left.marked()),
    )
    if dry_run:
        return _with_workflows(freed, left, gone)
    left.free_artifacts(artifacts, horizon)
    left.free_files(files)
    # Before the rows, as all of it; and not while working trees are held: it asks over the network.
    if forget is not None:
        for key in sorted(gone):
            forget(key)
    try:
        with left.held() as locks:
            # Nobody begins or ends anything from here on; meanwhile somebody may have.
            gone &= _unneeded(left, known, cutoff)[0]
            freed = _with_workflows(freed, left, gone)
            left.free_trees(left.references(gone), horizon, locks)
            left.free_folders(left.folders(gone))
            left.free_rows(gone)
    except WorkspaceLockedError:
        return replace(freed, busy="a working tree is in use; its trees are freed by a later run")
    return freed


def _unneeded(left: Leftovers, known: Mapping[str, Known], cutoff: datetime) -> tuple[frozenset[str], datetime]:
    active, claimed = left.last_activity(known), left.claimed()
    here = {key: each for key, each in known.items() if key in active or key in claimed}
    return choose(active, here, claimed, cutoff, left.marked())


def _with_workflows(freed: Freed, left: Leftovers, gone: frozenset[str]) -> Freed:
    references, folders = left.references(gone), left.folders(gone)
    return replace(
        freed,
        episodes=tuple(sorted(gone)),
        references=len(references),
        rows=left.rows(gone),
        files=tuple(sorted((*freed.files, *folders))),
        size_bytes=freed.size_bytes + left.tree_bytes(references) + sum(folders.values()),
    )


def choose(
    active: Mapping[str, datetime],
    known: Mapping[str, Known],
    claimed: frozenset[str],
    cutoff: datetime,
    marked: frozenset[str] = frozenset(),
) -> tuple[frozenset[str], datetime]:
    """Return which episodes of a project nobody needs, and the time before which their leftovers go.

    Args:
        active: when each episode of the project last did something on this host.
        known: what Temporal knows; an id that it does not know was closed, and its history is gone.
        claimed: episodes that hold a workspace: without Temporal's word they count as open.
        cutoff: what closed later is kept.
        marked: what a person keeps, with all that it started.
    """

    def ended(key: str) -> datetime | None:
        # See `child_id` for the ids of what a plan started.
        if any(key == mark or key.startswith(f"{mark}.") for mark in marked):
            return None
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
