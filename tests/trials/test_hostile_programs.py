"""Programs that a tree brings along, under the names of others: nothing of it runs outside of a sandbox."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from activities.model.gateway.wire import Wire
from activities.sandbox.bubblewrap import BubblewrapSandbox
from tests.support.agents.install import agent_program
from tests.support.coder_programs import finish
from tests.support.coder_programs import shell as shell_call
from tests.support.episodes import Git
from tests.support.extent import ALL
from tests.support.fake_model.script import use
from tests.support.fake_model.turns import FakeCoderModel
from tests.support.hostile_programs import OWN, PROGRAMS, TRACER, plant_acting, programs_started
from tests.support.planted import FOLDERS, NAMES, ran
from tests.support.stack.stack import Stack, wait_for_port

PROJECT = Path(__file__).parents[2]
SOME = tuple(PROGRAMS) if ALL else ("codex", "codex-alone")
GREEN = f"{OWN}; git status > /dev/null; test -s made.txt"
CODER = {"TIGHTLOOP_CODER__MODELS": '["fake"]', "TIGHTLOOP_CODER__API": "chat"}
WORK = f"{OWN}; python3 -c pass; git status > /dev/null; echo made > made.txt"
PLAN = f"""
id: hostile
steps:
  - id: look
    run: "{OWN}; git log -1; test -d bin"
  - id: code
    episode:
      goal: code it
      executor: coder
      planner: heuristic
      worktree: true
      definition_of_done: ["{OWN}; test -s coded.txt"]
"""


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    if shutil.which("strace") is None:
        pytest.skip("strace is needed to see every program that is started: apt install strace")
    if problem := BubblewrapSandbox().probe():
        pytest.skip(problem)
    assert len(NAMES) >= 60
    return tmp_path / "ran"


@pytest.mark.timeout(400)
@pytest.mark.parametrize("agent", SOME)
def test_an_agent_runs_programs_of_the_tree_in_the_sandbox_only(
    agent: str, workspace: Path, marker: Path, tmp_path: Path
) -> None:
    agent_program(PROGRAMS[agent][0])
    plant_acting(workspace, marker)
    trace = tmp_path / "trace"
    done = subprocess.run(
        (*TRACER, str(trace), sys.executable, "-m", "tests.support.hostile_programs", agent, str(tmp_path)),
        cwd=PROJECT, env={**os.environ, "TIGHTLOOP_HOME": str(tmp_path / "state")},
        capture_output=True, text=True, check=False, timeout=380,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3_000:]
    fences = {"codex": "bubblewrap+own", "codex-alone": "own"}
    assert done.stdout == f"completed {fences.get(agent, 'bubblewrap')} \n", done.stdout
    assert (workspace / "made.txt").read_text() == "made\n"
    assert ran(marker) == ""
    own = str(workspace / FOLDERS[0] / OWN)
    assert own in programs_started(trace), "the tracer did not see the program that the model started"


@pytest.mark.skipif(not ALL, reason="TIGHTLOOP_TEST_ALL=1 lets the gate for tests judge in such a tree")
@pytest.mark.timeout(300)
def test_the_gate_for_tests_runs_programs_of_the_tree_in_the_sandbox_only(marker: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    module = (sys.executable, "-m", "tests.support.hostile_programs", "gate", str(tmp_path), str(marker))
    done = subprocess.run(
        (*TRACER, str(trace), *module),
        cwd=PROJECT, env={**os.environ, "TIGHTLOOP_HOME": str(tmp_path / "state")},
        capture_output=True, text=True, check=False, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3_000:]
    assert "AcceptedTest(test='tests/test_shop.py::test_price'" in done.stdout, done.stdout
    assert ran(marker) == ""
    own = [program for program in programs_started(trace) if program.startswith(str(tmp_path / "judged"))]
    assert own, "the tracer saw no program of the tree"


class Traced:
    """An installation whose worker and commands run under a tracer, in the folder of a tree."""

    def __init__(self, stack: Stack, folder: Path) -> None:
        self.stack, self.folder = stack, folder
        self.traces = [folder / "trace-worker"]

    def command(self, *arguments: str, cwd: Path, fails: bool = False) -> str:
        """Run a command of tightloop in this folder, and return what it printed."""
        trace = self.folder / f"trace-{len(self.traces)}"
        self.traces.append(trace)
        done = subprocess.run(
            (*TRACER, str(trace), sys.executable, "-m", "tightloop.cli.main", *arguments),
            cwd=cwd, env=self.stack.environment, capture_output=True, text=True, check=False, timeout=240,
        )  # fmt: skip
        assert fails or done.returncode == 0, (arguments, done.stdout, done.stderr)
        return done.stdout

    def finish(self, run_id: str, cwd: Path, seconds: float = 500.0) -> dict[str, Any]:
        """Wait for the end of a run and return its status; a person accepts what is asked about so many programs."""
        until = time.monotonic() + seconds
        while True:
            found: dict[str, Any] = json.loads(self.command("status", run_id, "--json", cwd=cwd))
            if found["status"] in ("succeeded", "completed", "failed", "cancelled"):
                return found
            assert time.monotonic() < until, found
            for question in found["questions"]:
                names = [option["name"] for option in question["options"]]
                chosen = next((name for name in ("accept", "allow") if name in names), names[0])
                # The question may be gone by now.
                self.command("answer", run_id, chosen, "--question", question["id"], cwd=cwd, fails=True)
            time.sleep(1)

    @property
    def started(self) -> list[str]:
        return [program for trace in self.traces for program in programs_started(trace)]


@pytest.fixture
def coder_model() -> Iterator[FakeCoderModel]:
    steps = ((shell_call(f"{OWN}; git status; python3 -c pass; echo coded > coded.txt"),), finish("coded"))
    with FakeCoderModel(*(use(*calls) for calls in steps)) as model:
        yield model


@pytest.fixture
def traced(tmp_path: Path, marker: Path) -> Iterator[Callable[[dict[str, str]], Traced]]:
    stacks: list[Stack] = []

    def start(environment: dict[str, str]) -> Traced:
        # The tracer is a grandchild: the worker itself is the process that is killed in the end.
        within = (TRACER[0], "-D", *TRACER[1:], str(tmp_path / "trace-worker"))
        changes = {"TIGHTLOOP_SANDBOX__UNSAFE_LOCAL": "false", **environment}
        stack = Stack(tmp_path / "stack", changes, within=within).__enter__()
        stacks.append(stack)
        stack.start_server()
        wait_for_port(stack.settings.temporal.address)
        stack.start_worker()
        return Traced(stack, tmp_path)

    yield start
    for stack in stacks:
        stack.__exit__()


@pytest.mark.timeout(900)
def test_nothing_of_a_tree_runs_outside_from_the_first_snapshot_to_the_last_command(
    traced: Callable[[dict[str, str]], Traced],
    coder_model: FakeCoderModel,
    workspace: Path,
    marker: Path,
    tmp_path: Path,
    git: Git,
) -> None:
    """The executor writes the programs during its first delivery; its second one and all that follows finds them."""
    planted = tmp_path / "planted"
    plant_acting(planted, marker)
    product = traced(CODER | {"TIGHTLOOP_CODER__BASE_URL": coder_model.base_url(Wire.CHAT)})
    write = f"if test -d bin; then {WORK}; else cp -R {planted}/. . && echo done > first.txt; fi"
    options = {"argv": ["/bin/sh", "-c", write], "read": [str(planted)]}
    request = {
        "goal": "make it",
        "workspace": str(workspace),
        "definition_of_done": [GREEN],
        "planner": "heuristic",
        "executor": {"name": "command", "options": options},
        "budget": {"max_iterations": 6},
    }
    file = tmp_path / "request.yaml"
    file.write_text(json.dumps(request))
    product.command("start", "--file", str(file), "--id", "first", "--json", cwd=workspace)
    # It was proven in a fresh checkout, where the checks are green.
    found = product.finish("first", workspace)
    assert found["status"] == "succeeded", json.dumps(found)
    product.command("diff", "first", "ckpt-1", "ckpt-2", cwd=workspace)
    product.command("proof", "first", "--output", str(tmp_path / "proof.json"), cwd=workspace, fails=True)
    git(workspace, "add", "--all", "--force")
    git(workspace, "commit", "--quiet", "-m", "all of it")
    verify = ("verify", str(tmp_path / "proof.json"), "--repo", str(workspace), "--unsigned", "--accepted", "--run")
    product.command(*verify, cwd=workspace)
    product.command("doctor", cwd=workspace, fails=True)
    assert ran(marker) == ""
    if ALL:
        file.write_text(PLAN)
        product.command("plan", "run", str(file), "--workspace", str(workspace), "--id", "second", cwd=workspace)
        found = product.finish("second", workspace)
        assert found["status"] == "completed", json.dumps(found)
        assert (workspace / "coded.txt").exists()
    product.stack.kill_worker()
    assert ran(marker) == ""
    inside = {Path(program).name for program in product.started if program.startswith(str(workspace))}
    assert {OWN, "git", "python3"} <= inside, "the tracer did not see the programs that the checks started"
