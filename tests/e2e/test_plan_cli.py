"""A plan from the shell, with real processes: one shell runs it, a second one answers."""

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.support.stack.stack import Stack, shared_state, wait_for_port
from tightloop.cli.main import app

WAIT_S = 150
PLAN = """\
id: fix-add
title: Fix add and release it
inputs: {version: "1.0"}
steps:
  - {id: fix, kind: implement, edit: {files: [{path: calc.py, search: a - b, replace: a + b}]}}
  - id: release
    needs: [fix]
    gate:
      checks: [{command: "grep -q 'a + b' calc.py"}]
      approval:
        question: "Release ${plan.version}?"
        options: [{name: ship, pros: [now], to: [note]}, {name: hold}]
  - {id: note, shell: {run: "printf %s ${plan.version} > VERSION"}}
definition_of_done: ["grep -q 'a + b' calc.py"]
"""
FAILING = """\
id: failing
steps:
  - {id: build, shell: {run: "test -f go.txt"}, access: reads}
  - {id: after, needs: [build], shell: {run: "echo after"}, access: none}
"""
ASKING = """\
id: asking
steps:
  - {id: ask, gate: {approval: {question: "Go on?"}}}
  - {id: note, needs: [ask], shell: {run: "echo on > note.txt"}}
"""


class Shell:
    """What a person types, in one folder, against one stack."""

    def __init__(self, stack: Stack, folder: Path) -> None:
        self.stack = stack
        self.folder = folder

    def start(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            (sys.executable, "-m", "tightloop.cli.main", *words),
            cwd=self.folder,
            env=self.stack.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *words: str) -> tuple[int, str, str]:
        process = self.start(*words)
        try:
            out, err = process.communicate(timeout=WAIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            raise AssertionError(f"{words} did not end in {WAIT_S} s: {out}{err}") from None
        return process.returncode, out, err

    def until(self, plan_id: str, holds: Callable[[dict[str, object]], object]) -> dict[str, object]:
        deadline = time.monotonic() + WAIT_S
        while True:
            words = ("status", plan_id, "--json")
            done = CliRunner().invoke(app, words, env=self.stack.environment)
            status = json.loads(done.stdout) if done.exit_code == 0 else {}
            if status and holds(status):
                return dict(status)
            assert time.monotonic() < deadline, f"it never came: {status} {done.stderr}"
            time.sleep(0.1)

    def until_told(self, words: tuple[str, ...], text: str) -> None:
        """Ask until the answer holds this text: what Temporal lists comes a little later than what a plan knows."""
        deadline = time.monotonic() + WAIT_S
        while text not in (told := self.run(*words)[1]):
            assert time.monotonic() < deadline, told


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with Stack(tmp_path_factory.mktemp("stack"), shared_state()) as made:
        made.start_server()
        wait_for_port(made.settings.temporal.address)
        made.start_worker()
        yield made


@pytest.fixture
def shell(stack: Stack, tmp_path: Path) -> Shell:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "calc.py").write_text("def add(a, b):\n    return a - b\n")
    (folder / "plan.yaml").write_text(PLAN)
    (folder / "failing.yaml").write_text(FAILING)
    (folder / "asking.yaml").write_text(ASKING)
    git = ("git", "-c", "user.name=t", "-c", "user.email=t@t")
    for words in (("init", "-q"), ("add", "-A"), ("commit", "-q", "-m", "first")):
        subprocess.run((*git, *words), cwd=folder, check=True)
    return Shell(stack, folder)


def test_a_plan_runs_in_one_shell_and_is_approved_from_another(shell: Shell, tmp_path: Path) -> None:
    first = shell.start("plan", "run", "plan.yaml", "--set", "version=1.1", "--id", "two-shells", "--wait")
    shell.until("two-shells", lambda status: status["questions"])

    shell.until_told(("list",), "running (gate)")
    code, _, err = shell.run("approve", "two-shells")
    assert (code, "Options: ship, hold" in err) == (2, True)
    code, _, err = shell.run("approve", "two-shells", "relase", "--option", "ship")
    assert (code, "Open questions: q1 (release)" in err) == (2, True)
    code, out, _ = shell.run("approve", "two-shells", "--option", "ship", "--by", "ada", "--rationale", "looked at it")
    assert (code, out) == (0, "release: ship\n")
    out, err = first.communicate(timeout=WAIT_S)

    assert first.returncode == 0, err
    assert "release is waiting for a person: Release 1.1?" in out
    assert re.search(r"  tightloop answer two-shells ship   # .*for: now", out)
    assert "COMPLETED: all steps are done" in out
    assert (shell.folder / "VERSION").read_text() == "1.1"
    assert "a + b" in (shell.folder / "calc.py").read_text()
    _keeps_everything(shell, tmp_path)


def _keeps_everything(shell: Shell, tmp_path: Path) -> None:
    assert "class s1 completed" in shell.run("plan", "graph", "two-shells")[1]
    shown = shell.run("plan", "show", "two-shells", "--step", "release")[1]
    assert "answer: ship by ada looked at it" in shown
    code, out, _ = shell.run("export", "two-shells", "--report")
    assert code == 0
    assert out.startswith("# Fix add and release it: completed")
    assert "release: ship by ada. looked at it" in out
    report = tmp_path / "report.md"
    assert shell.run("export", "two-shells", "--report", "--out", str(report))[:2] == (0, f"wrote {report}\n")
    assert report.read_text() == out
    assert shell.run("export", "two-shells", "--report", "--out", str(report))[0] == 2

    folder = tmp_path / "export"
    code, out, err = shell.run("export", "two-shells", "--out", str(folder))
    assert (code, err) == (0, "")
    records = [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]
    assert {record["step"] for record in records} == {"fix", "release", "note"}
    patch = next(record["artifacts"]["patch"]["sha256"] for record in records if record["step"] == "fix")
    assert "+    return a + b" in (folder / "artifacts" / patch).read_text()
    assert json.loads((folder / "revision-1.json").read_text())["inputs"] == {"version": "1.1"}
    assert json.loads((folder / "history.json").read_text())["events"]
    assert shell.run("export", "two-shells", "--out", str(folder))[0] == 2


def test_a_dry_run_shows_diffs_and_changes_nothing(shell: Shell) -> None:
    code, out, err = shell.run("plan", "run", "plan.yaml", "--dry-run")
    assert code == 0, err
    assert "-    return a - b\n+    return a + b" in out
    assert "Release 1.0?" in out
    assert "a - b" in (shell.folder / "calc.py").read_text()
    assert not (shell.folder / "VERSION").exists()


def test_a_failure_is_answered_and_the_plan_runs_again_without_doing_it_twice(shell: Shell) -> None:
    assert shell.run("plan", "run", "failing.yaml", "--id", "fails", "--detach")[0] == 0
    shell.until("fails", lambda status: [one["step"] for one in status["questions"]] == ["build"])
    code, _, err = shell.run("plan", "run-step", "fails", "after")
    assert (code, "blocked by a failed step" in err) == (2, True)

    changed = shell.folder.parent / "changed.yaml"
    changed.write_text(FAILING.replace("test -f go.txt", "true"))
    code, out, _ = shell.run("plan", "replan", "fails", str(changed), "--rationale", "the file is not needed")
    assert (code, out.startswith("revision 2 is now active")) == (0, True)
    shell.until("fails", lambda status: status["status"] == "completed")
    assert "not needed" in shell.run("timeline", "fails")[1]

    code, _, err = shell.run("plan", "run", "failing.yaml", "--id", "fails")
    assert (code, "--again fails" in err) == (2, True)
    code, out, err = shell.run("plan", "run", "--again", "fails")
    # It has no definition of done, so nothing is proven.
    assert code == 4, err
    assert out.count("(reused)") == 2, out


def test_a_cancelled_plan_fails_the_shell_that_follows_it(shell: Shell) -> None:
    follower = shell.start("plan", "run", "failing.yaml", "--id", "dropped", "--wait")
    shell.until("dropped", lambda status: status["questions"])
    code, out, _ = shell.run("cancel", "dropped", "--reason", "no need")
    assert (code, out) == (0, "dropped is cancelled: no need\n")
    out, _ = follower.communicate(timeout=WAIT_S)
    assert follower.returncode == 1
    assert "CANCELLED: no need" in out
    code, _, err = shell.run("approve", "dropped")
    assert (code, "tightloop plan run --again dropped" in err) == (2, True)


def test_a_file_that_somebody_writes_meanwhile_is_asked_about_undone_and_brought_back(shell: Shell) -> None:
    follower = shell.start("plan", "run", "asking.yaml", "--id", "watched", "--wait")
    shell.until("watched", lambda status: status["questions"])
    (shell.folder / "mine.txt").write_text("mine")
    assert shell.run("approve", "watched")[0] == 0
    shell.until("watched", lambda status: [one["kind"] for one in status["questions"]] == ["drift"])
    assert (shell.folder / "mine.txt").exists()
    code, _, err = shell.run("answer", "watched", "undo")
    assert code == 0, err
    out, _ = follower.communicate(timeout=WAIT_S)
    assert follower.returncode == 4
    assert "somebody else changed 1 file: mine.txt. Keep or undo the change?" in out
    assert "changes made outside a pause were undone (1 file: mine.txt" in out
    assert not (shell.folder / "mine.txt").exists()
    found = re.search(r"restore the changes: (.+)", out)
    assert found is not None, out
    subprocess.run(found[1], shell=True, check=True, timeout=60)
    assert (shell.folder / "mine.txt").read_text() == "mine"


def test_a_command_of_episodes_that_is_given_a_plan_says_so(shell: Shell) -> None:
    assert shell.run("plan", "run", "plan.yaml", "--id", "a-plan", "--dry-run", "--detach")[0] == 0
    code, _, err = shell.run("checkpoints", "a-plan")
    assert code == 2
    assert "a-plan is a plan, not an episode. To see its status, run: tightloop status a-plan" in err
