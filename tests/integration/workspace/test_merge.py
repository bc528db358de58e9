"""Three-way merges of trees in a real store."""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from activities.workspace.store.entry import EMPTY_TREE, EXECUTABLE, REGULAR, Entry, TreeMerge
from activities.workspace.store.objects import TreeStore
from activities.workspace.store.writer import merge_trees
from tightloop.errors import GitError

LINES = b"one\ntwo\nthree\n"


@pytest.fixture
def store(tmp_path: Path) -> TreeStore:
    made = TreeStore(tmp_path / "store")
    made.make()
    return made


def tree(store: TreeStore, files: dict[str, bytes], mode: int = REGULAR) -> str:
    with store.adding() as sink:
        wanted: dict[bytes, Entry | None] = {
            os.fsencode(path): Entry(mode, sink.add("blob", content).hex()) for path, content in files.items()
        }
    return store.replace_paths(EMPTY_TREE, wanted)


def files(store: TreeStore, merge: TreeMerge) -> dict[str, bytes]:
    return {os.fsdecode(path): store.read(entry.id) for path, entry in store.files(merge.tree).items()}


def test_changes_in_different_places_are_both_taken(store: TreeStore) -> None:
    base = tree(store, {"a": LINES, "b": b"b\n"})
    ours = tree(store, {"a": b"ONE\ntwo\nthree\n", "b": b"b\n", "new": b"n\n"})
    theirs = tree(store, {"a": b"one\ntwo\nthree\nfour\n"})
    merge = merge_trees(store, base, ours, theirs)
    assert merge.conflicts == ()
    assert files(store, merge) == {"a": b"ONE\ntwo\nthree\nfour\n", "new": b"n\n"}


def test_change_of_one_line_by_both_is_a_conflict_with_markers_where_they_are_asked_for(store: TreeStore) -> None:
    base, ours = tree(store, {"a": LINES}), tree(store, {"a": b"one\nOURS\nthree\n"})
    theirs = tree(store, {"a": b"one\nTHEIRS\nthree\n"})
    assert merge_trees(store, base, ours, theirs) == TreeMerge(conflicts=("a",))
    marked = merge_trees(store, base, ours, theirs, markers=True)
    assert files(store, marked) == {"a": b"one\n<<<<<<< a\nOURS\n=======\nTHEIRS\n>>>>>>> a\nthree\n"}


def test_file_that_one_side_removed_and_the_other_changed_is_kept_between_markers(store: TreeStore) -> None:
    base, ours, theirs = (
        tree(store, {"a": LINES, "b": b""}),
        tree(store, {"b": b""}),
        tree(store, {"a": b"x\n", "b": b""}),
    )
    marked = merge_trees(store, base, ours, theirs, markers=True)
    assert marked.conflicts == ("a",)
    assert files(store, marked)["a"] == b"<<<<<<< removed\n=======\nx\n>>>>>>> a\n"


@pytest.mark.parametrize("content", [b"\0%d\n", b"\xff%d\n"])
def test_file_that_is_no_text_lies_beside_the_other_one(store: TreeStore, content: bytes) -> None:
    base, ours, theirs = (tree(store, {"a.bin": content % number}) for number in (1, 2, 3))
    marked = merge_trees(store, base, ours, theirs, markers=True)
    assert marked.extra_paths == ("a.bin.theirs",)
    assert files(store, marked) == {"a.bin": content % 2, "a.bin.theirs": content % 3}


def test_folder_in_place_of_a_changed_file_loses_neither(store: TreeStore) -> None:
    base = tree(store, {"d": b"d\n"})
    marked = merge_trees(store, base, tree(store, {"d/e": b"e\n"}), tree(store, {"d": b"D\n"}), markers=True)
    assert files(store, marked) == {"d/e": b"e\n", "d.theirs": b"D\n"}


def test_executable_bit_of_one_side_and_text_of_the_other_are_both_taken(store: TreeStore) -> None:
    base = tree(store, {"run": LINES})
    merge = merge_trees(store, base, tree(store, {"run": LINES}, EXECUTABLE), tree(store, {"run": b"x\n" + LINES}))
    assert store.files(merge.tree)[b"run"].mode == EXECUTABLE
    assert files(store, merge)["run"] == b"x\n" + LINES


def test_tree_that_is_not_in_the_store_is_named(store: TreeStore) -> None:
    base = tree(store, {"a": LINES})
    with pytest.raises(GitError, match="b" * 40):
        merge_trees(store, base, tree(store, {"a": b"x\n"}), "b" * 40)


contents = st.dictionaries(
    st.sampled_from(["a", "b", "d/e", "d"]),
    st.sampled_from([b"", b"1\n", b"1\n2\n3\n", b"\0", b"1\n2\nx\n"]),
    max_size=3,
).filter(lambda found: not ("d" in found and "d/e" in found))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(contents, contents, contents)
def test_nothing_that_a_side_changed_is_lost(
    store: TreeStore, before: dict[str, bytes], mine: dict[str, bytes], others: dict[str, bytes]
) -> None:
    base, ours, theirs = (tree(store, found) for found in (before, mine, others))
    marked = merge_trees(store, base, ours, theirs, markers=True)
    held = b"\n".join(files(store, marked).values())
    for side in (mine, others):
        for path, content in side.items():
            if before.get(path) != content:
                assert all(line in held for line in content.split(b"\n"))
    plain = merge_trees(store, base, ours, theirs)
    assert plain.conflicts == marked.conflicts
    assert bool(plain.tree) == (not plain.conflicts)
