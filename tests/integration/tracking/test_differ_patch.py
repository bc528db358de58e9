"""A recorded patch of a tree leads exactly from one tree to the other, or is refused."""

import os
import subprocess
from collections.abc import Iterator
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from activities.workspace.differ import Differ
from tests.support.git_sample import git, make_repository, write
from tests.support.tree_patch import apply_patch
from tightloop.errors import ArtifactCorruptError, InvalidRequestError

PATIENT = Differ(compare_bound=timedelta(seconds=60))
PROJECT = Path(__file__).parents[3]
PAIRS = 40
Files = dict[bytes, tuple[bytes, bytes]]
"""Mode and content by path."""

FILE, PROGRAM, LINK = b"100644", b"100755", b"120000"
NAMES = st.sampled_from(
    (
        b"a",
        b"b.txt",
        b"caf\xe9",
        "\N{GRINNING FACE}".encode(),
        b"with space",
        b"\n",
        b'"',
        b"\\",
        b"\t",
        b"-x",
        b"a/b",
        b"*",
    )
)
TEXT_LINES = (
    b"one\n",
    b"two\r\n",
    b"three",
    b"\r",
    b"\0",
    b"\xff\xfe",
    "\u2028".encode(),
    "\N{GRINNING FACE}\n".encode(),
)
PATCH_LINES = (b"diff --git a/a b/a\n", b"--- a/a\n", b"+++ b/a\n", b"@@ -1 +1 @@\n", b"\\ No newline at end of file\n")
LINES = st.sampled_from((*TEXT_LINES, *PATCH_LINES, b"\n", b" \t\n"))
CONTENTS = st.lists(LINES, max_size=14).map(b"".join)
ENTRIES = st.tuples(st.sampled_from((FILE, FILE, PROGRAM)), CONTENTS) | st.tuples(
    st.just(LINK), st.sampled_from((b"a", b"../b.txt", b"caf\xe9", b"two\nlines"))
)
TREES = st.dictionaries(st.lists(NAMES, min_size=1, max_size=2).map(b"/".join), ENTRIES, max_size=6)


def without_conflicts(files: Files) -> Files:
    """Leave out files where a folder has to be."""
    return {path: entry for path, entry in files.items() if not any(other.startswith(path + b"/") for other in files)}


def plumb(root: Path, *arguments: str, index: Path, stdin: bytes = b"") -> bytes:
    environment = {**os.environ, "GIT_INDEX_FILE": str(index), "GIT_CONFIG_NOSYSTEM": "1", "LC_ALL": "C"}
    command = ["git", "-c", "core.autocrlf=false", *arguments]
    done = subprocess.run(command, cwd=root, env=environment, input=stdin, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode("utf-8", "replace")
    return done.stdout


def make_tree(root: Path, files: Files, index: Path) -> str:
    blobs = []
    for path, (mode, content) in files.items():
        blob = plumb(root, "hash-object", "-w", "--stdin", index=index, stdin=content).strip()
        blobs.append(b"%s %s\t%s\0" % (mode, blob, path))
    index.unlink(missing_ok=True)
    plumb(root, "update-index", "-z", "--index-info", index=index, stdin=b"".join(blobs))
    return plumb(root, "write-tree", index=index).decode().strip()


def tree_after(root: Path, base: str, patch: bytes, index: Path) -> str:
    """Apply by plain git, as a person would."""
    index.unlink(missing_ok=True)
    plumb(root, "read-tree", base, index=index)
    plumb(root, "apply", "--cached", "--whitespace=nowarn", "-", index=index, stdin=patch)
    return plumb(root, "write-tree", index=index).decode().strip()


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("trees") / "repo"
    return make_repository(root, {"start": "start\n"})


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(before=TREES.map(without_conflicts), after=TREES.map(without_conflicts), keep=st.booleans())
@example(before={b"a": (FILE, b"x\n")}, after={b"a/b": (FILE, b"x\n")}, keep=False)
@example(before={b"a/b": (FILE, b"x\n")}, after={b"a": (LINK, b"x")}, keep=False)
@example(before={b"a": (FILE, b"x")}, after={b"a": (LINK, b"x")}, keep=False)
@example(before={b"a": (FILE, b"x" * 50)}, after={b"\n": (PROGRAM, b"x" * 50)}, keep=False)
@example(before={b"a": (LINK, b"a")}, after={b"a/a": (LINK, b"a")}, keep=False)
@example(before={b"a": (FILE, b"")}, after={b"a": (PROGRAM, b"")}, keep=False)
def test_patch_of_any_trees_leads_to_the_new_tree(bare: Path, before: Files, after: Files, keep: bool) -> None:
    index = bare.parent / "index"
    after = without_conflicts({**before, **after}) if keep else after
    base, tree = make_tree(bare, before, index), make_tree(bare, after, index)
    found = PATIENT.compare(bare / ".git", base, tree)
    assert not found.approximate, found.note
    assert bool(found.patch) == (base != tree)
    if found.patch:
        assert apply_patch(bare / ".git", base, found.patch) == tree
        assert tree_after(bare, base, found.patch, index) == tree


def test_patch_that_git_cannot_read_back_is_left_out_and_said(bare: Path) -> None:
    """Git writes no name that it can read for an empty file in a folder whose name ends with a space."""
    index = bare.parent / "index"
    base, tree = make_tree(bare, {}, index), make_tree(bare, {b"space /empty": (FILE, b"")}, index)
    found = PATIENT.compare(bare / ".git", base, tree)
    assert [change.path for change in found.files] == ["space /empty"]
    assert (found.patch, found.approximate) == (b"", True)
    assert "did not produce the new tree" in found.note


def history() -> list[tuple[str, str]]:
    """Return pairs of trees of this project's own commits: neighbours both ways, and jumps."""
    known = subprocess.run(
        ["git", "log", "-n", "60", "--no-merges", "--format=%T"],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=False,
    )
    trees = list(dict.fromkeys(known.stdout.split()))
    steps = [
        *pairwise(trees),
        *((after, before) for before, after in pairwise(trees)),
        *zip(trees, trees[5:], strict=False),
    ]
    return steps[:120]


def test_patch_of_every_step_of_this_project_leads_to_its_tree(tmp_path: Path) -> None:
    pairs = history()
    if len(pairs) < PAIRS:
        pytest.skip(f"{PROJECT} has {len(pairs)} pairs of commits, {PAIRS} are needed: not a full clone")
    index, whole = tmp_path / "index", 0
    copy = tmp_path / "copy"
    git(tmp_path, "clone", "-q", "--no-checkout", "--shared", str(PROJECT), str(copy))
    for base, tree in pairs:
        found = PATIENT.compare(copy / ".git", base, tree)
        if not found.approximate:
            assert tree_after(copy, base, found.patch, index) == tree
            whole += 1
        else:
            assert f"of {found.files_changed}" in found.note or "cut" in found.note
    assert whole >= PAIRS


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[Path, str, str]]:
    """A repository with two trees."""
    root = make_repository(tmp_path / "repo", {"a.txt": "1\n2\n3\n", "b.bin": "b\0b"})
    base = git(root, "rev-parse", "HEAD^{tree}").decode().strip()
    write(root, {"a.txt": "1\nzwei\n3\n", "b.bin": "c\0c", "c.txt": "c\n"})
    git(root, "add", "-A")
    return root, base, git(root, "write-tree").decode().strip()


def test_patch_names_both_trees_and_is_small_text(pair: tuple[Path, str, str]) -> None:
    root, base, tree = pair
    found = PATIENT.compare(root / ".git", base, tree)
    assert (
        f"base-tree {base}\nresult-tree {tree}\nholds 3 of 3 paths\n\ndiff --git a/a.txt b/a.txt\n".encode()
        in found.patch
    )


def test_patch_holds_small_binary_files(pair: tuple[Path, str, str], tmp_path: Path) -> None:
    root, base, tree = pair
    found = PATIENT.compare(root / ".git", base, tree)
    other = tmp_path / "other"
    git(tmp_path, "clone", "-q", str(root), str(other))
    assert apply_patch(other / ".git", base, found.patch) == tree


def test_trying_a_patch_leaves_index_and_objects_of_the_user_alone(pair: tuple[Path, str, str]) -> None:
    root, base, tree = pair
    before = git(root, "count-objects", "-v"), (root / ".git/index").read_bytes(), git(root, "status", "--porcelain")
    assert PATIENT.compare(root / ".git", base, tree).patch
    assert before == (
        git(root, "count-objects", "-v"),
        (root / ".git/index").read_bytes(),
        git(root, "status", "--porcelain"),
    )


def test_patch_of_another_tree_is_refused_by_its_id(pair: tuple[Path, str, str]) -> None:
    root, base, tree = pair
    patch = PATIENT.compare(root / ".git", base, tree).patch
    with pytest.raises(InvalidRequestError, match=f"made for the tree {base}, not for {tree}"):
        apply_patch(root / ".git", tree, patch)


def test_patch_without_its_head_is_refused(pair: tuple[Path, str, str]) -> None:
    root, base, tree = pair
    patch = PATIENT.compare(root / ".git", base, tree).patch
    with pytest.raises(InvalidRequestError, match="no patch of a checkpoint"):
        apply_patch(root / ".git", base, patch[patch.index(b"diff") :])


@pytest.mark.parametrize(
    ("old", "new"), [(b"zwei", b"drei"), (b"-2\n", b"-9\n"), (b"new file mode 100644", b"garbage")]
)
def test_damaged_patch_is_refused(pair: tuple[Path, str, str], old: bytes, new: bytes) -> None:
    root, base, tree = pair
    patch = PATIENT.compare(root / ".git", base, tree).patch
    assert old in patch
    with pytest.raises(ArtifactCorruptError, match=tree):
        apply_patch(root / ".git", base, patch.replace(old, new))


def test_patch_with_a_part_of_the_files_is_refused_with_a_way_out(tmp_path: Path) -> None:
    root = make_repository(tmp_path / "repo", {"0.txt": "0\n", "1.txt": "1\n"})
    base = git(root, "rev-parse", "HEAD^{tree}").decode().strip()
    write(root, {"0.txt": "changed\n", "1.txt": "a line\n" * 400_000})
    git(root, "add", "-A")
    tree = git(root, "write-tree").decode().strip()
    found = PATIENT.compare(root / ".git", base, tree)
    assert found.note == "the patch contains 1 of 2 changed paths, because it was truncated at 2000000 bytes"
    with pytest.raises(InvalidRequestError, match=f"holds 1 of 2 changed paths only.* {tree} is kept"):
        apply_patch(root / ".git", base, found.patch)


def test_repository_settings_do_not_change_what_a_patch_does(pair: tuple[Path, str, str]) -> None:
    root, base, tree = pair
    for name, value in (
        ("apply.whitespace", "fix"),
        ("core.autocrlf", "true"),
        ("diff.context", "0"),
        ("index.version", "4"),
    ):
        git(root, "config", name, value)
    found = PATIENT.compare(root / ".git", base, tree)
    assert apply_patch(root / ".git", base, found.patch) == tree


def test_changed_submodule_is_in_the_patch(tmp_path: Path) -> None:
    root = make_repository(tmp_path / "repo", {"a": "a\n"})
    index = tmp_path / "index"
    trees = []
    for commit in ("1" * 40, "2" * 40):
        index.unlink(missing_ok=True)
        plumb(root, "update-index", "--add", "--cacheinfo", f"160000,{commit},part", index=index)
        trees.append(plumb(root, "write-tree", index=index).decode().strip())
    found = PATIENT.compare(root / ".git", trees[0], trees[1])
    assert not found.approximate, found.note
    assert apply_patch(root / ".git", trees[0], found.patch) == trees[1]
