"""An episode's copies in a bucket, and the activities that write them and take over episodes from a lost host."""

import hashlib
import io
import re
import time
import zipfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from temporalio import activity

from activities.artifacts.port import ArtifactStore, ArtifactStores, find_model
from activities.workspace.port import OpenEpisodes
from activities.workspace.scope import EpisodeScope, Ledgers
from tightloop.episode.checkpoint import (
    CheckpointRecord,
    CopiesHead,
    check_holder,
    increment_name,
    is_increment_up_to,
    read_increment_name,
)
from tightloop.episode.model import CheckpointFile
from tightloop.errors import ArtifactCorruptError, ArtifactMissingError, FencedError, SettingsError, WorkspaceError
from tightloop.value import ArtifactRef, LruCache, Value

if TYPE_CHECKING:
    from activities.workspace.store.writer import PackedTrees
    from activities.workspace.working_tree import Workspaces


_DIGEST = re.compile(rb"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")
_PACK_NAME = re.compile(r"pack-[0-9a-f]{40}\.(?:pack|idx)")
_EPOCH_OF_ZIP = (1980, 1, 1, 0, 0, 0)
"""Fixed file time, so that equal content always yields equal bytes."""


@dataclass(frozen=True)
class Increment:
    """The data that a checkpoint adds to the copies of an episode."""

    record: CheckpointRecord
    pack: Mapping[str, bytes] = field(default_factory=dict)
    """The files of a git pack, by name."""
    artifacts: Mapping[str, bytes] = field(default_factory=dict)
    """Artifact contents, by digest."""

    def to_bytes(self) -> bytes:
        """Pack the increment into a single zip object."""
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w") as file:
            parts = {"checkpoint.json": self.record.model_dump_json().encode()}
            parts |= {f"artifacts/{digest}": content for digest, content in sorted(self.artifacts.items())}
            for name, content in parts.items():
                file.writestr(zipfile.ZipInfo(name, _EPOCH_OF_ZIP), content, zipfile.ZIP_DEFLATED, 1)
            for name, content in sorted(self.pack.items()):  # already compressed
                file.writestr(zipfile.ZipInfo(f"pack/{name}", _EPOCH_OF_ZIP), content, zipfile.ZIP_STORED)
        return out.getvalue()


def read_increment(content: bytes, digest: str) -> Increment:
    """Parse an increment that was written by `to_bytes`.

    Raises:
        ArtifactCorruptError: a digest or the name of a part does not match.
    """
    if digest_of(content) != digest:
        raise ArtifactCorruptError(
            f"the copy {digest} in the remote store is damaged: its bytes do not match its digest"
        )
    with zipfile.ZipFile(io.BytesIO(content)) as file:
        parts = {name: file.read(name) for name in file.namelist()}
    artifacts = {name[10:]: part for name, part in parts.items() if name.startswith("artifacts/")}
    pack = {name[5:]: part for name, part in parts.items() if name.startswith("pack/")}
    wrong = [name for name, part in artifacts.items() if hashlib.sha256(part).hexdigest() != name]
    wrong += [name for name in pack if not _PACK_NAME.fullmatch(name)]
    if wrong:
        raise ArtifactCorruptError(
            f"the copy {digest} in the remote store is damaged: {wrong[0][:80]!r} does not match its name"
        )
    return Increment(CheckpointRecord.model_validate_json(parts["checkpoint.json"]), pack, artifacts)


def digest_of(content: bytes) -> str:
    """Return the digest that is part of an increment's name."""
    return hashlib.sha256(content).hexdigest()[:32]


def collect_artifacts(
    store: ArtifactStore, roots: tuple[ArtifactRef | None, ...], known_digests: set[str]
) -> dict[str, bytes]:
    """Collect all artifacts that are reachable from the roots.

    Known artifacts are skipped, and so are the artifacts that they refer to.
    """
    artifacts: dict[str, bytes] = {}
    todo = [ref.sha256 for ref in roots if ref is not None]
    while todo:
        digest = todo.pop()
        if digest in known_digests or digest in artifacts:
            continue
        try:
            artifacts[digest] = store.get(ArtifactRef(sha256=digest, size_bytes=0))
        except ArtifactMissingError:
            continue  # a digest of something else, or an artifact that was deleted
        # Found by pattern: models refer to artifacts in many fields, and a new field must not be forgotten.
        todo += (name.decode() for name in _DIGEST.findall(artifacts[digest]))
    return artifacts


@dataclass(frozen=True)
class StoredObject:
    """An object in a bucket."""

    content: bytes
    version: str
    """A version that changes with every write."""


class Bucket(Protocol):
    """An object store that all hosts share. A write is visible when the call returns.

    All methods raise ServiceUnavailableError if the server does not respond or refuses the request. This
    error is retryable.
    """

    def read(self, name: str) -> StoredObject | None:
        """Return the object with this name, or None if it does not exist."""
        ...

    def write(self, name: str, content: bytes) -> None:
        """Write or replace an object."""

    def swap(self, name: str, content: bytes, version: str) -> str:
        """Write an object if its version is unchanged.

        An empty version means that the object must not exist yet.

        Returns:
            The object's new version, or "" if it was not written. Only one of several concurrent calls
            succeeds.
        """
        ...

    def names(self, folder: str) -> tuple[str, ...]:
        """Return the names of all objects below a folder."""
        ...

    def remove(self, names: Sequence[str]) -> None:
        """Delete objects. It is not an error if an object is missing."""


CACHED_EPISODES = 64
"""Number of episodes whose copies this host caches. For other episodes, the copies are read again."""
FRESH_S = 1.0
"""Time in seconds for which a written head is not read again. It is shorter than the time to detect a lost host."""


@dataclass(frozen=True)
class _CachedCopies:
    """The copies of an episode, as last written by this host. They are needed to add more copies."""

    head: CopiesHead
    version: str
    artifacts: set[str]
    """Digests of artifacts in the increments. The set may be incomplete, because copying an artifact twice only costs
    space."""
    at: float = 0.0
    """`time.time` when the head was last written. Unlike the monotonic clock, it includes time spent suspended."""

    @property
    def is_fresh(self) -> bool:
        """True if the head was written recently. False if the clock has been set back since then."""
        return 0 <= time.time() - self.at < FRESH_S


@dataclass(frozen=True)
class Copies:
    """Reads and writes remote copies on behalf of one host.

    All writes are stored under the host's epoch. The head is written last.
    """

    bucket: Bucket
    homes: tuple[str, ...]
    """This host's task queues, its own first."""
    trees: "PackedTrees"
    stores: ArtifactStores
    _cached: LruCache[str, _CachedCopies] = field(default_factory=lambda: LruCache(CACHED_EPISODES), repr=False)

    def check(self, scope: EpisodeScope) -> CopiesHead:
        """Check that this host may continue an episode, and return the head of the episode's copies.

        Raises:
            FencedError: another host has taken over the episode.
        """
        left = self._find_cached_head(scope)
        head = left.head if left is not None and left.is_fresh else self._head(scope)[0]
        return check_holder(head, self._home(scope), scope.epoch)

    def open(self, scope: EpisodeScope, run: str) -> int:
        """Claim the id of a new episode, and return the episode's epoch. Idempotent for the same run."""
        head, version = self._head(scope)
        opened = head.with_run(self._home(scope), run) if head else CopiesHead(home=self._home(scope), run=run)
        self._write_head(scope, head, opened, version)
        return opened.epoch

    def add(self, scope: EpisodeScope, record: CheckpointRecord) -> CopiesHead:
        """Copy a checkpoint to the remote store. Idempotent.

        Raises:
            FencedError: another host has taken over the episode. Nothing valid was written.
        """
        left = self._find_cached_head(scope)
        # The conditional write detects a changed head, so there is no need to read it first.
        if left is not None and left.head.last != record:
            with suppress(FencedError):
                return self._add(scope, record, left)
        self._cached.drop(scope.episode_id)
        head, version = self._head(scope)
        head = check_holder(head, self._home(scope), scope.epoch)
        if head.last is not None and head.last.id == record.id:
            return head
        copied_artifacts = (
            collect_artifacts(self.stores(Path(scope.workspace)), (head.last.state,), set()) if head.last else {}
        )
        return self._add(scope, record, _CachedCopies(head, version, set(copied_artifacts)))

    def claim(
        self,
        scope: EpisodeScope,
        newest: CheckpointRecord | None,
        adopt: Callable[[CopiesHead, CheckpointRecord], None],
    ) -> CopiesHead:
        """Claim an episode and fetch its trees and artifacts to this host. Idempotent.

        Args:
            scope: the episode, with its new epoch.
            newest: the episode's last checkpoint. If the store has lost the episode, this checkpoint is
                copied again.
            adopt: called for each checkpoint after its data has been fetched to this host.

        Raises:
            FencedError: another host has taken over the episode in the meantime.
            WorkspaceError: neither the store nor this host has the checkpoint.
        """
        (head, version), home = self._head(scope), self._home(scope)
        new_head = head.taken(home, scope.epoch) if head else CopiesHead(home=home, epoch=scope.epoch)
        store = self.stores(Path(scope.workspace))
        if new_head.last is None:
            checkpoint = None
            with suppress(ArtifactMissingError):
                checkpoint = find_model(store, newest.state, CheckpointFile) if newest is not None else None
            # Claiming an episode without its data would stop it on the host that has the data.
            if newest is None or checkpoint is None:
                raise WorkspaceError(
                    f"the remote store has no copy of {scope.episode_id}, and this host does not have the "
                    "episode's last checkpoint. Move the episode to the host that has the checkpoint: tightloop move "
                    "ID --to HOST"
                )
            return self._add(scope, newest, _CachedCopies(new_head, version, set()))
        # Before the download: from here on the previous host cannot write, so the list of increments is final.
        self._write_head(scope, head, new_head, version)
        for name in new_head.increments:
            stored = self.bucket.read(f"{scope.episode_id}/{name}")
            if stored is None:
                raise ArtifactMissingError(f"the copy {scope.episode_id}/{name} was removed from the remote store")
            increment = read_increment(stored.content, read_increment_name(name))
            self.trees.unpack(scope, dict(increment.pack))
            with store.open_batch() as together:
                for digest, content in increment.artifacts.items():
                    together.put(content, name=digest)
            # After its trees and artifacts: a checkpoint must not name data that is missing.
            adopt(new_head, increment.record)
        return new_head

    def delete_copies(self, episode_id: str) -> int:
        """Delete the copies of an episode and return the number of deleted copies. Idempotent.

        If another host has taken over the episode, that host's copies are kept. The epoch in the head is also
        kept, so that the next user of the id gets a higher epoch.

        Raises:
            ServiceUnavailableError: the store does not respond.
        """
        head, version = self._head(EpisodeScope(episode_id=episode_id, workspace="/"))
        if head is None or head.home not in self.homes:
            return 0
        # The head first: without it the objects are unused, so a crash in between leaves only garbage.
        empty = head.with_no_increments()
        if empty != head and not self.bucket.swap(f"{episode_id}/head", empty.model_dump_json().encode(), version):
            return 0  # it is in use again
        old = [name for name in self.bucket.names(episode_id) if is_increment_up_to(head.epoch, name)]
        self.bucket.remove(old)
        return len(old)

    def _home(self, scope: EpisodeScope) -> str:
        """Return this host's task queue for an episode.

        If this host has adopted the episode's host, return the task queue of the adopted host.
        """
        return scope.home if scope.home in self.homes else self.homes[0]

    def _find_cached_head(self, scope: EpisodeScope) -> _CachedCopies | None:
        left = self._cached.get(scope.episode_id)
        return left if left is not None and left.head.epoch == scope.epoch else None

    def _head(self, scope: EpisodeScope) -> tuple[CopiesHead | None, str]:
        stored = self.bucket.read(f"{scope.episode_id}/head")
        return (None, "") if stored is None else (CopiesHead.model_validate_json(stored.content), stored.version)

    def _write_head(self, scope: EpisodeScope, before: CopiesHead | None, head: CopiesHead, version: str) -> str:
        if head == before:
            return version
        written = self.bucket.swap(f"{scope.episode_id}/head", head.model_dump_json().encode(), version)
        if not written:
            now = self._head(scope)[0]
            raise FencedError(
                f"the host of task queue {self._home(scope)!r} could not write its copy of "
                f"{scope.episode_id} (epoch {head.epoch}), because {now.home if now else 'another host'!r} has "
                "changed the copy in the meantime" + (f" (epoch {now.epoch})" if now else "")
            )
        return written

    def _add(self, scope: EpisodeScope, record: CheckpointRecord, left: _CachedCopies) -> CopiesHead:
        head = left.head
        artifacts = collect_artifacts(self.stores(Path(scope.workspace)), (record.state, scope.request), left.artifacts)
        # Relative to the last copied tree, so that each copy has only what is new.
        pack = self.trees.pack(scope, record.tree, head.last.tree if head.last else "")
        content = Increment(record, pack, artifacts).to_bytes()
        name = increment_name(head.epoch, record, digest_of(content))
        # The name holds a digest and the epoch, so a fenced host overwrites nothing.
        self.bucket.write(f"{scope.episode_id}/{name}", content)
        added = head.with_increment(name, record)
        version = self._write_head(scope, head, added, left.version)
        self._cached.put(
            scope.episode_id, _CachedCopies(added, version, left.artifacts | artifacts.keys(), time.time())
        )
        return added


def need_copies(copies: Copies | None) -> Copies:
    """Return this host's copies, or raise an error if this host has none.

    Raises:
        SettingsError: the episode was started with a bucket, but this host's settings do not have one.
    """
    if copies is None:
        raise SettingsError(
            "this episode has copies in a remote store, but this worker has no remote store configured, so "
            "it cannot check whether another host has taken over the episode. Add the remote section to the "
            "worker's settings"
        )
    return copies


class CopyRequest(Value):
    """Request to copy a checkpoint. The first request of an episode has epoch 0 and claims the id."""

    scope: EpisodeScope
    record: CheckpointRecord


class CopyResult(Value):
    """A checkpoint from which another host can continue."""

    epoch: int


class TakeOverRequest(Value):
    """Request to continue an episode on this host. The scope contains the new epoch."""

    scope: EpisodeScope
    last: CheckpointRecord | None = None
    """The last checkpoint known to the previous host, in case the store has lost the episode. It is missing in older
    histories."""


class TakeOverResult(Value):
    """Result of taking over an episode."""

    record: CheckpointRecord
    """The last checkpoint. Its tree, its artifacts and earlier checkpoints are now on this host."""
    notes: tuple[str, ...] = ()
    attempt: int = 1


@dataclass(frozen=True)
class RemoteActivities:
    """Activities that copy episodes to a store shared by all hosts. All of them are idempotent."""

    copies: Copies | None
    """Copies in the configured bucket. None if the settings do not have a bucket."""
    workspaces: "Workspaces"
    ledgers: Ledgers
    has_ended: OpenEpisodes

    @activity.defn(no_thread_cancel_exception=True)
    def copy_checkpoint(self, request: CopyRequest) -> CopyResult:
        """Copy a checkpoint whose tree and state are on this host.

        Raises:
            FencedError: another host has taken over the episode.
            ServiceUnavailableError: the store does not respond.
        """
        copies, scope = need_copies(self.copies), request.scope
        if not scope.epoch:
            scope = scope.evolve(epoch=copies.open(scope, activity.info().workflow_run_id or ""))
        return CopyResult(epoch=copies.add(scope, request.record).epoch)

    @activity.defn(no_thread_cancel_exception=True)
    def take_over(self, request: TakeOverRequest) -> TakeOverResult:
        """Claim an episode for this host and fetch the data that is needed to continue it.

        Working files are not fetched.

        Raises:
            FencedError: a third host has taken over the episode in the meantime.
            WorkspaceError: the last checkpoint is neither in the store nor on this host, or the workspace
                cannot be used.
            ServiceUnavailableError: the store does not respond.
        """
        copies, scope = need_copies(self.copies), request.scope
        # A host that never had the project has no folder yet, and `prepare` needs one.
        copies.trees.make_workspace(scope)
        notes = self.workspaces.prepare(scope, take_over=self.has_ended)
        ledger = self.ledgers(Path(scope.workspace))
        with self.workspaces.hold(scope) as tree:

            def adopt(head: CopiesHead, record: CheckpointRecord) -> None:
                tree.keep(str(record.number), record.tree)
                key = f"copied/{head.epoch}/{record.number}"
                ledger.adopt([(scope.episode_id, record.number, key, record.model_dump_json())])

            head = copies.claim(scope, request.last, adopt)
        assert head.last is not None  # `take` raises if it is empty
        return TakeOverResult(record=head.last, notes=notes, attempt=activity.info().attempt)
