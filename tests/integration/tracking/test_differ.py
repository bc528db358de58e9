"""Differences of trees are exact where there is time, coarse and marked where there is not."""

import os
import random
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from activities.workspace.differ import BYTES_PER_LINE, PATCH_LIMIT_BYTES, Differ
from activities.workspace.folders import store_folder_of
from activities.workspace.scope import FileChange
from activities.workspace.working_tree import WorkingTree, Workspaces
from tests.support.git_sample import git, make_repository, on_disk, scope_of, write

PATIENT = Differ(compare_bound=timedelta(seconds=30), lines_bound=timedelta(seconds=30))
HASTY = Differ(compare_bound=timedelta(microseconds=1), lines_bound=timedelta(microseconds=1))
TEXT = "\n".join(f"line {number}: the words of line {number * 7 % 13}" for number in range(400))


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[WorkingTree]:
    root = make_repository(tmp_path / "repo", {"a.txt": "1\n2\n3\n", "b.txt": "b\n", "long.py": TEXT})
    with Workspaces().hold(scope_of(root)) as held:
        yield held


def test_equal_trees_have_no_difference(tree: WorkingTree) -> None:
    start = tree.snapshot()
    found = PATIENT.compare(store_folder_of(scope_of(tree.root)), start, start)
    assert (found.files, found.files_changed, found.patch, found.approximate) == ((), 0, b"", False)


def test_files_and_lines_are_counted(tree: WorkingTree) -> None:
    start = tree.snapshot()
    write(tree.root, {"a.txt": "1\n2\nthree\n4\n", "new/n.txt": "n"})
    (tree.root / "b.txt").unlink()
    found = PATIENT.compare(store_folder_of(scope_of(tree.root)), start, tree.snapshot())
    assert found.files == (
        FileChange(path="a.txt", added=2, removed=1),
        FileChange(path="b.txt", removed=1),
        FileChange(path="new/n.txt", added=1),
    )
    assert (found.files_changed, found.lines_added, found.lines_removed, found.approximate) == (3, 3, 2, False)


def test_patch_turns_one_tree_into_the_other_by_git_apply(tree: WorkingTree) -> None:
    write(tree.root, {"crlf.txt": "a\r\nb\r\n", "space name.txt": "s\n"})
    (tree.root / "bin").write_bytes(bytes(range(256)))
    (tree.root / "link").symlink_to("a.txt")
    start = tree.snapshot()
    write(tree.root, {"a.txt": "1\nzwei\n3", "crlf.txt": "a\r\nc\n", "d/e/f": "f\n", os.fsdecode(b"caf\xe9"): "x\n"})
    (tree.root / "long.py").rename(tree.root / "moved.py")
    (tree.root / "b.txt").chmod(0o755)
    (tree.root / "bin").write_bytes(bytes(reversed(range(256))))
    (tree.root / "link").unlink()
    (tree.root / "link").symlink_to("b.txt")
    (tree.root / "space name.txt").unlink()
    wanted = on_disk(tree.root)
    end = tree.snapshot()
    found = PATIENT.compare(store_folder_of(scope_of(tree.root)), start, end)
    tree.restore(start)
    git(tree.root, "apply", "--whitespace=nowarn", stdin=found.patch)
    assert on_disk(tree.root) == wanted


def test_rename_is_one_change_without_lines(tree: WorkingTree) -> None:
    start = tree.snapshot()
    (tree.root / "long.py").rename(tree.root / "renamed.py")
    found = PATIENT.compare(store_folder_of(scope_of(tree.root)), start, tree.snapshot())
    (change,) = found.files
    assert change == FileChange(path="renamed.py", renamed_from="long.py")
    assert str(change) == "long.py => renamed.py (+0 -0)"
    assert b"rename from long.py" in found.patch


def test_binary_file_is_marked_and_has_no_lines(tree: WorkingTree) -> None:
    start = tree.snapshot()
    (tree.root / "x.bin").write_bytes(b"\0\n\n\n")
    found = PATIENT.compare(store_folder_of(scope_of(tree.root)), start, tree.snapshot())
    assert found.files == (FileChange(path="x.bin", binary=True),)
    assert found.lines_added == 0


def test_name_that_is_not_utf8_is_shown_as_escapes(tree: WorkingTree) -> None:
    start = tree.snapshot()
    write(tree.root, {os.fsdecode(b"caf\xe9\n.txt"): "x\n"})
    (change,) = PATIENT.compare(store_folder_of(scope_of(tree.root)), start, tree.snapshot()).files
    assert change.path == "caf\\xe9\n.txt"


def test_attributes_and_settings_of_the_user_do_not_change_the_difference(tree: WorkingTree) -> None:
    write(tree.root, {".gitattributes": "*.txt -diff\n*.py diff=tool\n"})
    for name, value in (("diff.noprefix", "true"), ("diff.tool.command", "false"), ("diff.tool.textconv", "false")):
        git(tree.root, "config", name, value)
    start = tree.snapshot()
    write(tree.root, {"a.txt": "1\n2\n", "long.py": TEXT + "\nmore"})
    found = PATIENT.compare(store_folder_of(scope_of(tree.root)), start, tree.snapshot())
    assert [(change.path, change.binary) for change in found.files] == [("a.txt", False), ("long.py", False)]
    assert b"--- a/a.txt\n+++ b/a.txt\n" in found.patch
    assert not found.approximate


def test_too_large_patch_holds_only_whole_files_and_says_so(tree: WorkingTree) -> None:
    start = tree.snapshot()
    noise = random.Random(1)
    big = "".join(f"{noise.random()}\n" for _ in range(80_000))
    write(tree.root, {"0.txt": "small\n", "1.txt": big, "2.txt": big[::-1]})
    found = PATIENT.compare(store_folder_of(scope_of(tree.root)), start, tree.snapshot())
    assert found.approximate
    assert found.files_changed == 3
    assert found.lines_added == 160_001 + 1
    assert len(found.patch) <= PATCH_LIMIT_BYTES
    tree.restore(start)
    git(tree.root, "apply", stdin=found.patch)
    assert (tree.root / "1.txt").read_text() == big
    assert not (tree.root / "2.txt").exists()


def test_listed_files_are_bounded_but_all_are_counted(tree: WorkingTree) -> None:
    start = tree.snapshot()
    write(tree.root, {f"many/{number}": "x\n" for number in range(2_100)})
    found = PATIENT.compare(store_folder_of(scope_of(tree.root)), start, tree.snapshot())
    assert len(found.files) == 2_000
    assert (found.files_changed, found.lines_added) == (2_100, 2_100)


def test_comparison_without_time_is_marked(tree: WorkingTree) -> None:
    start = tree.snapshot()
    write(tree.root, {"a.txt": "x\n"})
    found = HASTY.compare(store_folder_of(scope_of(tree.root)), start, tree.snapshot())
    assert found.approximate
    # Time ends while the files are listed or while they are compared.
    assert "could not list the changed files in time" in found.note or "took too long" in found.note
    assert found.patch == b""


def test_lines_count_as_rewritten_when_comparing_them_takes_too_long(tree: WorkingTree) -> None:
    noise = random.Random(1)
    alphabet = [f"{number}\n" for number in range(3_000)]
    start_text, end_text = ("".join(noise.choices(alphabet, k=1_500_000)) for _ in range(2))
    write(tree.root, {"hard.txt": start_text})
    start = tree.snapshot()
    write(tree.root, {"hard.txt": end_text})
    # Half of the bound is for the lines, which take git ten times as long; all the rest is done within the other half.
    found = Differ(compare_bound=timedelta(seconds=3)).compare(
        store_folder_of(scope_of(tree.root)), start, tree.snapshot()
    )
    (change,) = found.files
    assert change.path == "hard.txt"
    assert change.added in (1_500_000, len(end_text) // BYTES_PER_LINE)
    assert change.removed in (1_500_000, len(start_text) // BYTES_PER_LINE)
    assert (found.approximate, found.patch) == (True, b"")
    assert "comparing 1 file took too long" in found.note


def test_small_change_of_a_huge_file_keeps_its_exact_patch(tree: WorkingTree) -> None:
    write(tree.root, {"huge.txt": "the same\n" * 1_000_000})
    start = tree.snapshot()
    write(tree.root, {"huge.txt": "the same\n" * 500_000 + "another\n" + "the same\n" * 500_000})
    found = PATIENT.compare(store_folder_of(scope_of(tree.root)), start, tree.snapshot())
    assert (found.lines_added, found.lines_removed, found.approximate, found.note) == (1, 0, False, "")
    assert len(found.patch) < 1_000


def test_lines_of_a_tree_are_counted(tree: WorkingTree) -> None:
    (tree.root / "x.bin").write_bytes(b"\0\n\n\n")
    assert PATIENT.lines(store_folder_of(scope_of(tree.root)), tree.snapshot()) == 3 + 1 + 400


def test_lines_are_estimated_when_there_is_no_time(tree: WorkingTree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("activities.workspace.differ.ESTIMATE_BOUND", timedelta(seconds=30))
    size = len(TEXT) + len("1\n2\n3\n") + len("b\n")
    assert HASTY.lines(store_folder_of(scope_of(tree.root)), tree.snapshot()) in (size // BYTES_PER_LINE, 3 + 1 + 400)


def test_lines_of_a_tree_with_sha256_names_are_counted(tmp_path: Path) -> None:
    root = tmp_path / "sha256"
    root.mkdir()
    git(root, "init", "-q", "--object-format=sha256")
    write(root, {"a": "1\n2\n"})
    with Workspaces().hold(scope_of(root)) as held:
        assert PATIENT.lines(store_folder_of(scope_of(root)), held.snapshot()) == 2
