"""Artifacts are stored whole or not at all, and read only with the right hash."""

import contextlib
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from activities.artifacts.stores import LocalArtifactStore, close_idle, open_local_store
from tightloop.errors import ArtifactCorruptError, ArtifactMissingError, StorageFullError
from tightloop.host import state_folder
from tightloop.value import PACKED, ArtifactRef, pack, reference

PROJECT = Path(__file__).parents[3]


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_stored_bytes_come_back_under_their_hash(tmp_path: Path) -> None:
    store = open_local_store(tmp_path)
    ref = store.put(b"\0\xffplan", name="plan", media_type="text/markdown")
    assert ref == reference(b"\0\xffplan", name="plan", media_type="text/markdown")
    assert open_local_store(tmp_path).get(ref) == b"\0\xffplan"
    close_idle()
    assert files(state_folder(tmp_path)) == ["artifacts/small.db"]
    assert files(tmp_path) == []


def test_nothing_at_all_can_be_stored(tmp_path: Path) -> None:
    store = LocalArtifactStore(tmp_path)
    assert store.get(store.put(b"", name="empty")) == b""


def test_missing_artifact_is_named(tmp_path: Path) -> None:
    with pytest.raises(ArtifactMissingError, match="'plan'"):
        LocalArtifactStore(tmp_path).get(reference(b"never stored", name="plan"))


@pytest.mark.parametrize("address", ["", "../../../../etc/passwd", "ab", "A" * 64, "a" * 64 + "\n"])
def test_address_that_is_no_hash_is_refused(tmp_path: Path, address: str) -> None:
    with pytest.raises(ArtifactMissingError, match="is not a valid artifact address"):
        LocalArtifactStore(tmp_path).get(ArtifactRef(sha256=address, size_bytes=1))


@pytest.mark.parametrize("damage", [b"", b"hel", b"hellO", pack(b"hellO")])
@pytest.mark.parametrize("as_file", [True, False])
def test_damaged_artifact_is_refused_and_healed_by_storing_again(tmp_path: Path, damage: bytes, as_file: bool) -> None:
    store = LocalArtifactStore(tmp_path)
    ref = store.put(b"hello", name="plan", as_file=as_file)
    if as_file:
        store.path(ref).write_bytes(damage)
    else:
        with closing(sqlite3.connect(tmp_path / PACKED)) as database, database:
            database.execute("UPDATE artifact SET content = ?", (damage,))
    with pytest.raises(ArtifactCorruptError, match="is damaged"):
        store.get(ref)
    store.put(b"hello", name="plan", as_file=as_file)
    assert store.get(ref) == b"hello"


def test_damaged_file_of_small_artifacts_is_named(tmp_path: Path) -> None:
    ref = LocalArtifactStore(tmp_path).put(b"hello", name="plan")
    close_idle()
    (tmp_path / PACKED).write_bytes(b"no database" * 1_000)
    with pytest.raises(
        ArtifactCorruptError, match=rf"{tmp_path / PACKED} is damaged: .*Restore the file from a backup"
    ):
        LocalArtifactStore(tmp_path).get(ref)


def test_artifacts_of_the_former_form_are_still_read(tmp_path: Path) -> None:
    ref = reference(b"a plan of an open episode", name="plan")
    store = LocalArtifactStore(tmp_path)
    store.path(ref).parent.mkdir()
    store.path(ref).write_bytes(b"a plan of an open episode")
    assert store.get(ref) == b"a plan of an open episode"


def test_what_is_put_together_is_stored_once_and_only_at_the_end(tmp_path: Path) -> None:
    store = LocalArtifactStore(tmp_path)
    with store.open_batch() as together:
        first, second = together.put(b"plan", name="plan"), together.put(b"patch", name="patch")
        large = together.put(b"l" * 100_000, name="log")
        assert together.get(first) == b"plan"
        with pytest.raises(ArtifactMissingError):
            store.get(first)
    assert [store.get(ref) for ref in (first, second)] == [b"plan", b"patch"]
    assert store.path(large).stat().st_mode & 0o777 == 0o600
    with contextlib.suppress(RuntimeError), store.open_batch() as together:
        lost = together.put(b"lost", name="plan")
        raise RuntimeError
    with pytest.raises(ArtifactMissingError):
        store.get(lost)


def test_a_writer_that_is_killed_leaves_all_that_it_was_told_is_stored(tmp_path: Path) -> None:
    script = """
import os, sys
from pathlib import Path
from activities.artifacts.stores import LocalArtifactStore
store = LocalArtifactStore(Path(sys.argv[1]))
for number in range(1_000_000):
    content = b"%d" % number * (20_000 if number % 9 == 0 else 10)
    print(number, store.put(content, name="x").sha256, flush=True)
"""
    told: list[str] = []
    for delay in (0.05, 0.1, 0.2, 0.3):
        writers = [
            subprocess.Popen(
                [sys.executable, "-c", script, str(tmp_path)], cwd=PROJECT, stdout=subprocess.PIPE, text=True
            )
            for _ in range(2)
        ]
        for writer in writers:
            assert writer.stdout is not None
            told.append(writer.stdout.readline())
        time.sleep(delay)
        for writer in writers:
            writer.kill()
            told += writer.communicate()[0].splitlines()
    store = LocalArtifactStore(tmp_path)
    lines = [line.split() for line in told if len(line.split()) == 2 and len(line.split()[1]) == 64]
    assert len(lines) > 20
    for number, digest in lines:
        content = number.encode() * (20_000 if int(number) % 9 == 0 else 10)
        assert store.get(ArtifactRef(sha256=digest, size_bytes=len(content))) == content


@pytest.mark.parametrize("as_file", [True, False])
def test_what_is_stored_again_while_a_collection_removes_it_is_there(tmp_path: Path, as_file: bool) -> None:
    store = LocalArtifactStore(tmp_path)
    ref = store.put(b"wanted again", name="plan", as_file=as_file)
    with ThreadPoolExecutor(1) as pool:
        for _ in range(100):
            if as_file:
                os.utime(store.path(ref), (1, 1))
            else:
                with closing(sqlite3.connect(tmp_path / PACKED)) as database, database:
                    database.execute("UPDATE artifact SET stored = 1")
            collecting = pool.submit(store.remove, [ref.sha256], before=2)
            store.put(b"wanted again", name="plan", as_file=as_file)
            collecting.result()
            assert store.get(ref) == b"wanted again"


@pytest.mark.parametrize("size", [300, 300_000])
def test_many_writers_of_the_same_bytes_leave_one(tmp_path: Path, size: int) -> None:
    content = b"x" * size
    with ThreadPoolExecutor(8) as pool:
        refs = list(pool.map(lambda _: LocalArtifactStore(tmp_path).put(content, name="same"), range(40)))
    assert len(set(refs)) == 1
    assert len(LocalArtifactStore(tmp_path).all()) == 1
    assert LocalArtifactStore(tmp_path).get(refs[0]) == content


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("this user may not mount a small disk; the test with a file size limit runs instead")
    yield folder
    close_idle()
    subprocess.run(["umount", str(folder)], check=True)


def test_full_disk_is_reported_and_nothing_partial_is_left(tiny_disk: Path) -> None:
    store = LocalArtifactStore(tiny_disk / "artifacts")
    (tiny_disk / "room").write_bytes(bytes(50_000))
    kept = store.put(b"kept", name="plan")
    full = rf"^the disk that contains {tiny_disk}/artifacts is full while storing {{}} bytes .*Free up space on it"
    with pytest.raises(StorageFullError, match=full.format(1000000)):
        store.put(b"r" * 1_000_000, name="report")

    def fill() -> None:
        for _ in range(1_000):
            store.put(os.urandom(1_000), name="small")

    with pytest.raises(StorageFullError, match=full.format(1000)):
        fill()
    assert not list(tiny_disk.rglob(".new-*"))
    assert store.get(kept) == b"kept"
    close_idle()
    (tiny_disk / "room").unlink()
    assert store.get(store.put(b"small again", name="plan")) == b"small again"


def test_limit_on_file_sizes_is_reported_and_nothing_partial_is_left(tmp_path: Path) -> None:
    script = """
import resource, signal, sys
from pathlib import Path
from activities.artifacts.stores import LocalArtifactStore
from tightloop.errors import StorageFullError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    LocalArtifactStore(Path(sys.argv[1])).put(b"r" * 5000, name="report")
except StorageFullError as error:
    print(error.message)
"""
    command = [sys.executable, "-c", script, str(tmp_path)]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"the disk that contains {tmp_path} is full while storing 5000 bytes ('report')")
    assert LocalArtifactStore(tmp_path).all() == {}
