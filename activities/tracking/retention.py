"""Host-local retention, which finds and deletes the data of closed episodes and plans in a project's state folder."""

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
from activities.workspace.git_command import store_git
from activities.workspace.ownership import hold_lock, tree_key
from activities.workspace.user_repository import UserRepository
from activities.workspace.worktree import remove_worktree
from tightloop.coder.model import session_of, session_path
from tightloop.database.engine import use_wal
from tightloop.database.ledger import open_state
from tightloop.errors import TightloopError, WorkspaceLockedError
from tightloop.host.worktree import data_folder
from tightloop.plan.document import file_name

LOCK_WAIT = timedelta(seconds=2)
GIT_TIMEOUT = timedelta(minutes=30)
BUSY_S = 15.0
READ_BYTES = 8_000_000
"""Maximum size of an artifact to search for references. Larger ones are outputs and patches, which contain none."""
DELETION_PREFIX = ".freed-"
"""Name prefix of folders that are being deleted, so that partly deleted ones are never used."""
_DIGEST = re.compile(rb"[0-9a-f]{64}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


class ProjectData:
    """A project's state folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._store = folder / "trees"
        self._artifacts = LocalArtifactStore(folder / "artifacts")
        self._ledger = open_state(folder)

    def last_activity(self, known_ids: Iterable[str]) -> dict[str, datetime]:
        """Return the time of the last activity of each episode and plan that still has data, by id.

        Args:
            known_ids: ids of plans that may have records. Records of other plans are listed under the name of
                their folder.
        """
        last, freed = self._ledger.last_activity()
        for key, at in self._rows("outbox.db", "SELECT episode_id, max(queued_at) FROM delivery GROUP BY episode_id"):
            moment = datetime.fromtimestamp(float(at), UTC)
            last[key] = max(last.get(key, moment), moment)
        latest = {key: at for key, at in last.items() if key not in freed}
        ids = {file_name(key): key for key in {*known_ids, *last}}
        for records in self._plans():
            times = [0.0]
            for path in records.rglob("*"):
                with contextlib.suppress(OSError):
                    if path.is_file():
                        times.append(path.lstat().st_mtime)
            key, moment = ids.get(records.name, records.name), datetime.fromtimestamp(max(times), UTC)
            latest[key] = max(latest.get(key, moment), moment)
        return latest

    def list_claimed_ids(self) -> frozenset[str]:
        """Return the ids of episodes that have claimed a working tree."""
        ids: set[str] = set()
        for path in (self._folder / "claims").glob("*"):
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                ids.add(str(json.loads(path.read_bytes())["episode"]))
        return frozenset(ids)

    def list_marked_ids(self) -> frozenset[str]:
        """Return the ids of episodes and plans that a person marked to keep."""
        return self._ledger.list_protected_ids()

    def references(self, unneeded: frozenset[str]) -> dict[str, str]:
        """Return the trees that are stored for episodes that are no longer needed, by ref name."""
        return {name: tree for name, tree in self._references() if name.split("/")[2] in unneeded}

    def artifacts(self, unneeded: frozenset[str], horizon: datetime) -> dict[str, int]:
        """Return the unreferenced artifacts that are older than the horizon, with their sizes."""
        there = self._artifacts.all()
        marked: set[str] = set()
        # Marked by pattern and not by field: this keeps too much at worst, never too little.
        todo = [digest for digest in self._named_by_kept(unneeded) if digest in there]
        while todo:
            digest = todo.pop()
            if digest not in marked:
                marked.add(digest)
                content = self._artifacts.find(digest) or b""
                if len(content) <= READ_BYTES:
                    todo += [child for child in _digests(content) if child in there and child not in marked]
        # Storing an artifact again resets its age.
        return {
            digest: size
            for digest, (stored, size) in there.items()
            if digest not in marked and stored < horizon.timestamp()
        }

    def files(self, unneeded: frozenset[str], horizon: datetime) -> dict[Path, int]:
        """Return files that deliveries left behind, and documents that have not been fetched recently.

        The values are the file sizes.
        """
        paths = [*self._folder.glob(f"*/{DELETION_PREFIX}*")]
        # Documents not fetched since the horizon; a missing one is fetched again.
        named: set[str] = set()
        for path in self._folder.glob("cache/urls/*.json"):
            if path.stat().st_mtime < horizon.timestamp():
                paths.append(path)
            else:
                named.update(_digests(path.read_bytes()))
        for path in self._folder.glob("cache/content/??/*"):
            if f"{path.parent.name}{path.name}" not in named and path.stat().st_mtime < horizon.timestamp():
                paths.append(path)
        for key, episode in self._rows("outbox.db", "SELECT key, episode_id FROM delivery"):
            if episode in unneeded:
                stem = file_stem(key)
                paths += [self._folder / "runs" / stem, self._folder / "inbox" / f"{stem}.md"]
                paths += [self._folder / session_path(session_of(key))]
        paths += [self._folder.parent.parent / "homes" / file_stem(key) for key in unneeded]
        return {path: size_on_disk(path) for path in paths if path.exists()}

    def folders(self, unneeded: frozenset[str]) -> dict[Path, int]:
        """Return the folders of plan records and worktrees, with their sizes."""
        trees = [path for path in self._folder.glob("worktrees/*") if path.name in unneeded]
        records = [path for path in map(self._records, unneeded) if path.is_dir()]
        return {path: size_on_disk(path) for path in [*trees, *records]}

    def tree_bytes(self, references: Mapping[str, str]) -> int:
        """Return the size of the git objects that only these refs keep alive."""
        if not references:
            return 0
        # Episodes share most objects of a project, so the sizes of their trees cannot be added up.
        kept_trees = {tree for name, tree in self._references() if name not in references}
        lines = [*(set(references.values()) - kept_trees), *(f"^{tree}" for tree in kept_trees)]
        return int(self._git("rev-list", "--objects", "--disk-usage", "--stdin", text="\n".join(lines).encode()))

    def rows(self, unneeded: frozenset[str]) -> int:
        """Count the rows that can be deleted from the ledger and the outbox."""
        deliveries = self._rows("outbox.db", "SELECT episode_id FROM delivery")
        return self._ledger.counted_rows(unneeded) + sum(key in unneeded for (key,) in deliveries)

    @contextlib.contextmanager
    def lock_trees(self) -> Iterator[tuple[int, ...]]:
        """Lock all working trees of the project, and yield the locks.

        The locks prevent new objects and claims from being created.

        Raises:
            WorkspaceLockedError: a working tree is in use.
        """
        with ExitStack() as stack:
            # The lock of claims first, so that no further working tree appears while the others are locked.
            paths = [self._folder / "claims" / "lock", *sorted((self._folder / "locks").glob("*.lock"))]
            what = "a working tree of the project"
            yield tuple(stack.enter_context(hold_lock(path, wait=LOCK_WAIT, what=what)) for path in paths)

    def free_artifacts(self, digests: Iterable[str], horizon: datetime) -> None:
        """Delete artifacts, unless they were stored again in the meantime."""
        self._artifacts.remove(digests, before=horizon.timestamp())

    def free_files(self, paths: Iterable[Path]) -> None:
        """Delete files, and folders whose deletion does not have to be atomic."""
        for path in paths:
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)

    def free_trees(self, references: Iterable[str], horizon: datetime, locks: tuple[int, ...]) -> None:
        """Delete refs and objects that become unreachable, and repack the rest.

        Objects younger than `horizon` are kept. The caller must hold the locks from `lock_trees`. Git
        inherits the locks, because git may outlive a killed collection.
        """
        if not (self._store / "HEAD").exists():
            return
        # Leftovers of killed collections or workers: all potential owners are locked out.
        objects = self._store / "objects"
        for pattern in (objects.glob("tmp_*"), objects.glob("pack/tmp_*"), objects.glob("pack/.tmp-*")):
            self.free_files(pattern)
        self.free_files([*(self._store / "refs").rglob("*.lock"), *self._store.glob("packed-refs.*")])
        commands = "".join(f"delete {name}\n" for name in references)
        if commands:
            self._git("update-ref", "--stdin", text=commands.encode("utf-8", "surrogateescape"), locks=locks)
        # These caches list existing objects: the next snapshot reads every file again.
        self.free_files((self._store / "states").glob("*"))
        oldest = f"{int(horizon.timestamp())} +0000"
        self._git("pack-refs", "--all", "--prune", locks=locks)
        # -A and not -a: unreachable objects become loose, where `prune` judges them by their age.
        self._git("repack", "-A", "-d", "-q", f"--unpack-unreachable={oldest}", locks=locks)
        self._git("prune", f"--expire={oldest}", locks=locks)

    def free_folders(self, paths: Iterable[Path]) -> None:
        """Delete the folders of plan records and worktrees. The caller must have locked all trees."""
        for path in paths:
            if path.parent.name == "worktrees":
                shutil.rmtree(data_folder(path), ignore_errors=True)
                key = tree_key(path)
                # The user may have moved or deleted the repository; the worktree still has to go.
                with contextlib.suppress(OSError, TightloopError):
                    workspace = Path(os.fsdecode((self._folder / "workspace").read_bytes()).rstrip("\n"))
                    remove_worktree(UserRepository(workspace), path)
                self.free_files([self._folder / "claims" / f"{key}.json", *(self._folder / "locks").glob(f"{key}.*")])
            doomed = path.with_name(f"{DELETION_PREFIX}{path.name}")
            shutil.rmtree(doomed, ignore_errors=True)
            # The worktree's entry in the user's git is already deleted.
            if path.exists():
                # A rename is atomic: after a crash no half-deleted records are taken for complete ones.
                path.rename(doomed)
                shutil.rmtree(doomed, ignore_errors=True)

    def free_rows(self, unneeded: frozenset[str]) -> None:
        """Delete the ledger and outbox rows of episodes, and record the deletion in a timeline entry."""
        if not unneeded:
            return
        if self._has("outbox.db", "delivery"):
            with self._open_database("outbox.db") as connection:
                for key in sorted(unneeded):
                    # One transaction for each episode, so that workers are not locked out for long.
                    connection.execute("BEGIN IMMEDIATE")
                    condition = "key IN (SELECT key FROM delivery WHERE episode_id = ?)"
                    connection.execute(f"DELETE FROM claim WHERE {condition}", (key,))  # noqa: S608
                    connection.execute("DELETE FROM delivery WHERE episode_id = ?", (key,))
                    connection.execute("COMMIT")
                connection.execute("VACUUM")
                # Workers keep the file open, so its log would otherwise never shrink.
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self._ledger.free(unneeded)

    def _plans(self) -> Iterator[Path]:
        for path in (self._folder / "plans").glob("*"):
            if path.is_dir() and path.name[0] != ".":
                yield path

    def _records(self, key: str) -> Path:
        """Return the folder that contains a plan's records.

        The key is either the plan's id or the name of the folder. See `last_activity`.
        """
        stands_for_itself = _NAME.fullmatch(key) and (self._folder / "plans" / key).is_dir()
        return self._folder / "plans" / (key if stands_for_itself else file_name(key))

    def _named_by_kept(self, unneeded: frozenset[str]) -> Iterator[str]:
        for key, text in self._ledger.kept_records():
            if key not in unneeded:
                yield from _digests(text.encode())
        query = "SELECT episode_id, order_ref || coalesce(report, '') FROM delivery"
        for key, text in self._rows("outbox.db", query):
            if key not in unneeded:
                yield from _digests(text.encode())
        freed = {self._records(key).name for key in unneeded}
        for records in self._plans():
            if records.name not in freed:
                for path in records.rglob("*"):
                    with contextlib.suppress(OSError):
                        if path.is_file():
                            yield from _digests(path.read_bytes())

    def _references(self) -> list[tuple[str, str]]:
        if not (self._store / "HEAD").exists():
            return []
        output = self._git("for-each-ref", "--format=%(objectname) %(refname)", "refs/tightloop/")
        lines = output.decode("utf-8", "surrogateescape").splitlines()
        return [(name, tree) for tree, _, name in (line.partition(" ") for line in lines)]

    def _git(self, *arguments: str, text: bytes = b"", locks: tuple[int, ...] = ()) -> bytes:
        git = replace(store_git(self._store, timeout=GIT_TIMEOUT), inherit=locks)
        return git.run(*arguments, stdin=text)

    def _rows(self, name: str, query: str) -> list[tuple[str, ...]]:
        table = query.partition(" FROM ")[2].split()[0]
        if not self._has(name, table):
            return []
        with self._open_database(name) as connection:
            return connection.execute(query).fetchall()

    def _has(self, name: str, table: str) -> bool:
        """Return whether a table exists. The database file may be missing or empty."""
        if not (self._folder / name).exists():
            return False
        with self._open_database(name) as connection:
            return bool(connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (table,)).fetchone())

    @contextlib.contextmanager
    def _open_database(self, name: str) -> Iterator[sqlite3.Connection]:
        connection = sqlite3.connect(self._folder / name, timeout=BUSY_S, isolation_level=None)
        try:
            use_wal(connection, patience=timedelta(seconds=BUSY_S))
            yield connection
        finally:
            connection.close()


def size_on_disk(folder: Path) -> int:
    """Return the number of bytes that a file or folder occupies on disk."""
    total = 0
    for path in (folder, *folder.rglob("*")) if folder.is_dir() else (folder,):
        with contextlib.suppress(OSError):
            total += path.lstat().st_blocks * 512
    return total


def _digests(content: bytes) -> Iterator[str]:
    return (digest.decode() for digest in _DIGEST.findall(content))


GRACE = timedelta(hours=1)
"""Minimum age of data to delete. Younger data is kept, because a workflow that started after Temporal was queried is
still unknown.
"""


@dataclass(frozen=True)
class KnownWorkflow:
    """A workflow in Temporal, with its start and end across all its runs."""

    id: str
    started: datetime
    closed: datetime | None
    """Time when the workflow closed. None if it is open."""


@dataclass(frozen=True)
class CollectionResult:
    """The data that was freed, or that a dry run would have freed."""

    project: str
    episodes: tuple[str, ...] = ()
    """Ids of episodes and plans."""
    artifacts: int = 0
    references: int = 0
    rows: int = 0
    files: tuple[Path, ...] = ()
    """Agents' homes and records, plan records, worktrees and cached documents."""
    size_bytes: int = 0
    """Number of bytes freed, excluding database rows."""
    marked: int = 0
    """Number of workflows that are marked to keep."""
    busy: str = ""
    """Reason why trees, rows and plans were not freed."""


def collect(
    folder: Path,
    workflows: Mapping[str, KnownWorkflow],
    *,
    older_than: timedelta,
    dry_run: bool,
    queried_at: datetime | None = None,
    forget: Callable[[str], object] | None = None,
) -> CollectionResult:
    """Free data that a project's open or kept workflows do not need. Workers may be running.

    Args:
        folder: the project's state folder.
        workflows: all workflows known to Temporal, by id, including those of other projects.
        older_than: workflows that closed more recently than this are kept.
        dry_run: only report data, without freeing it.
        queried_at: time at which Temporal was queried. The default is now.
        forget: deletes a workflow's data elsewhere, such as copies in the remote store. Must be
            idempotent.
    """
    left = ProjectData(folder)
    cutoff = (queried_at or datetime.now(UTC)) - max(older_than, GRACE)
    unneeded, horizon = _find_unneeded_ids(left, workflows, cutoff)
    artifacts, files = left.artifacts(unneeded, horizon), left.files(unneeded, horizon)
    size = sum(artifacts.values()) + sum(files.values())
    freed = CollectionResult(
        folder.name,
        artifacts=len(artifacts),
        files=tuple(sorted(files)),
        size_bytes=size,
        marked=len(left.list_marked_ids()),
    )
    if dry_run:
        return _with_workflows(freed, left, unneeded)
    left.free_artifacts(artifacts, horizon)
    left.free_files(files)
    # Before the rows, like everything else, and not while working trees are locked: it uses the network.
    if forget is not None:
        for key in sorted(unneeded):
            forget(key)
    try:
        with left.lock_trees() as locks:
            # From here on nothing starts or ends; something may have in the meantime.
            unneeded &= _find_unneeded_ids(left, workflows, cutoff)[0]
            freed = _with_workflows(freed, left, unneeded)
            left.free_trees(left.references(unneeded), horizon, locks)
            left.free_folders(left.folders(unneeded))
            left.free_rows(unneeded)
    except WorkspaceLockedError:
        return replace(freed, busy="a working tree is in use. A later run will free it")
    return freed


def _find_unneeded_ids(
    left: ProjectData, workflows: Mapping[str, KnownWorkflow], cutoff: datetime
) -> tuple[frozenset[str], datetime]:
    active, claimed = left.last_activity(workflows), left.list_claimed_ids()
    local_workflows = {key: workflow for key, workflow in workflows.items() if key in active or key in claimed}
    return choose(active, local_workflows, claimed, cutoff, left.list_marked_ids())


def _with_workflows(freed: CollectionResult, left: ProjectData, unneeded: frozenset[str]) -> CollectionResult:
    references, folders = left.references(unneeded), left.folders(unneeded)
    return replace(
        freed,
        episodes=tuple(sorted(unneeded)),
        references=len(references),
        rows=left.rows(unneeded),
        files=tuple(sorted((*freed.files, *folders))),
        size_bytes=freed.size_bytes + left.tree_bytes(references) + sum(folders.values()),
    )


def choose(
    active: Mapping[str, datetime],
    workflows: Mapping[str, KnownWorkflow],
    claimed: frozenset[str],
    cutoff: datetime,
    marked: frozenset[str] = frozenset(),
) -> tuple[frozenset[str], datetime]:
    """Choose which of a project's episodes to delete, and the time before which leftovers are deleted.

    Args:
        active: last activity of each of the project's episodes on this host.
        workflows: workflows known to Temporal. An unknown id belongs to a closed workflow whose history
            is gone.
        claimed: episodes that have claimed a workspace. They count as open unless Temporal says
            otherwise.
        cutoff: workflows that closed after this time are kept.
        marked: workflows that a person marked to keep. Everything that they started is also kept.
    """

    def end_of(key: str) -> datetime | None:
        # See `child_id` for the ids of workflows that a plan started.
        if any(key == marked_id or key.startswith(f"{marked_id}.") for marked_id in marked):
            return None
        workflow = workflows.get(key)
        if workflow is not None:
            return None if workflow.closed is None else max(workflow.closed, active.get(key, workflow.closed))
        return None if key in claimed else active[key]

    ends = {key: end_of(key) for key in {*active, *workflows}}
    horizon = cutoff
    while True:
        kept_ids = [key for key, end in ends.items() if end is None or end >= horizon]
        starts = [workflows[key].started for key in kept_ids if key in workflows]
        # A kept workflow may use artifacts from its start on, so the horizon moves there, which can keep further ones.
        earliest = min([horizon, *starts])
        if earliest == horizon:
            return frozenset(active.keys() - set(kept_ids)), horizon
        horizon = earliest
