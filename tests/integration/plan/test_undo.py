"""Steps are undone exactly: by path, by lines where others changed the same file, or not at all."""

import os
import random
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from activities.plan.attempts.trees import Trees
from activities.workspace.folders import store_folder_of
from activities.workspace.working_tree import Workspaces
from tests.support.git_sample import make_repository, on_disk, scope_of
from tests.support.plan.stage import stage
from tightloop.plan.child import StepStatus

NAMES = ["a", "b.txt", "sub/a", "sub/deep/c", "sub/deep", "ü ñ", "z\nline"]
CONTENTS = [b"", b"one\n", b"one\ntwo\nthree\n", b"no end", b"crlf\r\nlines\r\n", bytes(range(256)), b"\xff\xfe"]
LINES = "".join(f"line {number}\n" for number in range(30))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_repository(tmp_path / "repo", {"a.txt": "one\n", "long.txt": LINES})


def shell(step: str, run: str, **fields: Any) -> dict[str, Any]:
    return {"id": step, "shell": {"run": run}, **fields}


def test_step_is_taken_back_and_the_work_of_later_steps_stays(root: Path) -> None:
    plan = stage(root, shell("first", "echo 1 > first.txt; rm a.txt"), shell("second", "echo 2 > second.txt"))
    plan.check_done("first")
    plan.check_done("second")
    undone = plan.undo("first")
    assert (undone.failure, undone.files_changed) == ("", 2)
    assert not (root / "first.txt").exists()
    assert (root / "a.txt").read_text() == "one\n"
    assert (root / "second.txt").read_text() == "2\n"
    assert plan.record("first").undone


def test_lines_of_others_in_the_same_file_stay(root: Path) -> None:
    plan = stage(
        root, shell("top", "sed -i 's/line 2$/LINE 2/' long.txt"), shell("end", "sed -i 's/line 27/LINE 27/' long.txt")
    )
    plan.check_done("top")
    plan.check_done("end")
    assert plan.undo("top").failure == ""
    assert (root / "long.txt").read_text() == LINES.replace("line 27", "LINE 27")


def test_conflict_changes_nothing_and_names_the_path(root: Path) -> None:
    plan = stage(root, shell("one", "sed -i 's/line 2$/X/' long.txt"), shell("two", "sed -i 's/X/Y/' long.txt"))
    plan.check_done("one")
    plan.check_done("two")
    files, tree = on_disk(root), plan.tree
    undone = plan.undo("one")
    assert "later steps changed the same parts of long.txt" in undone.failure
    assert on_disk(root) == files
    assert undone.tree == tree
    assert not plan.record("one").undone


def test_reverse_order_takes_everything_back(root: Path) -> None:
    before = on_disk(root)
    steps = [shell(f"s{number}", f"echo {number} > a.txt; echo {number} >> all.txt") for number in range(4)]
    plan = stage(root, *steps)
    base = plan.tree
    for number in range(4):
        plan.check_done(f"s{number}")
    for number in reversed(range(4)):
        assert plan.undo(f"s{number}").failure == ""
    assert on_disk(root) == before
    assert plan.tree == base


def test_taking_back_twice_does_it_once(root: Path) -> None:
    plan = stage(root, shell("one", "echo x > x.txt", compensate={"run": "echo back >> log.txt; rm x.txt"}))
    plan.check_done("one")
    tree = plan.tree
    first = plan.undo("one")
    plan.tree = tree
    second = plan.undo("one")
    assert second.tree == first.tree
    assert (root / "log.txt").read_text() == "back\n"


def test_command_that_takes_back_knows_the_outputs_of_the_step(root: Path) -> None:
    step = shell("one", "echo made-7", outputs={"made": "stdout"}, compensate={"run": "printf %s ${one.made} > back"})
    plan = stage(root, step)
    plan.check_done("one")
    assert plan.undo("one").failure == ""
    assert (root / "back").read_text() == "made-7"


def test_failing_command_leaves_the_step_as_it_is(root: Path) -> None:
    plan = stage(root, shell("one", "echo x > x.txt", compensate={"run": "rm x.txt; exit 4"}))
    plan.check_done("one")
    undone = plan.undo("one")
    assert "the command that undoes step 'one' failed: exit code 4" in undone.failure
    assert (root / "x.txt").exists()
    assert not plan.record("one").undone


def test_step_that_needs_no_taking_back_stays(root: Path) -> None:
    plan = stage(root, shell("one", "echo x > x.txt", compensate={"none": True}))
    plan.check_done("one")
    assert plan.undo("one").failure == ""
    assert (root / "x.txt").exists()


def test_step_is_taken_back_by_another_step_each_time(root: Path) -> None:
    back = shell("back", "echo back >> log.txt", kind="compensation")
    plan = stage(
        root,
        shell("one", "echo 1 > one.txt", compensate={"step": "back"}),
        shell("two", "echo 2 > two.txt", compensate={"step": "back"}),
        back,
    )
    plan.check_done("one")
    plan.check_done("two")
    assert plan.undo("two").failure == ""
    assert plan.undo("one").failure == ""
    assert (root / "log.txt").read_text() == "back\nback\n"
    assert plan.records.find_attempt(plan.plan_id, "undo-one", 1) is not None


def test_failed_attempt_has_nothing_to_be_taken_back(root: Path) -> None:
    plan = stage(root, shell("one", "echo x > x.txt; exit 1"))
    assert plan.run("one").status is StepStatus.FAILED
    before = on_disk(root)
    plan.undo("one")
    assert on_disk(root) == before


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32))
def test_inverse_restores_any_tree_byte_for_byte_beside_later_work(seed: int) -> None:
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as name:
        root = make_repository(Path(name) / "repo", {"keep": "k\n"})
        scope = scope_of(root)
        workspaces = Workspaces()
        workspaces.prepare(scope, take_over=lambda _: False)
        with workspaces.hold(scope) as tree:
            _scramble(root, chance)
            before, first = tree.snapshot(), on_disk(root)
            _scramble(root, chance)
            after = tree.snapshot()
            (root / "later").write_bytes(b"work of a later step\n")
            undone = Trees().undo(store_folder_of(scope), before, after, tree.snapshot())
            assert not undone.conflicts
            tree.restore(undone.tree)
            assert on_disk(root) == {**first, "later": ("file", b"work of a later step\n")}


def _scramble(root: Path, chance: random.Random) -> None:
    """Put other files, links and modes into the places of NAMES."""
    for name in NAMES:
        place = root / name
        if chance.random() < 0.4:
            continue
        if place.is_symlink() or place.is_file():
            place.unlink()
        elif place.is_dir():
            shutil.rmtree(place)
        if chance.random() < 0.3:
            continue
        for folder in reversed(place.relative_to(root).parents[:-1]):
            if (root / folder).is_symlink() or (root / folder).is_file():
                (root / folder).unlink()
        place.parent.mkdir(parents=True, exist_ok=True)
        if chance.random() < 0.25:
            place.symlink_to(chance.choice(["keep", "nowhere", os.devnull]))
        else:
            place.write_bytes(chance.choice(CONTENTS))
            place.chmod(chance.choice([0o644, 0o755]))
