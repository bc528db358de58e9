"""A worker that dies at any step of a call: the next one ends it as if nothing had happened, and nothing twice."""

import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from activities.coder.calls import CallRecord
from activities.coder.tools import make_tools
from tests.support.coder_tools import Bench, Notebook, bench
from tests.support.dying_calls import LASTING, die_at
from tests.support.git_sample import on_disk
from tightloop.errors import ExecutorError, SettingsError

FILES = {"a.py": "def f():\n    return 1\n", "dos.txt": "one\r\ntwo", "sub/b.txt": "b\n", "run.sh": "#!/bin/sh\n"}
CHANGES: dict[str, tuple[str, dict[str, Any]]] = {
    "edit": ("edit_file", {"path": "a.py", "old": "def f():\n", "new": "def f():\n    # first\n"}),
    "edit-dos": ("edit_file", {"path": "dos.txt", "old": "one\n", "new": "one\nand a half\n"}),
    "create": ("create_file", {"path": "new/deep/c.txt", "content": "c\n" * 10_000}),
    "overwrite": ("create_file", {"path": "a.py", "content": "x = 1\n", "overwrite": True}),
    "same": ("create_file", {"path": "sub/b.txt", "content": "b\n", "overwrite": True}),
    "delete": ("delete_file", {"path": "sub/b.txt"}),
    "miss": ("edit_file", {"path": "a.py", "old": "not there", "new": ""}),
    "read": ("read_file", {"path": "a.py"}),
}
STEPS_LIMIT = 120


def fresh(folder: Path) -> Bench:
    shutil.rmtree(folder, ignore_errors=True)
    made = bench(folder, FILES)
    (made.root / "run.sh").chmod(0o755)
    return made


def entries(made: Bench) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in made.session.glob("call-*")}


def mark_of(path: Path) -> tuple[int, int, bytes] | None:
    """What changes whenever a file is written again, even with the same bytes."""
    if not path.exists():
        return None
    return path.stat().st_ino, path.stat().st_mtime_ns, path.read_bytes()


@pytest.mark.parametrize("name", CHANGES)
def test_killed_at_any_step_it_ends_as_without_the_kill(tmp_path: Path, name: str) -> None:
    tool, arguments = CHANGES[name]
    calm = fresh(tmp_path / "calm")
    before = on_disk(calm.root)
    wanted, after = calm.use(tool, arguments), on_disk(calm.root)
    path = arguments["path"]
    effects = 0
    for step in range(1, STEPS_LIMIT):
        made = fresh(tmp_path / "killed")
        ended = die_at(step, lambda made=made: made.use(tool, arguments, turn=1))
        assert {name for name in on_disk(made.root) if ".tightloop" not in name} <= before.keys() | after.keys()
        is_made = before != after and on_disk(made.root) == after
        effect = mark_of(made.root / path)

        found = made.use(tool, arguments, turn=1)

        assert found == wanted, f"step {step}: {made.text(found)}"
        assert on_disk(made.root) == after, f"step {step}"
        assert entries(made) == entries(calm), f"step {step}"
        if is_made:
            effects += 1
            assert mark_of(made.root / path) == effect, f"step {step}: it was done a second time"
        if ended:
            break
    assert ended, "it has more steps than were tried"
    assert effects >= (2 if before != after else 0)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(st.integers(1, 25), max_size=6), name=st.sampled_from(sorted(CHANGES)))
def test_killed_again_and_again_it_ends_as_without_the_kills(tmp_path: Path, steps: list[int], name: str) -> None:
    tool, arguments = CHANGES[name]
    calm, made = fresh(tmp_path / "calm"), fresh(tmp_path / "killed")
    wanted = calm.use(tool, arguments)
    for step in steps:
        die_at(step, lambda: made.use(tool, arguments, turn=1))
    assert made.use(tool, arguments, turn=1) == wanted
    assert on_disk(made.root) == on_disk(calm.root)
    assert entries(made) == entries(calm)


def test_a_command_is_never_started_twice(tmp_path: Path) -> None:
    command = {"command": "echo started >> count.txt"}
    unknown = 0
    for step in range(1, STEPS_LIMIT):
        made = fresh(tmp_path / "killed")
        ended = die_at(step, lambda made=made: made.use("run_command", command, turn=1), LASTING)
        count = made.root / "count.txt"
        # What outlived its worker: the next holder of a tree ends it.
        time.sleep(0.1)
        found = made.use("run_command", command, turn=1)
        time.sleep(0.1)
        times = len(count.read_text().splitlines()) if count.exists() else 0
        if "outcome unknown" in made.text(found):
            assert found.failed
            assert times <= 1
            unknown += 1
        else:
            assert (times, found.failed) == (1, False), f"step {step}: {made.text(found)}"
        assert made.use("run_command", command, turn=1) == found
        if ended:
            break
    assert ended
    assert unknown > 0


def test_a_call_that_was_made_is_not_made_again(tmp_path: Path) -> None:
    made = fresh(tmp_path)
    arguments = {"path": "a.py", "old": "return 1", "new": "return 2"}
    first = made.use("edit_file", arguments, turn=1)
    (made.root / "a.py").write_text("changed by a person\n")
    assert made.use("edit_file", arguments, turn=1) == first
    assert (made.root / "a.py").read_text() == "changed by a person\n"


def test_a_file_that_is_neither_as_before_nor_as_after_is_left_alone(tmp_path: Path) -> None:
    made = fresh(tmp_path)
    arguments = {"path": "a.py", "old": "return 1", "new": "return 2"}
    step = 1
    while not any(b'"path"' in content for content in (entries(made).values() if made.session.exists() else ())):
        die_at(step, lambda: made.use("edit_file", arguments, turn=1))
        step += 1
    (made.root / "a.py").write_text("changed by a person\n")
    found = made.use("edit_file", arguments, turn=1)
    assert found.failed
    assert "outcome unknown" in made.text(found)
    assert (made.root / "a.py").read_text() == "changed by a person\n"
    assert list(made.root.glob(".tightloop*")) == []


def test_another_call_under_the_same_number_is_refused(tmp_path: Path) -> None:
    made = fresh(tmp_path)
    made.use("read_file", {"path": "a.py"}, turn=1)
    with pytest.raises(ExecutorError, match="Two conversations are using the same session"):
        made.use("read_file", {"path": "dos.txt"}, turn=1)


def test_a_damaged_entry_stops_the_call(tmp_path: Path) -> None:
    made = fresh(tmp_path)
    made.use("read_file", {"path": "a.py"}, turn=1)
    next(made.session.glob("call-*")).write_text("{")
    with pytest.raises(ExecutorError, match="is damaged"):
        made.use("read_file", {"path": "a.py"}, turn=1)


def test_the_providers_id_of_a_call_does_not_matter(tmp_path: Path) -> None:
    made = fresh(tmp_path)
    result = made.use("read_file", {"path": "a.py"}, turn=1)
    record = CallRecord.model_validate_json((made.session / "call-0001-0.json").read_bytes())
    assert record.result == result


def test_equal_results_of_equal_calls_have_equal_marks(tmp_path: Path) -> None:
    made = fresh(tmp_path)
    first, again = made.use("read_file", {"path": "a.py"}), made.use("read_file", '{ "path":"a.py" }')
    other = made.use("read_file", {"path": "a.py", "start": 2})
    assert first.mark == again.mark != other.mark


def test_a_fact_is_kept_once_however_often_its_call_is_killed(tmp_path: Path) -> None:
    made = fresh(tmp_path)
    made.memory = Notebook()
    arguments = {"key": "tests", "text": "run pytest"}
    for step in range(1, 12):
        die_at(step, lambda: made.use("remember", arguments, turn=1))
    assert not made.use("remember", arguments, turn=1).failed


def test_nothing_is_claimed_where_the_sandbox_is_set_up_wrongly(tmp_path: Path) -> None:
    made = fresh(tmp_path)

    class Refusing:
        def run(self, *_: Any, **__: Any) -> Any:
            raise SettingsError("sandbox.read names '/nowhere'")

    working, made.tools = made.tools, make_tools(Refusing())
    with pytest.raises(SettingsError):
        made.use("run_command", {"command": "echo hi"}, turn=1)
    made.tools = working
    assert "hi" in made.text(made.use("run_command", {"command": "echo hi"}, turn=1))
