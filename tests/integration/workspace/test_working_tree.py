"""Snapshots and restores of real working trees are exact, and the user's git state is not touched."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from activities.workspace.folders import store_folder_of
from activities.workspace.working_tree import WorkingTree, Workspaces
from tests.support.git_sample import git, make_repository, on_disk, scope_of, stored, user_state, write
from tightloop.errors import GitError, WorkspaceError
from tightloop.host import state_folder


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_repository(tmp_path / "repo", {"a.txt": "one\n", "src/b.py": "x = 1\n"})


@pytest.fixture
def tree(root: Path) -> Iterator[WorkingTree]:
    with Workspaces().hold(scope_of(root)) as held:
        yield held


def assert_restores(tree: WorkingTree, change: Callable[[], object]) -> None:
    """Snapshot, change the files, restore, and compare byte by byte."""
    before = on_disk(tree.root)
    start = tree.snapshot()
    change()
    assert on_disk(tree.root) != before
    tree.restore(start)
    assert on_disk(tree.root) == before
    assert tree.snapshot() == start


def test_snapshot_and_restore_leave_index_head_status_and_settings_alone(root: Path, tree: WorkingTree) -> None:
    Workspaces().prepare(scope_of(root), take_over=lambda _: False)
    write(root, {"staged.txt": "s\n", "a.txt": "changed\n", "new.txt": "n\n"})
    git(root, "add", "staged.txt")
    before = user_state(root)

    start = tree.snapshot()
    tree.keep("1", start)
    write(root, {"a.txt": "changed again\n", "other.txt": "o\n"})
    tree.restore(start)

    assert user_state(root) == before


def test_uncommitted_work_of_a_dirty_repository_comes_back(root: Path, tree: WorkingTree) -> None:
    write(root, {"a.txt": "dirty\n", "untracked/c": "c\n"})
    (root / "src/b.py").unlink()

    def change() -> None:
        write(root, {"a.txt": "worse\n", "src/b.py": "back\n"})
        shutil.rmtree(root / "untracked")

    assert_restores(tree, change)


def test_repository_without_commit_is_restored(tmp_path: Path) -> None:
    root = make_repository(tmp_path / "fresh")
    with Workspaces().hold(scope_of(root)) as tree:
        empty = tree.snapshot()
        write(root, {"a": "a\n"})
        assert_restores(tree, lambda: write(root, {"a": "b\n", "c": "c\n"}))
        tree.restore(empty)
        assert on_disk(root) == {}


def test_kept_trees_can_be_compared_by_the_user(root: Path, tree: WorkingTree) -> None:
    tree.keep("1", tree.snapshot())
    write(root, {"a.txt": "two\n"})
    tree.keep("2", tree.snapshot())
    shown = stored(root, "diff", "refs/tightloop/ep-1/1", "refs/tightloop/ep-1/2")
    assert b"-one\n+two\n" in shown


def test_kept_trees_survive_the_loss_of_the_workspace(root: Path) -> None:
    """A clone at the same path has none of the objects that the lost repository had."""
    write(root, {"new.txt": "not committed\n", "a.txt": "two\n"})
    with Workspaces().hold(scope_of(root)) as held:
        kept, before = held.snapshot(), on_disk(root)
        held.keep("1", kept)
    shutil.rmtree(root)
    make_repository(root, {"other.txt": "cloned again\n"})
    Workspaces().prepare(scope_of(root), take_over=lambda _: True)
    with Workspaces().hold(scope_of(root)) as held:
        held.restore(kept)
    assert on_disk(root) == before


def test_kept_trees_survive_garbage_collection(root: Path, tree: WorkingTree) -> None:
    write(root, {"only-in-snapshot": "precious\n"})
    start = tree.snapshot()
    tree.keep("1", start)
    (root / "only-in-snapshot").unlink()
    tree.snapshot()
    git(root, "gc", "-q", "--prune=now")
    tree.restore(start)
    assert (root / "only-in-snapshot").read_text() == "precious\n"


def test_snapshot_after_garbage_collection_of_its_objects_is_complete(root: Path, tree: WorkingTree) -> None:
    write(root, {"never-committed": "bytes\n"})
    start = tree.snapshot()
    git(root, "gc", "-q", "--prune=now")
    write(root, {"another": "1\n"})
    tree.snapshot()
    (root / "another").unlink()
    assert tree.snapshot() == start
    assert stored(root, "cat-file", "-p", f"{start}:never-committed") == b"bytes\n"


def test_damaged_private_index_is_made_anew(root: Path, tree: WorkingTree) -> None:
    start = tree.snapshot()
    (index,) = (state_folder(root) / "trees/states").iterdir()
    index.write_bytes(index.read_bytes()[:-7] + b"torn by a power loss")
    assert tree.snapshot() == start


def test_locks_of_a_killed_process_do_not_block(root: Path) -> None:
    with Workspaces().hold(scope_of(root)) as tree:
        start = tree.snapshot()
    write(store_folder_of(scope_of(root)), {"refs/tightloop/ep-1/1.lock": ""})
    write(root, {".git/index.lock": ""})
    with Workspaces().hold(scope_of(root)) as tree:
        assert tree.snapshot() == start
        tree.keep("1", start)


def test_submodule_with_changed_content_is_restored(tmp_path: Path, root: Path, tree: WorkingTree) -> None:
    library = make_repository(tmp_path / "library", {"lib.c": "int x;\n", "deep/inner.c": "int y;\n"})
    git(root, "submodule", "add", "-q", str(library), "vendor/lib")
    git(root, "commit", "-q", "-m", "submodule")
    head = git(root / "vendor/lib", "rev-parse", "HEAD")
    write(root, {"vendor/lib/lib.c": "int changed;\n", "vendor/lib/added.c": "\n"})

    def change() -> None:
        write(root, {"vendor/lib/lib.c": "int broken;\n", "vendor/lib/more.c": "\n"})
        shutil.rmtree(root / "vendor/lib/deep")

    assert_restores(tree, change)
    assert git(root / "vendor/lib", "rev-parse", "HEAD") == head


def test_files_of_a_submodule_in_an_ignored_folder_are_covered(tmp_path: Path, root: Path, tree: WorkingTree) -> None:
    library = make_repository(tmp_path / "library", {"lib.c": "int x;\n"})
    git(root, "submodule", "add", "-q", str(library), "vendor/lib")
    write(root, {".gitignore": "vendor/\n"})
    assert_restores(tree, lambda: write(root, {"vendor/lib/lib.c": "broken\n"}))


def test_nested_repositories_without_commit_are_covered_as_files(root: Path, tree: WorkingTree) -> None:
    make_repository(root / "nested")
    make_repository(root / "nested/deeper")
    make_repository(root / "empty")
    write(root, {"nested/x": "x\n", "nested/deeper/y": "y\n"})

    def change() -> None:
        write(root, {"nested/x": "z\n", "nested/new": "n\n", "empty/now-full": "f\n"})
        (root / "nested/deeper/y").unlink()

    assert_restores(tree, change)
    assert (root / "nested/.git/HEAD").exists()
    assert not (root / "nested/.tightloop-seed").exists()


def test_repository_that_the_executor_made_is_undone_but_its_history_stays(root: Path, tree: WorkingTree) -> None:
    def change() -> None:
        make_repository(root / "made", {"m": "m\n"})

    assert_restores(tree, change)
    assert (root / "made/.git/HEAD").exists()


def test_file_of_200_mb_is_restored(root: Path, tree: WorkingTree) -> None:
    big = root / "model.bin"
    with big.open("wb") as file:
        file.write(os.urandom(100_000))
        file.truncate(200_000_000)
    start = tree.snapshot()
    with big.open("r+b") as file:
        file.seek(150_000_000)
        file.write(b"edited")
    tree.restore(start)
    assert big.stat().st_size == 200_000_000
    with big.open("rb") as file:
        file.seek(150_000_000)
        assert file.read(6) == bytes(6)


def test_link_out_of_the_tree_is_restored_and_its_target_not_touched(
    tmp_path: Path, root: Path, tree: WorkingTree
) -> None:
    outside = tmp_path / "outside"
    write(outside, {"keep.txt": "keep\n"})
    (root / "to-folder").symlink_to(outside)
    (root / "to-file").symlink_to(outside / "keep.txt")
    (root / "dangling").symlink_to("nowhere")

    def change() -> None:
        (root / "to-file").unlink()
        (root / "to-folder").unlink()
        write(root, {"to-file": "file\n", "to-folder/keep.txt": "inside\n"})

    assert_restores(tree, change)
    assert on_disk(outside) == {"keep.txt": ("file", b"keep\n")}


def test_folder_that_became_a_link_is_restored_without_writing_through_it(
    tmp_path: Path, root: Path, tree: WorkingTree
) -> None:
    outside = tmp_path / "outside"
    write(outside, {"b.py": "outside\n"})

    def change() -> None:
        shutil.rmtree(root / "src")
        (root / "src").symlink_to(outside)

    assert_restores(tree, change)
    assert on_disk(outside) == {"b.py": ("file", b"outside\n")}


def test_hard_link_to_a_file_outside_is_not_written_through(tmp_path: Path, root: Path, tree: WorkingTree) -> None:
    shared = tmp_path / "shared"
    shared.write_text("shared\n")
    start = tree.snapshot()
    (root / "a.txt").unlink()
    os.link(shared, root / "a.txt")
    tree.restore(start)
    assert (root / "a.txt").read_text() == "one\n"
    assert shared.read_text() == "shared\n"


@pytest.mark.parametrize(
    "name",
    [b"caf\xe9", b"\xff\xfe", b"new\nline", b"tab\there", b'quo"te', b"-dash", b":(glob)*", b"back\\slash", b"a b"],
)
def test_unusual_names_are_restored(root: Path, tree: WorkingTree, name: bytes) -> None:
    path = root / os.fsdecode(name)
    path.write_bytes(b"1\n")
    assert_restores(tree, path.unlink)


def test_line_ends_survive_automatic_conversion(root: Path, tree: WorkingTree) -> None:
    git(root, "config", "core.autocrlf", "true")
    git(root, "config", "core.safecrlf", "true")
    write(root, {".gitattributes": "* text=auto eol=lf\n*.w text working-tree-encoding=UTF-16\n*.id ident\n"})
    write(
        root,
        {"crlf.txt": "a\r\nb\r\n", "mixed.txt": "a\r\nb\n\r", "lf.txt": "a\n", "x.w": "odd", "v.id": "$Id$ $Id: 7$\n"},
    )
    assert_restores(tree, lambda: write(root, dict.fromkeys(("crlf.txt", "mixed.txt", "lf.txt", "x.w", "v.id"), "-\n")))


def test_content_filters_are_not_applied(root: Path, tree: WorkingTree) -> None:
    git(root, "config", "filter.lfs.clean", "echo pointer; cat > /dev/null")
    git(root, "config", "filter.lfs.smudge", "echo smudged; cat > /dev/null")
    git(root, "config", "filter.lfs.required", "true")
    write(root, {".gitattributes": "*.bin filter=lfs diff=lfs merge=lfs -text\n", "m.bin": "heavy\n"})
    assert_restores(tree, lambda: write(root, {"m.bin": "other\n"}))
    assert stored(root, "cat-file", "-p", f"{tree.snapshot()}:m.bin") == b"heavy\n"


def test_hooks_of_the_user_do_not_run(root: Path, tree: WorkingTree) -> None:
    for name in ("reference-transaction", "post-checkout", "post-index-change"):
        hook = root / ".git/hooks" / name
        hook.parent.mkdir(exist_ok=True)
        hook.write_text(f"#!/bin/sh\ntouch {root}/ran-{name}\n")
        hook.chmod(0o755)
    start = tree.snapshot()
    tree.keep("1", start)
    write(root, {"a.txt": "x\n"})
    tree.restore(start)
    assert not list(root.glob("ran-*"))


def test_executable_bit_is_restored(root: Path, tree: WorkingTree) -> None:
    (root / "a.txt").chmod(0o755)

    def change() -> None:
        (root / "a.txt").chmod(0o644)
        (root / "src/b.py").chmod(0o755)

    assert_restores(tree, change)


def test_file_folder_and_link_that_swapped_places_are_restored(root: Path, tree: WorkingTree) -> None:
    write(root, {"file": "f\n", "folder/inner/x": "x\n"})
    (root / "link").symlink_to("file")

    def change() -> None:
        for name in ("file", "link"):
            (root / name).unlink()
        shutil.rmtree(root / "folder")
        write(root, {"file/now/a/folder": "1\n", "link/x": "2\n", "folder": "3\n"})

    assert_restores(tree, change)


def test_same_size_and_time_do_not_hide_a_change(root: Path, tree: WorkingTree) -> None:
    path = root / "a.txt"
    times = (path.stat().st_atime_ns, path.stat().st_mtime_ns)

    def change() -> None:
        path.write_bytes(b"two\n")
        os.utime(path, ns=times)

    assert_restores(tree, change)


def test_ignored_files_are_left_alone(root: Path, tree: WorkingTree) -> None:
    write(root, {".gitignore": "*.log\nbuild/\n", "x.log": "1\n", "build/o": "1\n"})
    start = tree.snapshot()
    write(root, {"x.log": "2\n", "build/o": "2\n", "a.txt": "2\n"})
    tree.restore(start)
    assert (root / "x.log").read_text() == "2\n"
    assert (root / "build/o").read_text() == "2\n"
    assert (root / "a.txt").read_text() == "one\n"


def test_own_excludes_and_global_excludes_of_the_user_count(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "home", {".gitconfig": "[core]\n\texcludesFile = ~/my ignores\n", "my ignores": "*.swp\n"})
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    write(root, {".git/info/exclude": "*.mine", "a.swp": "s\n", "b.mine": "m\n"})
    Workspaces().prepare(scope_of(root), take_over=lambda _: False)
    with Workspaces().hold(scope_of(root)) as tree:
        covered = stored(root, "ls-tree", "-r", "--name-only", tree.snapshot())
    assert covered == b"a.txt\nsrc/b.py\n"


def test_ignored_file_that_is_tracked_is_covered(root: Path, tree: WorkingTree) -> None:
    write(root, {".gitignore": "*.log\nout/\n", "kept.log": "1\n", "out/kept": "1\n", "other.log": "1\n"})
    git(root, "add", "-f", "kept.log", "out/kept")
    assert_restores(tree, lambda: write(root, {"kept.log": "2\n", "out/kept": "2\n"}))
    assert b"other.log" not in stored(root, "ls-tree", "-r", "--name-only", tree.snapshot())


def test_tracked_file_behind_a_link_is_not_followed(tmp_path: Path, root: Path, tree: WorkingTree) -> None:
    write(tmp_path / "outside", {"b.py": "outside\n"})
    shutil.rmtree(root / "src")
    (root / "src").symlink_to(tmp_path / "outside")
    covered = stored(root, "ls-tree", "-r", tree.snapshot())
    assert b"120000 blob" in covered
    assert b"src/b.py" not in covered


def test_rule_that_came_later_does_not_leave_new_files_behind(root: Path, tree: WorkingTree) -> None:
    def change() -> None:
        write(root, {".gitignore": "cache/\n", "cache/x": "x\n", "a.txt": "2\n"})

    assert_restores(tree, change)
    drifts = stored(root, "for-each-ref", "--format=%(refname)", "refs/tightloop/ep-1").decode().split()
    assert any(b"cache/x" in stored(root, "ls-tree", "-r", "--name-only", drift) for drift in drifts)


def test_uncovered_secret_survives_the_loss_of_the_rule_that_ignores_it(root: Path, tree: WorkingTree) -> None:
    write(root, {".gitignore": ".env\n", ".env": "KEY=1\n", "sub/.gitignore": "local\n", "sub/local": "l\n"})
    start = tree.snapshot()
    (root / ".gitignore").unlink()
    (root / "sub/.gitignore").unlink()
    tree.snapshot()
    tree.restore(start)
    assert (root / ".gitignore").read_text() == ".env\n"
    assert (root / ".env").read_text() == "KEY=1\n"
    assert (root / "sub/local").read_text() == "l\n"
    assert tree.snapshot() == start


def test_ensure_says_nothing_when_the_expected_tree_is_there(tree: WorkingTree) -> None:
    assert tree.ensure(tree.snapshot()) is None


def test_ensure_saves_what_it_found_and_undoes_it(root: Path, tree: WorkingTree) -> None:
    start = tree.snapshot()
    write(root, {"a.txt": "by hand\n", "drifted": "d\n"})
    drifted = on_disk(root)

    found = tree.ensure(start)

    assert found is not None
    assert (root / "a.txt").read_text() == "one\n"
    assert stored(root, "rev-parse", f"refs/tightloop/ep-1/drift-{found.tree[:12]}").decode().strip() == found.tree
    assert found.paths == ("a.txt", "drifted")
    tree.restore(found.tree)
    assert on_disk(root) == drifted


def test_unknown_tree_is_refused_and_nothing_changes(root: Path, tree: WorkingTree) -> None:
    write(root, {"a.txt": "mine\n"})
    with pytest.raises(WorkspaceError, match="does not contain the tree 1234"):
        tree.restore("1234" * 10)
    assert (root / "a.txt").read_text() == "mine\n"


def test_tree_that_cannot_be_written_is_reported_with_its_paths(root: Path, tree: WorkingTree) -> None:
    start = tree.snapshot()
    shutil.rmtree(root / "src")
    blob = stored(root, "rev-parse", f"{start}:src/b.py").decode().strip()
    (store_folder_of(scope_of(root)) / "objects" / blob[:2] / blob[2:]).unlink()
    with pytest.raises(GitError, match=r"src/b\.py"):
        tree.restore(start)


def test_linked_worktree_of_the_user_is_a_workspace(tmp_path: Path, root: Path) -> None:
    linked = tmp_path / "linked"
    git(root, "worktree", "add", "-q", "--detach", str(linked))
    workspaces = Workspaces()
    workspaces.prepare(scope_of(linked), take_over=lambda _: False)
    before = user_state(linked)
    with workspaces.hold(scope_of(linked)) as tree:
        assert_restores(tree, lambda: write(linked, {"a.txt": "2\n", "n": "n\n"}))
        tree.keep("1", tree.snapshot())
    assert user_state(linked) == before
    assert stored(linked, "ls-tree", "--name-only", "refs/tightloop/ep-1/1") == b"a.txt\nsrc\n"


def test_repository_with_sha256_names_is_restored(tmp_path: Path) -> None:
    root = tmp_path / "sha256"
    root.mkdir()
    git(root, "init", "-q", "--object-format=sha256")
    write(root, {"a": "1\n"})
    with Workspaces().hold(scope_of(root)) as tree:
        assert len(tree.snapshot()) == 40
        assert_restores(tree, lambda: write(root, {"a": "2\n"}))


def test_sparse_checkout_is_restored(root: Path, tree: WorkingTree) -> None:
    git(root, "sparse-checkout", "set", "--no-cone", "/a.txt")
    assert not (root / "src").exists()
    assert_restores(tree, lambda: write(root, {"a.txt": "2\n", "src/b.py": "3\n"}))


def test_workspace_named_by_a_link_works(tmp_path: Path, root: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(root)
    write(root, {".gitignore": "*.log\n", "t.log": "1\n"})
    git(root, "add", "-f", "t.log")
    with Workspaces().hold(scope_of(link)) as tree:
        assert_restores(tree, lambda: write(root, {"a.txt": "2\n", "t.log": "2\n"}))


def test_git_variables_of_the_worker_do_not_mislead(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch, tree: WorkingTree
) -> None:
    other = make_repository(tmp_path / "other", {"o": "o\n"})
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(other / ".git/index"))
    start = tree.snapshot()
    monkeypatch.undo()
    assert stored(root, "ls-tree", "-r", "--name-only", start) == b"a.txt\nsrc/b.py\n"
