"""The adapter of the guide: small, and complete where it matters."""

import sys
from pathlib import Path

import pytest

from activities.executor.agent.cli import AgentExecutor
from examples.adapters.porter import PorterAdapter
from tests.support.orders import Supervision, order
from tightloop.executor.model import AgentMode, ExecutorOutcome, ExecutorStatus
from tightloop.settings import AgentSettings

PORTER = """#!{python}
import json, os, sys
if "--version" in sys.argv:
    sys.exit(print("porter 1.2.3"))
task = sys.stdin.read()
print(json.dumps({{"session": "s-1"}}), flush=True)
print("some log line")
open("task.txt", "w").write(task + " ".join(sys.argv[1:]))
{end}
"""


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.setenv("OPENAI_API_KEY", "sk-something-long-enough")
    return folder


def run(root: Path, monkeypatch: pytest.MonkeyPatch, end: str, control: Supervision | None = None) -> ExecutorOutcome:
    program = root.parent / "bin" / "porter"
    program.parent.mkdir()
    program.write_text(PORTER.format(python=sys.executable, end=end))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")
    executor = AgentExecutor(PorterAdapter(), settings=AgentSettings(), homes=root.parent / "homes", grace_s=0.5)
    work = order(root, idle_limit_s=5)
    choice = work.executor.evolve(mode=AgentMode.FULL)
    return executor.execute(work.evolve(executor=choice), control or Supervision(), root.parent / "state")


def test_it_works_and_its_version_and_session_are_recorded(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    control = Supervision()
    outcome = run(root, monkeypatch, 'print(json.dumps({"done": True, "summary": "tidied"}))', control)
    assert (outcome.status, outcome.summary) == (ExecutorStatus.COMPLETED, "tidied")
    assert (root / "task.txt").read_text() == "the plan: ordentlich aufräumen"
    assert outcome.versions["porter"] == "1.2.3"
    assert any(told.resume and told.resume.session_id == "s-1" for told in control.told)


def test_an_exit_code_of_zero_alone_is_no_success(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = run(root, monkeypatch, "sys.exit(0)")
    assert outcome.status is ExecutorStatus.FAILED
    assert "some log line" in outcome.error


def test_one_that_hangs_is_ended(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = run(root, monkeypatch, "import time; time.sleep(600)")
    assert outcome.status is ExecutorStatus.TIMED_OUT
    assert outcome.resume is not None
