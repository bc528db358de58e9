"""The folders in which proofs run: what is in them, and that they go."""

import filecmp
import os
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Iterable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from activities.proof.checkouts import REMOVAL, LocalCheckouts
from activities.proof.difference import Difference
from activities.proof.port import LockedTrees, TreeFile, UntrackedChanges
from activities.workspace.scope import EpisodeScope
from activities.workspace.working_tree import Workspaces
from tests.support.git_sample import make_repository

REMOVED_WITHIN_S = 30
LARGE = 40_000_000


class OneTree(LockedTrees):
    """A tree in memory, whose contents are their own ids."""

    def __init__(self) -> None:
        """Hold nothing: a checkout is told its files, and asks for contents only."""

    def read(self, blobs: Iterable[str], most_bytes: int | None = None) -> dict[str, bytes]:
        """Return contents by id."""
        del most_bytes
        return {blob: os.fsencode(blob) for blob in blobs}

    def pieces(self, blob: str) -> Iterator[bytes]:
        """Yield the content of a file."""
        yield os.fsencode(blob)


@pytest.fixture
def proofs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder that holds the folders of proofs."""
    monkeypatch.setenv("TIGHTLOOP_HOME", str(tmp_path / "home"))
    (tmp_path / "project").mkdir()
    with LocalCheckouts().proof_folder(tmp_path / "project"):
        (found,) = (tmp_path / "home").rglob("proofs")
    wait_for_removals()
    return found


def wait_for_removals() -> None:
    """Wait until nothing is being removed any more."""
    for thread in threading.enumerate():
        if thread.name == REMOVAL:
            thread.join(REMOVED_WITHIN_S)
            assert not thread.is_alive()


def test_checkout_has_bytes_modes_and_links_of_the_tree_and_no_caches(proofs: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    big = "x" * 3_000_000
    files = {
        "run.sh": TreeFile(0o100755, "echo"),
        "a/b/c/deep.txt": TreeFile(0o100644, big),
        "a/empty": TreeFile(0o100644, ""),
        "a/na\udce9me": TreeFile(0o100644, "odd"),
        "out": TreeFile(0o120000, str(outside)),
        "pkg/__pycache__/m.pyc": TreeFile(0o100644, "planted"),
    }
    files |= {f"many/{number}": TreeFile(0o100644, str(number)) for number in range(450)}
    (tmp_path / "project" / "out").mkdir()
    (tmp_path / "project" / "out" / "ignored").write_text("beside")
    with LocalCheckouts().proof_folder(tmp_path / "project") as room:
        view = room.checkout(OneTree(), files, UntrackedChanges(unchanged=("out/ignored",)))
        here = view.content
        assert here is not None
        found = {str((Path(above) / name).relative_to(here)) for above, _, names in os.walk(here) for name in names}
        assert found == files.keys() - {"out", "pkg/__pycache__/m.pyc"} | {"out/ignored"}
        assert (here / "a/b/c/deep.txt").read_text() == big
        assert (here / "run.sh").stat().st_mode & 0o777 == 0o755
        assert (here / "a/empty").stat().st_mode & 0o777 == 0o644
        assert (here / "a/empty").read_bytes() == b""
        # What lay beside the tree was not written through its link.
        assert not list(outside.iterdir())


def test_closed_room_is_removed_also_where_a_check_took_its_rights_away(proofs: Path, tmp_path: Path) -> None:
    bench = LocalCheckouts()
    for _ in range(12):
        with bench.proof_folder(tmp_path / "project") as room:
            content = room.checkout(OneTree(), {"kept/file": TreeFile(0o100644, "x")}, UntrackedChanges()).content
            assert content is not None
            (content / "kept").chmod(0o500)
            content.chmod(0o500)
    wait_for_removals()
    assert not list(proofs.iterdir())


def test_proof_with_a_large_file_never_has_it_in_memory(proofs: Path, tmp_path: Path) -> None:
    assert proofs.is_dir()
    root = make_repository(tmp_path / "large", {"a.py": "x = 1\n"})
    scope = EpisodeScope(episode_id="ep-large", workspace=str(root))
    workspaces = Workspaces(lock_wait=timedelta(seconds=10))
    workspaces.prepare(scope, take_over=lambda _episode: True)
    with workspaces.hold(scope) as tree, LocalCheckouts().proof_folder(root) as room:
        begun = tree.snapshot()
        with (root / "large.py").open("wb") as large:
            large.writelines(os.urandom(LARGE // 40) for _ in range(40))
        trees, delivered = LockedTrees(tree), tree.snapshot()
        tracemalloc.start()
        try:
            change = Difference(trees, begun, delivered, "add it", ["true"])
            assert change.suspicious() == ()
            view = room.checkout(trees, change.after, UntrackedChanges())
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert view.content is not None
        assert filecmp.cmp(view.content / "large.py", root / "large.py", shallow=False)
    assert most < LARGE / 4


def test_process_that_ends_right_after_a_proof_leaves_no_checkout(proofs: Path, tmp_path: Path) -> None:
    program = (
        "import sys, pathlib\n"
        "from activities.proof.checkouts import LocalCheckouts\n"
        "with LocalCheckouts().proof_folder(pathlib.Path(sys.argv[1])) as room:\n"
        "    for number in range(2_000):\n"
        "        (room._observers / str(number)).touch()\n"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True, timeout=60)
    assert not list(proofs.iterdir())


def test_checkout_of_a_killed_worker_is_removed_with_the_next_proof(proofs: Path, tmp_path: Path) -> None:
    program = (
        "import os, sys, signal, pathlib\n"
        "from activities.proof.checkouts import LocalCheckouts\n"
        "with LocalCheckouts().proof_folder(pathlib.Path(sys.argv[1])):\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=False, timeout=60)
    assert len(list(proofs.iterdir())) == 1
    with LocalCheckouts().proof_folder(tmp_path / "project"):
        assert len(list(proofs.iterdir())) == 1
    wait_for_removals()
    assert not list(proofs.iterdir())
