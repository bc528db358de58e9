"""Whatever happens to the files in between, restoring brings the snapshot back byte by byte."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from activities.workspace.working_tree import WorkingTree, Workspaces
from tests.support.git_sample import git, make_repository, on_disk, scope_of, stored

PLAIN_NAMES = ["a", "b", "d", "d/a", "d/e", "d/e/f", "B", "caf\udce9", "d/ x"]
RULES = [".gitignore", "d/.gitignore"]
CONTENTS = [b"", b"1\n", b"1\r\n", b"2\r\n3\n", b"\0\xff", b"1\n" * 5000, b"*\n", b"a\n", b"d/\n", b"*\n!b\n", b"e\n"]
Operation = tuple[str, str, bytes]


def operations(names: list[str]) -> st.SearchStrategy[list[Operation]]:
    kinds = st.sampled_from(["write", "write", "remove", "link", "executable", "plain", "move", "nest", "stage"])
    return st.lists(st.tuples(kinds, st.sampled_from(names), st.sampled_from(CONTENTS)), max_size=8)


def apply(root: Path, operation: Operation) -> None:
    kind, name, content = operation
    path = root / name
    if kind in ("write", "link", "move", "nest"):
        make_room(root, path)
        create(root, kind, path, content)
    elif kind == "remove":
        remove(path)
    elif path.is_file() and not path.is_symlink():
        change(root, kind, path)


def create(root: Path, kind: str, path: Path, content: bytes) -> None:
    if kind == "write":
        path.write_bytes(content)
    elif kind == "link":
        path.symlink_to(["a", "/etc", "nowhere"][len(content) % 3])
    elif kind == "nest":
        make_repository(path)
        (path / "a").write_bytes(content)
    else:
        other = root / ("a" if path.name != "a" else "b")
        if other.is_file() and not other.is_symlink():
            other.rename(path)


def change(root: Path, kind: str, path: Path) -> None:
    if kind != "stage":
        path.chmod(0o755 if kind == "executable" else 0o644)
    elif all(not folder.is_symlink() and not (folder / ".git").is_dir() for folder in between(root, path)):
        git(root, "--literal-pathspecs", "add", "-f", "--", str(path.relative_to(root)))


def between(root: Path, path: Path) -> Iterator[Path]:
    return (folder for folder in path.parents if root in folder.parents)


def make_room(root: Path, path: Path) -> None:
    for folder in between(root, path):
        if folder.is_symlink() or folder.is_file():
            folder.unlink()
    remove(path)
    path.parent.mkdir(parents=True, exist_ok=True)


def remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    elif os.path.lexists(path):
        path.unlink()


@contextmanager
def held_tree() -> Iterator[WorkingTree]:
    with tempfile.TemporaryDirectory() as folder:
        root = make_repository(Path(folder) / "repo")
        with Workspaces().hold(scope_of(root)) as tree:
            yield tree


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(before=operations(PLAIN_NAMES), after=operations(PLAIN_NAMES))
def test_restore_brings_back_every_byte(before: list[Operation], after: list[Operation]) -> None:
    with held_tree() as tree:
        for operation in before:
            apply(tree.root, operation)
        expected = on_disk(tree.root)
        start = tree.snapshot()
        for operation in after:
            apply(tree.root, operation)
        tree.restore(start)
        assert on_disk(tree.root) == expected


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(before=operations(PLAIN_NAMES + 2 * RULES), after=operations(PLAIN_NAMES + 2 * RULES))
def test_restore_is_exact_for_what_is_covered_when_ignore_rules_change(
    before: list[Operation], after: list[Operation]
) -> None:
    with held_tree() as tree:
        for operation in before:
            apply(tree.root, operation)
        existed = on_disk(tree.root)
        start = tree.snapshot()
        covered = {os.fsdecode(n) for n in stored(tree.root, "ls-tree", "-rz", "--name-only", start).split(b"\0")} - {
            ""
        }
        for operation in after:
            apply(tree.root, operation)
        tree.restore(start)
        present = on_disk(tree.root)
        assert {name: present.get(name) for name in covered} == {name: existed[name] for name in covered}
        for name in present.keys() - covered:
            assert git(tree.root, "check-ignore", "--no-index", "-q", "--", f"./{name}") == b""
