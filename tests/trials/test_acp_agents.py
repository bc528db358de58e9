"""Real agents over the Agent Client Protocol, against the fake model, through the gateway and behind a fence."""

import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil
import pytest

from activities.executor.agent.acp.agents import AGENTS
from activities.executor.agent.acp.executor import AcpExecutor
from activities.model.gateway.server import serve_gateway
from activities.model.gateway.wire import Wire
from activities.sandbox.choose import choose_agent_sandbox
from activities.sandbox.port import AgentSandbox, SandboxUnavailableError
from tests.support.agents.install import agent_program
from tests.support.extent import ALL
from tests.support.fake_model import FakeModel, Fault, say, shell, write
from tests.support.orders import Supervision, order
from tightloop.executor.model import (
    AgentMode,
    ErrorKind,
    ExecutorOutcome,
    ExecutorStatus,
    Grant,
    ResumeToken,
)
from tightloop.safety.rubric import Verdict
from tightloop.settings import AgentSettings, SandboxSettings

PROGRAMS = {"opencode": "opencode", "gemini": "gemini", "claude": "claude-agent-acp", "copilot": "copilot"}
MODELS = {
    "opencode": "test-model",
    "gemini": "gemini-2.5-pro",
    "claude": "claude-sonnet-4-5",
    "copilot": "test-model",
}
KEY = "sk-planted-provider-key-0123456789"
PLANTED = {
    "OPENAI_API_KEY": "sk-planted-openai-0123456789",
    "ANTHROPIC_API_KEY": "sk-planted-anthropic-0123456789",
    "GEMINI_API_KEY": "sk-planted-gemini-0123456789",
    "TEMPORAL_API_KEY": "sk-planted-temporal-0123456789",
    "PROVIDER_KEY": KEY,
}


def fence_of_this_host() -> AgentSandbox | None:
    try:
        return choose_agent_sandbox(SandboxSettings())
    except SandboxUnavailableError:
        return None


class Bench:
    """One agent with a working tree of its own."""

    def __init__(self, name: str, folder: Path, fence: AgentSandbox | None) -> None:
        self.name = name
        self.folder = folder
        self.root = folder / "project"
        self.state = folder / "state"
        self.homes = folder / "homes"
        self.fence = fence
        self.program = str(agent_program(PROGRAMS[name]))
        self.wire: Wire = AGENTS[name].wire or Wire.CHAT

    def run(
        self,
        model: FakeModel,
        control: Supervision | None = None,
        *,
        resume: ResumeToken | None = None,
        grants: tuple[Grant, ...] = (),
        **choice: Any,
    ) -> ExecutorOutcome:
        settings = AgentSettings(
            program=self.program,
            model=MODELS[self.name],
            base_url=model.base_url(self.wire),
            api_key_env="PROVIDER_KEY",
        )
        executor = AcpExecutor(
            AGENTS[self.name],
            settings=settings,
            homes=self.homes,
            gateways=serve_gateway,
            agent_sandbox=self.fence,
            grace_s=1.0,
        )
        mode = AgentMode.FULL if self.fence is None else AgentMode.WORKSPACE
        fields = {"name": self.name, "mode": mode, "wall_limit_s": 90, **choice}
        work = order(self.root, **fields).evolve(resume=resume, grants=grants)
        return executor.execute(work, control or Supervision(), self.state)


def agents(turn: int) -> pytest.MarkDecorator:
    """Two of the agents, by turns."""
    return pytest.mark.parametrize("bench", list(PROGRAMS) if ALL else list(PROGRAMS)[turn % 2 :: 2], indirect=True)


@pytest.fixture(params=PROGRAMS)
def bench(
    request: pytest.FixtureRequest, tmp_path: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Bench]:
    for name, value in PLANTED.items():
        monkeypatch.setenv(name, value)
    made = Bench(request.param, tmp_path, fence_of_this_host())
    assert made.root == workspace
    yield made
    left = [command_of(process) for process in psutil.Process().children(recursive=True)]
    assert not [line for line in left if "sleep 300" in line or PROGRAMS[made.name] in line]


class AfterFile(Supervision):
    """Does something once a file is there."""

    def __init__(self, file: Path, act: Callable[[list[int]], bool]) -> None:
        super().__init__()
        self.file = file
        self.act = act

    def is_cancelled(self) -> bool:
        return self.file.exists() and self.act(self.pids)


def test_an_agent_works_behind_the_fence_and_never_has_the_key(bench: Bench) -> None:
    outside = bench.folder / "outside"
    outside.mkdir()
    steps = (
        write(str(bench.root / "made.txt"), "made\n"),
        shell(f"env > env.txt; echo escaped > {outside}/file.txt; touch .git/hooks/bad"),
        say("all is done"),
    )
    with FakeModel(*steps) as model:
        outcome = bench.run(model)
        calls = model.calls
        assert all(KEY in json.dumps(seen.headers) for seen in model.requests)
    assert (outcome.status, outcome.error) == (ExecutorStatus.COMPLETED, "")
    assert outcome.summary.startswith("all is done")
    assert (bench.root / "made.txt").read_text().strip() == "made"
    assert outcome.versions[bench.name][0].isdigit()
    assert outcome.usage is not None
    assert outcome.usage.input_tokens == 1000 * calls
    kept = [path for place in (bench.state, bench.homes, bench.root) for path in place.rglob("*") if path.is_file()]
    assert not [path for path in kept for secret in PLANTED.values() if secret.encode() in path.read_bytes()]
    assert not [secret for secret in PLANTED.values() if secret.encode() in outcome.transcript]
    assert "PATH=" in (bench.root / "env.txt").read_text()
    if bench.fence is not None:
        assert outcome.versions["fence"] == bench.fence.name
        assert not (outside / "file.txt").exists()
        assert not (bench.root / ".git" / "hooks" / "bad").exists()


@agents(0)
def test_a_limit_with_a_long_wait_ends_the_agent_at_once(bench: Bench) -> None:
    with FakeModel(say("never"), fault=Fault.rate_limited(retry_after_s=3600)) as model:
        outcome = bench.run(model)
    assert (outcome.status, outcome.error_kind) == (ExecutorStatus.LIMIT_HIT, ErrorKind.RATE)
    assert outcome.limit is not None
    assert outcome.limit.retry_after is not None
    assert timedelta(minutes=58) < outcome.limit.retry_after <= timedelta(hours=1)


@agents(1)
def test_a_wrong_key_is_fatal(bench: Bench) -> None:
    with FakeModel(say("never"), fault=Fault.unauthorized()) as model:
        outcome = bench.run(model)
    assert (outcome.status, outcome.error_kind) == (ExecutorStatus.FATAL, ErrorKind.AUTH)
    assert "key or login" in outcome.error


@agents(2)
def test_a_denied_command_is_not_run_and_listed(bench: Bench) -> None:
    how = {"permissions": Verdict.DENY} if bench.fence is None else {"mode": AgentMode.READ_ONLY}
    with FakeModel(shell("echo made > made.txt"), say("I could not")) as model:
        outcome = bench.run(model, **how)
    assert (outcome.status, outcome.denied) == (ExecutorStatus.REFUSED, ("echo made > made.txt",))
    assert not (bench.root / "made.txt").exists()


@agents(3)
def test_an_endless_loop_ends_with_the_budget_of_calls(bench: Bench) -> None:
    with FakeModel(fault=Fault.endless_tools("echo again >> again.txt")) as model:
        outcome = bench.run(model, max_model_calls=4)
        assert model.calls <= 4
    assert (outcome.status, outcome.error_kind) == (ExecutorStatus.FAILED, ErrorKind.BUDGET)
    assert "max_model_calls" in outcome.error


@agents(4)
def test_a_person_is_asked_and_the_work_goes_on(bench: Bench) -> None:
    with FakeModel(shell("echo made > made.txt"), say("made")) as model:
        first = bench.run(model, permissions=Verdict.ASK)
        assert first.status is ExecutorStatus.NEEDS_PERSON
        assert first.question is not None
        assert "echo made > made.txt" in first.question.title
        assert not (bench.root / "made.txt").exists()
        grant = Grant(fingerprint=first.question.fingerprint, allowed=True)
        second = bench.run(model, resume=first.resume, grants=(grant,), permissions=Verdict.ASK)
    assert second.status is ExecutorStatus.COMPLETED
    assert (bench.root / "made.txt").read_text() == "made\n"


@agents(5)
def test_a_cancelled_command_is_gone_with_all_it_started(bench: Bench) -> None:
    late = f"late-{uuid4().hex}.txt"
    with FakeModel(shell(f"echo begun > begun.txt; sleep 300; echo late > {late}"), say("never said")) as model:
        outcome = bench.run(model, AfterFile(bench.root / "begun.txt", lambda _pids: True))
    assert (outcome.status, outcome.error) == (ExecutorStatus.CANCELLED, "stopped on request")
    assert not [line for process in psutil.process_iter() if late in (line := command_of(process))]
    assert not (bench.root / late).exists()


@agents(6)
def test_a_killed_agent_goes_on_with_its_session(bench: Bench) -> None:
    def kill(pids: list[int]) -> bool:
        if kept(bench.homes, "sleeps.txt" if bench.name != "gemini" else ""):
            with suppress(psutil.NoSuchProcess):
                psutil.Process(pids[0]).send_signal(signal.SIGKILL)
        return False

    with FakeModel(shell("echo first > made.txt"), shell("echo > sleeps.txt; sleep 300"), say("never")) as model:
        first = bench.run(model, AfterFile(bench.root / "sleeps.txt", kill))
    assert (first.status, first.error_kind) == (ExecutorStatus.FAILED, ErrorKind.CRASHED)
    assert first.resume is not None
    with FakeModel(shell("echo second >> made.txt"), say("both")) as model:
        second = bench.run(model, resume=first.resume)
        remembers = "echo first > made.txt" in json.dumps(model.requests[-1].body)
    assert second.status is ExecutorStatus.COMPLETED
    assert (bench.root / "made.txt").read_text() == "first\nsecond\n"
    if second.summary.startswith("both"):
        assert remembers
    else:  # it finds a session that never came to the end of a turn only in a later minute than that of its start
        assert (bench.name, remembers) == ("gemini", False)
        assert second.summary.endswith("cannot resume the earlier session, so a new session is started; both")


def kept(homes: Path, words: str) -> bool:
    """Whether an agent has these words of its conversation on disk: it writes them when it has time for it."""
    for folder, folders, files in os.walk(homes):
        folders[:] = [name for name in folders if name not in (".npm", ".cache", "node_modules")]
        for name in files:
            with suppress(OSError):
                if words.encode() in (Path(folder) / name).read_bytes():
                    return True
    return False


def command_of(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""
