"""Copies of checkpoints in a bucket: a real server, real stores, two hosts."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from activities.artifacts.port import put_model
from activities.artifacts.stores import open_local_store
from activities.remote.activity import FRESH_S, Copies, StoredObject
from activities.remote.s3 import EncryptedBucket, S3Bucket, probe
from activities.workspace.scope import EpisodeScope
from activities.workspace.store.writer import PackedTrees
from activities.workspace.working_tree import Workspaces
from tests.support.bucket import careless_server, s3_server
from tightloop.client.keys import KeyRing
from tightloop.client.sealing import Keys
from tightloop.episode.checkpoint import CheckpointRecord, CopiesHead, checkpoint_id
from tightloop.episode.model import CheckpointFile, EpisodeState
from tightloop.errors import (
    ArtifactCorruptError,
    FencedError,
    ServiceUnavailableError,
    SettingsError,
    WorkspaceError,
)
from tightloop.settings import RemoteSettings

KEYS = Keys(KeyRing("one", {"one": b"k" * 32}))
OTHER_KEYS = Keys(KeyRing("one", {"one": b"x" * 32}))


@pytest.fixture(scope="module")
def remote() -> Iterator[RemoteSettings]:
    with s3_server() as settings:
        yield settings


@pytest.fixture
def bucket(remote: RemoteSettings, request: pytest.FixtureRequest) -> S3Bucket:
    return S3Bucket(remote.evolve(prefix=request.node.name))


@dataclass
class Host:
    """A host with a state home and a folder of its own, which works while the environment names them."""

    name: str
    folder: Path
    copies: Copies
    environment: pytest.MonkeyPatch

    def scope(self, epoch: int) -> EpisodeScope:
        self.environment.setenv("TIGHTLOOP_HOME", str(self.folder / "state"))
        return EpisodeScope(episode_id="ep-1", workspace=str(self.folder / "project"), epoch=epoch)

    def checkpoint(self, number: int, epoch: int) -> CheckpointRecord:
        """Record the files as they are."""
        scope = self.scope(epoch)
        with Workspaces().hold(scope) as tree:
            found = tree.snapshot()
        store = open_local_store(Path(scope.workspace))
        file = CheckpointFile(state=EpisodeState(tree=found, iteration=number))
        state = put_model(store, file.evolve(patch=store.put(b"diff %d" % number, name="patch")), name="checkpoint")
        return CheckpointRecord(id=checkpoint_id(number), iteration=number, tree=found, state=state)

    def take(self, epoch: int, newest: CheckpointRecord | None = None) -> CopiesHead:
        """Take the episode over."""
        scope = self.scope(epoch)
        self.copies.trees.make_workspace(scope)
        return self.copies.claim(scope, newest, lambda *_: None)

    @property
    def files(self) -> dict[str, tuple[bytes, int]]:
        root = self.folder / "project"
        found = (path for path in root.rglob("*") if path.is_file() and ".git" not in path.parts)
        return {str(path.relative_to(root)): (path.read_bytes(), path.stat().st_mode & 0o111) for path in found}


@pytest.fixture
def host(tmp_path: Path, bucket: S3Bucket, monkeypatch: pytest.MonkeyPatch):
    def make(name: str) -> Host:
        copies = Copies(EncryptedBucket(bucket, KEYS), (name,), PackedTrees(), open_local_store)
        return Host(name, tmp_path / name, copies, monkeypatch)

    return make


@pytest.fixture
def first(host, workspace: Path) -> Host:
    made = host("first")
    made.folder.mkdir()
    workspace.rename(made.folder / "project")
    return made


def test_another_host_gets_every_checkpoint_byte_for_byte(first: Host, host) -> None:
    epoch = first.copies.open(first.scope(0), "run-1")
    project = first.folder / "project"
    for number in range(4):
        (project / f"sub-{number}").mkdir()
        (project / f"sub-{number}" / "data.bin").write_bytes(bytes(range(256)) * (number + 1))
        (project / "app.py").write_text(f"print({number})\n")
        (project / "app.py").chmod(0o755 if number % 2 else 0o644)
        last = first.checkpoint(number, epoch)
        first.copies.add(first.scope(epoch), last)

    second, records = host("second"), []
    scope = second.scope(epoch + 1)
    second.copies.trees.make_workspace(scope)
    head = second.copies.claim(scope, last, lambda _head, record: records.append(record))
    with Workspaces().hold(scope) as tree:
        for record in records:
            tree.restore(record.tree)
            assert tree.snapshot() == record.tree
    assert head.last == last
    assert [record.id for record in records] == ["ckpt-0", "ckpt-1", "ckpt-2", "ckpt-3"]
    assert second.files == first.files
    store = open_local_store(Path(scope.workspace))
    file = CheckpointFile.model_validate_json(store.get(last.state))
    assert file.patch is not None
    assert store.get(file.patch) == b"diff 3"


def test_increments_hold_only_what_is_new(first: Host, bucket: S3Bucket) -> None:
    epoch = first.copies.open(first.scope(0), "run-1")
    project = first.folder / "project"
    (project / "big.txt").write_text("".join(f"{n * 7919 % 100_003}\n" for n in range(50_000)))
    first.copies.add(first.scope(epoch), first.checkpoint(0, epoch))
    (project / "app.py").write_text("print('changed')\n")
    head = first.copies.add(first.scope(epoch), first.checkpoint(1, epoch))
    whole, increment = (bucket.read(f"ep-1/{name}") for name in head.increments)
    assert whole is not None
    assert increment is not None
    assert len(increment.content) < 5_000 < 100_000 < len(whole.content)


def test_host_that_lost_its_epoch_copies_nothing_more_and_says_so(first: Host, host) -> None:
    epoch = first.copies.open(first.scope(0), "run-1")
    first.copies.add(first.scope(epoch), first.checkpoint(0, epoch))
    second = host("second")
    taken = second.take(epoch + 1)
    (first.folder / "project" / "app.py").write_text("late\n")
    late = first.checkpoint(1, epoch)
    with pytest.raises(FencedError, match=r"'first' does not own .* \(epoch 1\): the owner is 'second', with epoch 2"):
        first.copies.add(first.scope(epoch), late)
    with pytest.raises(FencedError, match="Nothing was delivered"):
        first.copies.check(first.scope(epoch))
    assert second.copies.check(second.scope(epoch + 1)) == taken


def test_host_that_is_overtaken_while_it_copies_does_not_move_the_head(first: Host, host, bucket: S3Bucket) -> None:
    epoch = first.copies.open(first.scope(0), "run-1")
    first.copies.add(first.scope(epoch), first.checkpoint(0, epoch))
    second = host("second")

    class OvertakenBucket(EncryptedBucket):
        """Another host takes over between the look at the head and the write."""

        def write(self, name: str, content: bytes) -> None:
            super().write(name, content)
            second.take(epoch + 1)

    slow = Copies(OvertakenBucket(bucket, KEYS), ("first",), PackedTrees(), open_local_store)
    record = first.checkpoint(1, epoch)
    with pytest.raises(FencedError, match=r"'second' has changed the copy in the meantime \(epoch 2\)"):
        slow.add(first.scope(epoch), record)
    head = second.copies.check(second.scope(epoch + 1))
    assert head.last is not None
    assert head.last.id == "ckpt-0"


@dataclass(frozen=True)
class CountingBucket(EncryptedBucket):
    """Notes what is read."""

    reads: list[str] = field(default_factory=list)

    def read(self, name: str) -> StoredObject | None:
        self.reads.append(name)
        return super().read(name)


def test_two_workers_of_a_host_add_to_the_same_copies_and_read_the_head_only_if_the_other_wrote(
    first: Host, bucket: S3Bucket
) -> None:
    counting = CountingBucket(bucket, KEYS)
    workers = [Copies(counting, ("first",), PackedTrees(), open_local_store) for _ in range(2)]
    epoch = workers[0].open(first.scope(0), "run-1")
    for number, worker in enumerate((0, 0, 0, 1, 1, 0)):
        (first.folder / "project" / "app.py").write_text(f"print({number})\n")
        counting.reads.clear()
        head = workers[worker].add(first.scope(epoch), first.checkpoint(number, epoch))
        # With the first copy of a worker, and once the other one has written.
        assert len(counting.reads) == {0: 1, 3: 1, 5: 2}.get(number, 0)
    assert len(head.increments) == 6
    assert first.copies.check(first.scope(epoch)) == head


@pytest.mark.parametrize("later_s", [FRESH_S, 3_600.0, -3_600.0], ids=["a moment", "asleep", "clock set back"])
def test_host_asks_who_may_write_unless_it_has_just_written(
    first: Host, host, bucket: S3Bucket, monkeypatch: pytest.MonkeyPatch, later_s: float
) -> None:
    counting = CountingBucket(bucket, KEYS)
    copies = Copies(counting, ("first",), PackedTrees(), open_local_store)
    epoch = copies.open(first.scope(0), "run-1")
    head = copies.add(first.scope(epoch), first.checkpoint(0, epoch))
    counting.reads.clear()
    assert copies.check(first.scope(epoch)) == head
    assert not counting.reads

    second = host("second")
    second.take(epoch + 1)
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + later_s)
    with pytest.raises(FencedError, match="the owner is 'second', with epoch 2"):
        copies.check(first.scope(epoch))


def test_episode_that_begins_anew_is_not_held_up_by_what_was_just_written_of_the_one_before(first: Host) -> None:
    epoch = first.copies.open(first.scope(0), "run-1")
    first.copies.add(first.scope(epoch), first.checkpoint(0, epoch))
    assert first.copies.open(first.scope(0), "run-2") == epoch + 1
    assert first.copies.check(first.scope(epoch + 1)).epoch == epoch + 1


def test_epoch_cannot_be_taken_twice_by_different_hosts(first: Host, host) -> None:
    epoch = first.copies.open(first.scope(0), "run-1")
    first.copies.add(first.scope(epoch), first.checkpoint(0, epoch))
    second, third = host("second"), host("third")
    second.take(epoch + 1)
    assert second.take(epoch + 1).epoch == epoch + 1
    with pytest.raises(FencedError):
        third.take(epoch + 1)
    assert third.take(epoch + 2).home == "third"


def test_host_that_has_the_checkpoint_goes_on_where_the_store_was_emptied(first: Host, host, bucket: S3Bucket) -> None:
    epoch = first.copies.open(first.scope(0), "run-1")
    for number in range(2):
        (first.folder / "project" / "app.py").write_text(f"print({number})\n")
        last = first.checkpoint(number, epoch)
        first.copies.add(first.scope(epoch), last)
    bucket.remove(bucket.names("ep-1"))
    with pytest.raises(FencedError, match="the remote store has no record of it"):
        first.copies.add(first.scope(epoch), first.checkpoint(2, epoch))

    second = host("second")
    for known in (last, None):
        with pytest.raises(WorkspaceError, match="has no copy of ep-1, and this host does not have the episode's last"):
            second.take(epoch + 1, known)
    assert "ep-1/head" not in bucket.names("ep-1")
    for _ in range(2):
        head = first.take(epoch + 1, last)
        assert (head.home, head.epoch, head.last) == ("first", epoch + 1, last)
    with pytest.raises(FencedError):
        first.copies.add(first.scope(epoch), last)
    # All of it is there again.
    assert second.take(epoch + 2).last == last
    with Workspaces().hold(second.scope(epoch + 2)) as tree:
        tree.restore(last.tree)
    assert second.files == first.files


def test_content_is_not_readable_without_the_key(first: Host, bucket: S3Bucket) -> None:
    epoch = first.copies.open(first.scope(0), "run-1")
    (first.folder / "project" / "app.py").write_text("SECRET = 'planted'\n")
    head = first.copies.add(first.scope(epoch), first.checkpoint(0, epoch))
    for name in ("head", *head.increments):
        stored = bucket.read(f"ep-1/{name}")
        assert stored is not None
        assert b"ckpt-0" not in stored.content
        with pytest.raises(ArtifactCorruptError, match="not authentic"):
            EncryptedBucket(bucket, OTHER_KEYS).read(f"ep-1/{name}")


def test_object_under_another_name_is_refused(bucket: S3Bucket) -> None:
    sealed = EncryptedBucket(bucket, KEYS)
    sealed.write("one", b"content")
    stored = bucket.read("one")
    assert stored is not None
    bucket.write("two", stored.content)
    with pytest.raises(ArtifactCorruptError, match="two in the remote store is not authentic"):
        sealed.read("two")


def test_of_two_conditional_writes_one_wins(bucket: S3Bucket) -> None:
    assert bucket.swap("name", b"first", "")
    assert not bucket.swap("name", b"second", "")
    stored = bucket.read("name")
    assert stored is not None
    assert bucket.swap("name", b"third", stored.version)
    assert not bucket.swap("name", b"fourth", stored.version)
    probe(bucket, str(bucket))


def test_server_that_ignores_conditions_is_refused() -> None:
    with careless_server() as settings:
        bucket = S3Bucket(settings)
        with pytest.raises(
            SettingsError, match=r"ignores conditional writes .If-None-Match., so two hosts could continue"
        ):
            probe(bucket, str(bucket))


def test_server_that_is_gone_is_named(remote: RemoteSettings) -> None:
    bucket = S3Bucket(remote.evolve(endpoint="http://127.0.0.1:9"))
    with pytest.raises(ServiceUnavailableError, match=r"http://127.0.0.1:9, bucket copies. cannot be used"):
        bucket.read("name")


def test_forgotten_copies_go_and_their_id_begins_with_a_higher_epoch(first: Host, bucket: S3Bucket) -> None:
    epoch = first.copies.open(first.scope(0), "run-1")
    for number in range(2):
        first.copies.add(first.scope(epoch), first.checkpoint(number, epoch))
    other = "ep-10/1/0-abc"
    bucket.write(other, b"of another episode")
    assert first.copies.delete_copies("ep-1") == 2
    assert first.copies.delete_copies("ep-1") == 0
    assert bucket.names("ep-1") == ("ep-1/head",)
    assert bucket.names("ep-10") == (other,)
    assert first.copies.open(first.scope(0), "run-2") == epoch + 1


def test_copies_of_an_episode_that_was_moved_are_not_forgotten_by_the_host_before(
    first: Host, host, bucket: S3Bucket
) -> None:
    epoch = first.copies.open(first.scope(0), "run-1")
    first.copies.add(first.scope(epoch), first.checkpoint(0, epoch))
    second = host("second")
    second.take(epoch + 1)
    assert first.copies.delete_copies("ep-1") == 0
    assert len(bucket.names("ep-1")) == 2
    assert second.copies.delete_copies("ep-1") == 1
