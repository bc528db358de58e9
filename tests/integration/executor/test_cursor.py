"""Cursor's adapter against a program that prints recorded events and ends as the documentation of the real one says.

The real one was never run here.
"""

import json
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from activities.executor.agent.cli import AgentExecutor
from activities.executor.agent.cursor import CursorAdapter
from activities.executor.agent.program import agent_home
from activities.sandbox.choose import choose_agent_sandbox
from tests.support.orders import Supervision, order
from tightloop.errors import ExecutorError
from tightloop.executor.limit import LimitKind
from tightloop.executor.model import AgentMode, ErrorKind, ExecutorOutcome, ExecutorStatus, ResumeToken
from tightloop.host.identity import host_identity
from tightloop.safety.rubric import Verdict
from tightloop.settings import AgentSettings, SandboxSettings

PROGRAM = Path(__file__).parents[2] / "data" / "agents" / "cursor_agent.py"
KEY = "cursor-test-key-59d2c1"


class Bench:
    """Deliveries of one episode to the program that stands in for Cursor's agent."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "project"
        self.root.mkdir()
        self.state = folder / "state"
        self.homes = folder / "homes"
        self.control = Supervision()

    def deliver(self, scenario: str = "", *, resume: ResumeToken | None = None, **choice: Any) -> ExecutorOutcome:
        login = bool(choice.pop("login", False))
        settings = AgentSettings(program=str(PROGRAM), arguments=(f"--scenario={scenario}",), login=login)
        fence = choose_agent_sandbox(SandboxSettings(unsafe_local=True))
        executor = AgentExecutor(
            CursorAdapter(settings), settings=settings, homes=self.homes, agent_sandbox=fence, grace_s=0.5
        )
        made = order(self.root)
        chosen = made.executor.evolve(name="cursor", **choice)
        return executor.execute(made.evolve(executor=chosen, resume=resume), self.control, self.state)

    @property
    def called(self) -> dict[str, Any]:
        found = json.loads((agent_home(self.homes, "episode-1", "cursor") / "called.json").read_text(encoding="utf-8"))
        assert isinstance(found, dict)
        return found


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setenv("CURSOR_API_KEY", KEY)
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-planted-anthropic-82a4")
    return Bench(tmp_path)


def test_work_is_done_with_the_prompt_on_standard_input_and_only_its_own_key(bench: Bench) -> None:
    outcome = bench.deliver()
    assert outcome.status is ExecutorStatus.COMPLETED, outcome
    assert (bench.root / "notes.md").exists()
    assert outcome.versions["cursor"] == "2026.01.28-fd13201"
    assert bench.called["prompt"] == "the plan: ordentlich aufräumen"
    assert "plan" not in " ".join(bench.called["argv"])
    assert bench.called["environment"]["CURSOR_API_KEY"] == KEY
    assert KEY not in outcome.transcript.decode()
    assert "sk-planted-anthropic-82a4" not in json.dumps(bench.called)
    assert bench.control.told[-1].resume is not None
    assert bench.control.told[-1].resume.session_id == "c6b62c6f-7ead-4fd6-9922-e952131177ff"


def test_session_is_resumed_by_its_id(bench: Bench) -> None:
    token = ResumeToken(adapter="cursor", session_id="chat-7", host=host_identity().name)
    outcome = bench.deliver(resume=token, model="gpt-5.1")
    assert outcome.status is ExecutorStatus.COMPLETED, outcome
    assert "--resume=chat-7" in bench.called["argv"]
    assert "--model=gpt-5.1" in bench.called["argv"]


@pytest.mark.parametrize("choice", [{"mode": AgentMode.READ_ONLY}, {"permissions": Verdict.DENY}])
def test_agent_that_may_only_read_is_not_forced_and_its_refused_commands_are_listed(
    bench: Bench, choice: dict[str, Any]
) -> None:
    outcome = bench.deliver(**choice)
    assert "--force" not in bench.called["argv"]
    assert outcome.denied == ("shell: python3 hello.py",)
    assert list(bench.root.iterdir()) == []


@pytest.mark.parametrize(
    ("scenario", "status", "kind", "limit"),
    [
        ("busy", ExecutorStatus.LIMIT_HIT, ErrorKind.OVERLOADED, LimitKind.OVERLOADED),
        ("usage", ExecutorStatus.FATAL, ErrorKind.USAGE_WINDOW, LimitKind.USAGE_EXHAUSTED),
        ("login", ExecutorStatus.FATAL, ErrorKind.AUTH, LimitKind.AUTH),
        ("crash", ExecutorStatus.FAILED, ErrorKind.CRASHED, None),
    ],
)
def test_failure_is_read_from_standard_error(
    bench: Bench, scenario: str, status: ExecutorStatus, kind: ErrorKind, limit: LimitKind | None
) -> None:
    outcome = bench.deliver(scenario)
    assert (outcome.status, outcome.error_kind) == (status, kind), outcome
    assert (outcome.limit.kind if outcome.limit else None) == limit
    assert outcome.resume is not None
    assert not (bench.root / "notes.md").exists()


class After(Supervision):
    """Cancels so many seconds after the session is known."""

    def is_cancelled(self) -> bool:
        known = any(progress.resume is not None for progress in self.told)
        if known and not self.asked:
            self.asked = 1
            self._from = time.monotonic()
        return bool(self.asked) and time.monotonic() - self._from > 0.3


def test_cancel_leaves_no_process_and_no_late_edit(bench: Bench) -> None:
    bench.control = After()
    outcome = bench.deliver("hang")
    assert outcome.status is ExecutorStatus.CANCELLED, outcome
    assert not [p for p in psutil.process_iter(["cmdline"]) if "--scenario=hang" in (p.info["cmdline"] or [])]
    assert not (bench.root / "late.txt").exists()


def test_login_of_the_user_is_copied_in_place_of_a_key(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    with pytest.raises(ExecutorError, match=r"the login file .* is missing"):
        bench.deliver(login=True)
    login = tmp_path / "user" / ".cursor" / "cli-config.json"
    login.parent.mkdir(parents=True)
    login.write_text('{"authInfo": {}}', encoding="utf-8")
    assert bench.deliver(login=True).status is ExecutorStatus.COMPLETED
    home = agent_home(bench.homes, "episode-1", "cursor")
    assert (home / ".cursor" / "cli-config.json").read_text(encoding="utf-8") == '{"authInfo": {}}'
    assert "CURSOR_API_KEY" not in bench.called["environment"]


def test_what_it_cannot_do_is_refused_with_what_to_do(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ExecutorError, match="cannot ask a person"):
        bench.deliver(permissions=Verdict.ASK)
    with pytest.raises(ExecutorError, match="max_model_calls is 3"):
        bench.deliver(max_model_calls=3)
    monkeypatch.delenv("CURSOR_API_KEY")
    with pytest.raises(ExecutorError, match="does not set CURSOR_API_KEY"):
        bench.deliver()


def test_missing_program_is_told_with_how_to_get_it(tmp_path: Path) -> None:
    found = CursorAdapter(AgentSettings(program=str(tmp_path / "none"))).availability()
    assert not found.usable
    assert "https://cursor.com/cli" in found.reason
