"""Artifacts are stored whole or not at all, and read only with the right hash."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from activities.artifacts.local import LocalArtifactStore, open_local_store
from tightloop.artifact import ArtifactRef, reference
from tightloop.errors import ArtifactCorruptError, ArtifactMissingError, StorageFullError
from tightloop.host import state_folder

PROJECT = Path(__file__).parents[3]


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_stored_bytes_come_back_under_their_hash(tmp_path: Path) -> None:
    store = open_local_store(tmp_path)
    ref = store.put(b"\0\xffplan", name="plan", media_type="text/markdown")
    assert ref == reference(b"\0\xffplan", name="plan", media_type="text/markdown")
    assert open_local_store(tmp_path).get(ref) == b"\0\xffplan"
    assert files(state_folder(tmp_path)) == [f"artifacts/{ref.sha256[:2]}/{ref.sha256[2:]}"]
    assert files(tmp_path) == []


def test_nothing_at_all_can_be_stored(tmp_path: Path) -> None:
    store = LocalArtifactStore(tmp_path)
    assert store.get(store.put(b"", name="empty")) == b""


def test_missing_artifact_is_named(tmp_path: Path) -> None:
    with pytest.raises(ArtifactMissingError, match="'plan'"):
        LocalArtifactStore(tmp_path).get(reference(b"never stored", name="plan"))


@pytest.mark.parametrize("address", ["", "../../../../etc/passwd", "ab", "A" * 64, "a" * 64 + "\n"])
def test_address_that_is_no_hash_is_refused(tmp_path: Path, address: str) -> None:
    with pytest.raises(ArtifactMissingError, match="is not the address of an artifact"):
        LocalArtifactStore(tmp_path).get(ArtifactRef(sha256=address, size_bytes=1))


@pytest.mark.parametrize("damage", [b"", b"hel", b"hellO"])
def test_damaged_artifact_is_refused_and_healed_by_storing_again(tmp_path: Path, damage: bytes) -> None:
    store = LocalArtifactStore(tmp_path)
    ref = store.put(b"hello", name="plan")
    (tmp_path / ref.sha256[:2] / ref.sha256[2:]).write_bytes(damage)
    with pytest.raises(ArtifactCorruptError, match="is damaged"):
        store.get(ref)
    store.put(b"hello", name="plan")
    assert store.get(ref) == b"hello"


def test_many_writers_of_the_same_bytes_leave_one_file(tmp_path: Path) -> None:
    content = b"x" * 300_000
    with ThreadPoolExecutor(8) as pool:
        refs = list(pool.map(lambda _: LocalArtifactStore(tmp_path).put(content, name="same"), range(40)))
    assert len(set(refs)) == 1
    assert len(files(tmp_path)) == 1
    assert LocalArtifactStore(tmp_path).get(refs[0]) == content


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("this user may not mount a small disk; the test with a file size limit runs instead")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_full_disk_is_reported_and_nothing_partial_is_left(tiny_disk: Path) -> None:
    store = LocalArtifactStore(tiny_disk)
    kept = store.put(b"kept", name="plan")
    with pytest.raises(StorageFullError, match=rf"no room for 1000000 bytes \('report'\) in {tiny_disk}: .*Free space"):
        store.put(b"r" * 1_000_000, name="report")
    assert len(files(tiny_disk)) == 1
    assert store.get(kept) == b"kept"
    assert store.get(store.put(b"small again", name="plan")) == b"small again"


def test_limit_on_file_sizes_is_reported_and_nothing_partial_is_left(tmp_path: Path) -> None:
    script = """
import resource, signal, sys
from pathlib import Path
from activities.artifacts.local import LocalArtifactStore
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
    assert done.stdout.startswith("no room for 5000 bytes ('report')")
    assert files(tmp_path) == []
