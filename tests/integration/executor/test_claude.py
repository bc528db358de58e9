"""The real Claude Code against a fake model: done, limited, refused, cancelled, killed and resumed."""

import json
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest

from activities.executor.agent.acp.agents import AGENTS
from activities.executor.agent.acp.executor import AcpExecutor
from activities.executor.agent.record import run_folder
from activities.model.gateway.server import serve_gateway
from activities.model.gateway.wire import Gateways, Wire
from activities.sandbox.choose import choose_agent_sandbox
from tests.support.agents.install import agent_program
from tests.support.fake_model import FakeModel, Fault, say, shell, write
from tests.support.orders import Supervision, order
from tightloop.errors import ExecutorError
from tightloop.executor.limit import LimitKind, LimitSource
from tightloop.executor.model import (
    AgentMode,
    ErrorKind,
    ExecutorOutcome,
    ExecutorStatus,
    ResumeToken,
    WorkOrder,
)
from tightloop.host.identity import host_identity
from tightloop.safety.rubric import Verdict
from tightloop.settings import AgentSettings, SandboxSettings

KEY_VARIABLE = "CLAUDE_TEST_KEY"
KEY = "sk-test-4f9a1c77e0b24d0f"
PLANTED = {
    "OPENAI_API_KEY": "sk-planted-openai-71f3",
    "ANTHROPIC_API_KEY": "sk-planted-anthropic-82a4",
    "AWS_SECRET_ACCESS_KEY": "planted-aws-93b5",
    "TEMPORAL_API_KEY": "planted-temporal-a4c6",
}


class Bench:
    """One working tree, one home, one state folder; deliveries of one episode."""

    def __init__(self, folder: Path, program: Path) -> None:
        self.root = folder / "project"
        self.root.mkdir()
        self.state = folder / "state"
        self.homes = folder / "homes"
        self.control = Supervision()
        self.gateways: Gateways | None = None
        self._program = program

    def executor(self, model: FakeModel, **settings: Any) -> AcpExecutor:
        chosen: dict[str, Any] = {"api_key_env": KEY_VARIABLE, **settings}
        agent = AgentSettings(program=str(self._program), base_url=model.base_url(Wire.MESSAGES), **chosen)
        fence = choose_agent_sandbox(SandboxSettings(unsafe_local=True))
        return AcpExecutor(
            AGENTS["claude"],
            settings=agent,
            homes=self.homes,
            gateways=self.gateways,
            agent_sandbox=fence,
            grace_s=1.0,
        )

    def order(
        self, *, key: str = "run/1/1", resume: ResumeToken | None = None, prompt: str = "", **choice: Any
    ) -> WorkOrder:
        made = order(self.root, key=key)
        executor = made.executor.evolve(name="claude", **choice)
        return made.evolve(executor=executor, resume=resume, prompt=prompt or made.prompt)

    def deliver(self, model: FakeModel, **order: Any) -> ExecutorOutcome:
        settings = order.pop("settings", {})
        return self.executor(model, **settings).execute(self.order(**order), self.control, self.state)

    def events(self, key: str = "run/1/1") -> list[dict[str, Any]]:
        text = (run_folder(self.state, key) / "events.jsonl").read_text(encoding="utf-8")
        return [json.loads(line) for line in text.splitlines()]

    def session(self) -> str:
        files = self.homes.glob("*/*/.claude/projects/*/*.jsonl")
        return "".join(file.read_text(encoding="utf-8", errors="replace") for file in files)

    def survivors(self) -> list[psutil.Process]:
        """Return the processes that have one of our runs to do with."""
        found = []
        for process in psutil.process_iter():
            try:
                if str(self.root) in f"{process.cwd()} {' '.join(process.cmdline())}":
                    found.append(process)
            except psutil.Error:
                continue
        return found


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    for name, value in {**PLANTED, KEY_VARIABLE: KEY}.items():
        monkeypatch.setenv(name, value)
    return Bench(tmp_path, agent_program("claude-agent-acp"))


def conversation(body: Mapping[str, Any]) -> str:
    return json.dumps(body["messages"])


def sessions(events: list[dict[str, Any]]) -> set[str]:
    return {event["session_id"] for event in events if event["kind"] == "session"}


def texts_under(*folders: Path) -> Iterator[tuple[Path, str]]:
    for folder in folders:
        for path in folder.rglob("*"):
            if path.is_file():
                yield path, path.read_text(encoding="utf-8", errors="replace")


def test_work_is_done_behind_the_fence_and_no_key_is_seen_by_its_shell_or_kept(bench: Bench) -> None:
    long = "one line of the plan\n" * 15_000
    look = "env > env.txt; tr '\\0' ' ' < /proc/$PPID/cmdline > argv.txt; exit 3"
    with FakeModel(shell(look), write("notes.md", "# Notes\n"), say("All done.")) as model:
        outcome = bench.deliver(model, prompt=f"{long}END OF THE PLAN")
        assert model.requests, outcome
        body = model.requests[0].body
        key = model.requests[0].headers["x-api-key"]
    assert outcome.status is ExecutorStatus.COMPLETED, outcome
    assert outcome.summary == "All done. [1 of its tool calls failed]"
    assert (bench.root / "notes.md").read_text(encoding="utf-8") == "# Notes\n"
    assert outcome.usage is not None
    assert outcome.usage.output_tokens == 300
    assert outcome.versions["claude"].count(".") == 2
    assert bench.control.told[-1].resume is not None
    assert key == KEY
    assert "END OF THE PLAN" in conversation(body)
    assert len(conversation(body)) > 300_000
    environment = (bench.root / "env.txt").read_text(encoding="utf-8")
    assert "HOME=" in environment
    assert "line of the plan" not in (bench.root / "argv.txt").read_text(encoding="utf-8")
    kept = [("transcript", outcome.transcript.decode()), *texts_under(bench.root, bench.state, bench.homes)]
    for place, text in kept:
        for secret in (KEY, *PLANTED.values()):
            assert secret not in text, f"{secret} in {place}"
    assert not bench.survivors()


def test_behind_the_gateway_even_the_process_of_claude_holds_no_key(bench: Bench) -> None:
    bench.gateways = serve_gateway
    look = "tr '\\0' '\\n' < /proc/$PPID/environ > parent.txt"
    with FakeModel(shell(look), say("done")) as model:
        outcome = bench.deliver(model)
        keys = {request.headers["x-api-key"] for request in model.requests}
    assert outcome.status is ExecutorStatus.COMPLETED, outcome
    assert keys == {KEY}
    seen = (bench.root / "parent.txt").read_text(encoding="utf-8")
    assert "ANTHROPIC_API_KEY=" in seen
    assert KEY not in seen
    assert outcome.usage is not None
    assert outcome.usage.output_tokens == 200
    with FakeModel(say("done"), fault=Fault.rate_limited(retry_after_s=3600)) as model:
        limited = bench.deliver(model, key="run/1/2")
        assert model.calls == 1
    assert limited.status is ExecutorStatus.LIMIT_HIT, limited
    assert limited.limit is not None
    assert limited.limit.retry_after is not None
    assert timedelta(seconds=3500) < limited.limit.retry_after <= timedelta(seconds=3601)


def test_rate_limit_ends_the_delivery_and_the_next_one_goes_on_in_the_same_session(bench: Bench) -> None:
    with FakeModel(say("done"), fault=Fault.rate_limited(retry_after_s=1)) as model:
        limited = bench.deliver(model, prompt="the first words")
        assert model.calls <= 4
    assert limited.status is ExecutorStatus.LIMIT_HIT, limited
    assert limited.limit is not None
    assert limited.limit.kind == LimitKind.RATE_LIMITED
    assert limited.error_kind is ErrorKind.RATE
    assert limited.resume is not None
    with FakeModel(say("done")) as model:
        outcome = bench.deliver(model, key="run/1/2", resume=limited.resume)
        assert "the first words" in conversation(model.requests[0].body)
    assert outcome.status is ExecutorStatus.COMPLETED


def test_used_up_window_of_a_login_is_told_with_its_typed_reset(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    token = "sk-ant-oat01-5d0e8b86f3a1"
    monkeypatch.setenv("CLAUDE_CODE_OAUTH_TOKEN", token)
    with FakeModel(say("done"), fault=Fault.usage_limit(resets_in_s=7200)) as model:
        outcome = bench.deliver(model, settings={"login": True})
        assert model.requests[0].headers["authorization"] == f"Bearer {token}"
    assert outcome.status is ExecutorStatus.LIMIT_HIT, outcome
    assert outcome.limit is not None
    assert outcome.limit.kind == LimitKind.USAGE_EXHAUSTED
    assert outcome.limit.source == LimitSource.TYPED
    assert outcome.limit.retry_after is not None
    assert timedelta(seconds=7100) < outcome.limit.retry_after <= timedelta(seconds=7201)
    assert token not in outcome.transcript.decode()


def test_login_is_copied_and_one_that_is_not_there_is_named(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    monkeypatch.delenv("CLAUDE_CODE_OAUTH_TOKEN", raising=False)
    credentials = tmp_path / "user" / ".claude" / ".credentials.json"
    with FakeModel(say("done")) as model:
        with pytest.raises(ExecutorError, match=r"the login file .* is missing"):
            bench.deliver(model, settings={"login": True})
        credentials.parent.mkdir(parents=True)
        login = {"accessToken": "sk-ant-oat01-copied", "refreshToken": "r", "expiresAt": 4_000_000_000_000}
        credentials.write_text(json.dumps({"claudeAiOauth": {**login, "scopes": ["user:inference"]}}), encoding="utf-8")
        outcome = bench.deliver(model, settings={"login": True})
        assert model.requests[0].headers["authorization"] == "Bearer sk-ant-oat01-copied"
    assert outcome.status is ExecutorStatus.COMPLETED, outcome


def test_key_that_is_refused_is_fatal(bench: Bench) -> None:
    with FakeModel(say("done"), fault=Fault.unauthorized()) as model:
        outcome = bench.deliver(model)
    assert (outcome.status, outcome.error_kind) == (ExecutorStatus.FATAL, ErrorKind.AUTH), outcome
    assert "rejected the key or login" in outcome.error


@pytest.mark.parametrize("choice", [{"mode": AgentMode.READ_ONLY}, {"permissions": Verdict.DENY}])
def test_what_it_may_not_do_is_not_done_and_listed(bench: Bench, choice: dict[str, Any]) -> None:
    with FakeModel(shell("touch made.txt"), write("other.txt", "x"), say("I made both files.")) as model:
        outcome = bench.deliver(model, **choice)
    assert outcome.status is ExecutorStatus.REFUSED, outcome
    assert outcome.denied[0] == "touch made.txt"
    assert len(outcome.denied) == 2
    assert list(bench.root.iterdir()) == []


@pytest.mark.parametrize("login", [False, True])
def test_settings_and_hooks_of_the_repository_have_no_say(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, login: bool
) -> None:
    monkeypatch.setenv("CLAUDE_CODE_OAUTH_TOKEN", "sk-ant-oat01-5d0e8b86f3a1")
    folder = bench.root / ".claude"
    folder.mkdir()
    hook = {"matcher": "*", "hooks": [{"type": "command", "command": "touch hooked.txt"}]}
    rules = {
        "permissions": {"allow": ["Bash", "Edit"], "defaultMode": "bypassPermissions"},
        "hooks": {"PreToolUse": [hook], "SessionStart": [hook]},
    }
    for name in ("settings.json", "settings.local.json"):
        (folder / name).write_text(json.dumps(rules), encoding="utf-8")
    (bench.root / "CLAUDE.md").write_text("words of the repository", encoding="utf-8")
    with FakeModel(shell("touch made.txt"), say("done")) as model:
        outcome = bench.deliver(model, permissions=Verdict.DENY, settings={"login": login})
        assert "words of the repository" not in json.dumps(model.requests[0].body)
    assert outcome.denied == ("touch made.txt",)
    assert sorted(path.name for path in bench.root.iterdir()) == [".claude", "CLAUDE.md"]


class Until(Supervision):
    """Lets a test act once something has come about: from then on `cancelled` is what `act` returns."""

    def __init__(self, ready: Callable[[], bool], act: Callable[[list[int]], bool]) -> None:
        super().__init__()
        self._ready = ready
        self._act = act
        self._acted: bool | None = None

    def is_cancelled(self) -> bool:
        if self._acted is None and self._ready():
            self._acted = self._act(self.pids)
        return bool(self._acted)


def kill_hard(pids: list[int]) -> bool:
    """Kill the agent and what it started, as a crash of the host's memory would."""
    for pid in pids:
        try:
            family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
        except psutil.NoSuchProcess:
            continue
        for process in family:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)
    return False


def test_cancel_in_the_middle_of_a_command_leaves_no_process_and_no_late_edit(bench: Bench) -> None:
    command = "touch started; sleep 300; echo late > late.txt"
    bench.control = Until((bench.root / "started").exists, lambda _: True)
    with FakeModel(shell(command), say("done")) as model:
        outcome = bench.deliver(model)
    assert outcome.status is ExecutorStatus.CANCELLED, outcome
    assert outcome.resume is not None
    assert not bench.survivors()
    assert not (bench.root / "late.txt").exists()


def test_killed_agent_is_resumed_with_its_session_and_its_conversation(bench: Bench) -> None:
    # Claude saves its session a tenth of a second late: what is younger is lost with it.
    bench.control = Until(lambda: "sleep 300" in bench.session(), kill_hard)
    with FakeModel(shell("echo one"), shell("sleep 300"), say("done")) as model:
        killed = bench.deliver(model, prompt="words before the crash")
    assert killed.status is ExecutorStatus.FAILED, killed
    assert killed.resume is not None
    assert not bench.survivors()
    bench.control = Supervision()
    with FakeModel(say("gone on")) as model:
        outcome = bench.deliver(model, key="run/1/2", resume=killed.resume)
        asked = conversation(model.requests[0].body)
    assert outcome.status is ExecutorStatus.COMPLETED, outcome
    assert "words before the crash" in asked
    assert "echo one" in asked
    assert sessions(bench.events("run/1/2")) == {killed.resume.session_id}


def test_session_of_an_attempt_that_died_is_found_without_a_token(bench: Bench) -> None:
    # With a tool in between: Claude saves its session late, and a very short one may be lost with it.
    with FakeModel(shell("sleep 0.5"), say("done")) as model:
        assert bench.deliver(model, prompt="words of the first attempt").status is ExecutorStatus.COMPLETED
        # As if the worker had died just before it kept the outcome.
        (run_folder(bench.state, "run/1/1") / "outcome.json").unlink()
        found = bench.executor(model).reconcile(bench.order(), bench.state)
    assert found is not None
    assert found.status is ExecutorStatus.OUTCOME_UNKNOWN
    with FakeModel(say("done")) as model:
        assert bench.deliver(model, resume=found.resume).status is ExecutorStatus.COMPLETED
        assert "words of the first attempt" in conversation(model.requests[0].body)
    with FakeModel(say("done")) as model:
        assert bench.deliver(model, key="run/2/1").status is ExecutorStatus.COMPLETED
        assert "words of the first attempt" not in conversation(model.requests[0].body)


def test_lost_session_begins_again_and_the_summary_says_so(bench: Bench) -> None:
    token = ResumeToken(adapter="claude", session_id="99999999-2222-4333-8444-555555555555", host=host_identity().name)
    with FakeModel(shell("echo hi > a.txt"), say("done")) as model:
        outcome = bench.deliver(model, resume=token)
    assert outcome.status is ExecutorStatus.COMPLETED, outcome
    assert "cannot resume the earlier session, so a new session is started" in outcome.summary
    assert (bench.root / "a.txt").exists()


def test_provider_that_never_answers_ends_with_the_idle_limit(bench: Bench) -> None:
    with FakeModel(say("done"), fault=Fault.hang()) as model:
        outcome = bench.deliver(model, idle_limit_s=2.0)
    assert (outcome.status, outcome.error_kind) == (ExecutorStatus.TIMED_OUT, ErrorKind.TIMEOUT), outcome
    assert not bench.survivors()


@pytest.mark.parametrize(
    "bound", [{"max_model_calls": 3}, {"options": {"max_turns": 3}}, {"options": {"max_budget_usd": 0.01}}]
)
def test_agent_that_runs_in_circles_is_ended_by_its_bounds(bench: Bench, bound: dict[str, Any]) -> None:
    with FakeModel(fault=Fault.endless_tools("echo again")) as model:
        outcome = bench.deliver(model, **bound)
        assert 1 <= model.calls <= 3
    assert (outcome.status, outcome.error_kind) == (ExecutorStatus.FAILED, ErrorKind.BUDGET), outcome
    assert "Reached maximum" in outcome.error


def test_wrong_option_is_refused_with_what_to_do(bench: Bench) -> None:
    with FakeModel(say("done")) as model:
        with pytest.raises(ExecutorError, match=r"has no option 'max_turn'\. Did you mean 'max_turns'"):
            bench.deliver(model, options={"max_turn": 3})
        assert model.calls == 0


def test_unknown_model_is_fatal(bench: Bench) -> None:
    with FakeModel(say("done"), fault=Fault.unknown_model()) as model:
        outcome = bench.deliver(model)
    assert (outcome.status, outcome.error_kind) == (ExecutorStatus.FATAL, ErrorKind.CONFIG), outcome
    assert "Choose a different model" in outcome.error


def test_cost_is_reported_where_no_gateway_counts_tokens(bench: Bench) -> None:
    with FakeModel(say("done")) as model:
        outcome = bench.deliver(model)
    assert outcome.usage is not None
    assert outcome.usage.cost_usd is not None
    assert outcome.usage.cost_usd > 0
