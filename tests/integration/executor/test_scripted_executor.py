"""The scripted executor: what it does, and that it fails exactly as told."""

import os
import signal
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest

from activities.executor.scripted import ScriptedExecutor, try_of
from tests.support.orders import Supervision, order
from tightloop.errors import ExecutorError
from tightloop.executor.model import ExecutorOutcome, ExecutorStatus, LimitHit, Usage, WorkOrder

REPOSITORY = Path(__file__).parents[3]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "tree"
    folder.mkdir()
    return folder


def execute(work: WorkOrder, control: Supervision | None = None) -> ExecutorOutcome:
    executor = ScriptedExecutor(grace_s=0.5)
    return executor.execute(work, control or Supervision(), Path(work.root).parent / "state")


def scripted(root: Path, *steps: dict[str, Any], repeat: bool = False, **changes: Any) -> WorkOrder:
    return order(root, options={"steps": list(steps), "repeat": repeat}, **changes)


def test_files_are_written_appended_and_deleted(root: Path) -> None:
    (root / "old").mkdir()
    (root / "old" / "a.py").touch()
    (root / "gone.txt").touch()
    step = {
        "write": [{"path": "notes/{n}.md", "text": "iteration {n}\r\n"}, {"path": "empty"}],
        "append": {"path": "notes/{n}.md", "text": "and more"},
        "delete": [{"path": "old"}, {"path": "gone.txt"}, {"path": "never-there"}],
    }
    outcome = execute(scripted(root, step, repeat=True, iteration=3))
    assert outcome.status is ExecutorStatus.COMPLETED
    assert (root / "notes" / "3.md").read_bytes() == b"iteration 3\r\nand more"
    assert sorted(path.name for path in root.iterdir()) == ["empty", "notes"]
    assert outcome.summary.startswith("write notes/{n}.md; write empty; append")


def test_the_step_is_chosen_by_the_iteration(root: Path) -> None:
    steps = ({"summary": "one"}, {"summary": "two"})
    said = [execute(scripted(root, *steps, repeat=True, iteration=n)).summary for n in (1, 2, 3, 4)]
    assert said == ["one", "two", "one", "two"]
    after_the_end = execute(scripted(root, *steps, iteration=3))
    assert after_the_end.status is ExecutorStatus.NO_CHANGE
    assert "but iteration 3 needs another step" in after_the_end.summary


def test_a_program_is_run_and_its_exit_code_noted(root: Path) -> None:
    control = Supervision()
    step = {"run": ["/bin/sh", "-c", "echo {n} > made.txt; echo said; exit 7"]}
    outcome = execute(scripted(root, step), control)
    assert (outcome.status, outcome.exit_code) == (ExecutorStatus.COMPLETED, 7)
    assert (root / "made.txt").read_text() == "1\n"
    assert b"said\n" in outcome.transcript
    assert len(control.pids) == 1
    assert execute(scripted(root, {"run": ["no-such-program-here"]})).status is ExecutorStatus.FATAL


def test_the_ending_is_the_scripted_one(root: Path) -> None:
    failed = execute(scripted(root, {"status": "failed", "error": "out of luck", "summary": "tried"}))
    assert (failed.status, failed.error, failed.summary) == (ExecutorStatus.FAILED, "out of luck", "tried")
    limit = execute(scripted(root, {"status": "limit_hit", "retry_after_s": 1.5, "evidence": "429"}))
    assert limit.limit == LimitHit(retry_after=timedelta(seconds=1.5), evidence="429")
    assert execute(scripted(root, {"status": "fatal"})).status is ExecutorStatus.FATAL


def test_usage_is_reported_unknown_or_absent(root: Path) -> None:
    assert execute(scripted(root, {})).usage is None
    assert execute(scripted(root, {"usage": None})).usage is None
    assert execute(scripted(root, {"usage": {}})).usage == Usage()
    usage = execute(scripted(root, {"usage": {"input_tokens": 5, "output_tokens": 2, "cost_usd": 0.1}})).usage
    assert usage == Usage(input_tokens=5, output_tokens=2, cost_usd=0.1)


def test_a_limit_lasts_for_so_many_tries_and_leaves_no_trace(root: Path) -> None:
    step = {"write": [{"path": "a.txt"}], "limit_tries": 2, "retry_after_s": 0.1, "evidence": "429"}
    outcomes = []
    for number in (1, 2, 3):
        outcomes.append(execute(scripted(root, step, key=f"run/1/{number}")))
        assert (root / "a.txt").exists() is (number == 3)
    assert [outcome.status.value for outcome in outcomes] == ["limit_hit", "limit_hit", "completed"]
    assert outcomes[0].limit == LimitHit(retry_after=timedelta(seconds=0.1), evidence="429")
    assert outcomes[2].limit is None


def test_the_try_is_the_end_of_the_key() -> None:
    assert [try_of(key) for key in ("run/4/12", "run/4/x", "odd")] == [12, 1, 1]


@pytest.mark.parametrize("step", [{"hang": True}, {"sleep": 60}, {"run": ["sleep", "60"]}])
def test_cancel_and_wall_limit_end_it(root: Path, step: dict[str, Any]) -> None:
    begun = time.monotonic()
    assert execute(scripted(root, step), Supervision(cancel_after=3)).status is ExecutorStatus.CANCELLED
    assert execute(scripted(root, step, wall_limit_s=0.4)).status is ExecutorStatus.TIMED_OUT
    assert time.monotonic() - begun < 50


def test_a_short_sleep_goes_on(root: Path) -> None:
    begun = time.monotonic()
    assert execute(scripted(root, {"sleep": 0.2})).status is ExecutorStatus.COMPLETED
    assert 0.2 <= time.monotonic() - begun < 60


CRASHING = """
import sys
from pathlib import Path
from activities.executor.scripted import ScriptedExecutor
from tests.support.orders import Supervision, order
step = {"append": [{"path": "log.txt", "text": "x"}], "crash": True}
root = Path(sys.argv[1])
work = order(root, key=sys.argv[2], options={"steps": [step]})
print(ScriptedExecutor().execute(work, Supervision(), root.parent / "state").status.value)
"""


def crash(root: Path, key: str) -> tuple[int, str]:
    done = subprocess.run(
        (sys.executable, "-c", CRASHING, str(root), key),
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return done.returncode, done.stdout.strip()


def test_a_crash_happens_once_for_each_delivery(root: Path) -> None:
    assert crash(root, "run/1/1") == (-signal.SIGKILL, "")
    assert (root / "log.txt").read_text() == "x"
    assert crash(root, "run/1/1") == (0, "completed")
    assert crash(root, "run/1/2") == (-signal.SIGKILL, "")


def test_the_script_may_be_a_file_of_the_workspace(root: Path) -> None:
    (root / "script.yaml").write_text("steps:\n  - write: [{path: a.txt, text: hi}]\nrepeat: true\n")
    execute(order(root, options={"script": "script.yaml"}, iteration=9))
    assert (root / "a.txt").read_text() == "hi"


@pytest.mark.parametrize(
    "path", ["../out.txt", "/etc/passwd", "a/../../out.txt", "link/out.txt", ".", "", "a/..", "nul\0"]
)
@pytest.mark.parametrize("how", ["write", "append", "delete"])
def test_a_path_out_of_the_tree_is_refused_before_anything_is_done(root: Path, path: str, how: str) -> None:
    (root / "link").symlink_to(root.parent)
    step = {"write": [{"path": "first.txt"}], how: [{"path": "second.txt"}, {"path": path}]}
    with pytest.raises(ExecutorError, match="in the script"):
        execute(scripted(root, step))
    assert [entry.name for entry in root.iterdir()] == ["link"]


def test_a_link_is_deleted_itself(root: Path) -> None:
    outside = root.parent / "outside"
    outside.mkdir()
    (root / "link").symlink_to(outside)
    execute(scripted(root, {"delete": {"path": "link"}}))
    assert outside.exists()
    assert not (root / "link").is_symlink()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({}, "steps is missing"),
        ({"steps": []}, "steps: Tuple should have at least 1 item"),
        ({"steps": [{"wirte": []}]}, "unknown field 'steps.wirte'. Did you mean 'write'?"),
        ({"steps": [{"write": [{"path": "a", "txt": ""}]}]}, "unknown field 'steps.write.txt'. Did you mean 'text'?"),
        ({"steps": [{"status": "done"}]}, "steps.0.status: must be 'completed'"),
        ({"steps": [{"usage": {"tokens": 3}}]}, "unknown field 'steps.usage.tokens'"),
        ({"steps": [{}], "repaet": True}, "unknown field 'repaet'. Did you mean 'repeat'?"),
        ({"script": "no.yaml"}, "cannot read the script 'no.yaml'"),
        ({"script": "../no.yaml"}, "points outside the working tree"),
        ({"script": "bad.yaml"}, "cannot read the script 'bad.yaml'"),
        ({"script": "a.yaml", "repeat": True}, "must be a single path and the only option"),
        ({"script": 3}, "must be a single path and the only option"),
    ],
)
def test_a_wrong_script_is_refused_with_a_sentence(root: Path, options: dict[str, Any], sentence: str) -> None:
    (root / "bad.yaml").write_text("steps: [")
    with pytest.raises(ExecutorError) as caught:
        execute(order(root, options=options))
    assert sentence in caught.value.message


def test_a_disk_that_refuses_is_a_failure_not_an_exception(root: Path) -> None:
    (root / "file").touch()
    outcome = execute(scripted(root, {"write": [{"path": "file/below.txt"}]}))
    assert outcome.status is ExecutorStatus.FAILED
    assert "the script failed" in outcome.error


def test_a_stalled_program_is_ended_by_the_idle_limit_and_its_words_are_kept(root: Path) -> None:
    outcome = execute(scripted(root, {"stall": "Reconnecting... 1/5"}, idle_limit_s=3.0))
    assert outcome.status is ExecutorStatus.TIMED_OUT
    assert b"Reconnecting... 1/5" in outcome.transcript
    assert "stopped after 3 s without output" in outcome.error


def test_an_orphan_is_ended_before_it_edits_the_tree(root: Path) -> None:
    outcome = execute(scripted(root, {"orphan": {"path": "late.txt", "after_s": 60}}))
    assert outcome.status is ExecutorStatus.COMPLETED
    assert working_in(root) == []
    assert not (root / "late.txt").exists()


def working_in(root: Path) -> list[str]:
    """The command lines of the processes in a tree."""
    found = psutil.process_iter(["cwd", "cmdline", "status"])
    here = [process.info for process in found if process.info["cwd"] == str(root)]
    return [" ".join(info["cmdline"] or ()) for info in here if info["status"] != psutil.STATUS_ZOMBIE]


def test_a_process_that_works_in_a_tree_is_seen(root: Path) -> None:
    with subprocess.Popen(["sleep", "60"], cwd=root) as process:
        seen = working_in(root)
        process.kill()
    assert seen == ["sleep 60"]


def test_an_orphan_of_a_script_may_not_write_outside(root: Path) -> None:
    with pytest.raises(ExecutorError, match="points outside the working tree"):
        execute(scripted(root, {"orphan": {"path": "../late.txt"}}))
